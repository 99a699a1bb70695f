"""Estimate gradients as pure functions of (position, step): full, minibatch, control variates."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_dense, check_integer, check_number, check_position, needs
from langevin.compiler.program import CompiledFunction
from langevin.compiler.record import UnrecordableError, current
from langevin.random import Purpose, batch_indices, normal, streams, white_rows
from langevin.random.address import check_chains, check_seed
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.base import check_dim, check_target
from langevin.targets.metric import Metric

__all__ = [
    "BATCHES",
    "CompiledEvaluation",
    "GradientFn",
    "compiled",
    "control_variate",
    "energy_gradient",
    "find_mode",
    "full",
    "in_metric",
    "minibatch",
    "noisy",
    "of_each_row",
    "tolerant",
    "with_energy",
]

BATCHES = ("reshuffled", "white")
"""How to draw minibatches: each row once per epoch, or every row independently."""

Data = Sequence[Tensor] | Tensor

Draws = tuple[Tensor, ...]
"""The random part of a gradient: tensors whose first axes are the step and the chain."""


@dataclass(frozen=True)
class GradientFn:
    """Estimate a gradient in two halves: draw a block of steps ahead, then evaluate each.

    `draw` returns all random numbers of a range of steps, each at its own address; `evaluate` is
    pure, takes what was drawn for one step, (chains, ...) each, and can be compiled. Calling the
    object does both for a single step.
    """

    draw: Callable[[range], Draws]
    evaluate: Callable[[Tensor, Draws], Evaluation]

    def __call__(self, position: Tensor, step: int) -> Evaluation:
        """Return energy and gradient at `position`, (chains, dim), for one step."""
        drawn = self.draw(range(step, step + 1))
        return self.evaluate(position, tuple(tensor[0] for tensor in drawn))


def energy_gradient(gradient: Any, position: Any, num_data: Any, prior: Any) -> Any:
    """Return grad U = N grad(mean loss) + grad(-log prior), for tensors and symbols alike.

    Example:
        >>> from langevin.targets import priors
        >>> energy_gradient(torch.tensor([0.5]), torch.tensor([2.0]), 100, priors.gaussian(std=1.0))
        tensor([52.])
    """
    scaled = num_data * gradient
    return scaled if prior is None else scaled + prior.gradient(position)


def full(target: Target, data: Data | None = None) -> GradientFn:
    """Compute the gradient over all data.

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
    data: Data,
    batch_size: int,
    *,
    seed: int,
    chains: range,
    batches: str = "reshuffled",
) -> GradientFn:
    """Estimate the gradient from `batch_size` rows per chain, scaled by N / n.

    Args:
        target: a target with data.
        data: its columns, each with N rows.
        batch_size: n, at most N.
        seed: of the rows.
        chains: numbers of the chains, so that separate runs match a joint one.
        batches: "reshuffled" takes each row once per epoch, in an order that is a function of
            (seed, chain, epoch), so that the noise cancels over an epoch; "white" draws every row
            independently, with replacement, as the corrected samplers require.

    Example:
        >>> from langevin import targets
        >>> log_density = lambda theta, x: -0.5 * (x - theta).square().sum(-1)
        >>> target = targets.likelihood(log_density, prior=targets.priors.flat())
        >>> x = torch.arange(10.0)[:, None]
        >>> minibatch(target, x, 2, seed=0, chains=range(3))(torch.zeros(3, 1), 0).gradient.shape
        torch.Size([3, 1])
        >>> every = minibatch(target, x, 10, seed=0, chains=range(1))
        >>> every(torch.zeros(1, 1), 0).gradient  # minus the sum of all rows
        tensor([[-45.]])
    """
    columns = _check_batches("minibatch", target, data, batch_size, seed, chains, batches)
    num_data, device = len(columns[0]), columns[0].device
    is_white = batches == "white"
    purpose = Purpose.ROWS if is_white else Purpose.BATCH
    rows_of = white_rows if is_white else batch_indices

    def draw(steps: range) -> Draws:
        rows = rows_of(seed, streams(purpose, chains), steps, batch_size, num_data)
        return (rows.to(device),)

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        (rows,) = drawn
        _check_count("minibatch", position, rows)
        batch = Batch(tuple(column[rows] for column in columns), num_data, per_chain=True)
        return target.evaluate(position, batch)

    return GradientFn(draw, evaluate)


