"""The driver's side of what workers do: parcels are made, answers opened, and what they say is said here."""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from langevin.scale.engine import After, Function, WorkerError
from langevin.scale.worker import Answer, Parcel, packed, versions

__all__ = ["Parcels"]


class Parcels:
    """What is under way in some lanes.

    Args:
        function: what is done with a task.
        shared: what all tasks share.
        first: the first task of each lane.
        after: as in `Engine.work`.
        threads: of torch, for a task.
    """

    def __init__(self, function: Function, shared: Any, first: Mapping[int, Any], after: After, threads: int) -> None:
        """Pickle what is shared."""
        self.shared = packed("what the tasks share (sampler, target, data or keep)", (function, shared))
        self._key, self._versions = hashlib.sha256(self.shared).hexdigest(), versions()
        self._after, self._threads = after, threads
        self.waiting = dict(first)  # by lane
        self._strange: set[str] = set()  # instruction sets that were warned of

    def parcel(self, lane: int, shared: Any) -> Parcel:
        """Return a lane's task as it is sent; `shared` is what the worker opens, or finds it by."""
        task = packed("a task", self.waiting[lane])
        return Parcel(self._versions, self._key, shared, task, self._threads, os.getpid())

    def take(self, lane: int, answer: Answer) -> None:
        """Hand a result to the caller, who says what the lane does next; an error is raised."""
        if answer.error is not None:
            raise WorkerError.of(lane, f"{answer.where}: {answer.error}")
        own = torch.backends.cpu.get_cpu_capability()
        if answer.cpu not in (own, *self._strange):
            self._strange.add(answer.cpu)
            text = f"a worker ({answer.where}) has {answer.cpu}, this machine {own}: its numbers may be rounded otherwise"
            warnings.warn(text, stacklevel=2)
        following = self._after(lane, pickle.loads(answer.result))
        if following is None:
            del self.waiting[lane]
        else:
            self.waiting[lane] = following
