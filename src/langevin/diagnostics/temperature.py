"""The temperature that draws really have, measured from velocities or from positions and gradients.

A sampler that runs cold (the published MSGLD and ASGLD) or hot (large steps, noisy gradients) mixes as well as any other:
ESS and R-hat cannot see it. These two can (Wenzel et al. 2020, How good is the Bayes posterior in deep neural networks really?).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, check_tensor, needs
from langevin.diagnostics.arrays import check_draws, gradients_at, healthy_positions
from langevin.diagnostics.convergence import standard_error
from langevin.kernels import Kernel
from langevin.store import Samples
from langevin.targets import Target
from langevin.trust import evenly_spaced

__all__ = ["Temperature", "configurational_temperature", "effective_temperature", "kinetic_temperature"]


@dataclass(frozen=True)
class Temperature:
    """A measured temperature.

    Args:
        value: the estimate.
        standard_error: of the estimate.
        expected: what the sampler's law should have for small steps and exact gradients; None where unknown.
    """

    value: float
    standard_error: float
    expected: float | None = None

    @property
    def deviation(self) -> float | None:
        """(value - expected) / standard_error: beyond 4 or so it is not chance. NaN where the error is unknown or zero."""
        if self.expected is None:
            return None
        return (self.value - self.expected) / self.standard_error if self.standard_error > 0 else math.nan

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval: ``nu value / chi2_nu`` at both tails, nu = 2 (value / standard_error)**2.

        A temperature is a mean of squares, so it is chi-square up to a factor; nu is what gives it its standard error. With n
        independent normal velocities nu is n and the interval is exact.

        Args:
            level: its coverage, in (0, 1).

        Returns:
            (low, high), NaN where the value is not positive or its error unknown.
        """
        check_number("interval", "level", level, "0 < level < 1", lambda v: 0 < v < 1)
        if not (self.value > 0 and self.standard_error > 0):
            return torch.nan, torch.nan
        from scipy.stats import chi2  # type: ignore[import-untyped] # ArviZ brings SciPy

        degrees, tail = 2 * (self.value / self.standard_error) ** 2, (1 - level) / 2
        return tuple(degrees * self.value / float(chi2.isf(p, degrees)) for p in (tail, 1 - tail))  # type: ignore[return-value]

    def __str__(self) -> str:
        """Say it in a line."""
        expected = "" if self.expected is None else f", expected {self.expected:.4g} ({self.deviation:+.1f} standard errors)"
        return f"temperature {self.value:.4g} ± {self.standard_error:.2g}{expected}"


