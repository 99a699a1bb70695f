"""The warm-up of `sample` without a sampler: initial positions, metric, step size.

The sampler is the invariant MSGLD: exact on Gaussians at any stable step size. Elsewhere the energy
error of a step bounds its error (`adaptation.work`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.adaptation.bias import INERTIA, inertial_factor
from langevin.adaptation.descent import Descent, descend
from langevin.adaptation.identified import check_identified, flat_directions
from langevin.adaptation.metric import (
    curvature,
    curvature_metric,
    diagonal_metric,
    estimate_metric,
    kind_for,
)
from langevin.adaptation.modes import Modes, allocate, explore, find_modes, labels
from langevin.adaptation.parameterisation import Coordinates, moved_metric
from langevin.adaptation.probe import FIRST_STEP
from langevin.adaptation.work import (
    MOST,
    WORK,
    begun,
    find_jumps,
    joined,
    mean_square,
    mean_work,
    residuals,
)
from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.convergence import mixing
from langevin.diagnostics.running import MAX_ELEMENTS, energy_residuals
from langevin.diagnostics.trust import SIGN_HINT, ran_off
from langevin.execution import Runner, Trace, run_blocks
from langevin.kernels import Kernel, KernelState, Scaled
from langevin.kernels.gradient_noise import DiagonalNoise, GradientNoise
from langevin.kernels.samplers import msgld
from langevin.random import Purpose, normal, streams
from langevin.targets import Evaluation
from langevin.targets.gradients import GradientFn
from langevin.targets.metric import Dense, Diagonal, Metric
from langevin.targets.parameterisation import Reparameterised

__all__ = ["FORCE_LIMIT", "Cheaper", "WarmupResult", "warm_up", "noisy_size", "sampler_at"]

Cheaper = Callable[
    [Reparameterised | None, Tensor, Tensor, Metric], tuple[GradientFn, float, float] | None
]
"""(coordinates, mode, positions, metric) -> a gradient, its noise over signal, its relative cost.

The cost is relative to that of all data.
"""

_LARGEST = 2.0  # 2 ε + h^2 times the curvature: half the limit of stability on a Gaussian
_WINDOWS = (75, 150, 225, 200)  # steps; after each window the metric is estimated again
_FEW_WINDOWS = 2  # with minibatches: the posterior is narrow, its curvature nearly constant
_SMALLEST = 0.3  # curvature that β is set for: slower velocities do not help with outliers
_WORSE = 15  # a mode whose energy is higher by this plus dim has less than e^-15 of the mass
_CLIMB = 30, 3  # a chain has diverged if its energy rises by 30 + 3 dim in a burst
_LOST = 20  # bursts with a diverged chain before the warm-up fails
_BURST = 25  # steps between two changes of the step size
_DENSE_PATH = 100  # dimensions up to which masses along the descent come from all curvatures
_DENSE_IF_SLOW = 2000  # dimensions up to which a metric becomes dense where low rank is too little
_SLOW = 20.0  # steps per effective sample from which it does
_NUMBERS = 2**23  # of draws that a metric is estimated from
_ATTEMPTS = 6  # at the final step size
_NOISE_DRAWS = 127  # draws for estimating gradient noise; odd, so that chains take turns
_MEASURE = 200  # steps that measure the final step size, after half as many that adapt it
_LOWER = 0.1  # by which a mode of the further searches must be below those of the chains, in τ
_CROSSING = 500  # steps of the test of whether chains cross between modes
_STRESS, _STRESS_STEPS = 2.0, 400  # the test of the tails: steps of twice the size
_HEAVY = 32.0  # kurtosis of R from which tails are tested; a Gaussian has 3
_MOST_SQUARE = 100.0  # cap of R^2 in that test
_TAIL, _TAIL_AIM = 0.5, 0.3  # RMS of R there: limit and aim
FORCE_LIMIT = 4.0, 4.0 * ((1 - INERTIA) / 2) ** 0.5
"""Of `kernels.Scaled`: an element of the gradient in the metric is at most ``4 + 4 / sqrt(size)``.

