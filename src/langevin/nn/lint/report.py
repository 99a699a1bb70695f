"""The result of `lint`: a list of findings, each with its number and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Finding", "Lint", "listed"]


class Finding(NamedTuple):
    """One mistake.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Linear(2, 1)
        >>> opt = lv.optim.SGLD(net.parameters(), lr=0.01, num_data=100)
        >>> batch = torch.ones(8, 2), torch.ones(8, 1)
        >>> report = lv.lint(net, nn.MSELoss(reduction="sum"), opt, batch, verbose=False)
        >>> report.findings[0].name, report.findings[0].fix
        ('sum loss', 'Take the mean over the batch: reduction="mean", or loss / len(x).')
    """

    name: str  # as in the table of docs/lint.md
    sentence: str  # what is wrong, with its number, and its effect on the draws
    fix: str  # what to write instead
    value: float | None = None  # the number that was measured
    is_note: bool = False  # for information, not a mistake


@dataclass(frozen=True, repr=False)
class Lint:
    """The findings of `lint`; `str` returns a readable report.

    Args:
        findings: the mistakes.
        skipped: checks that could not run, and why.
        notes: for information; the report is clean with them.

    Example:
        >>> print(Lint((Finding("sum loss", "The loss is a sum.", 'Take reduction="mean".', 2.0),)))
        sum loss: The loss is a sum.
          -> Take reduction="mean".
        >>> Lint(()).is_clean
        True
    """

    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = ()
    notes: tuple[Finding, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether there are no mistakes."""
        return not self.findings

    @property
    def names(self) -> list[str]:
        """The names of the mistakes."""
        return [finding.name for finding in self.findings]

    def __getitem__(self, name: str) -> Finding:
        """Return the finding of that name."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"{name!r} is none of the findings {self.names}")

    def __str__(self) -> str:
        """Return the findings and notes, two lines each, and the skipped checks."""
        lines = [
            f"{'note, ' if f.is_note else ''}{f.name}: {f.sentence}\n  -> {f.fix}"
            for f in (*self.findings, *self.notes)
        ]
        skipped = [f"(skipped: {text})" for text in self.skipped]
        return "\n".join([*(lines or ["nothing found"]), *skipped])

    __repr__ = __str__


def listed(names: list[str], most: int = 3) -> str:
    """Return the first names, and dots if there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
