"""A table of estimates by element, with failed diagnostics above it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import import_extra
from langevin.diagnostics.convergence import errors, mixing

if TYPE_CHECKING:
    import pandas

__all__ = ["Summary"]

_HDI = 0.94  # probability of the interval, as in ArviZ 0.2x
_ROWS = 60  # shown; of a longer table, those at both ends
_MAX_DIGITS = 7
_NUMBERS = 2**22  # draws of this many elements at once


@dataclass(frozen=True, repr=False)
class Summary(Mapping[str, Mapping[str, float]]):
    """A table of estimates: columns by name, each with a number for each element.

    Its values are not rounded; printing rounds them to the digits that the Monte Carlo errors
    leave, below the failed diagnostics in `warnings`.

    Args:
        index: names of the elements.
        columns: numbers of the elements, by column.
        warnings: printed above the table.

    Example:
        >>> import langevin as lv
        >>> table = Summary(("a", "b"), {"mean": (1.0, 2.0), "r_hat": (1.0, 1.02)})
        >>> table["mean"]["b"], list(table)
        (2.0, ['mean', 'r_hat'])
        >>> table
           mean  r_hat
        a     1  1.000
        b     2  1.020
    """

    index: tuple[str, ...]
    columns: Mapping[str, Sequence[float]]
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], draws: Tensor, warnings: Sequence[str] = ()) -> Summary:
        """Summarise draws (chain, draw, element): mean, sd, 94 % interval, errors, ESS, R-hat."""
        size = max(1, _NUMBERS // max(1, draws.shape[0] * draws.shape[1]))
        parts = [_estimates(part.detach().cpu().double()) for part in draws.split(size, -1)]
        columns = {name: torch.cat([part[name] for part in parts]).tolist() for name in parts[0]}
        return cls(tuple(names), columns, tuple(warnings))

    @override
    def __getitem__(self, name: str) -> Mapping[str, float]:
        return dict(zip(self.index, self.columns[name], strict=True))

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    @override
    def __len__(self) -> int:
        return len(self.columns)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a pandas.DataFrame, with the warnings in ``attrs["warnings"]``."""
        module = import_extra("to_pandas()", "pandas", "pandas")
        table: pandas.DataFrame = module.DataFrame(dict(self.columns), index=list(self.index))
        table.attrs["warnings"] = list(self.warnings)
        return table

    @property
    def _cells(self) -> list[list[str]]:
        """The rows as texts, with a header."""
        rows = zip(self.index, zip(*self.columns.values(), strict=True), strict=True)
        lines = [[name, *_shown(dict(zip(self, row, strict=True)))] for name, row in rows]
        if len(lines) > _ROWS:
            half = _ROWS // 2
            lines = [*lines[:half], ["..."] * (1 + len(self)), *lines[-half:]]
        return [["", *self], *lines]

    def __repr__(self) -> str:
        """Return the failed diagnostics and the table."""
        rows = self._cells
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for name, *cells in rows:
            numbers = zip(cells, widths[1:], strict=True)
            lines.append("  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in numbers)]))
        return "\n".join([*(f"! {sentence}" for sentence in self.warnings), *lines])

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        above = "".join(f"<p>{html.escape(f'! {sentence}')}</p>" for sentence in self.warnings)
        rows = (
            "".join(f"<td>{html.escape(cell)}</td>" for cell in row).join(("<tr>", "</tr>"))
            for row in self._cells
        )
        return f"{above}<table>{''.join(rows)}</table>"


def _estimates(draws: Tensor) -> dict[str, Tensor]:
    flat, found, error = draws.flatten(0, 1), mixing(draws), errors(draws)
    ordered = flat.sort(0).values
    inside = int(_HDI * len(flat))
    start = (ordered[inside:] - ordered[: len(flat) - inside]).nan_to_num(torch.inf).argmin(0)
    low, high = (ordered.gather(0, (start + k)[None])[0] for k in (0, inside))
    return {
        "mean": flat.mean(0), "sd": flat.std(0) if len(flat) > 1 else flat[0] * torch.nan,
        "hdi_3%": low, "hdi_97%": high, "mcse_mean": error.mean, "mcse_sd": error.sd,
        "ess_bulk": found.bulk, "ess_tail": found.tail, "r_hat": found.rhat,
    }  # fmt: skip


def _shown(row: Mapping[str, float]) -> list[str]:
    """Return a row as texts, with as many digits as the Monte Carlo errors justify."""
    texts = []
    for name, value in row.items():
        error = row.get("mcse_sd" if name == "sd" else "mcse_mean", math.nan)
        spec = {"ess_bulk": ".0f", "ess_tail": ".0f", "r_hat": ".3f"}.get(name, ".4g")
        if name.startswith("mcse"):
            spec = ".2g"
        elif spec == ".4g" and 0 < error < math.inf and value != 0 and math.isfinite(value):
            digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 2
            spec = f".{min(max(digits, 2), _MAX_DIGITS)}g"
        texts.append(f"{value:{spec}}")
    return texts
