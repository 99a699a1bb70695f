"""TEMPORARY: the contract of `lv.Model`, until the branch `models` is merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

torch.distributions.Distribution.set_default_validate_args(False)


class Constraint:
    def __init__(self, kind: str, *shape: int) -> None:
        self.kind, self.shape = kind, shape
        self.size = math.prod(shape) - (kind == "simplex")

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "real":
            return x.reshape(self.shape), torch.zeros_like(x).sum()
        if self.kind == "positive":
            return x.exp().reshape(self.shape), x.sum()
        if self.kind == "unit":
            return x.sigmoid().reshape(self.shape), (torch.nn.functional.logsigmoid(x) + torch.nn.functional.logsigmoid(-x)).sum()
        if self.kind == "ordered":
            return torch.cat([x[:1], x[:1] + x[1:].exp().cumsum(-1)]), x[1:].sum()
        z = (x - torch.arange(self.size, 0, -1, dtype=x.dtype).log()).sigmoid()
        rest = torch.cat([torch.ones_like(z[:1]), (1 - z).cumprod(-1)])
        share = torch.cat([z, torch.ones_like(z[:1])])
        return rest * share, (rest[:-1].log() + z.log() + (1 - z).log()).sum()


def real(*shape: int) -> Constraint:
    return Constraint("real", *shape)


def positive(*shape: int) -> Constraint:
    return Constraint("positive", *shape)


def unit(*shape: int) -> Constraint:
    return Constraint("unit", *shape)


def ordered(*shape: int) -> Constraint:
    return Constraint("ordered", *shape)


def simplex(*shape: int) -> Constraint:
    return Constraint("simplex", *shape)


class Model:
    def __init__(self, log_likelihood: Callable[..., Tensor], parameters: dict[str, Constraint], prior: dict[str, Any] | None = None) -> None:
        self.function, self.parameters, self.prior = log_likelihood, parameters, prior or {}
        self.dim = sum(constraint.size for constraint in parameters.values())

    @classmethod
    def log_density(cls, function: Callable[..., Tensor], parameters: dict[str, Constraint], prior: dict[str, Any] | None = None) -> Model:
        return cls(function, parameters, prior)

    def constrain(self, position: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        start, values, jacobian = 0, {}, position.new_zeros(())
        for name, constraint in self.parameters.items():
            values[name], log_det = constraint(position[start : start + constraint.size])
            start, jacobian = start + constraint.size, jacobian + log_det
        return values, jacobian

    def energy(self, position: Tensor, data: dict[str, Tensor] | None = None) -> Tensor:
        values, jacobian = self.constrain(position)
        logs = self.function(values, **(data or {})).sum() + jacobian
        return -sum((prior.log_prob(values[name]).sum() for name, prior in self.prior.items()), logs)
