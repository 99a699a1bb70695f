"""What a target is: an energy with its gradient, for any number of chains at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from langevin.checks import check_columns, needs
from langevin.space import Space

__all__ = ["Batch", "Evaluation", "Target", "check_dim", "check_target"]


class Batch(NamedTuple):
    """Rows of a data set.

    Example:
        >>> import torch
        >>> Batch((torch.zeros(20, 3),), num_data=1000, per_chain=False).scale
        50.0
    """

    columns: tuple[Tensor, ...]  # one tensor per column: (n, ...), or (chains, n, ...) when every chain has own rows
    num_data: int  # N, the rows of the whole data set
    per_chain: bool  # whether the columns have the chain axis

    @property
    def scale(self) -> float:
        """N / n: what makes the batch's log-likelihood an unbiased estimate of the data set's."""
        return self.num_data / self.columns[0].shape[1 if self.per_chain else 0]


class Evaluation(NamedTuple):
    """An energy and its gradient at some positions.

    Example:
        >>> import torch
        >>> from langevin.targets import gaussian
        >>> gaussian([[4.0]]).evaluate(torch.tensor([[2.0]])).gradient
        tensor([[0.5000]])
    """

    energy: Tensor  # U, shape (chains,)
    gradient: Tensor  # grad U, shape (chains, dim)


class Target(ABC):
    """The energy of the distribution ``exp(-U)``: subclass it, write `evaluate`, and say what differs from the defaults below.

    The library speaks energy and goes downhill; log densities appear only in `targets`.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> class Quartic(lv.targets.Target):
        ...     def evaluate(self, position, batch=None):
        ...         return lv.targets.Evaluation((position**4).sum(-1), 4 * position**3)
        >>> samples = lv.sample(lv.sgld(0.01), Quartic(), torch.zeros(4, 1), num_steps=100, progress=False)
        >>> samples.draws.shape
        torch.Size([4, 100, 1])
    """

    needs_data: bool = False  # whether `evaluate` takes rows of a data set
    gradient_noise: float = 0.0  # standard deviation of the normal noise that the paper adds to the exact gradient
    dim: int | None = None  # elements of theta, where the target knows
    space: Space | None = None  # names and shapes of the parts of theta, where it has any
    has_closed_form: bool = False  # whether the gradient is a formula, so that an eager step is cheap

    @abstractmethod
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        """Return U and its gradient at `position`, shape (chains, dim); the batch's likelihood counts `batch.scale` times."""

    def moments(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and covariance at temperature 1, where they are known."""
        return None

    def init(self, chains: int, seed: int = 0, *, first_chain: int = 0) -> Tensor | None:
        """Return starting positions (chains, dim) that suit the target, each of (seed, chain); None leaves them to `sample`."""
        return None

    def as_columns(self, who: str, data: Any) -> tuple[Tensor, ...]:
        """Return the columns of what was given as data, tensors of the same length with finite values."""
        return check_columns(who, data)

    def check_data(self, columns: Sequence[Tensor]) -> None:  # noqa: B027 - any data will do, where a target does not say more
        """Fail when a data set's columns, tensors of the same length with finite values, do not fit; asked once, before a run."""


def check_target(who: str, target: Any, data: Any) -> Target:
    """Return `target` when it is one and has the data that it needs, or none if it needs none."""
    if isinstance(target, type) or not isinstance(target, Target):
        raise needs(who, "target", "a target such as targets.energy(...), a subclass of targets.Target", target, TypeError)
    if target.needs_data and data is None:
        raise needs(who, "data", "the columns that the target's likelihood takes", data)
    if not target.needs_data and data is not None:
        raise needs(who, "data", "None: this target has no data", type(data).__name__)
    return target


def check_dim(who: str, argument: str, target: Target, dim: int) -> None:
    """Fail when positions have another number of elements than a target that says how many it has: torch may broadcast them."""
    if target.dim not in (None, dim):
        raise needs(who, argument, f"positions of {target.dim} elements, as the target has", dim)
