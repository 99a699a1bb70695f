"""The posterior of a plain network, with a gradient for all chains in memory that is kept: what chains spend their time on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from langevin.targets import Batch, Evaluation, Posterior

__all__ = ["NetworkPosterior", "network"]

_TILE = 8192  # rows of all chains together that go through the network at once: what a core's cache holds


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Return the network of the estimators: linear layers with SiLU between them."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.SiLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class NetworkPosterior(Posterior):
    """A `Posterior` of such a network, which differs from it in speed only.

    `Posterior` differentiates any module, and every layer's outputs are memory that the system has to hand out anew at each step,
    which takes as long as the arithmetic. Here the layers are gone through by hand, a few rows of all chains at a time, in memory
    that is kept. The law of y is differentiated automatically as before. A model that the likelihood has wrapped goes the
    old way.
    """

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if batch is None or not isinstance(self._model, nn.Sequential):
            return super().evaluate(position, batch)
        self._check_size(batch.num_data)
        x, y = batch.columns
        if not batch.per_chain:
            x, y = x.expand(len(position), *x.shape), y.expand(len(position), *y.shape)
        weights = _weights(self._model, position)
        energy, gradient = position.new_zeros(len(position)), torch.zeros_like(position)
        sums = _weights(self._model, gradient)
        size = max(1, _TILE // len(position))
        for first in range(0, x.shape[1], size):
            rows = slice(first, first + size)
            energy += self._tile(weights, sums, x[:, rows], y[:, rows])
        energy, gradient = batch.scale * energy, gradient.mul_(batch.scale)
        return Evaluation(energy + self.prior.energy(position), gradient.add_(self.prior.gradient(position)))

    def _tile(self, weights: list[tuple[Tensor, Tensor]], sums: list[tuple[Tensor, Tensor]], x: Tensor, y: Tensor) -> Tensor:
        """Return the energy of some rows, (chains,), and add its gradient to `sums`."""
        inner, outer = self._forward(weights, x)
        by_output, energy = self._by_output(outer[-1], y)
        for layer in reversed(range(len(weights))):
            weight, (of_weight, of_bias) = weights[layer][0], sums[layer]
            of_weight += torch.bmm(by_output.mT, inner[layer])
            of_bias += by_output.sum(1)
            if layer > 0:
                by_inner = torch.bmm(by_output, weight, out=self._room(by_output, layer, "by", inner[layer].shape))
                by_output = torch.ops.aten.silu_backward.grad_input(by_inner, outer[layer - 1], grad_input=by_inner)
        return energy

    def _forward(self, weights: list[tuple[Tensor, Tensor]], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return what goes into each layer and what comes out of it, before SiLU."""
        inner, outer = [x], list[Tensor]()
        for layer, (weight, bias) in enumerate(weights):
            shape = torch.Size((*inner[-1].shape[:2], weight.shape[1]))
            outer.append(torch.baddbmm(bias[:, None], inner[-1], weight.mT, out=self._room(x, layer, "outer", shape)))
            if layer < len(weights) - 1:
                inner.append(torch.ops.aten.silu.out(outer[-1], out=self._room(x, layer, "inner", shape)))
        return inner, outer

    def _by_output(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivative of the energy by the outputs (chains, rows, outputs), and the energy (chains,)."""
        leaf = output.detach().flatten(0, 1).requires_grad_()
        with torch.enable_grad():
            logs = self.likelihood.log_likelihood(leaf, y.flatten(0, 1))
            (by_output,) = torch.autograd.grad(-logs.sum(), leaf)
        return by_output.view_as(output), -logs.detach().view(output.shape[:2]).sum(-1)

    def _room(self, like: Tensor, layer: int, what: str, shape: torch.Size) -> Tensor:
        """Return memory for a layer's numbers, the same at every call."""
        rooms: dict[tuple[int, str], Tensor] = self.__dict__.setdefault("_rooms", {})
        found = rooms.get((layer, what))
        if found is None or found.numel() < shape.numel() or found.dtype != like.dtype:
            found = rooms[layer, what] = like.new_empty(shape.numel())
        return found[: shape.numel()].view(shape)

    def __getstate__(self) -> dict[str, object]:
        """Leave the memory behind."""
        return {name: value for name, value in self.__dict__.items() if name != "_rooms"}


def _weights(model: nn.Sequential, position: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the weights (chains, outputs, inputs) and biases (chains, outputs) of each layer: views of theta."""
    found, start = [], 0
    for layer in model:
        if isinstance(layer, nn.Linear):
            outputs, inputs = layer.weight.shape
            middle, end = start + outputs * inputs, start + outputs * inputs + outputs
            found.append((position[:, start:middle].unflatten(1, (outputs, inputs)), position[:, middle:end]))
            start = end
    return found
