"""The bank: one writer, any number of readers and threads."""

import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Self

from torch import nn

from langevin.checks import check_integer, needs
from langevin.store.bank.batches import check_loader, estimate_norms, norms_of
from langevin.store.bank.contents import Contents, Draw, compare, describe, file_name, revision_of
from langevin.store.bank.files import checksum, stored_tensors, write_draw
from langevin.store.bank.modules import check_module, check_whole, parameter_names, state_of
from langevin.store.bank.reading import BankReader, as_int
from langevin.store.bank.sharded import Gather, boxes_of, differing_copies, has_copies, is_dtensor, is_sharded, local_of
from langevin.store.bank.together import check_claims, is_writer, together
from langevin.store.journal import remove_temporaries

__all__ = ["SampleBank"]


class SampleBank(BankReader):
    """Posterior draws of one model in a folder: crash-safe, checked on reading, one writer and any number of readers.

    The folder and the lock are made by the first `add`. A bank opened for reading shows the draws written so far; open it again to
    see later ones. Threads may share a bank: writes wait for each other, readers see the draws before or after a write.

    **Distributed.** While `torch.distributed` is initialised rank 0 writes, and `add`, `rewind` and `update_bn` do nothing on
    the other ranks and return None, so call them on every rank or on rank 0 only. Reading works on every rank; open the bank
    again there once rank 0 has written. A model wrapped by `DistributedDataParallel`, `DataParallel` or `torch.compile` is
    stored under the names that it has without the wrapper; its draws load into wrapped and plain models.

    **Sharded** models (`fully_shard`, tensor parallel: parameters are DTensors, of any mesh) are stored whole, by rank 0, so
    that a draw loads into a plain model and into one sharded in another way. Call `add`, `rewind` and `close` on **every rank** of
    the default group, with banks of the same settings: `add` brings the model to rank 0 some rows at a time, and succeeds
    or raises on every rank, with the same draws in `bank.draws` after it. The first call and the kept ones wait for all
    ranks, the others send no message. `load` reads this rank's part only and sends none.

    Args:
        path: The folder; an existing bank is continued.
        thin: Keep every `thin`-th call of `add`: calls `thin`, `2 * thin`, and so on.
        max_draws: Keep at most this many; when one more comes **the oldest is deleted**. `None` keeps all.

    Example:
        >>> import tempfile, torch
        >>> model = nn.Linear(2, 1)
        >>> with SampleBank(tempfile.mkdtemp(), thin=2) as bank:
        ...     for step in range(6):
        ...         _ = bank.add(model, step=step, loss=0.5)
        >>> [(draw.index, draw.step) for draw in bank.draws]
        [(0, 1), (1, 3), (2, 5)]
        >>> import langevin as lv
        >>> lv.predict(model, bank, torch.zeros(4, 2), likelihood=lv.likelihoods.gaussian(std=1.0)).mean.shape
        torch.Size([4, 1])
    """

    def __init__(self, path: str | os.PathLike[str], *, thin: int = 1, max_draws: int | None = None) -> None:
        """Check the arguments and read the manifest, if there is one."""
        super().__init__(path)
        self.thin = check_integer("SampleBank", "thin", as_int(thin), 1)
        self.max_draws = None if max_draws is None else check_integer("SampleBank", "max_draws", as_int(max_draws), 1)
        self._met = False  # the ranks of a sharded model have agreed about this bank, and all of them know its draws
        self._counted = 0  # calls of `add`, as far as this object knows; the manifest has those up to the last kept draw

    # ---- writing

    def add(self, model: nn.Module, step: int | None = None, **metrics: Any) -> Draw | None:
        """Count one call and, at every `thin`-th, write the model's state; returns the draw, or None if not kept.

        The state is everything in `model.state_dict()`: parameters, buffers, and what modules give in `get_extra_state`, if
        that is a dense tensor or a JSON value. It is written piece by piece, so it takes little memory beside the model. A
        failed or interrupted call (full disk, Ctrl-C) leaves the earlier draws and the bank as they were. On a rank other
        than 0 nothing happens, unless the model is sharded: then every rank takes part and returns the draw.

        Raises:
            ValueError: the model's tensor names, shapes or dtypes are not those of the first draw, or a parameter of a draw to be
                kept is not finite. (Buffers may be infinite, as masks are.)
            TypeError: the model has something that cannot be stored; the message names it.
            RuntimeError: another process, or another bank object, is writing to this folder; or the call failed on another rank
                that has a part of the model.
            OSError: the draw could not be written; the message names the file.
        """
        check_module("SampleBank.add", model)
        if is_sharded(model):
            return self._add_sharded(model, step, metrics)
        about, self._met = _about(step, metrics), False
        if not is_writer():
            return None
        with self._writing() as contents:
            call = self.calls + 1
            kept = call % self.thin == 0
            if kept or contents.tensors is None:
                state = state_of(model)
                self._check_same(state)
            if not kept:
                self._counted = call
                return None
            self._keep(state, parameter_names(model), {"calls": call, **about})
            return self._draws[-1]

    def _add_sharded(self, model: nn.Module, step: Any, metrics: dict[str, Any]) -> Draw | None:
        """Do what `add` does, on all ranks together: rank 0 writes, the others send it their parts and keep its books too."""
        with self._journal.mutex:
            if self._met and (self.calls + 1) % self.thin:
                _about(step, metrics)
                self._counted = self.calls + 1
                return None
            writer = is_writer()
            with together("SampleBank.add") as agree, self._writing() if writer else nullcontext():
                about, state = _about(step, metrics), state_of(model)
                if writer:
                    self._check_same(state)
                stored, names = stored_tensors(state)[0], parameter_names(model)
                tensors = {name: value for name, value in stored.items() if is_dtensor(value)}
                parts = {name: boxes_of(name, tensor) for name, tensor in tensors.items()}
                copied = {name: value for name, value in stored.items() if name in names and has_copies(value)}
                sums = {name: checksum(local_of(value) if is_dtensor(value) else value) for name, value in copied.items()}
                claim = {"path": str(self.path), "thin": self.thin, "max_draws": self.max_draws, "tensors": describe(tensors)}
                claim["calls"] = self.calls if self._met else None
                news = (self._journal.state, self.calls) if writer and not self._met else None
                claims, boxes, checksums, (news, *_) = zip(*agree((claim, parts, sums, news)), strict=True)
                check_claims(claims)
                if news and not writer:
                    self._journal.state, self._counted = news
                call, entries = self.calls + 1, []
                if call % self.thin == 0:
                    with Gather(tensors, boxes) as gather:
                        if writer:
                            entries = self._keep(state, names, {"calls": call, **about}, gather)
                    entries = agree(entries)[0]
            for entry in () if writer else entries:
                self._journal.state.apply(entry)
            self._publish()
            self._met, self._counted = True, call
            if writer and entries and (wrong := differing_copies(boxes, checksums)):
                say = f"{', '.join(wrong[:3])}{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}"
                warnings.warn(f"SampleBank: copies of a parameter differ, the lowest rank's is kept: {say}", stacklevel=3)
            return self._draws[-1] if entries else None

    def _check_same(self, state: dict[str, Any]) -> None:
        """Fail unless the state is made of what the first one was; write the header if this is the first."""
        if self._journal.state.tensors is None:
            self._journal.begin(tensors=describe(state))
        if differences := compare(self._journal.state.tensors or {}, describe(state)):
            raise ValueError(f"{self._journal.path}: another model than before: {differences}")

    def _keep(
        self, state: dict[str, Any], finite: set[str], about: dict[str, Any], gather: Gather | None = None
    ) -> list[dict[str, Any]]:
        """Write a draw and its lines; returns the lines."""
        contents = self._journal.state
        index = contents.next_index
        record = write_draw(self.path / file_name(index), state, finite, gather)
        too_many = [*contents.draws, index][: -self.max_draws] if self.max_draws else []
        lines = [{"kind": "draw", "index": index, **record, **about}, *({"kind": "drop", "index": k} for k in too_many)]
        self._append(*lines)
        return lines

    def rewind(self, calls: int) -> None:
        """Go to the state after `calls` calls of `add` (as `bank.calls` said then): draws of later calls are deleted.

        For a run that restarts from a checkpoint: keep `bank.calls` in the checkpoint, and the resumed run keeps the
        same draws as an uninterrupted one. (Draws that `max_draws` has deleted do not come back.) On a rank other than 0 nothing
        is written.
        """
        calls = check_integer("SampleBank.rewind", "calls", as_int(calls), 0)
        self._met = False  # the next call of `add` with a sharded model asks rank 0
        if not is_writer():
            return
        with self._writing() as contents:
            self._counted = calls
            if contents.tensors is not None:
                self._append({"kind": "calls", "calls": calls})

    def update_bn(self, model: nn.Module, loader: Iterable[Any]) -> int | None:
        """Re-estimate the BatchNorm statistics of every draw from the loader's inputs; returns how many were rewritten.

        As `torch.optim.swa_utils.update_bn` (statistics reset, then averaged over all batches), except that only the
        BatchNorm layers are in train mode: dropout stays off. Without BatchNorm statistics in the model it warns and changes
        nothing. Each draw is rewritten atomically; after an interruption call it again. `model` is not touched.

        Args:
            model: A model of the bank's kind, with whole tensors: for a bank of a sharded model a plain one.
            loader: Batches, to be read once per draw. A batch is a tensor, `model(batch)`; a dict, `model(**batch)`; or a tuple or
                list whose first entry is the inputs (a tensor, a dict, or a tuple of several) and whose other entries, labels,
                are not looked at.

        Returns:
            How many draws were rewritten; None on a rank other than 0, where nothing happens. Rank 0 reads its loader alone, so
            give it one over all of the data (a `DistributedSampler` would show it its share only); SyncBatchNorm does not wait for
            the other ranks.
        """
        check_whole("SampleBank.update_bn", model)
        check_loader("SampleBank.update_bn", "loader", loader)
        self._met = False
        if not is_writer():
            return None
        if not norms_of(model):
            warnings.warn(f"update_bn: {type(model).__name__} has no BatchNorm statistics, nothing to do", stacklevel=2)
            return 0
        with self._writing() as contents:
            for draw, module in self._each(model, "raise"):
                estimate_norms(module, loader)
                record = write_draw(self.path / file_name(draw.index, revision_of(draw.path.name) + 1), state_of(module))
                self._append({"kind": "update", "index": draw.index, **record})
            return len(contents.draws)

    def close(self) -> None:
        """Write the call counter if it has moved on, and give the lock back; reading goes on working."""
        with self._journal.mutex:
            self._met = False
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

    @property
    def calls(self) -> int:
        """Calls of `add` so far; after a kill, up to the last kept draw (see `rewind`)."""
        return max(self._counted, self._journal.state.calls)

    # ---- inside

    @contextmanager
    def _writing(self) -> Iterator[Contents]:
        with self._journal.mutex:
            if self._journal.lock():
                self._counted = 0  # out of date: another process may have written since
            with self._journal.writing() as unsure:
                self._publish()
                if unsure:
                    if self._journal.state.tensors is None and any(self.path.glob("draw-*.safetensors")):
                        raise ValueError(f"{self._journal.path}: expected a manifest beside the draws in the folder, found none")
                    remove_temporaries(self.path, "draw-*")
                    self._delete_dead()
                yield self._journal.state

    def _append(self, *entries: dict[str, Any]) -> None:
        self._journal.append(*entries)
        self._publish()
        self._delete_dead()

    def _delete_dead(self) -> None:
        dead = self._journal.state.dead
        for name in list(dead):
            with suppress(OSError):  # what cannot be deleted now stays listed for the next time
                (self.path / name).unlink(missing_ok=True)
                dead.discard(name)


def _about(step: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return what is noted of a draw beside its tensors, or fail if JSON cannot hold it."""
    step = as_int(step)
    if step is not None and type(step) is not int:
        raise needs("SampleBank.add", "step", "an int or None", step, TypeError)
    for name, value in metrics.items():
        try:
            metrics[name] = json.loads(json.dumps(value, default=lambda scalar: scalar.item()))
        except Exception as error:
            raise needs("SampleBank.add", name, "a number or a JSON value", value, TypeError) from error
    return {"step": step, "time": time.time(), "metrics": metrics}
