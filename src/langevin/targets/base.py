"""Define a target: an energy with its gradient, for any number of chains at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from langevin.checks import check_columns, check_integer, check_number, needs
from langevin.random.address import check_seed
from langevin.targets.space import Space

if TYPE_CHECKING:
    from langevin.targets.conditionals import Conditionals

__all__ = [
    "Batch",
    "Evaluation",
    "Target",
    "check_dim",
    "check_init",
    "check_noise",
    "check_target",
    "own_data",
]


class Batch(NamedTuple):
    """Rows of a data set.

    Example:
        >>> import torch
        >>> Batch((torch.zeros(20, 3),), num_data=1000, per_chain=False).scale
        50.0
    """

    columns: tuple[Tensor, ...]  # (n, ...) each, or (chains, n, ...) with rows per chain
    num_data: int  # N, the rows of the whole data set
    per_chain: bool  # whether the columns have a chain axis

    @property
    def scale(self) -> float:
        """N / n, which makes the batch's log-likelihood an unbiased estimate of the whole."""
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
    """Define the energy of the distribution ``exp(-U)``.

    Subclasses implement `evaluate` and override the defaults below where they differ. The library
    works with energies throughout; log densities appear only in `targets`.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> class Quartic(lv.targets.Target):
        ...     def evaluate(self, position, batch=None):
        ...         return lv.targets.Evaluation((position**4).sum(-1), 4 * position**3)
        >>> start, settings = torch.zeros(4, 1), {"num_steps": 100, "progress": False}
        >>> samples = lv.sample(Quartic(), sampler=lv.sgld(0.01), init=start, **settings)
        >>> samples.draws.shape
        torch.Size([4, 100, 1])
    """

    needs_data: bool = False  # whether `evaluate` takes rows of a data set
    data: Any = None  # the target's own data set, for `sample` without data
    gradient_noise: float = 0.0  # std of the normal noise that the paper adds to exact gradients
    dim: int | None = None  # elements of theta, if known
    space: Space | None = None  # names and shapes of the parts of theta, if any
    has_closed_form: bool = False  # whether the gradient is a formula, so eager steps are cheap
    centredness: float | str | Mapping[str, Any] = "auto"  # of `conditionals`; see `Model`

    @property
    def conditionals(self) -> Conditionals | None:
        """The priors that depend on other parameters, which `sample` may reparameterise."""
        return None

    @abstractmethod
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        """Return U and its gradient at positions (chains, dim).

        The log-likelihood of a batch is multiplied by `batch.scale`.
        """

    def moments(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and covariance at temperature 1, if known."""
        return None

    def init(self, chains: int, seed: int = 0, *, first_chain: int = 0) -> Tensor | None:
        """Return initial positions (chains, dim), each a function of (seed, chain).

        None leaves the choice to `sample`.
        """
        return None

    def explore(self, count: int, seed: int = 0) -> Tensor | None:
        """Return positions (count, dim) from which to search for modes, or none, (0, dim).

        `sample` takes None as wide uniform distributions.
        """
        return None

    def as_columns(self, who: str, data: Any) -> tuple[Tensor, ...]:
        """Return data as columns: finite tensors of the same length."""
        return check_columns(who, data)

    def check_data(self, columns: Sequence[Tensor]) -> None:  # noqa: B027 - optional to override
        """Fail if a data set's columns do not fit; called once, before a run."""


def own_data(target: Any, data: Any) -> Any:
    """Return the data set given, or else the target's own if it has one."""
    return target.data if data is None and isinstance(target, Target) else data


def check_target(who: str, target: Any, data: Any) -> Target:
    """Return `target`, or fail if it is no target or `data` are missing or superfluous."""
    if isinstance(target, type) or not isinstance(target, Target):
        condition = "a target such as targets.energy(...), a subclass of targets.Target"
        raise needs(who, "target", condition, target, TypeError)
    if target.needs_data and data is None:
        raise needs(who, "data", "the columns that the target's likelihood takes", data)
    if not target.needs_data and data is not None:
        raise needs(who, "data", "None: this target has no data", type(data).__name__)
    return target


def check_dim(who: str, argument: str, target: Target, dim: int) -> None:
    """Fail if positions have another size than the target's: torch may broadcast them."""
    if target.dim not in (None, dim):
        raise needs(who, argument, f"positions of {target.dim} elements, as the target has", dim)


def check_init(chains: int, seed: int, first_chain: int) -> range:
    """Return the numbers of the chains, or fail if an argument of `Target.init` is invalid."""
    check_integer("init", "chains", chains, 1)
    check_integer("init", "first_chain", first_chain, 0)
    check_seed("init", seed)
    return range(first_chain, first_chain + chains)


def check_noise(who: str, gradient_noise: float) -> float:
    """Return the standard deviation of a target's gradient noise, or fail if it is negative."""
    return check_number(who, "gradient_noise", gradient_noise, ">= 0", lambda v: v >= 0)
