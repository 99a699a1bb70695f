"""Priors as energies with closed-form gradients, the same for every element or by the name and shape of its parameter."""

from langevin.targets.priors.base import SCALE, PlacedPrior, Prior, check_any_prior, check_prior, is_scale
from langevin.targets.priors.gaussians import Flat, GaussianPrior, SpikeSlab, flat, gaussian, spike_slab
from langevin.targets.priors.heavy import Horseshoe, LaplacePrior, StudentTPrior, horseshoe, laplace, student_t
from langevin.targets.priors.pieces import Gaussians, Pieces, on_theta, place
from langevin.targets.priors.placed import ByName, FanIn, by_name, fan_in
from langevin.targets.priors.saved import KINDS, from_plain, to_plain

__all__ = [
    "KINDS",
    "SCALE",
    "ByName",
    "FanIn",
    "Flat",
    "GaussianPrior",
    "Gaussians",
    "Horseshoe",
    "LaplacePrior",
    "Pieces",
    "PlacedPrior",
    "Prior",
    "SpikeSlab",
    "StudentTPrior",
    "by_name",
    "check_any_prior",
    "check_prior",
    "fan_in",
    "flat",
    "from_plain",
    "gaussian",
    "horseshoe",
    "is_scale",
    "laplace",
    "on_theta",
    "place",
    "spike_slab",
    "student_t",
    "to_plain",
]
