"""Linear scales ``θ = R y``: the widths of a posterior taken out, so that every direction of y is alike.

A sampler that runs in y has the metric ``G = R R^T`` (the inverse mass matrix) in θ. The scale is a constant of a run, so any law
that a sampler keeps in y it keeps in θ.
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

__all__ = ["KINDS", "Dense", "Diagonal", "LowRank", "Scale", "as_scale", "scale_shapes"]


@dataclass(frozen=True, eq=False)
class Scale(ABC):
    """A root R of the metric, applied to vectors along the last axis."""

    @property
    def is_elementwise(self) -> bool:
        """Whether R is diagonal."""
        return False

    @property
    def differs_by_chain(self) -> bool:
        """Whether every chain has an R of its own."""
        return False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The numbers that make up R, for a run's folder."""
        return tuple(getattr(self, entry.name) for entry in fields(self))

    @property
    @abstractmethod
    def dim(self) -> int:
        """The length of the vectors."""

    @abstractmethod
    def push(self, vector: Tensor) -> Tensor:
        """Return ``R y``: displacements of y as displacements of θ."""

    @abstractmethod
    def pull(self, gradient: Tensor) -> Tensor:
        """Return ``R^T g``: gradients with respect to θ as gradients with respect to y."""

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words what R is like."""


@dataclass(frozen=True, eq=False)
class Diagonal(Scale):
    """``R = diag(std)``, std (dim,), or (chains, dim) where every chain has its own."""

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
class Dense(Scale):
    """Any R, (dim, dim)."""

    root: Tensor

    @property
    @override
    def dim(self) -> int:
        return len(self.root)

    @override
    def push(self, vector: Tensor) -> Tensor:
        return linear(vector, self.root)  # R y; a transposed view would be an alias, which a compiled scan refuses

    @override
    def pull(self, gradient: Tensor) -> Tensor:
        return gradient @ self.root

    @override
    def describe(self) -> str:
        widths = torch.linalg.svdvals(self.root)
        return f"dense, widths {float(widths[-1]):.2g} to {float(widths[0]):.2g}"


@dataclass(frozen=True, eq=False)
class LowRank(Scale):
    """``R = diag(std) (I + V diag(stretch - 1) V^T)`` with orthonormal columns V, (dim, rank): for many dimensions."""

    std: Tensor
    vectors: Tensor
    stretch: Tensor

    @property
    @override
    def dim(self) -> int:
        return len(self.std)

    @override
    def push(self, vector: Tensor) -> Tensor:
        return self.std * self._stretched(vector)

    @override
    def pull(self, gradient: Tensor) -> Tensor:
        return self._stretched(self.std * gradient)

    def _stretched(self, vector: Tensor) -> Tensor:
        return vector + linear(vector @ self.vectors * (self.stretch - 1), self.vectors)

    @override
    def describe(self) -> str:
        return f"diagonal, and {len(self.stretch)} directions of their own"


KINDS: dict[str, type[Scale]] = {"Diagonal": Diagonal, "Dense": Dense, "LowRank": LowRank}
"""By the name under which they are saved."""


def scale_shapes(kind: str, tensors: Sequence[Tensor], dim: int) -> list[tuple[int, ...]]:
    """Return the shapes that the tensors of a scale have; the rank of a low-rank one is read off its last."""
    rank = len(tensors[-1]) if tensors and tensors[-1].ndim == 1 else 0
    shapes: dict[str, list[tuple[int, ...]]] = {
        "Diagonal": [(dim,)], "Dense": [(dim, dim)], "LowRank": [(dim,), (dim, rank), (rank,)],
    }  # fmt: skip
    return shapes[kind]


def as_scale(who: str, value: Any, like: Tensor) -> Scale:
    """Return the scale of a covariance (dim, dim) or of variances (dim,), or a scale itself, for positions like `like`."""
    dim, condition = like.shape[-1], "a covariance (dim, dim), variances (dim,), or a scale of langevin.scales"
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Scale):
        made = type(value)(*(tensor.detach().to(like) for tensor in value.tensors))
    elif isinstance(value, Tensor) and value.ndim == 1 and bool((value > 0).all()):
        made = Diagonal(value.detach().to(like) ** 0.5)
    elif isinstance(value, Tensor) and value.ndim == 2 and value.shape[0] == value.shape[1]:
        root, failed = torch.linalg.cholesky_ex(value.detach().double())
        if failed or not torch.allclose(value, value.mT):
            raise needs(who, "scale", "a symmetric positive definite covariance", value)
        made = Dense(root.to(like))
    else:
        raise needs(who, "scale", condition, value, TypeError)
    widths = made.tensors[0]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in made.tensors) or (widths.ndim == 1 and bool((widths <= 0).any())):
        raise needs(who, "scale", "finite numbers, and widths > 0", value)
    if made.dim != dim:
        raise needs(who, "scale", f"{dim} dimensions, those of a position", made.dim)
    return made
