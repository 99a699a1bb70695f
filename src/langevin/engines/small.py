"""Small matrix products as sums: a call of a BLAS costs more than they do, and a sum is fused with what is before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["with_small_products"]

_FEW_TERMS = 8  # sums of so many terms are written out by the compiler
_FEW_PRODUCTS = 4096

Table = dict[Any, Callable[..., Any]]


def with_small_products(table: Table) -> Table:
    """Return a compiler's table of decompositions in which small products are sums; others are as they were."""
    aten = torch.ops.aten

    def summed(operator: Any) -> Callable[..., Any]:
        before = table.get(operator)

        def product(a: Tensor, b: Tensor) -> Any:
            if not _is_small(a, b):
                return NotImplemented if before is None else before(a, b)
            return _summed(a, b)

        return product

    before = table.get(aten.addmm.default)

    def addmm(added: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not _is_small(a, b):
            return NotImplemented if before is None else before(added, a, b, beta=beta, alpha=alpha)
        return beta * added + alpha * _summed(a, b)

    return {
        **table,
        aten.mm.default: summed(aten.mm.default),
        aten.bmm.default: summed(aten.bmm.default),
        aten.addmm.default: addmm,
    }


def _is_small(a: Tensor, b: Tensor) -> bool:
    return a.is_floating_point() and (a.shape[-1] <= _FEW_TERMS or a.numel() * b.shape[-1] <= _FEW_PRODUCTS)


def _summed(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[-2] >= 16 and b.shape[-1] <= _FEW_TERMS:  # many chains in few dimensions: chains lie side by side in memory
        return (b.mT.unsqueeze(-1) * a.mT.unsqueeze(-3)).sum(-2).mT
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)
