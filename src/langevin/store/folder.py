"""The files of a run's folder, each checked before it is believed.

```
run.zarr/                     a Zarr 3 group
  zarr.json                   the manifest, as attributes: version, settings, fingerprints of sampler, target and data, sha256
  draws/  energy/  ...        Zarr arrays (chain, draw, ...): `zarr.json`, and the chunks `c.0.0.0`, `c.0.1.0`, ... along the draws
  state.safetensors           the last checkpoint: positions, memories, how far the run had come, digests of chunks, sha256
  lock                        held by the one writer, until it is done or dies
```

Every file is written whole (`write_atomic`), and only the chunks and the checkpoint are ever written again. Reading runs no code of
the folder's: what an array looks like follows from the manifest, and an array that says otherwise of itself is refused.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import safetensors.torch
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor

from langevin.checks import check_path
from langevin.store.journal import write_atomic

__all__ = ["ARRAYS", "Layout", "VERSION", "check_new", "lock_folder", "new_draft", "read_manifest", "read_state", "write_manifest"]

VERSION = 2
ARRAYS = ("draws", "energy", "gradient_norm", "step_size")
STATE = "state.safetensors"
DTYPES = ("float16", "float32", "float64")
_ZSTD = Zstd(level=1, checksum=True)
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # in the header of the checkpoint


@dataclass(frozen=True)
class Layout:
    """The arrays of a run, (chain, draw, ...), and how they are cut into chunks along the draws."""

    num_chains: int
    num_draws: int
    event_shape: tuple[int, ...]
    dtype: str  # of draws, energy and gradient_norm; step sizes are float64
    length: int  # draws in a chunk

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Layout:
        """Return what a manifest says."""
        event_shape = tuple(manifest["event_shape"])
        return cls(manifest["num_chains"], manifest["num_draws"], event_shape, manifest["dtype"], manifest["chunk"])

    def axis(self, name: str) -> int:
        """Return the axis of the draws."""
        return 0 if name == "step_size" else 1

    def shape(self, name: str, draws: int) -> tuple[int, ...]:
        """Return the shape of an array with so many draws."""
        return (draws,) if name == "step_size" else (self.num_chains, draws, *(self.event_shape if name == "draws" else ()))

    def dtype_of(self, name: str) -> str:
        """Return the dtype of an array."""
        return "float64" if name == "step_size" else self.dtype

    def document(self, name: str) -> dict[str, Any]:
        """Return the content of an array's `zarr.json`."""
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape(name, self.num_draws)),
            "data_type": self.dtype_of(name),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shape(name, self.length))}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": "NaN",
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "zstd", "configuration": {"level": 1, "checksum": True}},
            ],
            "attributes": {},
        }

    def file(self, folder: Path, name: str, index: int) -> Path:
        """Return the path of a chunk."""
        place = [0] * len(self.shape(name, 0))
        place[self.axis(name)] = index
        return folder / name / ".".join(["c", *map(str, place)])

    def write(self, folder: Path, name: str, index: int, values: NDArray[Any]) -> None:
        """Write a chunk, padded to its full length."""
        write_atomic(self.file(folder, name, index), _ZSTD.encode(np.ascontiguousarray(values, dtype=self._stored(name))))

    def read(self, folder: Path, name: str, index: int, stop: int, digest: bytes) -> NDArray[Any]:
        """Read the draws of a chunk below draw `stop`; a ValueError names the file when they are not those with the digest."""
        file = self.file(folder, name, index)
        chunk = np.empty(self.shape(name, self.length), dtype=self._stored(name))
        try:
            _ZSTD.decode(read_file(file), chunk)  # into memory of the right size, whatever size the file claims
        except FileNotFoundError as error:
            raise ValueError(f"{file} is missing: chunk {index} of {name}") from error
        except Exception as error:
            raise ValueError(f"{file} is damaged, chunk {index} of {name}: {error}") from error
        values = chunk.take(range(stop - index * self.length), self.axis(name)) if stop < (index + 1) * self.length else chunk
        if digest_of(values) != digest:
            raise ValueError(f"{file} is damaged, chunk {index} of {name}: these are not the draws that were written")
        return values

    def _stored(self, name: str) -> np.dtype[Any]:
        return np.dtype(self.dtype_of(name)).newbyteorder("<")


