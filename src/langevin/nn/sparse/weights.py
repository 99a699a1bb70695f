"""Which weights are not zero: counted layer by layer, or as posterior inclusion probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from langevin.checks import check_finite, check_number, needs
from langevin.nn.bank import SampleBank
from langevin.storage import Samples
from langevin.targets.priors import SpikeSlab

__all__ = [
    "Inclusion",
    "Kept",
    "Layer",
    "Sparsity",
    "check_spike_slab",
    "inclusion",
    "masks_of",
    "slab_share",
    "sparsity",
    "weights_of",
]

_ELEMENTS_AT_ONCE = 2**20

Kept: TypeAlias = SpikeSlab | float | Mapping[str, Tensor]
"""A spike-and-slab prior, a threshold, or masks by name; see `sparsity`."""

# ---- Counts


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
    """The layers of a network; `str` returns a table."""

    layers: tuple[Layer, ...]

    @property
    def weights(self) -> int:
        """Weights in all layers."""
        return sum(layer.weights for layer in self.layers)

    @property
    def kept(self) -> int:
        """Kept weights in all layers."""
        return sum(layer.kept for layer in self.layers)

    @property
    def ratio(self) -> float:
        """The share of weights that are kept, 0 to 1: the paper's sparsity ratio."""
        return self.kept / self.weights

    @property
    def compression(self) -> float:
        """How many times fewer weights are kept; infinite if none is."""
        return self.weights / self.kept if self.kept else float("inf")

    def __str__(self) -> str:
        """Return a line for each layer, and the total."""
        total = Layer("all", (), self.weights, self.kept)
        rows = [("layer", "shape", "weights", "kept", "ratio")]
        for a in (*self.layers, total):
            shape = " x ".join(map(str, a.shape))
            rows.append((a.name, shape, f"{a.weights:,}", f"{a.kept:,}", f"{a.ratio:.2%}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, f"{self.compression:.1f} times fewer weights"])


def sparsity(model: nn.Module, kept: Kept) -> Sparsity:
    """Count the connection weights that are kept, layer by layer.

    Weights are parameters of two axes or more; biases and the scales of norms do not count, as in
    the paper's table 3. A weight that is exactly zero is never kept.

    Args:
        model: the network.
        kept: which weights count as not zero. A spike-and-slab prior keeps those with
            ``|w| >= prior.threshold``, which more likely come from the slab; a number is the
            threshold itself; masks by name (from `Inclusion.masks` or `sparsify`) are used as they
            are.

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
    return Sparsity(
        tuple(Layer(name, tuple(w.shape), w.numel(), counts[name]) for name, w in weights.items())
    )


def weights_of(who: str, model: object) -> dict[str, Tensor]:
    """Return the connection weights of a module by name, a tied one once, detached."""
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", model, TypeError)
    named = model.named_parameters()
    found = {name: p.detach() for name, p in named if p.ndim >= 2 and p.numel()}
    if not found:
        what = "weights, that is parameters of two axes or more"
        raise needs(who, "model", what, type(model).__name__)
    return found


def masks_of(who: str, model: nn.Module, kept: Kept) -> dict[str, Tensor]:
    """Return which weights of a module are kept, by name; see `sparsity`."""
    weights = weights_of(who, model)
    for name, weight in weights.items():
        check_finite(who, "model", weight, f"{name}, ")
    if not isinstance(kept, Mapping):
        threshold = getattr(kept, "threshold", None)
        if isinstance(kept, int | float) and not isinstance(kept, bool):
            threshold = check_number(who, "kept", kept, ">= 0", lambda v: v >= 0)
        elif isinstance(kept, type) or not isinstance(threshold, float):
            what = "a spike-and-slab prior, a threshold, or masks by name"
            raise needs(who, "kept", what, kept, TypeError)
        return {name: (w.abs() >= threshold) & (w != 0) for name, w in weights.items()}
    if kept.keys() != weights.keys():
        raise needs(who, "kept", f"masks for {list(weights)}", list(kept))
    for name, weight in weights.items():
        mask = kept[name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != weight.shape:
            is_tensor = isinstance(mask, Tensor)
            shown = f"{mask.dtype} of shape {tuple(mask.shape)}" if is_tensor else mask
            raise needs(who, "kept", f"booleans of shape {tuple(weight.shape)} for {name!r}", shown)
    return {name: kept[name].to(weight.device) for name, weight in weights.items()}


# ---- Probabilities


def check_spike_slab(who: str, argument: str, prior: object) -> None:
    """Fail if `prior` is not a spike-and-slab prior."""
    if not isinstance(prior, SpikeSlab):
        what = "a spike-and-slab prior, langevin.priors.spike_slab"
        raise needs(who, argument, what, prior, TypeError)


def slab_share(prior: SpikeSlab, weight: Tensor) -> Tensor:
    """Return the probability that a weight of this value was drawn from the slab.

    ``λ N(w; 0, σ₁²) / (λ N(w; 0, σ₁²) + (1 - λ) N(w; 0, σ₀²))``, which is 1/2 at
    ``|w| = prior.threshold``.

    Example:
        >>> prior = SpikeSlab(slab_weight=0.1, slab_std=1.0, spike_std=0.01)
        >>> round(slab_share(prior, torch.tensor([prior.threshold])).item(), 3)
        0.5
    """
    return torch.sigmoid(0.5 * prior.precision_gap * weight * weight - prior.log_odds)


@dataclass(frozen=True)
class Inclusion:
    """Probabilities that weights are not zero, by name, in the weights' shapes (float64).

    Args:
        above: share of draws with ``|w| >= prior.threshold``, the paper's rule for each draw; a
            multiple of 1/n for n draws.
        slab: mean of `slab_share` over the draws. It estimates the posterior probability of the
            slab, with a smaller error than `above`, from draws at temperature 1; at other
            temperatures it is a score.
        num_draws: number of draws.
    """

    above: Mapping[str, Tensor]
    slab: Mapping[str, Tensor]
    num_draws: int

    def masks(self, probability: float = 0.5) -> dict[str, Tensor]:
        """Return which weights have at least this probability of the slab.

        At 1/2 this is the median probability model.
        """
        condition = "0 < probability <= 1"
        check_number("Inclusion.masks", "probability", probability, condition, lambda v: 0 < v <= 1)
        return {name: share >= probability for name, share in self.slab.items()}

    @property
    def expected(self) -> float:
        """The expected number of weights from the slab."""
        return sum(float(share.sum()) for share in self.slab.values())


def inclusion(
    draws: SampleBank | Samples | Iterable[nn.Module],
    prior: SpikeSlab,
    *,
    names: Sequence[str] | None = None,
) -> Inclusion:
    """Estimate over draws the probabilities that weights are not zero.

    Args:
        draws: a bank; the result of `langevin.sample` on the posterior of a module or on a `Model`
            (healthy chains count); or modules.
        prior: the spike-and-slab prior of the posterior.
        names: of which parameters; by default all of two axes or more.

    Example:
        >>> prior = SpikeSlab(slab_weight=0.1, slab_std=1.0, spike_std=0.01)
        >>> draws = [nn.Linear(2, 1, bias=False).requires_grad_(False) for _ in range(2)]
        >>> for draw, value in zip(draws, (0.001, 0.5)):
        ...     _ = draw.weight.copy_(torch.tensor([[value, 0.5]]))
        >>> found = inclusion(draws, prior)
        >>> found.above["weight"]
        tensor([[0.5000, 1.0000]], dtype=torch.float64)
    """
    check_spike_slab("inclusion", "prior", prior)
    above: dict[str, Tensor] = {}
    slab: dict[str, Tensor] = {}
    count = 0
    for weights in _weights_of_draws(draws, names):
        for name, weight in weights.items():  # (draws, *shape)
            values = weight.double()
            above[name] = above.get(name, 0) + (values.abs() >= prior.threshold).double().sum(0)
            slab[name] = slab.get(name, 0) + slab_share(prior, values).sum(0)
        count += len(values)
    if not count:
        raise needs("inclusion", "draws", "at least one draw", draws)
    return Inclusion(
        {name: total / count for name, total in above.items()},
        {name: total / count for name, total in slab.items()},
        count,
    )


def _weights_of_draws(draws: object, names: Sequence[str] | None) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of a few draws at a time by name, (draws, *shape)."""
    what = "modules, a SampleBank or Samples"
    if isinstance(draws, SampleBank):
        for k in range(len(draws)):
            state = draws.state_dict(k).items()
            yield _chosen({name: v[None] for name, v in state if isinstance(v, Tensor)}, names)
    elif isinstance(draws, Samples):
        space = None if draws.target is None else draws.target.space
        if space is None or draws.kept != "positions":
            what = "positions of a target with named parameters (Samples.with_target)"
            raise needs("inclusion", "draws", what, draws, TypeError)
        at_once = max(1, _ELEMENTS_AT_ONCE // space.dim)
        for positions in draws.healthy.reshape(-1, space.dim).split(at_once):
            yield _chosen(space.values(positions), names)
    elif isinstance(draws, Iterable) and not isinstance(draws, nn.Module | Tensor | str):
        for module in draws:
            if not isinstance(module, nn.Module):
                raise needs("inclusion", "draws", what, module, TypeError)
            named = module.named_parameters()
            yield _chosen({name: value.detach()[None] for name, value in named}, names)
    else:
        raise needs("inclusion", "draws", what, draws, TypeError)


def _chosen(values: Mapping[str, Tensor], names: Sequence[str] | None) -> dict[str, Tensor]:
    """Return the values, (draws, *shape), of these names, or of all with two axes or more."""
    if names is None:
        names = [name for name, v in values.items() if v.ndim >= 3 and v.is_floating_point()]
        if not names:
            what = f"names among {list(values)}, as none has two axes"
            raise needs("inclusion", "names", what, None)
    if not names or any(name not in values for name in names):
        raise needs("inclusion", "names", f"names among {list(values)}", names)
    return {name: values[name] for name in names}
