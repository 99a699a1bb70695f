"""The columns of a table as inputs of a network: standardised, and, where they have more than two values, by rank as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

__all__ = ["Columns", "Standard"]

Array = np.ndarray[Any, Any]

_FEW = 2  # up to so many different values a column is taken as it is
_GRID = 256  # ranks that are remembered; between them they are interpolated
_WIDTH = 12**0.5  # of a uniform law with variance one


@dataclass(frozen=True)
class Standard:
    """What is taken off values and what they are divided by; a column of one value is left at zero."""

    mean: Array
    std: Array

    @classmethod
    def of(cls, values: Array, weights: Array | None) -> Self:
        """Look at values (n, ...), each counted as often as its weight says."""
        mean = np.average(values, axis=0, weights=weights)
        std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
        return cls(np.asarray(mean), np.where(std > 1e-12 * (1 + np.abs(mean)), std, 1.0))

    def __call__(self, values: Array) -> Array:
        """Standardise."""
        return (values - self.mean) / self.std


@dataclass(frozen=True)
class Columns:
    """The inputs of a network, made of a table's columns; `Columns.of` looks at those of the training set.

    A column with more than two values comes twice: standardised, and as its rank among the values of the training set, from
    -sqrt(3) to sqrt(3). A network sees structure at the crowded end of a skewed column that way, as trees do.
    """

    standard: Standard
    grids: tuple[tuple[int, Array, Array], ...]  # column, values, their ranks

    @classmethod
    def of(cls, x: Array, weights: Array | None = None) -> Self:
        """Look at a table (n, columns)."""
        grids = []
        for column in range(x.shape[1]):
            values, counts = np.unique(x[:, column], return_counts=True)
            if len(values) > _FEW:
                ranks = (np.cumsum(counts) - counts / 2) / len(x)
                at = np.unique(np.linspace(0, len(values) - 1, _GRID).round().astype(int))
                grids.append((column, values[at], _WIDTH * (ranks[at] - 0.5)))
        return cls(Standard.of(x, weights), tuple(grids))

    def __call__(self, x: Array, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the inputs (n, inputs)."""
        ranks = [np.interp(x[:, column], values, ranks)[:, None] for column, values, ranks in self.grids]
        return torch.as_tensor(np.hstack([self.standard(x), *ranks]), dtype=dtype)
