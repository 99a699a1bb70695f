"""Draws, axes (chain, draw, dim), with what happened to each chain."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    import arviz
    import pandas

__all__ = ["ChainStatus", "Samples"]


def _arviz() -> ModuleType:
    """Import ArviZ when it is needed: it takes seconds, and warns of its coming refactor once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


class ChainStatus(NamedTuple):
    """How a chain ended."""

    chain: int  # the chain's number
    steps: int  # steps taken
    draws: int  # draws kept
    reason: str | None  # None for a chain that ran to its end

    @property
    def is_healthy(self) -> bool:
        """Whether the chain ran to its end."""
        return self.reason is None

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.is_healthy:
            return f"chain {self.chain}: {self.steps} steps, {self.draws} draws"
        return f"chain {self.chain} stopped at step {self.steps}: {self.reason}; {self.draws} draws kept"


@dataclass(frozen=True)
class Samples:
    """The result of `sample`.

    Args:
        draws: (chain, draw, dim); a chain that stopped early has NaN after its last draw.
        status: one entry per chain.
        energy: U at each draw's predecessor, where the gradient was taken, (chain, draw).
        description: the sampler's SDE and law.
        seconds: wall time of the run.
    """

    draws: Tensor
    status: tuple[ChainStatus, ...]
    energy: Tensor
    description: str
    seconds: float

    @property
    def healthy(self) -> Tensor:
        """The draws of the chains that ran to their end, (healthy chains, draw, dim)."""
        return self.draws[[k for k, status in enumerate(self.status) if status.is_healthy]]

    def to_arviz(self) -> arviz.InferenceData:
        """Return the healthy chains as ArviZ data: variable `theta`, statistic `energy`."""
        good = [k for k, status in enumerate(self.status) if status.is_healthy]
        if not good or self.draws.shape[1] == 0:
            raise ValueError("to_arviz() needs a healthy chain with draws, got: " + "; ".join(map(str, self.status)))
        return _arviz().from_dict(
            posterior={"theta": self.draws[good].cpu().numpy()},
            sample_stats={"energy": self.energy[good].cpu().numpy()},
        )

    def summary(self) -> pandas.DataFrame:
        """Return mean, sd, Monte Carlo error, effective sample size and R-hat of each element, by ArviZ."""
        return _arviz().summary(self.to_arviz(), var_names=["theta"], round_to="none")
