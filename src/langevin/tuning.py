"""The step size for a wanted accuracy, from a short warm-up that measures curvature and gradient noise.

A step size is judged by the law it leads to. Along one direction a sampler with frozen square averages is a linear recursion
``z' = A z + noise``, z = (theta, whatever is remembered). A and the noise are read off `kernel.update` by feeding it unit vectors,
the stationary variance is the solution of ``S = A S A^T + B``, and the step is the largest below which S stays within `share` of
the variance that the sampler has for small steps and exact gradients. No formula of any sampler is repeated here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, check_position, needs
from langevin.drifts import Memory
from langevin.gradients import GradientFn
from langevin.kernels import Hamiltonian, Kernel
from langevin.noise import Purpose, normal, streams
from langevin.preconditioners import Identity, Preconditioner
from langevin.targets import Evaluation

__all__ = ["Tuning", "find_step_size", "stationary_error"]

FIRST_STEP = 2**40  # the warm-up's addresses begin where no run gets to
_TRAVEL, _SETTLE, _MEASURE, _FORGET = 150, 150, 100, 30  # steps of the three stretches; the first _FORGET quotients are dropped
_PAIRS = 128  # pairs of gradients whose differences give the noise; a half finds the noisiest direction, a half measures it
_BETA, _CALM = 0.9, 0.1  # the walk is SGHMC with step _CALM / curvature, where its own error is 3 percent
_MIX = 0.3  # share of the newest product in the averaged power iteration
_SMALL = 1e-9  # a step this small, over the curvature, has the law of small steps; rounding moves that by 1e-7
_CHANCE = 4.0  # standard errors that a chain must stand out by to count as worse than the mean of the chains


@dataclass(frozen=True)
class Tuning:
    """A step size and the measurements behind it."""

    step_size: float
    text: str  # what was chosen and why, in two lines
    curvature: float  # the largest curvature of U, in the metric of the sampler
    noise: float  # variance of the gradient's noise along that direction, in the same metric
    noisiest: tuple[float, float]  # curvature and noise variance along the direction where the gradient is noisiest
    error: float  # predicted relative error of the stationary variance in the worst direction, with its sign
    discretisation: float  # the part of it that exact gradients would leave


class _Direction(NamedTuple):
    """What is known of U along one direction; float64, one number for all chains."""

    curvature: float
    noise: float


def find_step_size(
    kernel: Kernel,
    gradient_fn: GradientFn,
    position: Tensor,
    *,
    chains: range,
    seed: int,
    share: float = 0.05,
    steps_per_epoch: float | None = None,
) -> Tuning:
    """Find the largest step size whose law is off by at most `share` of the posterior variance, in the worst direction.

    The warm-up is a pure function of its arguments, with noise at addresses (step 2**40 and up) that no run uses. Chains walk from
    `position` towards the typical set (SGHMC, its step set by the curvature met on the way, moves that climb undone and halved);
    power iteration on differences of gradients with the same draws, fresh ones for each product, gives the largest curvature
    along the way; differences of gradients at one place give the noise. About 1500 gradients are taken in all.

    Assumed: U is close to a quadratic over the width of the posterior in its stiffest direction; the noise of the gradient does not
    depend on the position there; square averages (asgld, psgld) stand still at the mean squares that the walk saw (of a direction
    too soft for it to cross, those near the start). For sgrld and psgld curvature and noise are those in the metric.

    The error is that of the discretisation and of the gradient's noise, not that of chains too short: a soft direction may need
    many steps of this size. It is measured against the law of small steps, which for the published msgld and asgld is colder than
    the target (`kernel.describe()`).

    Args:
        kernel: the sampler; its own step size is not looked at.
        gradient_fn: the gradient, as the run will see it.
        position: starting positions, (chains, dim).
        chains: numbers of the chains.
        seed: an int in [0, 2**64).
        share: the error allowed, relative to the variance; in (0, 1).
        steps_per_epoch: N / n where minibatches come without replacement, as `gradients.minibatch` draws them: their noise cancels
            over an epoch, which allows far larger steps. None takes the noise of different steps as independent.

    Returns:
        The step size and why. With several chains it serves the worst of them; a chain counts as worse than the mean only by more
        than chance explains.

    Example:
        >>> from langevin.gradients import full
        >>> from langevin.samplers import sgld
        >>> from langevin.targets import gaussian
        >>> target = gaussian([[1.0, 0.9], [0.9, 1.0]])  # curvatures 10 and 0.53
        >>> found = find_step_size(sgld(step_size=1.0), full(target), torch.ones(1, 2), chains=range(1), seed=0)
        >>> round(found.curvature, 3), round(found.step_size, 5)  # 2 * 0.05 / (1.05 * 10)
        (10.0, 0.00952)
    """
    share = check_number("find_step_size", "share", share, "0 < share < 1", lambda v: 0 < v < 1)
    check_position("find_step_size", "position", position)
    if position.ndim != 2 or len(position) != len(chains):
        raise needs("find_step_size", "position", f"shape ({len(chains)}, dim), a row per chain", tuple(position.shape))
    if kernel.temperature == 0:
        raise needs("find_step_size", "kernel", "temperature > 0: without noise there is no law whose error could be bounded", 0.0)
    if steps_per_epoch is not None:
        check_number("find_step_size", "steps_per_epoch", steps_per_epoch, ">= 1", lambda v: v >= 1)
    check_integer("find_step_size", "seed", seed, 0)
    flat, preconditioner = _without_metric(kernel)
    with torch.no_grad():
        walk = _Walk(gradient_fn, position.detach(), kernel.temperature, chains, seed)
        walk.go(_TRAVEL)
        walk.calm()
        squares = walk.go(_SETTLE).squares.mean(0, keepdim=True).expand_as(position)  # one chain alone has seen too few
        settled = _frozen(lambda memory, g: preconditioner.update(memory, g, 1.0), preconditioner.memory, squares)
        metric_memory = tuple(torch.zeros_like(squares) if value is None else value for value in settled)

        def root_fn(at: Tensor) -> _Root:
            return _root(preconditioner, metric_memory, at)

        directions = _directions(walk, walk.go(_MEASURE, root_fn), root_fn, steps_per_epoch)

        def probe(step_size: float) -> _Law:
            return _Law.of(flat, step_size, _unit(walk.direction.double()), squares.double())

        return _choose(kernel, probe, directions, share, steps_per_epoch, len(chains))


def stationary_error(
    kernel: Kernel, step_size: float, *, curvature: float, noise: float = 0.0, steps_per_epoch: float | None = None
) -> float:
    """Return the relative error of the stationary variance in one dimension, against small steps and exact gradients.

    Only for samplers without square averages. Infinite where the step is unstable.

    Args:
        kernel: the sampler; its own step size is not looked at.
        step_size: epsilon.
        curvature: of U.
        noise: variance of the gradient.
        steps_per_epoch: see `find_step_size`.

    Example:
        >>> from langevin.samplers import sgld
        >>> round(stationary_error(sgld(step_size=1.0), 0.1, curvature=1.0), 4)  # 1 / (1 - 0.1 / 2) - 1
        0.0526
    """
    flat, _ = _without_metric(kernel)
    one = torch.ones(1, 1, dtype=torch.float64)

    def probe(at: float) -> _Law:
        return _Law.of(flat, at, one, one)

    reference = _reference(kernel, probe, curvature)
    return float(_error(probe(step_size), reference, _Direction(curvature, noise), steps_per_epoch)[0])


# The walk


class _Measured(NamedTuple):
    """What a stretch of the walk saw."""

    squares: Tensor  # mean of the squared gradients, (chains, dim)
    quotients: Tensor  # curvature along the direction at each step, (steps, chains), float64


class _Root(NamedTuple):
    """A root R of the metric G = R R^T at the chains' positions: theta = R y makes the sampler's metric the identity."""

    apply: Callable[[Tensor], Tensor]  # R y
    transposed: Callable[[Tensor], Tensor]  # R^T g


def _identity(position: Tensor) -> _Root:
    return _Root(lambda y: y, lambda g: g)


def _root(preconditioner: Preconditioner, memory: Memory, position: Tensor) -> _Root:
    metric = preconditioner.metric(memory, position)

    def transposed(gradient: Tensor) -> Tensor:
        pull = torch.func.vjp(lambda y: preconditioner.spread(metric, y), torch.zeros_like(gradient))[1]
        return pull(gradient)[0]

    return _Root(lambda y: preconditioner.spread(metric, y), transposed)


class _Walk:
    """Chains on their way to the typical set, each with a direction that turns towards its largest curvature."""

    def __init__(self, gradient_fn: GradientFn, position: Tensor, temperature: float, chains: range, seed: int) -> None:
        """Stand still at `position`."""
        self.gradient_fn, self.position, self.temperature = gradient_fn, position, temperature
        self.chains, self.seed, self.step = chains, seed, FIRST_STEP
        self.kernel = Hamiltonian("warm-up", 1.0, temperature, _BETA)
        self.velocity = torch.zeros_like(position)
        self.direction = _unit(self._normal(Purpose.INIT))
        self.is_exact = not gradient_fn.draw(range(FIRST_STEP, FIRST_STEP + 1))
        self._check_start()
        one = position.new_ones(len(position), 1)
        # Before anything is known: a displacement that rounding leaves alone, and a move as small.
        self.curvature, self.reach = one * 0.0, 100 * self._smallest()
        for _ in range(5):
            drawn = self.draw()
            self._turn(self.gradient_fn.evaluate(self.position, drawn).gradient, drawn, _identity(position))
            self.step += 1
        self.caution, self.limit = one, one * math.inf
        self.here: Evaluation | None = None  # known for exact gradients, from the last move
        self.step_size = self._wanted()

    def draw(self) -> tuple[Tensor, ...]:
        """Return what is random in the gradient at this step."""
        return tuple(tensor[0] for tensor in self.gradient_fn.draw(range(self.step, self.step + 1)))

    def calm(self) -> None:
        """Keep the gradient's noise from heating the walk by more than a fifth from now on."""
        if not self.is_exact:
            gaps = self.gaps(8, _identity(self.position))
            noise = torch.stack([(gap * self.direction).sum(-1, keepdim=True) ** 2 for gap in gaps]).mean(0)
            self.limit = 0.4 * (1 - _BETA) * self.temperature / noise.clamp(min=1e-30)

    def go(self, num_steps: int, root_fn: Callable[[Tensor], _Root] = _identity) -> _Measured:
        """Take steps, turning the direction towards the largest curvature in the metric of `root_fn`."""
        squares, quotients = torch.zeros_like(self.position), []
        for _ in range(num_steps):
            drawn = self.draw()
            energy, gradient = self.here or self.gradient_fn.evaluate(self.position, drawn)
            quotients.append(self._turn(gradient, drawn, root_fn(self.position)))
            squares += gradient * gradient / num_steps
            self._move(energy, gradient, drawn)
            self.step += 1
        return _Measured(squares, torch.stack(quotients))

    def _move(self, energy: Tensor, gradient: Tensor, drawn: tuple[Tensor, ...]) -> None:
        """Take an SGHMC step; undo it where it climbs by more than heat explains, and be more careful there from then on."""
        before, self.step_size = self.step_size, torch.minimum(2 * self.step_size, self._wanted())
        velocity = self.velocity * (self.step_size / before) ** 0.5  # it is in units of the root of the step size
        kick = self._normal(Purpose.POSITION)
        moved, (velocity,) = self.kernel.update(self.position, gradient, kick, (velocity,), self.step_size, 1.0)  # type: ignore[arg-type]
        there = self.gradient_fn.evaluate(moved, drawn)
        dim = self.position.shape[-1]
        ceiling = energy + self.temperature * (dim + 10 * dim**0.5) + 1e-3 * energy.abs()
        is_good = torch.isfinite(there.gradient).all(-1) & (there.energy <= ceiling)
        good = is_good[:, None]
        if self.is_exact:
            self.here = Evaluation(torch.where(is_good, there.energy, energy), torch.where(good, there.gradient, gradient))
        self.position = torch.where(good, moved, self.position)
        self.velocity = torch.where(good, velocity, torch.zeros_like(velocity))
        self.caution = torch.where(good, (1.1 * self.caution).clamp(max=1.0), 0.5 * self.caution)

    def _wanted(self) -> Tensor:
        tiny = torch.finfo(self.position.dtype).tiny ** 0.5
        return torch.minimum(self.caution * _CALM / self.curvature.clamp(min=tiny), self.limit)

    def _turn(self, gradient: Tensor, drawn: tuple[Tensor, ...], root: _Root) -> Tensor:
        """Turn the direction by one product with the Hessian; return the curvature along it as it was, (chains,) in float64."""
        product, stiffness = self.product(gradient, drawn, root, self.direction)
        quotient = (self.direction * product).sum(-1).double()
        # The average of old and new keeps minibatch noise out and prefers positive curvature to negative.
        size = torch.linalg.vector_norm(product, dim=-1, keepdim=True)
        turned = _MIX * product + (1 - _MIX) * size * self.direction
        self.direction = torch.where(size > 0, _unit(turned), self.direction)
        decay = 0.95 if root.apply(self.direction) is self.direction else 1.0  # only a product in the plain metric sees all of H
        self.curvature = torch.maximum(stiffness, decay * self.curvature)
        return quotient

    def product(self, gradient: Tensor, drawn: tuple[Tensor, ...], root: _Root, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``R^T H R direction`` from gradients with the same draws, and |H d| for the unit vector d along R direction."""
        along = root.apply(direction)
        length = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        smallest = self._smallest()
        width = (self.temperature / self.curvature.clamp(min=1e-30)) ** 0.5  # of the posterior, along the stiff direction
        reach = torch.where(self.curvature > 0, torch.maximum(0.05 * width, smallest), self.reach)
        there = self.position + reach * along / length
        reach = torch.linalg.vector_norm(there - self.position, dim=-1, keepdim=True)  # as rounded
        gap = self.gradient_fn.evaluate(there, drawn).gradient - gradient
        rounding = torch.finfo(gap.dtype).eps * gradient.abs().amax(-1, keepdim=True)
        resolved = torch.linalg.vector_norm(gap, dim=-1, keepdim=True) > 30 * rounding
        farthest = 0.1 * (1 + self.position.abs().amax(-1, keepdim=True))
        self.reach = torch.where(resolved, self.reach, torch.minimum(10 * self.reach, farthest))
        hessian_unit = torch.where(torch.isfinite(gap) & resolved, gap / reach, torch.zeros_like(gap))
        stiffness = torch.linalg.vector_norm(hessian_unit, dim=-1, keepdim=True)
        return root.transposed(hessian_unit * length), stiffness

    def _smallest(self) -> Tensor:
        """Return a displacement that rounding leaves alone."""
        is_double = self.position.dtype == torch.float64
        share = (1e3 if is_double else 30) * torch.finfo(self.position.dtype).eps
        return share * (1 + self.position.abs().amax(-1, keepdim=True))

    def gaps(self, num_pairs: int, root: _Root) -> Iterator[Tensor]:
        """Yield differences of two gradients where the chains are, in the metric of `root`; their covariance is the noise's."""
        for _ in range(num_pairs):
            pair = []
            for _ in range(2):
                pair.append(self.gradient_fn.evaluate(self.position, self.draw()).gradient)
                self.step += 1
            yield root.transposed((pair[0] - pair[1]) * 0.5**0.5)

    def _normal(self, purpose: Purpose) -> Tensor:
        like = self.position
        at = streams(purpose, self.chains)
        return normal(self.seed, at, self.step, like.shape[-1], dtype=like.dtype, device=like.device)

    def _check_start(self) -> None:
        energy, gradient = self.gradient_fn.evaluate(self.position, self.draw())
        bad = ~(torch.isfinite(gradient).all(-1) & torch.isfinite(energy))
        if bad.any():
            chain = self.chains[int(bad.nonzero()[0])]
            raise ValueError(
                f"find_step_size() found a non-finite energy or gradient where chain {chain} starts: "
                "start where the energy is finite, or give step_size as a number"
            )


def _unit(vector: Tensor) -> Tensor:
    return vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True).clamp(min=torch.finfo(vector.dtype).tiny)


