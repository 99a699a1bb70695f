"""Optimizers that a framework has wrapped: accelerate, Lightning and Fabric."""

from __future__ import annotations

from typing import Any

__all__ = ["unwrap_optimizer"]

_INNER = ("optimizer", "_optimizer")  # accelerate and DeepSpeed; Lightning and Fabric have both


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of accelerate, Lightning or Fabric.

    Other objects are returned unchanged. A learning rate scheduler also has an
    attribute `optimizer`, but no parameter groups, so it is not unwrapped.

    Example:
        >>> import torch, langevin as lv
        >>> from types import SimpleNamespace
        >>> opt = lv.optim.SGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100)
        >>> wrapped = SimpleNamespace(optimizer=opt, param_groups=opt.param_groups, step=opt.step)
        >>> unwrap_optimizer(wrapped) is opt, unwrap_optimizer(opt) is opt
        (True, True)
    """
    seen = {id(optimizer)}
    while _is_optimizer(optimizer):
        found = (getattr(optimizer, name, None) for name in _INNER)
        inner = next((one for one in found if _is_optimizer(one) and id(one) not in seen), None)
        if inner is None:
            break
        seen.add(id(inner))
        optimizer = inner
    return optimizer


def _is_optimizer(value: Any) -> bool:
    """Return whether an object has the attributes of an optimizer."""
    is_instance = not isinstance(value, type)
    return is_instance and hasattr(value, "param_groups") and callable(getattr(value, "step", None))