def kinetic_temperature(velocity: Tensor, step_size: float, *, beta: float = 1.0, expected: float | None = None) -> Temperature:
    """Measure ``T = (1 + beta) / 2 * mean(v**2) / eps`` from the velocities of SGHMC.

    `langevin.sghmc` keeps its velocity in units of the time step h = sqrt(eps), with unit mass, so v**2 has mean eps * T in
    continuous time. The discrete step ``v' = beta v - eps g + sqrt(2 tau eps (1 - beta)) eta`` makes that 2 eps T / (1 + beta) for
    small eps: 5 percent more at beta 0.9, although the positions are right. Give the sampler's beta to take it out.

    The velocities are ``state.memory[0]`` of the kernel, or the differences of consecutive draws, ``draws.diff(dim=1)``, when
    ``thin=1``.

    Args:
        velocity: (chain, draw, dim).
        step_size: epsilon of the sampler, constant over these draws.
        beta: of the sampler; 1, the limit of little friction, gives the plain ``mean(v**2) / eps``.
        expected: the temperature to compare with.

    Returns:
        The temperature. Its error is that of a mean over correlated draws (`standard_error`); for a single velocity, shape
        (1, 1, dim), the elements count as independent: ``T sqrt(2 / dim)``.

    Example:
        >>> import langevin as lv
        >>> samples = lv.sample(lv.sghmc(0.01), lv.targets.gaussian([[1.0]]), torch.zeros(500, 1), num_steps=300, warmup=100)
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
        return Temperature(value, value * (2 / velocity.shape[-1]) ** 0.5, _check_expected(who, expected))
    return _summarise(values, _check_expected(who, expected))


def configurational_temperature(
    draws: Tensor, gradients: Tensor, *, centre: Tensor | Sequence[float] | None = None, expected: float | None = None
) -> Temperature:
    """Measure ``T = mean((theta - c) . grad U) / dim`` from positions and gradients.

    For a density ``exp(-U / T)`` with tails that decay, integration by parts gives ``E[(theta - c) . grad U] = dim * T`` for any
    fixed c. The choice of c matters twice. Far from the draws it adds noise. Their own mean adds bias: it lowers the estimate by
    the factor 1 - 1 / ESS, which is many standard errors when dim is large. So by default each chain is centred at the mean of the
    other chains, which it knows nothing of, and the two halves of a lone chain at each other's mean.

    Args:
        draws: (chain, draw, dim).
        gradients: grad U over all data at these draws, of their shape. Minibatch gradients do as well when their noise is
            independent of the draw they are taken at.
        centre: c, (dim,): the mode or the prior's mean, say, when chains sit in modes far apart; None as said above.
        expected: the temperature to compare with.

    Returns:
        The temperature, with the error of a mean over correlated draws (`standard_error`).

    Example:
        >>> from langevin.noise import normal
        >>> draws = 5 + 0.3**0.5 * normal(0, range(10), range(100), 3).transpose(0, 1)
        >>> print(configurational_temperature(draws, draws - 5, expected=0.3))
        temperature 0.3102 ± 0.0077, expected 0.3 (+1.3 standard errors)
    """
    who = "configurational_temperature"
    draws, gradients = check_draws(who, "draws", draws), check_draws(who, "gradients", gradients)
    if gradients.shape != draws.shape:
        raise needs(who, "gradients", f"the shape of the draws {tuple(draws.shape)}", tuple(gradients.shape))
    middle = _other_means(who, draws) if centre is None else check_tensor(who, "centre", centre, draws.shape[-1])
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
    """Measure the temperature of the law that the healthy chains sample, by `configurational_temperature`.

    Args:
        samples: the result of `langevin.sample`, with positions; chains that stopped are left out, with a warning.
        target: the target they were drawn from; its gradient is taken over all data and without artificial noise.
        data: its data set, if it has one.
        kernel: the sampler; its `effective_temperature` becomes `expected`.
        centre: see `configurational_temperature`.
        num: use about so many draws, evenly spaced in each chain; each costs a gradient over all data.

    Returns:
        The temperature.

    Example:
        >>> import langevin as lv
        >>> target, kernel = lv.targets.gaussian([[1.0]]), lv.msgld(0.005, bias_factor=1.0)
        >>> samples = lv.sample(kernel, target, torch.zeros(4000, 1), num_steps=601, warmup=600)
        >>> print(effective_temperature(samples, target, kernel=kernel))  # cold: half of the temperature asked for
        temperature 0.5313 ± 0.012, expected 0.5 (+2.7 standard errors)
    """
    who = "effective_temperature"
    check_integer(who, "num", num, 1)
    if kernel is not None and not isinstance(kernel, Kernel):
        raise needs(who, "kernel", "a sampler such as sgld(step_size=...)", kernel, TypeError)
    if kernel is not None and kernel.temperature == 0:
        raise needs(who, "kernel", "temperature > 0: at 0 it is an optimizer, whose positions have no law", 0.0)
    draws = healthy_positions(who, samples)
    chosen = draws[:, evenly_spaced(draws.shape[1], max(2, -(-num // len(draws))))]
    gradients = gradients_at(who, target, chosen.flatten(0, 1), data).reshape(chosen.shape)
    return configurational_temperature(
        chosen, gradients, centre=centre, expected=None if kernel is None else kernel.effective_temperature
    )


def _other_means(who: str, draws: Tensor) -> Tensor:
    """Return for each draw a centre that was made from other draws: the other chains' mean, or the other half's."""
    chains, num_draws, _ = draws.shape
    means = draws.mean(1, keepdim=True)
    if chains > 1:
        return (means.sum(0, keepdim=True) - means) / (chains - 1)
    if num_draws == 1:
        raise needs(who, "centre", "a tensor of shape (dim,) when there is only one draw", None)
    first, second = draws[:, : num_draws // 2], draws[:, num_draws // 2 :]
    return torch.cat(
        [second.mean(1, keepdim=True).expand_as(first), first.mean(1, keepdim=True).expand_as(second)],
        1,
    )


def _check_expected(who: str, expected: float | None) -> float | None:
    return None if expected is None else check_number(who, "expected", expected, "> 0", lambda v: v > 0)


def _summarise(values: Tensor, expected: float | None) -> Temperature:
    """Average the draws' temperatures, (chain, draw)."""
    return Temperature(float(values.mean()), float(standard_error(values[..., None])), expected)
