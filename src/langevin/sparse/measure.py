"""How sparse a network is: the weights that count as not zero, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import check_finite, check_number, needs

__all__ = ["Layer", "Masks", "Sparsity", "masks_of", "sparsity", "threshold_of", "weights_of"]

Masks = Mapping[str, Tensor]
"""By a weight's name: which of its elements are kept, booleans of its shape."""


@dataclass(frozen=True)
class Layer:
    """The weights of one layer.

    Example:
        >>> Layer("0.weight", (5, 4), weights=20, kept=5).ratio
        0.25
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    kept: int

    @property
    def ratio(self) -> float:
        """The share of weights that are kept, 0 to 1."""
        return self.kept / self.weights


@dataclass(frozen=True)
class Sparsity:
    """The layers of a network; as text, a table."""

    layers: tuple[Layer, ...]

    @property
    def weights(self) -> int:
        """Weights in all layers."""
        return sum(layer.weights for layer in self.layers)

    @property
    def kept(self) -> int:
        """Weights that are kept, in all layers."""
        return sum(layer.kept for layer in self.layers)

    @property
    def ratio(self) -> float:
        """The share of weights that are kept, 0 to 1: the paper's sparsity ratio."""
        return self.kept / self.weights

    @property
    def compression(self) -> float:
        """How many times fewer weights are kept; infinite when none is."""
        return self.weights / self.kept if self.kept else float("inf")

    def __str__(self) -> str:
        """Show a line for each layer, and their sum."""
        rows = [("layer", "shape", "weights", "kept", "ratio")]
        rows += [(a.name, " x ".join(map(str, a.shape)), f"{a.weights:,}", f"{a.kept:,}", f"{a.ratio:.2%}") for a in self.layers]
        rows += [("all", "", f"{self.weights:,}", f"{self.kept:,}", f"{self.ratio:.2%}")]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([*lines, f"{self.compression:.1f} times fewer weights"])


def sparsity(model: nn.Module, kept: Any) -> Sparsity:
    """Count the connection weights that are kept, layer by layer.

    Weights are parameters of two axes or more; biases and the scales of norms are no connections and do not count, as in the
    paper's table 3. A weight that is exactly zero is never kept.

    Args:
        model: the network.
        kept: which weights count as not zero. A spike-and-slab prior keeps those with ``|w| >= prior.threshold``, which are
            likelier drawn from the slab; a number is the threshold itself; masks by name (from `Inclusion.masks` or `sparsify`)
            say it outright.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).requires_grad_(False)
        >>> _ = model[0].weight.copy_(torch.tensor([[0.5, -0.01], [0.0, -0.3]]))
        >>> _ = model[2].weight.fill_(1.0)
        >>> print(sparsity(model, 0.02))
        layer     shape  weights  kept    ratio
        0.weight  2 x 2        4     2   50.00%
        2.weight  1 x 2        2     2  100.00%
        all                    6     4   66.67%
        1.5 times fewer weights
    """
    masks, weights = masks_of("sparsity", model, kept), weights_of("sparsity", model)
    counts = {name: int((masks[name] & (weight != 0)).sum()) for name, weight in weights.items()}
    return Sparsity(tuple(Layer(name, tuple(w.shape), w.numel(), counts[name]) for name, w in weights.items()))


def weights_of(who: str, model: Any) -> dict[str, Tensor]:
    """Return the connection weights of a module by name, a tied one once, without their history."""
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", model, TypeError)
    found = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.ndim >= 2 and parameter.numel()}
    if not found:
        raise needs(who, "model", "weights, that is parameters of two axes or more", type(model).__name__)
    return found


def threshold_of(who: str, given: Any) -> float:
    """Return the threshold of a prior that has one, or a number that is one."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return check_number(who, "kept", given, ">= 0", lambda v: v >= 0)
    threshold = getattr(given, "threshold", None)
    if isinstance(given, type) or not isinstance(threshold, float):
        raise needs(who, "kept", "a spike-and-slab prior, a threshold, or masks by name", given, TypeError)
    return threshold


def masks_of(who: str, model: nn.Module, kept: Any) -> dict[str, Tensor]:
    """Return which weights of a module are kept, by name."""
    weights = weights_of(who, model)
    for name, weight in weights.items():
        check_finite(who, "model", weight, f"{name}, ")
    if not isinstance(kept, Mapping):
        threshold = threshold_of(who, kept)
        return {name: (weight.abs() >= threshold) & (weight != 0) for name, weight in weights.items()}
    if kept.keys() != weights.keys():
        raise needs(who, "kept", f"masks for {list(weights)}", list(kept))
    for name, weight in weights.items():
        mask = kept[name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != weight.shape:
            found = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else mask
            raise needs(who, "kept", f"booleans of shape {tuple(weight.shape)} for {name!r}", found)
    return {name: kept[name].to(weight.device) for name, weight in weights.items()}
