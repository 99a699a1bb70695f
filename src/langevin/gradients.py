"""Gradient estimates, each a pure function of (position, step): full, minibatch, noisy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, needs
from langevin.noise import Purpose, batch_indices, normal, streams
from langevin.targets import Batch, Evaluation, Target

__all__ = ["GradientFn", "check_data", "energy_gradient", "full", "minibatch", "noisy"]

GradientFn = Callable[[Tensor, int], Evaluation]
"""(position (chains, dim), step) -> energy and gradient; whatever is random in it has the step in its address."""


def check_data(data: Sequence[Tensor] | Tensor) -> tuple[Tensor, ...]:
    """Return the columns of a data set, or fail when it is empty, ragged or not finite."""
    columns = (data,) if isinstance(data, Tensor) else tuple(data)
    if not columns or not all(isinstance(column, Tensor) for column in columns):
        raise needs("sample", "data", "tensors, one per column", [type(column).__name__ for column in columns], TypeError)
    lengths = [len(column) if column.ndim else 0 for column in columns]
    if min(lengths) == 0:
        raise needs("sample", "data", "at least one row", f"columns of {lengths} rows")
    if len(set(lengths)) > 1:
        raise needs("sample", "data", "columns of the same length", f"{lengths} rows")
    for k, column in enumerate(columns):
        if column.is_floating_point() and not torch.isfinite(column).all():
            bad = (~torch.isfinite(column)).nonzero()[0].tolist()
            raise needs("sample", "data", f"finite values (column {k}, element {bad} is not)", column[tuple(bad)].item())
    return columns


def energy_gradient(gradient: Any, position: Any, num_data: Any, prior: Any) -> Any:
    """Return grad U = N grad(mean loss) + grad(-log prior), for tensors and symbols alike."""
    scaled = num_data * gradient
    return scaled if prior is None else scaled + prior.gradient(position)


def full(target: Target, data: Sequence[Tensor] | Tensor | None = None) -> GradientFn:
    """Take the gradient over all data.

    Example:
        >>> from langevin.targets import gaussian
        >>> full(gaussian([[1.0]]))(torch.tensor([[2.0]]), 0).gradient
        tensor([[2.]])
    """
    if data is None:
        return lambda position, step: target.evaluate(position)
    columns = check_data(data)
    batch = Batch(columns, len(columns[0]), per_chain=False)
    return lambda position, step: target.evaluate(position, batch)


def minibatch(
    target: Target, data: Sequence[Tensor] | Tensor, batch_size: int, *, seed: int = 0, first_chain: int = 0
) -> GradientFn:
    """Estimate the gradient from `batch_size` rows, scaled by N / n; every chain has an order of its own.

    Rows come without replacement: each datum once per epoch, in an order that is a function of (seed, chain, epoch).

    Args:
        target: a target with data.
        data: its columns, each with N rows.
        batch_size: n, at most N.
        seed: of the order.
        first_chain: number of the first chain, so that chains run apart see what they would see together.
    """
    columns = check_data(data)
    num_data = len(columns[0])
    check_integer("minibatch", "batch_size", batch_size, 1)
    if batch_size > num_data:
        raise needs("minibatch", "batch_size", f"at most the {num_data} rows of the data", batch_size)

    def gradient(position: Tensor, step: int) -> Evaluation:
        chains = streams(Purpose.BATCH, range(first_chain, first_chain + len(position)))
        rows = batch_indices(seed, chains, step, batch_size, num_data).to(columns[0].device)
        return target.evaluate(position, Batch(tuple(column[rows] for column in columns), num_data, per_chain=True))

    return gradient


def noisy(gradient_fn: GradientFn, std: float, *, seed: int = 0, first_chain: int = 0) -> GradientFn:
    """Add N(0, std**2 I) to a gradient, as the paper does to mimic minibatches (sections 4.1 and 4.2)."""
    std = check_number("noisy", "std", std, ">= 0", lambda v: v >= 0)

    def gradient(position: Tensor, step: int) -> Evaluation:
        energy, exact = gradient_fn(position, step)
        chains = streams(Purpose.GRADIENT, range(first_chain, first_chain + len(position)))
        noise = normal(seed, chains, step, position.shape[-1], dtype=position.dtype, device=position.device)
        return Evaluation(energy, exact + std * noise)

    return gradient
