"""Scale-adapted SGHMC (Springenberg et al. 2016), as published or invariant."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_bool, check_field, needs
from langevin.kernels.adapting import Adapting, interpolate
from langevin.kernels.base import Kernel, StepInputs
from langevin.kernels.compose import StepSize, make
from langevin.kernels.parts import Diagonal, Identity, Number, Preconditioner, Tensors
from langevin.kernels.psgld import RMS
from langevin.targets import Evaluation

__all__ = ["adaptive_sghmc"]

_TINY = 1e-30  # beside a variance whose root is taken as x (x + tiny)^(-1/2): zero stays zero


class WindowedState(NamedTuple):
    """State of `Windowed`."""

    window: Tensor  # w_t
    average: Tensor  # m_t
    square_average: Tensor  # V_t


@dataclass(frozen=True)
class Windowed(Diagonal):
    """The diagonal of scale-adapted SGHMC: ``G = (V + λ)^(-1/2)``, V over an adaptive window.

    ``w' = w - w m**2 / (V + λ) + 1``, ``m' = m + (g - m) / (1 + w)``,
    ``V' = V + (g**2 - V) / (1 + w)``, g over num_data

    So that w tends to V / m**2: many gradients where noise is all there is, few where they agree
    (Springenberg et al. 2016, section 4, after Schaul et al. 2013; their letters are τ, g and V).
    All three start at one, and a new gradient counts 1 / (1 + w), as in the authors' code; with 1 /
    w a window of one would never grow.

    Args:
        eps_root: λ, inside the root.
        num_data: as in `RMS`.

    Example:
        >>> state = (torch.ones(1),) * 3
        >>> window, average, square = Windowed().update(state, torch.tensor([3.0]), 1.0)
        >>> square  # half way from 1 to 9, with a window of one
        tensor([5.])
    """

    state_names: ClassVar[tuple[str, ...]] = WindowedState._fields

    eps_root: float = 1e-10
    num_data: float = 1.0

    def __post_init__(self) -> None:
        check_field(self, "Windowed", "eps_root", "> 0", lambda v: v > 0)
        check_field(self, "Windowed", "num_data", "0 < num_data <= 1e150", lambda v: 0 < v <= 1e150)

    @override
    def start(self, position: Tensor) -> Tensors:
        return WindowedState(*(torch.ones_like(position) for _ in self.state_names))

    @override
    def update(self, state: Tensors, gradient: Tensor, started: Number) -> Tensors:
        window, average, square_average = state
        mean_gradient, share = gradient / self.num_data, 1 / (1 + window)
        agreement = average * average / (square_average + self.eps_root)
        return WindowedState(
            window - window * agreement + 1,
            average + share * (mean_gradient - average),
            square_average + share * (mean_gradient * mean_gradient - square_average),
        )

    @override
    def metric(self, state: Tensors, position: Tensor) -> Tensor:
        return (state[2] + self.eps_root) ** -0.5

    @override
    def describe(self) -> tuple[str, str]:
        scale = "grad U" if self.num_data == 1 else f"grad U / {self.num_data:g}"
        return (
            "G",
            f"G = (V + {self.eps_root:g})^(-1/2), "
            f"V averages ({scale})^2 over a window of its own, until it is frozen",
        )


@dataclass(frozen=True)
class InvariantHamiltonian(Adapting):
    """BAOAB in a frozen metric G: exact on Gaussians for any stable step, else up to O(ε^2).

        ``w  = v - h G^(1/2) g``                              ``h^2 = 2 ε / (1 + β)``
        ``v' = β w + sqrt(τ (1 - β^2)) η``
        ``θ' = θ + (h / 2) G^(1/2) (w + v')``

    A gradient moves θ by ``ε G / (1 - β)`` in all, as in `AdaptedHamiltonian` and, for G = 1, in
    `Hamiltonian`; the step is stable for ``h^2 G k < 4``, k the largest curvature. It is
    `Invariant` without the fresh velocity: the limit of a large bias factor and a small
    step.

    Args:
        beta: β, the share of the velocity that is kept, in [0, 1).
        preconditioner: G, elementwise, estimated from gradients.
        adapt_steps: first steps in which G follows the gradients; then it is frozen, which
            invariance needs (`Adapting`).
    """

    beta: float = 0.95
    preconditioner: Preconditioner = field(default_factory=Windowed)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_field(self, self.name, "beta", "0 <= beta < 1", lambda v: 0 <= v < 1)
        if not self.preconditioner.is_elementwise or self.preconditioner.reads_position:
            raise needs(
                self.name,
                "preconditioner",
                "an elementwise one that does not depend on the position",
                self.preconditioner,
            )

    @property
    @override
    def adapted_names(self) -> tuple[str, ...]:
        return self.preconditioner.state_names

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("velocity", *self.preconditioner.state_names)

    @override
    def start(self, position: Tensor) -> Tensors:
        return torch.zeros_like(position), *self.preconditioner.start(position)

    def _adapt(self, state: Tensors, gradient: Tensor, inputs: StepInputs) -> Tensors:
        """Return the state of the metric, with this gradient in it while it adapts."""
        adapted = self.preconditioner.update(state, gradient, inputs.started)
        return interpolate(adapted, state, inputs.adapting)

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        velocity, *averages = state
        gradient, (η,) = evaluation.gradient, noise
        adapted = self._adapt(tuple(averages), gradient, inputs)
        metric = self.preconditioner.metric(adapted, position)
        stride, β = (2 * inputs.step_size / (1 + self.beta)) ** 0.5, self.beta
        kicked = velocity - stride * self.preconditioner.spread(
            metric, gradient
        )  # an elementwise root is its own transpose
        refreshed = β * kicked + (inputs.temperature * (1 - β * β)) ** 0.5 * η
        moved = position + 0.5 * stride * self.preconditioner.spread(metric, kicked + refreshed)
        return moved, (refreshed, *adapted)

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        metric = self.preconditioner
        if isinstance(
            metric, Windowed
        ):  # where the averages settle it is this one, but for λ outside the root
            metric = RMS(eps=metric.eps_root**0.5, num_data=metric.num_data)
        return dataclasses.replace(self, preconditioner=Identity(), adapt_steps=None), metric

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        # (h / 2) sqrt(τ (1 - β^2)) where G is one
        return (inputs.step_size * inputs.temperature * (1 - self.beta) / 2) ** 0.5

    @override
    def total_response(self, state: Tensors, inputs: StepInputs) -> Number | None:
        one = torch.ones_like(state[0])
        metric = self.preconditioner.metric(state[1:], one)
        return inputs.step_size / (1 - self.beta) * self.preconditioner.apply(metric, one)

    @property
    @override
    def description(self) -> str:
        symbol, sentence = self.preconditioner.describe()
        root = f"{symbol}^(1/2) " if symbol else ""
        return self.described(
            f"dθ = {root}v dt,  dv = -({root}grad U + C v) dt + sqrt(2 C * "
            f"{self.temperature:g}) dW",
            *([sentence] if sentence else []),
            f"time step h of the order of sqrt(ε), friction C = (1 - {self.beta:g}) / h",
            settings=f"beta {self.beta:g}",
            law=self._law(),
        )

    def _law(self) -> list[str]:
        return [
            f"the target, effective temperature {self.temperature:g}: exact on Gaussians, "
            "elsewhere up to O(ε^2), and up to",
            f"the gradient's own noise (invariant form); {self.guarantee}",
        ]


@dataclass(frozen=True)
class AdaptedHamiltonian(InvariantHamiltonian):
    """``v' = β v - ε G g + sqrt(2 τ ε (1 - β) G - (ε N)^2) η``, ``θ' = θ + v'``, as published.

    Springenberg, Klein, Falkner and Hutter (2016), section 4, with their ε^2 for our ε, 1 - β for
    ``ε V^(-1/2) C`` and N the `num_data` of the metric. The noise is SGHMC's ``2 (C - B) h`` with
    ``B = h V / 2`` for the noise of the gradient, and where nothing is left of it there is none.

    V is the raw second moment, ``s^2 + τ k`` for noise of variance s^2 on a Gaussian of curvature
    k: noise and signal. So the step takes out more than the gradient put in, and for small steps
    the temperature is ``τ (1 - ε G k / (2 (1 - β)))``, whatever the noise: nearly right where
    ``G k = k / sqrt(s^2 + τ k)`` is small, which is where there is much noise, and cold elsewhere.

    Example:
        >>> import langevin as lv
        >>> type(lv.adaptive_sghmc(step_size=1e-4)).__name__
        'AdaptedHamiltonian'
    """

    preconditioner: Windowed = field(default_factory=Windowed)

    @override
    def update(
        self,
        position: Tensor,
        evaluation: Evaluation,
        noise: Tensor,
        state: Tensors,
        inputs: StepInputs,
    ) -> tuple[Tensor, Tensors]:
        velocity, *averages = state
        (η,) = noise
        adapted = self._adapt(tuple(averages), evaluation.gradient, inputs)
        metric = self.preconditioner.metric(adapted, position)
        injected, taken = self.noise_scale(inputs), inputs.step_size * self.preconditioner.num_data
        variance = (injected * injected * metric - taken * taken).clamp(min=0.0)
        spread = variance * (variance + _TINY) ** -0.5
        velocity = (
            self.beta * velocity - inputs.step_size * metric * evaluation.gradient + spread * η
        )
        return position + velocity, (velocity, *adapted)

    @override
    def without_metric(self) -> tuple[Kernel, Preconditioner]:
        return self, self.preconditioner  # the noise that is taken out is not that of a metric

    @override
    def noise_scale(self, inputs: StepInputs) -> Number:
        return (
            2 * inputs.temperature * inputs.step_size * (1 - self.beta)
        ) ** 0.5  # of which the gradient's part is taken out

    @override
    def total_response(self, state: Tensors, inputs: StepInputs) -> Number | None:
        return None  # the excess temperature that is left depends on V

    @override
    def _law(self) -> list[str]:
        return [
            f"colder than the target, effective temperature {self.temperature:g} (1 - ε G "
            "k / (2 (1 - β))) for curvature k,",
            "up to O(h): what is taken out for the gradient's noise is its second moment, "
            "signal and all (published form);",
            "hotter than the target where (ε N)^2 > 2 τ ε (1 - β) G: the gradient's noise "
            "exceeds what is injected;",
            self.guarantee,
        ]


def adaptive_sghmc(
    step_size: StepSize,
    *,
    beta: float = 0.95,
    eps_root: float = 1e-10,
    num_data: float = 1.0,
    invariant: bool = False,
    adapt_steps: int | None = None,
    temperature: float = 1.0,
) -> InvariantHamiltonian:
    """Build scale-adapted SGHMC (BOHAMIANN), as published or in a form exact on Gaussians.

    Springenberg et al. (2016), section 4.

    ``v' = β v - ε G g + sqrt(2 τ ε (1 - β) G - (ε N)**2) η``, ``θ' = θ + v'``, with
    ``G = (V + λ)^(-1/2)`` and V an average of (g / N)**2 over a window that follows the gradients
    (`preconditioners.Windowed`), frozen after the first steps

    Args:
        step_size: ε on U, the square of the published one; a number or a schedule, or "auto" when
            invariant.
        beta: β, the share of the velocity that is kept; one less the published momentum decay of
            .05.
        eps_root: λ, inside the root.
        num_data: N makes V an average over gradients of the mean loss, as the optimizer does; 1
            takes grad U, as published.
        invariant: keep the posterior invariant: no noise is taken out, and the step is BAOAB
            (`kernels.InvariantHamiltonian`).
        adapt_steps: steps after which V is frozen; None takes the warm-up of `sample`.
        temperature: τ.

    Differs from: the published form takes the second moment of the gradient for its noise, and is
    colder than the target wherever the gradient is not all noise (`kernels.AdaptedHamiltonian` has
    the amount); with noise of a known or estimated variance `msgld` with ``noise="corrected"`` is
    exact.

    Example:
        >>> adaptive_sghmc(step_size=1e-4).state_names
        ('velocity', 'window', 'average', 'square_average')
    """
    check_bool("adaptive_sghmc", "invariant", invariant)
    if isinstance(step_size, str) and not invariant:
        raise needs(
            "adaptive_sghmc",
            "step_size",
            'a number or a schedule; "auto" needs invariant=True',
            step_size,
        )
    kernel = InvariantHamiltonian if invariant else AdaptedHamiltonian
    return make(
        kernel,
        "adaptive_sghmc",
        step_size,
        temperature,
        beta,
        Windowed(eps_root, num_data),
        adapt_steps=adapt_steps,
    )
