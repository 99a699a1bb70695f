"""A look that leaves no trace: modes, buffers, gradients, settings and random states are put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import getstate, setstate
from typing import Any

import torch
from numpy.random import get_state, set_state
from torch import nn

from langevin.optim import LangevinOptimizer

__all__ = ["steady", "untouched"]


@contextlib.contextmanager
def untouched(model: nn.Module, loss_fn: Any, optimizer: LangevinOptimizer, *, with_parameters: bool) -> Iterator[None]:
    """Put everything back that running the model, or a training step whose `optimizer.step` does nothing, may change.

    Args:
        model: the user's.
        loss_fn: the user's; its modes and buffers too, where it is a module.
        optimizer: its settings, and what it has seen of gradients.
        with_parameters: whether values of parameters are put back as well, which takes a copy of them.
    """
    modules = [part for root in (model, loss_fn) if isinstance(root, nn.Module) for part in root.modules()]
    modes = [(module, module.training) for module in modules]
    buffers = [(module, name, tensor) for module in modules for name, tensor in module._buffers.items() if tensor is not None]
    parameters = list({**dict.fromkeys(model.parameters()), **{p: None for g in optimizer.param_groups for p in g["params"]}})
    values = [tensor.detach().clone() for tensor in (*(b for *_, b in buffers), *(parameters if with_parameters else ()))]
    gradients = [parameter.grad for parameter in parameters]
    groups = [dict(group) for group in optimizer.param_groups]
    seen = optimizer._watches, optimizer._spreads
    optimizer._watches, optimizer._spreads = {}, {}
    python, numpy = getstate(), get_state()  # noqa: NPY002 (saved, not drawn from)
    devices = sorted({p.device.index or 0 for p in parameters if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices), torch.enable_grad():
            yield
    finally:
        setstate(python)
        set_state(numpy)  # noqa: NPY002
        optimizer._watches, optimizer._spreads = seen
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.update(saved)
        for module, training in modes:
            module.training = training
        for module, name, tensor in buffers:
            module._buffers[name] = tensor
        with torch.no_grad():
            for tensor, value in zip((*(b for *_, b in buffers), *(parameters if with_parameters else ())), values, strict=True):
                tensor.copy_(value)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


@contextlib.contextmanager
def steady(*roots: Any, but: tuple[type[nn.Module], ...] = ()) -> Iterator[None]:
    """Put modules into evaluation mode for a while, but for those of some classes."""
    modules = [part for root in roots if isinstance(root, nn.Module) for part in root.modules() if not isinstance(part, but)]
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
