"""The effective number of parameters of a posterior, from the gradients of a run."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["EffectiveParameters", "Series"]

_SPAN = 1000  # looks over which positions are averaged
_MOST = 2000  # values that are kept
_FEWEST = 8
_BATCHES = 8  # of values, for the standard error


class Series:
    """The mean of the later half of a run's numbers, and its standard error from batch means."""

    def __init__(self) -> None:
        """Start without numbers."""
        self._values: list[float] = []

    def add(self, value: float) -> None:
        """Add a number, unless it is not finite."""
        if math.isfinite(value):
            self._values.append(value)
            del self._values[: -_MOST if len(self._values) > 2 * _MOST else 0]

    def mean(self) -> tuple[float, float] | None:
        """Return the mean and its standard error; None of too few."""
        values = torch.tensor(self._values[len(self._values) // 2 :], dtype=torch.float64)
        if len(values) < _FEWEST:
            return None
        size = len(values) // _BATCHES
        means = values[: size * _BATCHES].view(_BATCHES, size).mean(1)
        return float(values.mean()), float(means.std()) / _BATCHES**0.5


class EffectiveParameters:
    """The sum of ``E[(θ - c) grad U_data] / τ`` over elements, c the mean of past positions.

    With ``H = H_data + H_prior`` and draws of covariance C it is ``tr(H_data C) / τ``: for draws
    from a Gaussian posterior the effective number of parameters ``tr(H_data H^-1)`` (MacKay 1992),
    and more if draws are too hot (docs/theory.md, section 6).
    """

    def __init__(self) -> None:
        """Start without observations."""
        self._centre: Tensor | None = None
        self._looks = 0
        self._work = Series()

    def add(self, position: Tensor | None, gradient: Tensor | None) -> None:
        """Add the observed elements of a position and the gradient of the loss there."""
        if position is None or gradient is None:
            return
        position = position.detach()
        if self._centre is None or self._centre.shape != position.shape:
            self._centre, self._looks, self._work = position.clone(), 1, Series()
            return
        self._work.add(float(torch.dot(position - self._centre, gradient)))
        self._looks += 1
        self._centre = self._centre.lerp(position, max(1 / self._looks, 1 / _SPAN))

    def mean(self) -> tuple[float, float] | None:
        """Return the sum, in units of the loss, and its standard error; None if unknown."""
        return self._work.mean()
