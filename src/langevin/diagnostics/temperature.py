"""Measure the temperature of draws; select cold draws of a cyclical schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, check_tensor, needs
from langevin.diagnostics.arrays import (
    check_draws,
    evenly_spaced,
    gradients_at,
    healthy_positions,
    is_samples,
)
from langevin.diagnostics.convergence import standard_error
from langevin.kernels import Kernel
from langevin.targets import Target

if TYPE_CHECKING:
    from langevin.storage import Samples

__all__ = [
    "Cooled",
    "Temperature",
    "configurational_temperature",
    "cooled",
    "effective_temperature",
    "kinetic_temperature",
]


@dataclass(frozen=True)
class Temperature:
    """A measured temperature.

    Args:
        value: the estimate.
        standard_error: of the estimate.
        expected: that of the sampler for small steps and exact gradients; None if unknown.
    """

    value: float
    standard_error: float
    expected: float | None = None

    @property
    def deviation(self) -> float | None:
        """(value - expected) / standard_error; NaN if the error is unknown or zero."""
        if self.expected is None:
            return None
        gap = self.value - self.expected
        return gap / self.standard_error if self.standard_error > 0 else math.nan

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval, ``nu value / chi2_nu`` at both tails.

        A temperature is a mean of squares, so it is chi-square up to a factor, with
        nu = 2 (value / standard_error)**2 degrees of freedom. With n independent normal velocities
        nu is n and the interval is exact.

        Args:
            level: its coverage, in (0, 1).

        Returns:
            (low, high), NaN if the value is not positive or its error is unknown.
        """
        check_number("interval", "level", level, "0 < level < 1", lambda v: 0 < v < 1)
        if not (self.value > 0 and self.standard_error > 0):
            return torch.nan, torch.nan
        from scipy.special import chdtri  # type: ignore[import-untyped] # upper quantiles

        degrees, tail = 2 * (self.value / self.standard_error) ** 2, (1 - level) / 2
        small, large = chdtri(degrees, [1 - tail, tail])
        return float(degrees * self.value / large), float(degrees * self.value / small)

    def __str__(self) -> str:
        """Return the temperature in one line."""
        text = f"temperature {self.value:.4g} ± {self.standard_error:.2g}"
        if self.expected is None:
            return text
        return f"{text}, expected {self.expected:.4g} ({self.deviation:+.1f} standard errors)"


def kinetic_temperature(
    velocity: Tensor, step_size: float, *, beta: float = 1.0, expected: float | None = None
) -> Temperature:
    """Measure ``T = (1 + beta) / 2 * mean(v**2) / eps`` from the velocities of SGHMC.

    `langevin.sghmc` keeps its velocity in units of the time step h = sqrt(eps), with unit mass, so
    v**2 has mean eps * T in continuous time. The discrete step
    ``v' = beta v - eps g + sqrt(2 tau eps (1 - beta)) eta`` makes that 2 eps T / (1 + beta) for
    small eps: 5 percent more at beta 0.9, although the positions are right. Pass the sampler's beta
    to correct for it.

    The velocities are ``state.tensors[0]`` of the kernel, or the differences of consecutive draws,
    ``draws.diff(dim=1)``, with ``thin=1``.

    Args:
        velocity: (chain, draw, dim).
        step_size: epsilon of the sampler, constant over these draws.
        beta: of the sampler; 1, the limit of little friction, gives the plain ``mean(v**2) / eps``.
        expected: the temperature to compare with.

    Returns:
        The temperature, with the standard error of a mean over correlated draws. For a single
        velocity, shape (1, 1, dim), the elements count as independent: ``T sqrt(2 / dim)``.

    Example:
        >>> import langevin as lv
        >>> target, kernel = lv.targets.gaussian([[1.0]]), lv.sghmc(0.01)
        >>> settings = {"init": torch.zeros(500, 1), "num_steps": 300, "warmup": 100}
        >>> samples = lv.sample(target, sampler=kernel, **settings)
        >>> found = kinetic_temperature(samples.draws.diff(dim=1), 0.01, beta=0.9, expected=1.0)
        >>> f"{found.value:.2f} ± {found.standard_error:.2f}"
        '1.04 ± 0.01'
    """
    who = "kinetic_temperature"
    velocity = check_draws(who, "velocity", velocity)
    step_size = check_number(who, "step_size", step_size, "> 0", lambda v: v > 0)
    beta = check_number(who, "beta", beta, "0 <= beta <= 1", lambda v: 0 <= v <= 1)
    values = (1 + beta) / 2 * (velocity * velocity).mean(-1) / step_size
    if values.numel() == 1:
        value = float(values)
        return Temperature(
            value, value * (2 / velocity.shape[-1]) ** 0.5, _check_expected(who, expected)
        )
    return _summarise(values, _check_expected(who, expected))


