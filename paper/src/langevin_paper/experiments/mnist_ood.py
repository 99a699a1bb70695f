"""MNIST against notMNIST: one network, an ensemble and samplers of the same cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from langevin.targets import priors
from langevin_paper.data import load
from langevin_paper.experiments.uncertainty import COLUMNS, COST, Rows, run_seed
from langevin_paper.other import load_notmnist
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["MNIST_OOD"]


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: train, predict the test rows and the letters, and measure both."""
    rows, settings = _rows(dict(scale.settings)), dict(method.settings)
    prior = priors.from_plain(settings.pop("prior"))
    return {seed: run_seed(rows, settings, dict(scale.settings), seed, prior, progress) for seed in seeds}


def _rows(scale: dict[str, Any]) -> Rows:
    """Return the rows, pixels divided by 255; with `held_out` the last training rows are the test rows, without letters."""
    data, held_out, most = load("mnist"), scale["held_out"], scale["rows"]
    white = torch.iinfo(torch.uint8).max
    x, y, x_test, y_test = data.x_train, data.y_train, data.x_test, data.y_test
    if held_out:
        x, y, x_test, y_test = x[:-held_out], y[:-held_out], x[-held_out:], y[-held_out:]
    other = None if held_out else load_notmnist()[:most].flatten(1) / white
    return Rows(x[:most].flatten(1) / white, y[:most], x_test[:most].flatten(1) / white, y_test[:most], other)


_ADAM: dict[str, Any] = {"optimizer": "Adam", "prior": None, "draws": 1, "lr": 1e-2, "end_lr": 5e-4, "burn_in": 1.0}
_SGHMC: dict[str, Any] = {"optimizer": "SGHMC", "lr": 0.2, "end_lr": 0.05, "beta": 0.9}
_MSGLD: dict[str, Any] = {"optimizer": "MSGLD", "lr": 0.1, "end_lr": 0.05, "beta": 0.9, "bias_factor": 9.0, "invariant": True}
_ASGLD: dict[str, Any] = {
    "optimizer": "ASGLD", "lr": 0.2, "end_lr": 0.05, "bias_factor": 1_000.0, "eps_root": 1e-5,
    "invariant": True, "adapt_steps": 2_000,
}  # fmt: skip
_SHARED: dict[str, Any] = {
    "members": 1,
    "share": 1.0,
    "draws": 20,
    "burn_in": 0.5,
    "prior": priors.to_plain(priors.fan_in(std=6.0)),
}


def _samplers() -> tuple[Method, ...]:
    rows = {"SGHMC": _SGHMC, "MSGLD invariant": _MSGLD, "ASGLD invariant": _ASGLD}
    heats = {"": 1.0, "-cold": 1e-2}
    return tuple(
        Method(
            f"{given['optimizer'].lower()}{ending}",
            f"{label}, T = {temperature:g}",
            given["optimizer"].lower(),
            {**_SHARED, **given, "temperature": temperature},
            ("*",),
        )
        for ending, temperature in heats.items()
        for label, given in rows.items()
    )


SHARED: dict[str, Any] = {
    "sizes": (784, 100, 100, 10), "activation": "ReLU", "batch_size": 100, "rows": None, "held_out": 0, "epochs": 20,
}  # fmt: skip

MNIST_OOD = Experiment(
    name="mnist-ood",
    title="MNIST against notMNIST",
    section="Not in the paper",
    about="A 784-100-100-10 network learns MNIST. Its predictions are judged on the test digits, and by how much less sure they "
    "are of letters, which are no digits. Every row but the first takes the same number of gradients, 20 epochs of them.",
    methods=(
        Method("adam", "Adam, one network", "adam", {**_ADAM, "members": 1, "share": 0.2}, ("*",), "a fifth of the cost"),
        Method("ensemble", "Adam, ensemble of 5", "adam", {**_ADAM, "members": 5, "share": 1.0}, ("*",)),
        *_samplers(),
    ),
    scales=(
        Scale("quick", {**SHARED, "rows": 1_000, "epochs": 5}, num_seeds=1, seconds=5),
        # For choosing settings: the test set and the letters are not looked at.
        Scale("short", {**SHARED, "held_out": 10_000}, num_seeds=1, seconds=10),
        Scale("paper", SHARED, num_seeds=3, seconds=15),
    ),
    run=run,
    tables=(
        Table(
            "The 10,000 test digits, and the area under the ROC curve of digits against 10,000 letters, in percent",
            (
                *COLUMNS,
                Column("auroc_epistemic", "AUROC, epistemic", 2, better="high"),
                Column("auroc_total", "AUROC, total", 2, better="high"),
            ),
            note="Epistemic: what the networks of a row disagree on; one network has nothing to disagree with. Total: the entropy "
            "of the averaged prediction.",
        ),
        Table("What it took", COST),
    ),
    settings=(
        Setting("cost", "gradients of minibatches of 100 rows: members of the ensemble have 4 epochs each, samplers 20 in one "
                "chain, of which the first half is thrown away. Predictions cost as many networks as are averaged", "ours"),
        Setting("prior", "of the samplers: N(0, 36 / fan-in) on weights, N(0, 1) on biases; Adam has none", "ours"),
        Setting("chosen on", "the last 10,000 training rows (docs/uncertainty/choice.txt)", "ours"),
    ),
    seeds_together=False,
)  # fmt: skip
