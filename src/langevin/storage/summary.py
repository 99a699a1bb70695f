"""A summary table with warnings above it, in its own module because it imports pandas."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import pandas
from typing_extensions import override

__all__ = ["Summary", "with_warnings"]

_WIDTH = 100  # characters per line
_MAX_DIGITS = 7


class Summary(pandas.DataFrame):
    """A table that prints all its columns, rounded, below the warnings in its `attrs`.

    Its values are not rounded. Slices of it are plain tables.
    """

    @property
    def _lines(self) -> list[str]:
        return [f"! {sentence}" for sentence in self.attrs.get("warnings", ())]

    @override
    def __repr__(self) -> str:
        rows = {name: pandas.get_option(f"display.{name}") for name in ("max_rows", "min_rows")}
        return "\n".join([*self._lines, _rounded(self).to_string(line_width=_WIDTH, **rows)])

    def _repr_html_(self) -> str | None:
        table = _rounded(self)._repr_html_()  # type: ignore[operator] # missing in the stubs
        return "".join([*(f"<p>{html.escape(line)}</p>" for line in self._lines), table or ""])


def with_warnings(table: pandas.DataFrame, warnings: Sequence[str]) -> Summary:
    """Return the table with warnings above it."""
    shown = Summary(table)
    shown.attrs["warnings"] = list(warnings)
    return shown


def _rounded(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return the table as strings with as many digits as the Monte Carlo errors justify."""
    columns = [str(name) for name in table.columns]
    texts = []
    for values in table.itertuples(index=False, name=None):
        row = dict(zip(columns, values, strict=True))
        texts.append([_shown(name, value, row) for name, value in row.items()])
    return pandas.DataFrame(texts, index=table.index, columns=table.columns)


def _shown(name: str, value: Any, row: dict[str, Any]) -> str:
    if not isinstance(value, Real) or isinstance(value, bool):
        return str(value)
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    if name.startswith("ess"):
        return f"{number:.0f}"
    if name == "r_hat":
        return f"{number:.3f}"
    if name.startswith("mcse"):
        return f"{number:.2g}"
    error = row.get("mcse_sd" if name == "sd" else "mcse_mean", math.nan)
    if not isinstance(error, Real) or not 0 < float(error) < math.inf or number == 0:
        return f"{number:.4g}"
    digits = math.floor(math.log10(abs(number))) - math.floor(math.log10(error)) + 2
    return f"{number:.{min(max(digits, 2), _MAX_DIGITS)}g}"
