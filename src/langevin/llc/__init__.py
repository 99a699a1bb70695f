"""The local learning coefficient of a trained model: how singular the loss is around its parameters."""

from langevin.llc.estimate import llc
from langevin.llc.limit import Limit, llc_limit
from langevin.llc.result import LLC, Rung

__all__ = ["LLC", "Limit", "Rung", "llc", "llc_limit"]
