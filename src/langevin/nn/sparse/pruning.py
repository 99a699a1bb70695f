"""Set small weights to zero, and remove the units that are dead then."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from langevin.checks import check_function, needs
from langevin.nn.batches import evaluation_mode
from langevin.nn.sparse.files import save
from langevin.nn.sparse.weights import Kept, Sparsity, masks_of, sparsity, weights_of

__all__ = ["Pruned", "Units", "chain_of", "shrink", "sparsify"]

_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.LogSigmoid, nn.Tanhshrink, nn.Identity, nn.Dropout),
)


@dataclass(frozen=True)
class Units:
    """Which units are alive: booleans for inputs, every hidden layer, and outputs (always).

    Example:
        >>> hidden = torch.tensor([True, True, False])
        >>> print(Units((torch.tensor([True, False]), hidden, torch.tensor([True]))))
        units alive: 1-2-1 of 2-3-1
    """

    alive: tuple[Tensor, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many units are alive: the layer sizes of `shrink`."""
        return tuple(int(part.sum()) for part in self.alive)

    def __str__(self) -> str:
        """Return the sizes after and before."""
        before = "-".join(str(len(part)) for part in self.alive)
        return f"units alive: {'-'.join(map(str, self.sizes))} of {before}"


@dataclass(frozen=True)
class Pruned:
    """A network with zeros.

    Args:
        model: the pruned copy, with the same shapes.
        masks: which elements of each weight are kept, by name.
        sparsity: the table of its layers.
        units: which inputs and hidden units are alive; None if the model is not a Sequential of
            linear layers and elementwise activations, where only weights were set to zero.
        before: what `evaluate` returned for the model.
        after: what `evaluate` returned for the pruned copy.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> masks = {"0.weight": torch.eye(4, 3) > 0, "2.weight": torch.ones(1, 4) > 0}
        >>> pruned = sparsify(net, masks)
        >>> pruned.units.sizes, pruned.sparsity.kept
        ((3, 3, 1), 6)
    """

    model: nn.Module
    masks: dict[str, Tensor]
    sparsity: Sparsity
    units: Units | None
    before: object = None
    after: object = None

    def __str__(self) -> str:
        """Return the table, the units that are alive, and the evaluations."""
        lines = [str(self.sparsity)]
        if self.units is not None:
            lines.append(str(self.units))
        if self.before is not None:
            lines.append(f"evaluation: {self.before} before, {self.after} after")
        return "\n".join(lines)

    def shrink(self) -> nn.Sequential:
        """Return a smaller dense network with the same outputs: `langevin.nn.sparse.shrink`."""
        return shrink(self.model)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the pruned state to one file, without zeros: `langevin.nn.sparse.save`."""
        return save(path, self.model)


@torch.no_grad()
def sparsify(
    model: nn.Module, kept: Kept, *, evaluate: Callable[[nn.Module], object] | None = None
) -> Pruned:
    """Set the weights that are not kept to zero, in a copy, and remove dead units.

    In a Sequential (nested or not) of Flatten, Linear and elementwise activations, a hidden unit
    without inputs is a constant, which is folded into the next bias, and a unit without outputs has
    no effect: their weights are set to zero too. Outputs in evaluation mode change by rounding
    only, and the table counts the result. Of any other model only weights are set to zero.

    Args:
        model: the network; it is not changed.
        kept: a spike-and-slab prior, a threshold, or masks by name, as in `sparsity`.
        evaluate: called with the model and with the pruned copy, in evaluation mode; for instance
            the accuracy on a test set.

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
    weights = weights_of("sparsify", pruned)
    for name, weight in weights.items():
        weight.mul_(masks[name])
    chain, units, before, after = chain_of(pruned), None, None, None
    if chain is not None:
        _remove_dead(chain)
        units = _units_of(chain)
    masks = {name: weight != 0 for name, weight in weights.items()}
    if evaluate is not None:
        with evaluation_mode(model, pruned):
            before, after = evaluate(model), evaluate(pruned)
    return Pruned(pruned, masks, sparsity(pruned, masks), units, before, after)


# ---- Chains of layers


@dataclass(frozen=True)
class Chain:
    """Consecutive linear layers with the modules around them."""

    before: tuple[nn.Module, ...]  # ahead of the first layer: flattening
    layers: tuple[nn.Linear, ...]
    after: tuple[tuple[nn.Module, ...], ...]  # after each layer: elementwise; after the last, any


