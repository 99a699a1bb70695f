"""The progress of a run, and its checksummed file.

Every field is validated when it is read: a changed bit, or a value that no run writes, is an error.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from langevin.diagnostics.running import no_heat, no_moments
from langevin.kernels.gradient_noise import noise_shapes
from langevin.serialization import Json, digest
from langevin.storage.journal import write_atomic
from langevin.storage.layout import ARRAYS
from langevin.storage.safe_io import read_file
from langevin.targets.metric import metric_shapes

__all__ = [
    "STATE",
    "Checkpoint",
    "Stop",
    "adapted_tensors",
    "read_checkpoint",
    "read_state",
    "write_checkpoint",
    "write_state",
]

STATE = "state.safetensors"
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # in the file's header


class Stop(NamedTuple):
    """The end of a chain that stopped early."""

    steps: int  # good steps
    draws: int  # valid draws
    reason: str


@dataclass
class Checkpoint:
    """The progress of a run: everything that its next step depends on."""

    tensors: dict[str, Tensor]  # positions, sampler state, moments, sums for the temperature
    step: int = 0
    kept: int = 0  # draws written
    judged: int = 0  # steps whose positions were checked
    stopped: dict[int, Stop] = field(default_factory=dict)  # by index of the chain
    compiled: bool = False
    seconds: float = 0.0


def write_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    digests: Mapping[str, Sequence[bytes]],
    manifest: Json,
    block: int | None = None,
) -> None:
    """Write a checkpoint of a run, or of a block of its chains, with the digests of its chunks."""
    settings = asdict(checkpoint) | _owner(manifest, block)
    del settings["tensors"]
    table = np.frombuffer(b"".join(b"".join(digests[name]) for name in ARRAYS), dtype=np.uint8)
    tensors = {"digests": torch.tensor(table.reshape(len(ARRAYS), -1, 32))}
    write_state(folder, checkpoint.tensors | tensors, settings)


def _owner(manifest: Json, block: int | None) -> Json:
    """Return the fields that bind a checkpoint to its run."""
    return {"manifest": manifest["sha256"], "block": block}


def read_checkpoint(
    folder: Path, manifest: Json, block: int | None = None
) -> tuple[Checkpoint, dict[str, list[bytes]]]:
    """Read a checkpoint and the digests of its chunks; raise a ValueError if it is not valid."""
    tensors, settings = read_state(folder)
    try:
        if {name: settings.pop(name) for name in ("manifest", "block")} != _owner(manifest, block):
            reason = "it belongs to another run, or other chains, than the zarr.json of this folder"
            raise ValueError(reason)
        checkpoint = _checkpoint(tensors, settings, manifest)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{folder / STATE} is damaged or was edited: {error}") from error
    rows = zip(ARRAYS, tensors.pop("digests").numpy(), strict=True)
    return checkpoint, {name: [bytes(digest) for digest in row] for name, row in rows}


def _check(what: str, holds: bool, got: object) -> None:
    if not holds:
        raise ValueError(f"it needs {what}, got {got!r}")


def _checkpoint(tensors: dict[str, Tensor], settings: Json, manifest: Json) -> Checkpoint:
    """Return the checkpoint in a file; raise an error that names an invalid value."""
    names = {entry.name for entry in fields(Checkpoint)} - {"tensors"}
    _check(f"the fields {sorted(names)}", settings.keys() == names, sorted(settings))
    stopped = {int(index): Stop(*stop) for index, stop in settings["stopped"].items()}
    checkpoint = Checkpoint(tensors, **{**settings, "stopped": stopped})
    chains, last = manifest["num_chains"], manifest["num_steps"]
    numbers = [
        ("step", checkpoint.step, last),
        ("kept", checkpoint.kept, last if manifest["keep"] == "moments" else manifest["num_draws"]),
        ("judged", checkpoint.judged, checkpoint.step),
    ]
    for index, stop in stopped.items():
        numbers.append(("stopped", index, chains - 1))
        numbers.append(("steps", stop.steps, last))
        numbers.append(("draws", stop.draws, checkpoint.kept))
        _check("a reason", isinstance(stop.reason, str), stop.reason)
    for name, value, limit in numbers:
        _check(f"{name} in [0, {limit}]", type(value) is int and 0 <= value <= limit, value)
    _check("compiled True or False", type(checkpoint.compiled) is bool, checkpoint.compiled)
    seconds = checkpoint.seconds
    _check("seconds >= 0", type(seconds) in (int, float) and 0 <= seconds < 2**63, seconds)
    _check_tensors(checkpoint, manifest)
    good = [index for index in range(chains) if index not in stopped]
    _check("finite positions", bool(tensors["position"][good].isfinite().all()), "others")
    return checkpoint


def _check_tensors(checkpoint: Checkpoint, manifest: Json) -> None:
    """Check names, shapes and dtypes of a checkpoint's tensors."""
    tensors, chains, dim = checkpoint.tensors, manifest["num_chains"], manifest["dim"]
    chunks = -(-min(checkpoint.kept, manifest["num_draws"]) // manifest["chunk"])
    dtype = getattr(torch, manifest["arrays"]["draws"]["dtype"])
    like = torch.empty(chains, dim, device="meta")
    empty = no_heat(like) | (no_moments(like) if manifest["keep"] == "moments" else {})
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in empty.items()}
    expected["position"] = (chains, dim), dtype
    expected["digests"] = (len(ARRAYS), chunks, 32), torch.uint8
    for what, shapes_of in (("scale", metric_shapes), ("noise", noise_shapes)):
        if manifest[what] is not None:
            parts = adapted_tensors(what, tensors)
            shapes = shapes_of(manifest[what], parts, dim)
            _check(f"{len(shapes)} tensors of the {what}", len(parts) == len(shapes), len(parts))
            expected |= {f"{what}_{index}": (shape, dtype) for index, shape in enumerate(shapes)}
            is_finite = all(bool(part.isfinite().all()) for part in parts)
            _check(f"a finite {what}", is_finite, "another")
    rest = sorted(tensors.keys() - expected.keys())
    known = sorted(f"memory_{k}" for k in range(len(rest)))
    _check("sampler states from memory_0 on", rest == known, rest)
    for name in rest:  # only the kernel knows the other axes; a state may have another dtype
        kind = dtype if tensors[name].is_floating_point() else tensors[name].dtype
        expected[name] = (chains, *tensors[name].shape[1:]), kind
    for name, (shape, kind) in expected.items():
        found = (tuple(tensors[name].shape), tensors[name].dtype) if name in tensors else None
        _check(f"{name} of shape {shape} and {kind}", found == (shape, kind), found)


