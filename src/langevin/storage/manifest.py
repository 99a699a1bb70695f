"""The checksummed manifest of a run's folder: settings, arrays and fingerprints."""

import json
import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langevin.kernels.gradient_noise import KINDS as NOISES
from langevin.serialization import Json, digest_of_json
from langevin.storage.journal import write_atomic
from langevin.storage.layout import ARRAYS, BLOCK_ELEMENTS, CHUNK_ELEMENTS, Layout, array_specs
from langevin.storage.safe_io import exists, read_file
from langevin.targets.gradients import BATCHES
from langevin.targets.metric import METRICS

__all__ = [
    "DTYPES",
    "VERSION",
    "check_manifest",
    "chunk_elements",
    "read_manifest",
    "write_manifest",
]

VERSION = 6
DTYPES = ("float16", "float32", "float64")


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef")


def _is_int(value: Any, low: int, high: int = 2**63) -> bool:
    return type(value) is int and low <= value < high


def _is_number(value: Any) -> bool:
    is_float = type(value) is float and math.isfinite(value)
    return is_float or (type(value) is int and abs(value) < 2**63)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


Field = tuple[str, Callable[[Any], bool]]  # a condition, and whether a value meets it


def _optional(field: Field) -> Field:
    condition, holds = field
    return f"None or {condition}", lambda value: value is None or holds(value)


def _one_of(*names: str) -> Field:
    return f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names


_COUNT: Field = ("an int >= 1", lambda value: _is_int(value, 1))
_NATURAL: Field = ("an int >= 0", lambda value: _is_int(value, 0))
_TEXT: Field = ("a text", lambda value: isinstance(value, str))
_POSITIVE: Field = ("a number > 0", lambda value: _is_number(value) and value > 0)
_OBJECT: Field = ("an object", lambda value: isinstance(value, dict))

# Required fields; a manifest may have others.
_FIELDS: dict[str, Field] = {
    "id": ("32 hexadecimal digits", _is_id),
    **dict.fromkeys(("num_steps", "thin", "num_chains", "dim", "chunk"), _COUNT),
    **dict.fromkeys(("warmup", "first_chain", "num_draws", "warmup_gradients"), _NATURAL),
    "seed": ("an int in [0, 2**64)", lambda value: _is_int(value, 0, 2**64)),
    **dict.fromkeys(("batch_size", "num_data"), _optional(_COUNT)),
    "temperature": _optional(("a number >= 0", lambda value: _is_number(value) and value >= 0)),
    "keep": _one_of("positions", "moments", "function"),
    "compile": ('True, False or "auto"', lambda v: v is True or v is False or v == "auto"),
    **dict.fromkeys(("description", "found"), _TEXT),
    **dict.fromkeys(("tuned", "bias_factor"), _optional(_POSITIVE)),
    "scale": _optional(_one_of(*METRICS)),
    "noise": _optional(_one_of(*NOISES)),
    "batches": _one_of(*BATCHES),
    "recipe": _optional(
        ("two numbers > 0", lambda v: _are_numbers(v) and len(v) == 2 and min(v) > 0)
    ),
    "control_variate": _optional(("finite numbers", _are_numbers)),
    **dict.fromkeys(("fingerprints", "arrays"), _OBJECT),
}


