"""The last layer of a network by itself, and what the frozen rest makes of the data: sampling it costs what the layer costs."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from langevin.checks import check_integer, needs
from langevin.targets.inputs import arguments, as_inputs, rows

__all__ = ["LastLayer", "last_layer"]


class LastLayer(NamedTuple):
    """A network cut in two."""

    head: nn.Linear  # a copy of the last layer, trainable
    features: Tensor  # what the rest feeds into it, (n, ..., in_features)


def last_layer(model: nn.Module, x: Any, *, batch_size: int = 1024) -> LastLayer:
    """Cut a network before its last linear layer, and run what comes before on the data, once.

    The rest is frozen as it is, in evaluation mode: ``head(features)`` are the outputs of ``model.eval()``. So
    ``Posterior(head, ...)`` with ``data=(features, y)`` is the posterior of the last layer alone. The model itself is not changed.
    New inputs go the same way: ``last_layer(model, x_new).features``.

    Args:
        model: any module whose output is that of the `nn.Linear` it calls last; no other part may use that layer's weights.
        x: inputs of n rows: a tensor, a tuple of tensors for ``model(*x)``, or a dict of them for ``model(**x)``.
        batch_size: rows at a time.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> head, features = last_layer(model, torch.ones(10, 4))
        >>> head, features.shape
        (Linear(in_features=8, out_features=3, bias=True), torch.Size([10, 8]))
    """
    who = "last_layer"
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", model, TypeError)
    check_integer(who, "batch_size", batch_size, 1)
    rows(who, x, 0, 1)  # refuses what has no rows
    size = len(as_inputs(who, x)[0][0])
    model = copy.deepcopy(model).eval()
    calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        calls.append((layer, given[0] if given else named["input"], output))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    parts, head = [], None
    for start in range(0, size, batch_size):
        calls.clear()
        by_place, by_name = arguments((rows(who, x, start, start + batch_size),))
        with torch.no_grad():
            output = model(*by_place, **by_name)
        head, features = _cut(who, model, calls, output)
        if len(features) != min(batch_size, size - start):
            raise needs(who, "model", "one row of features for each row of inputs", tuple(features.shape))
        parts.append(features)
    assert head is not None
    for hook in hooks:
        hook.remove()
    return LastLayer(head.requires_grad_(True), torch.cat(parts))


def _cut(who: str, model: nn.Module, calls: list[tuple[nn.Linear, Tensor, Tensor]], output: Any) -> tuple[nn.Linear, Tensor]:
    """Return the layer called last and what it was given, or fail when that is not all that the output depends on it by."""
    name = type(model).__name__
    if not calls:
        raise needs(who, "model", "an nn.Linear that it calls", f"{name}, which calls none")
    head, features, last = calls[-1]
    called = next(name for name, layer in model.named_modules() if layer is head)
    if not isinstance(output, Tensor) or output.shape != last.shape or not torch.equal(output, last):
        found = f"an output of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise needs(who, "model", f"the output of the linear layer that it calls last, {called!r}", f"{found} that is another")
    times = sum(layer is head for layer, _, _ in calls)
    if times > 1:
        raise needs(who, "model", "a last layer that is called once", f"{called!r}, called {times} times")
    weights = {id(parameter) for parameter in head.parameters()}
    others = {id(p) for part in model.modules() if part is not head for p in part.parameters(recurse=False)}
    if weights & others:
        raise needs(who, "model", "a last layer whose weights no other part has", f"{called!r}, which is tied to another")
    return head, features
