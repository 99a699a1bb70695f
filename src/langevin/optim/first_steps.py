"""What is wrong with the gradients of an optimizer from the start, said once: none at all, or one that is no number.

Looked at in the steps 0, 1, 2, 4, 8 and so on, and in every 256th: a NaN stays in the parameters, so a later look finds it too.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import level_of_caller
from langevin.trust import TrustWarning

__all__ = ["look"]

EVERY = 256
"""Steps between two looks in a long run: less than .4 % of the steps read the gradients once more."""

_said: weakref.WeakKeyDictionary[torch.optim.Optimizer, set[str]] = weakref.WeakKeyDictionary()


def look(optimizer: torch.optim.Optimizer, gradients: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Warn of a step without any gradient, and of gradients that are NaN or infinite; called before anything moves.

    Args:
        optimizer: one of this package.
        gradients: parameters that have one, each with it; of a sharded one, this rank's part.
    """
    step = max(group["step"] for group in optimizer.param_groups)
    if step & (step - 1) and step % EVERY:
        return
    groups = [group for group in optimizer.param_groups if float(group["lr"]) > 0]
    if not groups:
        return  # at lr 0 nothing moves
    given = list(gradients)
    if not given:
        count = sum(len(group["params"]) for group in groups)
        _warn(
            optimizer,
            "none",
            f"step {step} has no gradient for any of the {count} parameters, so nothing moves and all draws are the same. "
            "Is backward() called, on a loss of this very model, and are its parameters those that the optimizer was built with?",
        )
    elif (bad := next((parameter for parameter, gradient in given if not _is_finite(gradient)), None)) is not None:
        _warn(
            optimizer,
            "not finite",
            f"the gradient of {_name(groups, bad)} is not finite in step {step}: from here on its draws are NaN. Look at the "
            "loss: inputs, logs of 0, a learning rate that is too large. langevin.lint(model, loss_fn, optimizer, batch) helps.",
        )


def _is_finite(gradient: Tensor) -> bool:
    """Say whether all elements are finite: by their sum, one pass, and one by one only where that is not (it may overflow)."""
    if gradient.is_meta or bool(torch.isfinite(gradient.sum())):
        return True
    return bool(torch.isfinite(gradient).all())


def _name(groups: Sequence[dict[str, Any]], bad: Tensor) -> str:
    for number, group in enumerate(groups):
        for k, parameter in enumerate(group["params"]):
            if parameter is bad:
                names = group.get("param_names")
                shape = tuple(parameter.shape)
                return f"{names[k]!r}, shape {shape}," if names else f"parameter {k} of group {number}, shape {shape},"
    return "a parameter"


def _warn(optimizer: torch.optim.Optimizer, kind: str, text: str) -> None:
    said = _said.setdefault(optimizer, set())
    if kind not in said:
        said.add(kind)
        warnings.warn(f"{type(optimizer).__name__}: {text}", TrustWarning, stacklevel=level_of_caller())
