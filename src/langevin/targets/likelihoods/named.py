"""Likelihoods by name."""

from __future__ import annotations

from typing import Any

from langevin.checks import needs
from langevin.targets.likelihoods.base import LEARNED, Likelihood
from langevin.targets.likelihoods.classes import bernoulli, categorical
from langevin.targets.likelihoods.counts import poisson
from langevin.targets.likelihoods.numbers import gaussian, student_t
from langevin.targets.likelihoods.own import OwnLikelihood

__all__ = ["LIKELIHOODS", "as_likelihood"]

LIKELIHOODS: dict[str, Likelihood] = {
    "bernoulli": bernoulli(),
    "categorical": categorical(),
    "gaussian": gaussian(LEARNED),
    "poisson": poisson(),
    "student_t": student_t(),
}
"""What a name alone stands for; where there is a scale, it is learned."""


def as_likelihood(who: str, value: Any) -> Likelihood:
    """Return the likelihood of that name, or one that is a function of outputs and targets; a likelihood passes through.

    Example:
        >>> as_likelihood("predict", "categorical")
        Categorical()
    """
    found = LIKELIHOODS.get(value) if isinstance(value, str) else value
    if isinstance(found, Likelihood):
        return found
    if callable(found) and not isinstance(found, type):
        return OwnLikelihood(found)
    condition = (
        f"one of {sorted(LIKELIHOODS)}, an object such as likelihoods.gaussian(std=...), or a function of outputs and targets"
    )
    raise needs(who, "likelihood", condition, value, ValueError if isinstance(value, str) else TypeError)
