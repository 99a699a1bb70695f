"""Search for modes from many starts; find out whether chains cross between them.

Each end of a descent is the mode of an earlier end, or joined to one by a straight path without a
barrier, or a mode of its own. The mass of a mode is that of the Gaussian with its curvature
(Laplace): ``exp(-U / τ) |det H / τ|^(-1/2)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.adaptation.descent import Descent, descend
from langevin.adaptation.metric import Curvature, curvature
from langevin.random import Purpose, normal, streams
from langevin.targets.gradients import GradientFn
from langevin.targets.prior_draws import RADII

__all__ = [
    "STARTS",
    "Mode",
    "Modes",
    "allocate",
    "describe_rare",
    "explore",
    "find_modes",
    "labels",
    "rarely_crossed",
    "wide_starts",
]

STARTS = 64  # searches in all, those of the chains among them
_EVALUATIONS = 150  # most gradients of one of the other searches; those that need more are dropped
_SEARCH = 2**42  # step of the random numbers of the starts; no run reaches it
_FIRST = 2**31  # number of the first start
_BARRIER = 1.0  # rise of the energy along a straight path, in units of τ, that separates modes
_PATH = 15  # positions on that path
_MOST = 12  # modes that are kept
_FLAT = 1e-6  # smallest eigenvalue of the scaled Hessian of a mode
_UNDONE = 0.1  # decrease of the energy, in units of τ, that a Newton step from a mode may promise
_POLISHED = 1e-6  # tolerance of the search that is continued from a new mode, in units of τ
_NEAR = 2.0  # standard deviations of a mode within which an end belongs to it
_LIGHT = 1e-6  # share of the mass below which a mode is ignored
_MARGIN = 20.0  # ratio of densities from which a chain has crossed to another mode
_SHIFT = 0.1  # random error of a mean, in standard deviations, or of a standard deviation
_UNSEEN = 0.05  # the same, of a mode that no chain reaches


class Mode(NamedTuple):
    """A local minimum of the energy."""

    position: Tensor  # (dim,)
    energy: float
    curvature: Curvature
    volume: float  # log of |det H|^(-1/2)

    def squares(self, positions: Tensor) -> Tensor:
        """Return ``(θ - m)^T H (θ - m)``, the squared distance in standard deviations at τ = 1."""
        scaled = (positions - self.position) / self.curvature.width
        return ((scaled @ self.curvature.hessian) * scaled).sum(-1)


class Modes(NamedTuple):
    """Modes and their shares of the mass by Laplace's approximation, the largest first."""

    modes: Sequence[Mode]
    weights: Tensor  # sum to 1
    gradients: int  # of all searches

    def distance(self, index: int, temperature: float = 1.0) -> float:
        """Return the distance of a mode from the first, in its larger standard deviation there."""
        first, other = self.modes[0], self.modes[index]
        pair = first.squares(other.position), other.squares(first.position)
        return (min(float(value) for value in pair) / temperature) ** 0.5