def adapted_tensors(what: str, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors of a "scale" or a "noise" estimated before the run, in order."""
    count = sum(name.startswith(f"{what}_") for name in tensors)
    return [tensors[f"{what}_{index}"] for index in range(count)]


def write_state(folder: Path, tensors: dict[str, Tensor], settings: Json) -> None:
    """Write a checkpoint file; its checksum covers the file, with zeros in place of itself."""
    metadata = {"langevin": json.dumps(settings), "sha256": "0" * 64}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    data = safetensors.torch.save(contiguous, metadata)
    place, _, computed = _sealed(data)
    write_atomic(folder / STATE, data[: place.start] + computed + data[place.stop :])


def read_state(folder: Path) -> tuple[dict[str, Tensor], Json]:
    """Read a checkpoint file; raise a ValueError if a bit has changed."""
    path = folder / STATE
    data = read_file(path)
    try:
        _, claimed, computed = _sealed(data)
        if claimed != computed:
            raise ValueError("its checksum is not that of its content")
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return safetensors.torch.load(data), json.loads(header["__metadata__"]["langevin"])
    except Exception as error:
        raise ValueError(f"{path} is damaged or foreign: {error}") from error


def _sealed(data: bytes) -> tuple[slice, bytes, bytes]:
    """Return the position of the checksum, its value, and the computed value."""
    found = _SEAL.search(data, 8, 8 + int.from_bytes(data[:8], "little"))
    if not found:
        raise ValueError("it has no checksum")
    computed = digest(data[: found.start(1)], b"0" * 64, memoryview(data)[found.end(1) :])
    return slice(*found.span(1)), found[1], computed.encode()
