"""The stationary distribution of a sampler along one direction, computed from its update."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.kernels import Kernel, StepInputs
from langevin.kernels.drifts import Tensors
from langevin.kernels.preconditioners import Preconditioner
from langevin.targets import Evaluation

__all__ = [
    "SMALL",
    "Direction",
    "LinearProcess",
    "relative_error",
    "settled_squares",
    "small_step_variance",
    "spectral_radius",
    "stationary_error",
    "without_metric",
]

NUMBER = "give step_size as a number"
SMALL = 1e-9  # step size times curvature of a small step; rounding then contributes 1e-7


class Direction(NamedTuple):
    """Curvature and gradient noise along one direction, in float64."""

    curvature: float
    noise: float


def stationary_error(
    kernel: Kernel,
    step_size: float,
    *,
    curvature: float,
    noise: float = 0.0,
    steps_per_epoch: float | None = None,
) -> float:
    """Return the relative error of the stationary variance in one dimension.

    The reference has small steps and exact gradients. Only for samplers without square averages.
    Infinite if the step is unstable.

    Args:
        kernel: the sampler; its own step size is ignored.
        step_size: epsilon.
        curvature: of U.
        noise: variance of the gradient.
        steps_per_epoch: see `find_step_size`.

    Example:
        >>> from langevin.kernels.samplers import sgld
        >>> kernel = sgld(step_size=1.0)
        >>> round(stationary_error(kernel, 0.1, curvature=1.0), 4)  # 1 / (1 - 0.1 / 2) - 1
        0.0526
    """
    flat, _ = without_metric(kernel)
    one = torch.ones(1, 1, dtype=torch.float64)

    def probe(at: float) -> LinearProcess:
        return LinearProcess.of(flat, at, one, one)

    reference, direction = (
        small_step_variance(kernel, probe, curvature),
        Direction(curvature, noise),
    )
    return float(relative_error(probe(step_size), reference, direction, steps_per_epoch)[0])


def without_metric(kernel: Kernel) -> tuple[Kernel, Preconditioner]:
    """Return the kernel with the identity as its metric, and that metric."""
    flat, preconditioner = kernel.without_metric()
    if not flat.traits.elementwise:
        what = f"an update that is elementwise but for its metric; {NUMBER}"
        raise needs("find_step_size", "kernel", what, kernel.name, TypeError)
    return flat, preconditioner


def settled_squares(
    update: Callable[[Tensors, Tensor], Tensors], memory: tuple[str, ...], squares: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the limits of the averages of squares for given mean squares; None for linear states.

    An average of squares is even in g, and its limit is the fixed point of its update; so is that
    of the largest recent gradient.
    """
    gradient, zeros = squares**0.5, tuple(torch.zeros_like(squares) for _ in memory)
    ones = tuple(torch.ones_like(squares) for _ in memory)
    up, down, carried = update(zeros, gradient), update(zeros, -gradient), update(ones, gradient)
    is_even = [bool((a == b).all() and (a != 0).any()) for a, b in zip(up, down, strict=True)]
    averages = tuple(
        a / (1 - (c - a)) if even else a for a, c, even in zip(up, carried, is_even, strict=True)
    )
    again = update(averages, gradient)
    settled = (
        x if torch.allclose(x, y) else a for x, y, a in zip(averages, again, up, strict=True)
    )
    return tuple(value if even else None for value, even in zip(settled, is_even, strict=True))


