"""The parts of a sampler that `compose` puts together: a drift ``a A_t`` and a preconditioner G."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_number, needs

__all__ = [
    "Diagonal",
    "Drift",
    "Identity",
    "Tensors",
    "NoDrift",
    "Number",
    "Preconditioner",
    "ScaledAverage",
    "Total",
    "check_betas",
    "joined",
    "over_chains",
]

Tensors = tuple[Tensor, ...]
"""The state tensors of a part, kept between steps."""


Number = float | Tensor
"""A number for all chains, or a tensor (chains, 1) with one for each."""


@runtime_checkable
class Drift(Protocol):
    """The adaptive bias of ``θ' = θ - ε (grad U + a A_t) + sqrt(2 ε τ) η`` (equation 1).

    Implementations are frozen dataclasses whose fields are the settings. `bias` and `update` use
    operators only (``+ - * /``, ``** -0.5`` for roots, ``.abs()``, ``.maximum()``), so that the
    same two functions run on tensors, in compiled blocks, and in the optimizers' fused step, which
    is written from a recording of them. Roots are written ``x ** -0.5``, not ``x ** 0.5``: torch
    rounds only the former correctly on the CPU, so only then do all executors give the same bits.
    The kernel reads `bias` first and then calls `update`: the paper's m_t and V_t exclude the
    gradient of step t.

    Example:
        >>> from langevin.kernels.drifts import Momentum
        >>> isinstance(Momentum(bias_factor=2.0), Drift), Momentum(bias_factor=2.0).state_names
        (True, ('average',))
    """

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors."""
        ...

    @property
    def is_elementwise(self) -> bool:
        """Whether each element is independent of the others, as fused code needs."""
        return True

    def start(self, position: Tensor) -> Tensors:
        """Return the state before the first step."""
        return tuple(torch.zeros_like(position) for _ in self.state_names)

    def bias(self, state: Tensors) -> Tensor | None:
        """Return ``a A_t``, or None for no bias at all."""
        ...

    def update(self, state: Tensors, gradient: Tensor) -> Tensors:
        """Return the state after this step's gradient."""
        ...

    def sde(self) -> tuple[str, ...]:
        """Return the bias in the SDE of θ, then the equations of the state, as text."""
        ...

    def settings(self) -> str:
        """Return the settings as text: the fields of the dataclass."""
        return ", ".join(
            f"{key} {f'{value:g}' if isinstance(value, float) else value}"
            for key, value in vars(self).items()
        )

    def gain(self, state: Tensors) -> Tensor | float | None:
        """Return the bias that a constant gradient of one leads to; None where unknown."""
        return None

    def cooling(self) -> float | None:
        """Return c if the published form has temperature τ / c for small steps, else None."""
        ...


@dataclass(frozen=True)
class NoDrift(Drift):
    """The drift of SGLD: nothing is added to the gradient, and there is no state.

    Example:
        >>> import langevin as lv
        >>> lv.compose(step_size=0.01, drift=NoDrift()).effective_temperature  # SGLD
        1.0
    """

    state_names: ClassVar[tuple[str, ...]] = ()

    @override
    def bias(self, state: Tensors) -> None:
        return None

    @override
    def update(self, state: Tensors, gradient: Tensor) -> Tensors:
        return ()

    @override
    def gain(self, state: Tensors) -> float:
        return 0.0

    @override
    def sde(self) -> tuple[str, ...]:
        return ("",)

    @override
    def cooling(self) -> float:
        return 1.0


