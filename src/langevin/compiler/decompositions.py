"""Replace operations by simpler ones: reductions, linear algebra, indexing, `torch.nn`.

A decomposition returns NotImplemented where it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Decomposition: TypeAlias = Callable[..., Any]  # returns tensors, or NotImplemented
Axes: TypeAlias = tuple[int, ...] | list[int] | None

_MOST_COMPARED = 2**22
_decompositions: dict[str, Decomposition] = {}  # by name and overload, except for "default"
aten = torch.ops.aten


def decomposition_of(name: str) -> Decomposition | None:
    """Return the decomposition of an operation, such as "aten.add_.Tensor", or None."""
    *_, name, overload = name.split(".")
    suffix = "" if overload == "default" else f".{overload}"
    if found := _decompositions.get(name + suffix):
        return found
    function = _decompositions.get(name.removesuffix("_") + suffix)
    return None if function is None else _in_place(function)


def _in_place(function: Decomposition) -> Decomposition:
    def changed(x: Tensor, *rest: Any, **options: Any) -> Tensor:
        made = function(x, *rest, **options)
        return made if made is NotImplemented else x.copy_(made)

    return changed


def _decomposes(*names: str) -> Callable[[Decomposition], Decomposition]:
    def note(function: Decomposition) -> Decomposition:
        _decompositions.update(dict.fromkeys(names, function))
        return function

    return note


def _is_real(x: Tensor) -> bool:
    return x.is_floating_point() and x.numel() > 0


# Reductions.


@_decomposes("_softmax")
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if half_to_float or x.numel() == 0:
        return NotImplemented
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


@_decomposes("_log_softmax")
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if half_to_float or x.numel() == 0:
        return NotImplemented
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@_decomposes("_softmax_backward_data")
def _softmax_backward(gradient: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    weighted = gradient * out
    return weighted - out * weighted.sum(dim, keepdim=True)


@_decomposes("logsumexp")
def _logsumexp(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    if not _is_real(x):
        return NotImplemented
    if x.ndim == 0:
        return x.clone()
    dims = tuple(dim)
    largest = x.amax(dims, keepdim=True)
    largest = torch.where(largest.abs() == torch.inf, 0.0, largest)
    total = (x - largest).exp().sum(dims, keepdim=keepdim).log()
    if not keepdim:
        for axis in sorted((d % x.ndim for d in dim), reverse=True):
            largest = largest.squeeze(axis)
    return total + largest


@_decomposes("linalg_vector_norm")
def _vector_norm(
    x: Tensor, ord: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    dims = tuple(range(x.ndim)) if dim is None else tuple(dim)
    x = x if dtype is None else x.to(dtype)
    if not _is_real(x):
        return NotImplemented
    if ord == 2 and any(x.shape[d] != 1 for d in dims):
        return (x * x).sum(dims, keepdim=keepdim).sqrt()
    if ord in (1, 2):  # of one number it is exact, and does not overflow
        return x.abs().sum(dims, keepdim=keepdim)
    if ord in (torch.inf, -torch.inf):
        return (x.abs().amax if ord > 0 else x.abs().amin)(dims, keepdim=keepdim)
    if ord == 0:
        return (x != 0).sum(dims, keepdim=keepdim, dtype=x.dtype)
    return (x.abs() ** ord).sum(dims, keepdim=keepdim) ** (1 / ord)


def _dims_and_count(x: Tensor, dim: Axes) -> tuple[tuple[int, ...], int]:
    dims = tuple(d % max(1, x.ndim) for d in (dim or range(x.ndim)))
    return dims, math.prod(x.shape[axis] for axis in dims if x.ndim)


@_decomposes("mean", "mean.dim")
def _mean(x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    if not _is_real(x):
        return NotImplemented
    dims, count = _dims_and_count(x, dim)
    return x.sum(dims, keepdim=keepdim) / count


@_decomposes("var.correction")
def _variance(
    x: Tensor, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    if not _is_real(x):
        return NotImplemented
    dims, count = _dims_and_count(x, dim)
    less = 1 if correction is None else correction
    if count <= less:
        return NotImplemented
    centred = x - x.sum(dims, keepdim=True) / count
    return (centred * centred).sum(dims, keepdim=keepdim) / (count - less)


@_decomposes("aminmax")
def _both_extremes(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = () if dim is None else dim
    return x.amin(dims, keepdim), x.amax(dims, keepdim)


def _and_mean(name: str) -> Decomposition:
    return lambda x, dim=None, *, keepdim=False, **options: (
        getattr(x, name)(dim, keepdim=keepdim, **options),
        x.mean(dim or tuple(range(x.ndim)), keepdim),
    )


def _of_all(name: str) -> Decomposition:
    return lambda x, dim=None, keepdim=False: (
        NotImplemented if dim is not None or keepdim else getattr(x.reshape(-1), name)(0)
    )


_decompositions |= {
    "_log_softmax_backward_data": lambda gradient, out, dim, dtype: (
        gradient - out.exp() * gradient.sum(dim, keepdim=True)
    ),
    "dist": lambda x, y, p=2: torch.linalg.vector_norm(x - y, p),
    "std.correction": lambda x, dim=None, **options: x.var(dim, **options).sqrt(),
    "var_mean.correction": _and_mean("var"),
    "std_mean.correction": _and_mean("std"),
    "argmax": _of_all("argmax"),
    "argmin": _of_all("argmin"),
    "count_nonzero": lambda x, dim=None: (x != 0).sum(dim),
    "count_nonzero.dim_IntList": lambda x, dim: (x != 0).sum(dim),
    "nansum": lambda x, dim=None, keepdim=False, *, dtype=None: torch.where(x.isnan(), 0.0, x).sum(
        dim or tuple(range(x.ndim)), keepdim, dtype=dtype
    ),
    "trace": lambda x: x.diagonal().sum(),
}


# Linear algebra.


def _added_to(product: Tensor, added: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    product = product if alpha == 1 else alpha * product
    return product if beta == 0 else product + (added if beta == 1 else beta * added)


def _identity(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)


@_decomposes("linalg_inv_ex")
def _inverse(a: Tensor, *, check_errors: bool = False) -> Any:
    if check_errors:
        return NotImplemented
    result, _, _, info = aten._linalg_solve_ex(a, _identity(a))
    return result, info


@_decomposes("_cdist_forward")
def _cdist(x: Tensor, y: Tensor, p: float, mode: int | None) -> Tensor:
    if not x.shape[-1]:
        return NotImplemented
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


@_decomposes("_cdist_backward")
def _cdist_backward(gradient: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    apart, scale = x.unsqueeze(-2) - y.unsqueeze(-3), gradient.unsqueeze(-1)
    if p == 1:
        return (scale * apart.sign()).sum(-2)
    if p == 2:
        return (torch.where(distance == 0, 0.0, gradient / distance).unsqueeze(-1) * apart).sum(-2)
    return NotImplemented


@_decomposes("linalg_cross")
def _cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)


_decompositions |= {
    "addmm": lambda x, a, b, **factors: _added_to(a @ b, x, **factors),
    "baddbmm": lambda x, a, b, **factors: _added_to(torch.bmm(a, b), x, **factors),
    "addmv": lambda x, a, b, **factors: torch.addmm(
        x.unsqueeze(-1), a, b.unsqueeze(-1), **factors
    ).squeeze(-1),
    "addr": lambda x, a, b, **factors: _added_to(a[:, None] * b, x, **factors),
    "mv": lambda a, b: torch.mm(a, b[:, None])[:, 0],
    "dot": lambda a, b: (a * b).sum(),
    "cholesky_inverse": lambda factor, upper=False: torch.cholesky_solve(
        _identity(factor), factor, upper=upper
    ),
}


# Layout and indexing.


@_decomposes("roll")
def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return x.flatten().roll(shifts[0], 0).view(x.shape) if x.ndim != 1 else x.roll(shifts[0], 0)
    if len(dims) == 1 or not x.numel():
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        x = x.roll(shift, dim)
    return x


@_decomposes("rot90")
def _rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    flipped = (x.clone, lambda: x.flip(dims[1]), lambda: x.flip(*dims), lambda: x.flip(dims[0]))
    turned = flipped[k % 4]()
    return (turned.transpose(*dims) if k % 2 else turned).contiguous()


@_decomposes("block_diag")
def _block_diag(parts: Sequence[Tensor]) -> Tensor:
    parts = [torch.atleast_2d(part) for part in parts]
    width, rows, at = sum(part.shape[1] for part in parts), [], 0
    for part in parts:
        rows.append(F.pad(part, (at, width - at - part.shape[1])))
        at += part.shape[1]
    return torch.cat(rows)


@_decomposes("searchsorted.Tensor")
def _searchsorted(
    sequence: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False, **options: Any
) -> Tensor:
    many = sequence.numel() * x.numel() > _MOST_COMPARED
    if sequence.ndim != 1 or any(options.values()) or many:
        return NotImplemented
    before = sequence <= x.unsqueeze(-1) if right else sequence < x.unsqueeze(-1)
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


@_decomposes("index_put")
def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Return `x[mask] = number` as a choice; other indices are lowered."""
    mask = indices[0]
    is_mask = mask is not None and mask.dtype is torch.bool and len(indices) == 1
    if mask is None or not is_mask or values.numel() != 1 or accumulate:
        return NotImplemented
    return torch.where(mask.view(*mask.shape, *[1] * (x.ndim - mask.ndim)), values.reshape(()), x)


