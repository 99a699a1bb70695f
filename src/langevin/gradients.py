"""Gradient estimates, each a pure function of (position, step): full, minibatch, control variates, noisy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_dense, check_integer, check_number, check_position, needs
from langevin.noise import Purpose, batch_indices, normal, streams, white_rows
from langevin.noise.address import check_chains, check_seed
from langevin.scales import Scale
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.base import check_dim, check_target

__all__ = [
    "BATCHES",
    "GradientFn",
    "control_variate",
    "energy_gradient",
    "find_mode",
    "full",
    "in_scale",
    "minibatch",
    "noisy",
    "of_each_row",
    "tolerant",
    "with_energy",
]

BATCHES = ("reshuffled", "white")
"""How minibatches are drawn: each datum once per epoch, so that the noise cancels over it, or every row anew (with replacement)."""

Draws = tuple[Tensor, ...]
"""What is random in a gradient: tensors whose first axes are the step and the chain."""


@dataclass(frozen=True)
class GradientFn:
    """A gradient estimate in two halves, so that a block of steps can be drawn ahead and then run without Python.

    `draw` makes everything random for a range of steps, each number at its own address; `evaluate` is pure, takes what was drawn
    for one step, (chains, ...) each, and can be traced by a compiler. Calling the object does both for a single step.
    """

    draw: Callable[[range], Draws]
    evaluate: Callable[[Tensor, Draws], Evaluation]

    def __call__(self, position: Tensor, step: int) -> Evaluation:
        """Return energy and gradient at `position`, (chains, dim), as they are at `step`."""
        return self.evaluate(position, tuple(drawn[0] for drawn in self.draw(range(step, step + 1))))


def energy_gradient(gradient: Any, position: Any, num_data: Any, prior: Any) -> Any:
    """Return grad U = N grad(mean loss) + grad(-log prior), for tensors and symbols alike.

    Example:
        >>> from langevin.targets import priors
        >>> energy_gradient(torch.tensor([0.5]), torch.tensor([2.0]), 100, priors.gaussian(std=1.0))
        tensor([52.])
    """
    scaled = num_data * gradient
    return scaled if prior is None else scaled + prior.gradient(position)


def full(target: Target, data: Sequence[Tensor] | Tensor | None = None) -> GradientFn:
    """Take the gradient over all data.

    Example:
        >>> from langevin.targets import gaussian
        >>> full(gaussian([[1.0]]))(torch.tensor([[2.0]]), 0).gradient
        tensor([[2.]])
    """
    check_target("full", target, data)
    columns = None if data is None else target.as_columns("full", data)
    batch = None if columns is None else Batch(columns, len(columns[0]), per_chain=False)
    return GradientFn(lambda steps: (), lambda position, drawn: target.evaluate(position, batch))


def minibatch(
    target: Target,
    data: Sequence[Tensor] | Tensor,
    batch_size: int,
    *,
    seed: int,
    chains: range,
    batches: str = "reshuffled",
) -> GradientFn:
    """Estimate the gradient from `batch_size` rows, scaled by N / n; every chain has rows of its own.

    Args:
        target: a target with data.
        data: its columns, each with N rows.
        batch_size: n, at most N.
        seed: of the rows.
        chains: numbers of the chains, so that chains run apart see what they would see together.
        batches: "reshuffled" takes each datum once per epoch, in an order that is a function of (seed, chain, epoch); "white" draws
            every row anew, with replacement, which is what the corrected samplers need.

    Example:
        >>> from langevin import targets
        >>> target = targets.likelihood(lambda theta, x: -0.5 * (x - theta).square().sum(-1), prior=targets.priors.flat())
        >>> x = torch.arange(10.0)[:, None]
        >>> minibatch(target, x, 2, seed=0, chains=range(3))(torch.zeros(3, 1), 0).gradient.shape
        torch.Size([3, 1])
        >>> minibatch(target, x, 10, seed=0, chains=range(1))(torch.zeros(1, 1), 0).gradient  # all rows: minus their sum
        tensor([[-45.]])
    """
    columns = _check_batches("minibatch", target, data, batch_size, seed, chains, batches)
    num_data = len(columns[0])
    purpose, rows_of = (Purpose.ROWS, white_rows) if batches == "white" else (Purpose.BATCH, batch_indices)

    def draw(steps: range) -> Draws:
        return (rows_of(seed, streams(purpose, chains), steps, batch_size, num_data).to(columns[0].device),)

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        (rows,) = drawn
        _check_count("minibatch", position, rows)
        return target.evaluate(position, Batch(tuple(column[rows] for column in columns), num_data, per_chain=True))

    return GradientFn(draw, evaluate)


def of_each_row(target: Target, columns: Sequence[Tensor], rows: Tensor, position: Tensor, mode: Tensor | None = None) -> Tensor:
    """Return what each row by itself says of the gradient at `position` (dim,): ``N grad(-log p(row)) + grad(-log prior)``.

    A minibatch's gradient is a mean of n of these, so their covariance over n is that of its noise. With `mode`, what they say
    there is taken off, as `control_variate` does.

    Args:
        target: a target with data.
        columns: its data.
        rows: which of them, int64.
        position: a place, (dim,).
        mode: the centre of control variates, (dim,), or None.

    Example:
        >>> from langevin import targets
        >>> target = targets.likelihood(lambda theta, x: -0.5 * (x - theta).square().sum(-1), prior=targets.priors.flat())
        >>> of_each_row(target, [torch.arange(4.0)[:, None]], torch.tensor([0, 3]), torch.zeros(1))
        tensor([[  0.],
                [-12.]])
    """
    batch = Batch(tuple(column[rows][:, None] for column in columns), len(columns[0]), per_chain=True)
    gradients = target.evaluate(position.repeat(len(rows), 1), batch).gradient
    return gradients if mode is None else gradients - target.evaluate(mode.repeat(len(rows), 1), batch).gradient


def _check_batches(who: str, target: Any, data: Any, batch_size: Any, seed: Any, chains: Any, batches: Any) -> tuple[Tensor, ...]:
    """Check what all gradients of minibatches take; return the data's columns."""
    if isinstance(target, Target) and not target.needs_data:
        raise needs(who, "target", "a target with data", type(target).__name__)
    check_target(who, target, data)
    columns = target.as_columns(who, data)
    check_integer(who, "batch_size", batch_size, 1)
    if batch_size > len(columns[0]):
        raise needs(who, "batch_size", f"at most the {len(columns[0])} rows of the data", batch_size)
    check_seed(who, seed)
    check_chains(who, chains)
    if batches not in BATCHES:
        raise needs(who, "batches", f"one of {', '.join(BATCHES)}", batches)
    return columns


