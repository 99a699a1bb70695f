"""The experiments by name."""

from __future__ import annotations

from langevin.checks import needs
from langevin.experiments.paper.gaussian import GAUSSIAN
from langevin.experiments.paper.landsat import LANDSAT
from langevin.experiments.paper.mixture import MIXTURE
from langevin.experiments.paper.networks import CIFAR10, CIFAR100, MNIST
from langevin.experiments.paper.ravine import RAVINE
from langevin.experiments.spec import Experiment

__all__ = ["EXPERIMENTS", "find"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (GAUSSIAN, MIXTURE, RAVINE, LANDSAT, MNIST, CIFAR10, CIFAR100)
}
"""In the order of the paper; `langevin list` shows them."""


def find(name: str) -> Experiment:
    """Return the experiment of that name.

    Example:
        >>> find("landsat").section
        'Section 5.1, table 2, figure 4'
    """
    if name not in EXPERIMENTS:
        raise needs("find", "name", f"one of {', '.join(EXPERIMENTS)}", name)
    return EXPERIMENTS[name]
