"""What the lines of a bank's manifest add up to."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["JSON", "Contents", "Draw", "compare", "describe", "file_name", "revision_of"]

JSON = ["json"]  # in place of dtype and shape: extra state that is no tensor
_FILE = re.compile(r"draw-\d{8,}(?:\.(\d+))?\.safetensors")


@dataclass(frozen=True)
class Draw:
    """One kept draw: what its manifest line says."""

    index: int  # running number of the draw; unlike its position in the bank it never changes
    path: Path
    step: int | None
    metrics: dict[str, Any]
    calls: int  # which call of `add` made it, counted from 1
    time: float  # seconds since 1970
    bytes: int
    sha256: str
    aliases: dict[str, str]  # tied name -> the name it is stored under


@dataclass
class Contents:
    """The state of a bank's journal."""

    folder: Path
    tensors: dict[str, Any] | None = None  # name -> [dtype, shape] or JSON; None before the header
    draws: dict[int, Draw] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)  # files that are gone, or about to be deleted
    calls: int = 0
    next_index: int = 0

    def apply(self, entry: dict[str, Any]) -> None:
        """Take in one line."""
        kind = entry["kind"]
        if "file" in entry and not _FILE.fullmatch(entry["file"]):
            raise ValueError(f"expected a draw file in this folder, found {entry['file']!r}")
        if kind == "header":
            self.tensors = entry["tensors"]
        elif kind == "draw":
            about = {name: entry[name] for name in ("index", "step", "metrics", "calls", "time")}
            self.draws[entry["index"]] = Draw(**about, **self._located(entry))
            self.calls, self.next_index = entry["calls"], entry["index"] + 1
        elif kind == "update":
            old = self.draws[entry["index"]]
            self.dead.add(old.path.name)
            self.draws[entry["index"]] = replace(old, **self._located(entry))
        elif kind == "drop":
            self._drop(entry["index"])
        elif kind == "calls":
            self.calls = entry["calls"]
            for draw in reversed(list(self.draws.values())):
                if draw.calls > self.calls:
                    self._drop(draw.index)
                    self.next_index = draw.index
        else:
            raise ValueError(f"expected draw, update, drop or calls, found {kind!r}")

    def _located(self, entry: dict[str, Any]) -> dict[str, Any]:
        self.dead.discard(entry["file"])
        return {"path": self.folder / entry["file"], **{name: entry[name] for name in ("sha256", "bytes", "aliases")}}

    def _drop(self, index: int) -> None:
        self.dead.add(self.draws.pop(index).path.name)


def file_name(index: int, revision: int = 0) -> str:
    """Name the file of a draw."""
    return f"draw-{index:08d}{f'.{revision}' if revision else ''}.safetensors"


def revision_of(name: str) -> int:
    """Return the revision in a draw file's name: how often `update_bn` has rewritten the draw."""
    match = _FILE.fullmatch(name)
    return int(match[1] or 0) if match else 0


def describe(state: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a state is made of: name -> [dtype, shape], or JSON for what is no tensor."""
    return {
        name: [str(value.dtype).removeprefix("torch."), list(value.shape)] if isinstance(value, Tensor) else JSON
        for name, value in state.items()
    }


def compare(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Say what differs between two descriptions; nothing does if the answer is empty."""

    def show(like: list[Any] | None) -> str:
        return "".join(map(str, like)) if like else "no such tensor"

    wrong = [name for name in {**expected, **found} if expected.get(name, ()) != found.get(name, ())]
    lines = [f"{name}: expected {show(expected.get(name))}, found {show(found.get(name))}" for name in wrong[:3]]
    return "; ".join(lines) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
