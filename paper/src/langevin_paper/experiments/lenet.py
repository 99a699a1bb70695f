"""LeNet-300-100 on MNIST with as few weights as can be: section 5.2's priors, annealed, by `langevin.nn.sparse`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from langevin.diagnostics.trust import TrustWarning
from langevin.nn import sparse
from langevin.random import Purpose, batch_indices, stream
from langevin.random.torch_rng import fork_rng
from langevin.targets import priors
from langevin_paper.data import load
from langevin_paper.models import mlp
from langevin_paper.spec import Column, Experiment, Listing, Method, Progress, Results, Scale, Setting, Table

__all__ = ["LENET"]


class Batches:
    """Rows in random order, another order each time it is read; everything random is a function of the seed."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, seed: int) -> None:
        """Begin at the first epoch."""
        self.x, self.y, self.batch_size, self.seed = x, y, batch_size, seed
        self.step = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the rows once."""
        steps = range(self.step, self.step + len(self.x) // self.batch_size)
        self.step = steps.stop
        for rows in batch_indices(self.seed, stream(Purpose.BATCH), steps, self.batch_size, len(self.x)):
            yield self.x[rows], self.y[rows]


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: train, prune, refine and sample a network for every seed."""
    return {seed: _run(dict(method.settings), dict(scale.settings), seed, progress) for seed in seeds}


def _run(method: dict[str, Any], scale: dict[str, Any], seed: int, progress: Progress) -> dict[str, Any]:
    x, y, x_test, y_test = _rows(scale)
    with fork_rng(seed, Purpose.INIT, 0):
        model = mlp(*scale["sizes"])
    stages = stages_of(method, scale["epochs"])
    last = {sum(stage.epochs for stage in stages[: k + 1]) - 1: k for k in range(len(stages))}  # the last epoch of each stage
    errors, kept, found = [], [], dict[str, Any]()
    votes = torch.zeros(len(y_test), scale["sizes"][-1])

    def measure(epoch: sparse.Epoch) -> None:
        nonlocal votes
        predicted = _predict(model, x_test)
        errors.append(_error(predicted, y_test))
        kept.append(epoch.kept if epoch.kept is not None else math.nan)
        if epoch.stage == len(stages) - 1:  # draws of the posterior, given which weights are zero
            votes += predicted
        elif last.get(epoch.number) == 0:
            found["dense_test_error"] = errors[-1]
        elif last.get(epoch.number) == len(stages) - 2:
            found.update(_sparse_results(model, x, y, x_test, y_test))
        progress((epoch.number + 1) / (1 + max(last)))

    with warnings.catch_warnings():
        # At these temperatures minibatches heat by far more than the temperature: the settings of the page say so.
        warnings.simplefilter("ignore", TrustWarning)
        batches = Batches(x, y, scale["batch_size"], seed)
        sparse.train(model, batches, stages, num_data=len(x), seed=seed, on_epoch=measure, progress=False)
    return {
        **found,
        "average_test_error": _error(votes, y_test),
        "average_test_nll": _nll(votes / votes.sum(1, keepdim=True), y_test),
        "threads": torch.get_num_threads(),
        "error_curve": torch.tensor(errors).numpy(),
        "kept_curve": torch.tensor(kept).numpy(),
    }


