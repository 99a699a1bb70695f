"""Part 2: what the splitting buys. SGLD, the simple form of the invariant momentum, and the library's BAOAB form.

The simple form is Euler's, with the new momentum: ``m' = beta m + (1 - beta) (g + sqrt(2 tau / (a eps)) xi)``,
``theta' = theta - eps (g + a m') + sqrt(2 eps tau) eta``. It has the same small-step limit, one gradient and two noises as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_discrete_lyapunov  # type: ignore[import-untyped]
from torch import Tensor

from langevin.kernels import Clock
from langevin.noise import Purpose, normal, streams
from langevin.samplers import msgld, sgld

__all__ = ["CURVATURE", "SETTINGS", "STEPS", "integrator"]

CURVATURE = 9.5  # of U = log cosh 3x + x^2 / 4 at its mode; the Gaussian has it everywhere
STEPS = (0.015, 0.03, 0.06, 0.12, 0.18)
SETTINGS = {"a 1, beta 0.5": (1.0, 0.5), "a 1, beta 0.9": (1.0, 0.9), "a 10, beta 0.9": (10.0, 0.9)}
State = tuple[Tensor, ...]
Step = Callable[[State, Tensor, Tensor], State]  # state (position first), gradient, two noises -> state


def steppers(eps: float, a: float, beta: float) -> dict[str, tuple[Step, int]]:
    """Return the three steps, and how many tensors each has as its state."""
    clock, plain, split = Clock(eps), sgld(eps), msgld(eps, bias_factor=a, beta=beta, invariant=True)

    def sgld_step(state: State, gradient: Tensor, noise: Tensor) -> State:
        return (plain.update(state[0], gradient, noise[0], (), clock)[0],)

    def simple(state: State, gradient: Tensor, noise: Tensor) -> State:
        theta, average = state
        average = beta * average + (1 - beta) * (gradient + (2 / (a * eps)) ** 0.5 * noise[1])
        return theta - eps * (gradient + a * average) + (2 * eps) ** 0.5 * noise[0], average

    def baoab(state: State, gradient: Tensor, noise: Tensor) -> State:
        theta, memory = split.update(state[0], gradient, noise, state[1:], clock)
        return (theta, *memory)

    return {"SGLD": (sgld_step, 1), "simple": (simple, 2), "BAOAB": (baoab, 3)}


def exact_variance(step: Step, size: int, curvature: float) -> float | None:
    """Return the stationary variance of theta on N(0, 1 / curvature), by the discrete Lyapunov equation; None where unstable.

    On a Gaussian a step is linear, so its matrices are what it makes of unit vectors.
    """
    unit = torch.eye(size + 2, dtype=torch.float64)
    state, noise = tuple(unit[:, k] for k in range(size)), unit[:, size:].T
    matrix = torch.stack(step(state, curvature * state[0], noise), 0).numpy()  # row: new state, column: what it is made of
    transition, noises = matrix[:, :size], matrix[:, size:]
    if np.abs(np.linalg.eigvals(transition)).max() >= 1:
        return None
    return float(solve_discrete_lyapunov(transition, noises @ noises.T)[0, 0])


def truth() -> float:
    """Return E x^2 under U = log cosh 3x + x^2 / 4, by quadrature."""
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    weight = torch.exp(-x * x / 4) / torch.cosh(3 * x)
    return float((x * x * weight).sum() / weight.sum())


def measured(step: Step, size: int, *, seed: int, num_chains: int, num_steps: int) -> tuple[float, float]:
    """Return E x^2 on that U and its standard error, from the spread over chains."""
    shape = (num_chains, 1)
    state, chains = tuple(torch.zeros(shape, dtype=torch.float64) for _ in range(size)), range(num_chains)
    burn, total = num_steps // 10, torch.zeros(shape, dtype=torch.float64)
    for k in range(num_steps):
        x = state[0]
        noise = torch.stack([normal(seed, streams(p, chains), k, 1) for p in (Purpose.POSITION, Purpose.SECOND)]).double()
        state = step(state, 3 * torch.tanh(3 * x) + x / 2, noise)
        if k >= burn:
            total += state[0] ** 2 / (num_steps - burn)
    return float(total.mean()), float(total.std() / num_chains**0.5)


def integrator(a: float, beta: float, *, seed: int, quick: bool) -> dict[str, Any]:
    """Measure the three forms at each step size; errors of E x^2, relative to the truth."""
    plan = {"num_chains": 300 if quick else 2000, "num_steps": 300 if quick else 2000}
    exact, points = truth(), []
    for eps in (0.12,) if quick else STEPS:
        for name, (step, size) in steppers(eps, a, beta).items():
            value, spread = measured(step, size, seed=seed, **plan)
            variance = exact_variance(step, size, CURVATURE)
            points.append({
                "form": name, "step": eps, "value": value, "bias": value / exact - 1, "spread": spread / exact,
                "gaussian": None if variance is None else variance * CURVATURE - 1,
            })  # fmt: skip
    return {"points": points, "truth": exact, "factor": a, "beta": beta, "plan": {**plan, "curvature": CURVATURE}}
