"""The diagonal of the Hessian of a classifier's energy, for the term Γ of preconditioned samplers.

A network of ReLUs is linear in every single weight but for kinks, so the diagonal is that of the Gauss-Newton matrix, exactly:
``H_ii = N / n sum_rows sum_k (S_k . d logits / d θ_i)**2`` with ``S_k = sqrt(p_k) (e_k - p)``, whose outer products add up to the
Hessian of the cross-entropy, ``diag(p) - p p^T``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from langevin.targets import Batch, Evaluation, Posterior, Target

__all__ = ["WithCurvature", "hessian_diagonal"]


def hessian_diagonal(position: Tensor, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the diagonal of the Hessian of the summed cross-entropy, (chains, dim).

    Args:
        position: weights and biases of `langevin_paper.models.mlp`, in its order, (chains, dim).
        x: the rows, (n, features), or (chains, n, features) when every chain has its own; labels make no difference.
        sizes: of the layers.
    """
    parts = position.split([size for fan_in, fan_out in itertools.pairwise(sizes) for size in (fan_out * fan_in, fan_out)], dim=-1)
    weights = [
        weight.unflatten(-1, (fan_out, fan_in))
        for weight, (fan_in, fan_out) in zip(parts[::2], itertools.pairwise(sizes), strict=True)
    ]
    inputs: list[Tensor] = []
    output = x.expand(len(position), -1, -1)
    for weight, bias in zip(weights, parts[1::2], strict=True):
        inputs.append(output.relu() if inputs else output)
        output = inputs[-1] @ weight.mT + bias[:, None]
    chance = output.softmax(-1)
    unit = torch.eye(sizes[-1], dtype=position.dtype, device=position.device)
    slope = chance.sqrt()[..., None] * (unit - chance[..., None, :])  # (chain, row, k, logit)
    found: list[Tensor] = []
    for number in reversed(range(len(weights))):
        square = (slope * slope).sum(2)  # (chain, row, output of this layer)
        found = [(square.mT @ inputs[number] ** 2).flatten(1), square.sum(1), *found]
        if number:
            slope = (slope @ weights[number][:, None]) * (inputs[number] > 0)[:, :, None]
    return torch.cat(found, -1)


class WithCurvature(Target):
    """A classifier whose gradients have a second half, the diagonal of the Hessian of U; that of its positions is zero.

    So a kernel that knows of it can have the diagonal, and whatever runs chains needs to know nothing.
    """

    needs_data = True

    def __init__(self, posterior: Posterior, sizes: Sequence[int], prior_std: float) -> None:
        """Take the posterior of an `mlp` of these sizes under N(0, prior_std**2)."""
        self.posterior, self.sizes, self.prior_precision = posterior, tuple(sizes), 1 / prior_std**2
        self.dim = 2 * posterior.dim

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        θ, _ = position.chunk(2, -1)
        energy, gradient = self.posterior.evaluate(θ, batch)
        assert batch is not None  # the posterior has refused None
        curvature = batch.scale * hessian_diagonal(θ, batch.columns[0], self.sizes) + self.prior_precision
        return Evaluation(energy, torch.cat([gradient, curvature], -1))

    @override
    def init(self, chains: int, seed: int = 0, *, first_chain: int = 0) -> Tensor:
        θ = self.posterior.init(chains, seed, first_chain=first_chain)
        return torch.cat([θ, torch.zeros_like(θ)], -1)
