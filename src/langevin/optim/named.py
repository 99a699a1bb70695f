"""The optimizers by name: constructor and docstring; the formula is the sampler's in `langevin.samplers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from langevin.optim.base import Common, LangevinOptimizer
from langevin.samplers import adadelta_sgld, adamax_sgld, asgld, msgld, psgld, sghmc, sgld

__all__ = ["ASGLD", "AdaMaxSGLD", "AdadeltaSGLD", "MSGLD", "PSGLD", "SGHMC", "SGLD"]


class SGLD(LangevinOptimizer):
    """Stochastic gradient Langevin dynamics: ``theta' = theta - eps g + sqrt(2 eps tau) eta``.

    Here ``eps = lr / num_data`` and ``g = num_data * grad(loss) + grad(-log prior)``: the user calls ``loss.backward()`` on the
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

    ``V' = beta V + (1 - beta) (g / N)**2``, ``G = 1 / (eps + sqrt(V'))``,
    ``theta' = theta - (lr / N) G g + sqrt(2 (lr / N) tau G) eta``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in RMSprop, on the mean loss.
        beta: smoothing factor of V.
        eps: lambda, outside the root, on the scale of the mean loss.
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


class SGHMC(LangevinOptimizer):
    """Stochastic gradient HMC: `langevin.sghmc`; at temperature 0 it is SGD with momentum beta.

    ``v' = beta v - (lr / N) g + sqrt(2 tau (lr / N) (1 - beta)) eta``, ``theta' = theta + v'``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        beta: share of the velocity that is kept, SGD's momentum.
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


class MSGLD(LangevinOptimizer):
    """Momentum SGLD, Algorithm 1 as published or in its invariant form: `langevin.msgld`.

    ``theta' = theta - (lr / N) (g + a m) + sqrt(2 (lr / N) tau) eta``, then ``m' = beta m + (1 - beta) g``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a.
        beta: beta_1.
        invariant: give the momentum noise of its own, so that the posterior is invariant.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.MSGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, bias_factor=1.0)
    """

    builder = staticmethod(msgld)
    settings = ("bias_factor", "beta", "invariant")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        bias_factor: float = 1.0,
        beta: float = 0.9,
        invariant: bool = False,
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        super().__init__(params, lr, {"bias_factor": bias_factor, "beta": beta, "invariant": invariant}, **common)


class ASGLD(LangevinOptimizer):
    """Adam SGLD, Algorithm 2 as published or in its invariant form: `langevin.asgld`.

    ``theta' = theta - (lr / N) (g + a m / sqrt(V + lambda)) + sqrt(2 (lr / N) tau) eta``, then
    ``m' = beta_1 m + (1 - beta_1) g`` and ``V' = beta_2 V + (1 - beta_2) g**2``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a. The Adam term has size a whatever the size of g, which is N times that of the mean loss's gradient.
        betas: (beta_1, beta_2), with beta_1**2 < beta_2.
        eps_root: lambda, inside the root.
        invariant: give the momentum noise of its own, so that the posterior is invariant once V is frozen.
        adapt_steps: steps after which V is frozen, when invariant; by default 10,000.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.ASGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(asgld)
    settings = ("bias_factor", "betas", "eps_root", "invariant", "adapt_steps")

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
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"bias_factor": bias_factor, "betas": betas, "eps_root": eps_root, **_phases(invariant, adapt_steps)}
        super().__init__(params, lr, own, **common)


class AdaMaxSGLD(LangevinOptimizer):
    """AdaMax SGLD (section 3.3), published or invariant form: `langevin.adamax_sgld`.

    ``theta' = theta - (lr / N) (g + a m / (u + eps)) + sqrt(2 (lr / N) tau) eta``, then
    ``m' = beta_1 m + (1 - beta_1) g`` and ``u' = max(beta_2 u, |g|)``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a.
        betas: (beta_1, beta_2), with beta_1 < beta_2.
        eps: lambda.
        invariant: give the momentum noise of its own, so that the posterior is invariant once u is frozen.
        adapt_steps: steps after which u is frozen, when invariant; by default 10,000.
        common: num_data, temperature, prior, seed and fused, as in `LangevinOptimizer`.

    Example:
        >>> import torch, langevin as lv
        >>> opt = lv.optim.AdaMaxSGLD(torch.nn.Linear(2, 1).parameters(), lr=0.1, num_data=100, bias_factor=10.0)
    """

    builder = staticmethod(adamax_sgld)
    settings = ("bias_factor", "betas", "eps", "invariant", "adapt_steps")

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
        **common: Unpack[Common],
    ) -> None:
        """See the class."""
        own = {"bias_factor": bias_factor, "betas": betas, "eps": eps, **_phases(invariant, adapt_steps)}
        super().__init__(params, lr, own, **common)


class AdadeltaSGLD(LangevinOptimizer):
    """Adadelta SGLD (section 3.3): `langevin.adadelta_sgld`.

    ``theta' = theta - (lr / N) (g + a A) + sqrt(2 (lr / N) tau) eta``, then ``V' = beta V + (1 - beta) g**2``,
    ``A' = sqrt(D + lambda) / sqrt(V' + lambda) g`` and ``D' = beta D + (1 - beta) A'**2``

    Args:
        params: parameters, or groups of them.
        lr: learning rate as in SGD, on the mean loss.
        bias_factor: a.
        beta: Zeiler's rho.
        eps_root: lambda, inside the roots.
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
