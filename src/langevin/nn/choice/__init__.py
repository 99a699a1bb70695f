"""Choose the prior's scale and the temperature."""

from langevin.nn.choice.prior import PriorChoice, choose_prior
from langevin.nn.choice.scores import PriorScore

__all__ = ["PriorChoice", "PriorScore", "choose_prior"]
