"""Tensors that are spread over the ranks of a distributed run (`DTensor`), and how a draw of them passes through one file.

A rank's part of a tensor is a list of boxes, nearly always one: where it is in the whole tensor, and where in the rank's memory.
The boxes are read off torch (`distribute_tensor` of an index, which sends no message), so any sharding of any mesh will do; of
ranks that have the same box the lowest one counts. A tensor then goes to the writer, or comes from the file, some rows at a time:
no rank ever has more than its own part and one block of rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from langevin.shards import is_sharded as is_dtensor
from langevin.shards import places_along

__all__ = ["Box", "Gather", "boxes_of", "differing_copies", "has_copies", "is_dtensor", "is_sharded", "local_of", "share_out"]

BLOCK = 2**20  # bytes that are sent, or read from a file, at a time; at least one row


class Box(NamedTuple):
    """A part of a tensor that one rank has."""

    rank: int
    start: tuple[int, ...]  # in the whole tensor, by axis
    stop: tuple[int, ...]
    local: tuple[int, ...]  # where `start` is in the rank's own tensor

    def rows(self, first: int, last: int) -> "Box | None":
        """Return the part of the box in these rows (the first axis) of the whole tensor; None if there is none."""
        start, stop = max(first, self.start[0]), min(last, self.stop[0])
        local = (self.local[0] + start - self.start[0], *self.local[1:])
        return Box(self.rank, (start, *self.start[1:]), (stop, *self.stop[1:]), local) if start < stop else None

    def of_block(self, block: Tensor, first: int) -> Tensor:
        """Return the box as a view of the rows of the whole tensor that start at `first`."""
        return block[(slice(self.start[0] - first, self.stop[0] - first), *map(slice, self.start[1:], self.stop[1:]))]

    def of_local(self, local: Tensor) -> Tensor:
        """Return the box as a view of the rank's own tensor."""
        return local[tuple(slice(k, k + stop - start) for k, start, stop in zip(self.local, self.start, self.stop, strict=True))]


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is spread over ranks; between forward and backward `fully_shard` may show whole tensors."""
    if any(kind.__name__ == "FSDPModule" for module in model.modules() for kind in type(module).__mro__):
        return True
    return any(map(is_dtensor, (*model.parameters(), *model.buffers())))


def local_of(tensor: Any) -> Tensor:
    """Return this rank's part of a DTensor, with one axis at least."""
    local: Tensor = tensor.detach().to_local()
    return local if local.ndim else local.view(1)


def boxes_of(name: str, tensor: Any) -> list[Box]:
    """Return this rank's boxes of a DTensor; a ValueError names one whose part is not what its placements say."""
    mesh, shape, found, rank = (
        tensor.device_mesh,
        tuple(tensor.shape) or (1,),
        tuple(local_of(tensor).shape),
        torch.distributed.get_rank(),
    )
    if mesh.get_coordinate() is None:
        return []
    runs = [_runs(axis, shape, mesh, tensor.placements) for axis in range(len(shape))]
    if (expected := tuple(sum(stop - start for start, stop, _ in axis) for axis in runs)) != found:
        where = f"{name} {tensor.placements} on rank {rank}"
        raise ValueError(f"SampleBank needs parts as torch cuts them, of shape {expected} for {where}, got {found}")
    return [Box(rank, *(tuple(part) for part in zip(*box, strict=True))) for box in product(*runs)]


