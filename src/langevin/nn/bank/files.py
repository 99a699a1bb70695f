"""The files of a bank: the manifest, and one safetensors file per draw, written and read in pieces.

The safetensors library would copy the model twice (`save`), or need all tensors contiguous on the
CPU at once (`save_file`), and leaves checksum and fsync to a second pass. The format is simple: the
length of a JSON header in 8 bytes, the header, then the tensors' little-endian bytes, wide dtypes
first, which aligns each tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.nn.bank.sharded import Parts, Pieces, is_dtensor, scatter
from langevin.nn.tensor_bytes import bytes_of, pieces
from langevin.storage.journal import write_atomic
from langevin.storage.safe_io import open_regular

__all__ = [
    "CODES",
    "Contents",
    "CorruptDrawError",
    "Draw",
    "compare",
    "describe",
    "file_name",
    "read_draw",
    "revision_of",
    "stored_tensors",
    "write_draw",
]

State: TypeAlias = dict[str, Any]  # tensors and JSON values by name
Line: TypeAlias = dict[str, Any]  # of the manifest
Layout: TypeAlias = dict[str, list[Any]]  # [dtype, shape] by name, or _JSON
Check: TypeAlias = Callable[[object], bool]

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
_DTYPES = {code: dtype for dtype, code in CODES.items()}
_JSON = ["json"]  # in place of dtype and shape: extra state that is not a tensor


class CorruptDrawError(ValueError):
    """A draw's file is missing, damaged, or not the one in the manifest; names the file.

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


# ---- manifest


@dataclass(frozen=True)
class Draw:
    """One kept draw, as listed in the manifest."""

    index: int  # running number of the draw; unlike its position in the bank it never changes
    path: Path
    step: int | None
    metrics: dict[str, Any]
    calls: int  # which call of `add` made it, counted from 1
    time: float  # seconds since 1970
    bytes: int
    sha256: str
    aliases: dict[str, str]  # tied name -> the name it is stored under


def _is_int(low: int) -> Check:
    return lambda value: type(value) is int and low <= value < 2**63


def _maps_to(holds: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _is_description(value: object) -> bool:
    match value:
        case [str(), list(sizes)]:
            return all(map(_is_int(0), sizes))
    return bool(value == _JSON)


_FIELDS: dict[str, tuple[str, Check]] = {
    "tensors": ("dtypes and shapes by name", _maps_to(_is_description)),
    "frozen": (
        "lists of numbers by name",
        _maps_to(lambda value: isinstance(value, list) and all(type(k) is float for k in value)),
    ),
    "index": ("an int >= 0", _is_int(0)),
    "step": ("an int or null", lambda value: value is None or type(value) is int),
    "metrics": ("an object", lambda value: isinstance(value, dict)),
    "calls": ("an int >= 0", _is_int(0)),
    "time": (
        "a finite number",
        lambda value: (type(value) is float and math.isfinite(value)) or _is_int(-(2**63))(value),
    ),
    "file": ("the name of a file", lambda value: isinstance(value, str)),
    "sha256": (
        "64 hexadecimal digits",
        lambda value: isinstance(value, str) and bool(re.fullmatch(r"[0-9a-f]{64}", value)),
    ),
    "bytes": ("an int >= 0", _is_int(0)),
    "aliases": (
        "names of tensors by names of tensors",
        _maps_to(lambda value: isinstance(value, str)),
    ),
}


def _fields(entry: Line, *names: str) -> Line:
    """Return fields of a manifest line, or fail unless a bank can have written their values."""
    for name in names:
        condition, holds = _FIELDS[name]
        if name not in entry:
            raise ValueError(f"{name} needs {condition}, found none")
        if not holds(entry[name]):
            raise ValueError(f"{name} needs {condition}, found {entry[name]!r:.200}")
    return {name: entry[name] for name in names}


@dataclass
class Contents:
    """The state of a bank's journal."""

    folder: Path
    tensors: Layout | None = None  # None before the header
    # parameters that draws do not hold, and some of their values
    frozen: dict[str, list[float]] = field(default_factory=dict)
    draws: dict[int, Draw] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)  # files that are gone, or about to be deleted
    calls: int = 0
    next_index: int = 0

    def apply(self, entry: Line) -> None:
        """Apply one manifest line; a ValueError names the field that no bank writes."""
        kind = entry["kind"]
        if kind == "header":
            found = _fields({"frozen": {}, **entry}, "tensors", "frozen")
            self.tensors, self.frozen = found.values()
            if both := sorted(found["tensors"].keys() & self.frozen):
                raise ValueError(
                    f"frozen needs names of parameters that draws do not hold, found {both}"
                )
        elif kind == "draw":
            found = _fields(entry, "index", "step", "metrics", "calls", "time")
            index, calls = found["index"], found["calls"]
            if index != self.next_index:
                raise ValueError(
                    f"index needs {self.next_index}, the number of the next draw, found {index}"
                )
            if not calls:
                raise ValueError("calls needs an int >= 1, found 0")
            self.draws[index] = Draw(**found, **self._file(entry, index, is_first=True))
            self.calls, self.next_index = calls, index + 1
        elif kind == "update":
            old = self._known(entry)
            new = replace(old, **self._file(entry, old.index))
            if new.path != old.path:
                self.dead.add(old.path.name)
            self.draws[old.index] = new
        elif kind == "drop":
            self._drop(self._known(entry))
        elif kind == "calls":
            self.calls = _fields(entry, "calls")["calls"]
            for draw in reversed(list(self.draws.values())):
                if draw.calls > self.calls:
                    self._drop(draw)
                    self.next_index = draw.index
        else:
            raise ValueError(f"expected draw, update, drop or calls, found {kind!r}")

    def _known(self, entry: Line) -> Draw:
        index = _fields(entry, "index")["index"]
        if index not in self.draws:
            raise ValueError(f"index needs the number of a draw, found {index}")
        return self.draws[index]

    def _file(self, entry: Line, index: int, *, is_first: bool = False) -> Line:
        """Return the fields of a line that describe a draw's file."""
        found = _fields(entry, "file", "sha256", "bytes", "aliases")
        file, aliases = found.pop("file"), found["aliases"]
        revision = revision_of(file)
        if file != file_name(index, revision) or (is_first and revision):
            raise ValueError(
                f"expected a draw file in this folder, of draw {index}, found {file!r}"
            )
        if not {*aliases, *aliases.values()} <= (self.tensors or {}).keys():
            raise ValueError(f"aliases needs {_FIELDS['aliases'][0]}, found {aliases!r:.200}")
        self.dead.discard(file)
        return {"path": self.folder / file, **found}

    def _drop(self, draw: Draw) -> None:
        self.dead.add(self.draws.pop(draw.index).path.name)


