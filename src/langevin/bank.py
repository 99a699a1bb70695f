"""A folder of posterior draws of an `nn.Module` that survives being killed at any moment.

```
bank/
  manifest.jsonl                 one JSON object per line, only ever appended to: the truth about the folder
  draw-00000000.safetensors      the full state_dict of one draw (parameters and buffers; a tied tensor is stored once)
  draw-00000001.1.safetensors    the same after `update_bn` (its first revision)
  lock                           held (flock) by the one process that writes; readers need no lock
```

Line 1 of the manifest is the header: format, version, and the dtype and shape of every tensor. Then, by `kind`:

- `draw`: index, file, sha256, bytes, aliases (tied name -> stored name), calls (of `add`, so far), step, time, metrics;
- `update`: the draw `index` now lives in another file with another checksum;
- `drop`: the draw `index` is gone (`max_draws`); the line comes first, the file is deleted after it;
- `calls`: the counter of `add` calls is set; draws of later calls are gone (written by `close` and `rewind`).

A draw is written to a temporary file, synced, renamed, and only then named in the manifest. So a kill leaves at most a
temporary file, a draw without a line (ignored, later overwritten), a file whose line says it is gone, or half a last
line. Readers ignore all four; the next writer clears them away once it holds the lock. Reading is safetensors and JSON
only, so nothing in the folder can run code. Writing needs POSIX (flock).
"""

import copy
import hashlib
import json
import operator
import os
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["CorruptDrawError", "Draw", "SampleBank"]

