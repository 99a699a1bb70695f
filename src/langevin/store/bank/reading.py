"""The half of a bank that reads."""

import operator
import os
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from langevin.checks import check_path, needs
from langevin.store.bank.contents import Contents, Draw
from langevin.store.bank.files import CorruptDrawError, read_draw
from langevin.store.bank.modules import check_module, check_whole, fill, parts_of, private_copy
from langevin.store.journal import Journal

__all__ = ["BankReader", "as_int"]

OnError = Literal["raise", "skip"]


class _DeletedDrawError(CorruptDrawError):
    """The writer has deleted the draw since the bank was read: no damage."""


class BankReader:
    """The draws in a folder; `SampleBank` adds to them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the manifest, if there is one."""
        self.path = check_path("SampleBank", "path", path, "the path of a folder")
        if self.path.exists() and not self.path.is_dir():
            raise needs("SampleBank", "path", "a folder", os.fspath(path))
        self._journal = Journal(self.path / "manifest.jsonl", "langevin-bank", 2, partial(Contents, self.path))
        self._publish()

    def __len__(self) -> int:
        return len(self._draws)

    @property
    def draws(self) -> list[Draw]:
        """The kept draws, oldest first."""
        return list(self._draws)

    def state_dict(self, i: int) -> dict[str, Any]:
        """Read the i-th kept draw, on the CPU; as in a list, `-1` is the newest. Tied names share one tensor."""
        return self._read(self._at("SampleBank.state_dict", i))

    def load(self, model: nn.Module, i: int) -> None:
        """Copy the i-th kept draw into `model`, in place, on the model's own device and in its own dtypes.

        Of a sharded model this rank's part is filled, without a message to the others: call it on every rank.
        """
        check_module("SampleBank.load", model)
        draw = self._at("SampleBank.load", i)
        fill(model, self._read(draw, parts_of(model)), draw.path)

    def models(self, model: nn.Module, *, on_error: OnError = "raise") -> Iterator[nn.Module]:
        """Iterate over the draws as modules in eval mode, holding one at a time; `model` itself is not touched.

        **The same module is yielded again and again, with new values**: use it before asking for the next one, and copy what
        must last. It is a copy of `model` without `DistributedDataParallel` and other wrappers; sharded models are refused, as they
        cannot be copied. A damaged draw raises
        `CorruptDrawError`, or is warned about and left out with `on_error="skip"`. Draws that a writer has deleted since the
        bank was opened are left out.
        """
        or_else = "; or load draw after draw into the sharded one, with `bank.load(model, i)` on every rank"
        check_whole("SampleBank.models", model, or_else)
        if not isinstance(on_error, str) or on_error not in ("raise", "skip"):
            raise needs("SampleBank.models", "on_error", '"raise" or "skip"', on_error)
        return (module for _, module in self._each(model, on_error))

    def _publish(self) -> None:
        self._draws = tuple(self._journal.state.draws.values())  # in one go, for readers in other threads

    def _at(self, who: str, i: int) -> Draw:
        draws, i = self._draws, as_int(i)
        if type(i) is not int:
            raise needs(who, "i", "the position of a draw, an int", i, TypeError)
        if not -len(draws) <= i < len(draws):
            raise IndexError(f"{self.path}: no draw {i}, the bank has {len(draws)}")
        return draws[i]

    def _each(self, model: nn.Module, on_error: OnError) -> Iterator[tuple[Draw, nn.Module]]:
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
            fill(module, state, draw.path)
            yield draw, module.eval()

    def _read(self, draw: Draw, like: dict[str, Any] | None = None) -> dict[str, Any]:
        while True:
            try:
                return read_draw(draw, self._journal.state.tensors or {}, like)
            except CorruptDrawError as error:
                written = BankReader(self.path).draws  # has a writer rewritten or deleted the draw since?
                now = next((d for d in written if (d.index, d.calls, d.time) == (draw.index, draw.calls, draw.time)), None)
                if now is None:
                    reason = f"draw {draw.index} was deleted after this bank was opened"
                    raise _DeletedDrawError(f"{draw.path}: {reason}") from error
                if now == draw:
                    raise
                draw = now


def as_int(value: Any) -> Any:
    """Turn integers of NumPy and torch into ints; leave what is no integer, as a bool is none, to the check."""
    if isinstance(value, bool) or getattr(value, "dtype", None) in (torch.bool, np.bool_):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value
