"""Gradient noise that a kernel corrects for: its covariance Σ, and the signal τ K beside it.

The second moment of a noisy gradient, the matrix V of equation (2), has two parts:
``V = E[g g^T] = Σ + τ K``, where K is the mean Hessian (by parts, on any target). Both are needed
for a step that is exact whatever the noise: a friction D that removes from the velocity exactly
the energy that the noise adds,

    ``D = Σ (2 τ I + S (Σ - τ K) / 2)^-1``,    S = h^2 G + 2 ε    (`kernels.Invariant`;
    docs/theory.md, section 6).

Here stand the forms that Σ and τ K may have, the *variance* and the *signal*; the kernel brings τ
and S.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from typing_extensions import override

from langevin.checks import check_field, needs

__all__ = [
    "KINDS",
    "OPEN",
    "DenseNoise",
    "DiagonalNoise",
    "FollowedNoise",
    "GivenFriction",
    "GradientNoise",
    "LowRankNoise",
    "OpenNoise",
    "as_noise",
    "is_open",
    "noise_shapes",
]

Damped = Callable[[Tensor, Tensor], Tensor]
"""(vector, x) -> ``(2 τ I + S x / 2)^-1 vector`` for a diagonal x."""


@dataclass(frozen=True, eq=False)
class GradientNoise(ABC):
    """Σ and τ K, in the coordinates in which a sampler steps."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors, where the noise is estimated during the run."""
        return ()

    @property
    def is_elementwise(self) -> bool:
        """Whether D is diagonal."""
        return True

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The estimated tensors, for a run's folder."""
        return tuple(
            value
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), Tensor)
        )

    def like(self, who: str, position: Tensor) -> Self:
        """Return the same noise in the dtype and on the device of positions (..., dim)."""
        if self.tensors and self.tensors[0].shape[0] != position.shape[-1]:
            raise needs(
                who,
                "noise",
                f"{position.shape[-1]} dimensions, those of a position",
                self.tensors[0].shape[0],
            )
        changed = {
            entry.name: value.to(position)
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), Tensor)
        }
        return replace(self, **changed)

    def start(self, position: Tensor) -> tuple[Tensor, ...]:
        """Return the state before the first step."""
        return tuple(torch.zeros_like(position) for _ in self.state_names)

    def read(self, state: tuple[Tensor, ...], seen: Any, most: Tensor) -> tuple[Tensor, ...]:
        """Return the estimates that `drag` takes, after `seen` gradients; signals up to `most`."""
        return state

    def follow(
        self,
        state: tuple[Tensor, ...],
        read: tuple[Tensor, ...],
        gradient: Tensor,
        move: Tensor,
        started: Any,
        seen: Any,
    ) -> tuple[Tensor, ...]:
        """Return the state after a step from the estimates, the gradient and ``Δθ / τ``."""
        return state

    @property
    def variances(self) -> Tensor | None:
        """The diagonal of Σ, (dim,), where it is known before a run."""
        return None

    @abstractmethod
    def drag(self, state: tuple[Tensor, ...], speed: Tensor, damped: Damped) -> Tensor:
        """Return ``D speed``."""

    @abstractmethod
    def describe(self) -> str:
        """Return a short text about Σ."""


@dataclass(frozen=True, eq=False)
class OpenNoise(GradientNoise):
    """A noise that `sample` estimates before it runs."""

    @override
    def drag(self, state: tuple[Tensor, ...], speed: Tensor, damped: Damped) -> Tensor:
        raise needs(
            "kernel",
            "noise",
            'a noise that is known, to step by hand: "corrected" leaves it to sample()',
            "corrected",
        )

    @override
    def describe(self) -> str:
        return "to be estimated"


OPEN = OpenNoise()


def is_open(noise: GradientNoise | None) -> bool:
    """Return whether a noise is still to be estimated; true of copies and pickles of `OPEN`."""
    return isinstance(noise, OpenNoise)


@dataclass(frozen=True, eq=False)
class DiagonalNoise(GradientNoise):
    """``Σ = diag(variance)``, ``τ K = diag(signal)``, (dim,) each."""

    variance: Tensor
    signal: Tensor

    @property
    @override
    def variances(self) -> Tensor:
        return self.variance

    @override
    def drag(self, state: tuple[Tensor, ...], speed: Tensor, damped: Damped) -> Tensor:
        return self.variance * damped(speed, self.variance - self.signal)

    @override
    def describe(self) -> str:
        ratio = self.variance / self.signal
        return (
            f"{float(ratio.min()):.2g} to {float(ratio.max()):.2g} times the signal, "
            f"in each of {len(ratio)} directions"
        )


