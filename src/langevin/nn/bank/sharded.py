"""Sharded tensors (`DTensor`) to and from one file, and agreement between ranks.

The part of a tensor that a rank holds is a list of boxes, nearly always one: its position in the
whole tensor and in the rank's own. `distribute_tensor` of an index gives them without a message,
for every mesh and placement; of ranks with the same box the lowest one sends. Tensors go to rank 0,
or come from the file, one block of rows at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, pairwise, product
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from langevin.execution import shards
from langevin.execution.shards import as_shard, places_along

if TYPE_CHECKING:  # takes long to import
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

__all__ = [
    "Box",
    "boxes_of",
    "check_claims",
    "collective",
    "differing_copies",
    "gathering",
    "has_class",
    "has_copies",
    "is_dtensor",
    "is_sharded",
    "is_writer",
    "local_of",
    "scatter",
]

BLOCK = 2**20  # bytes to send, or to read from a file, at a time; at least one row
Pieces: TypeAlias = Callable[[str], Iterator[Tensor]]
Parts: TypeAlias = "dict[str, tuple[DTensor, list[Box]]]"


class Box(NamedTuple):
    """A part of a tensor that one rank holds."""

    rank: int
    start: tuple[int, ...]  # in the whole tensor, by axis
    stop: tuple[int, ...]
    local: tuple[int, ...]  # position of `start` in the rank's own tensor

    def rows(self, first: int, last: int) -> Box | None:
        """Return the part of the box in these rows of the whole tensor; None if it is empty."""
        start, stop = max(first, self.start[0]), min(last, self.stop[0])
        if start >= stop:
            return None
        local = (self.local[0] + start - self.start[0], *self.local[1:])
        return Box(self.rank, (start, *self.start[1:]), (stop, *self.stop[1:]), local)

    def of_block(self, block: Tensor, first: int) -> Tensor:
        """Return the box as a view of the rows of the whole tensor that start at `first`."""
        rows = slice(self.start[0] - first, self.stop[0] - first)
        return block[(rows, *map(slice, self.start[1:], self.stop[1:]))]

    def of_local(self, local: Tensor) -> Tensor:
        """Return the box as a view of the rank's own tensor."""
        axes = zip(self.local, self.start, self.stop, strict=True)
        return local[tuple(slice(k, k + stop - start) for k, start, stop in axes)]


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Whether it is a DTensor."""
    return isinstance(tensor, Tensor) and shards.is_sharded(tensor)


def has_class(model: nn.Module, name: str) -> bool:
    """Whether a module in the model is of a class of this name."""
    return any(kind.__name__ == name for part in model.modules() for kind in type(part).__mro__)


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is sharded; `fully_shard` shows whole tensors from forward to backward."""
    tensors = (*model.parameters(), *model.buffers())
    return has_class(model, "FSDPModule") or any(map(is_dtensor, tensors))


def local_of(tensor: DTensor) -> Tensor:
    """Return this rank's part of a DTensor, with at least one axis."""
    local: Tensor = tensor.to_local().detach()
    return local if local.ndim else local.view(1)


def boxes_of(name: str, tensor: DTensor) -> list[Box]:
    """Return this rank's boxes of a DTensor.

    Raises:
        ValueError: the rank's part has another shape than its placements imply.
    """
    mesh, shape, rank = tensor.device_mesh, tuple(tensor.shape) or (1,), dist.get_rank()
    if mesh.get_coordinate() is None:
        return []
    runs = [_runs(axis, shape, mesh, tensor.placements) for axis in range(len(shape))]
    expected = tuple(sum(stop - start for start, stop, _ in axis) for axis in runs)
    if expected != (found := tuple(local_of(tensor).shape)):
        where = f"{name} {tensor.placements} on rank {rank}"
        raise ValueError(
            "SampleBank needs parts as torch cuts them, "
            f"of shape {expected} for {where}, got {found}"
        )
    return [Box(rank, *(tuple(part) for part in zip(*box, strict=True))) for box in product(*runs)]


def _runs(
    axis: int, shape: tuple[int, ...], mesh: DeviceMesh, placements: Sequence[Placement]
) -> list[tuple[int, int, int]]:
    """Return the rank's part of one axis as (start, stop, position in the rank's own tensor)."""
    found = places_along(axis, shape, mesh, placements)
    if found is None:
        return [(0, shape[axis], 0)] if shape[axis] else []
    mine = torch.from_numpy(found)
    breaks = (mine.diff() != 1).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(mine)] if len(mine) else []
    return [(int(mine[a]), int(mine[b - 1]) + 1, a) for a, b in pairwise(edges)]


def has_copies(tensor: Tensor) -> bool:
    """Whether another rank may hold the same part of a tensor."""
    if not is_dtensor(tensor) or tensor.device_mesh.size() < dist.get_world_size():
        return True
    return any(placement.is_replicate() for placement in tensor.placements)


def differing_copies(
    boxes: Sequence[Mapping[str, list[Box]]], sums: Sequence[Mapping[str, int]]
) -> list[str]:
    """Name the parts whose checksums differ between ranks; arguments by rank, then by name."""
    first: dict[object, tuple[int, int]] = {}
    wrong = []
    for rank, (parts, checksums) in enumerate(zip(boxes, sums, strict=True)):
        for name, checksum in checksums.items():
            same_part = (name, *((box.start, box.stop) for box in parts.get(name, ())))
            other, expected = first.setdefault(same_part, (rank, checksum))
            if checksum != expected:
                wrong.append(f"{name} (ranks {other} and {rank})")
    return wrong


