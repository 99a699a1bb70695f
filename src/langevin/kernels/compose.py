"""Build samplers from parts: any drift with any preconditioner, as published or invariant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, TypeVar

from torch import Tensor

from langevin.checks import check_bool, needs
from langevin.kernels.base import Kernel
from langevin.kernels.gradient_noise import GradientNoise, as_noise
from langevin.kernels.invariant import Invariant
from langevin.kernels.langevin import Langevin
from langevin.kernels.parts import Drift, Identity, NoDrift, Preconditioner, ScaledAverage, Total
from langevin.kernels.schedules import Schedule, as_schedule, constant

__all__ = [
    "BiasFactor",
    "NoiseSetting",
    "StepSize",
    "annealed",
    "compose",
    "either_form",
    "make",
    "published",
]

StepSize = float | Callable[[int], float] | Literal["auto"]
"""A number, a schedule, or "auto": chosen by `sample` in a short warm-up."""


BiasFactor = float | Callable[[int], float] | Literal["auto"]
"""A number, a schedule (annealed to zero it restores the target), or "auto": chosen by `sample`."""


NoiseSetting = str | tuple[Tensor, Tensor] | GradientNoise | None
"""None; "corrected" for gradient noise that `sample` estimates; or known noise, (Σ, τ K)."""


Settings = ParamSpec("Settings")


AnyKernel = TypeVar("AnyKernel", bound=Kernel)


def compose(
    step_size: StepSize,
    *,
    drift: Drift | None = None,
    preconditioner: Preconditioner | None = None,
    annealing: Callable[[int], float] | float = 1.0,
    invariant: bool = False,
    adapt_steps: int | None = None,
    noise: NoiseSetting = None,
    temperature: float = 1.0,
) -> Langevin | Invariant:
    """Combine any drift with any preconditioner, as published or with the target invariant.

    ``θ' = θ - ε P (g + a A_t) + sqrt(2 ε τ) P^(1/2) η``; `drifts.Total` is a sum of biases, the
    conclusion's "complex bias term".

    Args:
        step_size: ε on U; a number or a schedule.
        drift: the bias ``a A_t``; None for none. When invariant, a scaled average or a `Total` of
            them.
        preconditioner: P; None for one. When invariant, a diagonal (`RMS`) that is frozen after the
            warm-up.
        annealing: what the bias is multiplied by, a number or a schedule.
        invariant: give every average of the bias its own noise, so that exp(-U / τ) is invariant
            (`kernels.Invariant`).
        adapt_steps: steps after which adaptation stops; None takes the warm-up of `sample`
            when invariant, else never.
        noise: (Σ, τ K) of a gradient noise to correct for, when invariant; "corrected" for one
            average and no preconditioner.
        temperature: τ.

    Example:
        >>> from langevin.kernels.drifts import Momentum, Total
        >>> from langevin.kernels.preconditioners import RMS
        >>> compose(step_size=0.01, drift=Momentum(), preconditioner=RMS()).state_names
        ('average', 'metric_average')
        >>> short_and_long = Total((Momentum(10.0, beta=0.8), Momentum(100.0, beta=0.99)))
        >>> compose(step_size=0.01, drift=short_and_long, invariant=True).state_names
        ('velocity_0', 'velocity_1', 'passing_velocity')
    """
    check_bool("compose", "invariant", invariant)
    metric, factor = (
        Identity() if preconditioner is None else preconditioner,
        as_schedule("compose", "annealing", annealing),
    )
    if invariant:
        if not isinstance(drift, ScaledAverage | Total):
            what = "a scaled average of gradients, or a Total of them, when invariant"
            raise needs("compose", "drift", what, drift, TypeError)
        gradient_noise = as_noise("compose", noise)
        return make(
            Invariant,
            "compose",
            step_size,
            temperature,
            drift=drift,
            annealing=factor,
            adapt_steps=adapt_steps,
            gradient_noise=gradient_noise,
            preconditioner=metric,
        )
    if noise is not None:
        raise needs(
            "compose",
            "noise",
            "None for the published form: a correction needs invariant=True",
            noise,
        )
    return make(
        Langevin,
        "compose",
        step_size,
        temperature,
        NoDrift() if drift is None else drift,
        metric,
        factor,
        adapt_steps=adapt_steps,
    )


def make(
    kernel: Callable[Concatenate[str, Schedule, float, Settings], AnyKernel],
    name: str,
    step_size: StepSize,
    temperature: float,
    *parts: Settings.args,
    **settings: Settings.kwargs,
) -> AnyKernel:
    """Make the kernel of the sampler `name`; the kernel's other settings follow."""
    return kernel(name, as_schedule(name, "step_size", step_size), temperature, *parts, **settings)


def published(
    name: str,
    step_size: StepSize,
    temperature: float,
    bias_factor: BiasFactor,
    drift: Callable[[float], Drift],
) -> Langevin:
    """Make the sampler whose bias is what `drift` makes of the bias factor."""
    factor, annealing = annealed(name, bias_factor)
    return make(Langevin, name, step_size, temperature, drift(factor), annealing=annealing)


def either_form(
    name: str,
    step_size: StepSize,
    temperature: float,
    bias_factor: BiasFactor,
    drift: Callable[[float], ScaledAverage],
    invariant: bool,
    adapt_steps: int | None = None,
    noise: NoiseSetting = None,
) -> Langevin | Invariant:
    """Put a bias into its published or its invariant kernel."""
    check_bool(name, "invariant", invariant)
    if isinstance(bias_factor, str) and bias_factor == "auto" and not invariant:
        raise needs(
            name, "bias_factor", 'a number or a schedule; "auto" needs invariant=True', bias_factor
        )
    if invariant:
        factor, annealing = annealed(name, bias_factor)
        return make(
            Invariant,
            name,
            step_size,
            temperature,
            drift=drift(factor),
            annealing=annealing,
            adapt_steps=adapt_steps,
            gradient_noise=as_noise(name, noise),
        )
    if noise is not None:
        raise needs(
            name, "noise", "None for the published form: a correction needs invariant=True", noise
        )
    if adapt_steps is not None:
        raise needs(
            name,
            "adapt_steps",
            "invariant=True: the published form never stops adapting",
            adapt_steps,
        )
    return published(name, step_size, temperature, bias_factor, drift)


def annealed(name: str, bias_factor: BiasFactor) -> tuple[float, Schedule]:
    """Split a bias factor into its constant part and its schedule."""
    if callable(bias_factor) or (isinstance(bias_factor, str) and bias_factor == "auto"):
        return 1.0, as_schedule(name, "bias_factor", bias_factor)
    return bias_factor, constant(1.0)
