"""The manifest of a run's folder, sealed by a checksum: settings, arrays, fingerprints of sampler, target and data."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langevin.gradient_noise import KINDS as NOISES
from langevin.gradients import BATCHES
from langevin.scales import KINDS
from langevin.store.journal import write_atomic
from langevin.store.layout import ARRAYS, Layout, array_specs, read_file

__all__ = ["DTYPES", "VERSION", "check_manifest", "read_manifest", "write_manifest"]

VERSION = 5
DTYPES = ("float16", "float32", "float64")


def _is_int(value: Any, low: int, high: int = 2**63) -> bool:
    return type(value) is int and low <= value < high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _are_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(_is_number, value))


# What a manifest holds; what else is in it is kept as it is.
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("num_steps", "thin", "num_chains", "dim", "chunk"), ("an int >= 1", lambda v: _is_int(v, 1))),
    **dict.fromkeys(("warmup", "first_chain", "num_draws", "warmup_gradients"), ("an int >= 0", lambda v: _is_int(v, 0))),
    "seed": ("an int in [0, 2**64)", lambda v: _is_int(v, 0, 2**64)),
    **dict.fromkeys(("batch_size", "num_data"), ("None or an int >= 1", lambda v: v is None or _is_int(v, 1))),
    "temperature": ("None or a number >= 0", lambda v: v is None or (_is_number(v) and v >= 0)),
    "keep": ('"positions", "moments" or "function"', lambda v: v in ("positions", "moments", "function")),
    "compile": ('True, False or "auto"', lambda v: v in (True, False, "auto")),
    "description": ("a text", lambda v: isinstance(v, str)),
    "found": ("a text", lambda v: isinstance(v, str)),
    **dict.fromkeys(("tuned", "bias_factor"), ("None or a number > 0", lambda v: v is None or (_is_number(v) and v > 0))),
    "scale": (f"None or one of {', '.join(KINDS)}", lambda v: v is None or (isinstance(v, str) and v in KINDS)),
    "noise": (f"None or one of {', '.join(NOISES)}", lambda v: v is None or (isinstance(v, str) and v in NOISES)),
    "batches": (f"one of {', '.join(BATCHES)}", lambda v: v in BATCHES),
    "recipe": ("None or two numbers > 0", lambda v: v is None or (_are_numbers(v, 2) and min(v) > 0)),
    "control_variate": ("None or finite numbers", lambda v: v is None or (isinstance(v, list) and all(map(_is_number, v)))),
    **dict.fromkeys(("fingerprints", "arrays"), ("an object", lambda v: isinstance(v, dict))),
}


def check_manifest(manifest: dict[str, Any]) -> None:
    """Fail with a ValueError, TypeError or KeyError when a field is missing or has a value that no run has."""
    for name, (condition, holds) in _FIELDS.items():
        if name not in manifest:
            raise ValueError(f"it has no {name}")
        if not holds(manifest[name]):
            raise ValueError(f"{name} needs {condition}, got {manifest[name]!r}")
    several = manifest.get("temperatures", [])
    if not (isinstance(several, list) and all(_is_number(each) and each > 0 for each in several)) or (
        several and manifest["num_chains"] % len(several)
    ):
        raise ValueError(f"temperatures needs numbers > 0, as many as chains in a group, got {several!r}")
    dim, chains, draws = manifest["dim"], manifest["num_chains"], manifest["num_draws"]
    limits = {"warmup": manifest["num_steps"] - 1, "num_draws": manifest["num_steps"], "chunk": max(1, draws)}
    for name, limit in limits.items():
        if manifest[name] > limit:
            raise ValueError(f"{name} needs at most {limit}, got {manifest[name]}")
    if manifest["control_variate"] is not None and len(manifest["control_variate"]) != dim:
        raise ValueError(f"control_variate needs {dim} numbers, got {len(manifest['control_variate'])}")
    if manifest["keep"] == "moments" and draws:
        raise ValueError(f"num_draws needs 0 with moments only, got {draws}")
    arrays, dtype = manifest["arrays"], manifest["arrays"]["draws"]["dtype"]
    if dtype not in DTYPES or not all(_is_int(n, 1) for array in arrays.values() for n in array["tail"]):
        raise ValueError(f"arrays needs one of {', '.join(DTYPES)} and tails without zeros, got {arrays}")
    event_shape = arrays["draws"]["tail"][1:] if manifest["keep"] == "function" else (dim,)
    step_size_shape = (chains,) if arrays["step_size"]["tail"] else ()
    if "block_size" in manifest:
        if not _is_int(manifest["block_size"], 1):
            raise ValueError(f"block_size needs an int >= 1, got {manifest['block_size']!r}")
        step_size_shape = (-(-chains // manifest["block_size"]),)
    expected = array_specs(dtype, chains, event_shape, step_size_shape)
    if Layout.of(manifest).arrays != expected:
        raise ValueError(f"arrays needs those of the run, {expected}, got {arrays}")


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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path))
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or foreign: {error}") from error
    return found


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
    try:
        if manifest.get("sha256") != _seal(manifest):
            raise ValueError("its checksum is not that of its content")
        if document != _group(manifest):
            raise ValueError("it is not the Zarr group of a run")
        check_manifest(manifest)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged or was edited: {error}") from error
    for name in ARRAYS:
        file, expected = folder / name / "zarr.json", Layout.of(manifest).document(name)
        found = _read_json(file)
        if found != expected:
            wrong = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
            raise ValueError(f"{file} is damaged or was edited: {', '.join(wrong)} are not those of the run")
    return manifest