def wide_starts(count: int, seed: int, like: Tensor) -> Tensor:
    """Draw positions (count, dim), uniform on [-r, r] with r = 2, 5, 10, 20 in turn."""
    at = streams(Purpose.INIT, range(_FIRST, _FIRST + count))
    noise = normal(seed, at, _SEARCH, len(like), dtype=like.dtype, device=like.device)
    radii = like.new_tensor(RADII).repeat(-(-count // len(RADII)))[:count]
    return radii[:, None] * torch.erf(noise / 2**0.5)


def explore(gradient_fn: GradientFn, starts: Tensor, temperature: float = 1.0) -> Descent:
    """Search for modes from further starts; those without a finite energy are dropped."""
    energy, gradient = gradient_fn(starts, 0)
    is_good = torch.isfinite(energy) & torch.isfinite(gradient).all(-1)
    found = descend(gradient_fn, starts[is_good], _EVALUATIONS, 0.01 * temperature)
    return found._replace(total=found.total + len(starts))


def find_modes(
    gradient_fn: GradientFn, searches: Sequence[Descent], chains: int, temperature: float = 1.0
) -> Modes:
    """Return the distinct modes among the ends of some searches.

    Args:
        gradient_fn: the exact gradient.
        searches: their results. Those that did not reach a mode do not count.
        chains: gradients that are computed at once.
        temperature: of the target.

    Example:
        >>> import langevin as lv
        >>> from langevin.targets.gradients import full
        >>> target = lv.targets.mixture([[-4.0], [4.0]], std=1.0, weights=[0.7, 0.3])
        >>> gradient_fn = full(target)
        >>> starts = wide_starts(16, 0, torch.zeros(1, dtype=torch.float64))
        >>> found = find_modes(gradient_fn, [explore(gradient_fn, starts)], chains=8)
        >>> found.weights.round(decimals=2), round(found.distance(1))
        (tensor([0.7000, 0.3000], dtype=torch.float64), 8)
    """
    position = torch.cat([found.position[found.is_done] for found in searches])
    energy = torch.cat([found.energy[found.is_done] for found in searches])
    taken, modes, others = 0, list[Mode](), list[Mode]()

    def is_known(end: Tensor, height: float) -> bool:
        nonlocal taken
        known = [*modes, *others]
        if any(_is_near(mode, end, height, temperature) for mode in known):
            return True
        joined, number = _is_joined(gradient_fn, known, end, height, chains, temperature)
        taken += number
        return joined

    for index in energy.argsort(stable=True).tolist():
        end, height = position[index], float(energy[index])
        if len(modes) == _MOST or not math.isfinite(height):
            break
        if is_known(end, height):
            continue
        # Curved valleys are flat along their floor, where a search stops early.
        polished = descend(gradient_fn, end[None], _EVALUATIONS, _POLISHED * temperature)
        end, height = polished.position[0], float(polished.energy[0])
        taken += polished.total
        if is_known(end, height):
            continue
        found = curvature(gradient_fn, end, chains)
        taken += chains * found.gradients + 1
        slope = gradient_fn(end[None], 0).gradient[0]
        volume = 0.5 * (2 * found.width.double().log().sum() - found.values.abs().log().sum())
        mode = Mode(end, height, found, float(volume))
        is_steep = float(found.values.min()) > _FLAT
        is_mode = is_steep and found.decrement(slope) < _UNDONE * temperature
        (modes if is_mode else others).append(mode)
    if not modes:
        return Modes([], energy.new_zeros(0), taken)
    logs = torch.tensor(
        [mode.volume - mode.energy / temperature for mode in modes], dtype=torch.float64
    )
    weights, order = logs.softmax(0).sort(descending=True, stable=True)
    kept = weights > _LIGHT
    return Modes([modes[k] for k in order[kept].tolist()], weights[kept], taken)


def _is_near(mode: Mode, end: Tensor, energy: float, temperature: float) -> bool:
    """Return whether an end lies within a mode's Gaussian, at about the energy that this gives."""
    square = float(mode.squares(end)) / temperature
    rise = (energy - mode.energy) / temperature
    return 0 <= square < _NEAR**2 and rise < _NEAR**2


def _is_joined(
    gradient_fn: GradientFn,
    modes: Sequence[Mode],
    end: Tensor,
    energy: float,
    chains: int,
    temperature: float,
) -> tuple[bool, int]:
    """Return whether a straight path without a barrier leads to a mode, and the gradients taken."""
    share = torch.linspace(0, 1, _PATH + 2, dtype=end.dtype, device=end.device)[1:-1, None]
    for number, mode in enumerate(modes):
        path = mode.position + share * (end - mode.position)
        heights = torch.cat([gradient_fn(part, 0).energy for part in path.split(chains)])
        rise = float(heights.nan_to_num(torch.inf).max()) - max(energy, mode.energy)
        if rise < _BARRIER * temperature:
            return True, _PATH * (number + 1)
    return False, _PATH * len(modes)


def allocate(weights: Tensor, chains: int) -> Tensor:
    """Return the mode of each chain: shares of the chains in proportion to weights, rounded.

    Example:
        >>> allocate(torch.tensor([0.7, 0.25, 0.05]), 8)
        tensor([0, 0, 0, 0, 0, 0, 1, 1])
    """
    exact = weights.double() * chains
    counts = exact.floor()
    most = (exact - counts).argsort(descending=True, stable=True)
    counts[most[: chains - int(counts.sum())]] += 1
    return torch.arange(len(weights)).repeat_interleave(counts.long())


def labels(modes: Modes, paths: Tensor, first: Tensor, temperature: float) -> Tensor:
    """Return the mode of each position of some paths (steps, chains, dim), which begin in `first`.

    A chain is in another mode as soon as that mode's Gaussian is `_MARGIN` times as dense there.
    """
    logs = torch.stack(
        [-(mode.energy + 0.5 * mode.squares(paths)) / temperature for mode in modes.modes], -1
    )
    found, current = [], first
    for row in logs:
        best = row.argmax(-1)
        gain = row.gather(-1, best[:, None]) - row.gather(-1, current[:, None])
        current = torch.where(gain[:, 0] > math.log(_MARGIN), best, current)
        found.append(current)
    return torch.stack(found)


def rarely_crossed(modes: Modes, found: Tensor, steps: int, temperature: float = 1.0) -> list[int]:
    """Return the modes besides the first that chains visit too rarely for their weight to count.

    In `steps` steps a mode of weight w, which chains leave at the rate r, is visited ``n = w r
    steps`` times, so that its share of the draws has the relative error ``sqrt(2 / n)``. It matters
    if that shifts a mean by more than `_SHIFT` standard deviations, or changes one by that share;
    for a mode that chains never leave, `_UNSEEN`.

    Args:
        modes: two or more.
        found: the mode at each step of a test run, (steps, chains).
        steps: of all chains in the run to come.
        temperature: of the target.
    """
    rare = []
    for index in range(1, len(modes.modes)):
        weight = float(modes.weights[index])
        inside = found[:-1] == index
        rate = int((inside & (found[1:] != index)).sum()) / max(1, int(inside.sum()))
        error = min(1.0, (2 / max(1e-300, weight * rate * steps)) ** 0.5)
        square = float(modes.modes[0].squares(modes.modes[index].position)) / temperature
        spread = 1 + weight * (1 - weight) * square  # of the variance, by the mode
        shift = error * weight * (square / spread) ** 0.5
        widening = 0.5 * error * weight * (1 - weight) * square / spread
        if max(shift, widening) > (_SHIFT if rate > 0 else _UNSEEN):
            rare.append(index)
    return rare


def describe_rare(
    modes: Modes,
    rare: Sequence[int],
    found: Tensor,
    starts: Tensor,
    name_of: Callable[[int], str],
    temperature: float = 1.0,
) -> str:
    """Return the warning about modes between which chains hardly cross."""
    shown = [0, *rare]
    number = f"at least {len(shown)}" if len(modes.modes) == _MOST else f"{len(shown)}"
    weights = ", ".join(f"{float(modes.weights[k]):.2g}" for k in shown)
    nearest = min(modes.distance(k, temperature) for k in rare)
    first, other = modes.modes[0], modes.modes[rare[0]]
    apart = int(((other.position - first.position) / first.curvature.width).abs().argmax())
    crossed = int((found[1:] != found[:-1]).sum())
    counts = ", ".join(str(int((starts == k).sum())) for k in shown)
    return (
        f"the posterior has {number} modes between which chains hardly cross ({crossed} times in "
        f"{found.numel():,} test steps). Their Laplace weights are {weights}; the nearest two are "
        f"{nearest:.2g} standard deviations apart, mostly in {name_of(apart)}. Of the chains, "
        f"{counts} start there, so the draws do not have the weights of the posterior. Use "
        "replica_exchange, which crosses between modes (docs/modes.md), or a prior that excludes "
        "some."
    )