def digest_of(values: NDArray[Any]) -> bytes:
    """Return the sha256 of an array's elements."""
    return hashlib.sha256(np.ascontiguousarray(values).data).digest()


def read_file(path: Path) -> bytes:
    """Return a file's content; a FileNotFoundError where there is none, also where there is something else (a pipe would hang)."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, or no file")
    return path.read_bytes()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or foreign: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged or foreign: not an object")
    return found


def _is_int(value: Any, low: int, high: int = 2**63) -> bool:
    return type(value) is int and low <= value < high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# What a manifest holds; what else is in it is kept as it is.
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "num_steps": ("an int >= 1", lambda v: _is_int(v, 1)),
    "warmup": ("an int >= 0", lambda v: _is_int(v, 0)),
    "thin": ("an int >= 1", lambda v: _is_int(v, 1)),
    "seed": ("an int in [0, 2**64)", lambda v: _is_int(v, 0, 2**64)),
    "first_chain": ("an int >= 0", lambda v: _is_int(v, 0)),
    "num_chains": ("an int >= 1", lambda v: _is_int(v, 1)),
    "dim": ("an int >= 1", lambda v: _is_int(v, 1)),
    "num_draws": ("an int >= 0", lambda v: _is_int(v, 0)),
    "batch_size": ("None or an int >= 1", lambda v: v is None or _is_int(v, 1)),
    "keep": ('"positions", "moments" or "function"', lambda v: v in ("positions", "moments", "function")),
    "compile": ('True, False or "auto"', lambda v: v in (True, False, "auto")),
    "description": ("a text", lambda v: isinstance(v, str)),
    "found": ("a text", lambda v: isinstance(v, str)),
    "tuned": ("None or a number > 0", lambda v: v is None or (_is_number(v) and v > 0)),
    "control_variate": ("None or finite numbers", lambda v: v is None or (isinstance(v, list) and all(map(_is_number, v)))),
    "fingerprints": ("an object", lambda v: isinstance(v, dict)),
    "event_shape": ("a shape without zeros", lambda v: isinstance(v, list) and all(_is_int(n, 1) for n in v)),
    "dtype": (f"one of {', '.join(DTYPES)}", lambda v: v in DTYPES),
    "chunk": ("an int >= 1", lambda v: _is_int(v, 1)),
}


def check_manifest(manifest: dict[str, Any]) -> None:
    """Fail with a ValueError when a field is missing or has a value that no run has."""
    for name, (condition, holds) in _FIELDS.items():
        if name not in manifest:
            raise ValueError(f"it has no {name}")
        if not holds(manifest[name]):
            raise ValueError(f"{name} needs {condition}, got {manifest[name]!r}")
    dim, event_shape, draws = manifest["dim"], manifest["event_shape"], manifest["num_draws"]
    limits = {"warmup": manifest["num_steps"] - 1, "num_draws": manifest["num_steps"], "chunk": max(1, draws)}
    for name, limit in limits.items():
        if manifest[name] > limit:
            raise ValueError(f"{name} needs at most {limit}, got {manifest[name]}")
    if manifest["control_variate"] is not None and len(manifest["control_variate"]) != dim:
        raise ValueError(f"control_variate needs {dim} numbers, got {len(manifest['control_variate'])}")
    if manifest["keep"] != "function" and event_shape != [dim]:
        raise ValueError(f"event_shape needs [{dim}], got {event_shape}")
    if manifest["keep"] == "moments" and draws:
        raise ValueError(f"num_draws needs 0 with moments only, got {draws}")


def _seal(manifest: dict[str, Any]) -> str:
    """Return the sha256 of a manifest without its own."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _group(manifest: dict[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": {"langevin": manifest}}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest and the arrays, empty; return the manifest with version and checksum."""
    check_manifest(manifest)
    whole = {"version": VERSION, **manifest}
    whole["sha256"] = _seal(whole)
    for name in ARRAYS:
        (folder / name).mkdir()
        write_atomic(folder / name / "zarr.json", json.dumps(Layout.of(manifest).document(name), indent=2).encode())
    write_atomic(folder / "zarr.json", json.dumps(_group(whole), indent=2).encode())
    return whole


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's folder, or fail when it is none, of another version, or damaged, or its arrays are."""
    if not folder.exists():
        raise FileNotFoundError(f"no run at {str(folder)!r}")
    path = folder / "zarr.json"
    if not path.exists():
        raise ValueError(f"{folder} is not a run of langevin.sample: it has no zarr.json")
    document = _read_json(path)
    manifest = document["attributes"].get("langevin") if isinstance(document.get("attributes"), dict) else None
    if not isinstance(manifest, dict):
        raise ValueError(f"{folder} is not a run of langevin.sample: zarr.json has no attribute 'langevin'")
    if manifest.get("version") != VERSION:
        raise ValueError(f"{folder} is a run of format version {manifest.get('version')}, this library reads version {VERSION}")
    if manifest.get("sha256") != _seal(manifest):
        raise ValueError(f"{path} is damaged or was edited: its checksum is not that of its content")
    if document != _group(manifest):
        raise ValueError(f"{path} is damaged or was edited: it is not the Zarr group of a run")
    try:
        check_manifest(manifest)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or was edited: {error}") from error
    for name in ARRAYS:
        file, expected = folder / name / "zarr.json", Layout.of(manifest).document(name)
        found = _read_json(file)
        if found != expected:
            wrong = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
            raise ValueError(f"{file} is damaged or was edited: {', '.join(wrong)} are not those of the run")
    return manifest


