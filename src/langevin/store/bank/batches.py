"""Calls of a model on batches, and BatchNorm statistics.

The inputs of one call are a tensor, `model(x)`; a tuple or list, `model(*x)`; or a dict, `model(**x)`. A loader is anything that
can be iterated over again and again; of a batch that is a tuple or list the first entry is the inputs and the rest, labels, is
not looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from langevin.checks import needs

__all__ = ["call", "check_loader", "each_tensor", "estimate_norms", "inputs_of", "norms_of", "tensors_of", "with_values"]

_UPDATE = ("SampleBank.update_bn", "loader")
_KINDS = "a tensor, a tuple or dict of tensors, or a loader of them"


def check_loader(who: str, argument: str, loader: Any) -> None:
    """Fail for what cannot be read at all, or once only."""
    if isinstance(loader, Iterator):
        raise needs(who, argument, "to be read once per draw, no iterator", loader, TypeError)
    if isinstance(loader, type) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise needs(who, argument, _KINDS, loader, TypeError)
    if not isinstance(loader, Tensor) and getattr(loader, "ndim", 1) == 0:  # an array of one element says that it can be iterated
        raise needs(who, argument, _KINDS, loader, TypeError)


def norms_of(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers with BatchNorm statistics, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is not None}


def estimate_norms(module: nn.Module, loader: Iterable[Any]) -> None:
    """Reset the BatchNorm statistics of a module in eval mode and average them over the loader's batches."""
    norms, batches = norms_of(module), 0
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
        norm.train()
    if isinstance(loader, Tensor) and loader.ndim == 0:
        raise needs(*_UPDATE, "batches", loader, TypeError)
    for batch in loader:
        with torch.no_grad():
            call(module, with_values(*_UPDATE, inputs_of(*_UPDATE, batch)))
        batches += 1
    if not batches:
        raise needs(*_UPDATE, "at least one batch", loader)
    for name, norm in norms.items():
        for value in (norm.running_mean, norm.running_var):
            if value is not None and not value.isfinite().all():
                raise needs(*_UPDATE, f"inputs with finite statistics ({name} has none)", value[~value.isfinite()][0].item())


def inputs_of(who: str, argument: str, batch: Any) -> Any:
    """Return what a loader's batch has for the model; the rest, labels, is not looked at."""
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(inputs, Tensor | Mapping | tuple | list):
        raise needs(who, argument, _KINDS, type(inputs), TypeError)
    return inputs


def with_values(who: str, argument: str, inputs: Any) -> Any:
    """Return the inputs of a call, or fail when a tensor among them is on the meta device."""
    for tensor in tensors_of(inputs):
        if tensor.is_meta:
            raise needs(who, argument, "tensors with values", f"one of shape {tuple(tensor.shape)} on the meta device", TypeError)
    return inputs


def call(module: nn.Module, inputs: Any) -> Any:
    """Call a module, on the device of its first parameter or buffer."""
    device = next((tensor.device for tensor in chain(module.parameters(), module.buffers())), None)
    inputs = each_tensor(inputs, lambda tensor: tensor if device is None else tensor.to(device))
    if isinstance(inputs, Tensor):
        return module(inputs)
    return module(**inputs) if isinstance(inputs, dict) else module(*inputs)


def each_tensor(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to each tensor among the inputs of a call."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        return {name: change(value) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    return tuple(change(value) if isinstance(value, Tensor) else value for value in inputs)


def tensors_of(inputs: Any) -> list[Tensor]:
    """Return the tensors among the inputs of a call."""
    values = [inputs] if isinstance(inputs, Tensor) else inputs.values() if isinstance(inputs, Mapping) else inputs
    return [value for value in values if isinstance(value, Tensor)]
