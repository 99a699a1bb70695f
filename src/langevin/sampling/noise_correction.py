"""Estimate the gradient noise before a run, and correct for it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from langevin.adaptation import TURNING, NoiseEstimate, NoiseSource, WarmupResult, estimate_noise
from langevin.checks import level_of_caller, needs
from langevin.diagnostics.trust import TrustWarning
from langevin.kernels import Invariant, Kernel, Scaled
from langevin.sampling.config import RunConfig
from langevin.targets import Target
from langevin.targets.gradients import GradientFn, control_variate
from langevin.targets.metric import Dense, Diagonal, Metric

__all__ = [
    "correct_noise",
    "cheaper_gradient",
    "inner_of",
    "run_noise",
    "noise_has_changed",
    "metric_of",
    "signal_in_metric",
]

_DENSE_UP_TO = 1000  # dimensions up to which Σ is a matrix
_QUIET = 0.04  # largest noise over signal of a warm-up's minibatches
_FEW, _SAVED = 32, 8  # fewest rows of these; how many times fewer than all data they must be
_KNOWN = 0.05  # relative error of a variance, from that of Σ, that is reported
_TURNING_EXCESS = 1.5  # ρ above which noise that changes with the position is badly corrected
_CHANGED, _BEYOND = 0.2, 6.0  # a change of the noise that is reported: share, and standard errors
_FEW_CHAINS, _FINAL_ROWS = 4, 8_000  # for that check: fewest chains, and rows in all
_ROUNDED = 1e-3  # share of the signal that may be lost to rounding
_SKEWED, _FELT = 1.5, 0.1  # skew of the noise, and excess temperature, that are reported together


def run_noise(
    kernel: Kernel,
    found: WarmupResult,
    config: RunConfig,
    target: Target,
    columns: Sequence[Tensor],
    mode: Tensor | None = None,
) -> NoiseEstimate:
    """Estimate the gradient noise at draws of a warm-up, in the sampler's own coordinates."""
    inner, metric = inner_of(kernel), metric_of(kernel, found.position[0])
    centre = config.centre if mode is None else mode
    return estimate_noise(
        NoiseSource(target, columns, config.batch_size, config.seed, centre), found.draws, metric,
        signal_in_metric(found, metric), has_metric=bool(inner.average.scale_names),
        may_turn=metric is found.metric,
    )  # fmt: skip


def inner_of(kernel: Kernel) -> Invariant:
    """Return the sampler inside a metric."""
    inner = kernel.inner if isinstance(kernel, Scaled) else kernel
    assert isinstance(inner, Invariant)
    return inner


def metric_of(kernel: Kernel, like: Tensor) -> Metric:
    """Return the metric that a sampler runs in, for positions like `like` (dim,)."""
    return kernel.scale if isinstance(kernel, Scaled) else Diagonal(torch.ones_like(like))


def cheaper_gradient(
    config: RunConfig,
    target: Target,
    columns: Sequence[Tensor],
    centre: Tensor,
    positions: Tensor,
    metric: Metric,
) -> tuple[GradientFn, float, float] | None:
    """Return a minibatch gradient for a warm-up near one mode, its noise over signal, and its cost.

    Control variates at the mode leave little noise. The batch is so large that the noise is a small
    share of the signal, which moves neither the estimated metric nor the step size. None if such a
    batch is no cheaper than all data, or the target cannot be evaluated by row.
    """
    if config.batch_size is None or target.gradient_noise:
        return None
    temperature, total = config.kernel.temperature, len(columns[0])
    signal = torch.full((len(centre),), temperature, dtype=torch.float64, device=centre.device)
    rows = NoiseSource(target, columns, 1, config.seed, centre)
    try:
        estimate = estimate_noise(rows, positions, metric, signal, has_metric=False)
        batch_size = total
        if math.isfinite(estimate.ratio):
            batch_size = max(_FEW, math.ceil(estimate.ratio / _QUIET))
        if batch_size > total / _SAVED:
            return None
        gradient_fn = control_variate(
            target, columns, batch_size, centre,
            seed=config.seed, chains=config.chains, batches="white",
        )  # fmt: skip
    except Exception:  # a target that cannot be evaluated by row: all data will do
        return None
    return gradient_fn, estimate.mean / batch_size / temperature, 2 * batch_size / total


