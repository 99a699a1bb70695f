"""The chain driver: a function that runs a kernel on a target, many chains at once."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from langevin.checks import check_integer, check_position, needs
from langevin.engine import Block, Engine, Trace, block_length, draw_block
from langevin.fingerprint import check_fingerprints, fingerprints
from langevin.gradients import GradientFn, check_data, full, minibatch, noisy
from langevin.gradients import control_variate as control_variate_gradient
from langevin.kernels import Kernel, KernelState
from langevin.moments import add_moments, no_moments
from langevin.noise import UPDATE_NOISES
from langevin.schedules import AUTO, explores
from langevin.store import Checkpoint, DiskStore, MemoryStore, Samples, make_samples, read_manifest
from langevin.targets import Posterior, Target
from langevin.tuning import find_step_size

__all__ = ["resume", "sample"]

Keep = str | Callable[[Tensor], Tensor]
_CHECKPOINT_SECONDS = 5.0  # how much work a kill may cost


def sample(
    kernel: Kernel,
    target: Target,
    init: Tensor,
    *,
    num_steps: int,
    warmup: int = 0,
    thin: int = 1,
    data: Sequence[Tensor] | Tensor | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    first_chain: int = 0,
    control_variate: Tensor | None = None,
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: bool | None = None,
) -> Samples:
    """Run chains of `kernel` on `target`.

    Every random number is a function of (seed, chain, step): the same call gives the same bits, and chains run apart
    (with `first_chain`) give what they give together. Compiled steps differ from eager ones in rounding; pin `compile` to True or
    False where the last bit matters, for "auto" decides by the clock.

    Args:
        kernel: a recipe such as ``langevin.sgld(step_size=0.01)``. With ``step_size="auto"`` a short warm-up finds a step whose law
            is off by at most 5 percent of the posterior variance, and prints why (`langevin.tuning.find_step_size`).
        target: an energy of `langevin.targets`.
        init: starting positions, (chains, dim), or (dim,) for one chain.
        num_steps: steps in all, warm-up included.
        warmup: first steps whose draws are thrown away.
        thin: keep every `thin`-th position after the warm-up.
        data: the data set's columns, for targets that need one.
        batch_size: rows per step and chain; None takes all data each time.
        seed: an int in [0, 2**64).
        first_chain: number of the first chain.
        control_variate: a position (dim,) near the mode, such as `langevin.gradients.find_mode` gives: minibatch gradients are then
            corrected by those at the mode, which takes most of their noise away there.
        keep: "positions"; or a function of one position (dim,), whose results are kept instead; or "moments" for running mean and
            covariance only.
        out: a new folder to which draws are streamed while the chains run, so that memory stays flat; `resume` continues it after a
            kill, `langevin.open` reads it, also while it grows.
        compile: True, False, or "auto": compile when the rest of the run is long enough to pay for the seconds that takes.
        progress: show a progress bar; None shows one on a terminal only.

    Returns:
        Samples, whose `draws` have axes (chain, draw, dim). A chain that goes non-finite stops, keeps its draws and says when
        and why in `status`; the others go on. Ctrl-C returns what was drawn so far.

    Example:
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> lv.sample(lv.sgld(step_size=0.05), target, torch.zeros(4, 2), num_steps=300, warmup=100).draws.shape
        torch.Size([4, 200, 2])
    """
    position = _check_arguments(kernel, target, init, num_steps, warmup, thin, data, batch_size, keep, compile)
    if isinstance(target, Posterior) and data is not None:
        target.check_data(check_data(data))
    kernel = kernel.for_run(warmup)
    chains = range(first_chain, first_chain + len(position))
    plan = _Plan(num_steps, warmup, thin, seed, chains, keep, kernel.step_size)  # type: ignore[arg-type]
    if keep != "moments" and plan.num_draws == 0:
        raise needs("sample", "num_steps", "a step that is kept: after the warm-up, in no exploration phase", num_steps)
    gradient_fn = _gradient(target, data, batch_size, control_variate, plan, position)
    _check_evaluation(gradient_fn, position)
    # The noise of minibatches cancels over an epoch; that of an artificial gradient noise does not.
    epoch = None if batch_size is None or target.gradient_noise else len(check_data(data)[0]) / batch_size  # type: ignore[arg-type]
    kernel, note = _tuned(kernel, gradient_fn, position, plan, epoch)
    event_shape = tuple(plan.kept(position[None]).shape[2:])
    alive = torch.ones(len(position), dtype=torch.bool, device=position.device)
    checkpoint = Checkpoint(_tensors(kernel.init(position), alive), stopped={})
    if keep == "moments":
        checkpoint.tensors |= no_moments(position)
    store: MemoryStore | DiskStore
    if out is None:
        store = MemoryStore(event_shape, len(position), plan.num_draws, position)
    else:
        manifest = {
            "num_steps": num_steps, "warmup": warmup, "thin": thin, "seed": seed, "first_chain": first_chain,
            "num_chains": len(position), "dim": position.shape[-1], "num_draws": plan.num_draws, "batch_size": batch_size,
            "keep": keep if isinstance(keep, str) else "function", "compile": compile, "description": kernel.description + note,
            "tuned": kernel.step_size(0) if note else None,  # type: ignore[operator]
            "control_variate": None if control_variate is None else control_variate.double().tolist(),
            "fingerprints": fingerprints(kernel, gradient_fn, position, data),
        }  # fmt: skip
        store = DiskStore.create(out, manifest, event_shape, checkpoint)
    return _drive(kernel, gradient_fn, plan, store, checkpoint, compile, progress, note)


def resume(
    path: str | Path,
    kernel: Kernel,
    target: Target,
    *,
    data: Sequence[Tensor] | Tensor | None = None,
    keep: Callable[[Tensor], Tensor] | None = None,
    progress: bool | None = None,
) -> Samples:
    """Go on with a run that was killed or interrupted; the draws are those of an uninterrupted run, bit for bit.

    The folder holds numbers, not code: sampler, target and data are given again and checked against its fingerprints.

    Args:
        path: the folder given to ``sample(out=...)``.
        kernel: the sampler of the run.
        target: its target.
        data: its data.
        keep: its `keep`, where that was a function.
        progress: as in `sample`.

    Returns:
        Samples of the whole run. A finished run is read and returned.
    """
    manifest = read_manifest(path)
    store = DiskStore(path, manifest)
    checkpoint = store.load()
    if (keep is not None) != (manifest["keep"] == "function"):
        raise needs("resume", "keep", f"what the run had, {manifest['keep']!r}", keep)
    chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
    kernel = kernel.for_run(manifest["warmup"])
    lengths = manifest["num_steps"], manifest["warmup"], manifest["thin"]
    plan = _Plan(*lengths, manifest["seed"], chains, keep or manifest["keep"], kernel.step_size)  # type: ignore[arg-type]
    position = checkpoint.tensors["position"]
    if kernel.step_size == AUTO and manifest["tuned"] is not None:
        kernel = dataclasses.replace(kernel, step_size=manifest["tuned"])
    mode = manifest["control_variate"]
    centre = None if mode is None else torch.tensor(mode, dtype=torch.float64).to(position)
    gradient_fn = _gradient(target, data, manifest["batch_size"], centre, plan, position)
    check_fingerprints(path, manifest["fingerprints"], kernel, gradient_fn, data, position)
    return _drive(kernel, gradient_fn, plan, store, checkpoint, manifest["compile"], progress)


def _tuned(kernel: Kernel, gradient_fn: GradientFn, position: Tensor, plan: _Plan, epoch: float | None) -> tuple[Kernel, str]:
    """Find the step size of a kernel that leaves it open; return the kernel and the reasons, printed as well."""
    if kernel.step_size != AUTO:
        return kernel, ""
    found = find_step_size(kernel, gradient_fn, position, chains=plan.chains, seed=plan.seed, steps_per_epoch=epoch)
    print(found.text)
    return dataclasses.replace(kernel, step_size=found.step_size), f"\n  {found.text}"


@dataclass(frozen=True)
class _Plan:
    """What is to be run and kept."""

    num_steps: int
    warmup: int
    thin: int
    seed: int
    chains: range
    keep: Keep
    step_size: Callable[[int], float]

    @property
    def num_draws(self) -> int:
        return 0 if self.keep == "moments" else len(self.chosen(range(self.num_steps)))

    def chosen(self, steps: range) -> list[int]:
        """Return the places within a stretch of steps whose positions are kept.

        These are the steps warmup - 1 + k thin, k = 1, 2, ..., but for those of an exploration phase.
        """
        since = max(steps.start, self.warmup) - self.warmup + 1
        first = self.warmup - 1 + -(-since // self.thin) * self.thin
        return [place for place in range(first - steps.start, len(steps), self.thin) if not explores(self.step_size, steps[place])]

    def kept(self, positions: Tensor) -> Tensor:
        """Turn positions (draw, chain, dim) into what is stored, (chain, draw, ...)."""
        by_chain = positions.transpose(0, 1)
        return torch.func.vmap(torch.func.vmap(self.keep))(by_chain) if callable(self.keep) else by_chain


def _drive(
    kernel: Kernel,
    gradient_fn: GradientFn,
    plan: _Plan,
    store: MemoryStore | DiskStore,
    checkpoint: Checkpoint,
    compile: bool | str,
    progress: bool | None,
    note: str = "",
) -> Samples:
    """Run from a checkpoint to the end, block after block."""
    state, alive = _state(kernel, checkpoint), checkpoint.tensors["alive"]
    stopped = dict(checkpoint.stopped or {})
    engine = Engine(kernel, gradient_fn, compile, checkpoint.compiled_from)
    length, kept, start, saved = block_length(state.position), checkpoint.kept, time.perf_counter(), time.perf_counter()
    moments = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("moments_")}

    def now() -> Checkpoint:
        seconds = checkpoint.seconds + time.perf_counter() - start
        return Checkpoint(_tensors(state, alive) | moments, state.step, kept, stopped, engine.compiled_from, seconds)

    # tqdm takes disable=None as "only on a terminal".
    bar = tqdm(
        total=plan.num_steps,
        initial=state.step,
        desc=kernel.name,
        unit="step",
        disable=None if progress is None else not progress,
    )
    interrupted = False
    while state.step < plan.num_steps and alive.any() and not interrupted:
        steps = range(state.step, min(plan.num_steps, (state.step // length + 1) * length))
        trace = Trace()
        try:
            block = draw_block(kernel, gradient_fn, state.position, plan.seed, plan.chains, steps)
            state = engine.run(state, block, length, plan.num_steps - steps.start, trace)
        except KeyboardInterrupt:
            interrupted = True
            steps = steps[: trace.done]
        alive = _stop_bad_chains(trace, steps, alive, stopped)
        kept += _record(plan, store, moments, trace, steps, block if trace.done else None, alive, stopped, kept)
        bar.update(len(steps))
        if not interrupted and time.perf_counter() - saved > _CHECKPOINT_SECONDS:
            store.save(now())
            saved = time.perf_counter()
    bar.close()
    if interrupted:  # the kernel's state may be behind the draws by a part of a block: the last checkpoint stands
        store.flush(kept)
        done = steps.stop if len(steps) else steps.start
        warnings.warn(f"sample() was interrupted at step {done}: {kept} draws are returned", stacklevel=3)
    else:
        store.save(now())
    what = plan.keep if isinstance(plan.keep, str) else "function"
    samples = make_samples(store.read(kept), now(), plan.chains, kernel.description + note, what)
    for bad in [entry for entry in samples.status if not entry.is_healthy]:
        warnings.warn(f"{bad}. A smaller step_size may help.", stacklevel=3)
    return samples


def _stop_bad_chains(trace: Trace, steps: range, alive: Tensor, stopped: dict[int, int]) -> Tensor:
    """Find chains that went non-finite in the block and note their step; return which ones are still alive."""
    if not trace.done:
        return alive
    positions = trace.positions[: len(steps)]
    if torch.isfinite(positions.sum()):
        return alive
    finite = torch.isfinite(positions).all(-1)
    for index in (alive & ~finite.all(0)).nonzero().flatten().tolist():
        stopped[index] = steps[int(finite[:, index].int().argmin())]
    return alive & finite.all(0)


def _record(
    plan: _Plan,
    store: MemoryStore | DiskStore,
    moments: dict[str, Tensor],
    trace: Trace,
    steps: range,
    block: Block | None,
    alive: Tensor,
    stopped: dict[int, int],
    kept: int,
) -> int:
    """Store the block's draws; return how many there are per chain."""
    places = plan.chosen(steps)
    if not places or block is None:
        return 0
    # A slice takes a view, where no exploration phase cuts the places up.
    is_regular = len(places) == len(range(places[0], len(steps), plan.thin))
    rows = slice(places[0], len(steps), plan.thin) if is_regular else places
    positions = trace.positions[rows]
    if moments:
        add_moments(moments, positions)
        return len(places)
    values = {
        "draws": plan.kept(positions),
        "energy": trace.energies[rows].T,
        "gradient_norm": trace.gradient_norms[rows].T,
        "step_size": torch.tensor([block.clocks[place].step_size for place in places], dtype=torch.float64),
    }
    if stopped:
        # A stopped chain has no draws from its bad step on.
        last = torch.tensor([stopped.get(index, steps.stop) for index in range(len(alive))], device=alive.device)
        gone = torch.tensor([steps[place] for place in places], device=alive.device) >= last[:, None]
        for name in ("draws", "energy", "gradient_norm"):
            values[name] = values[name].clone()
            values[name][gone] = torch.nan
    store.write(kept, values)
    return len(places)


