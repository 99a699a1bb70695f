"""Part 2: what the splitting buys. SGLD, the simple form of the invariant momentum, and the library's BAOAB form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from langevin.adaptation.stationary import Direction, LinearProcess
from langevin.diagnostics.running import Moments
from langevin.execution import side_by_side
from langevin.kernels import Kernel, StepInputs, Traits
from langevin.kernels.drifts import Tensors
from langevin.kernels.samplers import SAMPLERS
from langevin.sampling.sample import sample
from langevin.targets import Evaluation, Target, energy
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["INTEGRATOR", "Simple", "exact_variance"]

STEPS = (0.015, 0.03, 0.06, 0.12, 0.18)
SHARED: dict[str, Any] = {"seed": 1, "steep": 3.0, "flat": 0.25, "quadrature": {"half_width": 12.0, "points": 200_001}}


@dataclass(frozen=True)
class Simple(Kernel):
    """Euler's form of the invariant momentum, with the new momentum: the same small-step limit, one gradient, two noises.

    ``m' = beta m + (1 - beta) (g + sqrt(2 tau / (a eps)) xi)``, ``theta' = theta - eps (g + a m') + sqrt(2 eps tau) eta``
    """

    traits: ClassVar[Traits] = Traits(num_noises=2)

    bias_factor: float = 1.0
    beta: float = 0.9

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("average",)

    @override
    def update(
        self, position: Tensor, evaluation: Evaluation, noise: Tensor, memory: Tensors, inputs: StepInputs
    ) -> tuple[Tensor, Tensors]:
        gradient, heat = evaluation.gradient, 2 * inputs.temperature
        push = gradient + (heat / (self.bias_factor * inputs.step_size)) ** 0.5 * noise[1]
        average = self.beta * memory[0] + (1 - self.beta) * push
        moved = position - inputs.step_size * (gradient + self.bias_factor * average)
        return moved + (heat * inputs.step_size) ** 0.5 * noise[0], (average,)

    @property
    @override
    def effective_temperature(self) -> float:
        return self.temperature

    @property
    @override
    def description(self) -> str:
        return f"simple: Euler's form of the invariant MSGLD, bias_factor {self.bias_factor:g}, beta {self.beta:g}"


def target_of(given: Mapping[str, Any]) -> Target:
    """Return ``U = log cosh(steep x) + flat x^2``, whose curvature at the mode is ``steep^2 + 2 flat``."""
    return energy(lambda x: (torch.cosh(given["steep"] * x).log() + given["flat"] * x * x).sum())


def truth(given: Mapping[str, Any]) -> float:
    """Return E x^2 under that U, by quadrature."""
    end = given["quadrature"]["half_width"]
    x = torch.linspace(-end, end, given["quadrature"]["points"], dtype=torch.float64)
    weight = torch.exp(-target_of(given).evaluate(x[:, None]).energy)
    return float((x * x * weight).sum() / weight.sum())


def exact_variance(kernel: Kernel, step_size: float, curvature: float) -> float | None:
    """Return the stationary variance of theta on N(0, 1 / curvature), by the discrete Lyapunov equation; None where unstable."""
    one = torch.ones(1, 1, dtype=torch.float64)
    variance = float(LinearProcess.of(kernel, step_size, one, one).variance(Direction(curvature, 0.0), None))
    return variance if math.isfinite(variance) else None


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: all step sizes side by side; errors of E x^2 relative to the truth, in percent; seed s is the scale's plus s."""
    given, steps = scale.settings, scale.settings["steps"]
    make = partial(Simple, "simple") if method.sampler == "simple" else SAMPLERS[method.sampler]
    kernels = [make(step, **method.settings) for step in steps]
    exact, curvature = truth(given), given["steep"] ** 2 + 2 * given["flat"]
    variances = [exact_variance(kernel, step, curvature) for kernel, step in zip(kernels, steps, strict=True)]
    results: Results = {}
    for place, seed in enumerate(seeds):
        squares = _squares(kernels, given, given["seed"] + seed)
        results[seed] = {"truth": exact, "law_temperature": kernels[0].effective_temperature, "steps": {}}
        for step, found, variance in zip(steps, squares, variances, strict=True):
            results[seed]["steps"][f"{step:g}"] = {
                "value": float(found.mean()),
                "error": 100 * (float(found.mean()) / exact - 1),
                "spread": 100 * float(found.std()) / len(found) ** 0.5 / exact,
                "gaussian": None if variance is None else 100 * (variance * curvature - 1),
            }
        progress((place + 1) / len(seeds))
    return results


def _squares(kernels: Sequence[Kernel], given: Mapping[str, Any], seed: int) -> Tensor:
    """Return the mean of x^2 along each chain, (kernel, chain)."""
    number, num_steps = given["num_chains"], given["num_steps"]
    samples = sample(
        target_of(given),
        sampler=side_by_side(kernels, number),
        init=torch.zeros(len(kernels) * number, 1, dtype=torch.float64),
        num_steps=num_steps,
        warmup=given["warmup"],
        seed=seed,
        keep="moments",
        compile=False,
        progress=False,
    )  # fmt: skip
    moments = cast(Moments, samples.moments)  # they were asked for
    mean, variance = moments.mean[:, 0], moments.covariance[:, 0, 0]
    return (mean**2 + variance * (1 - 1 / moments.num)).reshape(len(kernels), number)


def _momentum(name: str, sampler: str, a: float, beta: float, **more: Any) -> Method:
    label = f"{'BAOAB' if sampler == 'msgld' else 'simple'}, a = {a:g}, β = {beta:g}"
    return Method(name, label, sampler, {"bias_factor": a, "beta": beta, **more}, ours=("*",))


def _columns(what: str, digits: int, aside: str = "") -> tuple[Column, ...]:
    return tuple(
        Column(f"steps/{step:g}/{what}", f"ε = {step:g}", digits, aside=f"steps/{step:g}/{aside}" if aside else "")
        for step in STEPS
    )


PAIRS = {"1-0.5": (1.0, 0.5), "1-0.9": (1.0, 0.9), "10-0.9": (10.0, 0.9)}

INTEGRATOR = Experiment(
    name="invariant-integrator",
    title="The same invariant law by two integrators",
    section="Not in the paper: the invariant forms, part 2",
    about="The invariant MSGLD by Euler's steps (simple) and by the library's splitting (BAOAB), and SGLD; one gradient per "
    "step each. Simple is m′ = β m + (1 − β)(g + √(2τ/(aε)) ξ), θ′ = θ − ε(g + a m′) + √(2ετ) η. Measured is E x² under U = "
    "log cosh 3x + x²/4, whose true value is known by quadrature, and, by the discrete Lyapunov equation, the variance on a "
    "Gaussian of the same curvature at the mode, 9.5.",
    methods=(
        Method("sgld", "SGLD", "sgld", ours=("*",)),
        *(_momentum(f"simple-{name}", "simple", *pair) for name, pair in PAIRS.items()),
        *(_momentum(f"baoab-{name}", "msgld", *pair, invariant=True) for name, pair in PAIRS.items()),
    ),
    scales=(
        Scale("quick", {**SHARED, "steps": STEPS, "num_chains": 300, "num_steps": 300, "warmup": 30}, 1, 2),
        Scale("short", {**SHARED, "steps": STEPS, "num_chains": 500, "num_steps": 2000, "warmup": 200}, 1, 6),
        Scale("paper", {**SHARED, "steps": STEPS, "num_chains": 2000, "num_steps": 2000, "warmup": 200}, 1, 15),
    ),
    run=run,
    tables=(
        Table("Error of E x², percent (one standard error, over chains)", _columns("error", 2, "spread")),
        Table("E x²", _columns("value", 4)),
        Table("Error of the variance on the Gaussian, percent", _columns("gaussian", 2), note="A dash where the step is unstable."),
    ),
    settings=(Setting("start", "x = 0", "ours"),),
)
