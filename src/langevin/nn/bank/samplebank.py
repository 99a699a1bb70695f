"""The bank: one writer, any number of readers and threads."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Self

from torch import nn

from langevin.checks import check_bool, check_integer, level_of_caller, needs
from langevin.nn.bank.files import (
    Contents,
    Draw,
    Line,
    State,
    compare,
    describe,
    file_name,
    revision_of,
    stored_tensors,
    write_draw,
)
from langevin.nn.bank.modules import (
    check_module,
    check_whole,
    differing_values,
    estimate_norms,
    frozen_names,
    named_parameters,
    norms_of,
    probes,
    state_of,
)
from langevin.nn.bank.reading import BankReader, as_int
from langevin.nn.bank.sharded import (
    Pieces,
    boxes_of,
    check_claims,
    collective,
    differing_copies,
    gathering,
    has_copies,
    is_dtensor,
    is_sharded,
    is_writer,
    local_of,
)
from langevin.nn.batches import check_loader
from langevin.nn.tensor_bytes import crc
from langevin.nn.trees import Tree
from langevin.storage.journal import remove_temporaries

__all__ = ["SampleBank"]


class SampleBank(BankReader):
    """Store posterior draws of one model in a folder, safe against crashes.

    There is one writer and any number of readers. The first `add` creates the folder and the lock.
    **A folder that has draws is not continued by accident**: `SampleBank(path)` raises an error,
    `SampleBank(path, resume=True)` appends, and `SampleBank.open(path)` reads. A reader shows the
    draws written so far; open it again to see later ones. Threads may share a bank: writes wait for
    each other, readers see the draws before or after a write.

    **Frozen parameters** (`requires_grad=False`, as under LoRA) are not stored if the model also
    has trained ones. Draws then hold trained parameters, buffers and extra state, and the first
    `add` warns. Modules that load a draw keep their own frozen values: load the same base model
    first. The bank compares a few values and warns if they differ. If all or no parameters are
    frozen, all are stored.

    **Distributed.** While `torch.distributed` is initialised, rank 0 writes; `add`, `rewind` and
    `update_bn` do nothing on the other ranks and return None, so call them on every rank or on rank
    0 only. Reading works on every rank: call `SampleBank.open` there once rank 0 has written. A
    model wrapped by `DistributedDataParallel`, `DataParallel` or `torch.compile` is stored under
    the names without the wrapper; its draws load into wrapped and plain models.

    **Sharded** models (`fully_shard`, tensor parallel: parameters are DTensors, of any mesh) are
    stored whole by rank 0, so a draw loads into a plain model and into one sharded in another way.
    Call `add`, `rewind` and `close` on **every rank** of the default group, with banks of the same
    settings: `add` sends the model to rank 0 in blocks of rows, and succeeds or raises on every
    rank, with the same `bank.draws` afterwards. The first call and the kept ones wait for all
    ranks; the others send no message. `load` reads only this rank's part and sends no message.

    Args:
        path: The folder.
        thin: Keep every `thin`-th call of `add`: calls `thin`, `2 * thin`, and so on.
        max_draws: Keep at most this many: **the oldest is deleted** for a new one. `None` keeps
            all.
        resume: Continue the bank in the folder, if there is one.

    Raises:
        FileExistsError: without `resume`, the folder has draws of an earlier run.

    Example:
        >>> import tempfile, torch
        >>> model = nn.Linear(2, 1)
        >>> with SampleBank(tempfile.mkdtemp(), thin=2) as bank:
        ...     for step in range(6):
        ...         _ = bank.add(model, step=step, loss=0.5)
        >>> [(draw.index, draw.step) for draw in bank.draws]
        [(0, 1), (1, 3), (2, 5)]
        >>> import langevin as lv
        >>> gaussian = lv.likelihoods.gaussian(std=1.0)
        >>> lv.predict(model, bank, torch.zeros(4, 2), likelihood=gaussian).mean.shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        thin: int = 1,
        max_draws: int | None = None,
        resume: bool = False,
    ) -> None:
        """Check the arguments and read the manifest, if there is one."""
        super().__init__(path)
        self._may_append = check_bool("SampleBank", "resume", resume)
        self._is_reader = False
        self.thin = check_integer("SampleBank", "thin", as_int(thin), 1)
        if max_draws is not None:
            max_draws = check_integer("SampleBank", "max_draws", as_int(max_draws), 1)
        self.max_draws = max_draws
        # whether the ranks of a sharded model agreed on the settings, and all know the draws
        self._agreed = False
        # calls of `add` by this object; the manifest counts those up to the last kept draw
        self._counted = 0
        if is_writer():
            self._check_may_append()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open an existing bank to read its draws; `add`, `rewind` and `update_bn` are errors.

        Raises:
            FileNotFoundError: there is no bank in the folder.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp()
            >>> with SampleBank(folder) as bank:
            ...     _ = bank.add(nn.Linear(2, 1))
            >>> len(SampleBank.open(folder))
            1
        """
        bank = cls(path, resume=True)
        if bank._journal.state.tensors is None:
            found = f"got {bank._given!r}, which has none"
            raise FileNotFoundError(
                f"SampleBank.open(path=...) needs a folder with a bank, {found}"
            )
        bank._is_reader = True
        return bank

    def add(self, model: nn.Module, step: int | None = None, **metrics: Any) -> Draw | None:
        """Count one call and, at every `thin`-th, write the model's state.

        The state is `model.state_dict()` (parameters, buffers, and extra state if that is a dense
        tensor or a JSON value), without frozen parameters beside trained ones; the first draw
        decides about these (see the class). It is written in pieces, so it takes little memory
        beside the model. A failed or interrupted call (full disk, Ctrl-C) leaves the earlier draws
        and the bank as they were. On a rank other than 0 nothing happens, unless the model is
        sharded: then every rank takes part and returns the draw.

        Args:
            model: The model.
            step: A number to store beside the draw.
            metrics: Numbers or JSON values to store beside the draw.

        Returns:
            The draw, or None if it is not kept.

        Raises:
            ValueError: the model's tensor names, shapes or dtypes are not those of the first draw,
                or a parameter of a draw to be kept is not finite (buffers may be infinite, as masks
                are), or a frozen parameter, which draws do not hold, is trained now or has other
                values.
            TypeError: the model has something that cannot be stored; the message names it.
            RuntimeError: another process, or another bank object, is writing to this folder, or may
                be, since the file `lock` was deleted; or the bank was opened to be read; or the
                call failed on another rank that has a part of the model.
            OSError: the draw could not be written; the message names the file.
        """
        model = check_module("SampleBank.add", model)
        if is_sharded(model):
            return self._add_sharded(model, step, metrics)
        about, self._agreed = _about(step, metrics), False
        if not is_writer():
            return None
        with self._writing() as contents:
            call = self.calls + 1
            kept = call % self.thin == 0
            if kept or contents.tensors is None:
                left_out = self._left_out(model)
                state = state_of(model, left_out)
                self._check_same(model, state, left_out)
            if not kept:
                self._counted = call
                return None
            self._keep(state, set(named_parameters(model)), {"calls": call, **about})
            return self._draws[-1]

    def _add_sharded(self, model: nn.Module, step: Any, metrics: Line) -> Draw | None:
        """Do `add` on all ranks together: all send to rank 0, and all apply the lines it writes."""
        with self._journal.mutex:
            if self._agreed and (self.calls + 1) % self.thin:
                _about(step, metrics)
                self._counted = self.calls + 1
                return None
            writer = is_writer()
            with (
                collective("SampleBank.add") as agree,
                self._writing() if writer else nullcontext(),
            ):
                left_out = agree(self._left_out(model) if writer else ())[0]
                about, state = _about(step, metrics), state_of(model, left_out)
                if writer:
                    self._check_same(model, state, left_out)
                stored, names = stored_tensors(state)[0], set(named_parameters(model))
                tensors = {name: value for name, value in stored.items() if is_dtensor(value)}
                parts = {name: boxes_of(name, tensor) for name, tensor in tensors.items()}
                sums = {
                    name: crc(local_of(value) if is_dtensor(value) else value)
                    for name, value in stored.items()
                    if name in names and has_copies(value)
                }
                claim = {
                    "path": self._given,
                    "thin": self.thin,
                    "max_draws": self.max_draws,
                    "tensors": describe(tensors),
                    "calls": self.calls if self._agreed else None,
                }
                news = (self._journal.state, self.calls) if writer and not self._agreed else None
                found = agree((claim, parts, sums, news))
                claims, boxes, checksums, (news, *_) = zip(*found, strict=True)
                check_claims(claims)
                if news and not writer:
                    self._journal.state, self._counted = news
                call, lines = self.calls + 1, []
                if call % self.thin == 0:
                    with gathering(tensors, boxes) as gather:
                        if writer:
                            lines = self._keep(state, names, {"calls": call, **about}, gather)
                    lines = agree(lines)[0]
            for line in () if writer else lines:
                self._journal.state.apply(line)
            self._publish()
            self._agreed, self._counted = True, call
            if writer and lines and (wrong := differing_copies(boxes, checksums)):
                more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
                warnings.warn(
                    "SampleBank: copies of a parameter differ, the lowest rank's is kept: "
                    f"{', '.join(wrong[:3])}{more}",
                    stacklevel=3,
                )
            return self._draws[-1] if lines else None

    def _left_out(self, model: nn.Module) -> tuple[str, ...]:
        """Return the frozen parameters that draws do not hold; the first draw decides which."""
        contents, frozen = self._journal.state, frozen_names(model)
        if contents.tensors is None:
            return frozen
        trained = {name for name, value in named_parameters(model).items() if value.requires_grad}
        now = "trained"
        if not (wrong := [name for name in contents.frozen if name in trained]):
            now, wrong = "with other values", differing_values(model, contents.frozen)
        if wrong:
            names = f"{self._journal.path}: {', '.join(wrong[:3])}"
            text = f"frozen at the first draw and therefore not stored, but {now} now"
            raise ValueError(f"{names}: {text}: use another folder")
        return tuple(contents.frozen)

    def _check_same(self, model: nn.Module, state: State, left_out: tuple[str, ...]) -> None:
        """Fail unless the state's tensors are those of the first one, which writes the header."""
        if self._journal.state.tensors is None:
            frozen = {"frozen": probes(model, left_out)} if left_out else {}
            self._journal.begin(tensors=describe(state), **frozen)
            if left_out:
                warnings.warn(
                    f"SampleBank: {len(left_out)} frozen parameters (such as {left_out[0]}) are "
                    f"not stored in {self.path}, trained ones and buffers are: load draws, and "
                    "predict, with a module that has the same frozen values",
                    stacklevel=level_of_caller(),
                )
        if differences := compare(self._journal.state.tensors or {}, describe(state)):
            raise ValueError(f"{self._journal.path}: another model than before: {differences}")

    def _keep(
        self,
        state: State,
        finite: set[str],
        about: Line,
        gather: Pieces | None = None,
    ) -> list[Line]:
        """Write a draw and its lines; return the lines."""
        contents, check_lock = self._journal.state, self._journal.check_lock
        index = contents.next_index
        record = write_draw(self.path / file_name(index), state, finite, gather, check_lock)
        too_many = [*contents.draws, index][: -self.max_draws] if self.max_draws else []
        lines = [
            {"kind": "draw", "index": index, **record, **about},
            *({"kind": "drop", "index": k} for k in too_many),
        ]
        self._append(*lines)
        return lines

    def rewind(self, calls: int) -> None:
        """Return to the state after `calls` calls of `add`; draws of later calls are deleted.

        For a run that restarts from a checkpoint: store `bank.calls` in the checkpoint, and the
        resumed run keeps the same draws as an uninterrupted one. (Draws that `max_draws` has
        deleted do not come back.) On a rank other than 0 nothing is written.
        """
        calls = check_integer("SampleBank.rewind", "calls", as_int(calls), 0)
        self._agreed = False  # the next `add` of a sharded model gets the draws from rank 0
        if not is_writer():
            return
        with self._writing() as contents:
            self._counted = calls
            if contents.tensors is not None:
                self._append({"kind": "calls", "calls": calls})

    def update_bn(self, model: nn.Module, loader: Iterable[Tree]) -> int | None:
        """Estimate the BatchNorm statistics of every draw again, from the loader's inputs.

        As `torch.optim.swa_utils.update_bn` (statistics reset, then averaged over all batches),
        except that only the BatchNorm layers are in train mode: dropout stays off. Without
        BatchNorm statistics in the model it warns and changes nothing. Each draw is rewritten
        atomically; after an interruption call it again. `model` is not changed.

        Args:
            model: A model of the bank's kind, with whole tensors: for a bank of a sharded model a
                plain one.
            loader: Batches, to be read once per draw. A batch is a tensor, `model(batch)`; a dict,
                `model(**batch)`; or a tuple or list whose first entry is the inputs (a tensor, a
                dict, or a tuple of several); other entries (labels) are ignored.

        Returns:
            How many draws were rewritten; None on a rank other than 0, where nothing happens. Rank
            0 reads its loader alone, so pass one over all of the data (a `DistributedSampler`
            would yield its share only); SyncBatchNorm does not wait for the other ranks.
        """
        model = check_whole("SampleBank.update_bn", model)
        check_loader("SampleBank.update_bn", "loader", loader)
        self._agreed = False
        if not is_writer():
            return None
        if not norms_of(model):
            warnings.warn(
                f"update_bn: {type(model).__name__} has no BatchNorm statistics, nothing to do",
                stacklevel=2,
            )
            return 0
        with self._writing() as contents:
            for draw, module in self._each(model, "raise"):
                estimate_norms(module, loader)
                file = self.path / file_name(draw.index, revision_of(draw.path.name) + 1)
                state, check_lock = state_of(module, contents.frozen), self._journal.check_lock
                record = write_draw(file, state, before_commit=check_lock)
                self._append({"kind": "update", "index": draw.index, **record})
            return len(contents.draws)

    def close(self) -> None:
        """Write the call counter if it has changed, and release the lock; reading still works."""
        with self._journal.mutex:
            self._agreed = False
            contents = self._journal.state
            unwritten = contents.tensors is not None and self._counted > contents.calls
            try:
                if self._journal.in_step and unwritten:
                    with self._writing():
                        self._append({"kind": "calls", "calls": self._counted})
            finally:
                self._journal.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def calls(self) -> int:
        """Calls of `add` so far; after a kill, up to the last kept draw (see `rewind`)."""
        return max(self._counted, self._journal.state.calls)

    @contextmanager
    def _writing(self) -> Iterator[Contents]:
        if self._is_reader:
            advice = f"SampleBank({self._given!r}, resume=True) writes to it"
            raise RuntimeError(f"{self.path} was opened by SampleBank.open, to be read: {advice}")
        with self._journal.mutex:
            if self._journal.lock():
                self._counted = 0  # out of date: another process may have written since
                try:
                    self._check_may_append()
                except FileExistsError:
                    self._journal.unlock()
                    raise
            with self._journal.writing() as unsure:
                self._publish()
                contents = self._journal.state
                if unsure:
                    if contents.tensors is None and any(self.path.glob("draw-*.safetensors")):
                        text = "expected a manifest beside the draws in the folder, found none"
                        raise ValueError(f"{self._journal.path}: {text}")
                    remove_temporaries(self.path, "draw-*")
                    self._delete_dead()
                yield contents

    def _check_may_append(self) -> None:
        """Fail for a bank of an earlier run, unless it is to be resumed."""
        contents, name = self._journal.state, self._given
        if self._may_append or not (contents.draws or contents.calls):
            return
        found = f"{len(contents.draws)} draws of {contents.calls} calls of add"
        raise FileExistsError(
            f"SampleBank(path=...) needs a new or empty folder, got {name!r}, which holds {found} "
            f"by an earlier run: SampleBank({name!r}, resume=True) appends to them, "
            f"SampleBank.open({name!r}) reads them; to start again, use another folder or delete "
            "this one"
        )

    def _append(self, *entries: Line) -> None:
        self._journal.append(*entries)
        self._may_append = True  # this object has written to the bank
        self._publish()
        self._delete_dead()

    def _delete_dead(self) -> None:
        dead = self._journal.state.dead
        for name in list(dead):
            with suppress(OSError):  # files that cannot be deleted now stay listed
                (self.path / name).unlink(missing_ok=True)
                dead.discard(name)


def _about(step: Any, metrics: Line) -> Line:
    """Return the manifest's fields for step, time and metrics, or fail if JSON cannot hold them."""
    step = as_int(step)
    if step is not None and type(step) is not int:
        raise needs("SampleBank.add", "step", "an int or None", step, TypeError)
    for name, value in metrics.items():
        try:
            metrics[name] = json.loads(json.dumps(value, default=lambda scalar: scalar.item()))
        except Exception as error:
            condition = "a number or a JSON value"
            raise needs("SampleBank.add", name, condition, value, TypeError) from error
    return {"step": step, "time": time.time(), "metrics": metrics}