def of_each_row(
    target: Target,
    columns: Sequence[Tensor],
    rows: Tensor,
    position: Tensor,
    mode: Tensor | None = None,
) -> Tensor:
    """Return the gradient estimate of each row alone, (rows, dim).

    ``N grad(-log p(row)) + grad(-log prior)``. The gradient of a minibatch is a mean of n of these,
    so their covariance over n is that of its noise. With `mode`, their values at the mode are
    subtracted, as in `control_variate`.

    Args:
        target: a target with data.
        columns: its data.
        rows: indices of the rows, int64.
        position: where to evaluate, (dim,).
        mode: the centre of control variates, (dim,), or None.

    Example:
        >>> from langevin import targets
        >>> log_density = lambda theta, x: -0.5 * (x - theta).square().sum(-1)
        >>> target = targets.likelihood(log_density, prior=targets.priors.flat())
        >>> of_each_row(target, [torch.arange(4.0)[:, None]], torch.tensor([0, 3]), torch.zeros(1))
        tensor([[  0.],
                [-12.]])
    """
    parts = tuple(column[rows][:, None] for column in columns)
    batch = Batch(parts, len(columns[0]), per_chain=True)
    gradients = target.evaluate(position.repeat(len(rows), 1), batch).gradient
    if mode is None:
        return gradients
    return gradients - target.evaluate(mode.repeat(len(rows), 1), batch).gradient


def _check_batches(
    who: str, target: Any, data: Any, batch_size: Any, seed: Any, chains: Any, batches: Any
) -> tuple[Tensor, ...]:
    """Check the arguments of minibatch gradients; return the data's columns."""
    if isinstance(target, Target) and not target.needs_data:
        raise needs(who, "target", "a target with data", type(target).__name__)
    check_target(who, target, data)
    columns = target.as_columns(who, data)
    check_integer(who, "batch_size", batch_size, 1)
    if batch_size > len(columns[0]):
        condition = f"at most the {len(columns[0])} rows of the data"
        raise needs(who, "batch_size", condition, batch_size)
    check_seed(who, seed)
    check_chains(who, chains)
    if batches not in BATCHES:
        raise needs(who, "batches", f"one of {', '.join(BATCHES)}", batches)
    return columns


def _check_count(who: str, position: Tensor, drawn: Tensor) -> None:
    """Fail if the random numbers are for another number of chains than there are positions."""
    if len(drawn) != len(position):
        raise needs(who, "chains", f"{len(position)} chains, one for each position", len(drawn))


def _check_one_position(who: str, argument: str, position: Tensor) -> None:
    check_position(who, argument, position)
    if position.ndim != 1:
        raise needs(who, argument, "shape (dim,)", tuple(position.shape))


