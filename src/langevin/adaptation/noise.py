"""Estimate the covariance Σ of minibatch gradient noise from per-row gradients at draws.

White minibatches are means of n independent rows, so the covariance of the per-row gradients over n
is that of the gradient: exact in one pass over the data, unaffected by the mean gradient, and known
along every direction from as many degrees of freedom as there are rows. (Two half batches, or two
gradients at one position, give one degree of freedom each.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.diagnostics.arrays import evenly_spaced
from langevin.kernels.gradient_noise import DenseNoise, DiagonalNoise, GradientNoise, LowRankNoise
from langevin.random import Purpose, stream, white_rows
from langevin.targets import Target
from langevin.targets.gradients import of_each_row
from langevin.targets.metric import Dense, Diagonal, Metric

__all__ = ["TURNING", "NoiseEstimate", "NoiseSource", "estimate_noise"]

_ROWS = 200_000  # rows in all, at most: variances to a third of a percent, for normal rows
_NUMBERS = 2**22  # of per-row gradients in memory
_ENOUGH = 400  # rows per position, if there are enough: fewer confuse chance and change
_FEWEST = 32  # rows per position, whatever the dimension
_GRAM = 1000  # rows, or dimensions, of the matrix for eigenvectors
_ADDRESS = 2**41  # step of the addresses of these rows, which no run reaches
_RANK = 40  # largest rank of a low-rank covariance
TURNING = 0.3  # `varies` from which the noise changes with the position
_TURNING_EXCESS, _STEADY_EXCESS = 1.0, 20.0  # largest ρ for such noise, and for other noise
_TELLING = 1.5  # excess over chance, as a factor, at which a direction is worth its product


class NoiseSource(NamedTuple):
    """The source of gradient noise: the rows of a data set, or artificial noise."""

    target: Target
    columns: Sequence[Tensor]
    batch_size: int | None  # n; None for all data, whose gradient has artificial noise only
    seed: int
    mode: Tensor | None = None  # the centre of control variates
    most: int = _ROWS  # rows in all

    def _limit(self, positions: Tensor) -> int:
        return min(self.most, 16 * _NUMBERS // positions.shape[-1])

    def max_positions(self, positions: Tensor) -> int:
        """Return the number of positions to evaluate rows at, so that each gets enough of them."""
        return max(2, self._limit(positions) // _ENOUGH)

    def count(self, positions: Tensor) -> int:
        """Return the number of rows to evaluate at each of some positions, (positions, dim)."""
        if not self.batch_size:
            return 0
        return min(len(self.columns[0]), max(_FEWEST, self._limit(positions) // len(positions)))

    def deviations(self, positions: Tensor, index: int, metric: Metric) -> Tensor:
        """Return centred per-row gradients z (rows, dim) in the metric, ``Σ = E[z z^T]``."""
        assert self.batch_size is not None
        position, total, count = positions[index], len(self.columns[0]), self.count(positions)
        some = torch.arange(total)
        if count < total:
            some = white_rows(self.seed, stream(Purpose.ROWS), _ADDRESS + index, count, total)
        parts = some.to(position.device).split(max(1, _NUMBERS // len(position)))
        gradients = (
            of_each_row(self.target, self.columns, part, position, self.mode) for part in parts
        )
        pulled = torch.cat([metric.pull(part) for part in gradients])
        bad = ~torch.isfinite(pulled).all(-1)
        if bad.any():
            what = "rows whose gradients are finite, to estimate the gradient noise from"
            found = f"{int(bad.sum())} of {len(bad)} that are not finite"
            raise needs("sample", "data", what, found)
        lost = count / (count - 1) if count < total else 1.0  # the sample mean takes a degree
        return (pulled - pulled.mean(0)).double() * (lost / self.batch_size) ** 0.5


class NoiseEstimate(NamedTuple):
    """An estimated noise, and the metric that defines its coordinates."""

    noise: GradientNoise
    metric: Metric
    ratio: float  # largest Σ / (τ K) of a direction: additional steps per effective sample
    largest: float  # largest variance of a direction, in these coordinates
    error: float  # largest relative standard error of Σ along a direction, over the positions
    rows: int  # evaluated in all
    skew: float  # largest eigenvalue of the correlations that are ignored: 1 if diagonal
    varies: float  # relative standard deviation of the noise between positions

    @property
    def mean(self) -> float:
        """The mean variance over directions, for a diagonal or low-rank noise."""
        noise = self.noise
        assert isinstance(noise, (DiagonalNoise, LowRankNoise))
        along = noise.along.sum() if isinstance(noise, LowRankNoise) else 0.0
        return float(noise.variance.sum() + along) / len(noise.variance)

    @property
    def excess(self) -> float:
        """The largest ρ, the excess temperature without a correction, that can be corrected.

        If Σ changes between positions, as for networks, a constant correction is accurate up to
        about 1 (docs/benchmarks/kronecker.txt).
        """
        return _STEADY_EXCESS if self.varies < TURNING else _TURNING_EXCESS


def estimate_noise(
    rows: NoiseSource,
    positions: Tensor,
    metric: Metric,
    signal: Tensor,
    *,
    has_metric: bool,
    may_turn: bool = True,
) -> NoiseEstimate:
    """Estimate the gradient noise at draws, in the coordinates of a sampler with `metric`.

    If the signal is a matrix, so is Σ. With a dense metric in which the signal is a multiple of the
    identity, the metric is rotated so that both are diagonal. If the signal is a diagonal, Σ is a
    diagonal plus a low-rank part.

    Args:
        rows: the source of the noise.
        positions: draws of the target, (positions, dim).
        metric: the metric of the sampler.
        signal: τ K in its coordinates, (dim, dim) or the diagonal (dim,).
        has_metric: whether the sampler adapts a separate metric, such as Adam's, which needs a
            diagonal Σ.
        may_turn: whether the signal is a multiple of the identity in a dense metric.
    """
    some = evenly_spaced(len(positions), rows.max_positions(positions))
    positions, signal = positions[some.to(positions.device)], signal.double()
    if signal.ndim == 1:
        return _low_rank(rows, positions, metric, signal, 0 if has_metric else _RANK)
    covariances = _covariances(rows, positions, metric)
    covariance = covariances.mean(0)
    values, vectors = torch.linalg.eigh(signal)
    white = vectors * values.clamp(min=1e-12 * float(values[-1])) ** -0.5
    ratio = float(torch.linalg.eigvalsh(white.mT @ covariance @ white)[-1])
    count = len(positions) * rows.count(positions)
    skew = 1.0
    noise: GradientNoise
    if isinstance(metric, Dense) and may_turn:
        variance, turn = torch.linalg.eigh(covariance)
        metric = Dense((metric.root.double() @ turn).to(positions))
        signal = turn.mT @ signal @ turn
        along, largest = (turn.mT @ covariances @ turn).diagonal(dim1=1, dim2=2), variance[-1]
        noise = DiagonalNoise(*_positive(variance, signal.diagonal(), positions))
    else:
        variance, along = covariance.diagonal(), covariances.diagonal(dim1=1, dim2=2)
        largest = torch.linalg.eigvalsh(covariance)[-1]
        if has_metric:
            noise = DiagonalNoise(*_positive(variance, signal.diagonal(), positions))
            skew = _skew(covariance)
        else:
            dense = DenseNoise.of(covariance, signal)
            noise = DenseNoise(*(tensor.to(positions) for tensor in dense.tensors))
    error, varies = _error(along), _varies(along, variance)
    return NoiseEstimate(noise, metric, ratio, float(largest), error, count, skew, varies)


def _low_rank(
    rows: NoiseSource, positions: Tensor, metric: Metric, signal: Tensor, rank: int
) -> NoiseEstimate:
    """Return Σ as a diagonal plus a low-rank part."""
    dim, count = len(signal), len(positions) * rows.count(positions)
    artificial = rows.target.gradient_noise**2 * _squares(metric, positions[0])

    def diagonal_noise(variance: Tensor, error: float, skew: float, varies: float) -> NoiseEstimate:
        noise = DiagonalNoise(*_positive(variance, signal, positions))
        ratio, largest = float((variance / signal).max()), float(variance.max())
        return NoiseEstimate(noise, metric, ratio, largest, error, count, skew, varies)

    if rows.batch_size is None:
        return diagonal_noise(artificial, 0.0, 1.0, 0.0)
    each = [rows.deviations(positions, index, metric) for index in range(len(positions))]
    whole, squares = torch.cat(each), torch.stack([part.square().mean(0) for part in each])
    diagonal = whole.square().mean(0)
    error, varies = _error(squares), _varies(squares, signal)
    values, directions, used = _leading(whole / diagonal.clamp(min=1e-300) ** 0.5)
    # The largest value of white rows is (1 + sqrt(dim / rows))^2: the low-rank part exceeds it.
    chance = (1 + (dim / used) ** 0.5) ** 2
    kept = min(rank, int((_TELLING * chance < values).sum()))
    if kept == 0:
        skew = max(1.0, float(values[0]) / chance)
        return diagonal_noise(diagonal + artificial, error, skew, varies)
    # Back from unit variances, orthonormal again.
    basis, _ = torch.linalg.qr(directions[:, :kept] * diagonal[:, None] ** 0.5)
    inside = whole @ basis
    values, turn = torch.linalg.eigh(inside.mT @ inside / len(whole))
    vectors = basis @ turn
    shares = vectors.square()
    rest = (diagonal - (shares * values).sum(-1)).clamp(min=1e-3 * diagonal) + artificial
    along = values + (shares * artificial[:, None]).sum(0)
    own = (shares * signal[:, None]).sum(0)
    noise = LowRankNoise(
        *_positive(rest, signal, positions),
        vectors.to(positions),
        *_positive(along, own, positions),
    )
    ratio = max(float((along / own).max()), float((rest / signal).max()))
    largest = max(float(along.max()), float(rest.max()))
    return NoiseEstimate(noise, metric, ratio, largest, error, count, 1.0, varies)


def _leading(rows: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return eigenvalues (descending), eigenvectors and size of a sample of the rows."""
    if rows.shape[-1] <= _GRAM:
        values, vectors = torch.linalg.eigh(rows.mT @ rows / len(rows))
        return values.flip(0), vectors.flip(1), len(rows)
    # Fewer rows than dimensions: the small matrix has the same eigenvalues.
    some = rows[evenly_spaced(len(rows), _GRAM).to(rows.device)]
    values, vectors = torch.linalg.eigh(some @ some.mT / len(some))
    values, vectors = values.flip(0)[:_RANK], vectors.flip(1)[:, :_RANK]
    return values, some.mT @ vectors / (len(some) * values.clamp(min=1e-300)) ** 0.5, len(some)


