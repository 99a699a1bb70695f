"""Sparse networks for MNIST: section 5.2, table 3, settings of the appendix's table for MNIST."""

from __future__ import annotations

from dataclasses import dataclass, replace

from langevin.checks import needs
from langevin.experiments.plans import MLP, Plan, Stage
from langevin.schedules import constant
from langevin.targets.priors import gaussian, spike_slab

__all__ = ["EXTRA", "METHODS", "NOTES", "PRIOR", "PUBLISHED", "SCALES", "SEEDS", "Scale", "plan"]

PRIOR = spike_slab(slab_weight=1e-7, slab_std=0.02**0.5, spike_std=1e-5**0.5)
_WIDE = gaussian(std=1.0)


@dataclass(frozen=True)
class Scale:
    """How much of the paper's run is made."""

    epochs: tuple[int, int]  # stage I, stage II
    seeds: tuple[int, ...]
    rows: tuple[int, int] | None = None


SCALES = {
    "paper": Scale((100, 150), (0, 1, 2)),
    "short": Scale((10, 15), (0, 1, 2)),
    "quick": Scale((1, 2), (0,), rows=(2_000, 1_000)),
}
SEEDS = {name: scale.seeds for name, scale in SCALES.items()}


_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}
_MSGLD = {"bias_factor": 1.0, "beta": 0.99}

METHODS: dict[str, tuple[Stage, ...]] = {
    "ASGLD": (
        Stage(100, "ASGLD", constant(0.5), {"bias_factor": 10.0, "betas": (0.9, 0.999), "eps_root": 1e-6}, _WIDE, 1e-2),
        Stage(150, "ASGLD", constant(0.05), {"bias_factor": 1.0, "betas": (0.9, 0.999), "eps_root": 1e-8}, PRIOR, 1e-5),
    ),
    "MSGLD": (Stage(100, "MSGLD", constant(0.5), _MSGLD, _WIDE, 1e-3), Stage(150, "MSGLD", constant(0.05), _MSGLD, PRIOR, 1e-5)),
    "Adam": (Stage(100, "Adam", constant(1e-3), _ADAM), Stage(150, "Adam", constant(1e-4), _ADAM, PRIOR)),
}
"""The rows of table 3, with the stages of the paper's run."""


def _invariant(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    return tuple(replace(stage, settings={**stage.settings, "invariant": True}) for stage in stages)


EXTRA = {
    "ASGLD invariant": _invariant(METHODS["ASGLD"]),
    "MSGLD invariant": _invariant(METHODS["MSGLD"]),
    "Adam, no prior": tuple(replace(stage, prior=None) for stage in METHODS["Adam"]),
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


def plan(method: str, scale: str = "paper") -> Plan:
    """Return the plan of a row of table 3, or of `EXTRA`, at one of the `SCALES`.

    Example:
        >>> plan("MSGLD", "paper").epochs
        250
    """
    if method not in METHODS:
        raise needs("mnist.plan", "method", f"one of {', '.join(METHODS)}", method)
    if scale not in SCALES:
        raise needs("mnist.plan", "scale", f"one of {', '.join(SCALES)}", scale)
    chosen = SCALES[scale]
    stages = tuple(replace(stage, epochs=epochs) for stage, epochs in zip(METHODS[method], chosen.epochs, strict=True))
    return Plan(
        method,
        "mnist",
        MLP((784, 800, 800, 10)),
        stages,
        batch_size=100,
        num_data=60_000,
        rows=chosen.rows,
        averaged_epochs=5 if chosen.epochs[1] >= 5 else 1,  # only over epochs of stage II
        threshold=PRIOR.threshold,
    )