def configurational_temperature(
    draws: Tensor,
    gradients: Tensor,
    *,
    centre: Tensor | Sequence[float] | None = None,
    expected: float | None = None,
) -> Temperature:
    """Measure ``T = mean((theta - c) . grad U) / dim`` from positions and gradients.

    For a density ``exp(-U / T)`` with decaying tails, integration by parts gives
    ``E[(theta - c) . grad U] = dim * T`` for any fixed c. A c far from the draws adds noise. Their
    own mean adds bias: it lowers the estimate by the factor 1 - 1 / ESS, which is many standard
    errors if dim is large. So by default each chain is centred at the mean of the other chains, and
    the two halves of a single chain at each other's mean.

    Args:
        draws: (chain, draw, dim).
        gradients: grad U over all data at these draws, of their shape; or minibatch gradients
            whose noise is independent of the draws.
        centre: c, (dim,), such as the mode or the prior's mean for chains in distant modes; None
            for the default above.
        expected: the temperature to compare with.

    Returns:
        The temperature, with the error of a mean over correlated draws (`standard_error`).

    Example:
        >>> from langevin.random import normal
        >>> draws = 5 + 0.3**0.5 * normal(0, range(10), range(100), 3).transpose(0, 1)
        >>> print(configurational_temperature(draws, draws - 5, expected=0.3))
        temperature 0.3102 ± 0.0077, expected 0.3 (+1.3 standard errors)
    """
    who = "configurational_temperature"
    draws, gradients = check_draws(who, "draws", draws), check_draws(who, "gradients", gradients)
    if gradients.shape != draws.shape:
        what = f"the shape of the draws {tuple(draws.shape)}"
        raise needs(who, "gradients", what, tuple(gradients.shape))
    if centre is None:
        middle = _other_means(who, draws)
    else:
        middle = check_tensor(who, "centre", centre, draws.shape[-1])
    return _summarise(((draws - middle) * gradients).mean(-1), _check_expected(who, expected))


