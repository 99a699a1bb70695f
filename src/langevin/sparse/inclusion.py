"""Posterior inclusion probabilities: how sure it is, over draws, that a weight is not zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import check_number, needs
from langevin.store import Samples
from langevin.store.bank import SampleBank
from langevin.targets.priors import SpikeSlab

__all__ = ["Inclusion", "inclusion", "slab_share"]

_ELEMENTS_AT_ONCE = 2**20


def slab_share(prior: SpikeSlab, weight: Tensor) -> Tensor:
    """Return the probability that a weight of this value was drawn from the slab.

    ``λ N(w; 0, σ₁²) / (λ N(w; 0, σ₁²) + (1 - λ) N(w; 0, σ₀²))``, which is 1/2 at ``|w| = prior.threshold``.

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
        above: the share of draws with ``|w| >= prior.threshold``, the paper's rule draw by draw. Simple, and coarse: of n draws
            it is a multiple of 1/n.
        slab: the average of `slab_share` over the draws. The prior is a choice, spike or slab, and then a normal; given w, the
            probability of the slab is `slab_share`, so this average estimates the posterior probability of the slab itself, with a
            smaller error than `above`. It is that at temperature 1; of draws at another temperature it is a score.
        num_draws: how many draws were averaged.
    """

    above: Mapping[str, Tensor]
    slab: Mapping[str, Tensor]
    num_draws: int

    def masks(self, probability: float = 0.5) -> dict[str, Tensor]:
        """Return which weights have at least that probability of the slab: at 1/2 the median probability model."""
        check_number("Inclusion.masks", "probability", probability, "0 < probability <= 1", lambda v: 0 < v <= 1)
        return {name: share >= probability for name, share in self.slab.items()}

    @property
    def expected(self) -> float:
        """The expected number of weights from the slab."""
        return sum(float(share.sum()) for share in self.slab.values())


def inclusion(
    draws: SampleBank | Samples | Iterable[nn.Module], prior: SpikeSlab, *, names: Sequence[str] | None = None
) -> Inclusion:
    """Average over draws whether weights are not zero.

    Args:
        draws: a bank; the result of `langevin.sample` on the posterior of a module or on a `Model` (healthy chains
            count); or modules.
        prior: the spike-and-slab prior that the draws were sampled under.
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
    if not isinstance(prior, SpikeSlab):
        raise needs("inclusion", "prior", "a spike-and-slab prior, langevin.priors.spike_slab", prior, TypeError)
    above: dict[str, Tensor] = {}
    slab: dict[str, Tensor] = {}
    count = 0
    for weights in _weights(draws, names):
        for name, weight in weights.items():  # (draws, *shape)
            values = weight.double()
            above[name] = above.get(name, 0) + (values.abs() >= prior.threshold).double().sum(0)
            slab[name] = slab.get(name, 0) + slab_share(prior, values).sum(0)
        count += len(values)
    if not count:
        raise needs("inclusion", "draws", "at least one draw", draws)
    return Inclusion({name: total / count for name, total in above.items()}, {k: v / count for k, v in slab.items()}, count)


def _weights(draws: Any, names: Sequence[str] | None) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of a few draws at a time by name, (draws, *shape)."""
    if isinstance(draws, SampleBank):
        for k in range(len(draws)):
            state = {name: value for name, value in draws.state_dict(k).items() if isinstance(value, Tensor)}
            yield {name: value[None] for name, value in _chosen(state, names).items()}
    elif isinstance(draws, Samples):
        space = None if draws.target is None else draws.target.space
        if space is None or draws.kept != "positions":
            raise needs("inclusion", "draws", "positions of a target that knows names (Samples.with_target)", draws, TypeError)
        for positions in draws.healthy.reshape(-1, space.dim).split(max(1, _ELEMENTS_AT_ONCE // space.dim)):
            values = space.values(positions)
            chosen = _chosen({name: value[0] for name, value in values.items()}, names)
            yield {name: values[name] for name in chosen}
    elif isinstance(draws, Iterable) and not isinstance(draws, nn.Module | Tensor | str):
        for module in draws:
            if not isinstance(module, nn.Module):
                raise needs("inclusion", "draws", "modules, a SampleBank or Samples", module, TypeError)
            parameters = {name: value.detach() for name, value in module.named_parameters()}
            yield {name: value[None] for name, value in _chosen(parameters, names).items()}
    else:
        raise needs("inclusion", "draws", "modules, a SampleBank or Samples", draws, TypeError)


def _chosen(values: dict[str, Tensor], names: Sequence[str] | None) -> dict[str, Tensor]:
    if names is None:
        found = {name: value for name, value in values.items() if value.ndim >= 2 and value.is_floating_point()}
    elif unknown := [name for name in names if name not in values]:
        raise needs("inclusion", "names", f"names among {list(values)}", unknown)
    else:
        found = {name: values[name] for name in names}
    if not found:
        raise needs("inclusion", "names", f"names among {list(values)}, as none has two axes", names)
    return found
