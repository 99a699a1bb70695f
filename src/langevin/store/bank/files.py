"""One draw in one safetensors file, written and read piece by piece: neither takes a second copy of the model.

The library's `save` copies the model twice; its `save_file` refuses tensors that overlap, wants all of them on the CPU and
contiguous at once, and leaves checksum and fsync to a second pass. The format is simple: the length of a JSON header in 8 bytes,
the header, the tensors' little-endian bytes one after the other. Tensors of wide dtypes come first, so each one is aligned.
"""

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.store.bank.contents import JSON, Draw, compare
from langevin.store.bank.sharded import Gather, is_dtensor, share_out
from langevin.store.journal import write_atomic

__all__ = ["CODES", "CorruptDrawError", "bytes_of", "checksum", "pieces", "read_draw", "stored_tensors", "write_draw"]

PIECE = 2**20  # bytes that are copied, checked and written at a time
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: str(dtype).removeprefix("torch.") for dtype, code in CODES.items()}


class CorruptDrawError(ValueError):
    """A draw's file is missing, damaged, or not what the manifest says; the message names the file.

    Example:
        >>> import tempfile
        >>> import langevin as lv
        >>> from torch import nn
        >>> bank = lv.SampleBank(tempfile.mkdtemp())
        >>> _ = bank.add(nn.Linear(2, 1))
        >>> _ = next(bank.path.glob("draw-*")).write_bytes(b"cut off")
        >>> try:
        ...     bank.state_dict(0)
        ... except lv.CorruptDrawError:
        ...     print("damaged")
        damaged
    """


