"""The density ``exp(-n β L_n(w) - γ/2 |w - w*|^2)`` around a model's present parameters, as a target of `sample`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from langevin.checks import check_columns, check_function, check_integer, needs
from langevin.space import Space
from langevin.targets import Target
from langevin.targets.automatic import differentiate, per_chain, posterior_energy
from langevin.targets.base import Batch, Evaluation
from langevin.targets.likelihoods import Likelihood
from langevin.targets.priors import Prior

__all__ = ["LossFn", "Localised", "Problem", "as_loss"]

LossFn = Callable[[Tensor, Tensor], Tensor]
"""``(output, y) -> (n,)``, the loss of every row."""

_NUMBERS = 2**24  # of a layer's output, for all draws of a block at once: rows beyond that are taken in turn


def _squared_error(output: Tensor, y: Tensor) -> Tensor:
    if output.shape != y.shape:  # (n,) against (n, 1) would broadcast to (n, n)
        raise needs("llc", "y", f"the shape of the model's outputs, {tuple(output.shape)}", tuple(y.shape))
    return (output - y).square().flatten(1).mean(-1) if y.ndim > 1 else (output - y).square()


def _cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="none")


LOSSES: dict[str, LossFn] = {"mse": _squared_error, "cross_entropy": _cross_entropy}


def as_loss(loss: Any) -> LossFn:
    """Return the loss of that name; a likelihood becomes its negative logarithm, and a function passes through."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise needs("llc", "loss", f"one of {sorted(LOSSES)}, a likelihood, or a function of (output, y)", loss)
        return LOSSES[loss]
    if isinstance(loss, Likelihood) and not isinstance(loss, type):
        return lambda output, y: -loss.log_likelihood(output, y)
    check_function("llc", "loss", loss, "a loss of every row: a name, a likelihood, or a function of (output, y)", 2)
    return loss


@dataclass(frozen=True)
class Around(Prior):
    """``γ/2 |w - w*|^2``, which holds the chains near w*; not normalised."""

    centre: Tensor
    precision: float

    @override
    def energy(self, position: Tensor) -> Tensor:
        return 0.5 * self.precision * (position - self.centre).square().sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return self.precision * (position - self.centre)


class Localised(Target):
    """The energy ``n β L_n(w) + γ/2 |w - w*|^2``."""

    def __init__(self, problem: Problem, n_beta: float, localisation: float) -> None:
        """See `Problem.localised`."""
        self.space: Space = problem.space
        self.dim: int = problem.space.dim
        self.needs_data: bool = bool(problem.columns)
        self.energy_at_start: float = n_beta * problem.loss_at_start
        self._problem, self._n_beta, self._around = problem, n_beta, Around(problem.start, localisation)

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if batch is not None:
            weight = self._n_beta / self._problem.num_data  # β: posterior_energy sums over all n rows
            return posterior_energy(lambda w, *rows: -weight * self._problem.rows_fn(w, *rows), self._around, position, batch)
        energy, gradient = differentiate(
            lambda leaf: self._n_beta * per_chain("llc", "model", self._problem.loss_fn, (0,), leaf), position
        )
        return Evaluation(energy + self._around.energy(position), gradient + self._around.gradient(position))


class Problem:
    """A loss of a model's parameters, and where they are now.

    Args:
        model: maps x to outputs, row by row; without data, its call without arguments returns the loss, one number.
        loss: of every row.
        data: (x, y).
        num_data: n, where there are no data.
    """

    def __init__(self, model: nn.Module, loss: Any, data: Any, num_data: int | None) -> None:
        """See the class."""
        self.space: Space = Space.of(model, who="llc")
        self._model = copy.deepcopy(model)
        self.start: Tensor = self.space.flatten(model)
        self.columns: tuple[Tensor, ...] = ()
        self._loss: LossFn | None = None
        if data is None:
            if loss is not None:
                raise needs(
                    "llc", "data", "the columns (x, y) beside a loss; without both, the model's own value is the loss", None
                )
            self.num_data = check_integer("llc", "num_data", num_data, 2)
        else:
            if num_data is not None:
                raise needs("llc", "num_data", "None beside data, whose rows are counted", num_data)
            self._loss, self.columns = as_loss(loss), check_columns("llc", data)
            if len(self.columns) != 2:
                raise needs("llc", "data", "two columns (x, y)", f"{len(self.columns)} columns")
            self.num_data = check_integer("llc", "data", len(self.columns[0]), 2)
        self.loss_at_start = self._checked()

    def loss_fn(self, position: Tensor) -> Tensor:
        """Return L at ONE position (dim,), where there are no data."""
        return torch.func.functional_call(self._model, self.space.unflatten(position), ())

    def rows_fn(self, position: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of every row at ONE position (dim,)."""
        assert self._loss is not None
        return self._loss(torch.func.functional_call(self._model, self.space.unflatten(position), (x,)), y)

    def localised(self, n_beta: float, localisation: float) -> Localised:
        """Return the target ``exp(-n β L_n(w) - γ/2 |w - w*|^2)``."""
        return Localised(self, n_beta, localisation)

    def watch(self, draws: int) -> Callable[[Tensor], Tensor]:
        """Return the function of one position that gives L_n over all data and ``|w - w*|^2``, for `draws` positions at a time."""
        parts: Sequence[tuple[Tensor, ...]] = [()]
        if self.columns:
            width = max(math.prod(self.columns[0].shape[1:]), math.isqrt(self.space.dim))
            rows = max(1, _NUMBERS // (draws * width))
            parts = list(zip(*(column.split(rows) for column in self.columns), strict=True))

        def watched(position: Tensor) -> Tensor:
            total = sum((self.rows_fn(position, *part).sum() if part else self.loss_fn(position)) for part in parts)
            mean = total / self.num_data if self.columns else total
            return torch.stack([torch.as_tensor(mean), (position - self.start).square().sum()])

        return watched

    def _checked(self) -> float:
        """Return the loss at w*, or say what is wrong with the model, the loss or the data."""
        shape = (self.num_data,) if self.columns else ()
        with torch.no_grad():
            try:
                values = self.rows_fn(self.start, *self.columns) if self.columns else self.loss_fn(self.start)
            except (TypeError, RuntimeError, IndexError) as error:
                how = "x" if self.columns else "no arguments: without data its value is the loss"
                raise needs("llc", "model", f"a module that takes {how}", str(error)) from error
        if not isinstance(values, Tensor) or values.shape != torch.Size(shape):
            shown = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            name, what = ("loss", f"one number per row, ({self.num_data},)") if self.columns else ("model", "one number, shape ()")
            raise needs("llc", name, what, shown)
        value = float(values.double().mean())
        if not math.isfinite(value):
            raise needs("llc", "model", "a finite loss at its present parameters", value)
        return value