def _tensors(state: KernelState, alive: Tensor) -> dict[str, Tensor]:
    memory = {f"memory_{k}": tensor for k, tensor in enumerate(state.memory)}
    return {"position": state.position, "alive": alive, **memory}


def _state(kernel: Kernel, checkpoint: Checkpoint) -> KernelState:
    memory = tuple(checkpoint.tensors[f"memory_{k}"] for k in range(len(kernel.memory)))
    return KernelState(checkpoint.tensors["position"], memory, checkpoint.step)


def _gradient(
    target: Target, data: Sequence[Tensor] | Tensor | None, batch_size: int | None, mode: Tensor | None, plan: _Plan, like: Tensor
) -> GradientFn:
    if mode is not None and (data is None or batch_size is None):
        raise needs("sample", "control_variate", "data and a batch_size: there is no noise to take away", batch_size)
    if data is None or batch_size is None:
        gradient_fn = full(target, data)
    elif mode is not None:
        gradient_fn = control_variate_gradient(target, data, batch_size, mode, seed=plan.seed, chains=plan.chains)
    else:
        gradient_fn = minibatch(target, data, batch_size, seed=plan.seed, chains=plan.chains)
    if not target.gradient_noise:
        return gradient_fn
    return noisy(gradient_fn, target.gradient_noise, seed=plan.seed, chains=plan.chains, like=like)


