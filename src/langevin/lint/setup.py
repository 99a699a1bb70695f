"""A user's model, loss and batch, called as the training loop calls them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import needs
from langevin.lint.rows import map_tensors, num_rows, taken

__all__ = ["Setup", "class_axis", "logits_of"]

_LABELS = ("labels", "label", "y", "targets", "target")


@dataclass(frozen=True)
class Setup:
    """What `lint` was given.

    Args:
        model: the user's.
        loss_fn: called as ``loss_fn(model(x), y)``, or ``loss_fn(model, batch)``; None is ``model(**batch).loss``.
        batch: a pair (x, y), or whatever loss_fn takes.
        takes_model: whether loss_fn takes (model, batch).
    """

    model: nn.Module
    loss_fn: Callable[..., Any] | None
    batch: Any
    takes_model: bool

    @property
    def size(self) -> int:
        """The number of rows of the batch."""
        return num_rows(self.batch) or 0

    def run(self, batch: Any = None) -> tuple[Tensor, Any]:
        """Return the loss of a batch and the model's outputs, None where the loss did not call the model as a whole."""
        batch = self.batch if batch is None else batch
        if not self.takes_model:
            x, y = batch
            output = self.model(**x) if isinstance(x, Mapping) else self.model(x)
            return self._scalar(self.loss_fn(output, y)), output  # type: ignore[misc]
        seen: list[Any] = []
        with self._hook(lambda output: seen.append(output)):
            loss = self._loss_of_model(batch)
        return loss, seen[-1] if seen else None

    def gradient(self, loss: Tensor, parameters: list[Tensor]) -> list[Tensor | None]:
        """Return the gradient of a loss; None for parameters that it does not know."""
        if not loss.requires_grad:
            return [None] * len(parameters)
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))

    def labels(self) -> Tensor | None:
        """Return y: the second part of a pair, or what a dict has under one of the usual names."""
        if isinstance(self.batch, tuple | list) and len(self.batch) == 2:
            found = self.batch[1]
        elif isinstance(self.batch, Mapping):
            found = next((self.batch[name] for name in _LABELS if name in self.batch), None)
        else:
            found = None
        return found if isinstance(found, Tensor) and found.ndim else None

    def law(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss of outputs and labels of our own, at most as many as there are rows in the batch.

        Where the loss takes the model, it is called with a batch whose labels are exchanged, and the model's outputs are on their
        way out; where the model computes its loss itself, there is no way in.
        """
        if not self.takes_model:
            return self._scalar(self.loss_fn(output, y))  # type: ignore[misc]
        if self.loss_fn is None:
            raise ValueError("the model computes its loss itself")
        batch = taken(self.batch, [row % self.size for row in range(len(y))])
        if isinstance(batch, Mapping):
            batch[next(name for name in _LABELS if name in batch)] = y  # type: ignore[index]
        else:
            batch = type(batch)((batch[0], y))
        with self._hook(lambda found: _exchanged(found, output)):
            return self._loss_of_model(batch)

    def apart(self, shift: float = 0.0) -> Tensor:
        """Return the loss of outputs that are cut off from the parameters, and moved: only a penalty knows the parameters then."""

        def cut(tensor: Tensor) -> Tensor:
            return tensor.detach() * (1 + shift) + shift if tensor.is_floating_point() else tensor  # what is positive stays so

        if not self.takes_model:
            x, y = self.batch
            output = self.model(**x) if isinstance(x, Mapping) else self.model(x)
            return self._scalar(self.loss_fn(map_tensors(output, cut), y))  # type: ignore[misc]
        if self.loss_fn is None:
            raise ValueError("the model computes its loss itself")
        with self._hook(lambda output: map_tensors(output, cut)):
            return self._loss_of_model(self.batch)

    def _loss_of_model(self, batch: Any) -> Tensor:
        if self.loss_fn is not None:
            return self._scalar(self.loss_fn(self.model, batch))
        found = self.model(**batch)
        loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
        if loss is None:
            raise needs("lint", "loss_fn", "a loss, since model(**batch) has none (labels in the batch?)", None)
        return self._scalar(loss)

    @contextlib.contextmanager
    def _hook(self, function: Callable[[Any], Any]) -> Iterator[None]:
        handle = self.model.register_forward_hook(lambda module, inputs, output: function(output))
        try:
            yield
        finally:
            handle.remove()

    @staticmethod
    def _scalar(loss: Any) -> Tensor:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shown = tuple(loss.shape) if isinstance(loss, Tensor) else loss
            raise needs("lint", "loss_fn", 'a function that returns one number, the mean over the batch (reduction="mean")', shown)
        return loss.reshape(())


def logits_of(output: Any) -> Tensor | None:
    """Return the tensor among a model's outputs that a loss compares with labels."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else None


def _exchanged(found: Any, output: Tensor) -> Any:
    if isinstance(found, Tensor):
        return output
    new = copy.copy(found)
    if isinstance(new, Mapping):
        new["logits"] = output  # type: ignore[index]
    else:
        new.logits = output
    return new


def class_axis(output: Tensor, y: Tensor) -> int | None:
    """Return the axis of the classes: the one that labels lack; None where outputs and labels do not fit that way."""
    if output.ndim != y.ndim + 1 or y.is_floating_point():
        return None
    for axis in (1, output.ndim - 1):  # (n, classes, ...) as torch has it, or classes last
        if output.shape[:axis] + output.shape[axis + 1 :] == y.shape:
            return axis
    return None