def stored_tensors(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a state that a file has, in its order, and the names (tied name -> stored name) of the others."""
    aliases: dict[str, str] = {}
    stored: dict[Any, str] = {}
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            place = stored.setdefault(id(tensor) if is_dtensor(tensor) else _place(tensor), name)
            if place != name:
                aliases[name] = place
    ordered = sorted(stored.values(), key=lambda name: -state[name].dtype.itemsize)
    return {name: state[name] for name in ordered}, aliases


def _place(tensor: Tensor) -> tuple[Any, ...]:
    where = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    return *where, tensor.is_conj(), tensor.is_neg()


def write_draw(path: Path, state: Mapping[str, Any], finite: Collection[str] = (), gather: Gather | None = None) -> dict[str, Any]:
    """Write a state to its file and return what the manifest says of the file.

    Args:
        path: The file.
        state: Tensors whose dtypes are among CODES, and JSON values.
        finite: Names of tensors that must be finite; a ValueError names the first that is not, and nothing is written.
        gather: What brings the DTensors of the state here, in the file's order.
    """
    extra = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    tensors, aliases = stored_tensors(state)
    finite = {aliases.get(name, name) for name in finite}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **({"extra_state": json.dumps(extra)} if extra else {})}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()

    def parts() -> Iterator[bytes | memoryview]:
        yield len(head).to_bytes(8, "little") + head
        for name, tensor in tensors.items():
            for piece in gather.pieces(name) if gather and is_dtensor(tensor) else pieces(tensor):
                if name in finite:
                    _check_finite(name, piece)
                yield memoryview(bytes_of(piece))

    def hashed() -> Iterator[bytes | memoryview]:
        for part in parts():
            digest.update(part)
            yield part

    write_atomic(path, hashed())
    return {"file": path.name, "sha256": digest.hexdigest(), "bytes": 8 + len(head) + end, "aliases": aliases}


def read_draw(draw: Draw, expected: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a draw's state, on the CPU. A `CorruptDrawError` says what is wrong with the file.

    Args:
        draw: The draw.
        expected: Describes its state.
        like: DTensors by name, with this rank's boxes: of these names its part is read, if the shape is the same.
    """
    try:
        with draw.path.open("rb") as file:  # one descriptor for both passes: the file that was checked is the file that is read
            size = os.fstat(file.fileno()).st_size
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != draw.sha256:
                sizes = f"expected {draw.bytes} bytes, sha256 {draw.sha256[:12]}, found {size} bytes, {sha256[:12]}"
                raise CorruptDrawError(f"{draw.path}: draw {draw.index} is damaged or foreign: {sizes}")
            file.seek(0)
            return _load(file, size, draw, expected, like or {})
    except OSError as error:
        raise CorruptDrawError(f"{draw.path}: draw {draw.index} cannot be read: {error.strerror}") from error
    except CorruptDrawError:
        raise
    except Exception as error:
        raise CorruptDrawError(f"{draw.path}: draw {draw.index} is not a safetensors draw: {error}") from error


def _load(file: BinaryIO, size: int, draw: Draw, expected: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise ValueError("its header is longer than the file")
    header = json.loads(file.read(length))
    state: dict[str, Any] = json.loads(header.pop("__metadata__", {}).get("extra_state", "{}"))
    ordered = sorted(header, key=lambda name: header[name]["data_offsets"])
    found = {name: [_DTYPES[header[name]["dtype"]], header[name]["shape"]] for name in ordered} | dict.fromkeys(state, JSON)
    found |= {name: found[stored] for name, stored in draw.aliases.items()}
    if differences := compare(expected, found):
        raise CorruptDrawError(f"{draw.path}: not a draw of this bank: {differences}")
    end = 0
    for name in ordered:  # before any memory is taken
        dtype, shape = found[name]
        start, end = end, end + torch.Size(shape).numel() * getattr(torch, dtype).itemsize
        if header[name]["data_offsets"] != [start, end]:
            raise ValueError(f"{name} should be at bytes {start} to {end}, found {header[name]['data_offsets']}")
    if 8 + length + end != size:
        raise ValueError(f"it should have {8 + length + end} bytes, found {size}")
    whole: dict[str, Tensor] = {}  # by stored name: tied names share one tensor
    for name in expected:
        stored = draw.aliases.get(name, name)
        if stored not in header:
            continue
        dtype, shape = found[stored]
        rows = partial(_rows, file, 8 + length + header[stored]["data_offsets"][0], shape, getattr(torch, dtype))
        tensor, boxes = like.get(name, (None, None))
        if tensor is not None and list(tensor.shape) == shape:
            state[name] = share_out(tensor, boxes, rows)
            continue
        if stored not in whole:
            whole[stored] = rows(0, shape[0] if shape else 1).view(shape)
        state[name] = whole[stored]
    return {name: state[name] for name in expected}


def _rows(file: BinaryIO, start: int, shape: list[int], dtype: torch.dtype, first: int, last: int) -> Tensor:
    """Read some rows (along the first axis) of the tensor that starts at a place in the file."""
    rows = torch.empty((last - first, *shape[1:]), dtype=dtype)
    file.seek(start + first * torch.Size(shape[1:]).numel() * dtype.itemsize)
    file.readinto(bytes_of(rows))  # type: ignore[attr-defined]
    return rows


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Cut a tensor, in the order of its elements, into contiguous ones on the CPU of at most PIECE bytes."""
    if tensor.nbytes <= PIECE:
        yield tensor.cpu().resolve_conj().resolve_neg().contiguous()
        return
    whole = tensor.view(-1) if tensor.is_contiguous() else tensor
    rows = PIECE * len(whole) // whole.nbytes
    for part in whole.split(rows) if rows else whole.unbind():
        yield from pieces(part)


def checksum(tensor: Tensor) -> int:
    """Return the CRC of a tensor's elements."""
    crc = 0
    for piece in pieces(tensor.detach()):
        crc = zlib.crc32(bytes_of(piece), crc)
    return crc


def bytes_of(tensor: Tensor) -> Any:
    """Return the memory of a contiguous tensor on the CPU as a NumPy array of bytes."""
    if sys.byteorder != "little":
        raise NotImplementedError("a bank needs a little-endian machine: the bytes of safetensors files are little-endian")
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()  # a single element may have any stride


def _check_finite(name: str, piece: Tensor) -> None:
    values = piece.float() if piece.dtype.itemsize == 1 else piece  # torch has no isfinite for every float8
    finite = torch.isfinite(values)
    if not finite.all():
        raise needs("SampleBank.add", "model", f"finite parameters ({name} is not)", values[~finite][0].item())