def file_name(index: int, revision: int = 0) -> str:
    """Name the file of a draw."""
    return f"draw-{index:08d}{f'.{revision}' if revision else ''}.safetensors"


def revision_of(name: str) -> int:
    """Return how often `update_bn` has rewritten a draw, from its file's name."""
    match = re.fullmatch(r"draw-\d{8,}\.(\d+)\.safetensors", name)
    return int(match[1]) if match else 0


def describe(state: State) -> Layout:
    """Return [dtype, shape] of each tensor by name, and a mark for extra state."""
    return {
        name: [_name(value.dtype), list(value.shape)] if isinstance(value, Tensor) else _JSON
        for name, value in state.items()
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compare(expected: Layout, found: Layout) -> str:
    """Return the differences of two descriptions as text; empty if there are none."""

    def show(like: list[Any] | None) -> str:
        return "".join(map(str, like)) if like else "no such tensor"

    names = {**expected, **found}
    wrong = [name for name in names if expected.get(name, ()) != found.get(name, ())]
    lines = [
        f"{name}: expected {show(expected.get(name))}, found {show(found.get(name))}"
        for name in wrong[:3]
    ]
    return "; ".join(lines) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")


# ---- draws


def stored_tensors(state: State) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a draw's file in its order, and aliases (tied name -> stored name)."""
    aliases: dict[str, str] = {}
    names: dict[object, str] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            continue
        key: object = id(tensor)
        if not is_dtensor(tensor):
            layout = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
            key = (tensor.device, tensor.data_ptr(), layout)
        if (stored := names.setdefault(key, name)) != name:
            aliases[name] = stored
    ordered = sorted(names.values(), key=lambda name: -state[name].dtype.itemsize)
    return {name: state[name] for name in ordered}, aliases


def write_draw(
    path: Path,
    state: State,
    finite: Collection[str] = (),
    gather: Pieces | None = None,
    before_commit: Callable[[], None] | None = None,
) -> Line:
    """Write a state to its file and return the manifest's fields for the file.

    Args:
        path: The file.
        state: Tensors whose dtypes are among CODES, and JSON values.
        finite: Names of tensors that must be finite; a ValueError names the first that is not, and
            nothing is written.
        gather: Gathers the DTensors of the state, in the file's order (see `gathering`).
        before_commit: As in `write_atomic`.
    """
    extra = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    tensors, aliases = stored_tensors(state)
    finite = {aliases.get(name, name) for name in finite}
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt", **({"extra_state": json.dumps(extra)} if extra else {})}
    }
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        offsets = {"shape": list(tensor.shape), "data_offsets": [start, end]}
        header[name] = {"dtype": CODES[tensor.dtype], **offsets}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()

    def parts() -> Iterator[bytes | memoryview]:
        yield len(head).to_bytes(8, "little") + head
        for name, tensor in tensors.items():
            for piece in gather(name) if gather and is_dtensor(tensor) else pieces(tensor):
                if name in finite:
                    _check_finite(name, piece)
                yield memoryview(bytes_of(piece))

    def hashed() -> Iterator[bytes | memoryview]:
        for part in parts():
            digest.update(part)
            yield part

    write_atomic(path, hashed(), before_commit)
    size = 8 + len(head) + end
    return {"file": path.name, "sha256": digest.hexdigest(), "bytes": size, "aliases": aliases}


