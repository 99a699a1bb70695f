"""Adaptive biases ``a A_t`` of equation (1); each is defined in the file of its algorithm."""

from langevin.kernels.adadelta import Adadelta
from langevin.kernels.adamax import AdaMax
from langevin.kernels.asgld import Adam, AdamFull
from langevin.kernels.msgld import Momentum
from langevin.kernels.parts import Drift, NoDrift, Number, ScaledAverage, Tensors, Total

__all__ = [
    "AdaMax",
    "Adadelta",
    "Adam",
    "AdamFull",
    "Drift",
    "Tensors",
    "Momentum",
    "NoDrift",
    "Number",
    "ScaledAverage",
    "Total",
]