def chain_of(model: nn.Module) -> Chain | None:
    """Return the linear layers of a Sequential with elementwise activations; None otherwise."""
    modules = _leaves(model)
    places = [k for k, module in enumerate(modules) if type(module) is nn.Linear]
    layers = [module for module in modules if type(module) is nn.Linear]
    if not layers:
        return None
    before = tuple(modules[: places[0]])
    if any(not isinstance(module, nn.Flatten | nn.Identity | nn.Dropout) for module in before):
        return None
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    is_tied = len(set(map(id, parameters))) < len(parameters)
    if is_tied or any(a.out_features != b.in_features for a, b in pairwise(layers)):
        return None
    after = [tuple(modules[start + 1 : stop]) for start, stop in pairwise([*places, len(modules)])]
    if any(not isinstance(module, _ELEMENTWISE) for group in after[:-1] for module in group):
        return None
    return Chain(before, tuple(layers), tuple(after))


def _leaves(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, nn.Sequential):
        return [leaf for child in model for leaf in _leaves(child)]
    return [model]


@torch.no_grad()
def _remove_dead(chain: Chain) -> None:
    """Set weights without effect to zero, in place; outputs stay the same up to rounding.

    A hidden unit without inputs is a constant ``f(b)``. If the next layer has a bias, the constant
    is added to it and the unit's outgoing weights are set to zero (without a bias, a unit whose
    constant is not zero stays). A unit without outputs needs neither weights nor bias. One sweep
    forward and one back suffice.
    """
    groups = zip(chain.layers[:-1], chain.after[:-1], chain.layers[1:], strict=True)
    for layer, after, following in groups:
        constant = (layer.weight == 0).all(1)
        value = torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias
        for module in after:
            if not isinstance(module, nn.Dropout):  # the identity in evaluation mode
                value = copy.deepcopy(module)(value)  # a copy: no hook sees this call
        if following.bias is None:
            constant &= value == 0
        else:  # in double precision: one rounding, however many units are folded
            share = following.weight[:, constant].double() @ value[constant].double()
            following.bias.copy_(following.bias.double() + share)
        following.weight[:, constant] = 0
    for layer, following in reversed(list(pairwise(chain.layers))):
        unused = (following.weight == 0).all(0)
        layer.weight[unused] = 0
        if layer.bias is not None:
            layer.bias[unused] = 0


def _units_of(chain: Chain) -> Units:
    """Return which units are alive: those that the next layer uses."""
    used = tuple((layer.weight.detach() != 0).any(0) for layer in chain.layers)
    last = chain.layers[-1].weight
    return Units((*used, torch.ones(len(last), dtype=torch.bool, device=last.device)))


class Columns(nn.Module):
    """Selects columns of its input, (..., features)."""

    def __init__(self, columns: Tensor) -> None:
        """Store the columns' numbers."""
        super().__init__()
        self.columns: Tensor
        self.register_buffer("columns", columns)

    def forward(self, x: Tensor) -> Tensor:
        """Return the columns."""
        return x.index_select(-1, self.columns)


@torch.no_grad()
def shrink(model: nn.Module) -> nn.Sequential:
    """Return a smaller dense network with the same outputs, without unused inputs and units.

    Args:
        model: a Sequential (nested or not) of Flatten, Linear and elementwise activations; dead
            units are found first, as in `sparsify`, in a copy.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)
        >>> _ = model[2].weight[:, 1:].zero_()
        >>> shrink(model)[0]
        Linear(in_features=4, out_features=1, bias=True)
    """
    chain = chain_of(copy.deepcopy(model)) if isinstance(model, nn.Module) else None
    if chain is None:
        what = "a Sequential of Flatten, Linear and elementwise activations"
        raise needs("shrink", "model", what, type(model).__name__, TypeError)
    _remove_dead(chain)
    # A layer needs at least one unit, even if it does nothing.
    alive = [part.nonzero()[:, 0] for part in _units_of(chain).alive]
    alive = [part if len(part) else part.new_zeros(1) for part in alive]
    modules: list[nn.Module] = list(chain.before)
    if len(alive[0]) < chain.layers[0].in_features:
        modules.append(Columns(alive[0]))
    groups = zip(chain.layers, chain.after, alive[:-1], alive[1:], strict=True)
    for layer, after, columns, rows in groups:
        modules += [_cut(layer, rows, columns), *after]
    return nn.Sequential(*modules).train(model.training)


def _cut(layer: nn.Linear, rows: Tensor, columns: Tensor) -> nn.Linear:
    weight, sizes = layer.weight, (len(columns), len(rows))
    settings = {"bias": layer.bias is not None, "device": weight.device, "dtype": weight.dtype}
    made: nn.Linear = nn.utils.skip_init(nn.Linear, *sizes, **settings)
    made.weight.copy_(weight[rows][:, columns])
    if layer.bias is not None:
        made.bias.copy_(layer.bias[rows])
    return made
