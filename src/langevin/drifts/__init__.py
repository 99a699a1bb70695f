"""Adaptive biases ``a A_t`` of equation (1), one file each."""

from langevin.drifts.adam import Adam
from langevin.drifts.base import Drift, Memory
from langevin.drifts.momentum import Momentum
from langevin.drifts.none import NoDrift
from langevin.drifts.total import Total

__all__ = ["Adam", "Drift", "Memory", "Momentum", "NoDrift", "Total"]