def check_manifest(manifest: Json) -> None:
    """Raise a ValueError, TypeError or KeyError if a field is missing or invalid."""
    for name, (condition, holds) in _FIELDS.items():
        if name not in manifest:
            raise ValueError(f"it has no {name}")
        _check(name, holds(manifest[name]), condition, manifest[name])
    dim, chains, draws = manifest["dim"], manifest["num_chains"], manifest["num_draws"]
    group = manifest.get("temperatures", [])
    is_valid = _are_numbers(group) and all(each > 0 for each in group)
    is_valid = is_valid and not (group and chains % len(group))
    _check("temperatures", is_valid, "numbers > 0, one per chain of a group", group)
    for name, limit in (
        ("warmup", manifest["num_steps"] - 1),
        ("num_draws", manifest["num_steps"]),
        ("chunk", max(1, draws)),
    ):
        _check(name, manifest[name] <= limit, f"at most {limit}", manifest[name])
    centre = manifest["control_variate"]
    if centre is not None:
        _check("control_variate", len(centre) == dim, f"{dim} numbers", len(centre))
    if manifest["keep"] == "moments":
        _check("num_draws", draws == 0, "0 with moments only", draws)
    arrays, dtype = manifest["arrays"], manifest["arrays"]["draws"]["dtype"]
    lengths = [length for array in arrays.values() for length in array["tail"]]
    is_valid = dtype in DTYPES and all(_is_int(length, 1) for length in lengths)
    _check("arrays", is_valid, f"one of {', '.join(DTYPES)} and tails without zeros", arrays)
    event_shape = arrays["draws"]["tail"][1:] if manifest["keep"] == "function" else (dim,)
    step_size_shape = (chains,) if arrays["step_size"]["tail"] else ()
    if "block_size" in manifest:
        size = manifest["block_size"]
        _check("block_size", _is_int(size, 1), "an int >= 1", size)
        step_size_shape = (-(-chains // size),)
    expected = array_specs(dtype, chains, event_shape, step_size_shape)
    is_valid = Layout.of(manifest).arrays == expected
    _check("arrays", is_valid, f"those of the run, {expected},", arrays)
    tail = expected["draws"].tail
    limit = max(1, chunk_elements(manifest) // math.prod(tail))
    condition = f"at most {limit} draws of shape {tail}"
    _check("chunk", manifest["chunk"] <= limit, condition, manifest["chunk"])


def _check(name: str, holds: bool, condition: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} needs {condition}, got {value!r}")


def chunk_elements(manifest: Json, least: int = CHUNK_ELEMENTS) -> int:
    """Return the largest number of elements in a chunk of more than one draw, over all chains."""
    if "block_size" not in manifest:
        return least
    return max(least, BLOCK_ELEMENTS * manifest["num_chains"] // manifest["block_size"])


def _seal(manifest: Json) -> str:
    """Return the digest of a manifest without its own."""
    return digest_of_json({name: value for name, value in manifest.items() if name != "sha256"})


def _group(manifest: Json) -> Json:
    return {"zarr_format": 3, "node_type": "group", "attributes": {"langevin": manifest}}


def write_manifest(folder: Path, manifest: Json) -> Json:
    """Write manifest and empty arrays; return it with version, random id and checksum."""
    whole = {"version": VERSION, "id": uuid.uuid4().hex, **manifest}
    check_manifest(whole)
    whole["sha256"] = _seal(whole)
    for name in ARRAYS:
        (folder / name).mkdir()
        document = json.dumps(Layout.of(manifest).document(name), indent=2)
        write_atomic(folder / name / "zarr.json", document.encode())
    write_atomic(folder / "zarr.json", json.dumps(_group(whole), indent=2).encode())
    return whole


def _read_json(path: Path, root: Path) -> Json:
    data = read_file(path, root)
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or foreign: {error}") from error
    return found


def read_manifest(folder: Path) -> Json:
    """Return the manifest of a run's folder, after checking it and the metadata of the arrays."""
    if not folder.exists():
        raise FileNotFoundError(f"no run at {str(folder)!r}")
    path = folder / "zarr.json"
    if not exists(path, folder):
        raise ValueError(f"{folder} is not a run of langevin.sample: it has no zarr.json")
    document = _read_json(path, folder)
    attributes = document.get("attributes")
    manifest = attributes.get("langevin") if isinstance(attributes, dict) else None
    if not isinstance(manifest, dict):
        reason = "zarr.json has no attribute 'langevin'"
        raise ValueError(f"{folder} is not a run of langevin.sample: {reason}")
    if (version := manifest.get("version")) != VERSION:
        reason = f"format version {version}, this library reads version {VERSION}"
        raise ValueError(f"{folder} is a run of {reason}")
    try:
        if manifest.get("sha256") != _seal(manifest):
            raise ValueError("its checksum is not that of its content")
        if document != _group(manifest):
            raise ValueError("it is not the Zarr group of a run")
        check_manifest(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged or was edited: {error}") from error
    for name in ARRAYS:
        file, expected = folder / name / "zarr.json", Layout.of(manifest).document(name)
        found = _read_json(file, folder)
        names = found.keys() | expected.keys()
        if wrong := sorted(key for key in names if found.get(key) != expected.get(key)):
            reason = f"{', '.join(wrong)} are not those of the run"
            raise ValueError(f"{file} is damaged or was edited: {reason}")
    return manifest
