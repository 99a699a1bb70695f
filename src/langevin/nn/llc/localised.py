"""The target ``exp(-n β L_n(w) - γ/2 |w - w*|^2)`` around a model's present parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from langevin.checks import check_columns, check_function, check_integer, needs
from langevin.targets import Target
from langevin.targets.automatic import EnergyTarget, LikelihoodTarget
from langevin.targets.likelihoods import Likelihood
from langevin.targets.priors import Prior
from langevin.targets.space import Space

__all__ = ["LossFn", "LossLike", "Problem"]

LossFn = Callable[[Tensor, Tensor], Tensor]
"""``(output, y) -> (n,)``, the loss of every row."""

LossLike: TypeAlias = str | Likelihood | LossFn | None

_MAX_ELEMENTS = 2**24  # elements of a layer's output, over all draws, that are computed at once


def _squared_error(output: Tensor, y: Tensor) -> Tensor:
    if output.shape != y.shape:  # (n,) against (n, 1) would broadcast to (n, n)
        expected = f"the shape of the model's outputs, {tuple(output.shape)}"
        raise needs("llc", "y", expected, tuple(y.shape))
    return (output - y).square().flatten(1).mean(-1) if y.ndim > 1 else (output - y).square()


def _cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="none")


LOSSES: dict[str, LossFn] = {"mse": _squared_error, "cross_entropy": _cross_entropy}


def _loss_function(loss: LossLike) -> LossFn:
    """Return the loss of every row from a name, a likelihood or a function."""
    what = f"one of {sorted(LOSSES)}, a likelihood, or a function (output, y) -> (n,)"
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise needs("llc", "loss", what, loss)
        return LOSSES[loss]
    if isinstance(loss, Likelihood):
        return lambda output, y: -loss.log_likelihood(output, y)
    check_function("llc", "loss", loss, what, 2)
    assert loss is not None
    return loss


@dataclass(frozen=True)
class _Localisation(Prior):
    """``γ/2 |w - w*|^2``, not normalised."""

    centre: Tensor
    precision: float

    @override
    def energy(self, position: Tensor) -> Tensor:
        return 0.5 * self.precision * (position - self.centre).square().sum(-1)

    @override
    def gradient(self, position: Tensor) -> Tensor:
        return self.precision * (position - self.centre)


class Problem:
    """A loss as a function of a model's parameters, and their present values w*.

    Args:
        model: maps x to outputs, row by row; without data, returns the loss when called without
            arguments.
        loss: loss of every row.
        data: (x, y).
        num_data: n, without data.
    """

    def __init__(
        self, model: nn.Module, loss: LossLike, data: object, num_data: int | None
    ) -> None:
        """Check the arguments and compute the loss at w*."""
        self.space: Space = Space.of(model, who="llc")
        self._model = copy.deepcopy(model)
        self.start: Tensor = self.space.flatten(model)
        self.columns: tuple[Tensor, ...] = ()
        self._loss: LossFn | None = None
        if data is None:
            if loss is not None:
                what = "(x, y) with a loss; with neither, the model returns the loss itself"
                raise needs("llc", "data", what, None)
            self.num_data = check_integer("llc", "num_data", num_data, 2)
        else:
            if num_data is not None:
                raise needs("llc", "num_data", "None with data, which has the rows", num_data)
            self._loss, self.columns = _loss_function(loss), check_columns("llc", data)
            if len(self.columns) != 2:
                raise needs("llc", "data", "two columns (x, y)", f"{len(self.columns)} columns")
            self.num_data = check_integer("llc", "data", len(self.columns[0]), 2)
        self.loss_at_start = self._loss_at_start()

    def target(self, n_beta: float, localisation: float) -> Target:
        """Return the energy ``n β L_n(w) + γ/2 |w - w*|^2``, with γ the localisation."""
        pull, dim = _Localisation(self.start, localisation), self.space.dim
        if not self.columns:
            return EnergyTarget(lambda w: n_beta * self.loss_fn(w) + pull.energy(w), 0.0, dim)
        beta = n_beta / self.num_data
        return LikelihoodTarget(lambda w, *rows: -beta * self.rows_fn(w, *rows), pull, 0.0, dim)

    def loss_fn(self, position: Tensor) -> Tensor:
        """Return L at ONE position (dim,), without data."""
        return torch.func.functional_call(self._model, self.space.unflatten(position), ())

    def rows_fn(self, position: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of every row at ONE position (dim,)."""
        assert self._loss is not None
        parameters = self.space.unflatten(position)
        return self._loss(torch.func.functional_call(self._model, parameters, (x,)), y)

    def watch(self, draws: int) -> Callable[[Tensor], Tensor]:
        """Return a function of one position that computes L_n over all data and ``|w - w*|^2``.

        Args:
            draws: positions that are evaluated at once, which limits the rows at once.
        """
        parts: Sequence[tuple[Tensor, ...]] = [()]
        if self.columns:
            width = max(math.prod(self.columns[0].shape[1:]), math.isqrt(self.space.dim))
            rows = max(1, _MAX_ELEMENTS // (draws * width))
            parts = list(zip(*(column.split(rows) for column in self.columns), strict=True))

        def watched(position: Tensor) -> Tensor:
            total = sum(
                self.rows_fn(position, *part).sum() if part else self.loss_fn(position)
                for part in parts
            )
            mean = total / self.num_data if self.columns else total
            return torch.stack([torch.as_tensor(mean), (position - self.start).square().sum()])

        return watched

    def _loss_at_start(self) -> float:
        function, shape = (self.rows_fn, (self.num_data,)) if self.columns else (self.loss_fn, ())
        try:
            with torch.no_grad():
                values = function(self.start, *self.columns)
        except (TypeError, RuntimeError, IndexError) as error:
            how = "x" if self.columns else "no arguments: without data it returns the loss"
            raise needs("llc", "model", f"a module that takes {how}", str(error)) from error
        if not isinstance(values, Tensor) or values.shape != torch.Size(shape):
            shown = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            if self.columns:
                raise needs("llc", "loss", f"one number per row, ({self.num_data},)", shown)
            raise needs("llc", "model", "one number, shape ()", shown)
        value = float(values.double().mean())
        if not math.isfinite(value):
            raise needs("llc", "model", "a finite loss at its present parameters", value)
        return value
