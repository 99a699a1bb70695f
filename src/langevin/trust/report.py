"""What speaks for and against trusting a run: checks with their numbers, and the warning that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Check", "Trust", "TrustWarning"]


class TrustWarning(UserWarning):
    """Something speaks against trusting the draws of a run; `samples.trust` has every check with its number.

    Example:
        >>> import warnings
        >>> import langevin as lv
        >>> import torch
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always", lv.TrustWarning)  # "error" stops a program that must not go on with such draws
        ...     samples = lv.sample(lv.sgld(1e-4), lv.targets.gaussian([[1.0]]), torch.ones(4, 1), num_steps=200, progress=False)
        >>> said[0].category.__name__, samples.trust.is_clean
        ('TrustWarning', False)
    """


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    value: float | None = None  # the number that was found
    error: float | None = None  # its standard error, where it has one
    is_fine: bool | None = None  # None where nothing can be said, or the number is for information
    sentence: str = ""  # what is wrong and what to do; where nothing is, what the number means
    is_said: bool = True  # False where the sentence of another check says the same

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return {True: "ok", False: "WARNING", None: "-"}[self.is_fine]


@dataclass(frozen=True, repr=False)
class Trust:
    """What was looked at in a run; `samples.trust`.

    No news is not proof: chains that agree may share a bias that leaves the temperature as it is, or have all missed a mode.

    Args:
        checks: one for each thing looked at.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> kernel, target = lv.msgld(0.1, bias_factor=10.0, invariant=True), lv.targets.gaussian([[1.0]])
        >>> samples = lv.sample(kernel, target, torch.zeros(4, 1), num_steps=2000, warmup=200, progress=False)
        >>> samples.trust.is_clean, samples.trust.warnings
        (True, [])
        >>> round(samples.trust["temperature"].value, 1)
        1.0
    """

    checks: tuple[Check, ...]

    def __getitem__(self, name: str) -> Check:
        """Return the check of that name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"{name!r} is none of {', '.join(check.name for check in self.checks)}")

    @property
    def warnings(self) -> list[str]:
        """A sentence for everything that speaks against trusting the draws, each with what to do."""
        return [check.sentence for check in self.checks if check.is_fine is False and check.is_said]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.warnings

    def __str__(self) -> str:
        """Return a table of the checks, and the warnings under it."""
        rows = [("check", "value", "error", "")]
        for check in self.checks:
            value, error = ("" if number is None else f"{number:.4g}" for number in (check.value, check.error))
            rows.append((check.name, value, error, check.verdict))
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        lines = [
            f"{name:<{widths[0]}}  {value:>{widths[1]}}  {error:>{widths[2]}}  {verdict}".rstrip()
            for name, value, error, verdict in rows
        ]
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.warnings)])

    __repr__ = __str__
