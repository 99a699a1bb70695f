"""The warm-up of a call without settings: from nothing to a sampler in the scale of its target, and places to start from.

The sampler is the invariant MSGLD, exact on Gaussians at any stable step. Elsewhere its step is chosen by what the target does:
between two steps, with what was evaluated anyway, the trapezoid rule of the work,

    ``R = U(θ') - U(θ) - (θ' - θ) . (g + g') / 2``,

is zero on every quadratic energy and of third order in the step off them. It is the energy error of a Verlet step without the part
that only moves the shadow Hamiltonian. ``E[min(R^2, 1)] <= 0.01`` holds the error of the variance below 5 percent on the targets of
`tests/law/test_step.py`, skewed, heavy and light tailed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.engines import Trace, run_blocks
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState, Scaled
from langevin.noise import Purpose, normal, streams
from langevin.samplers import msgld
from langevin.scales import Scale
from langevin.tuning.descent import descend, spread_starts
from langevin.tuning.metric import curvature_scale, diagonal_scale, kind_for, learn
from langevin.tuning.walk import FIRST_STEP

__all__ = ["Found", "find_everything", "residuals", "sampler_at"]

WORK = 0.01  # E[min(R^2, 1)] wanted
_LARGEST = 2.0  # 2 ε + h^2 in units of the inverse curvature: half the limit of stability on a Gaussian
_INERTIA = 0.9  # share of h^2 in it
_WINDOWS = (75, 150, 225)  # steps after each of which the scale is learnt anew
_SOFTEST = 0.3  # what β is set by at the least: a slower velocity does not help where one direction is far wider than the rest
_WORSE = 15  # a mode whose energy is higher than the best by this plus dim has no mass that counts: less than e^-15
_CLIMB = 30, 3  # energy above that of a burst's start that no law explains: 30 + 3 dim
_LOST = 20  # bursts with a chain thrown out, in one window: then something else is wrong
_BURST = 25  # steps between two changes of the step size
_SETTLE, _MEASURE = 200, 200  # the last two windows, in the last scale: step size found, then measured


@dataclass(frozen=True)
class Found:
    """What a warm-up found."""

    kernel: Kernel
    position: Tensor  # where the chains are, (chains, dim)
    gradients: int  # taken by each chain
    autocorrelation: float  # steps that an effective draw takes, of the slowest element looked at, roughly
    text: str


def residuals(trace: Trace) -> Tensor:
    """Return R of all but the last step of a trace, (steps - 1, chains)."""
    positions = torch.cat([trace.before.position[None], trace.positions[:-1]])
    moves, forces = positions.diff(dim=0), trace.gradients[1:] + trace.gradients[:-1]
    return trace.energies.diff(dim=0) - (moves * forces).sum(-1) / 2


def sampler_at(size: float, softness: float = 1.0, temperature: float = 1.0) -> Kernel:
    """Return the invariant MSGLD with ``2 ε + h^2 = size``, for curvatures of about 1, the softest `softness`.

    β lets the velocity forget within the time that the softest direction takes: ``β = exp(-0.7 sqrt(size softness))`` is within
    10 percent of the best for both the mean and the variance of a Gaussian, from size 0.03 to 2.
    """
    beta = math.exp(-0.7 * (size * softness) ** 0.5)
    factor = _INERTIA / (1 - _INERTIA) * (1 + beta) / (1 - beta)
    return msgld((1 - _INERTIA) * size / 2, bias_factor=factor, beta=beta, invariant=True, temperature=temperature)


def find_everything(
    gradient_fn: GradientFn, dim: int, *, chains: range, seed: int, like: Tensor, init: Tensor | None, scale: str
) -> Found:
    """Find starts, scale, step size and the other settings; a pure function of its arguments.

    Args:
        gradient_fn: the exact gradient.
        dim: elements of theta.
        chains: numbers of the chains.
        seed: an int in [0, 2**64).
        like: a tensor of the dtype and device of positions.
        init: starts, (chains, dim), from which nothing is moved; None finds modes and spreads the chains around them.
        scale: "auto", "diagonal", "dense" or "low_rank".
    """
    walk = _Warmup(gradient_fn, chains, seed, kind_for(dim, scale))
    walk.start(dim, like, init)
    for length in _WINDOWS:
        walk.adapt(length)
        walk.rescale()
    walk.adapt(_SETTLE)
    walk.rescale()
    return walk.settle(_MEASURE)


class _Warmup:
    """Chains with a scale and a step size that follow what they meet."""

    def __init__(self, gradient_fn: GradientFn, chains: range, seed: int, kind: str) -> None:
        self.gradient_fn, self.chains, self.seed, self.kind = gradient_fn, chains, seed, kind
        self.size, self.softness, self.limit, self.gradients = 0.1, 1.0, _LARGEST, 0
        self.notes: list[str] = []

    def start(self, dim: int, like: Tensor, init: Tensor | None) -> None:
        """Find places, and the scale there."""
        position = spread_starts(self.gradient_fn, self.chains, dim, self.seed, like) if init is None else init
        found = descend(self.gradient_fn, position, 400 if init is None else 200)
        self.gradients += found.evaluations
        best = int(found.energy.argmin())
        self.scale: Scale
        if self.kind == "dense":
            self.scale, taken = curvature_scale(self.gradient_fn, found.position[best], len(self.chains))
            self.gradients += taken
        else:
            self.scale, stiffness, taken = diagonal_scale(self.gradient_fn, found.position[best], self.seed, self.chains)
            self.size = min(self.size, 0.1 / stiffness)
            self.gradients += taken
        position = found.position
        if init is None:
            worse = found.energy - found.energy[best] > _WORSE + dim
            if worse.any():
                self.notes.append(f"{int(worse.sum())} of {len(worse)} starts led to places of far higher energy and were moved")
            position = torch.where(worse[:, None], position[best], position)
        self.state = self._kernel().init(self._jittered(position))._replace(step=FIRST_STEP)

    def _jittered(self, mode: Tensor) -> Tensor:
        """Draw the chains from the Gaussian around their modes, closer by halves where the energy there is too high."""
        noise = normal(
            self.seed, streams(Purpose.INIT, self.chains), FIRST_STEP, mode.shape[-1], dtype=mode.dtype, device=mode.device
        )
        step, energy = self.scale.push(noise), self.gradient_fn(mode, 0).energy
        dim = mode.shape[-1]
        for _ in range(20):
            there = self.gradient_fn(mode + step, 0)
            self.gradients += 1
            is_good = torch.isfinite(there.gradient).all(-1) & (there.energy < energy + 2 * dim + 10)
            if is_good.all():
                break
            step = torch.where(is_good[:, None], step, 0.5 * step)
        return mode + step

    def _kernel(self) -> Kernel:
        return Scaled.of(sampler_at(self.size, self.softness), self.scale)

    def run(self, num_steps: int) -> Iterator[Trace]:
        """Take steps from where the chains are, in bursts.

        A chain that climbs higher than any law explains was thrown out by a step too large: it is put back to where the burst began,
        at rest, and the step size stays below half of that one in this scale.
        """
        dim, taken, lost = self.state.position.shape[-1], 0, 0
        while taken < num_steps:
            length = min(_BURST, num_steps - taken)
            (trace,) = run_blocks(
                self._kernel(), self.gradient_fn, self.state, seed=self.seed, chains=self.chains, num_steps=length
            )
            self.gradients += length
            is_finite = torch.isfinite(trace.gradients).all(-1) & torch.isfinite(trace.energies)
            is_finite[-1] &= torch.isfinite(trace.positions[-1]).all(-1)
            is_good = (is_finite & (trace.energies - trace.energies[0] < _CLIMB[0] + _CLIMB[1] * dim)).all(0)
            self.state = trace.state
            if is_good.all():
                taken += length
                yield trace
                continue
            lost += 1
            if lost > _LOST:
                raise ValueError(
                    f"sample() found no step size at which the chains stay where they should: {int((~is_good).sum())} of "
                    f"{len(is_good)} were thrown out at {self.size:.2g} times the scale. The energy may have walls or cliffs there"
                )
            self.size = self.limit = 0.5 * self.size
            before, kept = trace.before, is_good[:, None]
            position = torch.where(kept, trace.state.position, before.position)
            memory = tuple(torch.where(kept, now, torch.zeros_like(now)) for now in trace.state.memory)
            self.state = KernelState(position, memory, trace.state.step)

    def adapt(self, num_steps: int) -> None:
        """Take steps, changing the step size after every burst; keep what was seen."""
        self.seen = []
        for index, trace in enumerate(self.run(num_steps)):
            self.seen.append(trace)
            self._follow(trace, 1 / (1 + index) ** 0.5)

    def _follow(self, trace: Trace, gain: float) -> None:
        work = float(residuals(trace).square().clamp(max=1.0).mean())
        change = gain * math.log(WORK / max(work, 1e-12)) / 3
        self.size = min(self.limit, self.size * math.exp(max(-0.7, min(0.7, change))))

    def rescale(self) -> None:
        """Learn the scale from the last two thirds of what was seen."""
        seen = self.seen[len(self.seen) // 3 :]
        draws = torch.cat([torch.cat([trace.before.position[None], trace.positions[:-1]]) for trace in seen]).flatten(0, 1)
        gradients = torch.cat([trace.gradients for trace in seen]).flatten(0, 1)
        self.scale, soft = learn(self.scale, draws, gradients, self.kind)
        self.softness, self.limit = max(_SOFTEST, soft), _LARGEST

    def settle(self, num_steps: int) -> Found:
        """Find the step size in the last scale, then measure it."""
        self.adapt(num_steps // 2)
        for _ in range(4):
            traces = list(self.run(num_steps))
            work = float(torch.cat([residuals(trace) for trace in traces]).square().clamp(max=1.0).mean())
            if work <= 1.5 * WORK:
                break
            self.size *= max(0.3, (WORK / work) ** (1 / 3))
        y = torch.cat([trace.gradients for trace in traces])
        text = f"size {self.size:.3g} work {work:.2g} gradients {self.gradients} {'; '.join(self.notes)}"
        return Found(self._kernel(), self.state.position, self.gradients, 1.0, text)
