"""Starting points: spread over the space, then downhill to where the mass begins, every chain by itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.gradients import GradientFn
from langevin.noise import Purpose, normal, streams

__all__ = ["Descent", "descend", "spread_starts"]

_MEMORY = 20  # pairs of moves and changes of the gradient that L-BFGS remembers
_NUMBERS = 2**25  # of all moves that are remembered: fewer pairs in many dimensions
_ARMIJO, _SHORTER = 1e-4, 0.2  # a move must lower the energy by this share of what its slope promises; else it is cut to this
_TRIES = 100  # draws of a starting point until its energy is finite, as in Stan


class Descent(NamedTuple):
    """Where the chains came to."""

    position: Tensor  # (chains, dim)
    energy: Tensor  # (chains,)
    evaluations: int  # gradients taken by each chain
    path: list[Tensor]  # places on the way, after 10, 20, 40, ... evaluations, and the last: positions (chains, dim) each
    is_done: Tensor  # whether a chain came to a mode, (chains,)
    is_lost: Tensor  # whether a chain never met a positive curvature, and still goes down, (chains,)


def spread_starts(
    gradient_fn: GradientFn, chains: range, seed: int, like: Tensor, first: Tensor | None = None, radius: float = 2.0
) -> Tensor:
    """Draw starts (chains, dim) uniformly from [-radius, radius], again where energy or gradient are not finite.

    Args:
        gradient_fn: the exact gradient.
        chains: numbers of the chains.
        seed: of the starts.
        like: a position (dim,), for its length, dtype and device.
        first: positions to try first.
        radius: of the cube.
    """
    dim = len(like)
    position = like.new_full((len(chains), dim), torch.nan)
    missing = torch.ones(len(chains), 1, dtype=torch.bool, device=like.device)
    for attempt in range(_TRIES):
        noise = normal(seed, streams(Purpose.INIT, chains), attempt, dim, dtype=like.dtype, device=like.device)
        drawn = radius * torch.erf(noise / 2**0.5)  # the distribution function of a normal makes it uniform
        position = torch.where(missing, drawn if attempt or first is None else first, position)
        energy, gradient = gradient_fn(position, 0)
        missing = ~(torch.isfinite(energy) & torch.isfinite(gradient).all(-1))[:, None]
        if not missing.any():
            return position
    chain = chains[int(missing[:, 0].int().argmax())]
    raise ValueError(
        f"sample() found no start with a finite energy and gradient for chain {chain}, in {_TRIES} draws from uniform(-{radius:g}, "
        f"{radius:g}) in every element of theta; give init=, or see what the log density is there"
    )


def descend(gradient_fn: GradientFn, position: Tensor, max_evaluations: int = 400, tolerance: float = 0.01) -> Descent:
    """Go downhill by L-BFGS (Nocedal and Wright 2006, algorithm 7.4), each chain with its own memory and its own line search.

    A chain is done when another step promises to lower the energy by less than `tolerance`: the law is blind to that. One
    evaluation serves all chains: a chain whose move did not lower its energy enough tries a shorter one while the others go on.

    Args:
        gradient_fn: the exact gradient.
        position: where to start, (chains, dim).
        max_evaluations: gradients of each chain at most.
        tolerance: in units of the energy.
    """
    energy, gradient = gradient_fn(position, 0)
    history = _History(position)
    direction = -gradient / torch.linalg.vector_norm(gradient, dim=-1, keepdim=True).clamp(min=1.0)
    length, evaluations = torch.ones_like(energy), 1
    path, is_done = [], torch.zeros_like(energy, dtype=torch.bool)
    while evaluations < max_evaluations:
        slope = (direction * gradient).sum(-1)
        is_done = (-slope < tolerance) & (history.count > 0) | (slope == 0)
        if is_done.all():
            break
        step = (length * ~is_done)[:, None] * direction
        there = gradient_fn(position + step, 0)
        evaluations += 1
        if evaluations % 10 == 0 and (evaluations // 10).bit_count() == 1:
            path.append(position)
        is_finite = torch.isfinite(there.energy) & torch.isfinite(there.gradient).all(-1)
        rounding = 10 * torch.finfo(energy.dtype).eps * energy.abs()
        is_lower = is_finite & (there.energy <= energy + _ARMIJO * length * slope + rounding) & ~is_done
        moved = is_lower[:, None]
        history.add(step, there.gradient - gradient, is_lower)
        position = torch.where(moved, position + step, position)
        energy = torch.where(is_lower, there.energy, energy)
        gradient = torch.where(moved, there.gradient, gradient)
        onward = torch.where(history.count > 0, torch.ones_like(length), 2 * length)  # faster while nothing bends upwards
        length = torch.where(is_lower, onward, _SHORTER * length)
        direction = torch.where(moved, history.direction(gradient), direction)
        is_stuck = length < 1e-12
        direction = torch.where(is_stuck[:, None], torch.zeros_like(direction), direction)
    is_lost = (history.count == 0) & ((direction * gradient).sum(-1) < -tolerance)
    return Descent(position, energy, evaluations, [*path, position], is_done, is_lost)


class _History:
    """What L-BFGS remembers of each chain: moves s and changes of the gradient y; empty places are zeros, which do nothing."""

    def __init__(self, position: Tensor) -> None:
        pairs = max(3, min(_MEMORY, _NUMBERS // position.numel()))
        self.moves = position.new_zeros(pairs, *position.shape)
        self.changes = torch.zeros_like(self.moves)
        self.inverses = position.new_zeros(pairs, len(position))  # 1 / (s . y)
        self.size = position.new_ones(len(position))  # s . y / y . y of the newest pair: the scale of the first guess
        self.count = torch.zeros(len(position), dtype=torch.long, device=position.device)

    def add(self, move: Tensor, change: Tensor, which: Tensor) -> None:
        """Remember a pair for the chains `which`, where the curvature along the move is positive."""
        product = (move * change).sum(-1)
        which = which & (product > 1e-10 * torch.linalg.vector_norm(move, dim=-1) * torch.linalg.vector_norm(change, dim=-1))
        inverse = torch.where(which, 1 / product, torch.zeros_like(product))
        for store, new in ((self.moves, move), (self.changes, change), (self.inverses, inverse)):
            shape = (-1, *[1] * (new.ndim - 1))
            store.copy_(torch.where(which.view(shape), torch.cat([store[1:], new[None]]), store))
        self.size = torch.where(which, product / (change * change).sum(-1), self.size)
        self.count += which

    def direction(self, gradient: Tensor) -> Tensor:
        """Return minus the gradient times the approximate inverse Hessian, by the two loops."""
        direction, weights = -gradient, []
        for move, change, inverse in zip(self.moves.flip(0), self.changes.flip(0), self.inverses.flip(0), strict=True):
            weights.append(inverse * (move * direction).sum(-1))
            direction = direction - weights[-1][:, None] * change
        fallback = 1 / torch.linalg.vector_norm(gradient, dim=-1).clamp(min=1.0)
        direction = torch.where(self.count > 0, self.size, fallback)[:, None] * direction
        for move, change, inverse in zip(self.moves, self.changes, self.inverses, strict=True):
            weight = weights.pop() - inverse * (change * direction).sum(-1)
            direction = direction + weight[:, None] * move
        return direction
