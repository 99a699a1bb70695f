"""The experiments by name."""

from __future__ import annotations

from langevin.checks import needs
from langevin_paper.experiments.digits import DIGITS
from langevin_paper.experiments.gaussian import GAUSSIAN
from langevin_paper.experiments.invariant.efficiency import EFFICIENCY
from langevin_paper.experiments.invariant.integrator import INTEGRATOR
from langevin_paper.experiments.invariant.law import LAW
from langevin_paper.experiments.invariant.ravine import INVARIANT_RAVINE
from langevin_paper.experiments.landsat import LANDSAT
from langevin_paper.experiments.landsat_readings import LANDSAT_READINGS
from langevin_paper.experiments.lenet import LENET
from langevin_paper.experiments.minibatch.atlas import MINIBATCH
from langevin_paper.experiments.mixture import MIXTURE, NOISY
from langevin_paper.experiments.mnist_ood import MNIST_OOD
from langevin_paper.experiments.networks import CIFAR10, CIFAR100, MNIST, STANDARDISED
from langevin_paper.experiments.ravine import RAVINE
from langevin_paper.experiments.ravine_defaults import RAVINE_DEFAULTS
from langevin_paper.experiments.ravine_readings import RAVINE_READINGS
from langevin_paper.experiments.ravine_search import RAVINE_SEARCH
from langevin_paper.experiments.scoring import SCORING, SCORING_CLASSES
from langevin_paper.experiments.tables import TABLES, UCI
from langevin_paper.spec import Experiment

__all__ = ["EXPERIMENTS", "find"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(GAUSSIAN, MIXTURE, NOISY, RAVINE, RAVINE_READINGS, RAVINE_SEARCH, RAVINE_DEFAULTS),
        *(LANDSAT, LANDSAT_READINGS, MNIST, STANDARDISED, CIFAR10, CIFAR100),
        *(LAW, INTEGRATOR, EFFICIENCY, INVARIANT_RAVINE, MINIBATCH, LENET, MNIST_OOD, DIGITS, UCI, TABLES),
        *(SCORING, SCORING_CLASSES),
    )
}
"""In the order of the paper, then studies (invariant forms, minibatches, sparse networks, uncertainty, tables)."""


def find(name: str) -> Experiment:
    """Return the experiment of that name.

    Example:
        >>> find("landsat").section
        'Section 5.1, table 2, figure 4'
    """
    if name not in EXPERIMENTS:
        raise needs("find", "name", f"one of {', '.join(EXPERIMENTS)}", name)
    return EXPERIMENTS[name]
