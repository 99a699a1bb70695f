"""A run without a sampler: everything is found."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.chains.absorb import absorb, cheaper_gradient, learn_noise_of
from langevin.chains.arguments import check_arguments, check_evaluation, check_parts, resolved_batches
from langevin.chains.launch import launch
from langevin.chains.meter import Progress
from langevin.chains.plan import Keep, Plan
from langevin.chains.tune import ScaleSetting, check_scale, epoch_of, warm_up, work_in_words
from langevin.checks import check_integer, check_position, level_of_caller, needs
from langevin.gradient_noise import OPEN
from langevin.gradients import GradientFn, full, in_scale, tolerant
from langevin.kernels import Kernel, Scaled
from langevin.scale import Engine
from langevin.scales import Scale, as_scale
from langevin.store import Samples
from langevin.targets import Evaluation, Target
from langevin.targets.base import check_dim
from langevin.trust import TrustWarning
from langevin.tuning import AFTER_WARMUP, Found, find_step_size, noisy_size, sampler_at, spread_starts, stationary_error

__all__ = ["run_without"]

CHAINS, DRAWS = 8, 1000
_NEAR = 20.0  # noise over signal of control variates up to which chains are near their centre: further out it turns
_DRAW_STEPS = 3.0  # an effective draw should take no more kept draws than this: where it takes more steps, fewer are kept
_MOST_THIN = 100
_ROUGH = (
    "the energy seems to have jumps: a smaller step does not make its changes over a step smooth. A sampler that follows gradients "
    "does not see them, so its law is not the target"
)
_HEAT = 0.03  # of the variance, from the gradient's noise: with what chance adds, trust must not say that it is too hot


def run_without(
    target: Target,
    *,
    data: Any = None,
    chains: int | None = None,
    num_draws: int = DRAWS,
    init: Tensor | Mapping[str, Any] | str | None = None,
    scale: ScaleSetting = "auto",
    batch_size: int | None = None,
    batches: str = "auto",
    seed: int = 0,
    first_chain: int = 0,
    control_variate: str | None = "auto",
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: Progress = None,
    engine: Engine | None = None,
    block_size: int | None = None,
) -> Samples:
    """Find a sampler and run it; everything as in `sample`."""
    finder = sampler_at(0.1)
    columns = check_parts("sample", finder, target, data, progress)
    check_integer("sample", "num_draws", num_draws, 1)
    if control_variate not in ("auto", None):
        raise needs("sample", "control_variate", '"auto" or None without a sampler: the centre is found', control_variate)
    if scale is None:
        raise needs("sample", "scale", 'a scale, or "auto", without a sampler', scale, TypeError)
    if not isinstance(scale, str) and batch_size is not None and batches != "reshuffled":
        what = 'a kind of scale, such as "auto", with white minibatches: what is learnt with it tells their noise from the signal'
        raise needs("sample", "scale", what, type(scale).__name__)
    starts, position = _places(target, init, chains, columns)
    check_arguments(finder, position, num_draws, 0, 1, columns, batch_size, seed, first_chain, None, keep, compile)
    check_scale(scale, finder, position)
    plan = Plan(
        finder, num_draws, 0, 1, seed, range(first_chain, first_chain + len(position)), keep, batch_size,
        num_data=len(columns[0]) if columns else None, batches=resolved_batches(batches, batch_size, batches != "reshuffled"),
    )  # fmt: skip
    tune = partial(
        _tune, target=target, columns=columns, starts=starts, num_draws=num_draws, scale=scale, gather=init is None,
        may_centre=control_variate == "auto", progress=progress,
    )  # fmt: skip
    return launch(
        plan, position, target, columns, tune, out=out, compile=compile, progress=progress, engine=engine, block_size=block_size
    )


def _places(target: Target, init: Any, chains: int | None, columns: Sequence[Tensor]) -> tuple[Tensor | None, Tensor]:
    """Return the starts that `init` says, or None, and positions like them, (chains, dim)."""
    count = CHAINS if chains is None else check_integer("sample", "chains", chains, 1)
    if isinstance(init, Mapping):
        by_name = getattr(target, "init_from", None)
        if by_name is None:
            raise needs("sample", "init", "a tensor: values by name are for a Model", init, TypeError)
        init = by_name(init, count)
    if isinstance(init, str) and init != "spread":
        raise needs("sample", "init", 'None, "spread", positions (chains, dim), or values by name', init)
    if init is not None and not isinstance(init, str):
        starts = check_position("sample", "init", init).detach()
        if starts.ndim == 1:
            starts = starts.repeat(count, 1)
        if chains is not None and len(starts) != chains:
            raise needs("sample", "chains", f"the {len(starts)} rows of init", chains)
        check_dim("sample", "init", target, starts.shape[-1])
        return starts, starts
    if target.dim is None:
        condition = "starting positions, or a target that knows its dim, such as targets.energy(..., dim=2)"
        raise needs("sample", "init", condition, init)
    space, floats = target.space, [column for column in columns if column.is_floating_point()]
    dtype = space.dtype if space is not None else floats[0].dtype if floats else torch.float64
    device = space.device if space is not None else floats[0].device if floats else None
    return None, torch.zeros(count, target.dim, dtype=dtype, device=device)


def _tune(
    plan: Plan,
    position: Tensor,
    *,
    target: Target,
    columns: Sequence[Tensor],
    starts: Tensor | None,
    num_draws: int,
    scale: str | Tensor | Scale,
    gather: bool,
    may_centre: bool,
    progress: Progress,
) -> tuple[Plan, Tensor]:
    """Find everything: places, the scale, the sampler's settings, how many steps to take.

    With minibatches the noise of the gradient is learnt and absorbed; reshuffled, it bounds the step size.
    """
    exact = tolerant(full(target, columns or None))
    if starts is None:
        own = target.init(len(plan.chains), plan.seed, first_chain=plan.chains.start)
        starts = _spread(exact, plan, position[0], own)
    check_evaluation(target, exact, starts, columns, plan.chains)
    kind = scale if isinstance(scale, str) else as_scale("sample", scale, starts)
    found = warm_up(exact, starts, plan, kind, gather, progress, cheaper_gradient(plan, target, columns))
    kernel, texts = found.kernel, []
    if plan.batch_size is not None or target.gradient_noise:
        if plan.batches == "white" or plan.batch_size is None:
            plan, found, kernel, text = _absorbed(found, plan, target, columns, may_centre)
            texts = [text]
        else:
            found = _cooled(found, plan, plan.gradient(target, columns, found.position), epoch_of(plan, target, columns))
            kernel = found.kernel
    thin = min(_MOST_THIN, max(1, round(found.steps_per_draw / _DRAW_STEPS)))
    warmup = 10 + 2 * math.ceil(found.steps_per_draw)  # the velocities start at rest
    text = _in_words(found, plan, texts, thin)
    print(text)
    if found.is_rough:
        warnings.warn(_ROUGH, TrustWarning, stacklevel=level_of_caller())
    steps = warmup + num_draws * thin
    plan = dataclasses.replace(
        plan, kernel=kernel, num_steps=steps, warmup=warmup, thin=thin, found=text, recipe=(found.size, found.softness),
        warmup_gradients=math.ceil(found.cost),
    )  # fmt: skip
    return plan, found.position


def _absorbed(
    found: Found, plan: Plan, target: Target, columns: Sequence[Tensor], may_centre: bool
) -> tuple[Plan, Found, Kernel, str]:
    """Let the sampler absorb its gradients' noise; with control variates where these pay for their second gradient.

    A draw takes about as many steps more as the noise is times the signal, in the noisiest direction (docs/theory.md, section 6).
    """
    sampler = Scaled.of(sampler_at(found.size, found.softness, found.temperature, OPEN), found.scale)
    learnt = learn_noise_of(sampler, found, plan, target, columns)
    if plan.batch_size is not None and may_centre:
        centred = learn_noise_of(sampler, found, plan, target, columns, found.centre)
        pays = 2 * (found.steps_per_draw + centred.ratio) < found.steps_per_draw + learnt.ratio
        if pays and centred.ratio < _NEAR:
            plan, learnt = dataclasses.replace(plan, mode=found.centre), centred
    size = noisy_size(found.size, learnt.ratio, learnt.heat)
    longer, smaller = (found.size / size) ** 0.5, size / found.size
    found = dataclasses.replace(
        found, size=size, work=found.work * smaller**3, steps_per_draw=found.steps_per_draw * longer + learnt.ratio
    )
    bare = sampler_at(found.size, found.softness, found.temperature, OPEN)
    return plan, found, *absorb(Scaled.of(bare, found.scale), found, learnt)


def _spread(exact: GradientFn, plan: Plan, like: Tensor, own: Tensor | None) -> Tensor:
    """Draw starts; say what to do where the target has tensors of another dtype."""
    try:
        return spread_starts(exact, plan.chains, plan.seed, like, own)
    except (RuntimeError, TypeError) as error:
        if "dtype" in str(error) or "scalar type" in str(error):
            raise needs("sample", "init", "positions of the dtype of the target's own tensors", like.dtype, TypeError) from error
        raise


def _cooled(found: Found, plan: Plan, gradient_fn: GradientFn, epoch: float | None) -> Found:
    """Make the size smaller until the gradient's noise heats by no more than 3 percent; the other settings follow the size."""
    kernel, inside = sampler_at(found.size, found.softness), in_scale(gradient_fn, found.scale, found.position)
    start = torch.zeros_like(found.position)
    taken = 0

    def counted(position: Tensor, drawn: tuple[Tensor, ...]) -> Evaluation:
        nonlocal taken
        taken += 1
        return inside.evaluate(position, drawn)

    seen = find_step_size(
        kernel, GradientFn(inside.draw, counted), start, chains=plan.chains, seed=plan.seed, steps_per_epoch=epoch,
        first_step=AFTER_WARMUP,
    )  # fmt: skip
    size = found.size

    def heat(curvature: float, noise: float) -> float:
        kernel = sampler_at(size, found.softness)
        return stationary_error(kernel, kernel.step_size(0), curvature=curvature, noise=noise, steps_per_epoch=epoch)

    while max(heat(seen.curvature, seen.noise), heat(*seen.noisiest)) > _HEAT:
        size *= 0.9
    longer = (found.size / size) ** 0.5
    work = found.work * (size / found.size) ** 3
    return dataclasses.replace(
        found,
        size=size,
        work=work,
        gradients=found.gradients + taken,
        cost=found.cost + taken,
        steps_per_draw=found.steps_per_draw * longer,
    )


def _in_words(found: Found, plan: Plan, texts: Sequence[str], thin: int) -> str:
    kernel = sampler_at(found.size, found.softness)
    drift = getattr(kernel, "drift")  # noqa: B009 - the invariant MSGLD has one
    moved = f"; {found.moved} of them found a mode far higher than the best, and start there" if found.moved else ""
    gradients = f"{found.gradients} gradients each" + (f", and {found.cheap} of minibatches" if found.cheap else "")
    kept = "every step is kept" if thin == 1 else f"one in {thin} is kept"
    if plan.mode is not None:
        texts = ["control variates: each row counts for what it says less what it said at the mode", *texts]
    return (
        f"{kernel.name}, invariant: {len(plan.chains)} chains found their places with {gradients}{moved}\n"
        f"  scale: {found.scale.describe()}\n"
        f"  step_size {kernel.step_size(0):.3g} in that scale, bias_factor {drift.bias_factor:.3g}, beta {drift.smoothing:.2g}: "
        f"{work_in_words(found.work)}\n"
        + "".join(f"  {text}\n" for text in texts)
        + f"  an effective draw takes about {found.steps_per_draw:.2g} steps; {kept}"
    )