def _check_count(who: str, position: Tensor, drawn: Tensor) -> None:
    """Fail when what was drawn is for another number of chains than there are positions."""
    if len(drawn) != len(position):
        raise needs(who, "chains", f"{len(position)} chains, one for each position", len(drawn))


def control_variate(
    target: Target,
    data: Sequence[Tensor] | Tensor,
    batch_size: int,
    mode: Tensor,
    *,
    seed: int,
    chains: range,
    batches: str = "reshuffled",
) -> GradientFn:
    """Estimate the gradient from `batch_size` rows, corrected by what the same rows say at a fixed centre.

    ``grad U~(theta) = grad U(mode) + g(theta; rows) - g(mode; rows)``, where g is the gradient of `minibatch`, on the same rows.
    Unbiased for any centre, and exact in the prior, which stands in all three terms. Its variance is zero at the centre and grows
    like |theta - mode|^2, whereas that of `minibatch` stays of order N^2 / n. A step costs two minibatch gradients; the
    full gradient at the centre is taken once, when this is built. The energy is the one whose gradient this is: that at the centre,
    and what the rows say of the difference beyond the first order.

    It pays where chains stay near one mode (many data, few parameters). Far from the centre it saves less than the second gradient
    costs (docs/benchmarks/control_variates.md).

    Args:
        target: a target with data.
        data: its columns, each with N rows.
        batch_size: n, at most N.
        mode: the centre, (dim,), near the posterior mode: see `find_mode`.
        seed: of the order, which is that of `minibatch`.
        chains: numbers of the chains.
        batches: as in `minibatch`.

    Reference: Baker, Fearnhead, Fox and Nemeth, "Control variates for stochastic gradient MCMC", 2019, equation 9.

    Example:
        >>> from langevin.targets import likelihood, priors
        >>> target = likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=priors.gaussian(std=1.0))
        >>> x = torch.tensor([0.0, 1.0, 2.0, 6.0])
        >>> estimate = control_variate(target, x, 1, torch.tensor([2.0]), seed=0, chains=range(2))
        >>> estimate(torch.tensor([[1.0], [3.0]]), 0).gradient  # linear in theta, so one row is as good as all
        tensor([[-4.],
                [ 6.]])
    """
    data = _check_batches("control_variate", target, data, batch_size, seed, chains, batches)
    check_position("control_variate", "mode", mode)
    if mode.ndim != 1:
        raise needs("control_variate", "mode", "shape (dim,)", tuple(mode.shape))
    centre = mode.detach().clone()
    plain = minibatch(target, data, batch_size, seed=seed, chains=chains, batches=batches)
    rough = plain.evaluate  # by itself: compiled code depends on what `evaluate` closes over, and need not know the seed
    check_dim("control_variate", "mode", target, len(centre))
    energy_there, at_centre = full(target, data)(centre[None], 0)
    if not torch.isfinite(at_centre).all():
        raise needs("control_variate", "mode", "a position where the gradient over all data is finite", centre.tolist())

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        if position.shape[-1] != len(centre):
            raise needs("control_variate", "mode", f"shape ({position.shape[-1]},), that of one position", tuple(centre.shape))
        energy, gradient = rough(position, drawn)
        # Real copies, not a view of one row: the same arithmetic as for positions, so that both cancel to the last bit.
        before, baseline = rough(centre.repeat(len(position), 1), drawn)
        slope = at_centre - baseline
        tilted = energy_there + (energy - before) + (slope * (position - centre)).sum(-1)
        return Evaluation(tilted, at_centre + (gradient - baseline))

    return GradientFn(plain.draw, evaluate)


