"""CIFAR-10 and CIFAR-100 with ResNet-18: section 5.3, table 4, settings of the appendix's table for CIFAR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langevin.checks import check_integer, needs
from langevin.experiments.plans import Plan, ResNet18, Stage
from langevin.schedules import Schedule, step_decay
from langevin.targets.priors import gaussian

__all__ = [
    "DECAY",
    "METHODS",
    "NOTES",
    "NUM_DATA",
    "PUBLISHED",
    "SCALES",
    "SEEDS",
    "TEMPERATURE",
    "Method",
    "Scale",
    "decay",
    "plan",
]

NUM_DATA = 50_000
EPOCHS = 250
TEMPERATURE = 1e-5
DECAY = {10: (0.5, 40), 100: (0.1, 90)}
"""gamma and L of equation (4), by the number of classes."""


@dataclass(frozen=True)
class Scale:
    """How much of the paper's run is made."""

    epochs: int
    seeds: tuple[int, ...]
    width: int = 64
    suffix: str = ""  # of the data set's name
    rows: tuple[int, int] | None = None


SCALES = {
    "paper": Scale(EPOCHS, (0, 1, 2, 3, 4)),
    "short": Scale(10, (0, 1, 2), width=8, suffix="-12k", rows=(4_000, 2_000)),
    "quick": Scale(2, (0,), width=4, suffix="-12k", rows=(400, 200)),
}
"""`paper` is the paper's; the others are reduced: a narrower network, fewer images, fewer epochs."""

SEEDS = {name: scale.seeds for name, scale in SCALES.items()}


@dataclass(frozen=True)
class Method:
    """A row of the appendix's table, for one data set."""

    optimizer: str
    lr: float  # on the mean loss: the table's 0.1/50000 is epsilon
    settings: dict[str, Any]
    precision: float = 0.0  # of the normal prior of a sampler


def _methods(psgld: float, precision: float, eps_root: float) -> dict[str, Method]:
    """Make the rows; the two data sets differ in pSGLD's learning rate, the prior of our two samplers, and ASGLD's lambda."""
    msgld = {"bias_factor": 1.0, "beta": 0.9}
    asgld = {"bias_factor": 20.0, "betas": (0.9, 0.999), "eps_root": eps_root}
    return {
        "SGD": Method("SGD", 0.1, {"weight_decay": 5e-4}),
        "Adam": Method("Adam", 1e-3, {"betas": (0.9, 0.999), "eps": 1e-8}),
        "SGLD": Method("SGLD", 0.1, {}, 25.0),
        "pSGLD": Method("PSGLD", psgld, {"beta": 0.99, "eps": 1e-6}, 25.0),
        "SGHMC": Method("SGHMC", 0.1, {"beta": 0.9}, 25.0),
        "ASGLD": Method("ASGLD", 0.1, asgld, precision),
        "MSGLD": Method("MSGLD", 0.1, msgld, precision),
        "ASGLD invariant": Method("ASGLD", 0.1, {**asgld, "invariant": True}, precision),  # ours
        "MSGLD invariant": Method("MSGLD", 0.1, {**msgld, "invariant": True}, precision),  # ours
    }


METHODS = {10: _methods(1e-3, 25.0, 1e-6), 100: _methods(1e-4, 75.0, 1e-8)}
"""The rows of table 4 and two of ours, by the number of classes."""


def _row(train: float, train_error: float, test: float, test_error: float) -> dict[str, tuple[float, float]]:
    return {"train_accuracy": (train, train_error), "test_accuracy": (test, test_error)}


