"""One optimizer class per sampler of `langevin.kernels.samplers`, which has the formula."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Unpack

from torch.optim.optimizer import ParamsT

from langevin.kernels.samplers import (
    adadelta_sgld,
    adamax_sgld,
    adaptive_sghmc,
    asgld,
    msgld,
    psgld,
    sghmc,
    sgld,
    sglrw,
    sgnht,
)
from langevin.optim.base import LangevinOptimizer
from langevin.optim.settings import Common

__all__ = ["ASGLD", "MSGLD", "PSGLD", "SGHMC", "SGLD", "SGLRW", "SGNHT"]
__all__ += ["AdaMaxSGLD", "AdadeltaSGLD", "AdaptiveSGHMC"]


class SGLD(LangevinOptimizer):
    """Stochastic gradient Langevin dynamics: ``θ' = θ - ε g + sqrt(2 ε τ) η``.

    Here ``ε = lr / num_data`` and ``g = num_data * grad(loss) + grad(-log prior)``: the user calls
    ``loss.backward()`` on the mean loss and ``step()``. The formula is that of `langevin.sgld`.

    Args:
        params: parameters, or groups of them; any setting may be given per group.
        lr: learning rate as in SGD, on the mean loss; any `torch.optim.lr_scheduler` may change it.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> prior = lv.priors.gaussian(std=1.0)
        >>> opt = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=100, prior=prior)
        >>> loss = model(torch.ones(5, 2)).square().mean()
        >>> loss.backward()
        >>> opt.step()
    """

    builder = staticmethod(sgld)

    def __init__(self, params: ParamsT, lr: float, **common: Unpack[Common]) -> None:
        """See the class."""
        super().__init__(params, lr, {}, **common)


class PSGLD(LangevinOptimizer):
    """Preconditioned SGLD: `langevin.psgld` with V from gradients of the mean loss.

    ``V' = β V + (1 - β) (g / N)**2``, ``G = 1 / (λ + sqrt(V'))``,
    ``θ' = θ - (lr / N) G g + sqrt(2 (lr / N) τ G) η``

    V is frozen after `adapt_steps` steps, and later draws follow the posterior. Discard draws from
    before: while V changes, the stationary distribution is not the posterior, because the term
    Γ = div G is omitted.

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in RMSprop, on the mean loss.
        beta: β, the smoothing factor of V.
        eps: λ, outside the root, on the scale of the mean loss.
        adapt_steps: steps after which V is frozen, counted for each parameter; None never freezes
            it, as published. The default of 10,000, as in the other adaptive samplers, is 100 times
            the averaging time of V at the default β. Set it to your burn-in.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.PSGLD(model.parameters(), lr=1e-3, num_data=100, adapt_steps=2000)
    """

    builder = staticmethod(psgld)
    settings = ("beta", "eps", "num_data", "adapt_steps")
    # In states of version 0.2, V is never frozen.
    new_settings: ClassVar[dict[str, object]] = {"adapt_steps": None}

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        beta: float = 0.99,
        eps: float = 1e-5,
        adapt_steps: int | None = 10_000,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"beta": beta, "eps": eps, "adapt_steps": adapt_steps}
        super().__init__(params, lr, own, **common)


class SGLRW(LangevinOptimizer):
    """Stochastic gradient lattice random walk: `langevin.sglrw`, with signs instead of normals.

    ``θ' = θ + d sign(d u - (lr / N) g)`` with ``d = max(sqrt(2 (lr / N) τ), (lr / N) |g|)``, u
    uniform on (-1, 1)

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss; at temperature 0 it is SGD.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGLRW(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100)
    """

    builder = staticmethod(sglrw)

    def __init__(self, params: ParamsT, lr: float, **common: Unpack[Common]) -> None:
        """See the class."""
        super().__init__(params, lr, {}, **common)


class SGHMC(LangevinOptimizer):
    """Stochastic gradient HMC: `langevin.sghmc`; at temperature 0 it is SGD with momentum beta.

    ``v' = β v - (lr / N) g + sqrt(2 τ (lr / N) (1 - β)) η``, ``θ' = θ + v'``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        beta: β, the friction factor of the velocity, SGD's momentum.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGHMC(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, beta=0.9)
    """

    builder = staticmethod(sghmc)
    settings = ("beta",)

    def __init__(
        self, params: ParamsT, lr: float, *, beta: float = 0.9, **common: Unpack[Common]
    ) -> None:
        """See the class."""
        super().__init__(params, lr, {"beta": beta}, **common)


class SGNHT(LangevinOptimizer):
    """SGHMC with a thermostat per element: `langevin.sgnht` with elementwise=True.

    ``v' = ((β - ξ) v - (lr / N) g + sqrt(2 τ (lr / N) (1 - β)) η) / (1 + ξ)``, ``θ' = θ + v'``,
    ``ξ' = ξ + ((1 + β) v'**2 N / (2 lr τ) - 1) / μ``

    The thermostat removes the excess temperature of minibatch noise. The mean of
    ``state[p]["friction"]`` is (lr / N) s^2 / (4 τ) for gradients of U with noise of variance s^2.
    `heat` returns the share ``2 ξ / (1 - β)`` that this noise would add to the temperature without
    the thermostat. Above 30 % a `TrustWarning` follows. At temperature 0 it is SGD with momentum
    beta.

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        beta: β, the friction factor of the velocity without minibatch noise, SGD's momentum.
        thermal_mass: μ, the time scale of ξ in steps.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGNHT(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, beta=0.9)
    """

    builder = staticmethod(partial(sgnht, elementwise=True))
    settings = ("beta", "thermal_mass")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        beta: float = 0.9,
        thermal_mass: float = 500.0,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        super().__init__(params, lr, {"beta": beta, "thermal_mass": thermal_mass}, **common)


class AdaptiveSGHMC(LangevinOptimizer):
    """Scale-adapted SGHMC (BOHAMIANN), published or invariant: `langevin.adaptive_sghmc`.

    ``v' = β v - (lr / N) G g + sqrt(2 τ (lr / N) (1 - β) G - lr**2) η``, ``θ' = θ + v'``, with
    ``G = (V + λ)^(-1/2)`` and V an average of the squared gradient of the mean loss over an
    adaptive window

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in RMSprop, on the mean loss: the square of the published step size.
        beta: β, the friction factor of the velocity.
        eps_root: λ, inside the root, on the scale of the mean loss.
        invariant: keep the posterior invariant once V is frozen; the temperature of the published
            form is too low, see `langevin.adaptive_sghmc`.
        adapt_steps: steps after which V is frozen; by default 10,000 (the authors take 3,000).
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.AdaptiveSGHMC(torch.nn.Linear(2, 1).parameters(), lr=1e-4, num_data=100)
    """

    builder = staticmethod(adaptive_sghmc)
    settings = ("beta", "eps_root", "num_data", "invariant", "adapt_steps")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        beta: float = 0.95,
        eps_root: float = 1e-10,
        invariant: bool = False,
        adapt_steps: int = 10_000,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"beta": beta, "eps_root": eps_root, "invariant": invariant}
        own["adapt_steps"] = adapt_steps
        super().__init__(params, lr, own, **common)


class MSGLD(LangevinOptimizer):
    """Momentum SGLD, Algorithm 1, published or invariant form: `langevin.msgld`.

    ``θ' = θ - (lr / N) (g + a m) + sqrt(2 (lr / N) τ) η``, then ``m' = β m + (1 - β) g``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a.
        beta: β, the smoothing factor of m.
        invariant: add noise to the momentum, so that the posterior is invariant.
        noise: "corrected" corrects for minibatch noise, when invariant, in the Kronecker eigenbasis
            of each layer, estimated during the run (`langevin.optim.kronecker`); for data drawn
            with replacement. "corrected-diagonal" corrects element by element. None does not: the
            temperature rises.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.MSGLD(model.parameters(), lr=0.1, num_data=100, bias_factor=1.0)
    """

    builder = staticmethod(msgld)
    settings = ("bias_factor", "beta", "invariant", "noise")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        bias_factor: float = 1.0,
        beta: float = 0.9,
        invariant: bool = False,
        noise: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"bias_factor": bias_factor, "beta": beta, "invariant": invariant, "noise": noise}
        super().__init__(params, lr, own, **common)


class ASGLD(LangevinOptimizer):
    """Adam SGLD, Algorithm 2, published or invariant form: `langevin.asgld`.

    ``θ' = θ - (lr / N) (g + a m / sqrt(V + λ)) + sqrt(2 (lr / N) τ) η``, then
    ``m' = β₁ m + (1 - β₁) g`` and ``V' = β₂ V + (1 - β₂) g**2``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a. The Adam term has size a whatever the size of g, which is N times the
            gradient of the mean loss.
        betas: (β₁, β₂), with β₁**2 < β₂.
        eps_root: λ, inside the root.
        invariant: add noise to the momentum, so that the posterior is invariant once V is frozen.
        adapt_steps: steps after which V is frozen, when invariant; by default 10,000.
        noise: as in `MSGLD`.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.ASGLD(model.parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(asgld)
    settings = ("bias_factor", "betas", "eps_root", "invariant", "adapt_steps", "noise")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        bias_factor: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps_root: float = 1e-5,
        invariant: bool = False,
        adapt_steps: int | None = None,
        noise: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"bias_factor": bias_factor, "betas": betas, "eps_root": eps_root, "noise": noise}
        super().__init__(params, lr, own | _freezing(invariant, adapt_steps), **common)


