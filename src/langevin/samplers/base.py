"""What the families share: what a step size and a bias factor may be, and how a kernel gets its name and step size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, TypeVar

from torch import Tensor

from langevin.gradient_noise import GradientNoise
from langevin.kernels import Kernel
from langevin.schedules import Schedule, as_schedule

__all__ = ["BiasFactor", "NoiseSetting", "StepSize", "make"]

StepSize = float | Callable[[int], float] | Literal["auto"]
"""A number, a schedule, or "auto": found by `sample` in a short warm-up, see `langevin.tuning`."""

BiasFactor = float | Callable[[int], float] | Literal["auto"]
"""A number, or a schedule: a bias factor that is annealed to zero restores the target; "auto" leaves it to `sample`."""

NoiseSetting = str | tuple[Tensor, Tensor] | GradientNoise | None
"""None; "corrected" for a noise of the gradient that `sample` learns; or one that is known, (Σ, τ K)."""

Settings = ParamSpec("Settings")
AnyKernel = TypeVar("AnyKernel", bound=Kernel)


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
