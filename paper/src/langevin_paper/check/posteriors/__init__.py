"""Posteriors with known moments, written as models: posteriordb, the Inference Gym, and exact ones."""

from langevin_paper.check.posteriors.analytic import ANALYTIC, Analytic
from langevin_paper.check.posteriors.base import Data, KnownPosterior
from langevin_paper.check.posteriors.differential import DIFFERENTIAL
from langevin_paper.check.posteriors.gym import GYM
from langevin_paper.check.posteriors.hierarchies import HIERARCHIES
from langevin_paper.check.posteriors.mixtures import MIXTURES
from langevin_paper.check.posteriors.regressions import REGRESSIONS
from langevin_paper.check.posteriors.time_series import TIME_SERIES

__all__ = ["ANALYTIC", "GYM", "POSTERIORS", "Analytic", "Data", "KnownPosterior"]

# The name of a posterior in posteriordb to a function from its data to the posterior.
POSTERIORS = dict(sorted({**REGRESSIONS, **TIME_SERIES, **HIERARCHIES, **MIXTURES, **DIFFERENTIAL}.items()))