def read_draw(draw: Draw, expected: Layout, like: Parts | None = None) -> State:
    """Read a draw's state to the CPU.

    Args:
        draw: The draw.
        expected: The description of its state.
        like: DTensors by name, each with this rank's boxes: where the shape is the same, only this
            rank's part is read.

    Raises:
        CorruptDrawError: with what is wrong with the file.
    """
    try:
        # one descriptor for both passes: the file that is checked is the file that is read
        with os.fdopen(open_regular(draw.path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != draw.sha256:
                raise CorruptDrawError(
                    f"{draw.path}: draw {draw.index} is damaged or foreign: expected {draw.bytes} "
                    f"bytes, sha256 {draw.sha256[:12]}, found {size} bytes, {sha256[:12]}"
                )
            file.seek(0)
            return _load(file, size, draw, expected, like or {})
    except OSError as error:
        raise CorruptDrawError(
            f"{draw.path}: draw {draw.index} cannot be read: {error.strerror}"
        ) from error
    except CorruptDrawError:
        raise
    except Exception as error:
        raise CorruptDrawError(
            f"{draw.path}: draw {draw.index} is not a safetensors draw: {error}"
        ) from error


def _load(file: BinaryIO, size: int, draw: Draw, expected: Layout, like: Parts) -> State:
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise ValueError("its header is longer than the file")
    header = json.loads(file.read(length))
    state: State = json.loads(header.pop("__metadata__", {}).get("extra_state", "{}"))
    found = {
        name: [_name(_DTYPES[entry["dtype"]]), entry["shape"]] for name, entry in header.items()
    } | dict.fromkeys(state, _JSON)
    found |= {name: found[stored] for name, stored in draw.aliases.items()}
    if differences := compare(expected, found):
        raise CorruptDrawError(f"{draw.path}: not a draw of this bank: {differences}")
    end = 0
    for name in sorted(header, key=lambda name: header[name]["data_offsets"]):
        dtype, shape = _DTYPES[header[name]["dtype"]], header[name]["shape"]
        start, end = end, end + math.prod(shape) * dtype.itemsize
        if header[name]["data_offsets"] != [start, end]:
            raise ValueError(
                f"{name} should be at bytes {start} to {end}, found {header[name]['data_offsets']}"
            )
    if 8 + length + end != size:
        raise ValueError(f"it should have {8 + length + end} bytes, found {size}")
    whole: dict[str, Tensor] = {}  # by stored name: tied names share one tensor
    for name in expected:
        stored = draw.aliases.get(name, name)
        if stored not in header:
            continue
        dtype, shape = _DTYPES[header[stored]["dtype"]], header[stored]["shape"]
        rows = partial(_rows, file, 8 + length + header[stored]["data_offsets"][0], shape, dtype)
        if name in like and list(like[name][0].shape) == shape:
            state[name] = scatter(*like[name], rows)
            continue
        if stored not in whole:
            whole[stored] = rows(0, shape[0] if shape else 1).view(shape)
        state[name] = whole[stored]
    return {name: state[name] for name in expected}


def _rows(
    file: BinaryIO, start: int, shape: list[int], dtype: torch.dtype, first: int, last: int
) -> Tensor:
    """Read rows `first` to `last` (exclusive) of the tensor at this byte of the file."""
    rows = torch.empty((last - first, *shape[1:]), dtype=dtype)
    file.seek(start + first * math.prod(shape[1:]) * dtype.itemsize)
    file.readinto(bytes_of(rows))  # type: ignore[attr-defined]
    return rows


def _check_finite(name: str, piece: Tensor) -> None:
    # torch has no isfinite for every float8
    values = piece.float() if piece.dtype.itemsize == 1 else piece
    if (bad := values[~torch.isfinite(values)]).numel():
        condition = f"finite parameters ({name} is not)"
        raise needs("SampleBank.add", "model", condition, bad[0].item())
