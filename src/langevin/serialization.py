"""Settings as plain dicts, without executable code, and digests of data and settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.checks import needs

__all__ = ["Json", "digest", "digest_of_json", "digest_of_tensors", "from_plain", "to_plain"]


Json = dict[str, Any]
"""A JSON object."""


def to_plain(value: object) -> Json:
    """Return a frozen dataclass as a dict of its class name and arguments.

    Example:
        >>> from langevin.kernels.schedules import constant
        >>> to_plain(constant(0.1))
        {'kind': 'Constant', 'value': 0.1}
    """
    if not is_dataclass(value) or isinstance(value, type):
        raise needs("to_plain", "value", "a dataclass", value, TypeError)
    return {
        "kind": type(value).__name__,
        **{entry.name: getattr(value, entry.name) for entry in fields(value) if entry.init},
    }


def from_plain(plain: object, kinds: Mapping[str, type]) -> Any:
    """Build an instance of one of `kinds` from the dict that `to_plain` returned."""
    if not isinstance(plain, dict) or plain.get("kind") not in kinds:
        raise needs("from_plain", "plain", f"a dict whose kind is one of {sorted(kinds)}", plain)
    kind = kinds[plain["kind"]]
    arguments = {name: value for name, value in plain.items() if name != "kind"}
    names = {entry.name for entry in fields(kind) if entry.init}
    if set(arguments) != names:
        condition = f"the arguments {sorted(names)} of {plain['kind']}"
        raise needs("from_plain", "plain", condition, sorted(arguments))
    return kind(**arguments)


def digest(*parts: bytes | memoryview) -> str:
    """Return the SHA-256 of the concatenated parts, in hexadecimal.

    Example:
        >>> digest(b"a", b"bc")[:16]
        'ba7816bf8f01cfea'
    """
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def digest_of_json(value: object) -> str:
    """Return the digest of plain values; the order of keys does not matter."""
    return digest(json.dumps(value, sort_keys=True).encode())


def digest_of_tensors(tensors: Iterable[Tensor]) -> str:
    """Return the digest of dtypes, shapes and elements."""
    parts: list[bytes | memoryview] = []
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        parts.append(f"{plain.dtype} {tuple(plain.shape)}".encode())
        parts.append(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest(*parts)
