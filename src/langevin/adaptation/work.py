"""Limit the step size by the energy error of a step, without extra gradients.

    ``R = U(θ') - U(θ) - (θ' - θ) . (g + g') / 2``

is zero on every quadratic energy, and of third order in the step elsewhere. It is the energy error
of a Verlet step without the part that only shifts the shadow Hamiltonian. The limit
``E[min(R^2, 1)] <= 0.01`` keeps the error of the variance of the invariant MSGLD below 5 percent on
skewed, heavy-tailed, light-tailed and sharp targets (`tests/law/test_step.py`, against quadrature).

R also detects discontinuities of an energy: there it does not shrink with the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.diagnostics.running import energy_residuals
from langevin.execution import Trace, run_blocks
from langevin.kernels import Kernel
from langevin.targets.gradients import GradientFn

__all__ = [
    "MOST",
    "WORK",
    "Limited",
    "begun",
    "describe_work",
    "find_jumps",
    "joined",
    "limit_step",
    "mean_square",
    "mean_work",
    "residuals",
]

WORK, MOST = 0.007, 0.01  # E[min(R^2, 1)]: aim and limit
_NOBODY = 2**31  # chains from here on are in no run
_STEPS, _ROUNDS, _SMALLEST = 100, 20, 0.1
_HALVINGS = 14
_HEIGHT = 0.05  # of a jump that counts, in units of the temperature
_ROUNDING = 1e4  # roundings of the energy that a jump must exceed


def begun(trace: Trace) -> Tensor:
    """Return the positions at the beginning of the steps of a trace, (steps, chains, dim)."""
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


def residuals(traces: Sequence[Trace]) -> Tensor:
    """Return R of all steps of some traces, (steps, chains)."""
    return torch.cat([energy_residuals(begun(t), t.energies, t.gradients) for t in traces])


def mean_square(found: Tensor, temperature: float, most: float = 1.0) -> float:
    """Return the mean of min(R^2, most), R in units of the temperature; `most` for NaN."""
    squares = found.div(temperature).square()
    return float(squares.nan_to_num(most).clamp(max=most).mean())


def mean_work(traces: Sequence[Trace], temperature: float) -> float:
    """Return the mean of min(R^2, 1) over the steps of some traces."""
    return mean_square(residuals(traces), temperature)


class Limited(NamedTuple):
    """A step size within the work limit."""

    step_size: float
    position: Tensor  # final positions, (chains, dim)
    work: float


def limit_step(
    kernel: Kernel, gradient_fn: GradientFn, position: Tensor, *, chains: range, seed: int
) -> Limited:
    """Reduce a kernel's step size until the mean work of its steps is within the limit.

    R is of third order in the moves, and moves grow with the root of the step size: so the work
    grows with its third power.
    """
    step_size = kernel.step_size(0)
    # From step 0, where a metric begins to adapt; with the noise of chains that no run has.
    if chains.stop > _NOBODY:
        what = 'chains below 2**31 with step_size="auto"'
        raise needs("sample", "first_chain", what, chains.start)
    others = range(_NOBODY + chains.start, _NOBODY + chains.stop)
    for _ in range(_ROUNDS):
        tried, kernel = step_size, kernel.with_step_size(step_size)
        traces = list(
            run_blocks(kernel, gradient_fn, position, seed=seed, chains=others, num_steps=_STEPS)
        )
        work = mean_work(traces, kernel.temperature)
        end = traces[-1].state.position
        is_finite = bool(torch.isfinite(end).all())
        if work <= MOST and is_finite:
            return Limited(step_size, end, work)
        step_size *= min(0.8, (WORK / work) ** (1 / 3)) if is_finite else _SMALLEST
    raise ValueError(
        f"sample() found no step size for {kernel.name}: at {tried:.3g} the RMS energy error per "
        f"step is still {work**0.5:.2g}. The energy may have discontinuities or kinks; give "
        "step_size as a number"
    )


def describe_work(work: float) -> str:
    """Return the report of the mean square energy error of a step."""
    return f"RMS energy error per step: {work**0.5:.2g} (limit {MOST**0.5:.2g})"


def find_jumps(
    gradient_fn: GradientFn, traces: Sequence[Trace], temperature: float = 1.0
) -> tuple[bool, int]:
    """Return whether the energy jumps within the worst steps, and the gradients per chain.

    The step of each chain with the largest |R| is halved again and again, keeping the half with
    the larger one. |R| falls by a factor of 8 per halving on a smooth energy, and of 2 at a kink.
    At a jump it tends to the height of the jump.

    Args:
        gradient_fn: the exact gradient.
        traces: of consecutive steps.
        temperature: of the target.

    Example:
        >>> import langevin as lv
        >>> from langevin.execution import run_blocks
        >>> from langevin.targets.gradients import full
        >>> def run(energy):
        ...     gradient_fn = full(lv.targets.energy(energy))
        ...     start = torch.linspace(-1, 1, 4, dtype=torch.float64)[:, None]
        ...     settings = {"seed": 0, "chains": range(4), "num_steps": 50}
        ...     return gradient_fn, list(run_blocks(lv.sgld(0.1), gradient_fn, start, **settings))
        >>> find_jumps(*run(lambda theta: theta.abs().sum()))
        (False, 14)
        >>> find_jumps(*run(lambda theta: theta.abs().floor().sum() + theta.square().sum()))
        (True, 14)
    """
    worst = residuals(traces).abs().nan_to_num(-1.0, posinf=-1.0).argmax(0)
    chains = torch.arange(len(worst), device=worst.device)
    steps = [(begun(t), t.energies, t.gradients) for t in traces]
    starts, ends = (
        [torch.cat([tensor[part] for tensor in tensors]) for tensors in zip(*steps, strict=True)]
        for part in (slice(-1), slice(1, None))
    )
    here, there = ([tensor[worst, chains] for tensor in tensors] for tensors in (starts, ends))
    for _ in range(_HALVINGS):
        position = (here[0] + there[0]) / 2
        middle = [position, *gradient_fn(position, 0)]
        halves = [_residual(here, middle), _residual(middle, there)]
        first = halves[0] >= halves[1]
        residual = torch.where(first, halves[0], halves[1])
        here = [_pick(first, old, new) for old, new in zip(here, middle, strict=True)]
        there = [_pick(first, new, old) for old, new in zip(there, middle, strict=True)]
    energy = here[1].abs().nan_to_num(0.0, posinf=0.0)
    rounding = _ROUNDING * torch.finfo(energy.dtype).eps * energy
    return bool((residual > (_HEIGHT * temperature + rounding)).any()), _HALVINGS


def _residual(here: Sequence[Tensor], there: Sequence[Tensor]) -> Tensor:
    """Return |R| of moves between (positions, energies, gradients); infinite where unknown."""
    pairs = (torch.stack(pair) for pair in zip(here, there, strict=True))
    return energy_residuals(*pairs)[0].abs().nan_to_num(torch.inf)


def _pick(which: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return `first` for the chains `which`, else `second`."""
    return torch.where(which if first.ndim == 1 else which[:, None], first, second)
