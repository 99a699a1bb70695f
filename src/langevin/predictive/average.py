"""Predictions of a posterior averaged over draws, and the log-likelihood of data under each draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_integer, check_position, needs
from langevin.moments import merge
from langevin.targets import Posterior, Target

__all__ = ["log_likelihood", "predict"]

_DRAWS_AT_ONCE = 16  # of a small model; of a large one fewer, so that their parameters stay within
_ELEMENTS_AT_ONCE = 2**18


def predict(posterior: Posterior, samples: Any, x: Tensor, *, batch_size: int = 256) -> Any:
    """Average the predictions over draws, a few draws and rows at a time.

    Args:
        posterior: of which the draws are.
        samples: the result of `sample`, of which the healthy chains count, or draws (..., dim).
        x: new inputs, (n, ...).
        batch_size: rows at a time; it does not change the result beyond rounding.

    Returns:
        For "categorical" probabilities (n, classes). For a Gaussian likelihood a GaussianPrediction of mean and variance,
        the latter being that of the noise plus that of the mean over draws.

    Example:
        >>> import langevin as lv
        >>> posterior = lv.Posterior(torch.nn.Linear(4, 3), "categorical", prior=lv.priors.gaussian(std=1.0), num_data=100)
        >>> predict(posterior, posterior.init(chains=5), torch.zeros(10, 4)).shape
        torch.Size([10, 3])
    """
    draws = _draws("predict", posterior, samples, batch_size)
    posterior.check_inputs(x)
    parts = [_moments(posterior, draws, rows) for rows in x.split(batch_size)]
    mean, variance = (torch.cat(part) for part in zip(*parts, strict=True))
    return posterior.likelihood.combine(mean, variance)


def log_likelihood(posterior: Posterior, samples: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
    """Return the log-likelihood of every row under every draw, (..., n) for draws (..., dim); the rest as in `predict`."""
    draws = _draws("log_likelihood", posterior, samples, batch_size)
    posterior.check_rows(x, y)
    per_draw = torch.func.vmap(posterior.log_likelihood_fn, in_dims=(0, None, None))
    batches = zip(x.split(batch_size), y.split(batch_size), strict=True)
    with torch.no_grad():
        parts = [torch.cat([per_draw(chunk, *rows) for chunk in _chunks(draws)]) for rows in batches]
    return torch.cat(parts, -1).unflatten(0, draws.shape[:-1])


def _moments(posterior: Posterior, draws: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance over the draws of what one draw predicts, merged chunk by chunk."""
    per_draw = torch.func.vmap(lambda position: posterior.likelihood.predictive(posterior.output_fn(position, x)))
    count, mean, square = torch.tensor(0), torch.zeros(()), torch.zeros(())
    for chunk in _chunks(draws):
        with torch.no_grad():
            values = per_draw(chunk)
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        fresh = values.mean(0)
        spread = (values - fresh).square().sum(0)
        count, mean, square = merge(count, mean, square, torch.tensor(len(chunk)), fresh, spread, outer=False)
    return mean, square / count


def _chunks(draws: Tensor) -> Iterator[Tensor]:
    """Yield a few draws at a time, (draws, dim)."""
    dim = draws.shape[-1]
    yield from draws.reshape(-1, dim).split(max(1, min(_DRAWS_AT_ONCE, _ELEMENTS_AT_ONCE // dim)))


def _draws(who: str, posterior: Any, samples: Any, batch_size: Any) -> Tensor:
    """Check what both functions take; return the draws (..., dim) of healthy chains."""
    if not isinstance(posterior, Target) or posterior.space is None:
        raise needs(who, "posterior", "the Posterior of a module", posterior, TypeError)
    check_integer(who, "batch_size", batch_size, 1)
    draws = getattr(samples, "healthy", samples)
    if isinstance(draws, Tensor) and draws.numel() == 0:
        raise needs(who, "samples", "at least one draw of a chain that ran to its end", f"draws of shape {tuple(draws.shape)}")
    posterior.space.check(who, "samples", check_position(who, "samples", draws))
    return draws.detach().to(posterior.space.device)