class ScaledAverage(Drift):
    """``a A_t = a G(V_t) m_t`` with ``m_{t+1} = β m_t + (1 - β) g_t``: momentum, Adam, AdaMax.

    G is symmetric and positive; V is the state that it is computed from. The invariant kernel
    replaces m by a velocity and uses ``G^(1/2)``, so both forms of a sampler share one scale.

    Example:
        >>> from langevin.kernels.drifts import Adam, Momentum
        >>> Momentum(bias_factor=2.0, beta=0.9).smoothing, Adam().scale_names
        (0.9, ('square_average',))
        >>> Adam().root((torch.tensor(16.0),), torch.tensor(1.0))  # V = 16: G = 1 / 4
        tensor(0.5000)
    """

    State: ClassVar[type[Any]]  # a NamedTuple: the average, then the tensors that make up V
    bias_factor: float

    @override
    def start(self, position: Tensor) -> Tensors:
        return self.State(*(torch.zeros_like(position) for _ in self.State._fields))

    @property
    @abstractmethod
    def smoothing(self) -> float:
        """The β of m."""

    @property
    def scale_names(self) -> tuple[str, ...]:
        """Names of the tensors that make up V."""
        return self.State._fields[1:]

    @override
    def bias(self, state: Tensors) -> Tensor:
        average, *scale_state = state
        return self.bias_factor * self.scale(tuple(scale_state), average)

    @override
    def update(self, state: Tensors, gradient: Tensor) -> Tensors:
        (average, *scale_state), beta = state, self.smoothing
        average = beta * average + (1 - beta) * gradient
        return self.State(average, *self.scale_update(tuple(scale_state), gradient))

    def scale_update(self, state: Tensors, gradient: Tensor, started: Number = 1.0) -> Tensors:
        """Return V after this step's gradient; with `started` 0 it holds this gradient alone."""
        return ()

    @abstractmethod
    def scale(self, state: Tensors, vector: Tensor) -> Tensor:
        """Return ``G vector``."""

    @abstractmethod
    def root(self, state: Tensors, vector: Tensor) -> Tensor:
        """Return ``G^(1/2) vector``."""

    def damped(
        self,
        state: Tensors,
        vector: Tensor,
        whole: Number,
        plain: Number,
        scaled: Number,
        excess: Tensor,
    ) -> Tensor:
        """Return ``(whole I + (plain I + scaled G) X)^-1 vector``, X the diagonal `excess`."""
        return vector / (whole + plain * excess + scaled * self.scale(state, excess))

    @abstractmethod
    def scale_sde(self) -> tuple[str, ...]:
        """Return ``G m``, then the equations of V, as text."""

    @override
    def sde(self) -> tuple[str, ...]:
        scaled, *equations = self.scale_sde()
        return (
            f" + {self.bias_factor:g} {scaled}",
            f"dm = ((1 - {self.smoothing:g}) / ε) (grad U - m) dt",
            *equations,
        )

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return self.State._fields

    @override
    def gain(self, state: Tensors) -> Tensor:
        average, *scale_state = state
        return self.bias_factor * self.scale(tuple(scale_state), torch.ones_like(average))

    @override
    def cooling(self) -> float | None:
        if self.bias_factor == 0:
            return 1.0
        # Where m follows grad U the drift is (1 + a G) grad U, against noise of temperature τ; a
        # scale differs by direction.
        return None if self.scale_names else 1 + self.bias_factor


@dataclass(frozen=True)
class Total(Drift):
    """``a A_t = sum_k a_k A_t^(k)``.

    Example:
        >>> from langevin.kernels.drifts import Adam, Momentum
        >>> Total((Momentum(), Adam())).state_names
        ('average_0', 'average_1', 'square_average_1')
    """

    drifts: tuple[Drift, ...]

    def __post_init__(self) -> None:
        if (
            not isinstance(self.drifts, tuple)
            or not self.drifts
            or not all(isinstance(drift, Drift) for drift in self.drifts)
        ):
            raise needs("Total", "drifts", "a non-empty tuple of drifts", self.drifts, TypeError)

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return tuple(
            f"{name}_{k}" for k, drift in enumerate(self.drifts) for name in drift.state_names
        )

    @property
    @override
    def is_elementwise(self) -> bool:
        return all(drift.is_elementwise for drift in self.drifts)

    @override
    def start(self, position: Tensor) -> Tensors:
        return tuple(tensor for drift in self.drifts for tensor in drift.start(position))

    def _parts(self, state: Tensors) -> list[tuple[Drift, Tensors]]:
        parts, start = [], 0
        for drift in self.drifts:
            parts.append((drift, state[start : start + len(drift.state_names)]))
            start += len(drift.state_names)
        return parts

    @override
    def bias(self, state: Tensors) -> Tensor | None:
        total = None
        for drift, part in self._parts(state):
            bias = drift.bias(part)
            total = bias if total is None else total if bias is None else total + bias
        return total

    @override
    def gain(self, state: Tensors) -> Tensor | float | None:
        gains = [drift.gain(part) for drift, part in self._parts(state)]
        return (
            None
            if any(gain is None for gain in gains)
            else sum(gain for gain in gains if gain is not None)
        )

    @override
    def update(self, state: Tensors, gradient: Tensor) -> Tensors:
        return tuple(
            tensor for drift, part in self._parts(state) for tensor in drift.update(part, gradient)
        )

    @override
    def sde(self) -> tuple[str, ...]:
        texts = [drift.sde() for drift in self.drifts]
        return "".join(text[0] for text in texts), *(line for text in texts for line in text[1:])

    @override
    def settings(self) -> str:
        return " + ".join(f"({drift.settings()})" for drift in self.drifts)

    @override
    def cooling(self) -> float | None:
        total = 1.0
        for drift in self.drifts:
            cooling = drift.cooling()
            if cooling is None:
                return None
            total += cooling - 1
        return total


