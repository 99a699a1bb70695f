"""What a target is: an energy with its gradient, for any number of chains at once."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from langevin.checks import needs

__all__ = ["Batch", "Evaluation", "Target", "check_dim", "check_target"]


class Batch(NamedTuple):
    """Rows of a data set."""

    columns: tuple[Tensor, ...]  # one tensor per column: (n, ...), or (chains, n, ...) when every chain has rows of its own
    num_data: int  # N, the rows of the whole data set
    per_chain: bool  # whether the columns have the chain axis

    @property
    def scale(self) -> float:
        """N / n: what makes the batch's log-likelihood an unbiased estimate of the data set's."""
        return self.num_data / self.columns[0].shape[1 if self.per_chain else 0]


class Evaluation(NamedTuple):
    """An energy and its gradient at some positions."""

    energy: Tensor  # U, shape (chains,)
    gradient: Tensor  # grad U, shape (chains, dim)


@runtime_checkable
class Target(Protocol):
    """The energy of a law ``exp(-U)``. The library speaks energy and goes downhill; log densities appear only in `targets`."""

    @property
    def needs_data(self) -> bool:
        """Whether `evaluate` takes rows of a data set."""
        ...

    @property
    def gradient_noise(self) -> float:
        """Standard deviation of the N(0, I) noise that the paper adds to the exact gradient; 0 for none."""
        ...

    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        """Return U and its gradient at `position`, shape (chains, dim); the batch's likelihood counts `batch.scale` times."""
        ...


def check_target(who: str, target: Any, data: Any) -> Target:
    """Return `target` when it is one and has the data that it needs, or none if it needs none."""
    if isinstance(target, type) or not isinstance(target, Target):
        raise needs(who, "target", "a target such as targets.energy(...)", target, TypeError)
    if target.needs_data and data is None:
        raise needs(who, "data", "the columns that the target's likelihood takes", data)
    if not target.needs_data and data is not None:
        raise needs(who, "data", "None: this target has no data", type(data).__name__)
    return target


def check_dim(who: str, argument: str, target: Target, dim: int) -> None:
    """Fail when positions have another number of elements than a target that says how many it has: torch may broadcast them."""
    own = getattr(target, "dim", dim)
    if own != dim:
        raise needs(who, argument, f"positions of {own} elements, as the target has", dim)
