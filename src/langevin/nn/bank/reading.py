"""The half of a bank that reads."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from langevin.checks import check_path, level_of_caller, needs
from langevin.nn.bank.files import Contents, CorruptDrawError, Draw, State, read_draw
from langevin.nn.bank.modules import (
    check_module,
    check_whole,
    differing_values,
    fill,
    parts_of,
    private_copy,
)
from langevin.nn.bank.sharded import Parts
from langevin.storage.journal import Journal
from langevin.storage.safe_io import resolve_root

__all__ = ["BankReader", "OnError", "as_int", "check_on_error"]

OnError = Literal["raise", "skip"]


class _DeletedDrawError(CorruptDrawError):
    """The writer has deleted the draw since the bank was read: no damage."""


class BankReader:
    """The draws in a folder; `SampleBank` adds to them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the manifest, if there is one."""
        self._given = os.fspath(check_path("SampleBank", "path", path, "the path of a folder"))
        self.path = resolve_root(Path(self._given))
        if self.path.exists() and not self.path.is_dir():
            raise needs("SampleBank", "path", "a folder", self._given)
        self._journal = Journal(
            self.path / "manifest.jsonl", "langevin-bank", 2, partial(Contents, self.path)
        )
        self._publish()

    def __len__(self) -> int:
        return len(self._draws)

    @property
    def draws(self) -> list[Draw]:
        """The kept draws, oldest first."""
        return list(self._draws)

    def state_dict(self, i: int) -> State:
        """Read the i-th kept draw to the CPU; as in a list, `-1` is the newest.

        Tied names share one tensor. Frozen parameters that the bank does not store are left out.
        """
        return self._read(self._at("SampleBank.state_dict", i))

    def load(self, model: nn.Module, i: int) -> None:
        """Copy the i-th kept draw into `model` in place, on its devices and in its dtypes.

        Frozen parameters that the bank does not store keep their values. Of a sharded model this
        fills the rank's own part, without messages: call it on every rank.
        """
        model = check_module("SampleBank.load", model)
        draw = self._at("SampleBank.load", i)
        self._check_frozen(model)
        fill(model, self._read(draw, parts_of(model)), draw.path, self._journal.state.frozen)

    def models(self, model: nn.Module, *, on_error: OnError = "raise") -> Iterator[nn.Module]:
        """Iterate over the draws as modules in eval mode, one at a time; `model` is not changed.

        **Each iteration yields the same module with new values**: use it before the next one, and
        copy what must last. It is a copy of `model` without `DistributedDataParallel` and other
        wrappers; sharded models cannot be copied and raise an error. Frozen parameters that the
        bank does not store have the values of `model`. A damaged draw raises `CorruptDrawError`;
        with `on_error="skip"` it is skipped with a warning. Draws that a writer has deleted since
        the bank was opened are skipped.
        """
        or_else = "; or call `bank.load(model, i)` on every rank, draw after draw"
        model = check_whole("SampleBank.models", model, or_else)
        check_on_error("SampleBank.models", on_error)
        return (module for _, module in self._each(model, on_error))

    def _publish(self) -> None:
        # one assignment, for readers in other threads
        self._draws = tuple(self._journal.state.draws.values())

    def _at(self, who: str, i: int) -> Draw:
        draws, i = self._draws, as_int(i)
        if type(i) is not int:
            raise needs(who, "i", "the position of a draw, an int", i, TypeError)
        if not -len(draws) <= i < len(draws):
            raise IndexError(f"{self.path}: no draw {i}, the bank has {len(draws)}")
        return draws[i]

    def _each(self, model: nn.Module, on_error: OnError) -> Iterator[tuple[Draw, nn.Module]]:
        self._check_frozen(model)
        module = private_copy(model)
        for draw in self._draws:
            try:
                state = self._read(draw)
            except _DeletedDrawError:
                continue
            except CorruptDrawError as error:
                if on_error == "raise":
                    raise
                warnings.warn(f"skipped {error}", stacklevel=3)
                continue
            fill(module, state, draw.path, self._journal.state.frozen)
            yield draw, module.eval()

    def _check_frozen(self, model: nn.Module) -> None:
        """Warn if frozen parameters, which draws do not hold, differ from the sampled model's."""
        if wrong := differing_values(model, self._journal.state.frozen):
            verb = "have" if len(wrong) > 1 else "has"
            warnings.warn(
                f"SampleBank: {', '.join(wrong[:3])} {verb} other values than when {self.path} was "
                "written; these parameters were frozen, and draws do not hold them: load the same "
                "base model first",
                stacklevel=level_of_caller(),
            )

    def _read(self, draw: Draw, like: Parts | None = None) -> State:
        while True:
            try:
                return read_draw(draw, self._journal.state.tensors or {}, like)
            except CorruptDrawError as error:
                # a writer may have rewritten or deleted the draw since
                same = (draw.index, draw.calls, draw.time)
                written = BankReader(self.path).draws
                now = next((d for d in written if (d.index, d.calls, d.time) == same), None)
                if now is None:
                    reason = f"draw {draw.index} was deleted after this bank was opened"
                    raise _DeletedDrawError(f"{draw.path}: {reason}") from error
                if now == draw:
                    raise
                draw = now


def check_on_error(who: str, on_error: object) -> OnError:
    """Return how to treat damaged draws; fail for anything but the two ways."""
    if not isinstance(on_error, str) or on_error not in ("raise", "skip"):
        raise needs(who, "on_error", '"raise" or "skip"', on_error)
    return "skip" if on_error == "skip" else "raise"


def as_int(value: Any) -> Any:
    """Convert integers of NumPy and torch to int; return anything else, and bools, as it is."""
    if isinstance(value, bool) or getattr(value, "dtype", None) in (torch.bool, np.bool_):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value
