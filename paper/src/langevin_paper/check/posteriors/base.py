"""What a posterior of the reference is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.targets import Model

__all__ = ["Data", "Parameters", "KnownPosterior", "column"]

Data = Mapping[str, Any]  # a data set as posteriordb writes it: names to numbers and (nested) lists
Parameters = dict[str, Tensor]  # names to values in the constrained space, for one draw


def _as_they_are(parameters: Parameters) -> Parameters:
    return parameters


class KnownPosterior(NamedTuple):
    """A model, its data, and the quantities whose moments the reference knows."""

    model: Model
    data: dict[str, Tensor] | None = None  # rows for `sample(model, data=...)`; None where the density has its data inside
    reported: Callable[[Parameters], Parameters] = _as_they_are  # from one draw's parameters to the reference's


def column(data: Data, name: str) -> Tensor:
    """Return numbers of a data set as float64."""
    return torch.as_tensor(data[name], dtype=torch.float64)
