"""Correct for gradient noise in the Kronecker eigenbasis of each weight matrix.

The noise of a layer's gradient lies in few directions, which the diagonal of its covariance does
not show. A block is a weight as a matrix (outputs, inputs x kernel), with the vector of its outputs
that follows it, its bias, as a last column. For the differences D of its gradients the factors
``L = E[D D^T]`` and ``R = E[D^T D]`` have eigenvectors Q_L and Q_R; in the coordinates
``Q_L^T X Q_R`` the covariance Σ is nearly diagonal, and ``D p`` of `kernels.Invariant` is

    ``Q_L (d (Q_L^T p Q_R)) Q_R^T``,    ``d = s / (2 τ + ε (s - k) / 2)``

with the variance s and the signal k = τ K along each pair of eigenvectors, estimated as in
`FollowedNoise`. With a scale G the same holds for ``W g`` and ``p / W``, ``W = (S / ε)^(1/2)``:
then S is ε in every direction, so that nothing needs to commute (docs/theory.md, section 6).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from langevin.execution.fused import Entry, wide_dtype
from langevin.execution.shards import is_sharded
from langevin.kernels import Kernel
from langevin.kernels.gradient_noise import FollowedNoise
from langevin.kernels.invariant import Invariant
from langevin.optim.settings import Group
from langevin.optim.state import BLOCK_STEPS, ESTIMATES, LIMIT, basis_size
from langevin.optim.update import update
from langevin.targets.gradients import energy_gradient

__all__ = ["PERIOD", "SMOOTHING", "Totals", "blocks_of", "describe_blocks", "update_blocks"]

PERIOD = 64
"""Steps between two refreshes of the eigenvectors; in the beginning 8, 16 and 32."""

SMOOTHING = 0.99
"""Of the factors and variances: the noise of a network changes with the position."""

_NOISE = FollowedNoise(SMOOTHING)

Totals = dict[Tensor, list[Tensor]]
"""The accumulated gradients of parameters after each micro-batch of a step."""


@functools.lru_cache(maxsize=256)
def _blocks_of(shapes: tuple[tuple[int, ...] | None, ...]) -> tuple[tuple[int, ...], ...]:
    found: list[tuple[int, ...]] = []
    for number, shape in enumerate(shapes):
        if shape is None or len(shape) < 2 or 0 in shape:
            continue
        follower = shapes[number + 1] if number + 1 < len(shapes) else None
        has_bias = follower == (shape[0],)
        inputs = functools.reduce(lambda a, b: a * b, shape[1:], 1) + has_bias
        if basis_size(shape[0]) or basis_size(inputs):
            found.append((number, number + 1) if has_bias else (number,))
    return tuple(found)


def blocks_of(group: Group) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of a group: a weight, and the bias that follows it, by their numbers.

    Empty unless the group has ``noise="corrected"``. Sharded parameters are in none.
    """
    if group.get("noise") != "corrected":
        return ()
    return _blocks_of(tuple(None if is_sharded(p) else tuple(p.shape) for p in group["params"]))


class _Matrices(NamedTuple):
    """A block's tensors, each joined to one matrix."""

    position: Tensor
    gradient: Tensor  # of U
    velocity: Tensor  # p
    scale: Tensor  # W


def describe_blocks(group: Group) -> str:
    """Return a line that counts what is corrected in which way; empty without a correction."""
    blocks, parameters = blocks_of(group), group["params"]
    if group.get("noise") not in ("corrected", "corrected-diagonal"):
        return ""
    members = {number for block in blocks for number in block}
    rest = [p for number, p in enumerate(parameters) if number not in members]
    parts = []
    if blocks:
        elements = sum(parameters[number].numel() for number in members)
        parts.append(f"Kronecker eigenbasis of {len(blocks)} matrices ({elements:,} elements)")
    if rest:
        shapes = ", ".join(sorted({str(tuple(p.shape)) for p in rest}))
        why = (
            ""
            if group["noise"] == "corrected-diagonal"
            else f"; sides above {LIMIT}, vectors, shards"
        )
        elements = sum(p.numel() for p in rest)
        parts.append(f"diagonal for {len(rest)} parameters ({elements:,} elements: {shapes}{why})")
    return "\n  noise is corrected in the " + "; ".join(parts)


