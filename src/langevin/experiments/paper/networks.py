"""Tables 3 and 4 as experiments of the runner: the plans of `mnist` and `cifar`, trained by `training.train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from langevin.experiments.paper import cifar, mnist
from langevin.experiments.plans import Plan
from langevin.experiments.spec import Column, Experiment, Method, Progress, Published, Results, Scale, Setting, Table
from langevin.experiments.training import train

__all__ = ["CIFAR10", "CIFAR100", "MNIST"]

PlanFn = Callable[[str, str], Plan]
"""Makes the plan of a method's label and a scale's name."""


@dataclass(frozen=True)
class Trained:
    """Runs a cell of one seed: trains its plan, or goes on from the checkpoint in the cell's folder."""

    data: str

    def __call__(self, method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
        """Return accuracies, the sparsity ratio where there is one, and both after every epoch."""
        plan = PLANS[self.data](method.label, scale.name)
        return {seed: _results(train(plan, seed, folder / str(seed), progress)) for seed in seeds}


def _results(trained: dict[str, Any]) -> dict[str, Any]:
    names = ("train_accuracy", "test_accuracy", "sparsity_ratio", "ensemble_test_accuracy", "seconds", "threads")
    epochs = trained["epochs"]
    curves: dict[str, Any] = {"test_error": np.array([100 - epoch["test_accuracy"] for epoch in epochs], dtype=np.float32)}
    if "sparsity_ratio" in epochs[0]:
        curves["ratio"] = np.array([epoch["sparsity_ratio"] for epoch in epochs], dtype=np.float32)
    temperature = trained["effective_temperature"][-1]  # that of the last stage
    return {**{name: trained[name] for name in names if name in trained}, "law_temperature": temperature, **curves}


PLANS: dict[str, PlanFn] = {
    "mnist": mnist.plan,
    "cifar10": lambda method, scale: cifar.plan(method, scale, 10),
    "cifar100": lambda method, scale: cifar.plan(method, scale, 100),
}


def _methods(data: str, labels: Mapping[str, Any], extra: tuple[str, ...]) -> tuple[Method, ...]:
    """Make the rows; their settings are the stages of the paper's scale, in words."""
    methods = []
    for label in labels:
        plan = PLANS[data](label, "paper")
        settings = {f"stage {number}": _words(stage) for number, stage in enumerate(plan.to_plain()["stages"], 1)}
        name = label.lower().replace(",", "").replace(" ", "-")
        ours = ("*",) if label in extra else ()
        methods.append(Method(name, label, plan.stages[0].optimizer.lower(), settings, ours))
    return tuple(methods)


def _words(stage: dict[str, Any]) -> str:
    """Write a stage's settings with all their digits; its epochs are the scale's."""
    own = [f"{name} {value}" for name, value in stage["settings"].items()]
    prior = [] if stage["prior"] is None else [" ".join(str(value) for value in ("prior", *stage["prior"].values()))]
    return ", ".join([f"lr {stage['lr']}", *own, *prior, *([f"τ {stage['temperature']}"] if stage["temperature"] else [])])


def _scales(
    scales: Mapping[str, Any], seconds: Mapping[str, float], describe: Callable[[Any], dict[str, Any]]
) -> tuple[Scale, ...]:
    return tuple(
        Scale(name, describe(scales[name]), len(scales[name].seeds), seconds[name], is_paper=name == "paper")
        for name in ("quick", "short", "paper")
    )


def _columns(published: Mapping[str, Mapping[str, tuple[float, float]]], n: int, labels: Mapping[str, str]) -> tuple[Column, ...]:
    columns = []
    for key, label in labels.items():
        rows = {method.lower(): Published(*row[key], n) for method, row in published.items() if key in row}
        columns.append(Column(key, label, 3, rows, "high" if key.endswith("accuracy") else ""))
    return tuple(columns)


def _settings(notes: tuple[str, ...]) -> tuple[Setting, ...]:
    """Turn notes into lines of the page; those that begin with "Paper's" are the paper's."""
    return tuple(
        Setting(
            f"note {number}",
            note.removeprefix("Paper's: ").removeprefix("Ours: "),
            "paper" if note.startswith("Paper's") else "ours",
        )
        for number, note in enumerate(notes, 1)
    )


ACCURACIES = {"train_accuracy": "training accuracy", "test_accuracy": "test accuracy"}

MNIST = Experiment(
    name="mnist",
    title="MNIST, sparse networks",
    section="Section 5.2, table 3",
    about="A 784-800-800-10 network learns MNIST under N(0, 1), and then under a spike-and-slab prior that empties it. The "
    "sparsity ratio is the percentage of weights that are left. The invariant rows sample the stated temperature, the others "
    "a colder law.",
    methods=_methods("mnist", mnist.METHODS, tuple(mnist.EXTRA)),
    scales=_scales(
        mnist.SCALES,
        {"quick": 10.0, "short": 260.0, "paper": 2_600.0},
        lambda scale: {"epochs": list(scale.epochs), "rows": list(scale.rows or ())},
    ),
    run=Trained("mnist"),
    tables=(
        Table(
            "Table 3: accuracy and sparsity ratio in percent, averaged over the last five epochs",
            _columns(mnist.PUBLISHED, 3, {**ACCURACIES, "sparsity_ratio": "sparsity ratio"}),
            note="Below the paper scale there are fewer epochs, and the ratio is still falling when a run ends.",
        ),
    ),
    settings=_settings(mnist.NOTES),
    seeds_together=False,
)


def _cifar(num_classes: int) -> Experiment:
    data = f"cifar{num_classes}"
    return Experiment(
        name=data,
        title=f"CIFAR-{num_classes}",
        section="Section 5.3, table 4",
        about="ResNet-18 with augmentation, by SGD, Adam and the samplers. The paper's run is 250 epochs of 50,000 images and "
        "wants a GPU. The short scale is REDUCED: an eighth of the width, 4,000 images, 10 epochs; it shows early convergence and "
        "can not be compared with the published numbers.",
        methods=_methods(data, cifar.METHODS[num_classes], ("ASGLD invariant", "MSGLD invariant")),
        scales=_scales(
            cifar.SCALES,
            {"quick": 8.0, "short": 65.0, "paper": 450_000.0},
            lambda scale: {"epochs": scale.epochs, "width": scale.width, "rows": list(scale.rows or ()), "images": scale.suffix},
        ),
        run=Trained(data),
        tables=(
            Table(
                "Table 4: accuracy in percent, averaged over the last five epochs",
                _columns(cifar.PUBLISHED[num_classes], 5, ACCURACIES),
                note="The short scale is a reduced experiment: narrower network, fewer images, fewer epochs.",
            ),
        ),
        settings=_settings(cifar.NOTES),
        seeds_together=False,
    )


CIFAR10, CIFAR100 = _cifar(10), _cifar(100)
