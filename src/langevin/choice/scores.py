"""Settings with their scores: which is chosen, and why, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Measured", "PriorScore", "as_good", "choose", "describe", "end_of_ladder", "scores", "verdict"]


@dataclass(frozen=True)
class Measured:
    """A setting and how much it loses, lower being better."""

    scale: float
    temperature: float
    losses: Tensor | None  # parts whose mean counts: of each held-out row, or of each probe; None where nothing was found
    note: str = ""
    doubts: tuple[str, ...] = ()  # what speaks against the number, said when the setting is chosen

    @property
    def loss(self) -> float:
        """The mean of the losses; infinite where there is none."""
        value = math.inf if self.losses is None else float(self.losses.mean())
        return value if math.isfinite(value) else math.inf


@dataclass(frozen=True)
class PriorScore:
    """A row of the table.

    Example:
        >>> score = PriorScore(scale=0.5, temperature=1.0, score=-554.6, worse=173.4, error=4.9, is_chosen=False, note="")
        >>> score.worse > 2 * score.error  # the best setting is better, beyond chance
        True
    """

    scale: float
    temperature: float
    score: float  # log evidence, or mean NLL of a held-out row; NaN where there is none
    worse: float  # than the best setting, in the same units, >= 0
    error: float  # standard error of `worse`, from the same rows or probes
    is_chosen: bool
    note: str


def versus(setting: Measured, best: Measured) -> tuple[float, float]:
    """Return how much more a setting loses than the best one, and the standard error of that: parts are paired."""
    if setting.losses is None or best.losses is None or setting.loss == math.inf:
        return math.inf, 0.0
    gaps = setting.losses - best.losses
    return float(gaps.mean()), float(gaps.std() / len(gaps) ** 0.5) if len(gaps) > 1 else 0.0


def as_good(measured: Sequence[Measured], tolerance: float) -> list[Measured]:
    """Return the settings whose loss is within one standard error of the best one's, or within `tolerance`."""
    best = min(measured, key=lambda setting: setting.loss)
    return [setting for setting in measured if setting is best or _is_close(*versus(setting, best), tolerance)]


def _is_close(worse: float, error: float, tolerance: float) -> bool:
    return worse <= max(error, tolerance)


def choose(measured: Sequence[Measured], tolerance: float) -> Measured:
    """Of the settings that are as good as the best one, take the temperature nearest 1, and there the best scale."""
    return min(as_good(measured, tolerance), key=lambda setting: (abs(math.log(setting.temperature)), setting.loss))


def scores(measured: Sequence[Measured], chosen: Measured, sign: int) -> tuple[PriorScore, ...]:
    """Return the table; a score is `sign` times the loss."""
    best = min(measured, key=lambda setting: setting.loss)
    rows = []
    for setting in measured:
        score = sign * setting.loss if setting.loss < math.inf else math.nan
        rows.append(PriorScore(setting.scale, setting.temperature, score, *versus(setting, best), setting is chosen, setting.note))
    return tuple(rows)


def end_of_ladder(measured: Sequence[Measured], chosen: Measured) -> list[str]:
    """Say where the chosen setting has no neighbour on one side, so that a better one may lie beyond."""
    found = []
    scales = [setting.scale for setting in measured]
    if chosen.scale in (min(scales), max(scales)):
        which, more = ("smallest", "smaller") if chosen.scale == min(scales) else ("largest", "larger")
        found.append(f"the best scale, {chosen.scale:g}, is the {which} that was tried: try {more} ones (scales)")
    heats = {setting.temperature for setting in measured}
    if len(heats) > 1 and chosen.temperature != 1 and chosen.temperature in (min(heats), max(heats)):
        which, more = ("lowest", "lower") if chosen.temperature == min(heats) else ("highest", "higher")
        found.append(f"the best temperature, {chosen.temperature:g}, is the {which} that was tried: try {more} ones (temperatures)")
    return found


def verdict(table: Sequence[PriorScore], equals: Sequence[Measured], chosen: Measured, digits: int) -> list[str]:
    """Say what was chosen, and how flat the curve is."""
    differ = len({row.temperature for row in table}) > 1

    def named(setting: Measured | PriorScore) -> str:
        return f"{setting.scale:g}" + (f" at temperature {setting.temperature:g}" if differ else "")

    lines = [f"  chosen: scale {chosen.scale:g}, temperature {chosen.temperature:g}"]
    others = [named(setting) for setting in equals if setting is not chosen]
    if others:
        rule = " (of these, the temperature nearest 1 is taken, and there the best scale)" if differ else ""
        return [*lines, f"  flat: {', '.join(others)} cannot be told from it{rule}"]
    nearest = min((row for row in table if not row.is_chosen), key=lambda row: row.worse)
    if math.isfinite(nearest.worse):
        lines.append(f"  not flat: the next best, {named(nearest)}, is worse by {_worse(nearest, digits)}")
    return lines


def _worse(row: PriorScore, digits: int) -> str:
    return f"{row.worse:.{digits}f}" + (f" ± {row.error:.{digits}f}" if row.error else "")


def describe(table: Sequence[PriorScore], name: str, digits: int) -> list[str]:
    """Return the table in lines, the chosen row marked; temperatures only where they differ."""
    differ = len({row.temperature for row in table}) > 1
    lines = [f"  {'scale':>8s}{'temperature' if differ else '':>{13 if differ else 0}s}{name:>16s}{'worse by':>18s}"]
    for row in table:
        mark = "*" if row.is_chosen else " "
        temperature = f"{row.temperature:13.4g}" if differ else ""
        worse = "best" if row.worse == 0 else _worse(row, digits)
        numbers = f"{row.score:16.{digits}f}{worse:>18s}" if math.isfinite(row.score) else f"{'-':>16s}{'':18s}"
        lines.append(f"{mark} {row.scale:8.4g}{temperature}{numbers}{'  ' + row.note if row.note else ''}".rstrip())
    return lines