def _runs(axis: int, shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Return what a rank has of one axis, as (start, stop, place in the rank's own tensor)."""
    found = places_along(axis, shape, mesh, placements)
    if found is None:
        return [(0, shape[axis], 0)] if shape[axis] else []
    mine = torch.from_numpy(found)
    breaks = (mine.diff() != 1).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(mine)] if len(mine) else []
    return [(int(mine[a]), int(mine[b - 1]) + 1, a) for a, b in pairwise(edges)]


def has_copies(tensor: Any) -> bool:
    """Whether another rank may have what this one has of a tensor."""
    whole = not is_dtensor(tensor) or tensor.device_mesh.size() < torch.distributed.get_world_size()
    return whole or any(placement.is_replicate() for placement in tensor.placements)


def differing_copies(boxes: Sequence[Mapping[str, list[Box]]], sums: Sequence[Mapping[str, int]]) -> list[str]:
    """Say which parts are on two ranks with different checksums; both arguments are by rank, then by name."""
    first: dict[Any, tuple[int, int]] = {}
    wrong = []
    for rank, (parts, checksums) in enumerate(zip(boxes, sums, strict=True)):
        for name, checksum in checksums.items():
            same_part = (name, *((box.start, box.stop) for box in parts.get(name, ())))
            other, expected = first.setdefault(same_part, (rank, checksum))
            if checksum != expected:
                wrong.append(f"{name} (ranks {other} and {rank})")
    return wrong


class Gather:
    """Brings whole tensors to rank 0 block by block; every rank goes through the same blocks in the same order.

    Args:
        tensors: The DTensors, by name, in the order in which they are asked for; the same names on every rank.
        boxes: For each rank, its boxes by name. A ValueError names a tensor that they do not fill.
    """

    def __init__(self, tensors: Mapping[str, Any], boxes: Sequence[Mapping[str, list[Box]]]) -> None:
        """Check that the boxes fill the tensors; nothing is sent yet."""
        self._tensors, self._boxes = tensors, {name: _once(part[name] for part in boxes) for name in tensors}
        for name, tensor in tensors.items():
            found = sum(torch.Size([b - a for a, b in zip(box.start, box.stop, strict=True)]).numel() for box in self._boxes[name])
            if found != tensor.numel():
                raise ValueError(f"the ranks have {found} of the {tensor.numel()} elements of {name}: is a rank missing?")
        self._rest = (block for name in tensors for block in self._blocks(name))

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield, on rank 0, the rows of the next tensor, on the CPU."""
        for _ in _spans(self._tensors[name]):
            yield next(self._rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        """Take part in what is left, and forget it: the other ranks wait for it; not after Ctrl-C."""
        if kind is None or issubclass(kind, Exception):
            for _ in self._rest:
                pass

    def _blocks(self, name: str) -> Iterator[Tensor]:
        distributed, tensor, local = torch.distributed, self._tensors[name], local_of(self._tensors[name])
        device, me = tensor.device_mesh.device_type, distributed.get_rank()
        block = torch.empty(0, dtype=tensor.dtype)
        for first, last in _spans(tensor):
            if me == 0:
                block = torch.empty((last - first, *tensor.shape[1:]), dtype=tensor.dtype)
            for box in filter(None, (box.rows(first, last) for box in self._boxes[name])):
                if box.rank == me:
                    part = box.of_local(local)
                    if me == 0:
                        box.of_block(block, first).copy_(part)
                    else:
                        with _connected(name, 0):
                            distributed.send(_bytes(part.to(device).contiguous()), 0)
                elif me == 0:
                    place = box.of_block(block, first)
                    part = torch.empty(place.shape, dtype=tensor.dtype, device=device)
                    with _connected(name, box.rank):
                        distributed.recv(_bytes(part), box.rank)
                    place.copy_(part)
            yield block


def share_out(tensor: Any, boxes: Sequence[Box], rows: Callable[[int, int], Tensor]) -> Any:
    """Return a DTensor with the layout of another and the values of a whole tensor; no message is sent.

    Args:
        tensor: The DTensor whose layout is wanted.
        boxes: This rank's boxes of it.
        rows: A function from the first and the last row (exclusive) to these rows of the whole tensor.
    """
    from torch.distributed.tensor import DTensor

    local = torch.empty(local_of(tensor).shape, dtype=tensor.dtype)
    for box in boxes:
        for first, last in _spans(tensor, box.start[0], box.stop[0]):
            part = box.rows(first, last)
            if part is not None:
                part.of_local(local).copy_(part.of_block(rows(first, last), first))
    shaped, options = local.view(tensor.to_local().shape), {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(shaped, tensor.device_mesh, tensor.placements, run_check=False, **options)


def _spans(tensor: Any, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
    """Cut the rows of a tensor into blocks."""
    shape = tuple(tensor.shape) or (1,)
    last = shape[0] if last is None else last
    step = max(1, BLOCK // max(1, torch.Size(shape[1:]).numel() * tensor.dtype.itemsize))
    return ((start, min(start + step, last)) for start in range(first, last, step))


def _once(parts: Iterator[list[Box]]) -> list[Box]:
    """Return every box once, from the lowest rank that has it."""
    boxes: dict[Any, Box] = {}
    for box in (box for part in parts for box in part):
        boxes.setdefault((box.start, box.stop), box)
    return list(boxes.values())


@contextmanager
def _connected(name: str, rank: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"SampleBank.add has lost rank {rank} while {name} was gathered: {error}") from error


def _bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor: a message has bytes, whatever the dtype."""
    return tensor.view(-1).view(torch.uint8)