# What the walk measured


def _directions(
    walk: _Walk, measured: _Measured, root_fn: Callable[[Tensor], _Root], steps_per_epoch: float | None
) -> tuple[_Direction, _Direction]:
    """Return curvature and noise along the stiffest direction and along the noisiest one, each for the worst chain."""
    quotients = measured.quotients[_FORGET:]
    curvature = _worst(quotients, dependent=4)
    if not curvature > 0:
        raise ValueError(
            f"find_step_size() found no positive curvature (the largest is {curvature:.3g}): the energy is flat, concave or linear "
            "where the chains went. Start closer to a mode, add a prior, or give step_size as a number"
        )
    if walk.is_exact:
        return _Direction(curvature, 0.0), _Direction(curvature, 0.0)
    root = root_fn(walk.position)
    # The direction comes from one half of the gaps and its noise from the other: chance alone makes no direction noisy.
    kept = max(2, min(_PAIRS // 2, 2**24 // walk.position.numel()))
    gaps = torch.stack(list(walk.gaps(kept, root)), 1)
    leading = torch.linalg.eigh((gaps @ gaps.mT).double()).eigenvectors[..., -1:].to(gaps)
    noisiest = _unit((gaps.mT @ leading)[..., 0])
    along, elsewhere = list((gaps * walk.direction[:, None]).sum(-1).double().T ** 2), []
    for gap in walk.gaps(_PAIRS - kept, root):
        along.append((gap * walk.direction).sum(-1).double() ** 2)
        elsewhere.append((gap * noisiest).sum(-1).double() ** 2)
    products = []
    for _ in range(16):
        drawn = walk.draw()
        gradient = walk.gradient_fn.evaluate(walk.position, drawn).gradient
        products.append((walk.product(gradient, drawn, root, noisiest)[0] * noisiest).sum(-1).double())
        walk.step += 1
    # Two steps of one epoch differ by more than independent ones do.
    pairing = 1.0 if steps_per_epoch is None else 1 - 1 / max(2.0, steps_per_epoch)
    stiff = _Direction(curvature, pairing * _worst(torch.stack(along)))
    chance = 1 + _CHANCE * (2 / (len(elsewhere) * len(walk.position))) ** 0.5
    other = _Direction(
        min(curvature, max(1e-6 * curvature, _worst(torch.stack(products)))), pairing * _worst(torch.stack(elsewhere))
    )
    return stiff, other if other.noise > chance * stiff.noise else stiff


def _worst(values: Tensor, dependent: int = 1) -> float:
    """Return the largest mean of a chain, (values, chains), that chance does not explain; at least the mean over all chains."""
    mean, error = values.mean(0), values.std(0) * (dependent / len(values)) ** 0.5
    return max(float(mean.mean()), float((mean - _CHANCE * error).max()))


# The law of a linear recursion


def _without_metric(kernel: Kernel) -> tuple[Kernel, Preconditioner]:
    """Return the kernel with its metric made the identity, and the metric."""
    preconditioner = getattr(kernel, "preconditioner", None)
    if preconditioner is not None:
        return dataclasses.replace(kernel, preconditioner=Identity()), preconditioner  # type: ignore[call-arg]
    if not kernel.is_elementwise:
        raise needs(
            "find_step_size",
            "kernel",
            "an elementwise update or a preconditioner; give step_size as a number",
            kernel.name,
            TypeError,
        )
    return kernel, Identity()


def _frozen(update: Callable[[Memory, Tensor], Memory], memory: tuple[str, ...], squares: Tensor) -> tuple[Tensor | None, ...]:
    """Return where the averages of squares settle for the given mean squared gradients; None for memories that are linear.

    An average of squares is told by its being the same for g and -g, and settles at the fixed point of its own update.
    """
    gradient, zeros = squares**0.5, tuple(torch.zeros_like(squares) for _ in memory)
    ones = tuple(torch.ones_like(squares) for _ in memory)
    up, down, carried = update(zeros, gradient), update(zeros, -gradient), update(ones, gradient)
    is_even = [bool((a == b).all() and (a != 0).any()) for a, b in zip(up, down, strict=True)]
    return tuple(a / (1 - (c - a)) if even else None for a, c, even in zip(up, carried, is_even, strict=True))


class _Law(NamedTuple):
    """The recursion along one direction per chain: what each input gives to z = (theta, memory...), last axis but one z."""

    carried: Tensor  # of z itself, the gradient held at zero: (chains, n, n)
    gradient: Tensor  # of the gradient: (chains, n, 1)
    noises: Tensor  # of each standard normal: (chains, n, noises)

    @classmethod
    def of(cls, kernel: Kernel, step_size: float, direction: Tensor, squares: Tensor) -> _Law:
        """Feed unit vectors to `kernel.update`."""

        def update(position: Tensor, gradient: Tensor, noises: list[Tensor], memory: Memory) -> tuple[Tensor, Memory]:
            noise = noises[0] if kernel.num_noises == 1 else torch.stack(noises)
            return kernel.update(position, gradient, noise, memory, step_size, 1.0)

        def averages(memory: Memory, gradient: Tensor) -> Memory:
            silent = [torch.zeros_like(gradient)] * kernel.num_noises
            return update(torch.zeros_like(gradient), gradient, silent, memory)[1]

        frozen = _frozen(averages, kernel.memory, squares)
        linear = [k for k, value in enumerate(frozen) if value is None]
        if len(linear) == len(frozen):  # every direction is alike
            direction = direction.new_ones(1, 1)
        num_inputs = 1 + len(linear) + 1 + kernel.num_noises

        def respond(weights: list[float]) -> Tensor:
            position, *remembered, gradient = (weight * direction for weight in weights[: 2 + len(linear)])
            given = iter(remembered)
            memory = tuple(next(given) if value is None else value for value in frozen)
            noises = [weight * direction for weight in weights[2 + len(linear) :]]
            moved, after = update(position, gradient, noises, memory)
            return torch.stack([(part * direction).sum(-1) for part in (moved, *(after[k] for k in linear))], -1)

        columns = torch.stack([respond([float(k == j) for k in range(num_inputs)]) for j in range(num_inputs)], -1)
        mixed = [1.0 + k for k in range(num_inputs)]
        if not torch.allclose(respond(mixed), columns @ columns.new_tensor(mixed), rtol=1e-9, atol=0.0):
            raise needs("find_step_size", "kernel", "an update that is linear but for averages of squares", kernel.name, TypeError)
        size = 1 + len(linear)
        return cls(columns[..., :size], columns[..., size : size + 1], columns[..., size + 1 :])

    def transition(self, curvature: float) -> Tensor:
        """Return A, with the gradient that theta itself brings."""
        first = torch.eye(self.carried.shape[-1], dtype=self.carried.dtype)[:1]
        return self.carried + curvature * self.gradient @ first

    def variance(self, direction: _Direction, steps_per_epoch: float | None) -> Tensor:
        """Return the stationary variance of theta, (chains,); infinite where the recursion does not settle."""
        transition = self.transition(direction.curvature)
        heat = self.gradient @ self.gradient.mT * direction.noise
        thermal = _lyapunov(transition, self.noises @ self.noises.mT)[..., 0, 0]
        heated = _lyapunov(transition, heat)
        if steps_per_epoch is not None:
            heated = _without_replacement(transition, heated, max(2, round(steps_per_epoch)))
        total = thermal + heated[..., 0, 0]
        return torch.where(_radius(transition) < 1, total, math.inf)


def _lyapunov(transition: Tensor, noise: Tensor) -> Tensor:
    """Solve S = A S A^T + B."""
    size = transition.shape[-1]
    square = torch.einsum("...ij,...kl->...ikjl", transition, transition).reshape(*transition.shape[:-2], size**2, size**2)
    eye = torch.eye(size**2, dtype=transition.dtype)
    solution, _ = torch.linalg.solve_ex(eye - square, noise.reshape(*noise.shape[:-2], size**2, 1))
    return solution.reshape(noise.shape)


def _without_replacement(transition: Tensor, white: Tensor, period: int) -> Tensor:
    """Turn the law under independent noise into that under noise which cancels over each epoch of `period` steps.

    Two steps k < T apart share an epoch with probability 1 - k / T, so their correlation is ``c_k = -(1 - k / T) / (T - 1)``. The
    variance is ``S + sum_k c_k (A^k S + S A^kT)``; the geometric sum is in closed form.
    """
    eye = torch.eye(transition.shape[-1], dtype=transition.dtype)
    inverse = torch.linalg.solve_ex(eye - transition, eye.expand_as(transition))[0]
    power = torch.linalg.matrix_power(transition, period)
    total = inverse - transition @ (eye - power) @ inverse @ inverse / period - eye  # sum of (1 - k / T) A^k, k = 1 ... T - 1
    lagged = total @ white / (period - 1)
    return white - lagged - lagged.mT


def _radius(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvals(matrix).abs().amax(-1)


def _reference(kernel: Kernel, probe: Callable[[float], _Law], curvature: float) -> Tensor:
    """Return the variance for small steps and exact gradients, (chains,)."""
    if kernel.effective_temperature is not None:
        return torch.tensor([kernel.effective_temperature / curvature], dtype=torch.float64)
    return probe(_SMALL / curvature).variance(_Direction(curvature, 0.0), None)


def _error(law: _Law, reference: Tensor, direction: _Direction, steps_per_epoch: float | None) -> Tensor:
    """Return the relative error of the variance, (chains,)."""
    return law.variance(direction, steps_per_epoch) / reference - 1


def _choose(
    kernel: Kernel,
    probe: Callable[[float], _Law],
    directions: tuple[_Direction, _Direction],
    share: float,
    steps_per_epoch: float | None,
    num_chains: int,
) -> Tuning:
    """Find the first step size, from small ones up, at which a direction's error leaves `share` or twice which is unstable."""
    stiff = directions[0]
    references = [_reference(kernel, probe, direction.curvature) for direction in directions]

    def error(step_size: float, with_noise: bool = True) -> float:
        law = probe(step_size)
        errors = [
            _error(law, reference, direction if with_noise else direction._replace(noise=0.0), steps_per_epoch)
            for direction, reference in zip(directions, references, strict=True)
        ]
        return max(torch.cat(errors).tolist(), key=abs)

    def is_good(step_size: float) -> bool:
        is_stable = bool((_radius(probe(2 * step_size).transition(stiff.curvature)) < 1).all())
        return is_stable and abs(error(step_size)) <= share

    low = high = _SMALL / stiff.curvature
    while is_good(high):
        low, high = high, 2 * high
    if low == high:
        raise ValueError(
            f"find_step_size() found gradient noise of variance {stiff.noise:.3g} against a curvature of {stiff.curvature:.3g}, "
            "too much for any step size. Take a larger batch_size or share, or give step_size as a number"
        )
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_good(middle) else (low, middle)
    total, discretisation = error(low), error(low, with_noise=False)
    worst = "" if num_chains == 1 else f" (the worst of {num_chains} chains)"
    metric = "" if isinstance(getattr(kernel, "preconditioner", Identity()), Identity) else " in the sampler's metric"
    epochs = "" if steps_per_epoch is None or stiff.noise == 0 else f", cancelling over epochs of {steps_per_epoch:g} steps"
    text = (
        f"{kernel.name}: step_size {low:.4g}, for the largest curvature {stiff.curvature:.4g}{metric}{worst} and gradient noise of "
        f"variance {stiff.noise:.4g} along it{epochs};\n"
        f"  predicted error of the variance there {100 * total:+.2g}% ({100 * discretisation:+.2g}% with exact gradients), "
        f"at most {100 * share:g}% asked for"
    )
    return Tuning(low, text, stiff.curvature, stiff.noise, directions[1], total, discretisation)
