"""A folder of posterior draws of an `nn.Module` that survives being killed at any moment.

```
bank/
  manifest.jsonl                 a journal (see `langevin.journal`): the truth about the folder
  draw-00000000.safetensors      the full state_dict of one draw (parameters and buffers; a tied tensor is stored once)
  draw-00000001.1.safetensors    the same after `update_bn` (its first revision)
  lock                           held (flock) by the one process that writes; readers need no lock
```

The header of the manifest has the dtype and shape of every tensor. Then, by `kind`:

- `draw`: index, file, sha256, bytes, aliases (tied name -> stored name), calls (of `add`, so far), step, time, metrics;
- `update`: the draw `index` now lives in another file with another checksum;
- `drop`: the draw `index` is gone (`max_draws`); the line comes first, the file is deleted after it;
- `calls`: the counter of `add` calls is set; draws of later calls are gone (written by `close` and `rewind`).

So a kill leaves at most a temporary file, a draw without a line (later overwritten), a file whose line says it is gone, or
half a last line. Readers ignore all four; the next writer clears them away once it holds the lock. Reading is safetensors
and JSON only, so nothing in the folder can run code.
"""

import copy
import hashlib
import json
import operator
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from langevin.checks import check_integer, needs
from langevin.journal import Journal, remove_temporaries, write_atomic

__all__ = ["CorruptDrawError", "Draw", "SampleBank"]

_FILE = re.compile(r"draw-\d{8,}(?:\.(\d+))?\.safetensors")
OnError = Literal["raise", "skip"]


class CorruptDrawError(ValueError):
    """A draw's file is missing, damaged, or not what the manifest says; the message names the file."""


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
class _Contents:
    """What the manifest's lines add up to."""

    folder: Path
    tensors: dict[str, Any] | None = None  # name -> [dtype, shape]; None before the header
    draws: dict[int, Draw] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)  # files that are gone, or about to be deleted
    calls: int = 0
    next_index: int = 0

    def apply(self, entry: dict[str, Any]) -> None:
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