def _check_arguments(
    kernel: Any,
    target: Any,
    init: Any,
    num_steps: Any,
    warmup: Any,
    thin: Any,
    data: Any,
    batch_size: Any,
    keep: Any,
    compile: Any,
) -> Tensor:
    """Fail early on bad input; return the starting positions with a chain axis."""
    if not isinstance(kernel, Kernel):
        raise needs("sample", "kernel", "a recipe such as sgld(step_size=...)", kernel, TypeError)
    if not isinstance(target, Target):
        raise needs("sample", "target", "a target such as targets.energy(...)", target, TypeError)
    if kernel.num_noises > len(UPDATE_NOISES):
        raise needs("sample", "kernel", f"at most {len(UPDATE_NOISES)} noises per element", kernel.num_noises)
    if not callable(keep) and keep not in ("positions", "moments"):
        raise needs("sample", "keep", '"positions", "moments" or a function of one position', keep)
    if compile not in (True, False, "auto"):
        raise needs("sample", "compile", 'True, False or "auto"', compile)
    position = check_position("sample", "init", init)
    if position.ndim > 2:
        raise needs("sample", "init", "shape (chains, dim) or (dim,)", tuple(position.shape))
    check_integer("sample", "num_steps", num_steps, 1)
    check_integer("sample", "warmup", warmup, 0)
    check_integer("sample", "thin", thin, 1)
    if warmup >= num_steps:
        raise needs("sample", "warmup", f"less than num_steps = {num_steps}", warmup)
    if thin > num_steps - warmup:
        raise needs("sample", "thin", f"at most num_steps - warmup = {num_steps - warmup}", thin)
    if target.needs_data and data is None:
        raise needs("sample", "data", "the columns that the target's likelihood takes", data)
    if not target.needs_data and data is not None:
        raise needs("sample", "data", "None: this target has no data", type(data).__name__)
    if batch_size is not None:
        if data is None:
            raise needs("sample", "batch_size", "None when there is no data", batch_size)
        check_integer("sample", "batch_size", batch_size, 1)
    return position.detach().reshape(-1, position.shape[-1])


def _check_evaluation(gradient_fn: GradientFn, position: Tensor) -> None:
    """Try the target once: its shapes must be those of the chains."""
    energy, gradient = gradient_fn(position, 0)
    if energy.shape != position.shape[:1]:
        raise needs("sample", "target", f"one energy per chain, shape ({len(position)},)", tuple(energy.shape))
    if gradient.shape != position.shape:
        raise needs("sample", "target", f"gradients of shape {tuple(position.shape)}", tuple(gradient.shape))
    if gradient.dtype != position.dtype:
        raise needs("sample", "target", f"gradients of the dtype of init, {position.dtype}", gradient.dtype, TypeError)