def signal_in_metric(found: WarmupResult, metric: Metric) -> Tensor:
    """Return τ K in the coordinates of a metric: (dim, dim) if the warm-up's is dense, else (dim,).

    K is the inverse of the warm-up's metric: on a Gaussian it is exact, elsewhere it lies between
    the mean Hessian and the inverse covariance (`adaptation.metric`). Mean squares of gradients
    would add sampling error.
    """
    dim, temperature, like, own = metric.dim, found.temperature, found.position, found.metric
    one = torch.ones(dim, dtype=torch.float64, device=like.device)
    if not isinstance(own, Dense) or dim > _DENSE_UP_TO:
        if metric is own:
            return temperature * one
        if not isinstance(metric, Diagonal):
            what = f'one to estimate, or None, in {dim} dimensions beside noise="corrected"'
            raise needs("sample", "metric", what, metric)
        return temperature * (metric.tensors[0].double() / own.tensors[0].double()) ** 2
    if metric is own:
        return temperature * torch.diag(one)
    pushed = metric.push(torch.diag(one).to(like)).double().mT
    between = torch.linalg.solve(own.root.double(), pushed)  # R_own^-1 R
    return temperature * between.mT @ between


def correct_noise(
    kernel: Kernel, found: WarmupResult, estimate: NoiseEstimate
) -> tuple[Kernel, str]:
    """Return a sampler that corrects for the estimated noise, and the report."""
    made = dataclasses.replace(inner_of(kernel), gradient_noise=estimate.noise)
    inputs, β = made.inputs(0), made.average.smoothing
    ε, factor = float(inputs.step_size), made.average.bias_factor * float(inputs.annealing)
    strength = estimate.largest / made.temperature
    size = 2 * ε * (1 + factor * (1 - β) / (1 + β))
    _check_rounding(size * strength, found.position.dtype)
    _warn(estimate, (1 + factor) * ε * strength / 2)
    source, known = "the noise that the target adds", ""
    if estimate.rows:
        source = f"{estimate.rows} rows at {len(found.draws)} draws"
        known = f", known to {100 * estimate.error:.2g}%"
    text = (
        f"gradient noise, from {source}: up to {estimate.ratio:.3g} times the signal{known}; "
        "corrected, which adds about as many steps per effective sample"
    )
    return Scaled.of(made, estimate.metric) if isinstance(kernel, Scaled) else made, text


def noise_has_changed(
    config: RunConfig, target: Target, columns: Sequence[Tensor], positions: Tensor
) -> str | None:
    """Report if the noise at the final positions (chains, dim) differs from the corrected one.

    It may have been estimated elsewhere, or passed wrongly.
    """
    kernel, noise = config.kernel, config.kernel.gradient_noise
    expected = None if noise is None else noise.variances
    has_rows = config.batch_size is not None and not target.gradient_noise
    if expected is None or not has_rows or len(positions) < _FEW_CHAINS:
        return None
    metric = metric_of(kernel, positions[0])
    rows = NoiseSource(target, columns, config.batch_size, config.seed, config.centre, _FINAL_ROWS)
    each = (rows.deviations(positions, index, metric) for index in range(len(positions)))
    squares = torch.stack([part.square().mean(0) for part in each])
    felt = expected.double() > 1e-6 * float(expected.max())
    found = (squares[:, felt] / expected.double()[felt]).mean(-1)
    times, error = float(found.mean()), float(found.std()) / len(found) ** 0.5
    if abs(times - 1) < _CHANGED + _BEYOND * error:
        return None
    return (
        f"the gradient noise has changed: at the final positions it is {times:.2g} ± {error:.1g} "
        "times the noise that the sampler corrects for. Variances may be off by as much. Use a "
        "longer warmup, or start nearer to the mode"
    )


def _check_rounding(strength: float, dtype: torch.dtype) -> None:
    """Fail if rounding hides the gradient: its weight in a step is 4 over `strength` = S Σ / τ."""
    if not strength / 4 * torch.finfo(dtype).eps < _ROUNDED:
        what = (
            f"a batch whose gradient is not lost to rounding in {dtype}: take more rows, smaller "
            "steps or float64"
        )
        found = f"noise of {strength:.3g} times the signal of a step"
        raise needs("sample", "batch_size", what, found)


def _warn(estimate: NoiseEstimate, excess: float) -> None:
    """Warn if the correction is inaccurate; `excess` is ρ, the excess temperature without it."""
    known = (
        f"the gradient noise is known to {100 * estimate.error:.2g}% only: rows differ much, or "
        "the noise changes with the position. Variances may be off by as much"
    )
    turning = (
        f"the gradient noise changes by {100 * estimate.varies:.2g}% between positions, and one "
        f"constant noise is corrected for: uncorrected it would add {excess:.2g} times the "
        "temperature, of which about 1 can be corrected. Take smaller steps or a larger batch_size"
    )
    skewed = (
        f"the gradient noise is treated as diagonal but is up to {estimate.skew:.2g} times larger "
        'along some directions, which raises the temperature there: metric="auto" makes it diagonal'
    )
    for sentence, is_listed in (
        (known, estimate.error * excess / (1 + excess) > _KNOWN),
        (turning, estimate.varies > TURNING and excess > _TURNING_EXCESS),
        (skewed, estimate.skew > _SKEWED and excess > _FELT),
    ):
        if is_listed:
            warnings.warn(sentence, TrustWarning, stacklevel=level_of_caller())