def update_blocks(
    who: str,
    group: Group,
    kernel: Kernel,
    entries: list[Entry],
    states: dict[Tensor, dict[str, Any]],
    totals: Totals,
) -> list[Entry]:
    """Update the parameters of every Kronecker block; return the other entries."""
    by_parameter, corrected = {entry.parameter: entry for entry in entries}, []
    for block in blocks_of(group):
        parameters = [group["params"][number] for number in block]
        if present := [by_parameter.pop(p) for p in parameters if p in by_parameter]:
            own = states[present[0].parameter]
            _write_friction(group, cast(Invariant, kernel), present, own, totals)
            corrected += present
    if corrected:
        update(who, group, kernel, corrected)
    return list(by_parameter.values())


def _write_friction(
    group: Group, kernel: Invariant, block: Sequence[Entry], own: dict[str, Any], totals: Totals
) -> None:
    """Write ``D p`` into the states of a block's parameters, then follow the noise.

    D depends on earlier gradients only, so it is independent of this one's noise.

    Args:
        group: of the parameters.
        kernel: of the group, with a `GivenFriction`.
        block: its parameters that have a gradient.
        own: the state of the first of them, which holds the estimates.
        totals: accumulated gradients after each micro-batch, or nothing.
    """
    inputs, seen = block[0].inputs, own.get(BLOCK_STEPS, 0)
    tau, epsilon = float(inputs.temperature), float(inputs.step_size)
    now = _matrices(group, kernel, block)
    if seen == 0 or own["block_variance"].shape != now.position.shape:
        seen = 0
        own |= _initial(now.position)
    own[BLOCK_STEPS] = seen + 1
    left, right = own["left_basis"], own["right_basis"]
    known = own["block_variance"], own["block_square"], own["block_gradient"]
    most = torch.full_like(now.position[:1, :1], 2 * tau / epsilon)
    variance, signal, _ = _NOISE.read(known, float(seen), most)
    damping = variance / (2 * tau + 0.5 * epsilon * (variance - signal))
    drag = _back(left, damping * _rotated(left, now.velocity / now.scale, right), right)
    index = kernel.state_names.index("friction")
    for entry, part in zip(block, _split(drag / now.scale, block), strict=True):
        entry.state[index].copy_(part)

    gradient = _rotated(left, now.scale * now.gradient, right)
    parts = _micro_batches(group, block, totals)
    if parts is not None:
        deviations, rate = _rotated(left, now.scale * parts, right), _NOISE.rate(seen + 1.0)
    else:
        # What the curvature predicts for the last move is no noise.
        moved = _rotated(left, (now.position - own["block_position"]) / now.scale, right)
        expected = known[2] + signal * moved / tau
        # The first gradient differs from nothing; it is forgotten with the second.
        deviations = 0.5**0.5 * (gradient - expected)[None]
        rate = _NOISE.rate(float(max(seen, 1)))
    variance = known[0].lerp(deviations.square().sum(0), rate)
    square = known[1].lerp(gradient.square(), _NOISE.rate(seen + 1.0))
    own["block_variance"].copy_(variance)
    own["block_square"].copy_(torch.minimum(square, variance + most))
    own["block_gradient"].copy_(gradient)
    own["block_position"].copy_(now.position)
    outs, ins = gradient.shape
    if left.numel():
        own["left_factor"].lerp_((deviations @ deviations.mT).sum(0) / ins, rate)
    if right.numel():
        own["right_factor"].lerp_((deviations.mT @ deviations).sum(0) / outs, rate)
    if seen + 1 in (8, 16, 32) or (seen + 1) % PERIOD == 0:
        _refresh(own)


