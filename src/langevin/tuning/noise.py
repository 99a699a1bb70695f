"""The covariance Σ of a minibatch gradient's noise: from what each row by itself says, where chains are.

White minibatches are means of n independent rows, so the covariance of what one row says, over n, is that of the gradient: exact in
one pass over the data, blind to where the gradient points, and known along every direction from as many rows as there are. (Two
half batches, or two gradients at one place, say the same from one degree of freedom each.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.gradient_noise import DenseNoise, DiagonalNoise, GradientNoise, LowRankNoise
from langevin.gradients import of_each_row
from langevin.noise import Purpose, stream, white_rows
from langevin.scales import Dense, Diagonal, Scale
from langevin.targets import Target
from langevin.trust import evenly_spaced

__all__ = ["TURNING", "Learnt", "Rows", "learn_noise"]

_ROWS = 200_000  # that are looked at in all, at most: a variance is then known to a third of a percent, for normal rows
_NUMBERS = 2**22  # of gradients of rows held at a time
_ENOUGH = 400  # rows at a place, where there can be: fewer would take chance for a change from place to place
_FEWEST = 32  # rows at a place, however many dimensions
_GRAM = 1000  # rows, or dimensions, of the matrix whose eigenvectors are taken
_ADDRESS = 2**41  # step of the addresses of these rows: no run gets there
_RANK = 40  # directions of their own of a low-rank covariance, at most
TURNING, _TURNING_HEAT, _STEADY_HEAT = 0.3, 1.0, 20.0  # from which `varies` on the noise turns; ρ there, and elsewhere
_TELLING = 1.5  # times the variance that chance leaves: a direction below it is not worth its product


class Rows(NamedTuple):
    """What the rows of a data set say of the gradient where chains are; or an artificial noise."""

    target: Target
    columns: Sequence[Tensor]
    batch_size: int | None  # n; None for all data, whose gradient has only the artificial noise
    seed: int
    mode: Tensor | None = None  # the centre of control variates
    most: int = _ROWS  # rows that are looked at in all

    def places(self, positions: Tensor) -> int:
        """Return at how many places rows are looked at: at no more than leave many rows to each."""
        return max(2, min(self.most, 16 * _NUMBERS // positions.shape[-1]) // _ENOUGH)

    def count(self, places: Tensor) -> int:
        """Return how many rows are looked at at each of some places, (places, dim)."""
        if not self.batch_size:
            return 0
        return min(len(self.columns[0]), max(_FEWEST, min(self.most, 16 * _NUMBERS // places.shape[-1]) // len(places)))

    def deviations(self, places: Tensor, index: int, scale: Scale) -> Tensor:
        """Return what rows say at a place, less their mean, in the scale's coordinates: z (rows, dim) with ``Σ = E[z z^T]``."""
        assert self.batch_size is not None
        position, total, count = places[index], len(self.columns[0]), self.count(places)
        some = torch.arange(total)
        if count < total:
            some = white_rows(self.seed, stream(Purpose.ROWS), _ADDRESS + index, count, total)
        parts = some.to(position.device).split(max(1, _NUMBERS // len(position)))
        said = torch.cat([scale.pull(of_each_row(self.target, self.columns, part, position, self.mode)) for part in parts])
        bad = ~torch.isfinite(said).all(-1)
        if bad.any():
            what = "rows whose gradients are finite, each by itself, to learn their noise from"
            raise needs("sample", "data", what, f"{int(bad.sum())} of {len(bad)} that are not")
        lost = count / (count - 1) if count < total else 1.0  # a mean of some rows is nearer to them than that of all
        return (said - said.mean(0)).double() * (lost / self.batch_size) ** 0.5


class Learnt(NamedTuple):
    """A noise, and the scale in whose coordinates it stands."""

    noise: GradientNoise
    scale: Scale
    ratio: float  # the largest Σ / (τ K) of a direction: so many steps more does a draw take than with exact gradients
    largest: float  # the largest variance of a direction, in these coordinates
    error: float  # relative standard error of Σ along the direction where it is known worst, over the places
    rows: int  # looked at, in all
    skew: float  # how many times the variance of an element the noise has along some direction: 1 where it is diagonal
    varies: float  # by what share the noise differs from place to place, along the directions in which it is known

    @property
    def mean(self) -> float:
        """The variance of a direction, on average, in these coordinates; of a noise that is no matrix."""
        noise = self.noise
        assert isinstance(noise, (DiagonalNoise, LowRankNoise))
        total = noise.variance.sum() + (noise.along.sum() if isinstance(noise, LowRankNoise) else 0.0)
        return float(total) / len(noise.variance)

    @property
    def heat(self) -> float:
        """Share ρ of the temperature that the noise should have, were it not absorbed: much is fast, and is right where Σ is one.

        Where Σ turns from place to place, as that of networks does, one that stands still is right up to about 1
        (docs/benchmarks/kronecker.txt).
        """
        return _STEADY_HEAT if self.varies < TURNING else _TURNING_HEAT


def learn_noise(rows: Rows, positions: Tensor, scale: Scale, signal: Tensor, *, has_metric: bool, may_turn: bool = True) -> Learnt:
    """Return the noise of a gradient at draws of its target, in the coordinates of a sampler that runs in `scale`.

    Where the signal is a matrix, Σ is one: beside a dense scale in which the signal is a multiple of one, which is turned so that
    both are diagonal, as matrices else. Where it is a diagonal, Σ is a diagonal with a few directions of
    their own.

    Args:
        rows: what there is to learn from.
        positions: draws of the target, (places, dim).
        scale: in whose coordinates the sampler runs.
        signal: τ K in these coordinates, (dim, dim) or its diagonal (dim,).
        has_metric: whether the sampler has a metric of its own there, such as Adam's: Σ must then be diagonal.
        may_turn: whether a dense scale is such that the signal is a multiple of one.
    """
    positions = positions[evenly_spaced(len(positions), rows.places(positions)).to(positions.device)]
    if signal.ndim == 1:
        return _low_rank(rows, positions, scale, signal.double(), 0 if has_metric else _RANK)
    covariances = _covariances(rows, positions, scale)
    covariance, signal = covariances.mean(0), signal.double()
    values, vectors = torch.linalg.eigh(signal)
    white = vectors * values.clamp(min=1e-12 * float(values[-1])) ** -0.5
    ratio = float(torch.linalg.eigvalsh(white.mT @ covariance @ white)[-1])
    count = len(positions) * rows.count(positions)
    if isinstance(scale, Dense) and may_turn:
        variance, turn = torch.linalg.eigh(covariance)
        turned = Dense((scale.root.double() @ turn).to(positions))
        own = (turn.mT @ signal @ turn).diagonal()
        along = (turn.mT @ covariances @ turn).diagonal(dim1=1, dim2=2)
        made, changes = DiagonalNoise(*_positive(variance, own, positions)), _varies(along, variance)
        return Learnt(made, turned, ratio, float(variance[-1]), _error(along), count, 1.0, changes)
    along, largest = covariances.diagonal(dim1=1, dim2=2), float(torch.linalg.eigvalsh(covariance)[-1])
    if has_metric:
        noise: GradientNoise = DiagonalNoise(*_positive(covariance.diagonal(), signal.diagonal(), positions))
        return Learnt(noise, scale, ratio, largest, _error(along), count, _skew(covariance), _varies(along, covariance.diagonal()))
    noise = DenseNoise(*(tensor.to(positions) for tensor in DenseNoise.of(covariance, signal).tensors))
    return Learnt(noise, scale, ratio, largest, _error(along), count, 1.0, _varies(along, covariance.diagonal()))


def _low_rank(rows: Rows, positions: Tensor, scale: Scale, signal: Tensor, rank: int) -> Learnt:
    """Return Σ as a diagonal with a few directions of their own."""
    dim, count = len(signal), len(positions) * rows.count(positions)
    artificial = rows.target.gradient_noise**2 * _squares(scale, positions[0])
    if rows.batch_size is None:
        noise = DiagonalNoise(*_positive(artificial, signal, positions))
        return Learnt(noise, scale, float((artificial / signal).max()), float(artificial.max()), 0.0, 0, 1.0, 0.0)
    each = [rows.deviations(positions, index, scale) for index in range(len(positions))]
    whole, squares = torch.cat(each), torch.stack([part.square().mean(0) for part in each])
    diagonal = whole.square().mean(0)
    values, directions, used = _leading(whole / diagonal.clamp(min=1e-300) ** 0.5)
    # Of white rows the largest value is (1 + sqrt(dim / rows))^2: what stands out of that has a direction of its own.
    chance = (1 + (dim / used) ** 0.5) ** 2
    skew = max(1.0, float(values[0]) / chance)
    kept = min(rank, int((_TELLING * chance < values).sum()))
    if kept == 0:
        variance = diagonal + artificial
        noise, most = DiagonalNoise(*_positive(variance, signal, positions)), float((variance / signal).max())
        return Learnt(noise, scale, most, float(variance.max()), _error(squares), count, skew, _varies(squares, signal))
    basis, _ = torch.linalg.qr(directions[:, :kept] * diagonal[:, None] ** 0.5)  # back from unit variances, orthonormal again
    inside = whole @ basis
    values, turn = torch.linalg.eigh(inside.mT @ inside / len(whole))
    vectors = basis @ turn
    rest = (diagonal - (vectors.square() * values).sum(-1)).clamp(min=1e-3 * diagonal) + artificial
    along, own = values + (vectors.square() * artificial[:, None]).sum(0), (vectors.square() * signal[:, None]).sum(0)
    ratio = max(float((along / own).max()), float((rest / signal).max()))
    parts = (*_positive(rest, signal, positions), vectors.to(positions), *_positive(along, own, positions))
    largest = max(float(along.max()), float(rest.max()))
    return Learnt(LowRankNoise(*parts), scale, ratio, largest, _error(squares), count, 1.0, _varies(squares, signal))


def _leading(rows: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the eigenvalues of the mean product of rows (m, dim), falling, their vectors (dim, ...), and of how many rows."""
    if rows.shape[-1] <= _GRAM:
        values, vectors = torch.linalg.eigh(rows.mT @ rows / len(rows))
        return values.flip(0), vectors.flip(1), len(rows)
    some = rows[evenly_spaced(len(rows), _GRAM).to(rows.device)]  # fewer than dimensions: the small matrix has the same eigenvalues
    values, vectors = torch.linalg.eigh(some @ some.mT / len(some))
    values, vectors = values.flip(0)[:_RANK], vectors.flip(1)[:, :_RANK]
    return values, some.mT @ vectors / (len(some) * values.clamp(min=1e-300)) ** 0.5, len(some)


def _squares(scale: Scale, like: Tensor) -> Tensor:
    """Return the diagonal of ``R^T R`` in float64, (dim,)."""
    if isinstance(scale, Diagonal):
        return scale.std.double() ** 2
    unit = torch.eye(len(like), dtype=like.dtype, device=like.device)
    return torch.cat([scale.push(part).double().square().sum(-1) for part in unit.split(1024)])


def _skew(covariance: Tensor) -> float:
    """Return the largest eigenvalue of a covariance's correlations."""
    root = covariance.diagonal().clamp(min=1e-300) ** -0.5
    return float(torch.linalg.eigvalsh(root[:, None] * covariance * root)[-1])


def _covariances(rows: Rows, positions: Tensor, scale: Scale) -> Tensor:
    """Return Σ at each place, in the scale's coordinates, (places, dim, dim) in float64."""
    eye = torch.eye(positions.shape[-1], dtype=positions.dtype, device=positions.device)
    artificial = rows.target.gradient_noise**2 * scale.pull(scale.push(eye)).double()
    if rows.batch_size is None:
        return artificial[None]
    each = (rows.deviations(positions, index, scale) for index in range(len(positions)))
    return torch.stack([part.mT @ part / len(part) + artificial for part in each])


def _positive(variance: Tensor, signal: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the dtype of a run, rounding's negative numbers made zero."""
    return variance.clamp(min=0).to(like), signal.clamp(min=1e-12 * float(signal.max())).to(like)


def _error(along: Tensor) -> float:
    """Return the largest relative standard error of the mean over places, of variances (places, directions)."""
    if len(along) < 2:
        return math.nan
    mean = along.mean(0)
    felt = mean > 1e-3 * float(mean.max())  # where there is hardly any noise, it need not be known
    return float((along.std(0) / len(along) ** 0.5 / mean.clamp(min=1e-300))[felt].amax()) if felt.any() else 0.0


def _varies(along: Tensor, weights: Tensor) -> float:
    """Return the relative standard deviation over places, of variances (places, directions), over directions by their weight."""
    if len(along) < 2:
        return 0.0
    mean = along.mean(0).clamp(min=1e-300)
    shares = weights / weights.sum().clamp(min=1e-300)
    return float(((along.var(0) / mean**2) * shares).sum() ** 0.5)