@_decomposes("masked_select")
def _masked_select(x: Tensor, mask: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    return aten.index(x, [mask])


@_decomposes("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    index = index.reshape(-1)
    shape = [len(index) if axis == dim % x.ndim else size for axis, size in enumerate(x.shape)]
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=x.dtype)
    number = value.to(x.dtype)
    return x.index_copy(dim, index, number.expand(shape)) if x.ndim else NotImplemented


@_decomposes("embedding_dense_backward")
def _embedding_backward(
    gradient: Tensor, indices: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor:
    if by_frequency:
        return NotImplemented
    if padding >= 0:
        gradient = torch.where((indices == padding).unsqueeze(-1), 0.0, gradient)
    zeros = gradient.new_zeros(count, gradient.shape[-1])
    return zeros.index_add(0, indices.reshape(-1), gradient.reshape(-1, gradient.shape[-1]))


_decompositions |= {
    "lift_fresh": lambda x: x.clone(),
    "_efficientzerotensor": lambda size, *, dtype=None, **options: torch.zeros(size, dtype=dtype),
    "diagonal_copy": lambda x, *axes: x.diagonal(*axes).clone(),
    "take": lambda x, index: x.reshape(-1)[index],
    "isin.Tensor_Tensor": lambda x, among, *, assume_unique=False, invert=False: (
        (x.unsqueeze(-1) == among.reshape(-1)).any(-1) ^ invert
    ),
    "bucketize.Tensor": lambda x, edges, **options: _searchsorted(edges, x, **options),
    "embedding": lambda weight, indices, *rest: weight.index_select(0, indices.reshape(-1)).view(
        *indices.shape, *weight.shape[1:]
    ),
}


# Activations, losses and normalisations of `torch.nn`.


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


def _share(gradient: Tensor, x: Tensor, reduction: int) -> Tensor:
    """Return the gradient of each loss from that of the reduced one."""
    return gradient / x.numel() if reduction == 1 else gradient


def _outside(x: Tensor, inside: Tensor, limit: float) -> Tensor:
    """Return `x` where `inside` is beyond the limits, else 0."""
    return torch.where((inside >= -limit) & (inside <= limit), 0.0, x)


@_decomposes("mish_backward")
def _mish_backward(gradient: Tensor, x: Tensor) -> Tensor:
    inner = F.softplus(x).tanh()
    return gradient * (inner + x * x.sigmoid() * (1 - inner * inner))


@_decomposes("glu")
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid()


@_decomposes("glu_backward")
def _glu_backward(gradient: Tensor, x: Tensor, dim: int) -> Tensor:
    value, gate = x.chunk(2, dim)
    open_ = gate.sigmoid()
    return torch.cat([gradient * open_, gradient * value * open_ * (1 - open_)], dim)


@_decomposes("logit_backward")
def _logit_backward(gradient: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    low, outside = (0.0, math.nan) if eps is None else (eps, 0.0)
    return torch.where((x >= low) & (x <= 1 - low), gradient / (x * (1 - x)), outside)


@_decomposes("huber_loss")
def _huber(x: Tensor, y: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    size = (x - y).abs()
    losses = torch.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))
    return _reduced(losses, reduction)


@_decomposes("smooth_l1_loss")
def _smooth(x: Tensor, y: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    size = (x - y).abs()
    if beta:
        size = torch.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta)
    return _reduced(size, reduction)


@_decomposes("smooth_l1_loss_backward")
def _smooth_backward(gradient: Tensor, x: Tensor, y: Tensor, reduction: int, beta: float) -> Tensor:
    each = _share(gradient, x, reduction)
    return each * (((x - y) / beta).clamp(-1, 1) if beta else (x - y).sign())


@_decomposes("binary_cross_entropy")
def _cross_entropy(
    x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    losses = (y - 1) * torch.log1p(-x).clamp(min=-100) - y * x.log().clamp(min=-100)
    return _reduced(losses if weight is None else losses * weight, reduction)


@_decomposes("binary_cross_entropy_backward")
def _cross_entropy_backward(
    gradient: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    each = _share(gradient, x, reduction) * (x - y) / ((1 - x) * x).clamp(min=1e-12)
    return each if weight is None else each * weight


def _picked(
    x: Tensor, target: Tensor, weight: Tensor | None, ignored: int
) -> tuple[Tensor, Tensor]:
    """Return the index and the weight of each observation's class; ignored ones weigh 0."""
    counts = target != ignored
    safe = torch.where(counts, target, 0)
    each = torch.ones_like(safe, dtype=x.dtype) if weight is None else weight[safe]
    return safe.unsqueeze(-1), torch.where(counts, each, 0.0).unsqueeze(-1)


@_decomposes("nll_loss_forward")
def _nll(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> Any:
    index, weights = _picked(x, target, weight, ignored)
    losses, total = (-x.gather(-1, index) * weights).squeeze(-1), weights.sum()
    if reduction == 0:
        return losses, x.new_zeros(())
    return losses.sum() / total if reduction == 1 else losses.sum(), total


@_decomposes("nll_loss_backward")
def _nll_backward(
    gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, *rest: Any
) -> Tensor:
    ignored, total = rest
    index, weights = _picked(x, target, weight, ignored)
    gradient = gradient / total if reduction == 1 else gradient
    gradient = gradient.unsqueeze(-1) if reduction == 0 else gradient
    return torch.zeros_like(x).scatter(-1, index, -gradient * weights)


@_decomposes("native_layer_norm")
def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    scale = ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    out = centred * scale
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, scale


@_decomposes("native_layer_norm_backward")
def _layer_norm_backward(
    gradient: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, scale: Tensor, *rest: Any
) -> tuple[Tensor | None, ...]:
    weight, _, mask = rest
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    normal, lead = (x - mean) * scale, tuple(range(x.ndim - len(shape)))
    inner = gradient if weight is None else gradient * weight
    centred = inner - inner.mean(dims, keepdim=True)
    centred = centred - normal * (inner * normal).mean(dims, keepdim=True)
    by_weight, by_bias = gradient * normal, gradient
    if lead:
        by_weight, by_bias = by_weight.sum(lead), by_bias.sum(lead)
    return scale * centred, by_weight if mask[1] else None, by_bias if mask[2] else None


_decompositions |= {
    "sinc": lambda x: torch.where(x == 0, 1.0, (math.pi * x).sin() / (math.pi * x)),
    "logit": lambda x, eps=None: (
        (x / (1 - x)).log() if eps is None else aten.logit(x.clamp(eps, 1 - eps))
    ),
    "celu": lambda x, alpha=1.0: aten.elu(x, alpha, 1.0, 1 / alpha),
    "mish": lambda x: x * F.softplus(x).tanh(),
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "hardswish_backward": lambda g, x: torch.where(
        x <= -3, 0.0, torch.where(x < 3, g * (x / 3 + 0.5), g)
    ),
    "hardsigmoid": lambda x: (x + 3).clamp(0, 6) / 6,
    "hardsigmoid_backward": lambda g, x: torch.where((x > -3) & (x < 3), g / 6, 0.0),
    "softshrink": lambda x, limit=0.5: torch.where(
        x > limit, x - limit, torch.where(x < -limit, x + limit, x * 0.0)
    ),
    "softshrink_backward": _outside,
    "hardshrink": lambda x, limit=0.5: _outside(x, x, limit),
    "hardshrink_backward": _outside,
    "_prelu_kernel": lambda x, weight: torch.where(x > 0, x, weight * x),
    "_prelu_kernel_backward": lambda g, x, weight: (
        torch.where(x > 0, g, weight * g),
        torch.where(x > 0, 0.0, x * g),
    ),
    "mse_loss": lambda x, y, reduction=1: _reduced((x - y) * (x - y), reduction),
    "mse_loss_backward": lambda g, x, y, reduction: _share(g, x, reduction) * 2 * (x - y),
    "huber_loss_backward": lambda g, x, y, reduction, delta: (
        _share(g, x, reduction) * (x - y).clamp(-delta, delta)
    ),
}