def find_mode(
    target: Target,
    data: Sequence[Tensor] | Tensor | None,
    init: Tensor,
    *,
    num_steps: int = 200,
    tolerance: float = 1e-2,
) -> Tensor:
    """Go downhill on the full energy by L-BFGS, without any randomness; the centre for `control_variate`.

    Args:
        target: the target.
        data: its columns; None for a target without data.
        init: where to start, (dim,).
        num_steps: steps at most.
        tolerance: done when ``|grad U| <= tolerance * sqrt(N)``. One posterior standard deviation from the mode it is about
            ``sqrt(N)`` for columns of order 1, so the default is about a hundredth of a standard deviation.

    Returns:
        A position (dim,), with a warning when its gradient is still above the tolerance. `control_variate` is unbiased there too,
        only noisier.

    Example:
        >>> from langevin.targets import gaussian
        >>> target = gaussian([[1.0, 0.9], [0.9, 1.0]], mean=[1.0, 2.0])
        >>> find_mode(target, None, torch.zeros(2, dtype=torch.float64)).round(decimals=2)
        tensor([1., 2.], dtype=torch.float64)
    """
    check_position("find_mode", "init", init)
    if init.ndim != 1:
        raise needs("find_mode", "init", "shape (dim,)", tuple(init.shape))
    check_integer("find_mode", "num_steps", num_steps, 1)
    check_number("find_mode", "tolerance", tolerance, "> 0", lambda v: v > 0)
    check_target("find_mode", target, data)
    check_dim("find_mode", "init", target, len(init))
    columns = None if data is None else target.as_columns("find_mode", data)
    gradient_fn = full(target, columns)
    num_data = 1 if columns is None else len(columns[0])
    small = tolerance * num_data**0.5
    theta = init.detach().clone()
    # It stops on its own where every element of the gradient is small; a change of zero never stops it, for energies of large data
    # sets round to the same number long before the mode is reached.
    largest = small / len(theta) ** 0.5
    search = torch.optim.LBFGS(
        [theta], max_iter=num_steps, tolerance_grad=largest, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        energy, gradient = gradient_fn(theta.detach()[None], 0)
        theta.grad = gradient[0]
        return float(energy[0])

    search.step(closure)
    norm = float(gradient_fn(theta[None], 0).gradient.norm())
    if not math.isfinite(norm):
        raise ValueError(f"find_mode(init=...) led to a gradient of norm {norm} at {theta.tolist()}; start elsewhere")
    if norm > small:
        warnings.warn(
            f"find_mode() stopped after at most {num_steps} steps at a gradient of norm {norm:.3g}, above tolerance * sqrt(N) = "
            f"{small:.3g}; more num_steps or another init may help",
            stacklevel=2,
        )
    return theta


def in_scale(gradient_fn: GradientFn, scale: Scale, origin: Tensor) -> GradientFn:
    """Return the gradient with respect to y, ``θ = origin + R y``, at positions y (chains, dim).

    Example:
        >>> from langevin.scales import Diagonal
        >>> from langevin.targets import gaussian
        >>> inner = full(gaussian([[4.0]]))  # θ has sd 2, y = θ / 2 has sd 1
        >>> in_scale(inner, Diagonal(torch.tensor([2.0])), torch.zeros(1))(torch.tensor([[3.0]]), 0).gradient
        tensor([[3.]])
    """
    inner, push, pull = gradient_fn.evaluate, scale.push, scale.pull

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        energy, gradient = inner(origin + push(position), drawn)
        return Evaluation(energy, pull(gradient))

    return GradientFn(gradient_fn.draw, evaluate)


def with_energy(gradient_fn: GradientFn, exact: GradientFn) -> GradientFn:
    """Return one estimate's gradient with the energy of another, an exact one, for samplers that accept or reject.

    Both are evaluated at every step: a reference for small problems, not a way to save data.

    Example:
        >>> from langevin.targets import gaussian
        >>> exact, like = full(gaussian([[1.0]])), torch.tensor([[2.0]])
        >>> with_energy(noisy(exact, 1.0, seed=0, chains=range(1), like=like), exact)(like, 0).energy
        tensor([2.])
    """
    inner, energy_of = gradient_fn.evaluate, exact.evaluate

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        return Evaluation(energy_of(position, ()).energy, inner(position, drawn).gradient)

    return GradientFn(gradient_fn.draw, evaluate)


def tolerant(gradient_fn: GradientFn) -> GradientFn:
    """Return the exact gradient, with an infinite energy where the target raises; where it does for all chains, so does this.

    Example:
        >>> from langevin.targets import Target
        >>> class Half(Target):
        ...     def evaluate(self, position, batch=None):
        ...         if (position < 0).any():
        ...             raise ValueError("not here")
        ...         return Evaluation(position.sum(-1), torch.ones_like(position))
        >>> tolerant(full(Half()))(torch.tensor([[1.0], [-1.0]]), 0).energy
        tensor([1., inf])
    """
    inner = gradient_fn.evaluate

    def attempt(position: Tensor) -> tuple[Evaluation, Exception | None, int]:
        """Evaluate; return also an error, and how many chains raised one, found by halving."""
        try:
            return inner(position, ()), None, 0
        except Exception as error:
            if len(position) == 1:
                return Evaluation(position.new_full((1,), torch.inf), torch.full_like(position, torch.nan)), error, 1
        half = len(position) // 2
        (first, one, few), (second, other, more) = attempt(position[:half]), attempt(position[half:])
        both = Evaluation(torch.cat([first.energy, second.energy]), torch.cat([first.gradient, second.gradient]))
        return both, one or other, few + more

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        found, error, failed = attempt(position)
        if error is not None and failed == len(position):
            raise error
        return found

    return GradientFn(gradient_fn.draw, evaluate)


def noisy(gradient_fn: GradientFn, std: float, *, seed: int, chains: range, like: Tensor) -> GradientFn:
    """Add N(0, std**2 I) to a gradient, as the paper does to mimic minibatches (sections 4.1 and 4.2).

    Args:
        gradient_fn: the gradient.
        std: standard deviation of the noise.
        seed: of the noise.
        chains: numbers of the chains.
        like: the positions, (chains, dim), for their length, dtype and device; their values are not looked at.

    Example:
        >>> from langevin.targets import gaussian
        >>> position = torch.zeros(1, 2)
        >>> gradient = noisy(full(gaussian(torch.eye(2))), 0.5, seed=0, chains=range(1), like=position)
        >>> bool((gradient(position, 3).gradient == gradient(position, 3).gradient).all())  # noise has an address
        True
    """
    if not isinstance(gradient_fn, GradientFn):
        raise needs("noisy", "gradient_fn", "a GradientFn, such as full(target) returns", gradient_fn, TypeError)
    if not isinstance(like, Tensor) or not like.is_floating_point() or like.ndim == 0:
        raise needs("noisy", "like", "a floating-point tensor of shape (chains, dim)", like, TypeError)
    check_dense("noisy", "like", like)
    check_seed("noisy", seed)
    check_chains("noisy", chains)
    std = check_number("noisy", "std", std, ">= 0", lambda v: v >= 0)
    inner = gradient_fn.evaluate  # by itself, as in `control_variate`

    def draw(steps: range) -> Draws:
        at = streams(Purpose.GRADIENT, chains)
        return (normal(seed, at, steps, like.shape[-1], dtype=like.dtype, device=like.device), *gradient_fn.draw(steps))

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        _check_count("noisy", position, drawn[0])
        energy, exact = inner(position, drawn[1:])
        if exact.shape != drawn[0].shape:
            raise needs("noisy", "like", f"positions of {exact.shape[-1]} elements", drawn[0].shape[-1])
        return Evaluation(energy, exact + std * drawn[0])

    return GradientFn(draw, evaluate)
