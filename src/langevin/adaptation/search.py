"""Find the largest step size whose stationary distribution is accurate enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.adaptation.probe import FIRST_STEP, Measured, Root, Walk, metric_root, unit
from langevin.adaptation.stationary import (
    SMALL,
    Direction,
    LinearProcess,
    relative_error,
    settled_squares,
    small_step_variance,
    spectral_radius,
    without_metric,
)
from langevin.checks import check_integer, check_number, check_position, needs
from langevin.kernels import Kernel
from langevin.targets.gradients import GradientFn

__all__ = ["Tuning", "find_step_size"]

_TRAVEL, _SETTLE, _MEASURE = 150, 150, 100  # steps of the three segments
_FORGET = 30  # quotients that are dropped in the last one
_PAIRS = 128  # of gradients for the noise: half find the noisiest direction, half measure it
_CHANCE = 4.0  # standard errors by which a chain must differ from the mean to count as worse


@dataclass(frozen=True)
class Tuning:
    """A step size and the measurements behind it."""

    step_size: float
    text: str  # the report
    curvature: float  # the largest curvature of U, in the sampler's metric
    noise: float  # variance of the gradient noise along that direction, in the same metric
    noisiest: tuple[float, float]  # curvature and noise variance in the noisiest direction
    error: float  # predicted relative error of the stationary variance, in the worst direction
    discretisation: float  # the part of it that exact gradients would leave
    position: Tensor  # final positions, (chains, dim)
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
    """Find the largest step size whose variance is off by at most `share` in any direction.

    A pure function of its arguments, with noise at addresses (step 2**40 and up) that no run uses.
    Chains move from `position` to the typical set by SGHMC, with steps set by the curvature along
    the way; moves that climb too far are rejected and halved. Power iteration on differences of
    gradients, with one minibatch per product, gives the largest curvature; differences of gradients
    at one position give the noise. This takes about 1,500 gradients.

    Assumptions: U is nearly quadratic over the width of the posterior in its stiffest direction;
    the gradient noise there does not depend on the position; square averages (asgld, psgld) equal
    the mean squares along the way (in directions too wide to cross, those near the start). For
    sgrld and psgld curvature and noise are those in the metric.

    The error is that of discretisation and gradient noise, not of short chains: a wide direction
    may need many such steps. The reference is the distribution for small steps, which for the
    published msgld and asgld is colder than the target (`kernel.describe()`).

    Args:
        kernel: the sampler; its own step size is ignored.
        gradient_fn: the gradient of the run.
        position: initial positions, (chains, dim).
        chains: numbers of the chains.
        seed: an int in [0, 2**64).
        share: the error allowed, relative to the variance; in (0, 1).
        steps_per_epoch: N / n for minibatches without replacement, from `gradients.minibatch`:
            their noise cancels over an epoch, which allows far larger steps. None if the noise of
            different steps is independent.
        first_step: where its addresses begin.

    Returns:
        The step size and the measurements. It serves the worst of several chains, where a chain
        counts as worse than the mean only by more than chance explains.

    Example:
        >>> from langevin.targets.gradients import full
        >>> from langevin.kernels.samplers import sgld
        >>> from langevin.targets import gaussian
        >>> target = gaussian([[1.0, 0.9], [0.9, 1.0]])  # curvatures 10 and 0.53
        >>> start, kernel = torch.ones(1, 2), sgld(step_size=1.0)
        >>> found = find_step_size(kernel, full(target), start, chains=range(1), seed=0)
        >>> round(found.curvature, 3), round(found.step_size, 5)  # 2 * 0.05 / (1.05 * 10)
        (10.0, 0.00952)
    """
    who = "find_step_size"
    share = check_number(who, "share", share, "0 < share < 1", lambda v: 0 < v < 1)
    check_position(who, "position", position)
    if position.ndim != 2 or len(position) != len(chains):
        what = f"shape ({len(chains)}, dim), a row per chain"
        raise needs(who, "position", what, tuple(position.shape))
    if kernel.temperature == 0:
        what = "temperature > 0: at 0 there is no distribution whose error could be bounded"
        raise needs(who, "kernel", what, 0.0)
    if steps_per_epoch is not None:
        check_number(who, "steps_per_epoch", steps_per_epoch, ">= 1", lambda v: v >= 1)
    check_integer(who, "seed", seed, 0, 2**64)
    flat, preconditioner = without_metric(kernel)
    with torch.no_grad():
        walk = Walk(gradient_fn, position.detach(), kernel.temperature, chains, seed, first_step)
        walk.go(_TRAVEL)
        walk.calm()
        # The mean over chains: one chain alone takes too few steps.
        squares = walk.go(_SETTLE).squares.mean(0, keepdim=True).expand_as(position)
        settled = settled_squares(
            lambda memory, g: preconditioner.update(memory, g, 1.0),
            preconditioner.state_names,
            squares,
        )
        metric_memory = tuple(
            torch.zeros_like(squares) if value is None else value for value in settled
        )

        def root_fn(at: Tensor) -> Root:
            return metric_root(preconditioner, metric_memory, at)

        directions = _directions(walk, walk.go(_MEASURE, root_fn), root_fn, steps_per_epoch)

        def probe(step_size: float) -> LinearProcess:
            return LinearProcess.of(
                flat, step_size, unit(walk.direction.double()), squares.double()
            )

        return _choose(kernel, probe, directions, share, steps_per_epoch, walk.position, squares[0])


def _directions(
    walk: Walk, measured: Measured, root_fn: Callable[[Tensor], Root], steps_per_epoch: float | None
) -> tuple[Direction, Direction]:
    """Return curvature and noise of the worst chain, in the stiffest and noisiest directions."""
    quotients = measured.quotients[_FORGET:]
    curvature = _worst(quotients, dependent=4)
    if not curvature > 0:
        raise ValueError(
            f"find_step_size() found no positive curvature (the largest is {curvature:.3g}): the "
            "energy is flat, concave or linear around the chains. Start closer to a mode, add "
            "a prior, or give step_size as a number"
        )
    if walk.is_exact:
        return Direction(curvature, 0.0), Direction(curvature, 0.0)
    root = root_fn(walk.position)
    # The direction comes from one half of the gaps and its noise from the other, without bias.
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
        product, _ = walk.product(gradient, drawn, root, noisiest)
        products.append((product * noisiest).sum(-1).double())
        walk.step += 1
    # Steps of one epoch are negatively correlated, so their differences are larger.
    pairing = 1.0 if steps_per_epoch is None else 1 - 1 / max(2.0, steps_per_epoch)
    stiff = Direction(curvature, pairing * _worst(torch.stack(along)))
    chance = 1 + _CHANCE * (2 / (len(elsewhere) * len(walk.position))) ** 0.5
    curved = min(curvature, max(1e-6 * curvature, _worst(torch.stack(products))))
    other = Direction(curved, pairing * _worst(torch.stack(elsewhere)))
    return stiff, other if other.noise > chance * stiff.noise else stiff


def _worst(values: Tensor, dependent: int = 1) -> float:
    """Return the largest significant mean over chains (values, chains), or the grand mean."""
    mean, error = values.mean(0), values.std(0) * (dependent / len(values)) ** 0.5
    return max(float(mean.mean()), float((mean - _CHANCE * error).max()))


def _choose(
    kernel: Kernel,
    probe: Callable[[float], LinearProcess],
    directions: tuple[Direction, Direction],
    share: float,
    steps_per_epoch: float | None,
    position: Tensor,
    squares: Tensor,
) -> Tuning:
    """Return the largest step size with an error within `share` that is stable when doubled."""
    stiff = directions[0]
    references = [
        small_step_variance(kernel, probe, direction.curvature) for direction in directions
    ]

    def error(step_size: float, with_noise: bool = True) -> float:
        process, errors = probe(step_size), []
        for direction, reference in zip(directions, references, strict=True):
            along = direction if with_noise else direction._replace(noise=0.0)
            errors.append(relative_error(process, reference, along, steps_per_epoch))
        return max(torch.cat(errors).tolist(), key=abs)

    def is_good(step_size: float) -> bool:
        doubled = probe(2 * step_size).transition(stiff.curvature)
        is_stable = bool((spectral_radius(doubled) < 1).all())
        return is_stable and abs(error(step_size)) <= share

    low = high = SMALL / stiff.curvature
    while is_good(high):
        low, high = high, 2 * high
    if low == high:
        raise ValueError(
            f"find_step_size() found gradient noise of variance {stiff.noise:.3g} against a "
            f"curvature of {stiff.curvature:.3g}, too much for any step size. Take a larger "
            "batch_size or share, or give step_size as a number"
        )
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_good(middle) else (low, middle)
    total, discretisation = error(low), error(low, with_noise=False)
    worst = "" if len(position) == 1 else f" (the worst of {len(position)} chains)"
    metric = " in the sampler's metric" if kernel.without_metric()[1].describe()[0] else ""
    epochs = ""
    if steps_per_epoch is not None and stiff.noise != 0:
        epochs = f", cancelling over epochs of {steps_per_epoch:g} steps"
    text = (
        f"{kernel.name}: step_size {low:.4g}, for the largest curvature {stiff.curvature:.4g}"
        f"{metric}{worst} and gradient noise of variance {stiff.noise:.4g} along it{epochs};\n"
        f"  predicted error of the variance there {100 * total:+.2g}% "
        f"({100 * discretisation:+.2g}% with exact gradients), limit {100 * share:g}%"
    )
    return Tuning(
        low, text, stiff.curvature, stiff.noise, directions[1], total, discretisation, position,
        squares,
    )  # fmt: skip
