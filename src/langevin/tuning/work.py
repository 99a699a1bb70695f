"""The step size by what the target does: the trapezoid rule of the work over a step, which costs no gradient of its own.

Between two steps, with what was evaluated anyway,

    ``R = U(θ') - U(θ) - (θ' - θ) . (g + g') / 2``

is zero on every quadratic energy and of third order in the step off them. It is the energy error of a Verlet step without the part
that only moves the shadow Hamiltonian. ``E[min(R^2, 1)] <= 0.01`` holds the error of the variance of the invariant MSGLD below 5
percent on skewed, heavy tailed, light tailed and sharp targets (`tests/law/test_step.py`, against quadrature).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.engines import Trace, run_blocks
from langevin.gradients import GradientFn
from langevin.kernels import Kernel
from langevin.trust import energy_residuals

__all__ = ["MOST", "WORK", "Limited", "begun", "joined", "limit_step", "mean_work"]

WORK, MOST = 0.007, 0.01  # E[min(R^2, 1)] that is aimed at, and that is taken
_NOBODY = 2**31
_STEPS, _ROUNDS, _SMALLEST = 100, 20, 0.1


def begun(trace: Trace) -> Tensor:
    """Return where the steps of a trace began, (steps, chains, dim)."""
    return torch.cat([trace.before.position[None], trace.positions[:-1]])


def joined(traces: Sequence[Trace]) -> Trace:
    """Return consecutive traces as one."""
    if len(traces) == 1:
        return traces[0]
    whole = Trace(traces[0].before)
    whole.state = traces[-1].state
    for name in ("positions", "energies", "gradients"):
        setattr(whole, name, torch.cat([getattr(trace, name) for trace in traces]))
    return whole


def mean_work(traces: Sequence[Trace], temperature: float) -> float:
    """Return the mean of min(R^2, 1) over the steps of some traces, R in units of the temperature; 1 where it is not finite."""
    squares = [energy_residuals(begun(trace), trace.energies, trace.gradients).div(temperature).square() for trace in traces]
    return float(torch.cat(squares).nan_to_num(1.0).clamp(max=1.0).mean())


class Limited(NamedTuple):
    """A step size that the work allows."""

    step_size: float
    position: Tensor  # where the chains came to
    work: float


def limit_step(kernel: Kernel, gradient_fn: GradientFn, position: Tensor, *, chains: range, seed: int) -> Limited:
    """Make the step size of a kernel smaller until the mean work of its own steps is small enough; exact gradients only.

    R is of third order in the moves, and moves grow with the root of the step size: so the work grows with its third power.
    """
    step_size = kernel.step_size(0)
    # From step 0, where a scale begins to follow the gradients; with the noise of chains that no run has.
    if chains.stop > _NOBODY:
        raise needs("sample", "first_chain", "chains below 2**31 where the step size is found", chains.start)
    others = range(_NOBODY + chains.start, _NOBODY + chains.stop)
    for _ in range(_ROUNDS):
        tried, kernel = step_size, kernel.with_step_size(step_size)
        traces = list(run_blocks(kernel, gradient_fn, position, seed=seed, chains=others, num_steps=_STEPS))
        work = mean_work(traces, kernel.temperature)
        end = traces[-1].state.position
        is_finite = bool(torch.isfinite(end).all())
        if work <= MOST and is_finite:
            return Limited(step_size, end, work)
        step_size *= min(0.8, (WORK / work) ** (1 / 3)) if is_finite else _SMALLEST
    raise ValueError(
        f"sample() found no step size for {kernel.name}: at {tried:.3g} the energy still changes over a step as no smooth one "
        f"does, by a root mean square of {work**0.5:.2g}. It may have jumps or kinks; give step_size as a number"
    )
