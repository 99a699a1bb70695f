"""The exact law of a sampler on a Gaussian, all dimensions at once: its own update, read as a linear recursion."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.kernels import Kernel
from langevin.targets import Evaluation

__all__ = ["Law", "law_of"]

_FROZEN = ("square_average", "metric_average")  # memories that a warm-up learns, and that stand still afterwards


class Law(NamedTuple):
    """The stationary covariance of theta, and that of long means times their length: both (dim, dim)."""

    covariance: Tensor
    spectrum: Tensor

    def errors(self, axes: Tensor, variances: Tensor) -> Tensor:
        """Return the relative errors of the variances along axes, the columns of a matrix."""
        return (axes * (self.covariance @ axes)).sum(0) / variances - 1

    def steps_per_draw(self, axes: Tensor) -> Tensor:
        """Return the integrated autocorrelation times along axes."""
        return (axes * (self.spectrum @ axes)).sum(0) / (axes * (self.covariance @ axes)).sum(0)


def law_of(
    kernel: Kernel, hessian: Tensor, noise: Tensor, *, period: int | None = None, squares: Tensor | None = None
) -> Law | None:
    """Solve for the law on N(0, hessian^-1) with gradient noise of covariance `noise`; None where the step is unstable.

    Args:
        kernel: a sampler whose update is linear once what it learns stands still.
        hessian: (dim, dim), float64.
        noise: (dim, dim), float64.
        period: the steps of an epoch, over which the noise cancels; None for white noise.
        squares: what a scale has learnt by then: mean squared gradients, (dim,).
    """
    dim, memory = len(hessian), kernel.state_names
    held = [name in _FROZEN for name in memory]
    count = 1 + held.count(False)  # parts of z: theta and the memories that are linear
    inputs = count + 1 + kernel.traits.num_noises
    parts = torch.eye(inputs * dim, dtype=torch.float64).reshape(-1, inputs, dim).unbind(1)
    given = iter(parts[1:count])
    known = tuple(squares.expand(inputs * dim, dim) if is_held else next(given) for is_held in held)  # type: ignore[union-attr]
    at = kernel.inputs(10**9)._replace(adapting=0.0)
    moved, after = kernel.update(
        parts[0], Evaluation(torch.tensor(torch.nan), parts[count]), torch.stack(parts[count + 1 :]), known, at
    )
    linear = [part for part, is_held in zip(after, held, strict=True) if not is_held]
    response = torch.cat([moved, *linear], -1).mT
    into, normals = response[:, count * dim : (count + 1) * dim], response[:, (count + 1) * dim :]
    transition = response[:, : count * dim].clone()
    transition[:, :dim] += into @ hessian
    if not bool(torch.linalg.eigvals(transition).abs().max() < 1):
        return None
    thermal, heat = normals @ normals.mT, into @ noise @ into.mT
    inverse = torch.linalg.inv(torch.eye(len(transition), dtype=torch.float64) - transition)
    if period is None:
        covariance, driven = _stationary(transition, thermal + heat), thermal + heat
    else:  # noise that cancels over an epoch has no part in long means
        covariance = _stationary(transition, thermal) + _cancelling(transition, _stationary(transition, heat), inverse, period)
        driven = thermal
    spectrum = inverse @ driven @ inverse.mT
    return Law(covariance[:dim, :dim], spectrum[:dim, :dim])


def _stationary(transition: Tensor, noise: Tensor) -> Tensor:
    """Solve S = A S A^T + B by doubling: S_2j = S_j + A^j S_j A^jT (Anderson and Moore 1979)."""
    total, power = noise, transition
    for _ in range(60):
        step = power @ total @ power.mT
        total, power = total + step, power @ power
        if float(step.abs().max()) < 1e-14 * float(total.abs().max()):
            break
    return total


def _cancelling(transition: Tensor, white: Tensor, inverse: Tensor, period: int) -> Tensor:
    """Turn the law under white noise into that under noise that cancels over epochs (`langevin.adaptation.stationary`)."""
    eye = torch.eye(len(transition), dtype=torch.float64)
    power = torch.linalg.matrix_power(transition, period)
    total = inverse - transition @ (eye - power) @ inverse @ inverse / period - eye
    lagged = total @ white / (period - 1)
    return white - lagged - lagged.mT