@dataclass(frozen=True, eq=False)
class DenseNoise(GradientNoise):
    """Full matrices Σ and τ K for a sampler whose S is a number; `DenseNoise.of` makes one.

    ``Σ - τ K = Q diag(excess) Q^T``, so that ``D = (Σ Q) (2 τ + S excess / 2)^-1 Q^T`` for any S.
    """

    vectors: Tensor  # Q
    excess: Tensor
    pushed: Tensor  # Σ Q

    @classmethod
    def of(cls, variance: Tensor, signal: Tensor) -> DenseNoise:
        """Take Σ and τ K, (dim, dim) each."""
        excess, vectors = torch.linalg.eigh(variance.double() - signal.double())
        return cls(
            *(tensor.to(variance) for tensor in (vectors, excess, variance.double() @ vectors))
        )

    @property
    @override
    def is_elementwise(self) -> bool:
        return False

    @property
    @override
    def variances(self) -> Tensor:
        return (self.pushed * self.vectors).sum(-1)

    @override
    def drag(self, state: tuple[Tensor, ...], speed: Tensor, damped: Damped) -> Tensor:
        return linear(damped(speed @ self.vectors, self.excess), self.pushed)

    @override
    def describe(self) -> str:
        return f"a matrix of {len(self.excess)} by {len(self.excess)}"


@dataclass(frozen=True, eq=False)
class LowRankNoise(GradientNoise):
    """A diagonal plus a few orthonormal directions, for a sampler whose S is a number.

    D is the diagonal's, changed along each direction q to what q's own numbers give: exact where
    the diagonal is alike over the elements of q, as it is in a scale that makes the signal one.
    """

    variance: Tensor  # (dim,)
    signal: Tensor  # (dim,)
    vectors: Tensor  # (dim, rank)
    along: Tensor  # variance along each of them, (rank,)
    signal_along: Tensor  # (rank,)

    @property
    @override
    def is_elementwise(self) -> bool:
        return False

    @property
    @override
    def variances(self) -> Tensor:
        return self.variance + (self.vectors * self.vectors) @ self.along

    @override
    def drag(self, state: tuple[Tensor, ...], speed: Tensor, damped: Damped) -> Tensor:
        everywhere = self.variance * damped(
            torch.ones_like(self.variance), self.variance - self.signal
        )
        here = self.along * damped(torch.ones_like(self.along), self.along - self.signal_along)
        change = here - everywhere @ (self.vectors * self.vectors)
        return everywhere * speed + linear(speed @ self.vectors * change, self.vectors)

    @override
    def describe(self) -> str:
        ratio = torch.cat([self.variance / self.signal, self.along / self.signal_along])
        return (
            f"{float(ratio.min()):.2g} to {float(ratio.max()):.2g} times the signal, "
            f"{len(self.along)} directions of their own"
        )


@dataclass(frozen=True)
class FollowedNoise(GradientNoise):
    """A diagonal estimated during training, from each gradient and its prediction.

        ``Σ' = Σ + r ((g - ĝ)^2 / 2 - Σ)``,    ``V' = V + r (g^2 - V)``,    ``ĝ' = g + K Δθ``,
        ``τ K = V - Σ``

    - The predicted gradient ĝ is the last one plus the change K Δθ that the curvature predicts for
      the move Δθ: on a Gaussian ``g - ĝ`` is the difference of two noises. Without that
      change the signal of a long step counts as noise (at S K = 0.5 the variance of θ is 14 % too
      small, with it 0.3 %).
    - The rate is ``r = (1 - β) / (1 - β^((t + 3) / 4))`` for the t-th gradient, in the beginning 4
      / (t + 3): what was measured on the way to the mode decays as the fourth power of time.
      (From 1000 standard deviations away the variance is right after 1000 steps; with averages of
      all t, or that start at zero, it is not after 4000.)
    - ``V - Σ`` is kept below ``2 τ / S``, half of what a stable step can have: on the way to the
      mode ``g^2`` is not stationary.
    - ``V - Σ`` is known to about ``σ = Σ sqrt(r / 2)``, the error of the mean product of successive
      noises. What is not clearly above that is left out, ``x / (1 + (x / 2.5 σ)^-4)`` for x: a
      signal made of chance would cool where noise is large.

    Args:
        smoothing: β, in [0, 1).
        is_given: Σ is what the caller has put into the state, and stays as it is.
    """

    smoothing: float = 0.999
    is_given: bool = False

    def __post_init__(self) -> None:
        check_field(self, "FollowedNoise", "smoothing", "0 <= smoothing < 1", lambda v: 0 <= v < 1)

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("noise_variance", "gradient_square", "last_gradient")

    @override
    def follow(
        self,
        state: tuple[Tensor, ...],
        read: tuple[Tensor, ...],
        gradient: Tensor,
        move: Tensor,
        started: Any,
        seen: Any,
    ) -> tuple[Tensor, ...]:
        (variance, square, last), (_, signal, most) = state, read
        if not self.is_given:
            surprise = (
                gradient - last
            )  # the first gradient surprises by all of it, and is forgotten with the second
            variance = variance + self.rate(seen + (1 - started)) * (
                0.5 * surprise * surprise - variance
            )
        square = square + self.rate(seen + 1) * (gradient * gradient - square)
        return variance, _least(square, variance + most), gradient + signal * move

    def rate(self, count: Any) -> Any:
        """Return the weight of the last of `count` numbers in their average."""
        return (1 - self.smoothing) / (1 - self.smoothing ** (0.25 * count + 0.75))

    @override
    def read(self, state: tuple[Tensor, ...], seen: Any, most: Tensor) -> tuple[Tensor, ...]:
        variance, square, _ = state
        found = (square - variance).maximum(0.0 * square)
        chance = variance / (found + _TINY)
        doubt = chance * chance * self.rate(seen + 1)
        return variance, _least(found / (1.0 + 10.0 * (doubt * doubt)), most), most

    @override
    def drag(self, state: tuple[Tensor, ...], speed: Tensor, damped: Damped) -> Tensor:
        variance, signal, _ = state
        return variance * damped(speed, variance - signal)

    @override
    def describe(self) -> str:
        how = "from micro-batches" if self.is_given else "from successive gradients"
        return f"diagonal, followed {how} with smoothing {self.smoothing:g}"