class SampleBank:
    """Posterior draws of one model in a folder: crash-safe, checked on reading, one writer and any number of readers.

    The folder and the lock are made by the first `add`. A bank opened for reading shows the draws written so far.

    Args:
        path: The folder; an existing bank is continued.
        thin: Keep every `thin`-th call of `add`: calls `thin`, `2 * thin`, and so on.
        max_draws: Keep at most this many; when one more comes **the oldest is deleted**. `None` keeps all.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> with SampleBank(tempfile.mkdtemp(), thin=2) as bank:
        ...     for step in range(6):
        ...         _ = bank.add(model, step=step, loss=0.5)
        >>> [(draw.index, draw.step) for draw in bank.draws]
        [(0, 1), (1, 3), (2, 5)]
        >>> bank.predict(model, torch.zeros(4, 2)).shape  # for a classifier: transform=lambda z: z.softmax(-1)
        torch.Size([4, 1])
    """

    def __init__(self, path: str | os.PathLike[str], *, thin: int = 1, max_draws: int | None = None) -> None:
        """Check the arguments and read the manifest, if there is one."""
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise needs("SampleBank", "path", "a str or a path", path, TypeError)
        self.path = Path(path)
        if not os.fspath(path) or (self.path.exists() and not self.path.is_dir()):
            raise needs("SampleBank", "path", "a folder", os.fspath(path))
        self.thin = check_integer("SampleBank", "thin", _whole(thin), 1)
        self.max_draws = None if max_draws is None else check_integer("SampleBank", "max_draws", _whole(max_draws), 1)
        self._counted = 0  # calls of `add`, as far as this object knows; the manifest has those up to the last kept draw
        self._journal = Journal(self.path / "manifest.jsonl", "langevin-bank", 1, partial(_Contents, self.path))

    # ---- writing

    def add(self, model: nn.Module, step: int | None = None, **metrics: Any) -> Draw | None:
        """Count one call and, at every `thin`-th, write the model's state; returns the draw, or None if not kept.

        A failed or interrupted call (full disk, Ctrl-C) leaves the earlier draws and the bank as they were.

        Raises:
            ValueError: the model's tensor names, shapes or dtypes are not those of the first draw.
            RuntimeError: another process is writing to this bank.
            OSError: the draw could not be written; the message names the file.
        """
        _check_module("SampleBank.add", model)
        step = _whole(step)
        if step is not None and type(step) is not int:
            raise needs("SampleBank.add", "step", "an int or None", step, TypeError)
        for name, value in metrics.items():
            try:
                metrics[name] = json.loads(json.dumps(value, default=lambda scalar: scalar.item()))
            except Exception as error:
                raise needs("SampleBank.add", name, "a number or a JSON value", value, TypeError) from error
        with self._writing() as contents:
            call = self.calls + 1
            if contents.tensors is None:
                self._journal.begin(tensors=_describe(_plain_state(model)))
            if call % self.thin:
                self._counted = call
                return None
            state, index = _plain_state(model), contents.next_index
            if differences := _compare(contents.tensors or {}, _describe(state)):
                raise ValueError(f"{self._journal.path}: another model than before: {differences}")
            record = self._write_draw(f"draw-{index:08d}.safetensors", state)
            about = {"calls": call, "step": step, "time": time.time(), "metrics": metrics}
            too_many = [*contents.draws, index][: -self.max_draws] if self.max_draws else []
            self._append({"kind": "draw", "index": index, **record, **about}, *({"kind": "drop", "index": k} for k in too_many))
            return contents.draws[index]

    def rewind(self, calls: int) -> None:
        """Go to the state after `calls` calls of `add` (as `bank.calls` said then): draws of later calls are deleted.

        For a run that restarts from a checkpoint: keep `bank.calls` in the checkpoint, and the resumed run keeps the
        same draws as an uninterrupted one. (Draws that `max_draws` has deleted do not come back.)
        """
        calls = check_integer("SampleBank.rewind", "calls", _whole(calls), 0)
        with self._writing() as contents:
            self._counted = calls
            if contents.tensors is not None:
                self._append({"kind": "calls", "calls": calls})

    def update_bn(self, model: nn.Module, loader: Iterable[Any]) -> int:
        """Re-estimate the BatchNorm statistics of every draw from the loader's inputs; returns how many were rewritten.

        As `torch.optim.swa_utils.update_bn` (statistics reset, then averaged over all batches), except that only the
        BatchNorm layers are in train mode: dropout stays off. A batch is a tensor, or a tuple or list that starts with
        one. Without BatchNorm statistics in the model it warns and changes nothing. Each draw is rewritten atomically;
        after an interruption call it again. `model` is not touched.
        """
        _check_module("SampleBank.update_bn", model)
        if isinstance(loader, Iterator):
            raise needs("SampleBank.update_bn", "loader", "to be read once per draw, no iterator", loader, TypeError)
        if not _norms(model):
            warnings.warn(f"update_bn: {type(model).__name__} has no BatchNorm statistics, nothing to do", stacklevel=2)
            return 0
        with self._writing() as contents:
            for draw, module in self._each(model, "raise"):
                _estimate_norms(module, loader)
                revision = int(_FILE.fullmatch(draw.path.name)[1] or 0) + 1  # type: ignore[index]
                record = self._write_draw(f"draw-{draw.index:08d}.{revision}.safetensors", _plain_state(module))
                self._append({"kind": "update", "index": draw.index, **record})
            return len(contents.draws)

    def close(self) -> None:
        """Write the call counter if it has moved on, and give the lock back; reading goes on working."""
        try:
            contents = self._journal.state
            if self._journal.in_step and contents.tensors is not None and self._counted > contents.calls:
                with self._writing():
                    self._append({"kind": "calls", "calls": self._counted})
        finally:
            self._journal.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ---- reading

    def __len__(self) -> int:
        return len(self._journal.state.draws)

    @property
    def draws(self) -> list[Draw]:
        """The kept draws, oldest first."""
        return list(self._journal.state.draws.values())

    @property
    def calls(self) -> int:
        """Calls of `add` so far; after a kill, up to the last kept draw (see `rewind`)."""
        return max(self._counted, self._journal.state.calls)

    def state_dict(self, i: int) -> dict[str, Tensor]:
        """Read the i-th kept draw, on the CPU; as in a list, `-1` is the newest. Tied names share one tensor."""
        if not -len(self) <= operator.index(i) < len(self):
            raise IndexError(f"{self.path}: no draw {i}, the bank has {len(self)}")
        return self._read(self.draws[i])

    def load(self, model: nn.Module, i: int) -> None:
        """Copy the i-th kept draw into `model`, in place, on the model's own device and in its own dtypes."""
        _check_module("SampleBank.load", model)
        _fill(model, self.state_dict(i), self.draws[i].path)

    def models(self, model: nn.Module, *, on_error: OnError = "raise") -> Iterator[nn.Module]:
        """Iterate over the draws as modules in eval mode, holding one at a time; `model` itself is not touched.

        **The same module is yielded again and again, with new values**: use it before asking for the next one, and
        copy what must last. A damaged draw raises `CorruptDrawError`, or is warned about and left out with
        `on_error="skip"`.
        """
        _check_module("SampleBank.models", model)
        if on_error not in ("raise", "skip"):
            raise needs("SampleBank.models", "on_error", '"raise" or "skip"', on_error)
        return (module for _, module in self._each(model, on_error))

    def predict(
        self, model: nn.Module, x: Any, *, transform: Callable[[Any], Tensor] | None = None, on_error: OnError = "raise"
    ) -> Tensor:
        """Average `transform(model(x))` over the draws, without gradients, in float32 or wider.

        For a classifier give `transform=lambda logits: logits.softmax(-1)`: probabilities are averaged, not logits.
        """
        total, count = None, 0
        for module in self.models(model, on_error=on_error):
            with torch.no_grad():
                output = module(x) if transform is None else transform(module(x))
                output = output.to(torch.promote_types(output.dtype, torch.float32))
                total = output.clone() if total is None else total.add_(output)
            count += 1
        if total is None:
            raise ValueError(f"SampleBank.predict needs at least one readable draw, {self.path} has none")
        return total.div_(count)

    # ---- inside

    def _each(self, model: nn.Module, on_error: OnError) -> Iterator[tuple[Draw, nn.Module]]:
        module: nn.Module = copy.deepcopy(getattr(model, "_orig_mod", model))
        module.zero_grad(set_to_none=True)
        for draw in self.draws:
            try:
                state = self._read(draw)
            except CorruptDrawError as error:
                if on_error == "raise":
                    raise
                warnings.warn(f"skipped {error}", stacklevel=3)
                continue
            _fill(module, state, draw.path)
            yield draw, module.eval()

    def _read(self, draw: Draw) -> dict[str, Tensor]:
        try:
            data = draw.path.read_bytes()
        except OSError as error:
            raise CorruptDrawError(f"{draw.path}: draw {draw.index} cannot be read: {error.strerror}") from error
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != draw.sha256:
            sizes = f"expected {draw.bytes} bytes, sha256 {draw.sha256[:12]}, found {len(data)} bytes, {sha256[:12]}"
            raise CorruptDrawError(f"{draw.path}: draw {draw.index} is damaged or foreign: {sizes}")
        try:
            state = safetensors.torch.load(data)
            state |= {name: state[stored] for name, stored in draw.aliases.items()}
        except Exception as error:
            raise CorruptDrawError(f"{draw.path}: draw {draw.index} is not a safetensors draw: {error}") from error
        tensors = self._journal.state.tensors or {}
        if differences := _compare(tensors, _describe(state)):
            raise CorruptDrawError(f"{draw.path}: not a draw of this bank: {differences}")
        return {name: state[name] for name in tensors}

    @contextmanager
    def _writing(self) -> Iterator[_Contents]:
        if self._journal.lock():
            self._counted = 0  # out of date: another process may have written since
        with self._journal.writing() as unsure:
            if unsure:
                if self._journal.state.tensors is None and any(self.path.glob("draw-*.safetensors")):
                    raise ValueError(f"{self._journal.path}: expected a manifest beside the draws in the folder, found none")
                remove_temporaries(self.path, "draw-*")
                self._delete_dead()
            yield self._journal.state

    def _append(self, *entries: dict[str, Any]) -> None:
        self._journal.append(*entries)
        self._delete_dead()

    def _delete_dead(self) -> None:
        dead = self._journal.state.dead
        for name in list(dead):
            with suppress(OSError):  # what cannot be deleted now stays listed for the next time
                (self.path / name).unlink(missing_ok=True)
                dead.discard(name)

    def _write_draw(self, name: str, state: dict[str, Tensor]) -> dict[str, Any]:
        stored: dict[Any, str] = {}
        aliases = {}
        for key, tensor in state.items():
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if stored.setdefault(place, key) != key:
                aliases[key] = stored[place]
        tensors = {k: t.to("cpu", copy=True).contiguous() for k, t in state.items() if k not in aliases}
        data = safetensors.torch.save(tensors, metadata={"format": "pt"})
        write_atomic(self.path / name, data)
        return {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "aliases": aliases}


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def _estimate_norms(module: nn.Module, loader: Iterable[Any]) -> None:
    norms, batches = _norms(module), 0
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
        norm.train()
    for batch in loader:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(inputs, Tensor):
            raise needs("SampleBank.update_bn", "loader", "tensors as inputs", type(inputs), TypeError)
        with torch.no_grad():
            module(inputs.to(norms[0].running_mean.device))  # type: ignore[union-attr]
        batches += 1
    if not batches:
        raise needs("SampleBank.update_bn", "loader", "at least one batch", loader)


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")  # what torch.compile puts before the names of a module


