"""The local learning coefficient: how singular the loss is around a trained model's parameters."""

from langevin.nn.llc.estimate import llc
from langevin.nn.llc.limit import Limit, llc_limit
from langevin.nn.llc.result import LLC, Rung

__all__ = ["LLC", "Limit", "Rung", "llc", "llc_limit"]
