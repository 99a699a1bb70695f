"""Samplers on Gaussians, where each is a linear recursion whose law is known: what `law` and `invariance` run over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.kernels import Kernel
from langevin.kernels.samplers import adamax_sgld, adaptive_sghmc, asgld, asgld_full, msgld, psgld, sghmc, sgld, sgrld
from langevin.targets import gaussian
from langevin.targets.gradients import GradientFn, full, noisy
from langevin_paper.check import recursions
from langevin_paper.check.recursions import Matrix, Recursion

__all__ = ["GAUSSIANS", "UNKNOWN", "Inertial", "Linear", "adaptive", "corrected", "linear_samplers", "published"]

STILL = 1 - 2**-53  # the largest smoothing factor below 1: an average that stands still
SMALL_ROOT, SMALL = 1e-5, 1e-8  # λ inside and outside of a root
UNKNOWN = {
    "adadelta_sgld": "its bias is a ratio of averages of squares, which is linear in nothing",
    "amagold": "its law is the target whatever the step; off Gaussians and under noise that is tested by quadrature",
    "sglrw": "a sign is linear in nothing; its exact law on a lattice is tested by the transition matrix",
    "sgnht": "its friction follows the square of the velocity that it slows",
    "sgrhmc": "its metric moves with the position",
}
"""Samplers of `SAMPLERS` of which no exact law is known, and why."""


def _rotated(curvatures: Matrix) -> Matrix:
    """Return a precision with these curvatures and no axis of its own: a reflection of the diagonal."""
    normal = np.arange(1.0, len(curvatures) + 1)
    reflection = np.eye(len(curvatures)) - 2 * np.outer(normal, normal) / (normal @ normal)
    return reflection @ np.diag(curvatures) @ reflection


GAUSSIANS: dict[str, Matrix] = {
    "curvatures .3 to 10": np.diag([0.3, 1.0, 10.0]),
    "correlation .9": np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]])),
    "5-D, condition 100": _rotated(np.logspace(-1, 1, 5)),
}
"""Precisions by name."""


@dataclass(frozen=True)
class Linear:
    """A sampler on a Gaussian.

    Args:
        name: of the sampler and its form.
        kernel: the sampler.
        recursion: its equations there, as matrices.
        precision: of the Gaussian.
        frozen: the scales that it remembers besides, and which stand still.
        gradient_noise: standard deviation of the noise added to the gradient.
    """

    name: str
    kernel: Kernel
    recursion: Recursion
    precision: Matrix
    frozen: tuple[Tensor, ...] = ()
    gradient_noise: float = 0.0

    @property
    def dim(self) -> int:
        """Elements of theta."""
        return len(self.precision)

    def gradient_fn(self, seed: int, chains: range) -> GradientFn:
        """Return the gradient of the Gaussian."""
        exact = full(gaussian(torch.as_tensor(np.linalg.inv(self.precision))))
        like = torch.zeros(len(chains), self.dim, dtype=torch.float64)
        return noisy(exact, self.gradient_noise, seed=seed, chains=chains, like=like)


@dataclass(frozen=True)
class Inertial(Linear):
    """An invariant form on a Gaussian, whose law is known in closed form.

    Args:
        settings: eps, a, beta and scale, as the equations take them.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def law(self) -> Matrix:
        """The covariance of (theta, v, e)."""
        return recursions.velocity_law(self.precision, **self.settings)

    @property
    def strides(self) -> tuple[Matrix, float]:
        """What the velocities are multiplied by in a step."""
        return recursions.strides(self.dim, **self.settings)


def adaptive(precision: Matrix, name: str = "msgld", *, share: float, a: float = 10.0, beta: float = 0.9) -> Inertial:
    """Return an invariant form at a share of the largest stable step, ``k (2 ε + h^2 G) < 4``; a scale G is given and frozen."""
    d = len(precision)
    diagonal = np.diag(np.resize([2.0, 0.5, 1.0], d))
    scale = {"msgld": np.eye(d), "asgld": diagonal, "adamax_sgld": diagonal, "asgld_full": _rotated(np.diag(diagonal))}[name]
    per_step = 2 * np.eye(d) + 2 * a * (1 - beta) / (1 + beta) * scale
    eps = share * 4 / float(np.abs(np.linalg.eigvals(precision @ per_step)).max())
    learnt: dict[str, Any] = {"bias_factor": a, "betas": (beta, 0.999), "invariant": True, "adapt_steps": 1}
    inverse = np.linalg.inv(scale)
    kernel, frozen = {
        "msgld": lambda: (msgld(eps, bias_factor=a, beta=beta, invariant=True), ()),
        "asgld": lambda: (asgld(eps, eps_root=SMALL_ROOT, **learnt), (np.diag(inverse) ** 2 - SMALL_ROOT,)),
        "adamax_sgld": lambda: (adamax_sgld(eps, eps=SMALL, **learnt), (np.diag(inverse) - SMALL,)),
        "asgld_full": lambda: (asgld_full(eps, eps_root=SMALL_ROOT, **learnt), (inverse @ inverse - SMALL_ROOT * np.eye(d),)),
    }[name]()
    settings: dict[str, Any] = {"eps": eps, "a": a, "beta": beta, "scale": scale}
    law, stored = recursions.invariant(precision, **settings), tuple(map(torch.as_tensor, frozen))
    return Inertial(f"{name}, invariant, {share:g} of the limit", kernel, law, precision, stored, settings=settings)


