"""Define the metric ``G = R R^T`` (the inverse mass matrix) of a sampler by its root R.

A sampler runs in y with ``θ = R y``, where all directions have similar widths. R is constant during
a run, so a stationary distribution in y maps to one in θ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from typing_extensions import override

from langevin.checks import needs

__all__ = ["METRICS", "Dense", "Diagonal", "LowRank", "Metric", "as_metric", "metric_shapes"]


@dataclass(frozen=True, eq=False)
class Metric(ABC):
    """A metric ``G = R R^T``, applied through its root R along the last axis."""

    @property
    def is_elementwise(self) -> bool:
        """Whether R is diagonal."""
        return False

    @property
    def differs_by_chain(self) -> bool:
        """Whether each chain has its own R."""
        return False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that define R, as saved in a run folder."""
        return tuple(getattr(self, entry.name) for entry in fields(self))

    @property
    @abstractmethod
    def dim(self) -> int:
        """The length of the vectors."""

    @abstractmethod
    def push(self, vector: Tensor) -> Tensor:
        """Return ``R y``: map displacements of y to displacements of θ."""

    @abstractmethod
    def pull(self, gradient: Tensor) -> Tensor:
        """Return ``R^T g``: map gradients with respect to θ to gradients with respect to y."""

    @abstractmethod
    def describe(self) -> str:
        """Return a short description."""


@dataclass(frozen=True, eq=False)
class Diagonal(Metric):
    """``R = diag(std)`` with std of shape (dim,), or (chains, dim) for one metric per chain."""

    std: Tensor

    @property
    @override
    def is_elementwise(self) -> bool:
        return True

    @property
    @override
    def differs_by_chain(self) -> bool:
        return self.std.ndim > 1

    @property
    @override
    def dim(self) -> int:
        return self.std.shape[-1]

    @override
    def push(self, vector: Tensor) -> Tensor:
        return self.std * vector

    @override
    def pull(self, gradient: Tensor) -> Tensor:
        return self.std * gradient

    @override
    def describe(self) -> str:
        return f"diagonal, widths {float(self.std.min()):.2g} to {float(self.std.max()):.2g}"


@dataclass(frozen=True, eq=False)
class Dense(Metric):
    """Any R of shape (dim, dim)."""

    root: Tensor

    @property
    @override
    def dim(self) -> int:
        return len(self.root)

    @override
    def push(self, vector: Tensor) -> Tensor:
        # R y; a compiled scan rejects `vector @ root.mT`, whose view aliases an input.
        return linear(vector, self.root)

    @override
    def pull(self, gradient: Tensor) -> Tensor:
        return gradient @ self.root

    @override
    def describe(self) -> str:
        widths = torch.linalg.svdvals(self.root)
        return f"dense, widths {float(widths[-1]):.2g} to {float(widths[0]):.2g}"


@dataclass(frozen=True, eq=False)
class LowRank(Metric):
    """``R = diag(std) (I + V diag(factors - 1) V^T)`` with orthonormal columns V (dim, rank)."""

    std: Tensor
    vectors: Tensor
    factors: Tensor

    @property
    @override
    def dim(self) -> int:
        return len(self.std)

    @override
    def push(self, vector: Tensor) -> Tensor:
        return self.std * self._scaled(vector)

    @override
    def pull(self, gradient: Tensor) -> Tensor:
        return self._scaled(self.std * gradient)

    def _scaled(self, vector: Tensor) -> Tensor:
        return vector + linear(vector @ self.vectors * (self.factors - 1), self.vectors)

    @override
    def describe(self) -> str:
        return f"low rank: diagonal and {len(self.factors)} directions"


METRICS: dict[str, type[Metric]] = {"Diagonal": Diagonal, "Dense": Dense, "LowRank": LowRank}
"""Metrics by the name under which a run folder stores them."""


def metric_shapes(kind: str, tensors: Sequence[Tensor], dim: int) -> list[tuple[int, ...]]:
    """Return the shapes of a metric's tensors; the last tensor gives the rank of a `LowRank`."""
    rank = len(tensors[-1]) if tensors and tensors[-1].ndim == 1 else 0
    shapes: dict[str, list[tuple[int, ...]]] = {
        "Diagonal": [(dim,)],
        "Dense": [(dim, dim)],
        "LowRank": [(dim,), (dim, rank), (rank,)],
    }
    return shapes[kind]


def as_metric(who: str, value: Any, like: Tensor) -> Metric:
    """Convert a covariance (dim, dim), variances (dim,) or a `Metric` to positions like `like`."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Metric):
        made = type(value)(*(tensor.detach().to(like) for tensor in value.tensors))
    elif isinstance(value, Tensor) and value.ndim == 1 and bool((value > 0).all()):
        made = Diagonal(value.detach().to(like) ** 0.5)
    elif isinstance(value, Tensor) and value.ndim == 2 and value.shape[0] == value.shape[1]:
        root, failed = torch.linalg.cholesky_ex(value.detach().double())
        if failed or not torch.allclose(value, value.mT):
            raise needs(who, "metric", "a symmetric positive definite covariance", value)
        made = Dense(root.to(like))
    else:
        what = "a covariance (dim, dim), variances (dim,), or a langevin.targets.metric.Metric"
        raise needs(who, "metric", what, value, TypeError)
    widths = made.tensors[0]
    is_finite = all(bool(torch.isfinite(tensor).all()) for tensor in made.tensors)
    if not is_finite or (widths.ndim == 1 and bool((widths <= 0).any())):
        raise needs(who, "metric", "finite numbers, and widths > 0", value)
    if made.dim != like.shape[-1]:
        raise needs(who, "metric", f"{like.shape[-1]} dimensions, those of a position", made.dim)
    return made