def write_state(folder: Path, tensors: dict[str, Tensor], words: dict[str, Any]) -> None:
    """Write a checkpoint, whose checksum is over the whole file, its own place taken as zeros."""
    metadata = {"langevin": json.dumps(words), "sha256": "0" * 64}
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    place, _, digest = _sealed(data)
    write_atomic(folder / STATE, data[: place.start] + digest + data[place.stop :])


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint; a ValueError names the file when one bit is not as it was written."""
    path = folder / STATE
    data = read_file(path)
    try:
        _, claimed, digest = _sealed(data)
        if claimed != digest:
            raise ValueError("its checksum is not that of its content")
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return safetensors.torch.load(data), json.loads(header["__metadata__"]["langevin"])
    except Exception as error:
        raise ValueError(f"{path} is damaged or foreign: {error}") from error


def _sealed(data: bytes) -> tuple[slice, bytes, bytes]:
    """Return where the checksum of a checkpoint stands, what it says, and what it should say."""
    found = _SEAL.search(data, 8, 8 + int.from_bytes(data[:8], "little"))
    if not found:
        raise ValueError("it has no checksum")
    digest = hashlib.sha256(data[: found.start(1)])
    digest.update(b"0" * 64)
    digest.update(memoryview(data)[found.end(1) :])
    return slice(*found.span(1)), found[1], digest.hexdigest().encode()


def lock_folder(folder: Path) -> filelock.BaseFileLock:
    """Take the writer's lock of a folder at once, or fail; the system takes it back when the process dies."""
    lock = filelock.FileLock(folder / "lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise RuntimeError(
            f"{folder} is being written: another process, thread or call of sample or resume has its lock"
        ) from error
    return lock


def check_new(out: Any) -> Path:
    """Return `out` as a path at which a run can be made, or fail."""
    path = check_path("sample", "out", out, "None or the path of a new folder")
    if os.path.lexists(path):
        what = "a symlink" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
        raise FileExistsError(
            f"sample(out=...) needs a new folder, got {str(out)!r}, which is {what}: a run there? resume it, or remove it"
        )
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))  # missing ones are made
    if not above.is_dir():
        raise NotADirectoryError(f"sample(out=...) needs a place in a folder, got {str(out)!r}: {above} is none")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"sample(out=...) needs a folder in a folder that can be written to, got {str(out)!r}")
    return path


def new_draft(path: Path) -> tuple[Path, filelock.BaseFileLock]:
    """Make and lock a folder in which a run is put together before it gets its name; remove what killed creations have left."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"sample(out=...) needs a folder that can be made, got {str(path)!r}: {error}") from error
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        with suppress(RuntimeError, OSError):  # its owner lives, or was faster
            lock = lock_folder(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
            lock.release()
    while True:
        draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.new")
        draft.mkdir()
        with suppress(RuntimeError, FileNotFoundError):  # another creation took it for a leftover before it was locked
            return draft, lock_folder(draft)