def _matrices(group: Group, kernel: Invariant, block: Sequence[Entry]) -> _Matrices:
    rows = []
    for entry in block:
        dtype = wide_dtype(entry.position.dtype)
        position = entry.position.detach().to(dtype)
        gradient = entry.gradient.detach().to(dtype)
        gradient = energy_gradient(gradient, position, group["num_data"], entry.prior)
        velocity, size = kernel.kick_velocity(tuple(entry.state), gradient, entry.inputs)
        scale = (size / entry.inputs.step_size) ** 0.5
        rows.append((position, gradient, velocity, scale))
    return _Matrices(*map(_joined, zip(*rows, strict=True)))


def _joined(tensors: Sequence[Tensor], first: int = 0) -> Tensor:
    """Return a weight as a matrix, with the bias as its last column."""
    columns = [t.unflatten(first, (-1, 1)) if t.ndim == first + 1 else t for t in tensors]
    return torch.cat([t.flatten(first + 1) for t in columns], -1)


def _split(matrix: Tensor, block: Sequence[Entry]) -> list[Tensor]:
    """Return the parts of a matrix in the shapes of its parameters."""
    shapes = [entry.position.shape for entry in block]
    columns = matrix.split([shape.numel() // shape[0] for shape in shapes], 1)
    return [part.reshape(shape) for part, shape in zip(columns, shapes, strict=True)]


def _initial(like: Tensor) -> dict[str, Any]:
    """Return the estimates before the first gradient: parameter's coordinates, no noise."""
    found: dict[str, Any] = {name: torch.zeros_like(like) for name in ESTIMATES[:4]}
    for side, size in zip(("left", "right"), like.shape, strict=True):
        found[f"{side}_basis"] = torch.eye(basis_size(size), dtype=like.dtype, device=like.device)
        found[f"{side}_factor"] = torch.zeros_like(found[f"{side}_basis"])
    return found


def _rotated(left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """Return ``Q_L^T X Q_R``; a side without a basis is left alone."""
    matrix = left.mT @ matrix if left.numel() else matrix
    return matrix @ right if right.numel() else matrix


def _back(left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """Return ``Q_L X Q_R^T``."""
    return _rotated(left.mT, matrix, right.mT)


def _refresh(own: dict[str, Any]) -> None:
    """Turn the estimates to the present eigenvectors of the factors.

    The factors are kept in the coordinates of the bases, so their eigenvectors are the change of
    basis. Gradients turn with it; of a covariance that is diagonal before, the new diagonal.
    """
    turns = []
    for side in ("left", "right"):
        factor = own[f"{side}_factor"]
        if not bool(torch.isfinite(factor).all()):
            return
        values, vectors = torch.linalg.eigh(factor.double())
        turns.append(vectors.to(factor))
        own[f"{side}_factor"] = torch.diag(values).to(factor)
        own[f"{side}_basis"] = own[f"{side}_basis"] @ turns[-1]
    left, right = turns
    own["block_gradient"] = _rotated(left, own["block_gradient"], right)
    for name in ("block_variance", "block_square"):
        own[name] = _rotated(left.square(), own[name], right.square())


def _micro_batches(group: Group, block: Sequence[Entry], totals: Totals) -> Tensor | None:
    """Return matrices whose squares add up to the variance of the sum of micro-batches."""
    sums = [totals.get(entry.parameter, []) for entry in block]
    count = len(sums[0])
    if count < 2 or any(len(one) != count for one in sums):
        return None
    whole = _joined([torch.stack(one) for one in sums], first=1)
    parts = whole.diff(dim=0, prepend=torch.zeros_like(whole[:1]))
    # Clipping or unscaling has changed the sum.
    gradient = _joined([entry.gradient.to(whole.dtype) for entry in block])
    seen = whole[-1].square().sum()
    factor = torch.where(seen > 0, (whole[-1] * gradient).sum() / seen, 1.0)
    spread = (count / (count - 1)) ** 0.5 * group["num_data"] * factor
    return spread * (parts - parts.mean(0))
