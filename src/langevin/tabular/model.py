"""The posterior of a plain network, and a prior whose scales are drawn with the weights."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from langevin.random import Purpose, normal, streams
from langevin.targets import Batch, Evaluation, Posterior
from langevin.targets.space import Space

__all__ = ["LayerScales", "NetworkPosterior", "network"]


_TILE = 8192  # rows of all chains per pass through the network, to fit a core's cache

Layer = tuple[Tensor, Tensor]
"""The weights (chains, outputs, inputs) and biases (chains, outputs) of a linear layer."""


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Return the network of the estimators: linear layers with SiLU between them."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.SiLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class NetworkPosterior(Posterior):
    """Define the `Posterior` of a `network`, with a faster gradient.

    `Posterior` differentiates any module and allocates the outputs of every layer at each step,
    which takes as long as the arithmetic. Here backpropagation is written out, a few rows of all
    chains at a time, in buffers that are reused. Only the likelihood is differentiated by autograd.
    A model that the likelihood wraps is evaluated by `Posterior`.
    """

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if batch is None or not isinstance(self._model, nn.Sequential):
            return super().evaluate(position, batch)
        self._check_size(batch.num_data)
        x, y = batch.columns
        if not batch.per_chain:
            x, y = x.expand(len(position), *x.shape), y.expand(len(position), *y.shape)
        layers = _layers(self._model, position)
        energy, gradient = position.new_zeros(len(position)), torch.zeros_like(position)
        sums = _layers(self._model, gradient)
        size = max(1, _TILE // len(position))
        for first in range(0, x.shape[1], size):
            rows = slice(first, first + size)
            energy += self._tile(layers, sums, x[:, rows], y[:, rows])
        energy, gradient = batch.scale * energy, gradient.mul_(batch.scale)
        energy = energy + self.prior.energy(position)
        return Evaluation(energy, gradient.add_(self.prior.gradient(position)))

    def _tile(self, layers: list[Layer], sums: list[Layer], x: Tensor, y: Tensor) -> Tensor:
        """Return the energy of some rows, (chains,), and add its gradient to `sums`."""
        inner, outer = self._forward(layers, x)
        by_output, energy = self._by_output(outer[-1], y)
        for index in reversed(range(len(layers))):
            weight, (of_weight, of_bias) = layers[index][0], sums[index]
            of_weight += torch.bmm(by_output.mT, inner[index])
            of_bias += by_output.sum(1)
            if index > 0:
                buffer = self._buffer(by_output, index, "by", inner[index].shape)
                by_inner = torch.bmm(by_output, weight, out=buffer)
                by_output = torch.ops.aten.silu_backward.grad_input(
                    by_inner, outer[index - 1], grad_input=by_inner
                )
        return energy

    def _forward(self, layers: list[Layer], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the inputs of each layer, and its outputs before SiLU."""
        inner, outer = [x], list[Tensor]()
        for index, (weight, bias) in enumerate(layers):
            shape = torch.Size((*inner[-1].shape[:2], weight.shape[1]))
            buffer = self._buffer(x, index, "outer", shape)
            outer.append(torch.baddbmm(bias[:, None], inner[-1], weight.mT, out=buffer))
            if index < len(layers) - 1:
                buffer = self._buffer(x, index, "inner", shape)
                inner.append(torch.ops.aten.silu.out(outer[-1], out=buffer))
        return inner, outer

    def _by_output(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the energy's derivative by the outputs, in their shape, and the energy."""
        leaf = output.detach().flatten(0, 1).requires_grad_()
        with torch.enable_grad():
            logs = self.likelihood.log_likelihood(leaf, y.flatten(0, 1))
            (by_output,) = torch.autograd.grad(-logs.sum(), leaf)
        return by_output.view_as(output), -logs.detach().view(output.shape[:2]).sum(-1)

    def _buffer(self, like: Tensor, layer: int, what: str, shape: torch.Size) -> Tensor:
        """Return a buffer for some values of a layer, the same at every call."""
        buffers: dict[tuple[int, str], Tensor] = self.__dict__.setdefault("_buffers", {})
        found = buffers.get((layer, what))
        if found is None or found.numel() < shape.numel() or found.dtype != like.dtype:
            found = buffers[layer, what] = like.new_empty(shape.numel())
        return found[: shape.numel()].view(shape)

    def __getstate__(self) -> dict[str, object]:
        """Return the state without buffers."""
        return {name: value for name, value in self.__dict__.items() if name != "_buffers"}


def _layers(model: nn.Sequential, position: Tensor) -> list[Layer]:
    """Return the linear layers' weights and biases: views of theta."""
    found, start = [], 0
    for layer in model:
        if isinstance(layer, nn.Linear):
            outputs, inputs = layer.weight.shape
            middle, end = start + outputs * inputs, start + outputs * inputs + outputs
            weight = position[:, start:middle].unflatten(1, (outputs, inputs))
            found.append((weight, position[:, middle:end]))
            start = end
    return found


_LEAST, _LARGEST = 1e-6, 1e12  # bounds of a precision, against weights that are all 0 or huge


@dataclass(frozen=True, eq=False)
class LayerScales:
    """A Gaussian prior with one precision per chain and layer; build it by `LayerScales.first`.

    Parameters outside layers, such as the log of a learned noise, keep precision one, in the last
    column.
    """

    layers: tuple[str, ...]  # their names
    groups: (
        Tensor  # the layer's index of each element of theta, (dim,); outside layers their number
    )
    precision: Tensor  # (chains, layers + 1), or (1, layers + 1) for all chains

    @classmethod
    def first(cls, space: Space) -> LayerScales:
        """Return scales of one, with a layer for each module that has weights."""
        owners = [name.rpartition(".")[0] for name in space.names]
        layers = tuple(dict.fromkeys(owner for owner in owners if owner))
        numbers = torch.tensor([layers.index(owner) if owner else len(layers) for owner in owners])
        groups = numbers.repeat_interleave(torch.tensor(space.sizes))
        return cls(layers, groups, torch.ones(1, len(layers) + 1, dtype=space.dtype))

    @property
    def std(self) -> Tensor:
        """The standard deviations of the layers, (chains, layers)."""
        return self.precision[:, :-1] ** -0.5

    @property
    def curvature(self) -> Tensor:
        """The prior's curvature along each axis, (chains, dim)."""
        return self.precision[:, self.groups]

    def energy(self, position: Tensor) -> Tensor:
        """Return ``-log prior`` of the weights given their scales."""
        each = self.curvature
        return 0.5 * (each * position * position - each.log() + math.log(2 * math.pi)).sum(-1)

    def gradient(self, position: Tensor) -> Tensor:
        """Return its gradient."""
        return self.curvature * position

    def redrawn(self, position: Tensor, *, seed: int, chains: range, step: int) -> LayerScales:
        """Draw all scales given weights (chains, dim): a Gibbs step under half-Cauchy(1) scales."""
        count, dim = self.precision.shape[1], len(self.groups)
        at = streams(Purpose.SCALES, chains)
        squares = normal(seed, at, step, dim + 3 * count, dtype=torch.float64).square()
        one, two, three, rest = squares.split([count, count, count, dim], -1)
        by_auxiliary = 0.5 * (one + two) / (1 + self.precision)  # 1 / v
        none = torch.zeros_like(by_auxiliary)
        chi = three + none.index_add(1, self.groups, rest)
        rate = by_auxiliary + 0.5 * none.index_add(1, self.groups, position.double().square())
        precision = (0.5 * chi / rate).clamp(_LEAST, _LARGEST).to(position)
        precision[:, -1] = 1
        return dataclasses.replace(self, precision=precision)