@runtime_checkable
class Preconditioner(Protocol):
    """The metric of the noise and of the drift. Elementwise ones use operators only, as drifts do.

    Example:
        >>> from langevin.kernels.preconditioners import RMS
        >>> isinstance(RMS(), Preconditioner), RMS().state_names
        (True, ('metric_average',))
    """

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors."""
        return ()

    @property
    def is_elementwise(self) -> bool:
        """Whether each element is independent of the others, as fused code needs."""
        return True

    @property
    def reads_position(self) -> bool:
        """Whether G depends on the position."""
        return False

    def start(self, position: Tensor) -> Tensors:
        """Return the state before the first step."""
        return tuple(torch.zeros_like(position) for _ in self.state_names)

    def update(self, state: Tensors, gradient: Tensor, started: Number) -> Tensors:
        """Return the state with this gradient in it; `started` is 0 at step 0, then 1."""
        return ()

    def metric(self, state: Tensors, position: Tensor) -> Any:
        """Return G in whatever form `apply` and `spread` take."""
        return None

    def apply(self, metric: Any, force: Tensor) -> Tensor:
        """Return ``G force``."""
        ...

    def spread(self, metric: Any, noise: Tensor) -> Tensor:
        """Return ``G^(1/2) noise``, of covariance G."""
        ...

    def divergence(
        self, metric: Any, state: Tensors, position: Tensor, gradient: Tensor
    ) -> Tensor | None:
        """Return Γ, or None where it is zero or left out."""
        return None

    def describe(self) -> tuple[str, str]:
        """Return the symbol of G for the SDE ('' for the identity) and a sentence on it."""
        ...


@dataclass(frozen=True)
class Identity(Preconditioner):
    """``G = I``.

    Example:
        >>> Identity().apply(None, torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """

    @override
    def apply(self, metric: None, force: Tensor) -> Tensor:
        return force

    @override
    def spread(self, metric: None, noise: Tensor) -> Tensor:
        return noise

    @override
    def describe(self) -> tuple[str, str]:
        return "", ""


class Diagonal(Preconditioner):
    """A metric that is a tensor like the position, one number for each element."""

    @override
    def apply(self, metric: Tensor, force: Tensor) -> Tensor:
        return metric * force

    @override
    def spread(self, metric: Tensor, noise: Tensor) -> Tensor:
        return metric * metric**-0.5 * noise


def joined(first: Tensors, second: Tensors) -> Tensors:
    """Return the tensors of both; a NamedTuple stays one where the other is empty."""
    return (*first, *second) if first and second else first or second


def check_betas(who: str, betas: object) -> None:
    """Fail when these are not two smoothing factors."""
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise needs(who, "betas", "a tuple (beta_1, beta_2)", betas, TypeError)
    for name, value in zip(("betas[0]", "betas[1]"), betas, strict=True):
        check_number(who, name, value, "0 <= beta < 1", lambda v: 0 <= v < 1)


def over_chains(
    who: str, argument: str, function: Callable[[Tensor], Tensor], position: Tensor
) -> Tensor:
    """Apply a user's function of one position (dim,) along all leading axes of `position`."""
    mapped, what = function, "a function of one position (dim,) that returns a tensor"
    for _ in range(position.ndim - 1):
        mapped = torch.func.vmap(mapped)
    try:
        result = mapped(position)
    except (TypeError, ValueError, RuntimeError) as error:
        raise needs(who, argument, f"{what}: {error}", function, TypeError) from error
    if not isinstance(result, Tensor):
        raise needs(who, argument, what, result, TypeError)
    return result
