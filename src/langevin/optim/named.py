"""The optimizers by name: constructor and docstring; the formula is the sampler's in `langevin.samplers`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Unpack

from langevin.optim.base import Common, LangevinOptimizer
from langevin.samplers import adadelta_sgld, adamax_sgld, adaptive_sghmc, asgld, msgld, psgld, sghmc, sgld, sglrw, sgnht

__all__ = ["ASGLD", "AdaMaxSGLD", "AdadeltaSGLD", "AdaptiveSGHMC", "MSGLD", "PSGLD", "SGHMC", "SGLD", "SGLRW", "SGNHT"]


class SGLD(LangevinOptimizer):
    """Stochastic gradient Langevin dynamics: ``θ' = θ - ε g + sqrt(2 ε τ) η``.

    Here ``ε = lr / num_data`` and ``g = num_data * grad(loss) + grad(-log prior)``: the user calls ``loss.backward()`` on the
    mean loss and ``step()``. The formula is that of `langevin.sgld`.

    Args:
        params: parameters, or groups of them; any setting may be given per group.
        lr: learning rate as in SGD, on the mean loss; any `torch.optim.lr_scheduler` may change it.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=100, prior=lv.priors.gaussian(std=1.0))
        >>> loss = model(torch.ones(5, 2)).square().mean()
        >>> loss.backward()
        >>> opt.step()
    """

    builder = staticmethod(sgld)

    def __init__(self, params: Iterable[Any], lr: float, **common: Unpack[Common]) -> None:
        """See the class."""
        super().__init__(params, lr, {}, **common)


class PSGLD(LangevinOptimizer):
    """Preconditioned SGLD: `langevin.psgld` with V averaged over gradients of the mean loss (``num_data=N``).

    ``V' = β V + (1 - β) (g / N)**2``, ``G = 1 / (λ + sqrt(V'))``,
    ``θ' = θ - (lr / N) G g + sqrt(2 (lr / N) τ G) η``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in RMSprop, on the mean loss.
        beta: β, the smoothing factor of V.
        eps: λ, outside the root, on the scale of the mean loss.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.PSGLD(torch.nn.Linear(2, 1).parameters(), lr=1e-3, num_data=100)
    """

    builder = staticmethod(psgld)
    settings = ("beta", "eps", "num_data")

    def __init__(
        self, params: Iterable[Any], lr: float, *, beta: float = 0.99, eps: float = 1e-5, **common: Unpack[Common]
    ) -> None:
        """See the class."""
        super().__init__(params, lr, {"beta": beta, "eps": eps}, **common)


class SGLRW(LangevinOptimizer):
    """Stochastic gradient lattice random walk: `langevin.sglrw`; a sign for each element in place of a normal.

    ``θ' = θ + d sign(d u - (lr / N) g)`` with ``d = max(sqrt(2 (lr / N) τ), (lr / N) |g|)``, u uniform on (-1, 1)

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss; at temperature 0 it is SGD.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGLRW(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100)
    """

    builder = staticmethod(sglrw)

    def __init__(self, params: Iterable[Any], lr: float, **common: Unpack[Common]) -> None:
        """See the class."""
        super().__init__(params, lr, {}, **common)


class SGHMC(LangevinOptimizer):
    """Stochastic gradient HMC: `langevin.sghmc`; at temperature 0 it is SGD with momentum beta.

    ``v' = β v - (lr / N) g + sqrt(2 τ (lr / N) (1 - β)) η``, ``θ' = θ + v'``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        beta: β, the share of the velocity that is kept, SGD's momentum.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGHMC(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, beta=0.9)
    """

    builder = staticmethod(sghmc)
    settings = ("beta",)

    def __init__(self, params: Iterable[Any], lr: float, *, beta: float = 0.9, **common: Unpack[Common]) -> None:
        """See the class."""
        super().__init__(params, lr, {"beta": beta}, **common)


class SGNHT(LangevinOptimizer):
    """SGHMC with a thermostat for each element, which takes out the heat of minibatches: `langevin.sgnht` with elementwise=True.

    ``v' = ((β - ξ) v - (lr / N) g + sqrt(2 τ (lr / N) (1 - β)) η) / (1 + ξ)``, ``θ' = θ + v'``,
    ``ξ' = ξ + ((1 + β) v'**2 N / (2 lr τ) - 1) / μ``

    The mean of ``state[p]["friction"]`` is the heat that was found, (lr / N) s^2 / (4 τ) for gradients of U with noise of variance
    s^2. At temperature 0 it is SGD with momentum beta.

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        beta: β, the share of the velocity that is kept where there is no heat, SGD's momentum.
        thermal_mass: μ, in steps: how slowly ξ changes.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.SGNHT(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, beta=0.9)
    """

    builder = staticmethod(partial(sgnht, elementwise=True))
    settings = ("beta", "thermal_mass")

    def __init__(
        self, params: Iterable[Any], lr: float, *, beta: float = 0.9, thermal_mass: float = 500.0, **common: Unpack[Common]
    ) -> None:
        """See the class."""
        super().__init__(params, lr, {"beta": beta, "thermal_mass": thermal_mass}, **common)


class AdaptiveSGHMC(LangevinOptimizer):
    """Scale-adapted SGHMC (BOHAMIANN), as published or in its invariant form: `langevin.adaptive_sghmc` with ``num_data=N``.

    ``v' = β v - (lr / N) G g + sqrt(2 τ (lr / N) (1 - β) G - lr**2) η``, ``θ' = θ + v'``, with ``G = (V + λ)^(-1/2)`` and V an
    average of the squared gradient of the mean loss over a window of its own

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in RMSprop, on the mean loss: the square of the published step size.
        beta: β, the share of the velocity that is kept.
        eps_root: λ, inside the root, on the scale of the mean loss.
        invariant: keep the posterior invariant once V is frozen; the published form is colder, see `langevin.adaptive_sghmc`.
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
        params: Iterable[Any],
        lr: float,
        *,
        beta: float = 0.95,
        eps_root: float = 1e-10,
        invariant: bool = False,
        adapt_steps: int = 10_000,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"beta": beta, "eps_root": eps_root, "invariant": invariant, "adapt_steps": adapt_steps}
        super().__init__(params, lr, own, **common)


