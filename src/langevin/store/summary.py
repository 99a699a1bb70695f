"""A table with warnings above it; apart, since it imports pandas."""

from __future__ import annotations

import html
from collections.abc import Sequence

import pandas
from typing_extensions import override

__all__ = ["Summary", "with_warnings"]


class Summary(pandas.DataFrame):
    """A table that shows the warnings in its `attrs` above itself; what is cut out of it is a plain table."""

    @property
    def _lines(self) -> list[str]:
        return [f"! {sentence}" for sentence in self.attrs.get("warnings", ())]

    @override
    def __repr__(self) -> str:
        return "\n".join([*self._lines, super().__repr__()])

    def _repr_html_(self) -> str | None:
        table = pandas.DataFrame(self)._repr_html_()  # type: ignore[operator] # the stubs do not know it
        return "".join([*(f"<p>{html.escape(line)}</p>" for line in self._lines), table or ""])


def with_warnings(table: pandas.DataFrame, warnings: Sequence[str]) -> Summary:
    """Return the table with warnings above it."""
    shown = Summary(table)
    shown.attrs["warnings"] = list(warnings)
    return shown
