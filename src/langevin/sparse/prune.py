"""From a network with small weights to one with zeros, and without what the zeros leave dead."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import check_function
from langevin.sparse.chain import Units, chain_of, remove_dead, shrink, units_of
from langevin.sparse.files import save
from langevin.sparse.measure import Sparsity, masks_of, sparsity, weights_of

__all__ = ["Pruned", "sparsify"]


@dataclass(frozen=True)
class Pruned:
    """A network with zeros.

    Args:
        model: the pruned copy, of the same shapes.
        masks: by a weight's name, which elements are kept.
        sparsity: the table of its layers.
        units: which inputs and hidden units are alive; None for a model that is no Sequential of linear layers and elementwise
            activations, where only weights were set to zero.
        before: what `evaluate` said of the model as it was given.
        after: and of the pruned copy.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> pruned = sparsify(net, {"0.weight": torch.eye(4, 3) > 0, "2.weight": torch.ones(1, 4) > 0})
        >>> pruned.units.sizes, pruned.sparsity.kept
        ((3, 3, 1), 6)
    """

    model: nn.Module
    masks: dict[str, Tensor]
    sparsity: Sparsity
    units: Units | None
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        """Show the table, the units that are alive, and the evaluations."""
        lines = [str(self.sparsity), *([] if self.units is None else [str(self.units)])]
        return "\n".join([*lines, *([] if self.before is None else [f"evaluation: {self.before} before, {self.after} after"])])

    def shrink(self) -> nn.Sequential:
        """Return a smaller dense network with the same outputs: `langevin.sparse.shrink`."""
        return shrink(self.model)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the pruned state to one file, without the zeros: `langevin.sparse.save`."""
        return save(path, self.model)


@torch.no_grad()
def sparsify(model: nn.Module, kept: Any, *, evaluate: Callable[[nn.Module], Any] | None = None) -> Pruned:
    """Set to zero the weights that are not kept, in a copy, and remove what is dead then.

    In a Sequential (nested or not) of Flatten, Linear and elementwise activations a hidden unit without inputs is a constant, which
    is folded into the next bias, and a unit without outputs is nothing: their weights are zero in the copy too. That changes no
    output in evaluation mode, but by rounding, and is counted in the table. Of any other model only weights are set to zero.

    Args:
        model: it is not touched.
        kept: a spike-and-slab prior, a threshold, or masks by name, as in `sparsity`.
        evaluate: is called with the model, and with the pruned copy, in evaluation mode; for instance the accuracy on a test set.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).requires_grad_(False)
        >>> _ = model[0].weight.copy_(torch.tensor([[0.5, -0.01], [0.01, 0.0]]))
        >>> _ = model[2].weight.fill_(1.0)
        >>> print(sparsify(model, 0.02))
        layer     shape  weights  kept   ratio
        0.weight  2 x 2        4     1  25.00%
        2.weight  1 x 2        2     1  50.00%
        all                    6     2  33.33%
        3.0 times fewer weights
        units alive: 1-1-1 of 2-2-1
    """
    masks = masks_of("sparsify", model, kept)
    if evaluate is not None:
        check_function("sparsify", "evaluate", evaluate, "None or a function of a module", count=1)
    pruned = copy.deepcopy(model)
    for name, weight in weights_of("sparsify", pruned).items():
        weight.mul_(masks[name])
    chain = chain_of(pruned)
    if chain is not None:
        remove_dead(chain)
    masks = {name: weight != 0 for name, weight in weights_of("sparsify", pruned).items()}
    units = None if chain is None else units_of(chain)
    before, after = (None, None) if evaluate is None else (_evaluated(evaluate, model), _evaluated(evaluate, pruned))
    return Pruned(pruned, masks, sparsity(pruned, masks), units, before, after)


def _evaluated(evaluate: Callable[[nn.Module], Any], model: nn.Module) -> Any:
    """Evaluate in evaluation mode, and put each module back into the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        return evaluate(model.eval())
    finally:
        for module, mode in modes.items():
            module.training = mode
