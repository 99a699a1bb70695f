"""One training run: resumable after a kill at any moment, with the same bits as an uninterrupted one.

Order of the data, augmentation, noise and initialisation are functions of (seed, step), so a checkpoint is the model, the
optimizer's averages, the step and what was measured so far.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.nn import functional

from langevin.checks import check_integer, needs
from langevin.random import Purpose, integers, stream
from langevin.storage.journal import write_atomic
from langevin_paper.images import Inputs
from langevin_paper.measures import accuracy, predict, sparsity_ratio
from langevin_paper.optimizers import add_prior, effective_temperature, make_optimizer
from langevin_paper.spec import Progress
from langevin_paper.stages import BASELINES
from langevin_paper.training import Training

__all__ = ["CHECKPOINT_SECONDS", "DivergedError", "initial_network", "train"]

CHECKPOINT_SECONDS = 60.0
"""The longest time between two checkpoints within an epoch; there is one after every epoch."""

_NAME = "checkpoint.pt"


class DivergedError(ArithmeticError):
    """The loss is not a finite number; the message names method, seed, epoch and step."""


def initial_network(training: Training, seed: int) -> nn.Module:
    """Build the network with torch's own initialisation, as a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):  # torch's layers know the global generator only: borrow it
        torch.default_generator.manual_seed(int(integers(seed, stream(Purpose.INIT), 0, 1, (2**31 - 1,))))
        return training.network.build()