def _squares(metric: Metric, like: Tensor) -> Tensor:
    """Return the diagonal of ``R^T R`` in float64, (dim,)."""
    if isinstance(metric, Diagonal):
        return metric.std.double() ** 2
    unit = torch.eye(len(like), dtype=like.dtype, device=like.device)
    return torch.cat([metric.push(part).double().square().sum(-1) for part in unit.split(1024)])


def _skew(covariance: Tensor) -> float:
    """Return the largest eigenvalue of a covariance's correlations."""
    root = covariance.diagonal().clamp(min=1e-300) ** -0.5
    return float(torch.linalg.eigvalsh(root[:, None] * covariance * root)[-1])


def _covariances(rows: NoiseSource, positions: Tensor, metric: Metric) -> Tensor:
    """Return Σ at each position, in the metric's coordinates, (positions, dim, dim) in float64."""
    eye = torch.eye(positions.shape[-1], dtype=positions.dtype, device=positions.device)
    artificial = rows.target.gradient_noise**2 * metric.pull(metric.push(eye)).double()
    if rows.batch_size is None:
        return artificial[None]
    each = (rows.deviations(positions, index, metric) for index in range(len(positions)))
    return torch.stack([part.mT @ part / len(part) + artificial for part in each])


def _positive(variance: Tensor, signal: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the run's dtype, clipped at zero."""
    return variance.clamp(min=0).to(like), signal.clamp(min=1e-12 * float(signal.max())).to(like)


def _error(along: Tensor) -> float:
    """Return the largest relative standard error of mean variances (positions, directions)."""
    if len(along) < 2:
        return math.nan
    mean = along.mean(0)
    felt = mean > 1e-3 * float(mean.max())  # directions with hardly any noise do not matter
    errors = along.std(0) / len(along) ** 0.5 / mean.clamp(min=1e-300)
    return float(errors[felt].amax()) if felt.any() else 0.0


def _varies(along: Tensor, weights: Tensor) -> float:
    """Return the weighted relative standard deviation of variances over positions."""
    if len(along) < 2:
        return 0.0
    mean = along.mean(0).clamp(min=1e-300)
    shares = weights / weights.sum().clamp(min=1e-300)
    return float(((along.var(0) / mean**2) * shares).sum() ** 0.5)
