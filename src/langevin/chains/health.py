"""Which chains are sound: a draw counts when it is finite and the target has a finite energy and gradient there.

The target is evaluated where a step begins, so a position is judged by the step after it, and the last one of a run by one more
evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["find_bad", "together"]


def find_bad(
    start: int,
    energies: Tensor,
    gradient_norms: Tensor,
    positions: Tensor,
    failed: Mapping[int, tuple[int, str]],
    alive: Sequence[int],
) -> dict[int, tuple[int, str]]:
    """Return the chains that went bad in a stretch: how many good steps each took in all, and what happened.

    Args:
        start: the first step of the stretch.
        energies: (steps, chains), where the steps began.
        gradient_norms: of the same shape.
        positions: (steps, chains, dim), where they ended; the last may be missing.
        failed: chain -> step in which it raised, and what.
        alive: the chains that were good before.
    """
    if not failed and bool(torch.isfinite(energies.sum() + gradient_norms.sum() + positions.sum())):
        return {}
    is_place = torch.isfinite(positions).all(-1)
    is_value = torch.isfinite(energies) & torch.isfinite(gradient_norms)
    suspects = set((~(is_place.all(0) & is_value.all(0))).nonzero().flatten().tolist()) | set(failed)
    found = {}
    for chain in sorted(suspects & set(alive)):
        # What was evaluated at step t is the position that step t - 1 made.
        events = [] if chain not in failed else [(failed[chain][0] - 1, 2, failed[chain][1])]
        if not is_place[:, chain].all():
            events.append((start + int(is_place[:, chain].int().argmin()), 0, "the position became non-finite"))
        if not is_value[:, chain].all():
            row = int(is_value[:, chain].int().argmin())
            events.append((start + row - 1, 1, _reason(float(energies[row, chain]))))
        step, _, reason = min(events)
        found[chain] = (max(0, step), reason)
    return found


def together(bad: Mapping[int, tuple[int, str]], group: int, chains: range, alive: Sequence[int]) -> dict[int, tuple[int, str]]:
    """Return `bad` with the chains that meet one of them, which stop where the first of their group does."""
    if group == 1:
        return dict(bad)
    found = {}
    for chain in alive:
        others = [other for other in bad if other // group == chain // group]
        if others:
            first = min(others, key=lambda other: bad[other][0])
            step, reason = bad[first]
            found[chain] = step, reason if chain == first else f"chain {chains[first]}, which it meets, stopped: {reason}"
    return found


def _reason(energy: float) -> str:
    if math.isfinite(energy):
        return "the gradient became non-finite"
    return f"the energy became {energy}" + (": outside the support" if energy == math.inf else "")