def train(
    training: Training,
    seed: int,
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Train a network, or go on where an earlier call was killed.

    Args:
        training: what to do.
        seed: everything random is a function of it.
        folder: for the checkpoint; it is made when absent, and belongs to this training and seed alone.
        progress: is told the share of epochs done, after each.
        device: where to train; by default on a GPU where torch has one. Bits repeat on the same device with the same number of
            threads.

    Returns:
        Accuracies in percent and the sparsity ratio, averaged over the last epochs (`train_accuracy`, `test_accuracy`,
        `sparsity_ratio`), the accuracy of the predictions averaged over these epochs (`ensemble_test_accuracy`), `epochs` with a
        dict for every epoch, `effective_temperature` by stage, `seconds`, and what the run depends on.

    Raises:
        DivergedError: the loss is not finite; the last checkpoint stays.
        ValueError: the folder holds another training, seed or data set.
        RuntimeError: another process is training in this folder.
    """
    check_integer("train", "seed", seed, 0, 2**64)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        run = _Run(training, seed, path / _NAME, device)
        if run.path.exists():
            run.restore()
        while len(run.records) < training.epochs:
            run.train_epoch()
            if progress is not None:
                progress(len(run.records) / training.epochs)
        return run.result()


class _Run:
    """The state of a run: what a checkpoint holds."""

    def __init__(self, training: Training, seed: int, path: Path, device: torch.device | str) -> None:
        self.training, self.seed, self.path = training, seed, path
        self.inputs = Inputs(training, seed, device)
        self.num_data = training.num_data or training.num_train
        self.model = initial_network(training, seed).to(device)
        self.step = 0
        self.loss_sum = 0.0  # over the steps of this epoch
        self.seconds = 0.0
        self.records: list[dict[str, Any]] = []
        self.votes: Tensor | None = None  # sum of the predictions for the test set in the last epochs
        self.stage = 0
        self.optimizer = make_optimizer(training.stages[0], self.model, self.num_data, seed)
        self.clock = self.saved = time.monotonic()

    def train_epoch(self) -> None:
        """Finish the epoch that `step` is in, and measure."""
        training, epoch = self.training, len(self.records)
        number, first = training.stage_of(epoch)
        if number != self.stage:
            self.stage = number
            self.optimizer = make_optimizer(training.stages[number], self.model, self.num_data, self.seed, self.step)
        stage, end = training.stages[number], (epoch + 1) * training.steps_per_epoch
        lr = stage.lr(epoch - first)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        prior = stage.prior if stage.optimizer in BASELINES else None  # a sampler adds its prior itself
        drawn = self.inputs.epoch(range(self.step, end))
        self.model.train()
        while self.step < end:
            x, y = self.inputs.batch(drawn, self.step)
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.model(x), y)
            value = loss.item()
            if not math.isfinite(value):
                raise self.diverged("the loss is", value, self.step + 1)
            loss.backward()
            if prior is not None:
                add_prior(self.model, prior, self.num_data)
            self.optimizer.step()
            self.loss_sum += value
            self.step += 1
            if self.step < end and time.monotonic() - self.saved >= CHECKPOINT_SECONDS:
                self.save()
        average = self.loss_sum / training.steps_per_epoch
        self.records.append({"epoch": epoch + 1, "stage": number + 1, "lr": lr, "loss": average, **self.measure()})
        self.loss_sum = 0.0
        self.save()

    def diverged(self, what: str, value: float, step: int) -> DivergedError:
        """Say where it happened."""
        training, epoch = self.training, len(self.records) + 1
        return DivergedError(f"{training.data} {training.method} seed {self.seed}: {what} {value} at epoch {epoch}, step {step}")

    def measure(self) -> dict[str, Any]:
        """Evaluate; on the training set in the last epochs only (it takes a fifth of an epoch), without augmentation."""
        training, inputs = self.training, self.inputs
        votes = predict(self.model, inputs, inputs.x_test)
        if not (finite := votes.isfinite()).all():  # the last update did it: no loss has seen it yet
            raise self.diverged("a prediction is", votes[~finite][0].item(), self.step)
        found: dict[str, Any] = {"test_accuracy": accuracy(votes, inputs.y_test)}
        if training.threshold is not None:
            found["sparsity_ratio"] = sparsity_ratio(self.model, training.threshold)
        if len(self.records) >= training.epochs - training.averaged_epochs:
            found["train_accuracy"] = accuracy(predict(self.model, inputs, inputs.x_train), inputs.y_train)
            self.votes = votes if self.votes is None else self.votes + votes
        return found

    def result(self) -> dict[str, Any]:
        """Average over the last epochs."""
        training, last = self.training, self.records[-self.training.averaged_epochs :]
        names = ("train_accuracy", "test_accuracy", "sparsity_ratio")
        votes = torch.zeros(0) if self.votes is None else self.votes  # never None once the last epoch is done
        return {
            **{name: sum(record[name] for record in last) / len(last) for name in names if name in last[0]},
            "ensemble_test_accuracy": accuracy(votes, self.inputs.y_test),
            "epochs": self.records,
            "effective_temperature": [effective_temperature(stage, self.model) for stage in training.stages],
            "seconds": self.seconds,
            "steps": self.step,
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "threads": torch.get_num_threads(),
            "device": str(self.inputs.device),
            "data": {"source": self.inputs.source, "sha256": self.inputs.sha256},
            "training": training.to_plain(),
            "seed": self.seed,
        }

    def save(self) -> None:
        """Write a checkpoint in place of the last one."""
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        buffer = io.BytesIO()
        torch.save(
            {
                **self._identity(),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "stage": self.stage,
                "step": self.step,
                "loss_sum": self.loss_sum,
                "seconds": self.seconds,
                "records": self.records,
                "votes": self.votes,
            },
            buffer,
        )
        write_atomic(self.path, buffer.getvalue())
        self.saved = time.monotonic()

    def restore(self) -> None:
        """Take over the checkpoint."""
        try:
            state = torch.load(self.path, map_location=self.inputs.device, weights_only=True)
        except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
            raise ValueError(f"{self.path} needs to be a checkpoint of train(); remove it to start again: {error}") from error
        for name, value in self._identity().items():
            if state[name] != value:
                raise needs("train", "folder", f"a run with the {name} of this one ({value})", state[name])
        self.stage = state["stage"]
        self.optimizer = make_optimizer(self.training.stages[self.stage], self.model, self.num_data, self.seed)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("step", "loss_sum", "seconds", "records", "votes"):
            setattr(self, name, state[name])

    def _identity(self) -> dict[str, Any]:
        return {"training": self.training.to_plain(), "seed": self.seed, "sha256": self.inputs.sha256}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system takes back when the process dies."""
    try:
        with FileLock(folder / "lock", timeout=0):
            yield
    except Timeout as error:
        raise RuntimeError(f"train(folder=...): another process is training in {folder}") from error
