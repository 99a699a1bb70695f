"""Tables 3 and 4 as experiments of the runner: the rows of `mnist` and `cifar`, run by `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from langevin_paper.experiments import cifar, mnist
from langevin_paper.spec import Column, Experiment, Method, Progress, Published, Results, Scale, Setting, Table
from langevin_paper.train import train
from langevin_paper.training import Training, make_training

__all__ = ["CIFAR10", "CIFAR100", "MNIST", "STANDARDISED", "training_of"]


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: train, or go on from the checkpoint in the cell's folder.

    Returns:
        Accuracies, the sparsity ratio where there is one, and both after every epoch.
    """
    training = training_of(method, scale)
    return {seed: _results(train(training, seed, folder / str(seed), progress)) for seed in seeds}


def training_of(method: Method, scale: Scale) -> Training:
    """Return the training of a row at a scale."""
    return make_training(method.label, list(method.settings.values()), scale.settings)


def _results(trained: dict[str, Any]) -> dict[str, Any]:
    names = ("train_accuracy", "test_accuracy", "sparsity_ratio", "ensemble_test_accuracy", "seconds", "threads", "device")
    epochs = trained["epochs"]
    curves: dict[str, Any] = {"test_error": np.array([100 - epoch["test_accuracy"] for epoch in epochs], dtype=np.float32)}
    if "sparsity_ratio" in epochs[0]:
        curves["ratio"] = np.array([epoch["sparsity_ratio"] for epoch in epochs], dtype=np.float32)
    temperature = trained["effective_temperature"][-1]  # that of the last stage
    return {**{name: trained[name] for name in names if name in trained}, "law_temperature": temperature, **curves}


def _methods(rows: Mapping[str, tuple[dict[str, Any], ...]], extra: tuple[str, ...]) -> tuple[Method, ...]:
    """Make the rows; their settings are their stages."""
    methods = []
    for label, stages in rows.items():
        settings = {f"stage {number}": stage for number, stage in enumerate(stages, 1)}
        name = label.lower().replace(",", "").replace(" ", "-")
        methods.append(Method(name, label, stages[0]["optimizer"].lower(), settings, ("*",) if label in extra else ()))
    return tuple(methods)


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
    methods=_methods(mnist.METHODS, tuple(mnist.EXTRA)),
    scales=tuple(mnist.SCALES.values()),
    run=run,
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

STANDARDISED = replace(
    MNIST,
    name="mnist-standardised",
    title="MNIST, sparse networks, pixels standardised",
    section="Section 5.2, table 3, by another reading of its inputs",
    about="The paper does not say how it scales the pixels. Above they are divided by 255; here their mean is subtracted and their "
    "deviation divided out, as in most examples for PyTorch, so that the black border is no input of zero.",
    methods=tuple(MNIST.method(name.lower()) for name in mnist.PUBLISHED),
    scales=tuple(replace(scale, settings={**scale.settings, "standardise": True}) for scale in MNIST.scales),
    settings=tuple(
        replace(line, value=line.value.replace("pixels divided by 255", "pixels standardised")) for line in MNIST.settings
    ),
)


def _cifar(num_classes: int) -> Experiment:
    return Experiment(
        name=f"cifar{num_classes}",
        title=f"CIFAR-{num_classes}",
        section="Section 5.3, table 4",
        about="ResNet-18 with augmentation, by SGD, Adam and the samplers. The paper's run is 250 epochs of 50,000 images and "
        "wants a GPU. The scales short and long are REDUCED: an eighth of the width, 4,000 images, 10 and 40 epochs with the "
        "schedule in proportion; they can not be compared with the published numbers, and show which rankings hold there.",
        methods=_methods(cifar.METHODS[num_classes], ("ASGLD invariant", "MSGLD invariant")),
        scales=tuple(cifar.SCALES[num_classes].values()),
        run=run,
        tables=(
            Table(
                "Table 4: accuracy in percent, averaged over the last five epochs",
                _columns(cifar.PUBLISHED[num_classes], 5, ACCURACIES),
                note="Below the paper scale this is a reduced experiment: narrower network, fewer images, fewer epochs.",
            ),
        ),
        settings=_settings(cifar.NOTES),
        seeds_together=False,
    )


CIFAR10, CIFAR100 = _cifar(10), _cifar(100)