def _plain_state(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        plain = type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_meta
        if not plain or value.is_quantized or value.dtype == torch.complex128:  # what safetensors cannot hold
            found = f"{type(value).__name__} {getattr(value, 'dtype', '')}"
            raise TypeError(f"SampleBank needs plain dense tensors, {type(model).__name__} has {name}: {found}")
    return {_plain(name): value.detach() for name, value in state.items()}


def _fill(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    own, stored = ({name: [shape] for name, (_, shape) in _describe(s).items()} for s in (_plain_state(model), state))
    if differences := _compare(stored, own):
        raise ValueError(f"{path}: does not fit {type(model).__name__}: {differences}")
    model.load_state_dict({name: state[_plain(name)] for name in model.state_dict()})


def _describe(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: [str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in state.items()}


def _compare(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Say what differs; nothing does if the answer is empty."""

    def show(like: list[Any] | None) -> str:
        return "".join(map(str, like)) if like else "no such tensor"

    wrong = [name for name in {**expected, **found} if expected.get(name, ()) != found.get(name, ())]
    lines = [f"{name}: expected {show(expected.get(name))}, found {show(found.get(name))}" for name in wrong[:3]]
    return "; ".join(lines) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")


def _check_module(who: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", type(model), TypeError)


def _whole(value: Any) -> Any:
    """Turn NumPy's integers into ints; leave what is no integer to the check."""
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value
