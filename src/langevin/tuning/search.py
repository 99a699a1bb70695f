"""The search: measure, then take the largest step whose law is still good enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.checks import check_number, check_position, needs
from langevin.gradients import GradientFn
from langevin.kernels import Kernel
from langevin.noise.address import check_int
from langevin.tuning.law import (
    SMALL,
    Direction,
    Law,
    relative_error,
    settled_squares,
    small_step_variance,
    spectral_radius,
    without_metric,
)
from langevin.tuning.walk import FIRST_STEP, Measured, Root, Walk, metric_root, unit

__all__ = ["Tuning", "find_step_size"]

_TRAVEL, _SETTLE, _MEASURE, _FORGET = 150, 150, 100, 30  # steps of the three stretches; the first _FORGET quotients are dropped
_PAIRS = 128  # pairs of gradients whose differences give the noise; a half finds the noisiest direction, a half measures it
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
    position: Tensor  # where the warm-up ended, (chains, dim)
    squares: Tensor  # mean squared gradients there, (dim,)


def find_step_size(
    kernel: Kernel,
    gradient_fn: GradientFn,
    position: Tensor,
    *,
    chains: range,
    seed: int,
    share: float = 0.05,
    steps_per_epoch: float | None = None,
    first_step: int = FIRST_STEP,
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
        first_step: where its addresses begin.

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
    check_int("find_step_size", "seed", seed, 0, 2**64)
    flat, preconditioner = without_metric(kernel)
    with torch.no_grad():
        walk = Walk(gradient_fn, position.detach(), kernel.temperature, chains, seed, first_step)
        walk.go(_TRAVEL)
        walk.calm()
        squares = walk.go(_SETTLE).squares.mean(0, keepdim=True).expand_as(position)  # one chain alone has seen too few
        settled = settled_squares(lambda memory, g: preconditioner.update(memory, g, 1.0), preconditioner.memory, squares)
        metric_memory = tuple(torch.zeros_like(squares) if value is None else value for value in settled)

        def root_fn(at: Tensor) -> Root:
            return metric_root(preconditioner, metric_memory, at)

        directions = _directions(walk, walk.go(_MEASURE, root_fn), root_fn, steps_per_epoch)

        def probe(step_size: float) -> Law:
            return Law.of(flat, step_size, unit(walk.direction.double()), squares.double())

        return _choose(kernel, probe, directions, share, steps_per_epoch, walk.position, squares[0])


def _directions(
    walk: Walk, measured: Measured, root_fn: Callable[[Tensor], Root], steps_per_epoch: float | None
) -> tuple[Direction, Direction]:
    """Return curvature and noise along the stiffest direction and along the noisiest one, each for the worst chain."""
    quotients = measured.quotients[_FORGET:]
    curvature = _worst(quotients, dependent=4)
    if not curvature > 0:
        raise ValueError(
            f"find_step_size() found no positive curvature (the largest is {curvature:.3g}): the energy is flat, concave or linear "
            "where the chains went. Start closer to a mode, add a prior, or give step_size as a number"
        )
    if walk.is_exact:
        return Direction(curvature, 0.0), Direction(curvature, 0.0)
    root = root_fn(walk.position)
    # The direction comes from one half of the gaps and its noise from the other: chance alone makes no direction noisy.
    kept = max(2, min(_PAIRS // 2, 2**24 // walk.position.numel()))
    gaps = torch.stack(list(walk.gaps(kept, root)), 1)
    leading = torch.linalg.eigh((gaps @ gaps.mT).double()).eigenvectors[..., -1:].to(gaps)
    noisiest = unit((gaps.mT @ leading)[..., 0])
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
    stiff = Direction(curvature, pairing * _worst(torch.stack(along)))
    chance = 1 + _CHANCE * (2 / (len(elsewhere) * len(walk.position))) ** 0.5
    other = Direction(
        min(curvature, max(1e-6 * curvature, _worst(torch.stack(products)))), pairing * _worst(torch.stack(elsewhere))
    )
    return stiff, other if other.noise > chance * stiff.noise else stiff


def _worst(values: Tensor, dependent: int = 1) -> float:
    """Return the largest mean of a chain, (values, chains), that chance does not explain; at least the mean over all chains."""
    mean, error = values.mean(0), values.std(0) * (dependent / len(values)) ** 0.5
    return max(float(mean.mean()), float((mean - _CHANCE * error).max()))


def _choose(
    kernel: Kernel,
    probe: Callable[[float], Law],
    directions: tuple[Direction, Direction],
    share: float,
    steps_per_epoch: float | None,
    position: Tensor,
    squares: Tensor,
) -> Tuning:
    """Find the first step size, from small ones up, at which a direction's error leaves `share` or twice which is unstable."""
    stiff = directions[0]
    references = [small_step_variance(kernel, probe, direction.curvature) for direction in directions]

    def error(step_size: float, with_noise: bool = True) -> float:
        law = probe(step_size)
        errors = [
            relative_error(law, reference, direction if with_noise else direction._replace(noise=0.0), steps_per_epoch)
            for direction, reference in zip(directions, references, strict=True)
        ]
        return max(torch.cat(errors).tolist(), key=abs)

    def is_good(step_size: float) -> bool:
        is_stable = bool((spectral_radius(probe(2 * step_size).transition(stiff.curvature)) < 1).all())
        return is_stable and abs(error(step_size)) <= share

    low = high = SMALL / stiff.curvature
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
    worst = "" if len(position) == 1 else f" (the worst of {len(position)} chains)"
    metric = " in the sampler's metric" if kernel.without_metric()[1].describe()[0] else ""
    epochs = "" if steps_per_epoch is None or stiff.noise == 0 else f", cancelling over epochs of {steps_per_epoch:g} steps"
    text = (
        f"{kernel.name}: step_size {low:.4g}, for the largest curvature {stiff.curvature:.4g}{metric}{worst} and gradient noise of "
        f"variance {stiff.noise:.4g} along it{epochs};\n"
        f"  predicted error of the variance there {100 * total:+.2g}% ({100 * discretisation:+.2g}% with exact gradients), "
        f"at most {100 * share:g}% asked for"
    )
    return Tuning(low, text, stiff.curvature, stiff.noise, directions[1], total, discretisation, position, squares)
