"""What both ways of finding settings share: the warm-up with a bar, the length of an epoch, words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from langevin.chains.meter import Progress, meter
from langevin.chains.plan import Plan
from langevin.checks import needs
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, Scaled
from langevin.scales import Scale, as_scale
from langevin.targets import Target
from langevin.tuning import KINDS, Cheaper, Found, find_everything

__all__ = ["ScaleSetting", "check_scale", "epoch_of", "warm_up", "work_in_words"]

ScaleSetting = str | Tensor | Scale | None
"""A covariance (dim, dim), variances (dim,), a scale; "auto", "diagonal", "dense" or "low_rank" for one learnt; None for none."""

_GRADIENTS = 1000  # that a warm-up is expected to take


def check_scale(scale: Any, kernel: Kernel, position: Tensor) -> None:
    """Fail when `scale` is none of positions like these, or the sampler can have none."""
    if scale is not None:
        Scaled.check(kernel)
    if isinstance(scale, str):
        if scale not in ("auto", *KINDS):
            raise needs("sample", "scale", f"one of {', '.join(('auto', *KINDS))}, a tensor or None", scale)
    elif scale is not None:
        as_scale("sample", scale, position)


def warm_up(
    exact: GradientFn,
    starts: Tensor,
    plan: Plan,
    scale: str | Scale,
    gather: bool,
    progress: Progress,
    cheaper: Cheaper = lambda centre, positions, scale: None,
) -> Found:
    """Run the warm-up, with a bar of its own."""
    temperature = plan.kernel.temperature
    if temperature == 0:
        raise needs("sample", "kernel", "temperature > 0 for what a warm-up finds: without noise there is no law", temperature)
    with meter(None if callable(progress) else progress, "warm-up", 0, _GRADIENTS) as tell:
        return find_everything(
            exact, starts, chains=plan.chains, seed=plan.seed, scale=scale, gather=gather, temperature=temperature, tell=tell,
            cheaper=cheaper,
        )  # fmt: skip


def epoch_of(plan: Plan, target: Target, columns: Sequence[Tensor]) -> float | None:
    """Return the steps of an epoch: the noise of minibatches cancels over it; that of an artificial gradient noise does not."""
    cancels = plan.batch_size is not None and plan.batches == "reshuffled" and not target.gradient_noise
    return len(columns[0]) / plan.batch_size if cancels and plan.batch_size is not None else None


def work_in_words(work: float) -> str:
    """Say how much the energy departs from a quadratic."""
    return f"the energy departs from a quadratic by {work**0.5:.2g} over a step (root mean square; at most 0.1 is taken)"