FORMAT, VERSION = "langevin-bank", 1
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
        self._fd: int | None = None  # of the lock file, while this object holds the lock
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise TypeError(f"SampleBank(path=...) needs a str or a path, got {path!r}")
        self.path = Path(path)
        if not os.fspath(path) or (self.path.exists() and not self.path.is_dir()):
            raise ValueError(f"SampleBank(path=...) needs a folder, got {os.fspath(path)!r}")
        self.thin = _whole("SampleBank(thin=...)", thin, 1)
        self.max_draws = None if max_draws is None else _whole("SampleBank(max_draws=...)", max_draws, 1)
        self._manifest = self.path / "manifest.jsonl"
        self._calls = 0
        self._in_step = False  # memory agrees with the disk and the lock is held
        self._replay()
        _BANKS.add(self)

    # ---- writing

    def add(self, model: nn.Module, step: int | None = None, **metrics: Any) -> Draw | None:
        """Count one call and, at every `thin`-th, write the model's state; returns the draw, or None if not kept.

        A failed or interrupted call (full disk, Ctrl-C) leaves the earlier draws and the bank as they were.

        Raises:
            ValueError: the model's tensor names, shapes or dtypes are not those of the first draw.
            RuntimeError: another process is writing to this bank.
            OSError: the draw could not be written; the message names the file.
        """
        _check_module("SampleBank.add(model=...)", model)
        step = None if step is None else _whole("SampleBank.add(step=...)", step, None)
        for name, value in metrics.items():
            try:
                metrics[name] = json.loads(json.dumps(value, default=lambda scalar: scalar.item()))
            except Exception as error:
                raise TypeError(f"SampleBank.add({name}=...) needs a number or a JSON value, got {value!r}") from error
        with self._writing():
            if self._tensors is None:
                tensors = _describe(_plain_state(model))
                self._append({"kind": "header", "format": FORMAT, "version": VERSION, "tensors": tensors})
                _sync_folder(self.path)
            call = self._calls + 1
            if call % self.thin:
                self._calls = call
                return None
            state = _plain_state(model)
            tensors = _describe(state)
            if tensors != self._tensors:
                differences = _compare(self._tensors or {}, tensors)
                raise ValueError(f"{self._manifest}: another model than before: {differences}")
            index = self._next_index
            record = self._write_draw(f"draw-{index:08d}.safetensors", state)
            about = {"calls": call, "step": step, "time": time.time(), "metrics": metrics}
            too_many = [*self._draws, index][: -self.max_draws] if self.max_draws else []
            drops = [{"kind": "drop", "index": old} for old in too_many]
            self._append({"kind": "draw", "index": index, **record, **about}, *drops)
            self._clear_dead()
            return self._draws[index]

    def rewind(self, calls: int) -> None:
        """Go to the state after `calls` calls of `add` (as `bank.calls` said then): draws of later calls are deleted.

        For a run that restarts from a checkpoint: keep `bank.calls` in the checkpoint, and the resumed run keeps the
        same draws as an uninterrupted one. (Draws that `max_draws` has deleted do not come back.)
        """
        calls = _whole("SampleBank.rewind(calls=...)", calls, 0)
        with self._writing():
            self._calls = calls
            if self._tensors is not None:
                self._append({"kind": "calls", "calls": calls})
            self._clear_dead()

    def update_bn(self, model: nn.Module, loader: Iterable[Any]) -> int:
        """Re-estimate the BatchNorm statistics of every draw from the loader's inputs; returns how many were rewritten.

        As `torch.optim.swa_utils.update_bn` (statistics reset, then averaged over all batches), except that only the
        BatchNorm layers are in train mode: dropout stays off. A batch is a tensor, or a tuple or list that starts with
        one. Without BatchNorm statistics in the model it warns and changes nothing. Each draw is rewritten atomically;
        after an interruption call it again. `model` is not touched.
        """
        _check_module("SampleBank.update_bn(model=...)", model)
        if isinstance(loader, Iterator):
            raise TypeError("SampleBank.update_bn(loader=...) is read once per draw: needs a loader, got an iterator")
        if not any(isinstance(m, _BatchNorm) and m.running_mean is not None for m in model.modules()):
            warnings.warn(f"update_bn: {type(model).__name__} has no BatchNorm statistics, nothing to do", stacklevel=2)
            return 0
        count = 0
        with self._writing():
            for draw, module in self._each(model, "raise"):
                norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
                for norm in norms:
                    norm.reset_running_stats()
                    norm.momentum = None  # cumulative average
                    norm.train()
                batches = 0
                for batch in loader:
                    inputs = batch[0] if isinstance(batch, tuple | list) else batch
                    if not isinstance(inputs, Tensor):
                        raise TypeError(f"SampleBank.update_bn(loader=...) needs tensors, got {type(inputs).__name__}")
                    with torch.no_grad():
                        module(inputs.to(norms[0].running_mean.device))  # type: ignore[union-attr]
                    batches += 1
                if not batches:
                    raise ValueError("SampleBank.update_bn(loader=...) needs at least one batch, got an empty loader")
                revision = int(_FILE.fullmatch(draw.path.name)[1] or 0) + 1  # type: ignore[index]
                record = self._write_draw(f"draw-{draw.index:08d}.{revision}.safetensors", _plain_state(module))
                self._append({"kind": "update", "index": draw.index, **record})
                self._clear_dead()
                count += 1
        return count

    def close(self) -> None:
        """Write the call counter if it has moved on, and give the lock back; reading goes on working."""
        try:
            if self._in_step and self._tensors is not None and self._calls != self._saved_calls:
                with self._writing():
                    self._append({"kind": "calls", "calls": self._calls})
        finally:
            self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self._unlock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": None, "_in_step": False}  # a copy in another process has no lock

    # ---- reading

    def __len__(self) -> int:
        return len(self._draws)

    @property
    def draws(self) -> list[Draw]:
        """The kept draws, oldest first."""
        return list(self._draws.values())

    @property
    def calls(self) -> int:
        """Calls of `add` so far; after a kill, up to the last kept draw (see `rewind`)."""
        return self._calls

    def state_dict(self, i: int) -> dict[str, Tensor]:
        """Read the i-th kept draw, on the CPU; as in a list, `-1` is the newest. Tied names share one tensor."""
        if not -len(self) <= operator.index(i) < len(self):
            raise IndexError(f"{self.path}: no draw {i}, the bank has {len(self)}")
        return self._read(self.draws[i])

    def load(self, model: nn.Module, i: int) -> None:
        """Copy the i-th kept draw into `model`, in place, on the model's own device and in its own dtypes."""
        _check_module("SampleBank.load(model=...)", model)
        self._fill(model, self.state_dict(i), self.draws[i].path)

    def models(self, model: nn.Module, *, on_error: OnError = "raise") -> Iterator[nn.Module]:
        """Iterate over the draws as modules in eval mode, holding one at a time; `model` itself is not touched.

        **The same module is yielded again and again, with new values**: use it before asking for the next one, and
        copy what must last. A damaged draw raises `CorruptDrawError`, or is warned about and left out with
        `on_error="skip"`.
        """
        _check_module("SampleBank.models(model=...)", model)
        if on_error not in ("raise", "skip"):
            raise ValueError(f'SampleBank.models(on_error=...) needs "raise" or "skip", got {on_error!r}')
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
            self._fill(module, state, draw.path)
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
        tensors, found = self._tensors or {}, _describe(state)
        if found != tensors:
            raise CorruptDrawError(f"{draw.path}: not a draw of this bank: {_compare(tensors, found)}")
        return {name: state[name] for name in tensors}

    def _fill(self, model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
        own = {name: [like[1]] for name, like in _describe(_plain_state(model)).items()}
        stored = {name: [like[1]] for name, like in _describe(state).items()}
        if own != stored:
            raise ValueError(f"{path}: does not fit {type(model).__name__}: {_compare(stored, own)}")
        model.load_state_dict({name: state[_plain(name)] for name in model.state_dict()})

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._fd is None:
            self._lock()
        if not self._in_step:  # just locked, or the last write failed half-way
            self._repair()
        self._in_step = False
        yield
        self._in_step = True

    def _lock(self) -> None:
        import fcntl

        self.path.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                raise RuntimeError(f"{self.path}: another writer holds the lock of this bank") from error
            raise
        self._fd, self._calls = fd, 0  # what is in memory may be out of date: another process may have written since
        self._replay()

    def _unlock(self) -> None:
        fd, self._fd, self._in_step = self._fd, None, False
        if fd is not None:
            os.close(fd)

    def _repair(self) -> None:
        if self._tensors is None and any(self.path.glob("draw-*.safetensors")):
            raise ValueError(f"{self._manifest}: expected a manifest beside the draws in the folder, found none")
        if self._manifest.exists():
            os.truncate(self._manifest, self._end)
        self._replay()
        for temporary in self.path.glob(".draw-*.tmp"):
            temporary.unlink(missing_ok=True)
        self._clear_dead()

    def _clear_dead(self) -> None:
        for name in list(self._dead):
            with suppress(OSError):  # what cannot be deleted now stays listed for the next time
                (self.path / name).unlink(missing_ok=True)
                self._dead.discard(name)

    def _replay(self) -> None:
        calls, self._calls, self._saved_calls, self._next_index = self._calls, 0, 0, 0
        self._tensors: dict[str, Any] | None = None
        self._draws: dict[int, Draw] = {}
        self._dead: set[str] = set()  # files that the manifest says are gone
        data = self._manifest.read_bytes() if self._manifest.exists() else b""
        self._end = data.rfind(b"\n") + 1  # where the last whole line ends
        for number, line in enumerate(data[: self._end].split(b"\n")[:-1], 1):
            try:
                entry = json.loads(line)
                if (number == 1) != (entry["kind"] == "header"):
                    raise ValueError(f"expected a {FORMAT} header on line 1 and only there, found {entry['kind']!r}")
                self._apply(entry)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                reason = error if isinstance(error, ValueError) else f"not a line of a {FORMAT}: {error!r}"
                raise ValueError(f"{self._manifest} line {number}: {reason}") from error
        self._calls = max(calls, self._calls)  # calls that were not kept are known to memory only

    def _apply(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if "file" in entry and not _FILE.fullmatch(entry["file"]):
            raise ValueError(f"expected a draw file in this folder, found {entry['file']!r}")
        if kind == "header":
            if (entry["format"], entry["version"]) != (FORMAT, VERSION):
                found = f"{entry['format']} version {entry['version']}"
                raise ValueError(f"expected {FORMAT} version {VERSION}, found {found}")
            self._tensors = entry["tensors"]
        elif kind == "draw":
            fields = {name: entry[name] for name in ("index", "step", "metrics", "calls", "time")}
            self._draws[entry["index"]] = Draw(**fields, **self._located(entry))
            self._dead.discard(entry["file"])
            self._calls = self._saved_calls = entry["calls"]
            self._next_index = entry["index"] + 1
        elif kind == "update":
            old = self._draws[entry["index"]]
            self._draws[entry["index"]] = replace(old, **self._located(entry))
            self._dead.add(old.path.name)
            self._dead.discard(entry["file"])
        elif kind == "drop":
            self._dead.add(self._draws.pop(entry["index"]).path.name)
        elif kind == "calls":
            self._calls = self._saved_calls = entry["calls"]
            for draw in reversed(self.draws):
                if draw.calls > entry["calls"]:
                    self._dead.add(self._draws.pop(draw.index).path.name)
                    self._next_index = draw.index
        else:
            raise ValueError(f"expected draw, update, drop or calls, found {kind!r}")

    def _located(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {"path": self.path / entry["file"], **{name: entry[name] for name in ("sha256", "bytes", "aliases")}}

    def _append(self, *entries: dict[str, Any]) -> None:
        text = "".join(json.dumps(entry) + "\n" for entry in entries)  # ASCII
        _write(self._manifest, text.encode(), os.O_APPEND)
        self._end += len(text)
        for line in text.splitlines():
            self._apply(json.loads(line))

    def _write_draw(self, name: str, state: dict[str, Tensor]) -> dict[str, Any]:
        stored: dict[Any, str] = {}
        aliases = {}
        for key, tensor in state.items():
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if stored.setdefault(place, key) != key:
                aliases[key] = stored[place]
        tensors = {k: t.to("cpu", copy=True).contiguous() for k, t in state.items() if k not in aliases}
        data = safetensors.torch.save(tensors, metadata={"format": "pt"})
        temporary = self.path / f".{name}.tmp"
        try:
            _write(temporary, data, os.O_TRUNC)
            os.replace(temporary, self.path / name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(self.path)
        return {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "aliases": aliases}


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


def _describe(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: [str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in state.items()}


def _compare(expected: dict[str, Any], found: dict[str, Any]) -> str:
    def show(like: list[Any] | None) -> str:
        return "no such tensor" if like is None else "".join(map(str, like))

    wrong = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    lines = [f"{name}: expected {show(expected.get(name))}, found {show(found.get(name))}" for name in wrong[:3]]
    return "; ".join(lines) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")


def _check_module(what: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{what} needs an nn.Module, got {type(model).__name__}")


def _whole(what: str, value: Any, least: int | None) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} needs a whole number, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{what} needs a whole number >= {least}, got {value!r}")
    return operator.index(value)


def _write(path: Path, data: bytes, flags: int) -> None:
    """Write all of `data` and wait for the disk; an OSError names the path."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# A forked child (a DataLoader worker) must neither write as its parent nor keep the lock when the parent dies.
_BANKS: weakref.WeakSet[SampleBank] = weakref.WeakSet()


def _unlock_all() -> None:
    for bank in list(_BANKS):
        bank._unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)