def _sparse_results(model: nn.Module, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> dict[str, Any]:
    """Measure the one network: with dead units removed, which changes no prediction, and made smaller."""
    pruned = sparse.sparsify(model, 0.0)
    predicted, table = _predict(pruned.model, x_test), pruned.sparsity
    assert pruned.units is not None
    return {
        "test_error": _error(predicted, y_test),
        "test_nll": _nll(predicted, y_test),
        "train_error": _error(_predict(pruned.model, x), y),
        "kept": table.kept,
        "compression": table.compression,
        "ratio": 100 * table.ratio,
        "alive": "-".join(map(str, pruned.units.sizes)),
        "layers": " + ".join(str(layer.kept) for layer in table.layers),
        **{
            f"weight_{k}": weight.numpy().copy()
            for k, weight in enumerate(p.detach() for p in pruned.model.parameters() if p.ndim > 1)
        },
    }


def stages_of(method: dict[str, Any], epochs: tuple[int, ...]) -> list[sparse.Stage]:
    """Return the stages that plain settings describe; one with `times` takes so many times the scale's epochs."""
    stages = []
    for number, length in enumerate(epochs, 1):
        given = dict(method[f"stage {number}"])
        prior: Any = given.pop("prior")
        if "start" in prior:
            start, end = (priors.from_plain(prior[name]) for name in ("start", "end"))
            prior = sparse.anneal(start, end, share=prior["share"])  # type: ignore[arg-type]
        if isinstance(given.get("prune"), dict):
            given["prune"] = priors.from_plain(given["prune"])
        prior = priors.from_plain(prior) if isinstance(prior, dict) else prior
        stages.append(sparse.Stage(length * given.pop("times", 1), prior, **given))
    return stages


def _rows(scale: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training and test rows, pixels divided by 255; with `held_out` the last training rows are the test rows."""
    data = load(scale["data"])
    train, test = (data.x_train, data.y_train), (data.x_test, data.y_test)
    if held_out := scale["held_out"]:
        train, test = ([column[:-held_out] for column in train], [column[-held_out:] for column in train])  # type: ignore[assignment]
    num_train, num_test = scale["rows"] or (len(train[0]), len(test[0]))
    x, y, x_test, y_test = train[0][:num_train], train[1][:num_train], test[0][:num_test], test[1][:num_test]
    white = torch.iinfo(torch.uint8).max
    return x.flatten(1) / white, y, x_test.flatten(1) / white, y_test


@torch.no_grad()
def _predict(model: nn.Module, x: Tensor) -> Tensor:
    return model.eval()(x).softmax(-1)


def _error(predicted: Tensor, labels: Tensor) -> float:
    """Return the percentage of rows whose likeliest class is not the label."""
    return 100 * int((predicted.argmax(-1) != labels).sum()) / len(labels)


def _nll(predicted: Tensor, labels: Tensor) -> float:
    return float(functional.nll_loss(predicted.log(), labels))


SLAB = 0.25  # the standard deviation of weights that are not zero


def _spike_slab(spike_std: float) -> dict[str, Any] | None:
    return priors.to_plain(priors.spike_slab(slab_weight=5e-4, slab_std=SLAB, spike_std=spike_std))


def _method(name: str, label: str, spike_std: float, **second: int) -> Method:
    """Make a row: the wider the last spike, the fewer weights are left; `second` is added to the settings of stage 2."""
    end = _spike_slab(spike_std)
    wide = priors.to_plain(priors.gaussian(std=SLAB))
    shared = {"optimizer": "MSGLD", "settings": {"bias_factor": 1.0, "beta": 0.9}}
    annealed = {"start": _spike_slab(0.01), "end": end, "share": 0.85}
    settings = {
        "stage 1": {**shared, "prior": wide, "lr": 0.2, "end_lr": 1e-3, "temperature": 0.0},
        "stage 2": {**shared, "prior": annealed, "lr": 0.1, "temperature": 0.0, **second},
        "stage 3": {**shared, "prior": wide, "lr": 0.1, "end_lr": 1e-3, "temperature": 0.0, "prune": end},
        "stage 4": {**shared, "prior": wide, "lr": 0.05, "temperature": 0.01, "prune": 0.0},
    }
    return Method(name, label, "msgld", settings, ("*",))


SHARED: dict[str, Any] = {"data": "mnist", "sizes": (784, 300, 100, 10), "batch_size": 100, "rows": None, "held_out": 0}

LENET = Experiment(
    name="sparse",
    title="LeNet-300-100 with few weights",
    section="Not in the paper: section 5.2 on another network",
    about="A 784-300-100-10 network with 266,200 weights learns MNIST, a spike-and-slab prior whose spike widens epoch by epoch "
    "empties it, the rest is refined, and its posterior is sampled.",
    methods=(_method("msgld", "MSGLD", 0.032), _method("msgld-slow", "MSGLD, twice as slow", 0.0355, times=2)),
    scales=(
        Scale("quick", {**SHARED, "epochs": (2, 3, 1, 2), "rows": (2_000, 1_000)}, num_seeds=1, seconds=10),
        # For choosing settings: the test set is not looked at.
        Scale("short", {**SHARED, "epochs": (20, 60, 30, 10), "held_out": 10_000}, num_seeds=1, seconds=120),
        Scale("paper", {**SHARED, "epochs": (20, 60, 30, 10)}, num_seeds=3, seconds=160),
    ),
    run=run,
    tables=(
        Table(
            "Test error in percent, and the weights that are left of 266,200",
            (
                Column("dense_test_error", "error, all weights", 2),
                Column("test_error", "error, sparse", 2),
                Column("average_test_error", "error, average of draws", 2),
                Column("kept", "weights left", 0),
                Column("compression", "times fewer", 1),
                Column("test_nll", "NLL, sparse", 4),
                Column("average_test_nll", "NLL, average of draws", 4),
            ),
            note="Sparse: one network, after stage 3. Average of draws: of the predictions after each epoch of stage 4, all of "
            "which have the same weights at zero.",
        ),
    ),
    listings=(Listing("Units alive, and weights left in each layer", {"alive": "inputs-units-outputs", "layers": "weights"}),),
    settings=(
        Setting("stages", "1: N(0, .25^2) on all weights. 2: spike and slab, the spike from .01 to the row's width. 3: weights "
                "below the threshold are zero and stay zero, N(0, .25^2) on the others. 4: the same, as a sampler.", "ours"),
        Setting("chosen on", "the last 10,000 training rows, the first row only (docs/sparse.md)", "ours"),
        Setting("counted", "connection weights, not the 410 biases, and none of a unit without inputs or outputs", "ours"),
        Setting("others", "on this network: Sparse VD 1.92 % at 68 times fewer weights (Molchanov et al. 2017), DNS 1.99 % at 56 "
                "(Guo et al. 2016), pruning 1.59 % at 12 (Han et al. 2015)", "ours"),
        Setting("temperature", "0 up to stage 3, then .01, to which the noise of minibatches adds: the draws are not those of the "
                "posterior at .01", "ours"),
    ),
    seeds_together=False,
)  # fmt: skip
