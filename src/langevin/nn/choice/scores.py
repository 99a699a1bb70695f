"""Settings with their scores: which is chosen, and the table and lines that explain the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = [
    "Measured",
    "PriorScore",
    "as_good",
    "choose",
    "describe",
    "end_of_ladder",
    "scores",
    "verdict",
    "versus",
]


@dataclass(frozen=True)
class Measured:
    """A setting and its loss; lower is better."""

    scale: float
    temperature: float
    losses: Tensor | None  # of each held-out row or probe, to be averaged; None if it failed
    note: str = ""
    doubts: tuple[str, ...] = ()  # reported if the setting is chosen

    @property
    def loss(self) -> float:
        """The mean of the losses; infinite if it failed."""
        value = math.inf if self.losses is None else float(self.losses.mean())
        return value if math.isfinite(value) else math.inf


@dataclass(frozen=True)
class PriorScore:
    """A row of the table.

    Example:
        >>> settings = {"scale": 0.5, "temperature": 1.0, "is_chosen": False, "note": ""}
        >>> score = PriorScore(score=-554.6, worse=173.4, error=4.9, **settings)
        >>> score.worse > 2 * score.error  # significantly worse than the best setting
        True
    """

    scale: float
    temperature: float
    score: float  # log evidence, or mean NLL of a held-out row; NaN if it failed
    worse: float  # difference from the best setting, >= 0
    error: float  # standard error of `worse`, from the same rows or probes
    is_chosen: bool
    note: str


def versus(setting: Measured, best: Measured) -> tuple[float, float]:
    """Return the mean excess loss over the best setting, paired, and its standard error."""
    if setting.losses is None or best.losses is None or setting.loss == math.inf:
        return math.inf, 0.0
    gaps = setting.losses - best.losses
    return float(gaps.mean()), float(gaps.std() / len(gaps) ** 0.5) if len(gaps) > 1 else 0.0


def _best(measured: Sequence[Measured]) -> Measured:
    return min(measured, key=lambda setting: setting.loss)


def as_good(measured: Sequence[Measured], tolerance: float) -> list[Measured]:
    """Return the settings within one standard error of the best one, or within `tolerance`."""
    best, found = _best(measured), []
    for setting in measured:
        worse, error = versus(setting, best)
        if setting is best or worse <= max(error, tolerance):
            found.append(setting)
    return found


def choose(measured: Sequence[Measured], tolerance: float) -> Measured:
    """Return the setting with temperature nearest 1, then lowest loss, of those `as_good`."""
    candidates = as_good(measured, tolerance)
    return min(candidates, key=lambda s: (abs(math.log(s.temperature)), s.loss))


def scores(measured: Sequence[Measured], chosen: Measured, sign: int) -> tuple[PriorScore, ...]:
    """Return the table; a score is `sign` times the loss."""
    best, rows = _best(measured), []
    for m in measured:
        score = sign * m.loss if m.loss < math.inf else math.nan
        differs = versus(m, best)
        rows.append(PriorScore(m.scale, m.temperature, score, *differs, m is chosen, m.note))
    return tuple(rows)


def end_of_ladder(measured: Sequence[Measured], chosen: Measured) -> list[str]:
    """Return warnings for a choice at an end of a ladder, beyond which may be a better one."""

    def warn(name: str, value: float, values: set[float], low: str, high: str) -> list[str]:
        if value not in (min(values), max(values)):
            return []
        end = low if value == min(values) else high
        text = f"the best {name}, {value:g}, is the {end}est that was tried"
        return [f"{text}: try {end}er ones ({name}s)"]

    temperature, temperatures = chosen.temperature, {m.temperature for m in measured}
    found = warn("scale", chosen.scale, {m.scale for m in measured}, "small", "larg")
    if len(temperatures) > 1 and temperature != 1:
        found += warn("temperature", temperature, temperatures, "low", "high")
    return found


def verdict(
    table: Sequence[PriorScore], equals: Sequence[Measured], chosen: Measured, digits: int
) -> list[str]:
    """Return lines about the choice and how flat the curve is."""
    differ = len({row.temperature for row in table}) > 1

    def name(setting: Measured | PriorScore) -> str:
        return f"{setting.scale:g}" + (f" at temperature {setting.temperature:g}" if differ else "")

    lines = [f"  chosen: scale {chosen.scale:g}, temperature {chosen.temperature:g}"]
    others = ", ".join(name(setting) for setting in equals if setting is not chosen)
    if others:
        rule = " (the rule: temperature nearest 1, then the best scale)" if differ else ""
        return [*lines, f"  flat: {others} cannot be distinguished from it{rule}"]
    nearest = min((row for row in table if not row.is_chosen), key=lambda row: row.worse)
    if math.isfinite(nearest.worse):
        worse = _difference(nearest, digits)
        lines.append(f"  not flat: the next best, {name(nearest)}, is worse by {worse}")
    return lines


def _difference(row: PriorScore, digits: int) -> str:
    return f"{row.worse:.{digits}f}" + (f" ± {row.error:.{digits}f}" if row.error else "")


def describe(table: Sequence[PriorScore], name: str, digits: int) -> list[str]:
    """Return the table in lines, the chosen row marked; temperatures only if they differ."""
    differ = len({row.temperature for row in table}) > 1
    heading = f"{'temperature':>13s}" if differ else ""
    lines = [f"  {'scale':>8s}{heading}{name:>16s}{'worse by':>18s}"]
    for row in table:
        mark = "*" if row.is_chosen else " "
        temperature = f"{row.temperature:13.4g}" if differ else ""
        numbers = f"{'-':>16s}{'':18s}"
        if math.isfinite(row.score):
            worse = "best" if row.worse == 0 else _difference(row, digits)
            numbers = f"{row.score:16.{digits}f}{worse:>18s}"
        note = f"  {row.note}" if row.note else ""
        lines.append(f"{mark} {row.scale:8.4g}{temperature}{numbers}{note}".rstrip())
    return lines