def control_variate(
    target: Target,
    data: Data,
    batch_size: int,
    mode: Tensor,
    *,
    seed: int,
    chains: range,
    batches: str = "reshuffled",
) -> GradientFn:
    """Estimate the gradient from `batch_size` rows, with their gradient at a mode as control.

    ``grad U~(theta) = grad U(mode) + g(theta; rows) - g(mode; rows)``, where g is the gradient of
    `minibatch` on the same rows. The estimate is unbiased for any centre and exact in the prior.
    Its variance is zero at the centre and grows like |theta - mode|^2, whereas that of `minibatch`
    stays of order N^2 / n. A step costs two minibatch gradients; the full gradient at the centre is
    computed once, here. The energy is that whose gradient this is: the full energy at the centre,
    plus the rows' estimate of the difference beyond first order.

    Control variates pay off where chains stay near one mode (many data, few parameters). Far from
    the centre they save less than the second gradient costs (docs/benchmarks/control_variates.md).

    Args:
        target: a target with data.
        data: its columns, each with N rows.
        batch_size: n, at most N.
        mode: the centre, (dim,), near the posterior mode: see `find_mode`.
        seed: of the rows, which are those of `minibatch`.
        chains: numbers of the chains.
        batches: as in `minibatch`.

    Reference: Baker, Fearnhead, Fox and Nemeth, "Control variates for stochastic gradient
    MCMC", 2019, equation 9.

    Example:
        >>> from langevin.targets import likelihood, priors
        >>> log_density = lambda theta, x: -0.5 * (x - theta) ** 2
        >>> target = likelihood(log_density, prior=priors.gaussian(std=1.0))
        >>> x, mode = torch.tensor([0.0, 1.0, 2.0, 6.0]), torch.tensor([2.0])
        >>> estimate = control_variate(target, x, 1, mode, seed=0, chains=range(2))
        >>> estimate(torch.tensor([[1.0], [3.0]]), 0).gradient  # exact, as it is linear in theta
        tensor([[-4.],
                [ 6.]])
    """
    who = "control_variate"
    data = _check_batches(who, target, data, batch_size, seed, chains, batches)
    _check_one_position(who, "mode", mode)
    centre = mode.detach().clone()
    plain = minibatch(target, data, batch_size, seed=seed, chains=chains, batches=batches)
    # The function alone, so that compiled code, which depends on what `evaluate` closes over, does
    # not depend on the seed.
    rough = plain.evaluate
    check_dim(who, "mode", target, len(centre))
    energy_there, at_centre = full(target, data)(centre[None], 0)
    if not torch.isfinite(at_centre).all():
        condition = "a position where the gradient over all data is finite"
        raise needs(who, "mode", condition, centre.tolist())

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        if position.shape[-1] != len(centre):
            condition = f"shape ({position.shape[-1]},), that of one position"
            raise needs("control_variate", "mode", condition, tuple(centre.shape))
        energy, gradient = rough(position, drawn)
        # Copies, not a view of one row: with the same arithmetic as for positions, both cancel to
        # the last bit.
        before, baseline = rough(centre.repeat(len(position), 1), drawn)
        slope = at_centre - baseline
        tilted = energy_there + (energy - before) + (slope * (position - centre)).sum(-1)
        return Evaluation(tilted, at_centre + (gradient - baseline))

    return GradientFn(plain.draw, evaluate)