class LinearProcess(NamedTuple):
    """The linear recursion of z = (theta, state...) along one direction per chain."""

    carried: Tensor  # coefficients of z, without the gradient: (chains, n, n)
    gradient: Tensor  # of the gradient: (chains, n, 1)
    noises: Tensor  # of each standard normal: (chains, n, noises)

    @classmethod
    def of(
        cls, kernel: Kernel, step_size: float, direction: Tensor, squares: Tensor
    ) -> LinearProcess:
        """Apply `kernel.update` to unit vectors, with adaptive metrics at their limits."""
        # Step 1, since step 0 may differ. A schedule of the bias factor has its first value.
        inputs, nowhere = kernel.inputs(1, step_size=step_size), torch.tensor(torch.nan)

        def update(
            position: Tensor,
            gradient: Tensor,
            noises: list[Tensor],
            memory: Tensors,
            at: StepInputs,
        ) -> tuple[Tensor, Tensors]:
            return kernel.update(
                position, Evaluation(nowhere, gradient), torch.stack(noises), memory, at
            )

        def averages(memory: Tensors, gradient: Tensor) -> Tensors:
            silent = [torch.zeros_like(gradient)] * kernel.traits.num_noises
            return update(
                torch.zeros_like(gradient), gradient, silent, memory, inputs._replace(adapting=1.0)
            )[1]

        frozen = settled_squares(averages, kernel.state_names, squares)
        linear = [k for k, value in enumerate(frozen) if value is None]
        if len(linear) == len(frozen):  # all directions behave alike
            direction = direction.new_ones(1, 1)
        num_inputs = 1 + len(linear) + 1 + kernel.traits.num_noises

        def respond(weights: list[float]) -> Tensor:
            position, *remembered, gradient = (
                weight * direction for weight in weights[: 2 + len(linear)]
            )
            given = iter(remembered)
            memory = tuple(next(given) if value is None else value for value in frozen)
            noises = [weight * direction for weight in weights[2 + len(linear) :]]
            moved, after = update(position, gradient, noises, memory, inputs._replace(adapting=0.0))
            return torch.stack(
                [(part * direction).sum(-1) for part in (moved, *(after[k] for k in linear))], -1
            )

        columns = torch.stack(
            [respond([float(k == j) for k in range(num_inputs)]) for j in range(num_inputs)], -1
        )
        mixed = [1.0 + k for k in range(num_inputs)]
        if not torch.allclose(
            respond(mixed), columns @ columns.new_tensor(mixed), rtol=1e-9, atol=0.0
        ):
            what = f"an update that is linear but for averages of squares; {NUMBER}"
            raise needs("find_step_size", "kernel", what, kernel.name, TypeError)
        size = 1 + len(linear)
        return cls(columns[..., :size], columns[..., size : size + 1], columns[..., size + 1 :])

    def transition(self, curvature: float) -> Tensor:
        """Return the transition matrix A for a curvature."""
        first = torch.eye(self.carried.shape[-1], dtype=self.carried.dtype)[:1]
        return self.carried + curvature * self.gradient @ first

    def variance(self, direction: Direction, steps_per_epoch: float | None) -> Tensor:
        """Return the stationary variance of theta, (chains,); infinite if unstable."""
        transition = self.transition(direction.curvature)
        noise = self.gradient @ self.gradient.mT * direction.noise
        thermal = _lyapunov(transition, self.noises @ self.noises.mT)[..., 0, 0]
        noisy = _lyapunov(transition, noise)
        if steps_per_epoch is not None:
            noisy = _without_replacement(transition, noisy, max(2, round(steps_per_epoch)))
        total = thermal + noisy[..., 0, 0]
        return torch.where(spectral_radius(transition) < 1, total, math.inf)


def _lyapunov(transition: Tensor, noise: Tensor) -> Tensor:
    """Solve S = A S A^T + B."""
    size = transition.shape[-1]
    square = torch.einsum("...ij,...kl->...ikjl", transition, transition).reshape(
        *transition.shape[:-2], size**2, size**2
    )
    eye = torch.eye(size**2, dtype=transition.dtype)
    solution, _ = torch.linalg.solve_ex(eye - square, noise.reshape(*noise.shape[:-2], size**2, 1))
    return solution.reshape(noise.shape)


def _without_replacement(transition: Tensor, white: Tensor, period: int) -> Tensor:
    """Convert the covariance under independent noise to that under noise that cancels over epochs.

    Two steps k < T apart share an epoch with probability 1 - k / T, so their correlation is
    ``c_k = -(1 - k / T) / (T - 1)``. The variance is ``S + sum_k c_k (A^k S + S A^kT)``; the
    geometric sum is in closed form.
    """
    eye = torch.eye(transition.shape[-1], dtype=transition.dtype)
    inverse = torch.linalg.solve_ex(eye - transition, eye.expand_as(transition))[0]
    power = torch.linalg.matrix_power(transition, period)
    # The sum of (1 - k / T) A^k, k = 1 ... T - 1.
    total = inverse - transition @ (eye - power) @ inverse @ inverse / period - eye
    lagged = total @ white / (period - 1)
    return white - lagged - lagged.mT


def spectral_radius(matrix: Tensor) -> Tensor:
    """Return the largest modulus of an eigenvalue."""
    return torch.linalg.eigvals(matrix).abs().amax(-1)


def small_step_variance(
    kernel: Kernel, probe: Callable[[float], LinearProcess], curvature: float
) -> Tensor:
    """Return the variance for small steps and exact gradients, (chains,)."""
    if kernel.effective_temperature is not None:
        return torch.tensor([kernel.effective_temperature / curvature], dtype=torch.float64)
    return probe(SMALL / curvature).variance(Direction(curvature, 0.0), None)


def relative_error(
    process: LinearProcess, reference: Tensor, direction: Direction, steps_per_epoch: float | None
) -> Tensor:
    """Return the relative error of the variance, (chains,)."""
    return process.variance(direction, steps_per_epoch) / reference - 1
