"""Initial positions: random draws, then a mode search by L-BFGS for each chain."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from langevin.random import Purpose, normal, streams
from langevin.targets import Evaluation
from langevin.targets.gradients import GradientFn

__all__ = ["Descent", "descend", "spread_starts"]

_PAIRS = 20  # of moves and changes of the gradient in the L-BFGS history
_NUMBERS = 2**25  # of all moves in the history: fewer pairs in many dimensions
_ARMIJO = 1e-4  # share of the predicted decrease of the energy that a move must reach
_SHORTER = 0.2  # factor of the next move, if it does not
_TRIES = 100  # draws of an initial position until its energy is finite, as in Stan


class Descent(NamedTuple):
    """The result of a mode search."""

    position: Tensor  # (chains, dim)
    energy: Tensor  # (chains,)
    evaluations: int  # gradients of the chain that took the most
    total: int  # gradients of all chains
    path: list[Tensor]  # positions (chains, dim) after 10, 20, 40, ... evaluations, and the last
    is_done: Tensor  # whether a chain reached a mode, (chains,)
    is_lost: Tensor  # whether a chain still descends and found no positive curvature, (chains,)


def spread_starts(
    gradient_fn: GradientFn,
    chains: range,
    seed: int,
    like: Tensor,
    first: Tensor | None = None,
    radius: float = 2.0,
) -> Tensor:
    """Draw positions (chains, dim) uniformly from [-radius, radius]; redraw non-finite energies.

    Args:
        gradient_fn: the exact gradient.
        chains: numbers of the chains.
        seed: of the draws.
        like: a position (dim,), for its length, dtype and device.
        first: positions to try first.
        radius: of the cube.
    """
    dim = len(like)
    position = like.new_full((len(chains), dim), torch.nan)
    missing = torch.ones(len(chains), 1, dtype=torch.bool, device=like.device)
    for attempt in range(_TRIES):
        at = streams(Purpose.INIT, chains)
        noise = normal(seed, at, attempt, dim, dtype=like.dtype, device=like.device)
        drawn = radius * torch.erf(noise / 2**0.5)  # uniform
        position = torch.where(missing, drawn if attempt or first is None else first, position)
        energy, gradient = gradient_fn(position, 0)
        missing = ~(torch.isfinite(energy) & torch.isfinite(gradient).all(-1))[:, None]
        if not missing.any():
            return position
    chain = chains[int(missing[:, 0].int().argmax())]
    raise ValueError(
        f"sample() found no initial position with a finite energy and gradient for chain {chain} "
        f"in {_TRIES} draws from uniform(-{radius:g}, {radius:g}); pass init=, or check the log "
        "density there"
    )


def descend(
    gradient_fn: GradientFn, position: Tensor, max_evaluations: int = 400, tolerance: float = 0.01
) -> Descent:
    """Minimise the energy by L-BFGS (Nocedal and Wright 2006, algorithm 7.4), each chain alone.

    A chain is done when the predicted decrease of the energy is below `tolerance`, too little to
    matter for the distribution. One evaluation serves all chains that are not done: a chain whose
    move did not lower its energy enough tries a shorter one while the others continue.

    Args:
        gradient_fn: the exact gradient.
        position: initial positions, (chains, dim).
        max_evaluations: most gradients per chain.
        tolerance: in units of the energy.
    """
    energy, gradient = gradient_fn(position, 0)
    history = _History(position)
    direction = -gradient / torch.linalg.vector_norm(gradient, dim=-1, keepdim=True).clamp(min=1.0)
    length, evaluations, total = torch.ones_like(energy), 1, len(position)
    path, is_done = [], torch.zeros_like(energy, dtype=torch.bool)
    while evaluations < max_evaluations:
        slope = (direction * gradient).sum(-1)
        is_done = (-slope < tolerance) & (history.count > 0) | (slope == 0)
        if is_done.all():
            break
        step = (length * ~is_done)[:, None] * direction
        running = (~is_done).nonzero()[:, 0]
        there = Evaluation(energy.clone(), gradient.clone())
        for whole, part in zip(there, gradient_fn((position + step)[running], 0), strict=True):
            whole[running] = part
        evaluations, total = evaluations + 1, total + len(running)
        if evaluations % 10 == 0 and (evaluations // 10).bit_count() == 1:
            path.append(position)
        is_finite = torch.isfinite(there.energy) & torch.isfinite(there.gradient).all(-1)
        rounding = 10 * torch.finfo(energy.dtype).eps * energy.abs()
        is_lower = (
            is_finite & (there.energy <= energy + _ARMIJO * length * slope + rounding) & ~is_done
        )
        moved = is_lower[:, None]
        history.add(step, there.gradient - gradient, is_lower)
        position = torch.where(moved, position + step, position)
        energy = torch.where(is_lower, there.energy, energy)
        gradient = torch.where(moved, there.gradient, gradient)
        # Double the moves while no positive curvature is found.
        onward = torch.where(history.count > 0, torch.ones_like(length), 2 * length)
        length = torch.where(is_lower, onward, _SHORTER * length)
        direction = torch.where(moved, history.direction(gradient), direction)
        is_stuck = length < 1e-12
        direction = torch.where(is_stuck[:, None], torch.zeros_like(direction), direction)
    is_lost = (history.count == 0) & ((direction * gradient).sum(-1) < -tolerance)
    return Descent(position, energy, evaluations, total, [*path, position], is_done, is_lost)


class _History:
    """The L-BFGS history of each chain: moves s, changes of the gradient y; or zeros."""

    def __init__(self, position: Tensor) -> None:
        pairs = max(3, min(_PAIRS, _NUMBERS // position.numel()))
        self.moves = position.new_zeros(pairs, *position.shape)
        self.changes = torch.zeros_like(self.moves)
        self.inverses = position.new_zeros(pairs, len(position))  # 1 / (s . y)
        self.size = position.new_ones(len(position))  # s . y / y . y of the newest pair
        self.count = torch.zeros(len(position), dtype=torch.long, device=position.device)

    def add(self, move: Tensor, change: Tensor, which: Tensor) -> None:
        """Add a pair for the chains `which` whose curvature along the move is positive."""
        product, norm = (move * change).sum(-1), torch.linalg.vector_norm
        which = which & (product > 1e-10 * norm(move, dim=-1) * norm(change, dim=-1))
        inverse = torch.where(which, 1 / product, torch.zeros_like(product))
        for store, new in ((self.moves, move), (self.changes, change), (self.inverses, inverse)):
            shape = (-1, *[1] * (new.ndim - 1))
            store.copy_(torch.where(which.view(shape), torch.cat([store[1:], new[None]]), store))
        self.size = torch.where(which, product / (change * change).sum(-1), self.size)
        self.count += which

    def direction(self, gradient: Tensor) -> Tensor:
        """Return minus the gradient times the approximate inverse Hessian, by the two loops."""
        direction, weights = -gradient, []
        for move, change, inverse in zip(
            self.moves.flip(0), self.changes.flip(0), self.inverses.flip(0), strict=True
        ):
            weights.append(inverse * (move * direction).sum(-1))
            direction = direction - weights[-1][:, None] * change
        fallback = 1 / torch.linalg.vector_norm(gradient, dim=-1).clamp(min=1.0)
        direction = torch.where(self.count > 0, self.size, fallback)[:, None] * direction
        for move, change, inverse in zip(self.moves, self.changes, self.inverses, strict=True):
            weight = weights.pop() - inverse * (change * direction).sum(-1)
            direction = direction + weight[:, None] * move
        return direction
