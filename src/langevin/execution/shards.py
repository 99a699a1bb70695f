"""The elements of a whole tensor that a rank holds: a DTensor's shard as consecutive runs.

Noise has the address of an element of the whole tensor. A shard of rows is a single run of
elements, a shard of columns has a run in each row. Meshes of several dimensions, uneven shards and
the strided shards of FSDP2 with tensor parallelism need no special case.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from langevin.checks import needs

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Runs",
    "as_shard",
    "gather_runs",
    "is_sharded",
    "like_shard",
    "local_part",
    "places_along",
    "runs_of",
]

_SPAN = 2**20  # elements of the whole tensor that are drawn at once for a shard of many runs


class Runs(NamedTuple):
    """Runs of consecutive elements of a whole tensor, in the shard's memory order."""

    begins: NDArray[np.int64]  # of each, in the whole tensor
    lengths: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        """The index in the shard at which each begins."""
        return np.cumsum(self.lengths) - self.lengths


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, without importing its module, which is slow."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Any) -> Any:
    """Return this rank's part of a DTensor, sharing memory; anything else unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def as_shard(local: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part as a DTensor sharded like `like`; unchanged if `like` is plain."""
    if not is_sharded(like):
        return local
    from torch.distributed.tensor import DTensor

    whole: Any = like
    layout = whole.device_mesh, whole.placements
    return DTensor.from_local(
        local, *layout, run_check=False, shape=like.shape, stride=like.stride()
    )


def like_shard(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor, whole or sharded, sharded like `like`; whole if `like` is plain.

    All ranks must call this together, since shards may move between them.
    """
    whole: Any = like
    given: Any = tensor
    found: Tensor = tensor
    if not is_sharded(like):
        return given.full_tensor() if is_sharded(tensor) else found
    from torch.distributed.tensor import distribute_tensor

    layout = whole.device_mesh, whole.placements
    if not is_sharded(tensor):  # every rank has it: nothing is sent
        return distribute_tensor(tensor, *layout, src_data_rank=None)
    return found if given.placements == whole.placements else given.redistribute(*layout)


def runs_of(tensor: Tensor) -> Runs | None:
    """Return the elements of the whole that a DTensor's local part holds; None for all."""
    if not is_sharded(tensor):
        return None
    whole: Any = tensor
    return _runs(tuple(tensor.shape), whole.device_mesh, tuple(whole.placements))


@functools.lru_cache(maxsize=4096)
def _runs(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> Runs | None:
    if partial := [placement for placement in placements if placement.is_partial()]:
        what = "parameters whose shards are parts of them, not terms of a sum"
        raise needs("optimizer", "params", what, partial[0])
    indices = [places_along(axis, shape, mesh, placements) for axis in range(len(shape))]
    cut = [axis for axis, found in enumerate(indices) if found is not None]
    if not cut:
        return None
    last = cut[-1]
    below = int(np.prod(shape[last + 1 :], dtype=np.int64))  # elements per index of that axis
    inner = indices[last]
    assert inner is not None
    jumps = np.flatnonzero(np.diff(inner) != 1) + 1
    edges = np.concatenate([[0], jumps, [len(inner)]]) if len(inner) else np.zeros(1, np.int64)
    begins, lengths = inner[edges[:-1]] * below, np.diff(edges) * below
    stride = below * shape[last]
    for axis in reversed(range(last)):
        found = indices[axis]
        rows = np.arange(shape[axis], dtype=np.int64) if found is None else found
        begins, lengths = (rows[:, None] * stride + begins).ravel(), np.tile(lengths, len(rows))
        stride *= shape[axis]
    return Runs(begins, lengths)


def places_along(
    axis: int, shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]
) -> NDArray[np.int64] | None:
    """Return the indices along an axis of a tensor that this rank holds, or None for all."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    here = [getattr(placement, "dim", None) == axis for placement in placements]
    if not any(here):
        return None
    shards = zip(placements, here, strict=True)
    kept = [placement if cuts else Replicate() for placement, cuts in shards]
    sizes = [-1 if other == axis else 1 for other in range(len(shape))]
    index = torch.arange(shape[axis], device=mesh.device_type).view(sizes)  # sharded likewise
    local = distribute_tensor(index, mesh, kept, src_data_rank=None).to_local()
    return local.flatten().cpu().numpy()


def gather_runs(runs: Runs, draw: Callable[[int, int], Tensor]) -> Tensor:
    """Return `draw(begin, size)` of the elements of runs; draws short runs with those between."""
    parts, first = [], 0
    ends = runs.begins + runs.lengths
    while first < len(ends):
        begin = int(runs.begins[first])
        near = int(np.searchsorted(ends, begin + _SPAN, side="right"))
        beyond = max(first + 1, near)
        drawn = draw(begin, int(ends[beyond - 1]) - begin)
        if beyond > first + 1:
            pairs = zip(runs.begins[first:beyond], ends[first:beyond], strict=True)
            index = np.concatenate([np.arange(a - begin, b - begin) for a, b in pairs])
            drawn = drawn[torch.from_numpy(index).to(drawn.device)]
        parts.append(drawn)
        first = beyond
    return torch.cat(parts)
