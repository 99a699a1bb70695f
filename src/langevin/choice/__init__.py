"""Choosing what a model leaves open: the prior's scale and the temperature."""

from langevin.choice.prior import PriorChoice, choose_prior
from langevin.choice.scores import PriorScore

__all__ = ["PriorChoice", "PriorScore", "choose_prior"]
