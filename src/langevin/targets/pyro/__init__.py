"""Pyro models as targets: `from_pyro`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langevin.targets.pyro.model import PyroModel

__all__ = ["from_pyro"]


def from_pyro(model: Callable[..., Any], /, *args: Any, **kwargs: Any) -> PyroModel:
    """Make a `Model` from a Pyro model and its arguments.

    ``U(theta) = -sum over sites of log p(site) - log |det d values / d theta|``, the potential
    energy of `pyro.infer.mcmc`. Latent sites become parameters by name, with the constraint of
    their support; `pyro.deterministic` sites become outputs of ``samples[name]`` and ArviZ.

    A plate with a `subsample_size` below its size becomes the rows of a data set: ``lv.sample``
    takes all rows, or `batch_size` of them per step, with the noise of minibatches estimated and
    corrected. The plate's own `subsample_size` is not used.

    Floating-point tensors among the arguments are converted to float64, in which the model runs.
    `pyro.param` sites keep their current values, which a warning lists.

    Args:
        model: a function with Pyro primitives, or a `PyroModule`, which is copied.
        args: the model's arguments.
        kwargs: the model's keyword arguments.

    Returns:
        A target for `langevin.sample`.

    Raises:
        ImportError: Pyro is not installed: ``pip install "langevin[pyro]"``.
        ValueError: the model has sites that cannot be sampled, which the message names: discrete
            latent sites, sites that change from run to run, supports without a bijection.

    Example:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> def model(y, sigma):
        ...     mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        ...     tau = pyro.sample("tau", dist.HalfCauchy(5.0))
        ...     with pyro.plate("school", len(y)):
        ...         theta = pyro.sample("theta", dist.Normal(mu, tau))
        ...         pyro.sample("y", dist.Normal(theta, sigma), obs=y)
        >>> from_pyro(model, torch.tensor([28.0, 8.0, -3.0]), torch.tensor([15.0, 10.0, 16.0]))
        from_pyro(mu: (), tau: (), theta: (3,), dim=5)
    """
    if importlib.util.find_spec("pyro") is None:
        raise ImportError('from_pyro needs Pyro: pip install "langevin[pyro]"')
    from langevin.targets.pyro.model import PyroModel

    return PyroModel(model, args, kwargs)