@contextmanager
def gathering(
    tensors: Mapping[str, DTensor], boxes: Sequence[Mapping[str, list[Box]]]
) -> Iterator[Pieces]:
    """Yield a function that gathers the next tensor, given its name, on rank 0 block by block.

    Every rank sends or receives the same blocks in the same order. On exit, also after an error but
    not after an interrupt, the remaining blocks are sent and dropped, as other ranks wait for them.

    Args:
        tensors: The DTensors by name, in the order in which they are gathered, on every rank.
        boxes: For each rank, its boxes by name.

    Raises:
        ValueError: the boxes do not fill a tensor.
    """
    unique = {name: _once(parts[name] for parts in boxes) for name in tensors}
    for name, tensor in tensors.items():
        found = sum(math.prod(map(sub, box.stop, box.start)) for box in unique[name])
        if found != tensor.numel():
            raise ValueError(
                f"the ranks have {found} of the {tensor.numel()} elements of {name}: "
                "is a rank missing?"
            )
    blocks = (block for name in tensors for block in _blocks(name, tensors[name], unique[name]))
    try:
        yield lambda name: islice(blocks, len(_spans(tensors[name])))
    except Exception:
        deque(blocks, maxlen=0)
        raise
    deque(blocks, maxlen=0)


def _blocks(name: str, tensor: DTensor, boxes: list[Box]) -> Iterator[Tensor]:
    """Send this rank's rows to rank 0, which yields blocks of rows of the whole tensor."""
    local, device, me = local_of(tensor), tensor.device_mesh.device_type, dist.get_rank()
    block = torch.empty(0, dtype=tensor.dtype)
    for first, last in _spans(tensor):
        if me == 0:
            block = torch.empty((last - first, *tensor.shape[1:]), dtype=tensor.dtype)
        for box in filter(None, (box.rows(first, last) for box in boxes)):
            if box.rank == me == 0:
                box.of_block(block, first).copy_(box.of_local(local))
            elif box.rank == me:
                _transfer(name, box.of_local(local).to(device).contiguous(), 0)
            elif me == 0:
                target = box.of_block(block, first)
                part = torch.empty(target.shape, dtype=tensor.dtype, device=device)
                _transfer(name, part, box.rank)
                target.copy_(part)
        yield block


def _transfer(name: str, tensor: Tensor, other: int) -> None:
    """Send a contiguous tensor as bytes to rank 0, or receive it from another rank there."""
    try:
        (dist.send if other == 0 else dist.recv)(tensor.view(-1).view(torch.uint8), other)
    except Exception as error:
        raise RuntimeError(
            f"SampleBank.add has lost rank {other} while {name} was gathered: {error}"
        ) from error


def scatter(tensor: DTensor, boxes: Sequence[Box], rows: Callable[[int, int], Tensor]) -> Tensor:
    """Return a DTensor sharded like another, with the values of a whole tensor; sends no message.

    Args:
        tensor: The DTensor that gives the layout.
        boxes: This rank's boxes of it.
        rows: Returns the rows of the whole tensor from the first to the last (exclusive).
    """
    local = torch.empty(local_of(tensor).shape, dtype=tensor.dtype)
    for box in boxes:
        for first, last in _spans(tensor, box.start[0], box.stop[0]):
            if part := box.rows(first, last):
                part.of_local(local).copy_(part.of_block(rows(first, last), first))
    return as_shard(local.view(tensor.to_local().shape), tensor)


def _spans(tensor: Tensor, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
    """Cut the rows of a tensor into blocks."""
    shape = tuple(tensor.shape) or (1,)
    last = shape[0] if last is None else last
    step = max(1, BLOCK // max(1, torch.Size(shape[1:]).numel() * tensor.dtype.itemsize))
    return [(start, min(start + step, last)) for start in range(first, last, step)]


def _once(parts: Iterator[list[Box]]) -> list[Box]:
    """Return every box once, from the lowest rank that holds it."""
    boxes: dict[object, Box] = {}
    for box in (box for part in parts for box in part):
        boxes.setdefault((box.start, box.stop), box)
    return list(boxes.values())


# ---- agreement between ranks


class ElsewhereError(RuntimeError):
    """Another rank failed, or did not answer."""


def is_writer() -> bool:
    """Whether this process writes: all do, except ranks above 0 of a distributed run."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


@contextmanager
def collective(who: str) -> Iterator[Callable[[Any], list[Any]]]:
    """Yield a function that waits for all ranks and returns the values that they passed, by rank.

    A rank that fails in the block tells the others, which raise an `ElsewhereError` at their next
    call of the function, so nothing after its last call in the block may fail. After an interrupt
    (Ctrl-C) no message is sent.
    """

    def exchange(failure: str | None, value: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (failure, value))
        return found

    def agree(value: Any) -> list[Any]:
        try:
            found = exchange(None, value)
        except Exception as error:
            raise ElsewhereError(
                f"{who}: a rank has died, or did not answer in the group's timeout ({error})"
            ) from error
        for rank, (failure, _) in enumerate(found):
            if failure is not None:
                raise ElsewhereError(f"{who} failed on rank {rank}, so on every rank: {failure}")
        return [value for _, value in found]

    try:
        yield agree
    except ElsewhereError:
        raise
    except Exception as error:
        with suppress(Exception):  # ranks that are gone receive no message
            exchange(f"{type(error).__name__}: {error}", None)
        raise


def check_claims(claims: Sequence[dict[str, Any]]) -> None:
    """Fail, on every rank alike, unless all ranks pass the same values."""
    for rank, claim in enumerate(claims):
        for name, value in claim.items():
            if value != (first := claims[0][name]):
                both = f"{first!r:.200} on rank 0, {value!r:.200} on {rank}"
                raise ValueError(f"SampleBank needs the same {name} on every rank, got {both}")