def find_mode(
    target: Target,
    data: Data | None,
    init: Tensor,
    *,
    num_steps: int = 200,
    tolerance: float = 1e-2,
) -> Tensor:
    """Minimise the full energy by L-BFGS, for the centre of `control_variate`.

    Args:
        target: the target.
        data: its columns; None for a target without data.
        init: the initial position, (dim,).
        num_steps: at most so many steps.
        tolerance: stop when ``|grad U| <= tolerance * sqrt(N)``. One posterior standard deviation
            from the mode it is about ``sqrt(N)`` for columns of order 1, so the default is about a
            hundredth of a standard deviation.

    Returns:
        A position (dim,), with a warning if its gradient is still above the tolerance.
        `control_variate` is unbiased there too, only noisier.

    Example:
        >>> from langevin.targets import gaussian
        >>> target = gaussian([[1.0, 0.9], [0.9, 1.0]], mean=[1.0, 2.0])
        >>> find_mode(target, None, torch.zeros(2, dtype=torch.float64)).round(decimals=2)
        tensor([1., 2.], dtype=torch.float64)
    """
    who = "find_mode"
    _check_one_position(who, "init", init)
    check_integer(who, "num_steps", num_steps, 1)
    check_number(who, "tolerance", tolerance, "> 0", lambda v: v > 0)
    check_target(who, target, data)
    check_dim(who, "init", target, len(init))
    columns = None if data is None else target.as_columns(who, data)
    gradient_fn = full(target, columns)
    num_data = 1 if columns is None else len(columns[0])
    small = tolerance * num_data**0.5
    theta = init.detach().clone()
    search = torch.optim.LBFGS(
        [theta],
        max_iter=num_steps,
        tolerance_grad=small / len(theta) ** 0.5,  # torch compares the largest element
        # Energies of large data sets round to the same number long before the mode is reached.
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        energy, gradient = gradient_fn(theta.detach()[None], 0)
        theta.grad = gradient[0]
        return float(energy[0])

    search.step(closure)
    norm = float(gradient_fn(theta[None], 0).gradient.norm())
    if not math.isfinite(norm):
        found = f"a gradient of norm {norm} at {theta.tolist()}"
        raise ValueError(f"find_mode(init=...) led to {found}; start elsewhere")
    if norm > small:
        warnings.warn(
            f"find_mode() stopped after at most {num_steps} steps at a gradient of norm "
            f"{norm:.3g}, above tolerance * sqrt(N) = {small:.3g}; more num_steps or another init "
            "may help",
            stacklevel=2,
        )
    return theta


def in_metric(gradient_fn: GradientFn, metric: Metric, origin: Tensor) -> GradientFn:
    """Return the gradient with respect to y, ``θ = origin + R y``, at positions y (chains, dim).

    Example:
        >>> from langevin.targets import gaussian
        >>> from langevin.targets.metric import Diagonal
        >>> inner, widths = full(gaussian([[4.0]])), Diagonal(torch.tensor([2.0]))  # y has std 1
        >>> in_metric(inner, widths, torch.zeros(1))(torch.tensor([[3.0]]), 0).gradient
        tensor([[3.]])
    """
    inner, push, pull = gradient_fn.evaluate, metric.push, metric.pull

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        energy, gradient = inner(origin + push(position), drawn)
        return Evaluation(energy, pull(gradient))

    return GradientFn(gradient_fn.draw, evaluate)


def with_energy(gradient_fn: GradientFn, exact: GradientFn) -> GradientFn:
    """Return one estimate's gradient with the exact energy, for samplers that accept or reject.

    Both are evaluated at every step: a reference for small problems, not a way to save data.

    Example:
        >>> from langevin.targets import gaussian
        >>> exact, like = full(gaussian([[1.0]])), torch.tensor([[2.0]])
        >>> rough = noisy(exact, 1.0, seed=0, chains=range(1), like=like)
        >>> with_energy(rough, exact)(like, 0).energy
        tensor([2.])
    """
    inner, energy_of = gradient_fn.evaluate, exact.evaluate

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        return Evaluation(energy_of(position, ()).energy, inner(position, drawn).gradient)

    return GradientFn(gradient_fn.draw, evaluate)


def tolerant(gradient_fn: GradientFn) -> GradientFn:
    """Return the exact gradient, with an infinite energy for chains whose evaluation raises.

    If the target raises for all chains, so does this.

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
        """Return the evaluation, an error, and how many chains raised, found by bisection."""
        try:
            return inner(position, ()), None, 0
        except Exception as error:
            if len(position) == 1:
                nothing = torch.full_like(position, torch.nan)
                return Evaluation(position.new_full((1,), torch.inf), nothing), error, 1
        half = len(position) // 2
        first, one, few = attempt(position[:half])
        second, other, more = attempt(position[half:])
        both = Evaluation(*(torch.cat(parts) for parts in zip(first, second, strict=True)))
        return both, one or other, few + more

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        found, error, failed = attempt(position)
        if error is not None and failed == len(position):
            raise error
        return found

    return GradientFn(gradient_fn.draw, evaluate)


def noisy(
    gradient_fn: GradientFn, std: float, *, seed: int, chains: range, like: Tensor
) -> GradientFn:
    """Add N(0, std**2 I) to a gradient, as the paper does in sections 4.1 and 4.2.

    Args:
        gradient_fn: the gradient.
        std: standard deviation of the noise.
        seed: of the noise.
        chains: numbers of the chains.
        like: positions (chains, dim), of which length, dtype and device are used, not the values.

    Example:
        >>> from langevin.targets import gaussian
        >>> like, exact = torch.zeros(1, 2), full(gaussian(torch.eye(2)))
        >>> gradient = noisy(exact, 0.5, seed=0, chains=range(1), like=like)
        >>> torch.equal(gradient(like, 3).gradient, gradient(like, 3).gradient)  # same address
        True
    """
    if not isinstance(gradient_fn, GradientFn):
        condition = "a GradientFn, such as full(target) returns"
        raise needs("noisy", "gradient_fn", condition, gradient_fn, TypeError)
    if not isinstance(like, Tensor) or not like.is_floating_point() or like.ndim == 0:
        condition = "a floating-point tensor of shape (chains, dim)"
        raise needs("noisy", "like", condition, like, TypeError)
    check_dense("noisy", "like", like)
    check_seed("noisy", seed)
    check_chains("noisy", chains)
    std = check_number("noisy", "std", std, ">= 0", lambda v: v >= 0)
    inner = gradient_fn.evaluate  # the function alone, as in `control_variate`
    dim, dtype, device = like.shape[-1], like.dtype, like.device

    def draw(steps: range) -> Draws:
        at = streams(Purpose.GRADIENT, chains)
        noise = normal(seed, at, steps, dim, dtype=dtype, device=device)
        return noise, *gradient_fn.draw(steps)

    def evaluate(position: Tensor, drawn: Draws) -> Evaluation:
        _check_count("noisy", position, drawn[0])
        energy, exact = inner(position, drawn[1:])
        if exact.shape != drawn[0].shape:
            condition = f"positions of {exact.shape[-1]} elements"
            raise needs("noisy", "like", condition, drawn[0].shape[-1])
        return Evaluation(energy, exact + std * drawn[0])

    return GradientFn(draw, evaluate)


def compiled(gradient_fn: GradientFn, chains: int) -> GradientFn:
    """Return the same gradient in compiled code; unchanged if it cannot be compiled.

    Args:
        gradient_fn: the gradient.
        chains: how many positions the code evaluates per call; it takes other numbers in parts.

    Example:
        >>> from langevin.targets import gaussian
        >>> gradient = compiled(full(gaussian([[4.0]])), 2)
        >>> gradient(torch.tensor([[2.0], [1.0], [3.0]]), 0).gradient
        tensor([[0.5000],
                [0.2500],
                [0.7500]])
    """
    return GradientFn(gradient_fn.draw, CompiledEvaluation(gradient_fn.evaluate, chains))


class CompiledEvaluation:
    """Evaluate a gradient, recorded and compiled at the first call on a CPU; see `compiled`.

    Args:
        evaluate: that of a `GradientFn`.
        chains: how many positions the code evaluates per call.

    Example:
        >>> from langevin.targets import gaussian
        >>> evaluate = CompiledEvaluation(full(gaussian([[1.0]])).evaluate, chains=1)
        >>> evaluate(torch.tensor([[2.0]]), ()).gradient
        tensor([[2.]])
        >>> evaluate.has_changed()
        False
    """

    def __init__(self, evaluate: Callable[[Tensor, Draws], Evaluation], chains: int) -> None:
        """See the class."""
        self._evaluate, self._chains = evaluate, chains
        self._code: CompiledFunction | None = None
        self._has_tried = False

    def __call__(self, position: Tensor, drawn: Draws) -> Evaluation:
        """Return energy and gradient at `position`."""
        if not self._has_tried and position.is_cpu and current() is None:
            rows = torch.arange(self._chains) % len(position)
            example = tuple(tensor[rows] for tensor in drawn)
            with contextlib.suppress(UnrecordableError):
                self._code = CompiledFunction(self._evaluate, position[rows], example)
            self._has_tried = True
        if self._code is None:
            return self._evaluate(position, drawn)
        return Evaluation(*self._code(position, drawn))

    def has_changed(self) -> bool:
        """Return whether the target now computes something else than when it was recorded."""
        return self._code is not None and self._code.has_changed()
