"""What `lint` found: a list of findings, each a sentence with its number and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Finding", "Lint"]


class Finding(NamedTuple):
    """One mistake.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Linear(2, 1)
        >>> opt = lv.optim.SGLD(net.parameters(), lr=0.01, num_data=100)
        >>> report = lv.lint(net, nn.MSELoss(reduction="sum"), opt, (torch.ones(8, 2), torch.ones(8, 1)), verbose=False)
        >>> report.findings[0].name, report.findings[0].fix
        ('sum loss', 'Take the mean over the batch: reduction="mean", or loss / len(x).')
    """

    name: str  # as in the table of docs/lint.md
    sentence: str  # what was seen, with its number, and what it does to the draws
    fix: str  # what to write instead
    value: float | None = None  # the number that was measured


@dataclass(frozen=True, repr=False)
class Lint:
    """What `lint` found; `str` of it is readable.

    Args:
        findings: the mistakes.
        skipped: what could not be looked at, and why: no mistakes.

    Example:
        >>> print(Lint((Finding("sum loss", "The loss is a sum.", 'Take reduction="mean".', 2.0),)))
        sum loss: The loss is a sum.
          -> Take reduction="mean".
        >>> Lint(()).is_clean
        True
    """

    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
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
        """Return the findings, two lines each, and what was skipped."""
        lines = [f"{finding.name}: {finding.sentence}\n  -> {finding.fix}" for finding in self.findings]
        return "\n".join([*(lines or ["nothing found"]), *(f"(not looked at: {text})" for text in self.skipped)])

    __repr__ = __str__