def effective_temperature(
    samples: Samples,
    target: Target,
    data: Sequence[Tensor] | Tensor | None = None,
    *,
    kernel: Kernel | None = None,
    centre: Tensor | Sequence[float] | None = None,
    num: int = 2000,
) -> Temperature:
    """Measure the `configurational_temperature` of the healthy chains.

    Args:
        samples: the result of `langevin.sample`, with positions; chains that stopped are left out,
            with a warning.
        target: the target of the run; gradients are over all data, without artificial noise.
        data: its data set, if it has one.
        kernel: the sampler; its `effective_temperature` becomes `expected`.
        centre: see `configurational_temperature`.
        num: about how many draws to use, evenly spaced in each chain; each takes a gradient over
            all data.

    Returns:
        The temperature.

    Example:
        >>> import langevin as lv
        >>> target, kernel = lv.targets.gaussian([[1.0]]), lv.msgld(0.005, bias_factor=1.0)
        >>> settings = {"init": torch.zeros(4000, 1), "num_steps": 601, "warmup": 600}
        >>> samples = lv.sample(target, sampler=kernel, **settings)
        >>> print(effective_temperature(samples, target, kernel=kernel))  # half the target's
        temperature 0.5313 ± 0.012, expected 0.5 (+2.7 standard errors)
    """
    who = "effective_temperature"
    check_integer(who, "num", num, 1)
    if kernel is not None and not isinstance(kernel, Kernel):
        raise needs(who, "kernel", "a sampler such as sgld(step_size=...)", kernel, TypeError)
    if kernel is not None and kernel.temperature == 0:
        what = "temperature > 0: at 0 it is an optimizer, whose positions have no distribution"
        raise needs(who, "kernel", what, 0.0)
    draws = healthy_positions(who, samples)
    chosen = draws[:, evenly_spaced(draws.shape[1], max(2, -(-num // len(draws))))]
    gradients = gradients_at(who, target, chosen.flatten(0, 1), data).reshape(chosen.shape)
    expected = None if kernel is None else kernel.effective_temperature
    return configurational_temperature(chosen, gradients, centre=centre, expected=expected)


def _other_means(who: str, draws: Tensor) -> Tensor:
    """Return a centre for each draw: the mean of the other chains, or of the other half."""
    chains, num_draws, _ = draws.shape
    means = draws.mean(1, keepdim=True)
    if chains > 1:
        return (means.sum(0, keepdim=True) - means) / (chains - 1)
    if num_draws == 1:
        raise needs(who, "centre", "a tensor of shape (dim,) when there is only one draw", None)
    halves = draws[:, : num_draws // 2], draws[:, num_draws // 2 :]
    first, second = (half.mean(1, keepdim=True) for half in halves)
    return torch.cat([second.expand_as(halves[0]), first.expand_as(halves[1])], 1)


def _check_expected(who: str, expected: float | None) -> float | None:
    if expected is None:
        return None
    return check_number(who, "expected", expected, "> 0", lambda v: v > 0)


def _summarise(values: Tensor, expected: float | None) -> Temperature:
    """Average the draws' temperatures, (chain, draw)."""
    return Temperature(float(values.mean()), float(standard_error(values[..., None])), expected)


_PARTS = 20  # of the draws, by step size
_COLD = 4  # parts with the smallest steps: the reference


class Cooled(NamedTuple):
    """The draws of a run that have cooled."""

    keep: Tensor  # (draw,): True for draws that have cooled; all chains share their step sizes
    step_size: float  # the largest step size of these
    excess: Tensor  # (parts,), by step size: energy above the reference, relative to dim tau / 2
    error: Tensor  # (parts,): its standard error


def cooled(samples: Samples, *, tolerance: float = 0.05) -> Cooled:
    """Find the draws of a cyclical schedule that have cooled to the energy of small steps.

    The mean energy near a mode is ``dim τ / 2`` above its minimum, so an excess of 5 percent of
    that is a temperature 5 percent too high. Draws are sorted by step size into 20 parts; the four
    parts with the smallest steps are the reference.

    This corrects the draws within each mode, not the weights of modes, which depend on where large
    steps stop crossing barriers (`langevin.cyclical_annealing` corrects both).

    Args:
        samples: of a run with a cyclical schedule, several chains and cycles.
        tolerance: limit of the excess energy, as a share of dim τ / 2.

    Example:
        >>> import langevin as lv
        >>> kernel = lv.sgld(lv.schedules.cyclical(1.2, cycle_length=200))
        >>> target, init = lv.targets.gaussian([[1.0]]), torch.zeros(64, 1)
        >>> samples = lv.sample(target, sampler=kernel, init=init, num_steps=4000)
        >>> found = cooled(samples)
        >>> bool(samples.draws.var() > 1.2), bool(samples.draws[:, found.keep].var() < 1.06)
        (True, True)
    """
    if not is_samples(samples) or samples.kept == "moments" or not samples.temperature:
        raise needs("cooled", "samples", "draws of one temperature > 0", samples, TypeError)
    tolerance = check_number("cooled", "tolerance", tolerance, "> 0", lambda v: v > 0)
    sizes, energy = samples.step_size.cpu(), samples.energy[samples._good].double().cpu()
    if sizes.ndim != 1 or len(sizes) < 10 * _PARTS or len(energy) < 2:
        what = f"two chains or more, of {10 * _PARTS} draws or more, with one schedule"
        raise needs("cooled", "samples", what, samples)
    parts = sizes.argsort().tensor_split(_PARTS)
    means = torch.stack([energy[:, part].mean(1) for part in parts], 1)  # (chain, part)
    unit = samples.dim * samples.temperature / 2
    above = (means - means[:, :_COLD].mean(1, keepdim=True)) / unit
    excess, error = above.mean(0), above.std(0) / len(above) ** 0.5
    is_hot = (excess - error > tolerance).nonzero()
    last = _PARTS if not len(is_hot) else max(_COLD, int(is_hot[0]))
    keep = torch.zeros(len(sizes), dtype=torch.bool)
    keep[torch.cat(parts[:last])] = True
    return Cooled(keep, float(sizes[keep].max()), excess, error)
