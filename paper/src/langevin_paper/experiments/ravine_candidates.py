"""The settings that a search tries: the same points of the unit cube for every method, read in its own ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from langevin.kernels import Kernel
from langevin.kernels.samplers import SAMPLERS
from langevin.kernels.schedules import Schedule, constant, polynomial, step_decay
from langevin.random import Purpose, normal, stream
from langevin_paper.experiments.reheating import Reheating
from langevin_paper.spec import Method

__all__ = ["Candidate", "candidates", "reheating"]


class Candidate(NamedTuple):
    """A setting that is tried."""

    settings: dict[str, Any]  # as the sampler takes them, but for the step size
    step_size: Schedule
    temperature: float

    def kernel(self, method: Method) -> Kernel:
        """Make the sampler."""
        return SAMPLERS[method.sampler](step_size=self.step_size, temperature=self.temperature, **self.settings)

    @property
    def text(self) -> str:
        """The setting in words."""
        return ", ".join([f"step_size {self.step_size}", *(f"{name} {_short(value)}" for name, value in self.settings.items())])


def candidates(method: Method, given: Mapping[str, Any]) -> list[Candidate]:
    """Return the settings that are tried: point k of the unit cube, the same for every method, read in the method's ranges."""
    count, (beta, beta_2) = given["num_settings"], given["points_allowed"]
    made: list[Candidate] = []
    for k in range(16 * count):
        point = torch.special.ndtr(normal(given["points_seed"], stream(Purpose.DATA), k, 7, dtype=torch.float64)).tolist()
        # Points that break the condition of Theorem 3.2, beta_1^2 < beta_2, are passed over, for every method alike.
        if (1 - _between(beta, point[2])) ** 2 < 1 - _between(beta_2, point[3]):
            made.append(_candidate(method.settings, point, given))
        if len(made) == count:
            return made
    raise RuntimeError(f"fewer than {count} of {16 * count} points are allowed")


def _candidate(ranges: Mapping[str, Any], point: list[float], given: Mapping[str, Any]) -> Candidate:
    step, bias = _between(ranges["step_size"], point[0]), point[1]
    settings: dict[str, Any] = {}
    if "a * step_size" in ranges:
        settings["bias_factor"] = float(f"{_between(ranges['a * step_size'], bias) / step:.4g}")
    places = {"1 - beta_1": point[2], "1 - beta_2": point[3]}
    betas = tuple(1 - _between(ranges[name], place) for name, place in places.items() if name in ranges)
    if betas:
        settings |= {"betas": betas} if len(betas) > 1 else {"beta": betas[0]}
    fixed = {name: value for name, value in ranges.items() if not isinstance(value, tuple)}
    return Candidate(settings | fixed, _schedule(step, point[4:], given), given["temperature"])


def _schedule(initial: float, point: list[float], given: Mapping[str, Any]) -> Schedule:
    """Return one of four kinds, each as likely: constant, halved every so often, polynomial, reheating."""
    kind, first, second = int(4 * point[0]), point[1], point[2]
    scale = given["num_steps"] / given["stated_for"]
    halved, power, offset = given["halved"], given["polynomial"]["power"], given["polynomial"]["offset"]
    if kind == 0:
        return constant(initial)
    if kind == 1:
        every = halved["every"][int(len(halved["every"]) * first)]
        return step_decay(initial, factor=halved["factor"], every=max(1, round(every * scale)))
    if kind == 2:
        low, high = (end * scale for end in offset)
        exponent = round(power[0] + (power[1] - power[0]) * first, 3)
        return polynomial(initial, power=exponent, offset=_between((low, high), second))
    return reheating(initial, given)


def reheating(initial: float, given: Mapping[str, Any]) -> Schedule:
    """Return the search's reheating schedule, for a run of the given length."""
    shape = dict(given["reheating"])
    return Reheating(initial, cycle_length=given["num_steps"] // shape.pop("cycles"), **shape)


def _between(ends: tuple[float, float], share: float) -> float:
    """Return the number at this share of the way, in logarithms, to four digits: what is shown is what is run."""
    low, high = ends
    return float(f"{low * (high / low) ** share:.4g}")


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
