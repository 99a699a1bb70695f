"""Find directions along which an energy is constant: the posterior is improper there.

If ``U(θ + t v) = U(θ)`` for all t, every gradient is orthogonal to v. So v is a null vector of the
gradients at some positions, which gives it to rounding. Then the energy far out decides: priors,
heavy tails and distant walls make it rise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from langevin.adaptation.metric import Curvature
from langevin.targets.gradients import GradientFn

__all__ = ["check_identified", "flat_directions"]

_RISE = 1e-3  # of the energy, in units of τ, that identifies a direction
_ROUNDING = 1e-10  # of the energy, relative
_FARTHEST = 1e12  # distance, in widths
_BLUR = 1e-4  # rounding of a position there, in widths, that is allowed
_SMALL = 1e-6  # coefficient that is not shown
_TERMS, _SHOWN = 4, 3  # terms of a direction and directions in a message


def flat_directions(
    gradient_fn: GradientFn, found: Curvature, centre: Tensor, chains: int, temperature: float = 1.0
) -> Tensor:
    """Return directions (n, dim) along which the energy is constant; each has few elements.

    Args:
        gradient_fn: the exact gradient.
        found: the curvature at `centre`.
        centre: a position, (dim,).
        chains: how many energies are computed at once.
        temperature: of the target.

    Example:
        >>> import langevin as lv
        >>> from langevin.adaptation.metric import curvature
        >>> from langevin.targets.gradients import full
        >>> gradient_fn = full(lv.targets.energy(lambda t: (t[0] + 2 * t[1] - 1) ** 2 + t[2] ** 2))
        >>> centre = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        >>> flat_directions(gradient_fn, curvature(gradient_fn, centre, 4), centre, 4)
        tensor([[ 1.0000, -0.5000,  0.0000]], dtype=torch.float64)
    """
    eps = torch.finfo(centre.dtype).eps
    slopes = found.slopes.double().nan_to_num(0.0, 0.0, 0.0)
    _, sizes, vectors = torch.linalg.svd(slopes, full_matrices=False)
    basis = vectors[sizes <= eps**0.5 * sizes[0]] * found.width
    origins = torch.stack([centre, centre + 0.5 * found.width.clamp(max=1.0)])
    flat = [
        row
        for row in _reduced(basis)
        if _is_flat(gradient_fn, origins, row.to(centre), found.width, chains, temperature)
    ]
    return torch.stack(flat).to(centre) if flat else centre.new_zeros(0, len(centre))


def _is_flat(
    gradient_fn: GradientFn,
    origins: Tensor,
    direction: Tensor,
    width: Tensor,
    chains: int,
    temperature: float,
) -> bool:
    """Return whether the energy stays the same from near to as far as positions are exact."""
    eps = torch.finfo(direction.dtype).eps
    alone = int((direction != 0).sum()) == 1  # others need no cancellation between elements
    narrowest = float(width[direction != 0].min())
    farthest = _FARTHEST if alone else min(_FARTHEST, _BLUR * narrowest / eps)
    lengths = torch.logspace(0, 1, 13, base=max(10.0, farthest), dtype=direction.dtype)
    steps = torch.cat([lengths, -lengths]).to(direction.device)[:, None] * direction
    for origin in origins:
        start = gradient_fn(origin.repeat(chains, 1), 0).energy[0]
        energy = torch.cat([gradient_fn(origin + part, 0).energy for part in steps.split(chains)])
        allowed = _RISE * temperature + _ROUNDING * float(start.abs())
        if not bool(((energy - start).abs().nan_to_num(torch.inf) <= allowed).all()):
            return False
    return True


def _reduced(basis: Tensor) -> Tensor:
    """Return the reduced row echelon form of the rows, which names few elements in each."""
    rows = basis / basis.abs().amax(1, keepdim=True).clamp(min=1e-300)
    for index in range(len(rows)):
        pivot = int(rows[index].abs().argmax())
        rows[index] = rows[index] / rows[index, pivot]
        others = torch.arange(len(rows)) != index
        rows[others] -= rows[others][:, pivot, None] * rows[index]
    rows = rows / rows.abs().amax(1, keepdim=True).clamp(min=1e-300)
    rows = torch.where(rows.abs() < _SMALL, torch.zeros_like(rows), rows)
    return rows[(rows != 0).int().argmax(1).argsort(stable=True)]


def check_identified(directions: Tensor, name_of: Callable[[int], str]) -> None:
    """Fail if there are directions along which the energy is constant; name them."""
    if not len(directions):
        return
    shown = ", ".join(_describe(row, name_of) for row in directions[:_SHOWN])
    more = f" and {len(directions) - _SHOWN} more" if len(directions) > _SHOWN else ""
    verb = "is" if len(directions) == 1 else "are"
    raise ValueError(
        f"{shown}{more} {verb} not identified by data and prior: the energy stays the same however "
        "far theta moves in that direction, so the posterior is improper. Add a prior, or remove "
        "a parameter"
    )


def _describe(direction: Tensor, name_of: Callable[[int], str]) -> str:
    """Return a direction as a sum of its elements, such as "a - 0.5 b"."""
    terms = []
    order = direction.nonzero()[:, 0]
    sign = 1.0 if float(direction[order[0]]) > 0 else -1.0
    for index in order[:_TERMS].tolist():
        value = sign * float(direction[index])
        size = "" if abs(abs(value) - 1) < 1e-3 else f"{abs(value):.3g} "
        joint = "" if not terms else " + " if value > 0 else " - "
        terms.append(f"{joint}{size}{name_of(index)}")
    return "".join(terms) + (" + ..." if len(order) > _TERMS else "")
