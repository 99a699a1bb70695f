"""Check the arguments of `sample` once and make the run's configuration from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from langevin.adaptation import KINDS, sampler_at
from langevin.checks import check_function, check_integer, check_position, needs
from langevin.kernels import Kernel, Scaled
from langevin.random import UPDATE_NOISES
from langevin.random.address import MAX_CHAIN, check_seed
from langevin.sampling.config import Adaptation, Keep, MetricSetting, RunConfig
from langevin.sampling.progress import Progress
from langevin.targets import Target
from langevin.targets.base import check_dim, check_target, own_data
from langevin.targets.gradients import BATCHES, GradientFn
from langevin.targets.metric import as_metric
from langevin.targets.parameterisation import starting_coordinates

__all__ = ["Settings", "check_evaluation", "check_parts", "configure"]

CHAINS, DRAWS = 8, 1000


class Settings(TypedDict, total=False):
    """The arguments of `sample` beside the target."""

    data: object
    sampler: Kernel | None
    init: Tensor | Mapping[str, object] | str | None
    chains: int | None
    num_draws: int | None
    num_steps: int | None
    warmup: int | None
    thin: int | None
    metric: MetricSetting
    batch_size: int | None
    batches: str
    control_variate: Tensor | str | None
    seed: int
    first_chain: int
    keep: Keep
    out: str | Path | None
    compile: bool | str
    progress: Progress
    engine: object
    block_size: int | None


def configure(target: Target, given: Settings) -> tuple[RunConfig, Adaptation]:
    """Return the configuration of a run, and what is to be adapted before it."""
    sampler, metric, progress = given["sampler"], given["metric"], given["progress"]
    batch_size, batches, seed = given["batch_size"], given["batches"], given["seed"]
    first_chain, keep, compile = given["first_chain"], given["keep"], given["compile"]
    control_variate = given["control_variate"]
    kernel = sampler_at(0.1) if sampler is None else sampler
    columns = check_parts("sample", kernel, target, given["data"], progress)
    _check_choices(keep, compile)
    steps, warmup, thin = _lengths(given)
    check_seed("sample", seed)
    check_integer("sample", "first_chain", first_chain, 0)
    starts, position = _initial_positions(target, given, columns)
    _check_chains(kernel, len(position), first_chain)
    if sampler is None and metric is None:
        metric = "auto"
    _check_metric(metric, kernel, position)
    _check_batch_size(kernel, columns, batch_size)
    corrects = kernel.gradient_noise is not None or kernel.traits.needs_full_energy
    if sampler is None:
        corrects = batches != "reshuffled"
        if not isinstance(metric, str) and batch_size is not None and corrects:
            what = (
                'one to estimate, such as "auto", with white minibatches: its estimate separates '
                "their noise from the signal"
            )
            raise needs("sample", "metric", what, type(metric).__name__)
    elif batches == "reshuffled" and kernel.traits.needs_full_energy:
        what = f'"white" or "auto" for {kernel.name}, which needs independent minibatches'
        raise needs("sample", "batches", what, batches)
    centre = _centre(sampler, control_variate, position, batch_size)
    adapts = sampler is None and isinstance(metric, str)  # a given metric has coordinates
    coordinates, names = starting_coordinates("sample", target, adapts)
    if coordinates is not None:
        starts, centre = (None if x is None else coordinates.position(x) for x in (starts, centre))
        position = position if starts is None else starts
        target = coordinates
    config = RunConfig(
        kernel.for_run(warmup, position), steps, warmup, thin, seed,
        range(first_chain, first_chain + len(position)), keep, batch_size, centre,
        num_data=len(columns[0]) if columns else None,
        batches=_resolve_batches(batches, batch_size, corrects), coordinates=coordinates,
    )  # fmt: skip
    adaptation = Adaptation(
        target, columns, position, starts, metric, progress, names=tuple(names),
        moves_chains=sampler is None and given["init"] is None,
        uses_control_variates=isinstance(control_variate, str),
        is_compiled=sampler is None and compile is not False and position.is_cpu,
    )  # fmt: skip
    return config, adaptation


def check_parts(who: str, kernel: Any, target: Any, data: Any, progress: Any) -> tuple[Tensor, ...]:
    """Check what `sample` and `resume` share; return the data's columns."""
    if isinstance(target, Kernel):
        what = f"a target; the sampler goes by name: {who}(target, sampler=...)"
        raise needs(who, "target", what, target.name, TypeError)
    if not isinstance(kernel, Kernel):
        raise needs(who, "sampler", "a sampler such as sgld(step_size=...)", kernel, TypeError)
    data = own_data(target, data)
    check_target(who, target, data)
    if kernel.traits.num_noises > len(UPDATE_NOISES):
        what = f"one with at most {len(UPDATE_NOISES)} noises per element"
        raise needs(who, "sampler", what, kernel.traits.num_noises)
    if progress is not None and not isinstance(progress, bool):
        what = "True, False, None or a function of (steps done, total steps)"
        check_function(who, "progress", progress, what, count=2)
    columns = () if data is None else target.as_columns(who, data)
    target.check_data(columns)
    return columns


