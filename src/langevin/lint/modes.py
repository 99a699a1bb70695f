"""Layers that make the loss another function at every call, or couple the rows of a batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from langevin.lint.report import Finding
from langevin.lint.rows import differ, taken, tensors, tolerance
from langevin.lint.setup import Setup
from langevin.lint.untouched import steady

__all__ = ["coupled_rows", "random_outputs"]


def random_outputs(setup: Setup) -> list[Finding]:
    """Run the model twice on the same batch."""
    with torch.no_grad():
        one, other = setup.run(), setup.run()
    size = differ(one, other)
    if size <= tolerance(one):
        return []
    drops = [
        name
        for name, module in setup.model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training
    ]
    what = f"dropout is on ({', '.join(drops[:3])}{', ...' if len(drops) > 3 else ''})" if drops else "a layer draws random numbers"
    return [
        Finding(
            "dropout",
            f"Two calls of the model on the same batch differ by {size:.2g} of the outputs' size: {what}. The draws then follow "
            "the mean loss over masks, which is biased, with the masks' noise as heat on top; the posterior has its own noise.",
            "Call model.eval() before the loop (gradients work in evaluation mode), or set p=0.",
            size,
        )
    ]


def coupled_rows(setup: Setup) -> list[Finding]:
    """Compare the first half of a batch's outputs with those it has beside a copy of itself, instead of the second half."""
    half = setup.size // 2
    if half == 0:
        return []
    with torch.no_grad(), steady(setup.model, but=(_BatchNorm,)):  # what is random was looked at by itself
        _, whole = setup.run(taken(setup.batch, list(range(2 * half))))
        _, again = setup.run(taken(setup.batch, [*range(half)] * 2))
    firsts = [[tensor[:half] for tensor in tensors(tree) if tensor.ndim and len(tensor) == 2 * half] for tree in (whole, again)]
    size = differ(*firsts)
    if size <= tolerance(whole, *firsts, list(setup.model.parameters())):
        return []
    layers = [name for name, module in setup.model.named_modules() if isinstance(module, _BatchNorm) and module.training]
    what = f"BatchNorm is in training mode ({layers[0]}{', ...' if len(layers) > 1 else ''})" if layers else "the model mixes rows"
    return [
        Finding(
            "batchnorm",
            f"The outputs of a row change by {size:.2g} of their size with the other rows of its batch: {what}. The "
            "loss of a batch is then no mean over data, and U another function in every batch.",
            "Call model.eval() so that the running statistics are used, fixed, or take GroupNorm or LayerNorm.",
            size,
        )
    ]