PUBLISHED = {
    10: {
        "SGD": _row(99.721, 0.058, 92.896, 0.141),
        "Adam": _row(99.515, 0.087, 92.144, 0.154),
        "SGLD": _row(99.713, 0.034, 92.908, 0.114),
        "pSGLD": _row(97.209, 0.465, 89.398, 0.379),
        "SGHMC": _row(99.152, 0.060, 93.470, 0.073),
        "ASGLD": _row(99.738, 0.052, 93.018, 0.187),
        "MSGLD": _row(99.702, 0.066, 93.512, 0.081),
    },
    100: {
        "SGD": _row(98.211, 0.208, 72.274, 0.145),
        "Adam": _row(96.744, 0.390, 67.564, 0.501),
        "SGLD": _row(97.650, 0.131, 71.908, 0.149),
        "pSGLD": _row(99.034, 0.101, 69.234, 0.162),
        "SGHMC": _row(96.92, 0.091, 73.112, 0.139),
        "ASGLD": _row(96.938, 0.268, 73.252, 0.681),
        "MSGLD": _row(96.801, 0.150, 73.670, 0.144),
    },
}
"""Table 4: mean and standard error of five runs, in percent, by the number of classes."""

NOTES = (
    "Paper's: ResNet-18, 250 epochs, batch 100, five runs, learning rates with their decay, bias factors, betas, lambdas, "
    "tau = 1e-5, priors N(0, 1/25) and, for ASGLD and MSGLD on CIFAR-100, N(0, 1/75); SGD's lambda 5e-4, Adam's 0.",
    "Ours: the CIFAR form of ResNet-18 (3x3 stem, no max-pool), PyTorch's default initialisation, crops from images padded by 4, "
    "flips, per-channel standardisation from the training set ('data augmentation techniques' is all the paper says).",
    "The decay of equation (4) is applied to SGD and Adam too. SGD has no momentum, for the table gives it no beta. The priors, "
    "and SGD's lambda, are on all parameters, those of the batch norms included.",
    "pSGLD's V is the average of squared gradients of the mean loss; of grad U the step would vanish.",
    "Accuracies are averages of the evaluations after each of the last five epochs, for the training set without augmentation; "
    "ensemble_test_accuracy is that of the predictions averaged over them.",
    "Scales 'short' and 'quick' are reduced: a narrower network, images of the 12k subset, fewer epochs with L in "
    "proportion. N stays 50,000, so that lr / N, tau and the prior keep the paper's numbers and their weight in a step.",
    "The paper scale needs a GPU (train(..., device='cuda')); on two cores it takes half an hour per epoch. We have not run it.",
)


def decay(initial: float, num_classes: int, epochs: int) -> Schedule:
    """Make equation (4) for a run of that many epochs: L is to them as the paper's is to its 250.

    Example:
        >>> [decay(0.1, 10, 250)(epoch) for epoch in (0, 39, 40, 80)]
        [0.1, 0.1, 0.05, 0.025]
    """
    factor, every = DECAY[num_classes]
    if epochs == EPOCHS:
        return step_decay(initial, factor=factor, every=every)
    text = f"{initial:g} * {factor:g}^floor(step * {EPOCHS} / ({epochs} * {every}))"
    return Schedule(text, lambda epoch: initial * factor ** (epoch * EPOCHS // (epochs * every)))


def plan(method: str, scale: str = "paper", num_classes: int = 10) -> Plan:
    """Return the plan of a row of table 4 at one of the `SCALES`.

    Example:
        >>> plan("MSGLD", "paper", 100).stages[0].lr(90)
        0.010000000000000002
    """
    check_integer("cifar.plan", "num_classes", num_classes, 1)
    if num_classes not in METHODS:
        raise needs("cifar.plan", "num_classes", "10 or 100", num_classes)
    if method not in METHODS[num_classes]:
        raise needs("cifar.plan", "method", f"one of {', '.join(METHODS[num_classes])}", method)
    if scale not in SCALES:
        raise needs("cifar.plan", "scale", f"one of {', '.join(SCALES)}", scale)
    chosen, row = SCALES[scale], METHODS[num_classes][method]
    stage = Stage(
        chosen.epochs,
        row.optimizer,
        decay(row.lr, num_classes, chosen.epochs),
        row.settings,
        gaussian(std=row.precision**-0.5) if row.precision else None,
        TEMPERATURE if row.precision else 0.0,
    )
    return Plan(
        method,
        f"cifar{num_classes}{chosen.suffix}",
        ResNet18(num_classes, chosen.width),
        (stage,),
        batch_size=100,
        num_data=NUM_DATA,
        rows=chosen.rows,
        standardise=True,
        augment=True,
        averaged_epochs=min(5, chosen.epochs),
    )
