"""The noise of a run's gradients, learnt before it and absorbed by its sampler."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from langevin.chains.plan import Plan
from langevin.checks import level_of_caller, needs
from langevin.gradients import GradientFn, control_variate
from langevin.kernels import Invariant, Kernel, Scaled
from langevin.scales import Dense, Diagonal, Scale
from langevin.targets import Target
from langevin.trust import TrustWarning
from langevin.tuning import TURNING, Cheaper, Found, Learnt, Rows, learn_noise

__all__ = [
    "absorb",
    "cheaper_gradient",
    "inner_of",
    "learn_noise_of",
    "noise_has_changed",
    "scale_of",
    "signal_in",
    "without_noise",
]

_DENSE_UP_TO = 1000  # dimensions in which Σ is a matrix
_QUIET, _FEW, _SAVED = 0.04, 32, 8  # noise over signal in a warm-up; rows at the least; how many times fewer than all data
_KNOWN = 0.05  # relative error of a variance, from that of Σ, above which it is said
_TURNING_HEAT = 1.5  # ρ above which a noise that changes with the position is not absorbed well
_CHANGED, _BEYOND, _FEW_PLACES, _LOOKED_AT = 0.2, 6.0, 4, 8_000  # share and standard errors that are said; chains; rows
_ROUNDED = 1e-3  # of the signal that may be lost to rounding
_SKEWED, _FELT = 1.5, 0.1  # noise that is not diagonal, and a share of the temperature that counts


def learn_noise_of(
    kernel: Kernel, found: Found, plan: Plan, target: Target, columns: Sequence[Tensor], mode: Tensor | None = None
) -> Learnt:
    """Learn the noise of a sampler's gradients at draws of a warm-up, in the sampler's own coordinates."""
    inner = inner_of(kernel)
    scale = scale_of(kernel, found)
    rows = Rows(target, columns, plan.batch_size, plan.seed, plan.mode if mode is None else mode)
    return learn_noise(
        rows, found.places, scale, signal_in(found, scale),
        has_metric=bool(inner.average.scale_memory), may_turn=scale is found.scale,
    )  # fmt: skip


def inner_of(kernel: Kernel) -> Invariant:
    """Return the sampler inside a scale."""
    inner = kernel.inner if isinstance(kernel, Scaled) else kernel
    assert isinstance(inner, Invariant)
    return inner


def scale_of(kernel: Kernel, found: Found) -> Scale:
    """Return the scale that a sampler runs in, which may be one."""
    return kernel.scale if isinstance(kernel, Scaled) else Diagonal(torch.ones_like(found.position[0]))


def cheaper_gradient(plan: Plan, target: Target, columns: Sequence[Tensor]) -> Cheaper:
    """Return what a warm-up takes instead of all data where chains are near one mode: rows, corrected by what they say there.

    So many rows that their noise is a small share of the signal, which moves neither the scale that is learnt nor the step size.
    """

    def cheaper(centre: Tensor, positions: Tensor, scale: Scale) -> tuple[GradientFn, float, float] | None:
        if plan.batch_size is None or target.gradient_noise:
            return None
        try:
            return attempt(centre, positions, scale)
        except Exception:  # a target that cannot be asked row by row: all data will do
            return None

    def attempt(centre: Tensor, positions: Tensor, scale: Scale) -> tuple[GradientFn, float, float] | None:
        temperature = plan.kernel.temperature
        signal = torch.full((len(centre),), temperature, dtype=torch.float64, device=centre.device)
        learnt = learn_noise(Rows(target, columns, 1, plan.seed, centre), positions, scale, signal, has_metric=False)
        batch_size = max(_FEW, math.ceil(learnt.ratio / _QUIET)) if math.isfinite(learnt.ratio) else len(columns[0])
        if batch_size > len(columns[0]) / _SAVED:
            return None
        estimate = control_variate(
            target, columns, batch_size, centre, seed=plan.seed, chains=plan.chains, batches="white"
        )  # fmt: skip
        return estimate, learnt.mean / batch_size / temperature, 2 * batch_size / len(columns[0])

    return cheaper


def signal_in(found: Found, scale: Scale) -> Tensor:
    """Return τ K in the coordinates of a scale: (dim, dim) where the warm-up's own scale is dense, else its diagonal (dim,).

    K is taken as the inverse of the metric that the warm-up learnt: on a Gaussian it is that exactly, off them it stands between
    the mean Hessian and the inverse covariance (`tuning.metric`). Measured mean squares of gradients would bring in their chance.
    """
    dim, temperature, like = scale.dim, found.temperature, found.position
    one = torch.ones(dim, dtype=torch.float64, device=like.device)
    if not isinstance(found.scale, Dense) or dim > _DENSE_UP_TO:
        if scale is not found.scale and not isinstance(scale, Diagonal):
            raise needs("sample", "scale", f"one that is learnt, or None, in {dim} dimensions beside a noise that is learnt", scale)
        widths = one if scale is found.scale else scale.tensors[0].double() / found.scale.tensors[0].double()
        return temperature * widths**2
    if scale is found.scale:
        return temperature * torch.diag(one)
    between = torch.linalg.solve(found.scale.root.double(), scale.push(torch.diag(one).to(like)).double().mT)  # R_found^-1 R
    return temperature * between.mT @ between


def without_noise(kernel: Kernel) -> Kernel:
    """Return a sampler that absorbs nothing: what it is for exact gradients."""
    if isinstance(kernel, Invariant):
        return dataclasses.replace(kernel, absorbed=None)
    return kernel


def absorb(kernel: Kernel, found: Found, learnt: Learnt) -> tuple[Kernel, str]:
    """Give a sampler whose noise is open the one that was learnt; say what it is."""
    made = dataclasses.replace(inner_of(kernel), absorbed=learnt.noise)
    inputs, β = made.inputs(0), made.average.smoothing
    ε, factor = float(inputs.step_size), made.average.bias_factor * float(inputs.annealing)
    strength = learnt.largest / made.temperature
    _check_size(2 * ε * (1 + factor * (1 - β) / (1 + β)) * strength, found.position.dtype)
    _say(learnt, (1 + factor) * ε * strength / 2)
    rows = f"{learnt.rows} rows at {len(found.places)} draws" if learnt.rows else "what the target adds to its gradient"
    known = f", known to {100 * learnt.error:.2g}%" if learnt.rows else ""
    text = (
        f"gradient noise, from {rows}: up to {learnt.ratio:.3g} times the signal{known}; absorbed, which takes about as many steps "
        "per draw"
    )
    return Scaled.of(made, learnt.scale) if isinstance(kernel, Scaled) else made, text


def noise_has_changed(plan: Plan, target: Target, columns: Sequence[Tensor], positions: Tensor) -> str | None:
    """Say so when the noise where chains ended, (chains, dim), is another than the one that was absorbed.

    It may have been learnt where chains no longer are, or have been given wrongly.
    """
    kernel, noise = plan.kernel, plan.kernel.gradient_noise
    expected = None if noise is None else noise.variances
    if expected is None or plan.batch_size is None or target.gradient_noise or len(positions) < _FEW_PLACES:
        return None
    scale = kernel.scale if isinstance(kernel, Scaled) else Diagonal(torch.ones_like(positions[0]))
    rows = Rows(target, columns, plan.batch_size, plan.seed, plan.mode, _LOOKED_AT)
    squares = torch.stack([rows.deviations(positions, index, scale).square().mean(0) for index in range(len(positions))])
    felt = expected.double() > 1e-6 * float(expected.max())
    found = (squares[:, felt] / expected.double()[felt]).mean(-1)
    times, error = float(found.mean()), float(found.std()) / len(found) ** 0.5
    if abs(times - 1) < _CHANGED + _BEYOND * error:
        return None
    return (
        f"the gradient's noise has changed: where the chains ended it is {times:.2g} ± {error:.1g} times what the sampler absorbs. "
        "Where there is much noise the variances of the law are off by as much. Take a longer warmup before it is learnt, or start "
        "nearer to the mode"
    )


def _check_size(strength: float, dtype: torch.dtype) -> None:
    """Fail where what a gradient says drowns in rounding: its weight in a step is 4 over S Σ / τ, the `strength` of the noise."""
    if not strength / 4 * torch.finfo(dtype).eps < _ROUNDED:
        what = f"one that leaves a signal in {dtype}: take more rows, smaller steps, or float64"
        raise needs("sample", "batch_size", what, f"noise of {strength:.3g} times what a step can balance")


def _say(learnt: Learnt, heat: float) -> None:
    """Warn where the noise is not known well enough to be absorbed: `heat` is the share of the temperature that it would add."""
    known = (
        f"the gradient's noise is known to {100 * learnt.error:.2g}% only: its rows differ much, or it changes with the position. "
        "The variances of the law may be off by as much"
    )
    turning = (
        f"the gradient's noise changes by {100 * learnt.varies:.2g}% from place to place, and one noise is absorbed: it would add "
        f"{heat:.2g} times the temperature, of which up to 1 is absorbed rightly. Take smaller steps, or a larger batch_size"
    )
    skewed = (
        f"the gradient's noise is taken as diagonal, and is up to {learnt.skew:.2g} times larger along some directions, which it "
        'then heats: scale="auto" makes it diagonal'
    )
    for sentence, is_said in (
        (known, learnt.error * heat / (1 + heat) > _KNOWN),
        (turning, learnt.varies > TURNING and heat > _TURNING_HEAT),
        (skewed, learnt.skew > _SKEWED and heat > _FELT),
    ):
        if is_said:
            warnings.warn(sentence, TrustWarning, stacklevel=level_of_caller())