Its standard deviation is about 1 on a Gaussian. A force of 4 / sqrt(size) changes a velocity, whose
standard deviation is 1, by 4.
"""


@dataclass(frozen=True)
class WarmupResult:
    """The result of a warm-up."""

    metric: Metric
    size: float  # 2 ε + h^2 in the metric
    smallest_curvature: float  # in the metric
    position: Tensor  # final positions, (chains, dim)
    gradients: int  # of all data, per chain
    cheap: int  # of minibatches, per chain
    cost: float  # of both, in gradients of all data
    work: float  # mean of min(R^2, 1) at that size
    steps_per_draw: float  # steps per effective sample of the slowest element, roughly
    moved: int  # chains that moved to the best mode
    temperature: float
    has_jumps: bool  # the energy is discontinuous, so no step size is small enough
    centre: Tensor  # the mode with the largest mass, (dim,)
    draws: Tensor  # some, evenly spaced, of all chains, (m, dim)
    coordinates: Reparameterised | None  # the target in those of the positions; None for its own
    modes: Modes  # that the search found, if there are several
    mode_path: Tensor  # the mode of each chain at each step of a test run, (steps, chains)

    @property
    def kernel(self) -> Kernel:
        """The sampler."""
        sampler = sampler_at(self.size, self.smallest_curvature, self.temperature)
        return Scaled.of(sampler, self.metric, FORCE_LIMIT)


def sampler_at(
    size: float,
    smallest_curvature: float = 1.0,
    temperature: float = 1.0,
    noise: GradientNoise | None = None,
) -> Kernel:
    """Return the invariant MSGLD with ``2 ε + h^2 = size``, for curvatures of about 1.

    The velocity decays on the time scale of the smallest curvature k:
    ``β = exp(-0.7 sqrt(size k))`` is within 10 percent of the best for both the mean and the
    variance of a Gaussian, from size 0.03 to 2.
    """
    beta = math.exp(-0.7 * (size * smallest_curvature) ** 0.5)
    return msgld(
        (1 - INERTIA) * size / 2,
        bias_factor=inertial_factor(beta),
        beta=beta,
        invariant=True,
        noise=noise,
        temperature=temperature,
    )


def noisy_size(size: float, ratio: float, excess: float) -> float:
    """Return the size under noise of `ratio` times the signal, if `size` suits exact gradients.

    An effective sample takes ``ratio (1 + 1 / ρ)`` steps, ``ρ = (1 + a) ε ratio / 2``
    (docs/theory.md, section 6), and the error off Gaussians grows with the size: so the size is as
    small as a ρ of `excess` allows. For small sizes the β of `sampler_at` makes ``(1 + a) ε`` about
    ``1.3 sqrt(size)``. An error of K is multiplied by ``size / 4`` or more: so the size is at most
    one.
    """
    return min(size, 1.0, (excess / max(ratio, 1e-300) * 2 / 1.3) ** 2)


def warm_up(
    gradient_fn: GradientFn,
    starts: Tensor,
    *,
    chains: range,
    seed: int,
    metric: str | Metric = "auto",
    gather: bool = True,
    further: Tensor | None = None,
    name_of: Callable[[int], str] = "theta[{}]".format,
    temperature: float = 1.0,
    report: Callable[[int], object] = lambda gradients: None,
    cheaper: Cheaper = lambda coordinates, centre, positions, metric: None,
    is_compiled: bool = False,
    coordinates: Coordinates | None = None,
) -> WarmupResult:
    """Find initial positions, metric, step size and the other settings: a pure function.

    Each chain finds a mode by L-BFGS, is spread by the curvature there, and runs in windows. After
    each window the metric is estimated from the draws (`adaptation.metric`), after the coordinates
    of hierarchical parameters (`adaptation.parameterisation`); the step size adapts all along. This
    takes about 1,000 gradients per chain.

    Args:
        gradient_fn: the exact gradient.
        starts: positions with finite energies, (chains, dim).
        chains: numbers of the chains.
        seed: an int in [0, 2**64).
        metric: "auto", "diagonal", "dense" or "low_rank", or a fixed metric.
        gather: whether chains with a mode far above the best one move to the best one.
        further: more positions from which to search for modes, or None. If there are several modes,
            chains start in them in proportion to their mass.
        name_of: names an element of theta.
        temperature: of the target.
        report: a function of the number of gradients so far, called now and then.
        cheaper: a function of the coordinates, the lowest mode (dim,), positions (chains, dim)
            around it and the metric there. It returns a gradient to use from then on, with little
            noise over signal, that ratio, and its cost; or None.
        is_compiled: whether steps run as compiled code.
        coordinates: those of `starts`, to be adapted as long as gradients are exact.
    """
    kind = metric if isinstance(metric, Metric) else kind_for(starts.shape[-1], metric)
    walk = _Warmup(gradient_fn, chains, seed, kind, temperature, report, is_compiled, coordinates)
    walk.start(starts, gather, further, name_of)
    walk.change(cheaper(walk.reparameterised, walk.centre, walk.state.position, walk.metric))
    for length in _WINDOWS if walk.is_exact else _WINDOWS[:_FEW_WINDOWS]:
        walk.adapt(length)
        walk.rescale()
    found = walk.settle(_MEASURE)
    if metric == "auto" and walk.needs_dense(found.steps_per_draw):
        walk.densify()
        for length in _WINDOWS[-_FEW_WINDOWS:]:
            walk.adapt(length)
            walk.rescale()
        found = walk.settle(_MEASURE)
    return found


class _Warmup:
    """Chains whose metric and step size adapt."""

    def __init__(
        self,
        gradient_fn: GradientFn,
        chains: range,
        seed: int,
        kind: str | Metric,
        temperature: float,
        report: Callable[[int], object],
        is_compiled: bool,
        coordinates: Coordinates | None,
    ) -> None:
        self.coordinates = coordinates
        self.gradient_fn, self.chains, self.seed, self.kind = gradient_fn, chains, seed, kind
        self.temperature, self.report, self.is_compiled = temperature, report, is_compiled
        self.size, self.smallest_curvature, self.limit = 0.1, 1.0, _LARGEST
        self.gradients = self.moved = self.cheap = 0
        self.price = 1.0
        self.runner: Runner | None = None
        self.seen: list[Trace] = []
        self.noise: GradientNoise | None = None
        self.modes = Modes([], torch.zeros(0), 0)

    def start(
        self,
        starts: Tensor,
        gather: bool,
        further: Tensor | None,
        name_of: Callable[[int], str],
    ) -> None:
        """Find initial positions by L-BFGS, and the metric there."""
        found = descend(self.gradient_fn, starts, tolerance=0.01 * self.temperature)
        if found.is_lost.all() or ran_off(found.position, found.energy).any():
            lowest, farthest = float(found.energy.min()), float(found.position.abs().max())
            raise ValueError(
                f"the energy appears unbounded below: the mode search reached {lowest:.3g} at "
                f"|theta| up to {farthest:.3g}. {SIGN_HINT} Or add a prior on theta"
            )
        dim, position, energy = starts.shape[-1], found.position, found.energy
        self.gradients += found.evaluations
        if not found.is_done.all():
            position, energy = self._widest(found)
        modes = self._modes(found, further if found.is_done.all() else None)
        gap = float(energy.min()) - modes.modes[0].energy if len(modes.modes) == 1 else 0.0
        if gap > _LOWER * self.temperature:
            position = modes.modes[0].position.repeat(len(position), 1)
            energy = torch.full_like(energy, modes.modes[0].energy)
            if gap > self.temperature * (_WORSE + dim):  # another mode, not a better descent
                self.moved = len(position)
        best = int(energy.argmin())
        self.centre = centre = modes.modes[0].position if modes.modes else position[best]
        taken = 0
        if isinstance(self.kind, Metric):
            self.metric = self.kind
        elif self.kind == "dense":
            around = modes.modes[0].curvature if modes.modes else None
            if around is None:
                around = curvature(self.gradient_fn, centre, len(self.chains))
                taken = around.gradients
            self.metric = around.metric
            flat = flat_directions(
                self.gradient_fn, around, centre, len(self.chains), self.temperature
            )
            check_identified(flat, name_of)
        else:
            self.metric, stiffness, taken = diagonal_metric(
                self.gradient_fn, centre, self.seed, self.chains
            )
            self.size = min(self.size, 0.1 / stiffness)
        self.gradients += taken
        self.report(self.gradients)
        if len(modes.modes) > 1:
            self.modes = modes
            position = self._in_modes(allocate(modes.weights, len(self.chains)))
        elif gather:
            worse = energy - energy[best] > self.temperature * (_WORSE + dim)
            self.moved += int(worse.sum())
            position = torch.where(worse[:, None], centre, position)
        self.state = self._kernel().init(self._jittered(position))._replace(step=FIRST_STEP)
        if self.coordinates is not None and self.coordinates.names:
            # A first estimate, from both sides of the modes.
            sides = [self.state.position, 2 * position - self.state.position]
            gradients = [self.gradient_fn(side, 0).gradient for side in sides]
            self.gradients += len(sides)
            self.reparameterise(torch.cat(sides), torch.cat(gradients))

    @property
    def reparameterised(self) -> Reparameterised | None:
        """The target in the coordinates of the chains."""
        return None if self.coordinates is None else self.coordinates.seen

    def reparameterise(self, draws: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt the coordinates to draws and gradients (n, dim); return both in the new ones."""
        if self.coordinates is None or not self.coordinates.names or len(self.modes.modes) > 1:
            return draws, gradients  # several modes are told apart in the coordinates of the search
        before, old = self.coordinates, self.coordinates.seen
        self.coordinates, draws, gradients = self.coordinates.adapted(draws, gradients)
        if self.coordinates is before:
            return draws, gradients
        new = self.coordinates.seen
        centre, position = old.theta(self.centre), old.theta(self.state.position)
        self.metric = moved_metric(self.metric, old, new, centre)
        self.centre = new.position(centre)
        self.state = self.state._replace(position=new.position(position))
        self.gradient_fn = self.coordinates.gradient_of(new)
        return draws, gradients

    def _modes(self, found: Descent, further: Tensor | None) -> Modes:
        """Search for modes from further positions; return those of both searches."""
        if further is None or not len(further):
            return Modes([], found.energy[:0], 0)
        more = explore(self.gradient_fn, further, self.temperature)
        chains = len(self.chains)
        modes = find_modes(self.gradient_fn, [found, more], chains, self.temperature)
        self.gradients += -(-(more.total + modes.gradients) // chains)
        return modes

    def _in_modes(self, where: Tensor) -> Tensor:
        """Return the positions of the modes of the chains."""
        return torch.stack([mode.position for mode in self.modes.modes])[where]

    def needs_dense(self, steps_per_draw: float) -> bool:
        """Return whether a low-rank metric leaves chains slow where a dense one is affordable."""
        is_small = len(self.centre) <= _DENSE_IF_SLOW
        return self.kind == "low_rank" and self.is_exact and is_small and steps_per_draw > _SLOW

    def densify(self) -> None:
        """Continue with a dense metric, at first that of the curvature at the mode."""
        self.kind, self.size = "dense", 0.1
        self.metric, taken = curvature_metric(self.gradient_fn, self.centre, len(self.chains))
        self.gradients += taken
        self.runner = None
        self.limit = _LARGEST
        self.state = self._kernel().init(self.state.position)._replace(step=self.state.step)

    def change(self, cheaper: tuple[GradientFn, float, float] | None) -> None:
        """Switch to another gradient, whose noise the sampler corrects for."""
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
        self.report(self.gradients + self.cheap)

    def _work(self, traces: Sequence[Trace]) -> float:
        """Return the mean work, with the same minibatch at both ends of a step."""
        if self.is_exact:
            return mean_work(traces, self.temperature)
        found = []
        for trace in traces:
            drawn = self.gradient_fn.draw(range(trace.before.step, trace.state.step))
            starts = begun(trace)
            for index, (here, there) in enumerate(zip(starts, trace.positions, strict=True)):
                begin = Evaluation(trace.energies[index], trace.gradients[index])
                end = self.gradient_fn.evaluate(there, tuple(tensor[index] for tensor in drawn))
                pairs = ((here, there), *zip(begin, end, strict=True))
                found.append(energy_residuals(*(torch.stack(pair) for pair in pairs))[0])
            self._taken(len(starts))
        return mean_square(torch.stack(found), self.temperature)

    def _widest(self, found: Descent) -> tuple[Tensor, Tensor]:
        """Return the positions on the descent path where a local Gaussian has the most mass.

        The mode of a density may be meaningless: down the neck of a funnel the density grows
        without bound, and narrows faster. The mass of the Gaussian with the local curvature is
        ``exp(-U / τ) |det R|``; it is largest before the neck.
        """
        best, masses, energies = int(found.energy.argmin()), [], []
        for position in found.path:
            metric: Dense | Diagonal
            if position.shape[-1] <= _DENSE_PATH:
                metric, taken = curvature_metric(self.gradient_fn, position[best], len(self.chains))
                volume = torch.linalg.slogdet(metric.root.double()).logabsdet
            else:
                metric, _, taken = diagonal_metric(
                    self.gradient_fn, position[best], self.seed, self.chains
                )
                volume = metric.std.double().log().sum()
            energies.append(self.gradient_fn(position, 0).energy)
            self.gradients += taken + 1
            mass = float(volume - energies[-1][best] / self.temperature)
            masses.append(mass if math.isfinite(mass) else -math.inf)
        index = masses.index(max(masses))
        return found.path[index], energies[index]

    def _jittered(self, mode: Tensor) -> Tensor:
        """Draw from Gaussians around the modes, halving the distance while the energy is high."""
        dim, at = mode.shape[-1], streams(Purpose.INIT, self.chains)
        noise = normal(self.seed, at, FIRST_STEP, dim, dtype=mode.dtype, device=mode.device)
        step = self.temperature**0.5 * self.metric.push(noise)
        ceiling = self.gradient_fn(mode, 0).energy + self.temperature * (2 * dim + 10)
        self.gradients += 1
        for _ in range(20):
            there = self.gradient_fn(mode + step, 0)
            self.gradients += 1
            is_good = torch.isfinite(there.gradient).all(-1) & (there.energy < ceiling)
            if is_good.all():
                break
            step = torch.where(is_good[:, None], step, 0.5 * step)
        return mode + step

    def _kernel(self, factor: float = 1.0) -> Kernel:
        size = factor * self.size
        sampler = sampler_at(size, self.smallest_curvature, self.temperature, self.noise)
        return Scaled.of(sampler, self.metric, FORCE_LIMIT if self.noise is None else None)

    def _steps(self, kernel: Kernel, num_steps: int) -> list[Trace]:
        """Take steps from the current state; one compiled step serves all step sizes."""
        gradient_fn, runner = self.gradient_fn, self.runner
        if runner is None:
            self.runner = runner = Runner(
                kernel, gradient_fn, self.is_compiled, adjustable=True, is_silent=True
            )
        runner.adjust(kernel, gradient_fn)
        blocks = run_blocks(
            kernel, gradient_fn, self.state, runner=runner,
            seed=self.seed, chains=self.chains, num_steps=num_steps,
        )  # fmt: skip
        return list(blocks)

    def run(self, num_steps: int) -> Iterator[Trace]:
        """Take steps in bursts from the current positions.

        A chain whose energy rises too far has diverged: it returns to where the burst began, at
        rest, and the step size stays below half of that one in this metric.
        """
        dim, taken, lost = self.state.position.shape[-1], 0, 0
        climb = self.temperature * (_CLIMB[0] + _CLIMB[1] * dim)
        while taken < num_steps:
            length = min(_BURST, num_steps - taken)
            trace = joined(self._steps(self._kernel(), length))
            self._taken(length)
            is_finite = torch.isfinite(trace.gradients).all(-1) & torch.isfinite(trace.energies)
            is_finite[-1] &= torch.isfinite(trace.positions[-1]).all(-1)
            is_good = (is_finite & (trace.energies - trace.energies[0] < climb)).all(0)
            self.state = trace.state
            if is_good.all():
                taken += length
                yield trace
                continue
            lost += 1
            if lost > _LOST:
                diverged = f"{int((~is_good).sum())} of {len(is_good)} chains diverged"
                raise ValueError(
                    f"sample() found no stable step size: {diverged} at size {self.size:.2g}. The "
                    "energy may have walls or cliffs"
                )
            self.size = self.limit = 0.5 * self.size
            before, kept = trace.before, is_good[:, None]
            position = torch.where(kept, trace.state.position, before.position)
            memory = tuple(
                torch.where(kept, now, torch.zeros_like(now)) for now in trace.state.tensors
            )
            self.state = KernelState(position, memory, trace.state.step)

    def adapt(self, num_steps: int) -> None:
        """Take steps, adapting the step size after each burst; keep the traces."""
        self.seen = []
        for index, trace in enumerate(self.run(num_steps)):
            self.seen.append(trace)
            gain = 1 / (1 + index) ** 0.5
            change = gain * math.log(WORK / max(self._work([trace]), 1e-12)) / 3
            self.size = min(self.limit, self.size * math.exp(max(-0.7, min(0.7, change))))

    def rescale(self) -> None:
        """Estimate the metric from the last two thirds of the traces, unless one was given."""
        if isinstance(self.kind, Metric):
            return
        seen = self.seen[len(self.seen) // 3 :]
        draws = torch.cat([begun(trace) for trace in seen]).flatten(0, 1)
        gradients = torch.cat([trace.gradients for trace in seen]).flatten(0, 1)
        some = evenly_spaced(len(draws), max(100, _NUMBERS // draws.shape[-1])).to(draws.device)
        draws, gradients = draws[some], gradients[some]
        if self.is_exact:
            draws, gradients = self.reparameterise(draws, gradients)
        self.metric, smallest = estimate_metric(
            self.metric, draws, gradients, self.kind, self.temperature
        )
        self.smallest_curvature, self.limit = max(_SMALLEST, smallest), _LARGEST

    def settle(self, num_steps: int) -> WarmupResult:
        """Find the step size in the last metric; reduce it if its measured error is too large."""
        self.adapt(num_steps // 2)
        for _ in range(_ATTEMPTS):
            traces = list(self.run(num_steps))
            work = self._work(traces)
            if work > MOST:
                self.size *= max(0.3, (WORK / work) ** (1 / 3))
                continue
            tail = self._tail(traces)
            if tail <= _TAIL:
                break
            self.size *= max(0.5, (_TAIL_AIM / tail) ** (2 / 3))
        has_jumps = False
        if self.is_exact and work > 0.1 * WORK:
            has_jumps, taken = find_jumps(self.gradient_fn, traces, self.temperature)
            self._taken(taken)
        positions = torch.cat([trace.positions for trace in traces])
        draws, last = positions.flatten(0, 1), self.state.position
        mode_path = self._cross()
        return WarmupResult(
            metric=self.metric, size=self.size, smallest_curvature=self.smallest_curvature,
            position=last, gradients=self.gradients, cheap=self.cheap,
            cost=self.gradients + self.price * self.cheap, work=work,
            steps_per_draw=_steps_per_draw(positions.transpose(0, 1)), moved=self.moved,
            temperature=self.temperature, has_jumps=has_jumps, centre=self.centre,
            draws=draws[evenly_spaced(len(draws), _NOISE_DRAWS)], coordinates=self.reparameterised,
            modes=self.modes, mode_path=mode_path,
        )  # fmt: skip

    def _cross(self) -> Tensor:
        """Return the mode of each chain at each step of a test run, which begins in all modes."""
        number = len(self.modes.modes)
        if number < 2:
            return torch.zeros(0, len(self.chains), dtype=torch.long)
        first = torch.arange(len(self.chains), device=self.centre.device) % number
        start = self._jittered(self._in_modes(first))
        step = self.state.step
        self.state = self._kernel().init(start)._replace(step=step)
        positions = torch.cat([trace.positions for trace in self.run(_CROSSING)])
        return labels(self.modes, positions, first, self.temperature)

    def _tail(self, traces: Sequence[Trace]) -> float:
        """Return the RMS of R in steps of twice the size, if few steps make up most of it; else 0.

        In 200 steps chains hardly reach the tails, where the curvature of skewed and curved targets
        is largest. If longer steps are stable near the mode, steps of the right size are stable
        further out.
        """
        if not self.is_exact or _kurtosis(residuals(traces).double()) < _HEAVY:
            return 0.0
        kernel = self._kernel(min(_STRESS, max(1.0, _LARGEST / self.size)))
        found = self._steps(kernel, _STRESS_STEPS)
        self._taken(_STRESS_STEPS)
        # Chains continue from their old positions, with new noise.
        self.state = self.state._replace(step=found[-1].state.step)
        square = mean_square(residuals(found).double(), self.temperature, _MOST_SQUARE)
        return math.sqrt(square)


def _kurtosis(values: Tensor) -> float:
    """Return the mean fourth power over the squared mean square; infinite unless all are finite."""
    largest = values.abs().max()
    if not torch.isfinite(largest):
        return math.inf
    unit = values / largest.clamp(min=torch.finfo(values.dtype).tiny)
    return float((unit**4).mean() / unit.square().mean().square().clamp(min=1e-300))


def _steps_per_draw(positions: Tensor) -> float:
    """Return the steps per effective sample of the slowest element (chains, steps, dim)."""
    chains, steps, dim = positions.shape
    found = mixing(positions[..., evenly_spaced(dim, MAX_ELEMENTS)].double().cpu())
    worst = torch.minimum(found.bulk, found.tail).nan_to_num(1.0).min()
    return max(1.0, chains * steps / max(1.0, float(worst)))
