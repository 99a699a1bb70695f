"""Layers that follow each other: which hidden units are dead, and a network without them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from langevin.checks import needs

__all__ = ["Chain", "Columns", "Units", "chain_of", "remove_dead", "shrink", "units_of"]

_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Identity, nn.Dropout),
)


@dataclass(frozen=True)
class Chain:
    """Linear layers in a row, and what lies around them."""

    before: tuple[nn.Module, ...]  # ahead of the first layer: flattening
    layers: tuple[nn.Linear, ...]
    after: tuple[tuple[nn.Module, ...], ...]  # for each layer: elementwise modules behind it; behind the last, any


@dataclass(frozen=True)
class Units:
    """Which units are alive: booleans for the inputs, for every hidden layer, and for the outputs, which always are.

    Example:
        >>> import torch
        >>> print(Units((torch.tensor([True, False]), torch.tensor([True, True, False]), torch.tensor([True]))))
        units alive: 1-2-1 of 2-3-1
    """

    alive: tuple[Tensor, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many units are alive: the sizes of the network that is left."""
        return tuple(int(part.sum()) for part in self.alive)

    def __str__(self) -> str:
        """Show what is left of what was."""
        return f"units alive: {'-'.join(map(str, self.sizes))} of {'-'.join(str(len(part)) for part in self.alive)}"


def chain_of(model: nn.Module) -> Chain | None:
    """Return the linear layers of a (nested) Sequential with elementwise activations between them; None for any other model."""
    modules = list(_flat(model))
    places = [place for place, module in enumerate(modules) if type(module) is nn.Linear]
    layers = [module for module in modules if type(module) is nn.Linear]
    if not layers or any(not isinstance(module, nn.Flatten | nn.Identity | nn.Dropout) for module in modules[: places[0]]):
        return None
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    if len(set(map(id, parameters))) < len(parameters) or any(a.out_features != b.in_features for a, b in pairwise(layers)):
        return None
    after = [tuple(modules[start + 1 : stop]) for start, stop in pairwise([*places, len(modules)])]
    if any(not isinstance(module, _ELEMENTWISE) for group in after[:-1] for module in group):
        return None
    return Chain(tuple(modules[: places[0]]), tuple(layers), tuple(after))


def _flat(model: nn.Module) -> list[nn.Module]:
    return [inner for child in model for inner in _flat(child)] if isinstance(model, nn.Sequential) else [model]


@torch.no_grad()
def remove_dead(chain: Chain) -> None:
    """Set to zero, in place, what cannot matter; outputs stay the same, to rounding, in evaluation mode.

    A hidden unit without inputs is a constant ``f(b)``. Where the next layer has a bias the constant is added to it and the unit's
    outgoing weights are not needed any more (where it has none and the constant is not zero, the unit stays). A unit without
    outputs needs neither weights nor bias. The first sweep goes forward, the second back, and then nothing is left to remove.
    """
    for layer, after, following in zip(chain.layers[:-1], chain.after[:-1], chain.layers[1:], strict=True):
        constant = (layer.weight == 0).all(1)
        value = _activation(after, torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias)
        if following.bias is None:
            constant &= value == 0
        else:
            # In double precision: one rounding, however many units are folded.
            share = following.weight[:, constant].double() @ value[constant].double()
            following.bias.copy_(following.bias.double() + share)
        following.weight[:, constant] = 0
    for layer, following in reversed(list(pairwise(chain.layers))):
        unused = (following.weight == 0).all(0)
        layer.weight[unused] = 0
        if layer.bias is not None:
            layer.bias[unused] = 0


def _activation(modules: tuple[nn.Module, ...], values: Tensor) -> Tensor:
    for module in modules:
        if not isinstance(module, nn.Dropout):  # in evaluation mode it does nothing
            values = copy.deepcopy(module)(values)  # an activation in place would change the bias, a hook would see this call
    return values


def units_of(chain: Chain) -> Units:
    """Return which units are alive, that is used by the next layer."""
    used = tuple((layer.weight.detach() != 0).any(0) for layer in chain.layers)
    last = chain.layers[-1].weight
    return Units((*used, torch.ones(len(last), dtype=torch.bool, device=last.device)))


class Columns(nn.Module):
    """Takes some columns of its input, (..., features)."""

    def __init__(self, columns: Tensor) -> None:
        """Take those columns."""
        super().__init__()
        self.columns: Tensor
        self.register_buffer("columns", columns)

    def forward(self, x: Tensor) -> Tensor:
        """Return them."""
        return x.index_select(-1, self.columns)


@torch.no_grad()
def shrink(model: nn.Module) -> nn.Sequential:
    """Return a smaller dense network with the same outputs: without inputs and hidden units that no later layer uses.

    Args:
        model: a Sequential (nested or not) of Flatten, Linear and elementwise activations; dead units are found first,
            as `sparsify` does, in a copy.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)
        >>> _ = model[2].weight[:, 1:].zero_()
        >>> shrink(model)[0]
        Linear(in_features=4, out_features=1, bias=True)
    """
    chain = chain_of(copy.deepcopy(model)) if isinstance(model, nn.Module) else None
    if chain is None:
        raise needs(
            "shrink", "model", "a Sequential of Flatten, Linear and elementwise activations", type(model).__name__, TypeError
        )
    remove_dead(chain)
    alive = [part.nonzero()[:, 0] for part in units_of(chain).alive]
    alive = [part if len(part) else part.new_zeros(1) for part in alive]  # a layer of no units is none: one that does nothing stays
    modules: list[nn.Module] = list(chain.before)
    if len(alive[0]) < chain.layers[0].in_features:
        modules.append(Columns(alive[0]))
    for layer, after, columns, rows in zip(chain.layers, chain.after, alive[:-1], alive[1:], strict=True):
        modules.append(_cut(layer, rows, columns))
        modules += after
    return nn.Sequential(*modules).train(model.training)


def _cut(layer: nn.Linear, rows: Tensor, columns: Tensor) -> nn.Linear:
    weight = layer.weight
    made = nn.utils.skip_init(
        nn.Linear, len(columns), len(rows), bias=layer.bias is not None, device=weight.device, dtype=weight.dtype
    )
    made.weight.copy_(weight[rows][:, columns])
    if layer.bias is not None:
        made.bias.copy_(layer.bias[rows])
    return made