class AdaMaxSGLD(LangevinOptimizer):
    """AdaMax SGLD (section 3.3), published or invariant form: `langevin.adamax_sgld`.

    ``θ' = θ - (lr / N) (g + a m / (u + λ)) + sqrt(2 (lr / N) τ) η``, then
    ``m' = β₁ m + (1 - β₁) g`` and ``u' = max(β₂ u, |g|)``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a.
        betas: (β₁, β₂), with β₁ < β₂.
        eps: λ.
        invariant: add noise to the momentum, so that the posterior is invariant once u is frozen.
        adapt_steps: steps after which u is frozen, when invariant; by default 10,000.
        noise: as in `MSGLD`.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.AdaMaxSGLD(model.parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(adamax_sgld)
    settings = ("bias_factor", "betas", "eps", "invariant", "adapt_steps", "noise")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        bias_factor: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        invariant: bool = False,
        adapt_steps: int | None = None,
        noise: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"bias_factor": bias_factor, "betas": betas, "eps": eps, "noise": noise}
        super().__init__(params, lr, own | _freezing(invariant, adapt_steps), **common)


class AdadeltaSGLD(LangevinOptimizer):
    """Adadelta SGLD (section 3.3): `langevin.adadelta_sgld`.

    ``θ' = θ - (lr / N) (g + a A) + sqrt(2 (lr / N) τ) η``, then ``V' = β V + (1 - β) g**2``,
    ``A' = sqrt(D + λ) / sqrt(V' + λ) g`` and ``D' = β D + (1 - β) A'**2``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a.
        beta: β, Zeiler's ρ.
        eps_root: λ, inside the roots.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.AdadeltaSGLD(model.parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(adadelta_sgld)
    settings = ("bias_factor", "beta", "eps_root")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        bias_factor: float = 1.0,
        beta: float = 0.9,
        eps_root: float = 1e-6,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"bias_factor": bias_factor, "beta": beta, "eps_root": eps_root}
        super().__init__(params, lr, own, **common)


def _freezing(invariant: bool, adapt_steps: int | None) -> dict[str, Any]:
    """Return when a scale is frozen, in the invariant form by default after 10,000 steps."""
    steps = 10_000 if invariant is True and adapt_steps is None else adapt_steps
    return {"invariant": invariant, "adapt_steps": steps}
