"""CIFAR-10 and CIFAR-100 with ResNet-18: section 5.3, table 4, settings of the appendix's table for CIFAR."""

from __future__ import annotations

from typing import Any

from langevin.targets import priors
from langevin_paper.spec import Scale

__all__ = ["DECAY", "METHODS", "NOTES", "PUBLISHED", "SCALES"]

DECAY = {10: {"factor": 0.5, "every": 40, "of": 250}, 100: {"factor": 0.1, "every": 90, "of": 250}}
"""gamma and L of equation (3), for the paper's epochs, by the number of classes."""


def _scales(num_classes: int) -> dict[str, Scale]:
    """Make `paper`, which is the paper's, and the reduced ones: a narrower network, fewer images, fewer epochs."""

    def settings(epochs: int, width: int, suffix: str = "", rows: tuple[int, int] | None = None) -> dict[str, Any]:
        return {
            "data": f"cifar{num_classes}{suffix}",
            "standardise": True,
            "padding": 4,
            "channels_last": width >= 8,  # faster, but narrow networks crash
            "network": {"kind": "ResNet18", "num_classes": num_classes, "width": width},
            "num_data": 50_000,
            "batch_size": 100,
            "decay": DECAY[num_classes],
            "epochs": (epochs,),
            "averaged_epochs": min(5, epochs),
            "rows": rows,
        }

    made = (
        Scale("quick", settings(2, 4, "-12k", (400, 200)), num_seeds=1, seconds=8),
        Scale("short", settings(10, 8, "-12k", (4_000, 2_000)), num_seeds=3, seconds=65),
        # The same network and images for four times as long: a rung of a ladder in one number.
        Scale("long", settings(40, 8, "-12k", (4_000, 2_000)), num_seeds=5 if num_classes == 10 else 3, seconds=130),
        Scale("paper", settings(250, 64), num_seeds=5, seconds=450_000, is_paper=True),
    )
    return {scale.name: scale for scale in made}


SCALES = {10: _scales(10), 100: _scales(100)}


def _methods(psgld: float, precision: float, eps_root: float) -> dict[str, tuple[dict[str, Any]]]:
    """Make the rows; the two data sets differ in pSGLD's learning rate, the prior of our two samplers, and ASGLD's lambda.

    Learning rates are on the mean loss: the table's 0.1/50000 is epsilon.
    """

    def sampler(optimizer: str, precision: float = 25.0, lr: float = 0.1, **own: Any) -> tuple[dict[str, Any]]:
        prior = priors.to_plain(priors.gaussian(std=precision**-0.5))
        return ({"optimizer": optimizer, "lr": lr, **own, "prior": prior, "temperature": 1e-5},)

    msgld: dict[str, Any] = {"precision": precision, "bias_factor": 1.0, "beta": 0.9}
    asgld: dict[str, Any] = {"precision": precision, "bias_factor": 20.0, "betas": (0.9, 0.999), "eps_root": eps_root}
    flat = {"prior": None, "temperature": 0.0}
    return {
        "SGD": ({"optimizer": "SGD", "lr": 0.1, "weight_decay": 5e-4, **flat},),
        "Adam": ({"optimizer": "Adam", "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, **flat},),
        "SGLD": sampler("SGLD"),
        "pSGLD": sampler("PSGLD", lr=psgld, beta=0.99, eps=1e-6),
        "SGHMC": sampler("SGHMC", beta=0.9),
        "ASGLD": sampler("ASGLD", **asgld),
        "MSGLD": sampler("MSGLD", **msgld),
        "ASGLD invariant": sampler("ASGLD", **asgld, invariant=True),  # ours
        "MSGLD invariant": sampler("MSGLD", **msgld, invariant=True),  # ours
    }


METHODS = {10: _methods(1e-3, 25.0, 1e-6), 100: _methods(1e-4, 75.0, 1e-8)}
"""The rows of table 4 and two of ours, by the number of classes: one stage each."""


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
    "The decay of equation (3) is applied to SGD and Adam too. SGD has no momentum, for the table gives it no beta. The priors, "
    "and SGD's lambda, are on all parameters, those of the batch norms included.",
    "pSGLD's V is the average of squared gradients of the mean loss; of grad U the step would vanish.",
    "Accuracies are averages of the evaluations after each of the last five epochs, for the training set without augmentation; "
    "ensemble_test_accuracy is that of the predictions averaged over them.",
    "Scales 'long', 'short' and 'quick' are reduced: a narrower network, images of the 12k subset, fewer epochs with L in "
    "proportion. N stays 50,000, so that lr / N, tau and the prior keep the paper's numbers and their weight in a step.",
    "The paper scale needs a GPU, which is taken where torch has one; two cores take half an hour per epoch. We have not run it.",
)
