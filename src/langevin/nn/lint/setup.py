"""A user's model, loss and batch, called as the training loop calls them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from langevin.checks import needs
from langevin.nn.trees import Tree, map_tensors, num_rows, take_rows, tensors
from langevin.optim import LangevinOptimizer

__all__ = [
    "Setup",
    "class_axis",
    "relative_difference",
    "tolerance",
]

_LABELS = ("labels", "label", "y", "targets", "target")


def tolerance(*values: Tree) -> float:
    """Return the relative rounding error to allow: the root of the largest machine epsilon."""
    epsilons = [torch.finfo(t.dtype).eps for t in tensors(values) if t.is_floating_point()]
    return max(epsilons, default=torch.finfo(torch.float64).eps) ** 0.5


def relative_difference(one: Tree, other: Tree) -> float:
    """Return the largest difference between two trees' floating-point tensors, relative to them."""
    worst = 0.0
    for a, b in zip(tensors(one), tensors(other), strict=False):
        if a.is_floating_point() and a.shape == b.shape and a.numel():
            size = float(torch.maximum(a.abs(), b.abs()).max())
            worst = max(worst, float((a - b).abs().max()) / size if size > 0 else 0.0)
    return worst


# ---- Outputs and labels


def _with_logits(output: Tree, logits: Tensor) -> Tree:
    if isinstance(output, Tensor):
        return logits
    new = copy.copy(output)
    if isinstance(new, Mapping):
        new["logits"] = logits  # type: ignore[index]
    else:
        new.logits = logits
    return new


def class_axis(output: Tensor, y: Tensor) -> int | None:
    """Return the axis of classes, which labels lack; None if shapes do not fit that way."""
    if output.ndim != y.ndim + 1 or y.is_floating_point():
        return None
    for axis in (1, output.ndim - 1):  # (n, classes, ...) as in torch, or classes last
        if output.shape[:axis] + output.shape[axis + 1 :] == y.shape:
            return axis
    return None


# ---- Calls


@dataclass(frozen=True)
class Setup:
    """The arguments of `lint`.

    Args:
        model: the user's model.
        loss_fn: called as ``loss_fn(model(x), y)`` or ``loss_fn(model, batch)``; None for
            ``model(**batch).loss``.
        optimizer: the user's optimizer.
        batch: a pair (x, y), or what loss_fn takes.
        takes_model: whether loss_fn takes (model, batch).
    """

    model: nn.Module
    loss_fn: Callable[..., Tree] | None
    optimizer: LangevinOptimizer
    batch: Tree
    takes_model: bool

    @property
    def size(self) -> int:
        """The number of rows of the batch."""
        return num_rows(self.batch) or 0

    @property
    def num_data(self) -> int:
        """The optimizer's num_data."""
        return int(self.optimizer.param_groups[0]["num_data"])

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and the loss if it is a module."""
        return [root for root in (self.model, self.loss_fn) if isinstance(root, nn.Module)]

    @property
    def parameters(self) -> list[Tensor]:
        """The optimizer's parameters."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @cached_property
    def sampled(self) -> dict[Tensor, str]:
        """The names of the optimizer's parameters that require gradients."""
        owners = reversed(self.modules)
        names = {id(p): name for root in owners for name, p in root.named_parameters()}
        return {
            p: names.get(id(p), f"a parameter of shape {tuple(p.shape)}")
            for p in self.parameters
            if p.requires_grad
        }

    def run(
        self, batch: Tree = None, change: Callable[[Tree], Tree] = lambda output: output
    ) -> tuple[Tensor, Tree]:
        """Return the loss of a batch and the outputs, None if the loss did not call the model.

        `change` is applied to the outputs before the loss uses them.
        """
        batch = self.batch if batch is None else batch
        if not self.takes_model:
            x, y = batch
            output = change(self.model(**x) if isinstance(x, Mapping) else self.model(x))
            return self._loss_of_output(output, y), output
        seen: list[Tree] = []

        def hook(module: nn.Module, inputs: Tree, output: Tree) -> Tree:
            seen.append(change(output))
            return seen[-1]

        handle = self.model.register_forward_hook(hook)
        try:
            loss = self._loss_of_model(batch)
        finally:
            handle.remove()
        return loss, seen[-1] if seen else None

    def gradient(
        self, loss: Tensor, parameters: list[Tensor] | None = None, *, keep: bool = False
    ) -> list[Tensor | None]:
        """Return the gradient; None for parameters without one. `keep` retains the graph."""
        parameters = list(self.sampled) if parameters is None else parameters
        if not loss.requires_grad:
            return [None] * len(parameters)
        return list(torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=keep))

    def repeated_loss(self, times: int) -> Tensor:
        """Return the loss of the batch repeated, or of its outputs if the model rejects that."""
        rows = list(range(self.size)) * times
        try:
            return self.run(take_rows(self.batch, rows))[0]
        except Exception:
            if self.takes_model:
                raise
            _, output = self.run()
            return self._loss_of_output(take_rows(output, rows), take_rows(self.batch[1], rows))

    def labels(self) -> Tensor | None:
        """Return y: the second part of a pair, or the value of a dict under a usual name."""
        found = None
        if isinstance(self.batch, tuple | list) and len(self.batch) == 2:
            found = self.batch[1]
        elif isinstance(self.batch, Mapping):
            found = next((self.batch[name] for name in _LABELS if name in self.batch), None)
        return found if isinstance(found, Tensor) and found.ndim else None

    def loss_at(self, output: Tensor | Tree, y: Tensor) -> Tensor:
        """Return the loss of synthetic outputs and labels, at most as many rows as in the batch.

        A loss that takes the model is called with a batch whose labels are replaced, and a hook
        replaces the model's outputs. A model that computes its own loss cannot be tested.
        """
        if not self.takes_model:
            return self._loss_of_output(output, y)
        if self.loss_fn is None:
            raise ValueError("the model computes its loss itself")
        batch = take_rows(self.batch, [row % self.size for row in range(len(y))])
        if isinstance(batch, Mapping):
            batch[next(name for name in _LABELS if name in batch)] = y  # type: ignore[index]
        else:
            batch = type(batch)((batch[0], y))
        return self.run(batch, lambda found: _with_logits(found, output))[0]

    def detached_loss(self, shift: float = 0.0, *, are_probabilities: bool = False) -> Tensor:
        """Return the loss of detached, shifted outputs: only a penalty has a gradient then."""

        def cut(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            if are_probabilities:
                return tensor.detach() * (1 - shift / 2) + shift / 4
            return tensor.detach() * (1 + shift) + shift  # positive values stay positive

        return self.run(change=lambda output: map_tensors(output, cut))[0]

    def _loss_of_output(self, output: Tree, y: Tree) -> Tensor:
        assert self.loss_fn is not None
        return _scalar(self.loss_fn(output, y))

    def _loss_of_model(self, batch: Tree) -> Tensor:
        if self.loss_fn is not None:
            return _scalar(self.loss_fn(self.model, batch))
        found = self.model(**batch)
        loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
        if loss is None:
            what = "a loss, since model(**batch) has none (labels in the batch?)"
            raise needs("lint", "loss_fn", what, None)
        return _scalar(loss)


def _scalar(loss: Tree) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = tuple(loss.shape) if isinstance(loss, Tensor) else loss
        what = 'a function that returns one number, the batch mean (reduction="mean")'
        raise needs("lint", "loss_fn", what, shown)
    return loss.reshape(())