@dataclass(frozen=True)
class GivenFriction(GradientNoise):
    """A friction ``D p`` that the optimizer writes into the state before each step.

    D is diagonal in a basis other than the parameter's, which an elementwise step cannot use
    (`langevin.optim.kronecker`).

    Args:
        estimator: what Σ is estimated from.
    """

    estimator: str = "successive gradients"

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("friction",)

    @override
    def drag(self, state: tuple[Tensor, ...], speed: Tensor, damped: Damped) -> Tensor:
        return state[0]

    @override
    def describe(self) -> str:
        return f"in the Kronecker eigenbasis, followed from {self.estimator}"


_TINY = 1e-30  # a signal of zero is no reason for a NaN


def _least(one: Tensor, other: Tensor) -> Tensor:
    """Return the smaller of two, in operators that the fused engine has."""
    return -(-one).maximum(-other)


KINDS: dict[str, type[GradientNoise]] = {
    "DiagonalNoise": DiagonalNoise,
    "DenseNoise": DenseNoise,
    "LowRankNoise": LowRankNoise,
}
"""By the name under which they are saved: what `sample` learns."""


def noise_shapes(kind: str, tensors: Sequence[Tensor], dim: int) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a noise; a low rank is that of its last tensor."""
    rank = len(tensors[-1]) if tensors and tensors[-1].ndim == 1 else 0
    shapes: dict[str, list[tuple[int, ...]]] = {
        "DiagonalNoise": [(dim,), (dim,)], "DenseNoise": [(dim, dim), (dim,), (dim, dim)],
        "LowRankNoise": [(dim,), (dim,), (dim, rank), (rank,), (rank,)],
    }  # fmt: skip
    return shapes[kind]


def as_noise(who: str, value: Any) -> GradientNoise | None:
    """Return the noise of a sampler's setting: None, "corrected", or (Σ, τ K)."""
    if value is None or isinstance(value, GradientNoise):
        return value
    if isinstance(value, str) and value == "corrected":
        return OPEN
    condition = (
        'None, "corrected", or a pair (variance, signal) of tensors (dim,) or (dim, dim) each'
    )
    if not isinstance(value, tuple) or len(value) != 2:
        raise needs(who, "noise", condition, value, TypeError)
    parts = [torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in value]
    if not all(isinstance(part, Tensor) and part.is_floating_point() for part in parts):
        raise needs(who, "noise", condition, value, TypeError)
    variance, signal = parts
    if (
        variance.shape != signal.shape
        or variance.ndim not in (1, 2)
        or variance.shape[0] != variance.shape[-1]
    ):
        raise needs(who, "noise", condition, (tuple(variance.shape), tuple(signal.shape)))
    for name, part in (("variance", variance), ("signal", signal)):
        if not torch.isfinite(part).all():
            raise needs(who, "noise", f"a finite {name}", part)
        lowest = float(part.min() if part.ndim == 1 else torch.linalg.eigvalsh(part.double()).min())
        if part.ndim == 2 and not torch.allclose(part, part.mT):
            raise needs(who, "noise", f"a symmetric {name}", part)
        if lowest < -1e-6 * float(part.abs().max()):
            raise needs(
                who,
                "noise",
                f"a {name} that is positive definite",
                f"an eigenvalue of {lowest:.3g}",
            )
    return (
        DiagonalNoise(variance, signal) if variance.ndim == 1 else DenseNoise.of(variance, signal)
    )