class MSGLD(LangevinOptimizer):
    """Momentum SGLD, Algorithm 1 as published or in its invariant form: `langevin.msgld`.

    ``θ' = θ - (lr / N) (g + a m) + sqrt(2 (lr / N) τ) η``, then ``m' = β m + (1 - β) g``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a.
        beta: β, the smoothing factor of m.
        invariant: give the momentum its own noise, so that the posterior is invariant.
        noise: "corrected" absorbs the noise of minibatches, when invariant, and follows its variance on the way (`FollowedNoise`);
            for rows drawn with replacement. None leaves it to heat the law.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.MSGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, bias_factor=1.0)
    """

    builder = staticmethod(msgld)
    settings = ("bias_factor", "beta", "invariant", "noise")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        bias_factor: float = 1.0,
        beta: float = 0.9,
        invariant: bool = False,
        noise: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        super().__init__(params, lr, {"bias_factor": bias_factor, "beta": beta, "invariant": invariant, "noise": noise}, **common)


class ASGLD(LangevinOptimizer):
    """Adam SGLD, Algorithm 2 as published or in its invariant form: `langevin.asgld`.

    ``θ' = θ - (lr / N) (g + a m / sqrt(V + λ)) + sqrt(2 (lr / N) τ) η``, then
    ``m' = β₁ m + (1 - β₁) g`` and ``V' = β₂ V + (1 - β₂) g**2``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a. The Adam term has size a whatever the size of g, which is N times that of the mean loss's gradient.
        betas: (β₁, β₂), with β₁**2 < β₂.
        eps_root: λ, inside the root.
        invariant: give the momentum its own noise, so that the posterior is invariant once V is frozen.
        adapt_steps: steps after which V is frozen, when invariant; by default 10,000.
        noise: as in `MSGLD`.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.ASGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(asgld)
    settings = ("bias_factor", "betas", "eps_root", "invariant", "adapt_steps", "noise")

    def __init__(
        self,
        params: Iterable[Any],
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
        own = {"bias_factor": bias_factor, "betas": betas, "eps_root": eps_root, **_phases(invariant, adapt_steps), "noise": noise}
        super().__init__(params, lr, own, **common)


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
        invariant: give the momentum its own noise, so that the posterior is invariant once u is frozen.
        adapt_steps: steps after which u is frozen, when invariant; by default 10,000.
        noise: as in `MSGLD`.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.AdaMaxSGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(adamax_sgld)
    settings = ("bias_factor", "betas", "eps", "invariant", "adapt_steps", "noise")

    def __init__(
        self,
        params: Iterable[Any],
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
        own = {"bias_factor": bias_factor, "betas": betas, "eps": eps, **_phases(invariant, adapt_steps), "noise": noise}
        super().__init__(params, lr, own, **common)


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
        >>> opt = lv.optim.AdadeltaSGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(adadelta_sgld)
    settings = ("bias_factor", "beta", "eps_root")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        bias_factor: float = 1.0,
        beta: float = 0.9,
        eps_root: float = 1e-6,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        super().__init__(params, lr, {"bias_factor": bias_factor, "beta": beta, "eps_root": eps_root}, **common)


def _phases(invariant: bool, adapt_steps: int | None) -> dict[str, Any]:
    """Return when a scale is frozen: a training loop has no warm-up to tell."""
    return {"invariant": invariant, "adapt_steps": 10_000 if invariant is True and adapt_steps is None else adapt_steps}
