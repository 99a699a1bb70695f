"""Adaptive biases ``a A_t`` of equation (1)."""

from langevin.drifts.adadelta import Adadelta
from langevin.drifts.adam import Adam, AdaMax, AdamFull
from langevin.drifts.base import Drift, Memory, Number, ScaledAverage
from langevin.drifts.momentum import Momentum
from langevin.drifts.none import NoDrift
from langevin.drifts.total import Total

__all__ = ["AdaMax", "Adadelta", "Adam", "AdamFull", "Drift", "Memory", "Momentum", "NoDrift", "Number", "ScaledAverage", "Total"]
