"""The warm-up of a call without settings: from nothing to a sampler in the scale of its target, and places to start from.

The sampler is the invariant MSGLD: exact on Gaussians at any stable step, elsewhere as exact as the work over a step says
(`tuning.work`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.engines import Trace, run_blocks
from langevin.gradient_noise import DiagonalNoise, GradientNoise
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState, Scaled
from langevin.noise import Purpose, normal, streams
from langevin.samplers import msgld
from langevin.scales import Scale
from langevin.targets import Evaluation
from langevin.trust import MAX_ELEMENTS, energy_residuals, evenly_spaced
from langevin.trust.judge import SIGN_HINT, ran_off
from langevin.trust.mixing import mixing
from langevin.tuning.bias import INERTIA, inertial_factor
from langevin.tuning.descent import Descent, descend
from langevin.tuning.metric import curvature_scale, diagonal_scale, kind_for, learn
from langevin.tuning.walk import FIRST_STEP
from langevin.tuning.work import MOST, WORK, begun, joined, mean_work

__all__ = ["Cheaper", "Found", "find_everything", "noisy_size", "sampler_at"]

Cheaper = Callable[[Tensor, Tensor, Scale], tuple[GradientFn, float, float] | None]
"""(mode, positions, scale) -> a gradient, its noise over the signal, and what it costs, that of all data being one; or None."""

_LARGEST = 2.0  # 2 ε + h^2 in units of the inverse curvature: half the limit of stability on a Gaussian
_WINDOWS = (75, 150, 225, 200)  # steps after each of which the scale is learnt anew
_FEW_WINDOWS = 2  # where rows near one mode say enough: the posterior is so narrow that the curvature there is nearly its own
_SOFTEST = 0.3  # what β is set by at the least: a slower velocity does not help where one direction is far wider than the rest
_WORSE = 15  # a mode whose energy is higher than the best by this plus dim has no mass that counts: less than e^-15
_CLIMB = 30, 3  # energy above that of a burst's start that no law explains: 30 + 3 dim
_LOST = 20  # bursts with a chain thrown out, in one window: then something else is wrong
_BURST = 25  # steps between two changes of the step size
_DENSE_PATH = 100  # dimensions up to which places on the way down are compared
_NUMBERS = 2**23  # of draws that a scale is learnt from
_ATTEMPTS = 6  # at measuring the last step size
_PLACES = 127  # draws of all chains where the noise of the gradient is looked at; odd, so that no chain comes always
_MEASURE = 200  # steps of the last scale in which the step size is measured, after half as many in which it is found


@dataclass(frozen=True)
class Found:
    """What a warm-up found."""

    scale: Scale
    size: float  # 2 ε + h^2 in the scale
    softness: float  # of the softest direction in the scale
    position: Tensor  # where the chains are, (chains, dim)
    gradients: int  # of all data, taken by each chain
    cheap: int  # of minibatches
    cost: float  # of both, in gradients of all data
    work: float  # mean of min(R^2, 1) at that size
    steps_per_draw: float  # that an effective draw takes, of the slowest element, roughly
    moved: int  # chains whose mode was too high, which start at the best one
    temperature: float
    is_rough: bool  # whether the energy seems to have jumps, for which no step size is small enough
    centre: Tensor  # the lowest mode, (dim,)
    places: Tensor  # some draws, evenly spaced, of all chains, (m, dim)

    @property
    def kernel(self) -> Kernel:
        """The sampler."""
        return Scaled.of(sampler_at(self.size, self.softness, self.temperature), self.scale)


def sampler_at(size: float, softness: float = 1.0, temperature: float = 1.0, noise: GradientNoise | None = None) -> Kernel:
    """Return the invariant MSGLD with ``2 ε + h^2 = size``, for curvatures of about 1, the softest `softness`.

    β lets the velocity forget within the time that the softest direction takes: ``β = exp(-0.7 sqrt(size softness))`` is within
    10 percent of the best for both the mean and the variance of a Gaussian, from size 0.03 to 2.
    """
    beta = math.exp(-0.7 * (size * softness) ** 0.5)
    return msgld(
        (1 - INERTIA) * size / 2,
        bias_factor=inertial_factor(beta),
        beta=beta,
        invariant=True,
        noise=noise,
        temperature=temperature,
    )


def noisy_size(size: float, ratio: float, heat: float) -> float:
    """Return the size for a sampler that absorbs noise of `ratio` times the signal, where `size` suits exact gradients.

    A draw takes ``ratio (1 + 1 / ρ)`` steps, ``ρ = (1 + a) ε ratio / 2`` (docs/theory.md, section 6), and the error off Gaussians
    grows with the size: so it is as small as a ρ of `heat` lets it be. For small sizes the β of `sampler_at` makes ``(1 + a) ε``
    about ``1.3 sqrt(size)``. An error of K counts ``size / 4`` times, or more: so it is no larger than one.
    """
    return min(size, 1.0, (heat / max(ratio, 1e-300) * 2 / 1.3) ** 2)


def find_everything(
    gradient_fn: GradientFn,
    starts: Tensor,
    *,
    chains: range,
    seed: int,
    scale: str | Scale = "auto",
    gather: bool = True,
    temperature: float = 1.0,
    tell: Callable[[int], object] = lambda gradients: None,
    cheaper: Cheaper = lambda centre, positions, scale: None,
) -> Found:
    """Find places for the chains, the scale, the step size and the other settings; a pure function of its arguments.

    Chains go downhill, each by itself, are spread by the curvature found there, and run in windows, after each of which the scale
    is learnt from what they saw (`tuning.metric`); the step size follows the work all along. About 1,000 gradients are taken.

    Args:
        gradient_fn: the exact gradient.
        starts: positions with finite energies, (chains, dim).
        chains: numbers of the chains.
        seed: an int in [0, 2**64).
        scale: "auto", "diagonal", "dense" or "low_rank", or one that is given.
        gather: whether chains whose mode is far higher than the best one go there; else each stays at the mode that it found.
        temperature: of the target.
        tell: called with the number of gradients taken, now and then.
        cheaper: called with the lowest mode (dim,), positions around it, (chains, dim), and the scale there, when they are found:
            returns a gradient to take from there on, its noise over the signal, which should be little, and its cost; or None.
    """
    walk = _Warmup(
        gradient_fn, chains, seed, scale if isinstance(scale, Scale) else kind_for(starts.shape[-1], scale), temperature, tell
    )
    walk.start(starts, gather)
    walk.change(cheaper(walk.centre, walk.state.position, walk.scale))
    for length in _WINDOWS if walk.is_exact else _WINDOWS[:_FEW_WINDOWS]:
        walk.adapt(length)
        walk.rescale()
    return walk.settle(_MEASURE)


class _Warmup:
    """Chains with a scale and a step size that follow what they meet."""

    def __init__(
        self,
        gradient_fn: GradientFn,
        chains: range,
        seed: int,
        kind: str | Scale,
        temperature: float,
        tell: Callable[[int], object],
    ) -> None:
        self.gradient_fn, self.chains, self.seed, self.kind, self.tell = gradient_fn, chains, seed, kind, tell
        self.temperature, self.size, self.softness, self.limit = temperature, 0.1, 1.0, _LARGEST
        self.gradients = self.moved = self.cheap = 0
        self.price = 1.0
        self.seen: list[Trace] = []
        self.noise: GradientNoise | None = None

    def start(self, starts: Tensor, gather: bool) -> None:
        """Find places, and the scale there."""
        found = descend(self.gradient_fn, starts, tolerance=0.01 * self.temperature)
        if found.is_lost.all() or ran_off(found.position, found.energy).any():
            raise ValueError(
                f"sample() went downhill to an energy of {float(found.energy.min()):.3g} at |theta| up to "
                f"{float(found.position.abs().max()):.3g} and met no bottom. {SIGN_HINT} Or theta needs a prior"
            )
        dim, position, energy = starts.shape[-1], found.position, found.energy
        self.gradients += found.evaluations
        if not found.is_done.all() and dim <= _DENSE_PATH:
            position, energy = self._widest(found)
        best = int(energy.argmin())
        self.centre = centre = position[best]
        taken = 0
        if isinstance(self.kind, Scale):
            self.scale = self.kind
        elif self.kind == "dense":
            self.scale, taken = curvature_scale(self.gradient_fn, centre, len(self.chains))
        else:
            self.scale, stiffness, taken = diagonal_scale(self.gradient_fn, centre, self.seed, self.chains)
            self.size = min(self.size, 0.1 / stiffness)
        self.gradients += taken
        self.tell(self.gradients)
        if gather:
            worse = energy - energy[best] > self.temperature * (_WORSE + dim)
            self.moved = int(worse.sum())
            position = torch.where(worse[:, None], centre, position)
        self.state = self._kernel().init(self._jittered(position))._replace(step=FIRST_STEP)

    def change(self, cheaper: tuple[GradientFn, float, float] | None) -> None:
        """Take another gradient from here on, whose noise the sampler absorbs."""
        self.is_exact = cheaper is None
        if cheaper is not None:
            self.gradient_fn, level, self.price = cheaper
            one = torch.full_like(self.centre, self.temperature)
            self.noise = DiagonalNoise(level * one, one)

    def _taken(self, number: int) -> None:
        """Count gradients."""
        if self.is_exact:
            self.gradients += number
        else:
            self.cheap += number
        self.tell(self.gradients + self.cheap)

    def _work(self, traces: Sequence[Trace]) -> float:
        """Return the mean work; of rows, with the same ones at both ends of a step, so that only what is no quadratic remains."""
        if self.is_exact:
            return mean_work(traces, self.temperature)
        found = []
        for trace in traces:
            drawn = self.gradient_fn.draw(range(trace.before.step, trace.state.step))
            starts = begun(trace)
            for index, (here, there) in enumerate(zip(starts, trace.positions, strict=True)):
                begin = Evaluation(trace.energies[index], trace.gradients[index])
                end = self.gradient_fn.evaluate(there, tuple(tensor[index] for tensor in drawn))
                places, energies, slopes = (torch.stack(pair) for pair in ((here, there), *zip(begin, end, strict=True)))
                found.append(energy_residuals(places, energies, slopes)[0])
            self._taken(len(starts))
        squares = torch.stack(found).div(self.temperature).square()
        return float(squares.nan_to_num(1.0).clamp(max=1.0).mean())

    def _widest(self, found: Descent) -> tuple[Tensor, Tensor]:
        """Return the place on the way down, with its energies, around which a Gaussian has the most mass.

        A density may have no mode that means anything: down the neck of a funnel it grows for ever, and narrows faster. The mass of
        the Gaussian with the curvature at a place is ``exp(-U / τ) |det R|``; it is largest before the neck.
        """
        best, masses, energies = int(found.energy.argmin()), [], []
        for place in found.path:
            scale, taken = curvature_scale(self.gradient_fn, place[best], len(self.chains))
            energies.append(self.gradient_fn(place, 0).energy)
            self.gradients += taken + 1
            volume = torch.linalg.slogdet(scale.root.double()).logabsdet
            masses.append(float(volume - energies[-1][best] / self.temperature))
        index = max(range(len(masses)), key=lambda k: masses[k] if math.isfinite(masses[k]) else -math.inf)
        return found.path[index], energies[index]

    def _jittered(self, mode: Tensor) -> Tensor:
        """Draw the chains from the Gaussian around their modes, closer by halves where the energy there is too high."""
        noise = normal(
            self.seed, streams(Purpose.INIT, self.chains), FIRST_STEP, mode.shape[-1], dtype=mode.dtype, device=mode.device
        )
        self.gradients += 1
        step, energy = self.temperature**0.5 * self.scale.push(noise), self.gradient_fn(mode, 0).energy
        dim = mode.shape[-1]
        for _ in range(20):
            there = self.gradient_fn(mode + step, 0)
            self.gradients += 1
            is_good = torch.isfinite(there.gradient).all(-1) & (there.energy < energy + self.temperature * (2 * dim + 10))
            if is_good.all():
                break
            step = torch.where(is_good[:, None], step, 0.5 * step)
        return mode + step

    def _kernel(self) -> Kernel:
        return Scaled.of(sampler_at(self.size, self.softness, self.temperature, self.noise), self.scale)

    def run(self, num_steps: int) -> Iterator[Trace]:
        """Take steps from where the chains are, in bursts.

        A chain that climbs higher than any law explains was thrown out by a step too large: it is put back to where the burst
        began, at rest, and the step size stays below half of that one in this scale.
        """
        dim, taken, lost = self.state.position.shape[-1], 0, 0
        while taken < num_steps:
            length = min(_BURST, num_steps - taken)
            trace = joined(
                list(run_blocks(self._kernel(), self.gradient_fn, self.state, seed=self.seed, chains=self.chains, num_steps=length))
            )
            self._taken(length)
            is_finite = torch.isfinite(trace.gradients).all(-1) & torch.isfinite(trace.energies)
            is_finite[-1] &= torch.isfinite(trace.positions[-1]).all(-1)
            is_good = (is_finite & (trace.energies - trace.energies[0] < self.temperature * (_CLIMB[0] + _CLIMB[1] * dim))).all(0)
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
        change = gain * math.log(WORK / max(self._work([trace]), 1e-12)) / 3
        self.size = min(self.limit, self.size * math.exp(max(-0.7, min(0.7, change))))

    def rescale(self) -> None:
        """Learn the scale from the last two thirds of what was seen; one that was given stays."""
        if isinstance(self.kind, Scale):
            return
        seen = self.seen[len(self.seen) // 3 :]
        draws = torch.cat([begun(trace) for trace in seen]).flatten(0, 1)
        gradients = torch.cat([trace.gradients for trace in seen]).flatten(0, 1)
        some = evenly_spaced(len(draws), max(100, _NUMBERS // draws.shape[-1])).to(draws.device)
        self.scale, soft = learn(self.scale, draws[some], gradients[some], self.kind, self.temperature)
        self.softness, self.limit = max(_SOFTEST, soft), _LARGEST

    def settle(self, num_steps: int) -> Found:
        """Find the step size in the last scale, measure what it does, and make it smaller where that is too much."""
        self.adapt(num_steps // 2)
        for _ in range(_ATTEMPTS):
            traces = list(self.run(num_steps))
            work = self._work(traces)
            if work <= MOST:
                break
            self.size *= max(0.3, (WORK / work) ** (1 / 3))
        is_rough = work > MOST or (work > 0.1 * WORK and self._is_rough(work, num_steps))
        positions = torch.cat([trace.positions for trace in traces]).transpose(0, 1)
        return Found(
            scale=self.scale,
            size=self.size,
            softness=self.softness,
            position=self.state.position,
            gradients=self.gradients,
            cheap=self.cheap,
            cost=self.gradients + self.price * self.cheap,
            work=work,
            steps_per_draw=_steps_per_draw(positions),
            moved=self.moved,
            temperature=self.temperature,
            is_rough=is_rough,
            centre=self.centre,
            places=positions.transpose(0, 1).flatten(0, 1)[evenly_spaced(positions.shape[:2].numel(), _PLACES)],
        )

    def _is_rough(self, work: float, num_steps: int) -> bool:
        """Say whether half the size does not make the work much smaller.

        Of a smooth energy it falls by a factor of 8, of one with kinks by 2.8, of one with jumps by 1.4: it meets fewer of them.
        """
        size, self.size = self.size, 0.5 * self.size
        halved = self._work(list(self.run(num_steps)))
        self.size = min(size, 2 * self.size)
        return halved > 0.5 * work


def _steps_per_draw(positions: Tensor) -> float:
    """Return how many steps an effective draw takes, for the slowest element of positions (chains, steps, dim)."""
    chains, steps, dim = positions.shape
    found = mixing(positions[..., evenly_spaced(dim, MAX_ELEMENTS)].double().cpu())
    worst = torch.minimum(found.bulk, found.tail).nan_to_num(1.0).min()
    return max(1.0, chains * steps / max(1.0, float(worst)))
