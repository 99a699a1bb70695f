"""How far a run has come, and the file that says so on disk: one bit or one value that no run writes, and it is refused."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from langevin.gradient_noise import noise_shapes
from langevin.moments import no_moments
from langevin.scales import scale_shapes
from langevin.store.journal import write_atomic
from langevin.store.layout import ARRAYS, Layout, read_file
from langevin.trust import no_heat

__all__ = ["STATE", "Checkpoint", "Stop", "read_checkpoint", "read_state", "write_checkpoint", "write_state"]

STATE = "state.safetensors"
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # in the file's header


class Stop(NamedTuple):
    """Where a chain ended before its time."""

    steps: int  # good steps
    draws: int  # draws that count
    reason: str


@dataclass
class Checkpoint:
    """How far a run has come: everything that its next step depends on."""

    tensors: dict[str, Tensor]  # position, memory, moments, heat
    step: int = 0
    kept: int = 0  # draws written
    judged: int = 0  # steps whose positions are known to be good or bad; that of the last step may not be
    stopped: dict[int, Stop] = field(default_factory=dict)  # by index of the chain
    compiled: bool = False
    seconds: float = 0.0


def write_checkpoint(folder: Path, checkpoint: Checkpoint, digests: Mapping[str, Sequence[bytes]]) -> None:
    """Write a checkpoint with the digests of the chunks that it counts."""
    words = {name: value for name, value in asdict(checkpoint).items() if name != "tensors"}
    table = np.frombuffer(b"".join(b"".join(digests[name]) for name in ARRAYS), dtype=np.uint8)
    write_state(folder, {**checkpoint.tensors, "digests": torch.tensor(table.reshape(len(ARRAYS), -1, 32))}, words)


def read_checkpoint(folder: Path, manifest: dict[str, Any]) -> tuple[Checkpoint, dict[str, list[bytes]]]:
    """Read a checkpoint and the digests of its chunks; a ValueError names the file when no run with that manifest writes it."""
    tensors, words = read_state(folder)
    try:
        checkpoint = _checkpoint(tensors, words, manifest)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / STATE} is damaged or was edited: {error}") from error
    table = tensors.pop("digests").numpy()
    return checkpoint, {name: [bytes(digest) for digest in row] for name, row in zip(ARRAYS, table, strict=True)}


def _checkpoint(tensors: dict[str, Tensor], words: dict[str, Any], manifest: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint in a file; an error says which value no checkpoint of the run has."""

    def check(what: str, holds: bool, got: Any) -> None:
        if not holds:
            raise ValueError(f"it needs {what}, got {got!r}")

    names = {entry.name for entry in fields(Checkpoint)} - {"tensors"}
    check(f"the fields {sorted(names)}", words.keys() == names, sorted(words))
    stopped = {int(index): Stop(*stop) for index, stop in words["stopped"].items()}
    checkpoint = Checkpoint(tensors, **{**words, "stopped": stopped})
    chains, dim, last = (manifest[name] for name in ("num_chains", "dim", "num_steps"))
    most = last if manifest["keep"] == "moments" else manifest["num_draws"]
    numbers = [("step", checkpoint.step, last), ("kept", checkpoint.kept, most), ("judged", checkpoint.judged, checkpoint.step)]
    for index, stop in stopped.items():
        numbers += [("stopped", index, chains - 1), ("steps", stop.steps, last), ("draws", stop.draws, checkpoint.kept)]
        check("a reason", isinstance(stop.reason, str), stop.reason)
    for name, value, limit in numbers:
        check(f"{name} in [0, {limit}]", type(value) is int and 0 <= value <= limit, value)
    check("compiled True or False", type(checkpoint.compiled) is bool, checkpoint.compiled)
    seconds = checkpoint.seconds
    check("seconds >= 0", type(seconds) in (int, float) and 0 <= seconds < math.inf, seconds)

    chunks = -(-min(checkpoint.kept, manifest["num_draws"]) // manifest["chunk"])
    dtype = getattr(torch, Layout.of(manifest).arrays["draws"].dtype)
    expected = {"position": ((chains, dim), dtype), "digests": ((len(ARRAYS), chunks, 32), torch.uint8)}
    like = torch.empty(chains, dim, device="meta")
    empty = no_heat(like)
    if manifest["keep"] == "moments":
        empty |= no_moments(like)
    expected |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in empty.items()}
    for what, shapes_of in (("scale", scale_shapes), ("noise", noise_shapes)):
        if manifest[what] is not None:
            parts = learnt_tensors(what, tensors)
            shapes = shapes_of(manifest[what], parts, dim)
            check(f"{len(shapes)} tensors of the {what}", len(parts) == len(shapes), len(parts))
            expected |= {f"{what}_{index}": (shape, dtype) for index, shape in enumerate(shapes)}
            check(f"a finite {what}", all(bool(part.isfinite().all()) for part in parts), "another")
    memories = sorted(tensors.keys() - expected.keys())
    check("memories from 0 on", memories == sorted(f"memory_{k}" for k in range(len(memories))), memories)
    for name in memories:  # what follows the chains is the kernel's
        kind = dtype if tensors[name].is_floating_point() else tensors[name].dtype  # a kernel may count, too
        expected[name] = ((chains, *tensors[name].shape[1:]), kind)
    for name, (shape, kind) in expected.items():
        found = (tuple(tensors[name].shape), tensors[name].dtype) if name in tensors else None
        check(f"{name} of shape {shape} and {kind}", found == (shape, kind), found)
    alive = [index for index in range(chains) if index not in stopped]
    check("finite positions", bool(tensors["position"][alive].isfinite().all()), "others")
    return checkpoint


def learnt_tensors(what: str, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors of a "scale" or a "noise" that was learnt before the run, in their order."""
    return [tensors[f"{what}_{index}"] for index in range(sum(name.startswith(f"{what}_") for name in tensors))]


def write_state(folder: Path, tensors: dict[str, Tensor], words: dict[str, Any]) -> None:
    """Write the file of a checkpoint, whose checksum is over the whole file, its own place taken as zeros."""
    metadata = {"langevin": json.dumps(words), "sha256": "0" * 64}
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    place, _, digest = _sealed(data)
    write_atomic(folder / STATE, data[: place.start] + digest + data[place.stop :])


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the file of a checkpoint; a ValueError names it when one bit is not as it was written."""
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
    """Return where the checksum stands, what it says, and what it should say."""
    found = _SEAL.search(data, 8, 8 + int.from_bytes(data[:8], "little"))
    if not found:
        raise ValueError("it has no checksum")
    digest = hashlib.sha256(data[: found.start(1)])
    digest.update(b"0" * 64)
    digest.update(memoryview(data)[found.end(1) :])
    return slice(*found.span(1)), found[1], digest.hexdigest().encode()