def check_evaluation(
    target: Target,
    gradient_fn: GradientFn,
    position: Tensor,
    columns: Sequence[Tensor],
    chains: range,
) -> None:
    """Evaluate the target at the initial positions; fail on wrong shapes or non-finite values."""
    check_dim("sample", "init", target, position.shape[-1])
    try:
        energy, gradient = gradient_fn(position, 0)
    except (RuntimeError, TypeError) as error:
        others = {column.dtype for column in columns if column.is_floating_point()}
        others -= {position.dtype}
        if others and ("dtype" in str(error) or "scalar type" in str(error)):
            what = f"the dtype of the data, {others.pop()}"
            raise needs("sample", "init", what, position.dtype, TypeError) from error
        raise
    if energy.shape != position.shape[:1]:
        what = f"one energy per chain, shape ({len(position)},)"
        raise needs("sample", "target", what, tuple(energy.shape))
    if gradient.shape != position.shape:
        what = f"gradients of shape {tuple(position.shape)}"
        raise needs("sample", "target", what, tuple(gradient.shape))
    if gradient.dtype != position.dtype:
        what = f"gradients of the dtype of init, {position.dtype}"
        raise needs("sample", "target", what, gradient.dtype, TypeError)
    bad = ~(torch.isfinite(energy) & torch.isfinite(gradient).all(-1))
    if bad.any():
        index = int(bad.nonzero()[0])
        value = energy[index].item()
        shown = f"the energy {value}"
        if math.isfinite(value):
            shown = f"the gradient {gradient[index].tolist()}"
        what = f"a finite energy and gradient where chain {chains[index]} starts"
        raise needs("sample", "init", what, shown)


def _check_choices(keep: object, compile: object) -> None:
    if not callable(keep) and not (isinstance(keep, str) and keep in ("positions", "moments")):
        what = '"positions", "moments" or a function of one position'
        raise needs("sample", "keep", what, keep)
    if not isinstance(compile, bool) and not (isinstance(compile, str) and compile == "auto"):
        raise needs("sample", "compile", 'True, False or "auto"', compile)


def _lengths(given: Settings) -> tuple[int, int, int]:
    """Return steps, warm-up and thinning; without a sampler the adaptation replaces them."""
    num_draws, num_steps = given["num_draws"], given["num_steps"]
    warmup, thin = given["warmup"], given["thin"]
    if num_draws is not None:
        check_integer("sample", "num_draws", num_draws, 1)
    if given["sampler"] is None:
        for name, value in (("num_steps", num_steps), ("warmup", warmup), ("thin", thin)):
            if value is not None:
                what = "sampler=...: without a sampler it is chosen automatically"
                raise needs("sample", name, what, value, TypeError)
        return num_draws or DRAWS, 0, 1
    warmup, thin = 0 if warmup is None else warmup, 1 if thin is None else thin
    check_integer("sample", "warmup", warmup, 0)
    check_integer("sample", "thin", thin, 1)
    if num_steps is None:
        return warmup + (num_draws or DRAWS) * thin, warmup, thin
    if num_draws is not None:
        raise needs("sample", "num_draws", f"None beside num_steps = {num_steps}", num_draws)
    check_integer("sample", "num_steps", num_steps, 1)
    if warmup >= num_steps:
        raise needs("sample", "warmup", f"less than num_steps = {num_steps}", warmup)
    if thin > num_steps - warmup:
        what = f"at most num_steps - warmup = {num_steps - warmup}"
        raise needs("sample", "thin", what, thin)
    return num_steps, warmup, thin