def published(precision: Matrix, *, share: float = 0.2, a: float = 1.0, beta: float = 0.9) -> Linear:
    """Return published MSGLD with a step of a share of 1 / k, k the largest curvature."""
    eps = share / float(np.linalg.eigvalsh(precision).max())
    law = recursions.momentum(precision, eps=eps, a=a, beta=beta)
    return Linear("msgld, published", msgld(eps, bias_factor=a, beta=beta), law, precision)


def corrected(precision: Matrix, *, share: float = 0.3, a: float = 30.0, beta: float = 0.9, ratio: float = 5.0) -> Linear:
    """Return the invariant MSGLD that absorbs gradient noise of a variance of `ratio` times the stiffest curvature."""
    d, stiffest = len(precision), float(np.linalg.eigvalsh(precision).max())
    per_step = 2 + 2 * a * (1 - beta) / (1 + beta)
    eps, covariance = share * 4 / (stiffest * per_step), ratio * stiffest * np.eye(d)
    friction = covariance @ np.linalg.inv(2 * np.eye(d) + 0.5 * eps * per_step * (covariance - precision))
    s = (ratio * stiffest) ** 0.5
    law = recursions.invariant(precision, eps=eps, a=a, beta=beta, s=s, friction=friction)
    noise = torch.as_tensor(covariance), torch.as_tensor(precision)
    kernel = msgld(eps, bias_factor=a, beta=beta, invariant=True, noise=noise)
    return Linear(f"msgld, corrected, noise {ratio:g} times the curvature", kernel, law, precision, gradient_noise=s)


def linear_samplers(precision: Matrix) -> Iterator[Linear]:
    """Yield the samplers with a known law: those that are linear, and those whose averages of squares stand still."""
    d, stiffest = len(precision), float(np.linalg.eigvalsh(precision).max())
    eps = 0.5 / stiffest
    yield Linear("sgld", sgld(eps), recursions.overdamped(precision, eps=eps), precision)
    noise = stiffest**0.5  # half as much heat again, where the step is small
    law = recursions.overdamped(precision, eps=eps, tau=0.5, s=noise)
    name = "sgld, noisy gradients, temperature .5"
    yield Linear(name, sgld(eps, temperature=0.5), law, precision, gradient_noise=noise)
    yield Linear("sghmc", sghmc(eps, beta=0.9), recursions.hamiltonian(precision, eps=eps, beta=0.9), precision)
    yield published(precision)
    for name in ("msgld", "asgld", "adamax_sgld"):
        yield adaptive(precision, name, share=0.5)
    yield corrected(precision)
    law = recursions.overdamped(precision, eps=0.1, metric=np.linalg.inv(precision))
    matrix = torch.as_tensor(precision)
    yield Linear("sgrld, its metric the precision", sgrld(0.1, metric=lambda theta: matrix, correction=False), law, precision)
    scale = np.resize([2.0, 0.5, 1.0], d)
    law = recursions.overdamped(precision, eps=0.5 * eps, metric=np.diag(scale))
    frozen = (torch.as_tensor((1 / scale - SMALL_ROOT) ** 2),)
    yield Linear("psgld, V standing still", psgld(0.5 * eps, beta=STILL, eps=SMALL_ROOT), law, precision, frozen)
    law = recursions.momentum(precision, eps=0.2 * eps, a=1.0, beta=0.9, scale=np.diag(scale))
    frozen = (torch.as_tensor(scale**-2.0 - SMALL_ROOT),)
    yield Linear("asgld, published, V standing still", asgld(0.2 * eps, betas=(0.9, STILL)), law, precision, frozen)
    yield from _scale_adapted(precision, np.diag(scale), 0.05 * eps, beta=0.9)


def _scale_adapted(precision: Matrix, scale: Matrix, eps: float, beta: float) -> Iterator[Linear]:
    """Yield both forms of scale-adapted SGHMC, whose V stands still."""
    stored = torch.as_tensor(np.diag(scale) ** -2.0 - SMALL_ROOT)
    settings: dict[str, Any] = {"beta": beta, "eps_root": SMALL_ROOT, "adapt_steps": 1}
    frozen = (torch.ones_like(stored), torch.ones_like(stored), stored)
    law = recursions.hamiltonian(precision, eps=eps, beta=beta, scale=scale, taken=eps)
    yield Linear("adaptive_sghmc, published, V standing still", adaptive_sghmc(eps, **settings), law, precision, frozen)
    large = (1 + beta) / float(np.abs(np.linalg.eigvals(precision @ scale)).max())  # half the limit of stability
    law, kernel = recursions.baoab(precision, eps=large, beta=beta, scale=scale), adaptive_sghmc(large, invariant=True, **settings)
    yield Linear("adaptive_sghmc, invariant, V standing still", kernel, law, precision, frozen)
