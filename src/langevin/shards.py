"""Which elements of a whole tensor a rank holds: the shard of a DTensor, as stretches of consecutive elements.

Addresses of noise belong to elements of the whole tensor. A shard by rows is one stretch of them, one by columns has a stretch in
each row; meshes of several dimensions, uneven shards and the strided ones of FSDP2 with tensor parallelism are the same thing.
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

__all__ = ["Runs", "as_shard", "gather_runs", "is_sharded", "like_shard", "local_part", "places_along", "runs_of"]

_SPAN = 2**20  # elements of the whole that are drawn at a time where a shard has many stretches


class Runs(NamedTuple):
    """Stretches of consecutive elements of a whole tensor, in the order in which the shard has them in memory."""

    begins: NDArray[np.int64]  # of each, in the whole tensor
    lengths: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each begins in the shard."""
        return np.cumsum(self.lengths) - self.lengths


def is_sharded(tensor: Tensor) -> bool:
    """Say whether a tensor is a DTensor; there is none before its module is imported, which takes long."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Any) -> Any:
    """Return this rank's part of a DTensor, which shares its memory; any other tensor, or None, as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def as_shard(local: Tensor, like: Tensor) -> Tensor:
    """Return a local tensor as this rank's part of a DTensor that is sharded like another one; beside a plain tensor, itself."""
    if not is_sharded(like):
        return local
    from torch.distributed.tensor import DTensor

    whole: Any = like
    place = whole.device_mesh, whole.placements
    return DTensor.from_local(local, *place, run_check=False, shape=like.shape, stride=like.stride())


def like_shard(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor, whole or sharded in another way, sharded like `like`; beside a plain one, a DTensor becomes whole.

    Where shards have to move between ranks, all ranks are to call it.
    """
    whole: Any = like
    given: Any = tensor
    found: Tensor
    if not is_sharded(like):
        found = given.full_tensor() if is_sharded(tensor) else tensor
        return found
    from torch.distributed.tensor import distribute_tensor

    if not is_sharded(tensor):
        return distribute_tensor(
            tensor, whole.device_mesh, whole.placements, src_data_rank=None
        )  # every rank has it: nothing is sent
    found = tensor if given.placements == whole.placements else given.redistribute(whole.device_mesh, whole.placements)
    return found


def runs_of(tensor: Tensor) -> Runs | None:
    """Return which elements of the whole a DTensor's local part holds; None where that is all of them."""
    if not is_sharded(tensor):
        return None
    whole: Any = tensor
    return _runs(tuple(tensor.shape), whole.device_mesh, tuple(whole.placements))


@functools.lru_cache(maxsize=4096)
def _runs(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> Runs | None:
    if partial := [placement for placement in placements if placement.is_partial()]:
        raise needs("optimizer", "params", "parameters whose shards are parts of them, not terms of a sum", partial[0])
    places = [places_along(axis, shape, mesh, placements) for axis in range(len(shape))]
    cut = [axis for axis, found in enumerate(places) if found is not None]
    if not cut:
        return None
    last = cut[-1]
    below = int(np.prod(shape[last + 1 :], dtype=np.int64))  # elements of a place along the last axis that is cut
    inner = places[last]
    assert inner is not None
    jumps = np.flatnonzero(np.diff(inner) != 1) + 1
    edges = np.concatenate([[0], jumps, [len(inner)]]) if len(inner) else np.zeros(1, dtype=np.int64)
    begins, lengths = inner[edges[:-1]] * below, np.diff(edges) * below
    stride = below * shape[last]
    for axis in reversed(range(last)):
        found = places[axis]
        rows = np.arange(shape[axis], dtype=np.int64) if found is None else found
        begins, lengths = (rows[:, None] * stride + begins).ravel(), np.tile(lengths, len(rows))
        stride *= shape[axis]
    return Runs(begins, lengths)


def places_along(axis: int, shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> NDArray[np.int64] | None:
    """Return the places along an axis of a tensor that this rank holds, or None for all: those of an index that is cut alike."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    here = [getattr(placement, "dim", None) == axis for placement in placements]
    if not any(here):
        return None
    index = torch.arange(shape[axis], device=mesh.device_type).view([-1 if other == axis else 1 for other in range(len(shape))])
    kept = [placement if cuts else Replicate() for placement, cuts in zip(placements, here, strict=True)]
    return distribute_tensor(index, mesh, kept, src_data_rank=None).to_local().flatten().cpu().numpy()


def gather_runs(runs: Runs, draw: Callable[[int, int], Tensor]) -> Tensor:
    """Return what `draw(begin, size)` gives for the elements of these stretches, drawing some more where they are short."""
    parts, first = [], 0
    ends = runs.begins + runs.lengths
    while first < len(ends):
        begin = int(runs.begins[first])
        beyond = max(first + 1, int(np.searchsorted(ends, begin + _SPAN, side="right")))  # at least one stretch, or all near it
        drawn = draw(begin, int(ends[beyond - 1]) - begin)
        index = [np.arange(a - begin, b - begin) for a, b in zip(runs.begins[first:beyond], ends[first:beyond], strict=True)]
        parts.append(drawn if beyond == first + 1 else drawn[torch.from_numpy(np.concatenate(index)).to(drawn.device)])
        first = beyond
    return torch.cat(parts)
