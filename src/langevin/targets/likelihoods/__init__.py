"""Likelihoods of a model's outputs: classes, measurements, counts, or a function of the user's own."""

from langevin.targets.likelihoods.base import LEARNED, PREDICTED, Likelihood, WithScale
from langevin.targets.likelihoods.classes import Bernoulli, Categorical, bernoulli, categorical
from langevin.targets.likelihoods.counts import PoissonLikelihood, poisson
from langevin.targets.likelihoods.named import LIKELIHOODS, as_likelihood
from langevin.targets.likelihoods.numbers import GaussianLikelihood, StudentTLikelihood, gaussian, student_t
from langevin.targets.likelihoods.own import OwnLikelihood

__all__ = [
    "LEARNED",
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "GaussianLikelihood",
    "Likelihood",
    "OwnLikelihood",
    "PREDICTED",
    "PoissonLikelihood",
    "StudentTLikelihood",
    "WithScale",
    "as_likelihood",
    "bernoulli",
    "categorical",
    "gaussian",
    "poisson",
    "student_t",
]
