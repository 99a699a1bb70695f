"""Settings as plain values: frozen dataclasses to dicts and back, so that any file format holds them and no code is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from langevin.checks import needs

__all__ = ["from_plain", "to_plain"]


def to_plain(value: Any) -> dict[str, Any]:
    """Return a frozen dataclass as the name of its class and the arguments that build it again.

    Example:
        >>> from langevin.schedules import constant
        >>> to_plain(constant(0.1))
        {'kind': 'Constant', 'value': 0.1}
    """
    if not is_dataclass(value) or isinstance(value, type):
        raise needs("to_plain", "value", "a dataclass", value, TypeError)
    return {"kind": type(value).__name__, **{entry.name: getattr(value, entry.name) for entry in fields(value) if entry.init}}


def from_plain(plain: Any, kinds: Mapping[str, type]) -> Any:
    """Build what `to_plain` described, when it is one of `kinds`; the class checks its arguments."""
    if not isinstance(plain, dict) or plain.get("kind") not in kinds:
        raise needs("from_plain", "plain", f"a dict whose kind is one of {sorted(kinds)}", plain)
    kind, arguments = kinds[plain["kind"]], {name: value for name, value in plain.items() if name != "kind"}
    expected = {entry.name for entry in fields(kind) if entry.init}
    if set(arguments) != expected:
        raise needs("from_plain", "plain", f"the arguments {sorted(expected)} of {plain['kind']}", sorted(arguments))
    return kind(**arguments)
