"""Sparse networks for MNIST: section 5.2, table 3, settings of the appendix's table for MNIST."""

from __future__ import annotations

from typing import Any

from langevin.targets import priors
from langevin_paper.spec import Scale

__all__ = ["EXTRA", "METHODS", "NOTES", "PRIOR", "PUBLISHED", "SCALES"]

PRIOR = priors.spike_slab(slab_weight=1e-7, slab_std=0.02**0.5, spike_std=1e-5**0.5)
_WIDE, _SPARSE = ({"prior": priors.to_plain(prior)} for prior in (priors.gaussian(std=1.0), PRIOR))

SHARED: dict[str, Any] = {
    "data": "mnist",
    "standardise": False,  # pixels are divided by 255
    "padding": None,  # no augmentation
    "channels_last": False,
    "network": {"kind": "MLP", "sizes": (784, 800, 800, 10)},
    "num_data": 60_000,
    "batch_size": 100,
    "decay": None,
    "threshold": PRIOR.threshold,
}

SCALES = {
    scale.name: scale
    for scale in (
        # Averages are over epochs of stage II only.
        Scale("quick", {**SHARED, "epochs": (1, 2), "averaged_epochs": 1, "rows": (2_000, 1_000)}, num_seeds=1, seconds=10),
        Scale("short", {**SHARED, "epochs": (10, 15), "averaged_epochs": 5, "rows": None}, num_seeds=3, seconds=80),
        Scale(
            "paper",
            {**SHARED, "epochs": (100, 150), "averaged_epochs": 5, "rows": None},
            num_seeds=3,
            seconds=800,
            is_paper=True,
        ),
    )
}

_ADAM = {"optimizer": "Adam", "betas": (0.9, 0.999), "eps": 1e-8, "prior": None, "temperature": 0.0}
_ASGLD = {"optimizer": "ASGLD", "betas": (0.9, 0.999)}
_MSGLD = {"optimizer": "MSGLD", "bias_factor": 1.0, "beta": 0.99}

METHODS: dict[str, tuple[dict[str, Any], ...]] = {
    "ASGLD": (
        {**_ASGLD, "lr": 0.5, "bias_factor": 10.0, "eps_root": 1e-6, **_WIDE, "temperature": 1e-2},
        {**_ASGLD, "lr": 0.05, "bias_factor": 1.0, "eps_root": 1e-8, **_SPARSE, "temperature": 1e-5},
    ),
    "MSGLD": (
        {**_MSGLD, "lr": 0.5, **_WIDE, "temperature": 1e-3},
        {**_MSGLD, "lr": 0.05, **_SPARSE, "temperature": 1e-5},
    ),
    "Adam": ({**_ADAM, "lr": 1e-3}, {**_ADAM, "lr": 1e-4, **_SPARSE}),
}
"""The rows of table 3: the stages of each."""


def _with(method: str, **settings: Any) -> tuple[dict[str, Any], ...]:
    return tuple({**stage, **settings} for stage in METHODS[method])


EXTRA = {
    "ASGLD invariant": _with("ASGLD", invariant=True),
    "MSGLD invariant": _with("MSGLD", invariant=True),
    "Adam, no prior": _with("Adam", prior=None),
}
"""Rows of ours: noise on the momentum, and Adam by the letter of the appendix."""

METHODS.update(EXTRA)

PUBLISHED = {
    "ASGLD": {"train_accuracy": (99.542, 0.026), "test_accuracy": (98.417, 0.044), "sparsity_ratio": (3.176, 0.155)},
    "MSGLD": {"train_accuracy": (99.494, 0.002), "test_accuracy": (98.319, 0.019), "sparsity_ratio": (3.369, 0.063)},
    "Adam": {"train_accuracy": (99.383, 0.072), "test_accuracy": (98.332, 0.003), "sparsity_ratio": (2.169, 0.013)},
}
"""Table 3: mean and standard error of three runs, in percent."""

NOTES = (
    "Paper's: 784-800-800-10, batch 100, 100 + 150 epochs, three runs, both priors, learning rates, bias factors, betas, lambdas "
    "and temperatures; the threshold of the sparsity ratio; accuracies averaged over the last five epochs.",
    "Ours: pixels divided by 255 (not stated); PyTorch's default initialisation (not stated).",
    "Learning rates .5 and .05 are read on the mean loss (epsilon = lr / 60000); read on U they blow up. No decay within a stage.",
    "Stage II starts a new optimizer with empty averages. The priors are on all parameters; the sparsity ratio counts connection "
    "weights only, without the 1,610 biases (0.13 % of the parameters).",
    "Adam: the appendix says lambda = 0 for all 250 epochs, that is no prior at all. A ratio of 2.169 % cannot come of that, so "
    "the row 'Adam' adds -log prior / N to the mean loss in stage II; the row 'Adam, no prior' is the appendix by the letter.",
    "'Averaged over the iterations of the last 5 epochs' is read as the evaluations after each of them; ensemble_test_accuracy is "
    "the other reading, the accuracy of the averaged predictions.",
    "Scale 'quick' uses 2,000 rows and keeps N = 60,000, so that every setting has its meaning.",
)