def _initial_positions(
    target: Target, given: Settings, columns: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor]:
    """Return the positions that `init` gives, or None, and positions like them, (chains, dim)."""
    sampler, chains = given["sampler"], given["chains"]
    init: Any = given["init"]
    count = CHAINS if chains is None else check_integer("sample", "chains", chains, 1)
    if isinstance(init, Mapping):
        by_name: Callable[[Any, int], Tensor] | None = getattr(target, "init_from", None)
        if by_name is None:
            what = "a tensor: values by name are for a Model"
            raise needs("sample", "init", what, init, TypeError)
        init = by_name(init, count)
    if isinstance(init, str) and (init != "spread" or sampler is not None):
        what = 'None, "spread", positions (chains, dim), or values by name'
        if sampler is not None:
            what = "None, positions (chains, dim), or values by name, with a sampler"
        raise needs("sample", "init", what, init)
    if init is not None and not isinstance(init, str):
        starts = check_position("sample", "init", init).detach()
        if starts.ndim > 2:
            raise needs("sample", "init", "shape (chains, dim) or (dim,)", tuple(starts.shape))
        if starts.ndim == 1:
            alone = sampler is not None and chains is None
            starts = starts[None] if alone else starts.repeat(count, 1)
        if chains is not None and len(starts) != chains:
            raise needs("sample", "chains", f"the {len(starts)} rows of init", chains)
        check_dim("sample", "init", target, starts.shape[-1])
        return starts, starts
    if target.dim is None:
        what = "initial positions, or a target with a dim, such as targets.energy(..., dim=2)"
        raise needs("sample", "init", what, init)
    space = target.space
    floats = [column for column in columns if column.is_floating_point()]
    like = space if space is not None else floats[0] if floats else torch.zeros(1).double()
    return None, torch.zeros(count, target.dim, dtype=like.dtype, device=like.device)


def _check_chains(kernel: Kernel, count: int, first_chain: int) -> None:
    if count % kernel.traits.group_size or first_chain % kernel.traits.group_size:
        what = f"whole groups of {kernel.traits.group_size} chains, which interact in {kernel.name}"
        raise needs("sample", "init", what, f"{count} chains from number {first_chain} on")
    if first_chain + count > MAX_CHAIN:
        what = f"at most 2**32 - {count}, for the chains of init"
        raise needs("sample", "first_chain", what, first_chain)


def _check_metric(metric: object, kernel: Kernel, position: Tensor) -> None:
    if metric is not None:
        Scaled.check(kernel)
    if isinstance(metric, str):
        if metric not in ("auto", *KINDS):
            what = f"one of {', '.join(('auto', *KINDS))}, a tensor or None"
            raise needs("sample", "metric", what, metric)
    elif metric is not None:
        as_metric("sample", metric, position)


def _check_batch_size(kernel: Kernel, columns: Sequence[Tensor], batch_size: Any) -> None:
    if batch_size is None:
        return
    if not columns:
        raise needs("sample", "batch_size", "None when there is no data", batch_size)
    check_integer("sample", "batch_size", batch_size, 1)
    if kernel.traits.needs_exact_energy:
        what = (
            f"None for {kernel.name}, which takes energies as exact; "
            'energy_noise="auto" corrects for their noise'
        )
        raise needs("sample", "batch_size", what, batch_size)
    if batch_size > len(columns[0]):
        what = f"at most the {len(columns[0])} rows of the data"
        raise needs("sample", "batch_size", what, batch_size)


def _centre(
    sampler: Kernel | None, control_variate: object, position: Tensor, batch_size: object
) -> Tensor | None:
    """Return the centre of control variates; without a sampler the adaptation may find one."""
    if control_variate is None or (isinstance(control_variate, str) and control_variate == "auto"):
        return None
    if sampler is None:
        what = '"auto" or None without a sampler: the adaptation finds the centre'
        raise needs("sample", "control_variate", what, control_variate)
    if batch_size is None:
        what = "data and a batch_size: without them gradients have no noise to remove"
        raise needs("sample", "control_variate", what, batch_size)
    mode = check_position("sample", "control_variate", control_variate)
    if mode.shape != position.shape[1:]:
        what = f"shape ({position.shape[-1]},), that of one position"
        raise needs("sample", "control_variate", what, tuple(mode.shape))
    if mode.dtype != position.dtype:
        what = f"the dtype of init, {position.dtype}"
        raise needs("sample", "control_variate", what, mode.dtype, TypeError)
    return mode


def _resolve_batches(batches: object, batch_size: int | None, corrects: bool) -> str:
    """Return how minibatches are drawn; "auto" takes what the sampler needs."""
    if batches not in ("auto", *BATCHES):
        raise needs("sample", "batches", f"one of {', '.join(('auto', *BATCHES))}", batches)
    if batches != "auto" and batch_size is None:
        what = '"auto" without a batch_size: every step takes all data'
        raise needs("sample", "batches", what, batches)
    if batches == "reshuffled" and corrects:
        what = (
            '"white" or "auto" for a sampler that corrects for gradient noise: the noise of '
            "reshuffled epochs cancels, so correcting for it would lower the temperature"
        )
        raise needs("sample", "batches", what, batches)
    return ("white" if corrects else "reshuffled") if batches == "auto" else str(batches)
