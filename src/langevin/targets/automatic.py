"""Targets from a user's function, differentiated automatically: any energy, or a log-likelihood per datum.

The user's function is written for ONE position (dim,); the library runs it on any number of chains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from langevin.checks import check_function, check_integer, check_number, needs, takes
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.priors import Prior, check_prior

__all__ = [
    "EnergyTarget",
    "LikelihoodTarget",
    "differentiate",
    "energy",
    "likelihood",
    "per_chain",
    "posterior_energy",
    "validation",
]

_ARGUMENTS = {
    "energy": "one position (dim,)",
    "likelihood": "one position (dim,) and the data's columns",
    "Model": "the dict of parameters and the data's columns",
    "Model.log_density": "the dict of parameters",
}

# What torch says of a function that cannot run on all chains at once, and what to write instead.
_INSTEAD = {
    "data-dependent control flow": "torch.where(condition, a, b) instead of `if`, `while`, `and`, min() or max() on tensors",
    "calling .item()": "tensors all the way, no .item(), float(), math.exp() or torch.tensor([a, b]): torch.exp, torch.stack",
    "random operation": "no random numbers: noise belongs to the sampler, and what is not known is a parameter",
    "inplace": "new tensors, nothing written in place: collect the parts in a list and torch.stack them, or use torch.where",
    "doesn't match the broadcast shape": "new tensors, nothing written in place: `total = total + x` instead of `total += x`",
    "data pointer": "torch operations only, no .numpy(), .tolist() or numpy functions",
    "boolean mask": "shapes that are known beforehand: torch.where(mask, x, 0.0) instead of x[mask]",
    "dynamic shape": "shapes that are known beforehand: no nonzero(), unique() or the like",
    "must only return Tensors": "a result that is a tensor",
}


@contextlib.contextmanager
def validation(on: bool) -> Iterator[None]:
    """Have `torch.distributions` check what they are given, or not: a check looks at values, which a chain may not do alone."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(on)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def per_chain(who: str, argument: str, function: Callable[..., Tensor], in_dims: tuple[int | None, ...], *given: Tensor) -> Tensor:
    """Run a user's function on every chain; torch's complaints about what it may not contain come back in our words."""
    run = torch.func.vmap(function, in_dims=in_dims)
    if torch.compiler.is_compiling():  # the compiler turns validation off by itself
        return run(*given)
    try:
        with validation(False):
            return run(*given)
    except TypeError as error:
        if takes(function, len(given)):  # an error inside the function
            raise
        raise needs(
            who, argument, f"a function that takes {_ARGUMENTS.get(who, 'its arguments')}, {len(given)} here", str(error), TypeError
        ) from error
    except (RuntimeError, ValueError) as error:
        instead = next((advice for sign, advice in _INSTEAD.items() if sign in str(error)), None)
        if instead is None and not str(error).lstrip().startswith("vmap"):
            raise
        condition = f"{instead or 'torch operations on tensors only'}, since it runs on all chains at once"
        raise needs(who, argument, condition, str(error).strip().splitlines()[0]) from error


def differentiate(energies_fn: Callable[[Tensor], Tensor], position: Tensor) -> Evaluation:
    """Return the chains' energies and their gradients; chains are independent, so one backward pass of the sum serves all."""
    if torch.compiler.is_compiling():  # a user's torch.compile traces torch.func; run eagerly it costs twice as much as autograd

        def total(at: Tensor) -> tuple[Tensor, Tensor]:
            energies = energies_fn(at)
            return energies.sum(), energies

        gradient, energies = torch.func.grad(total, has_aux=True)(position)
        return Evaluation(energies, gradient)
    leaf = position.detach().requires_grad_()
    with torch.enable_grad():
        energies = energies_fn(leaf)
        if not energies.requires_grad:
            raise needs("targets", "function", "a result that depends on theta", energies.tolist())
        (gradient,) = torch.autograd.grad(energies.sum(), leaf)
    return Evaluation(energies.detach(), gradient)


def posterior_energy(log_likelihood_fn: Callable[..., Tensor], prior: Prior, position: Tensor, batch: Batch) -> Evaluation:
    """Return ``U = -(N / n) sum_i log p(x_i | theta) - log prior`` and its gradient at positions (chains, dim)."""
    columns, row_axis = batch.columns, 0 if batch.per_chain else None
    rows = columns[0].shape[1 if batch.per_chain else 0]

    def energies(leaf: Tensor) -> Tensor:
        axes = (0, *(row_axis for _ in columns))
        logs = per_chain("likelihood", "log_likelihood_fn", log_likelihood_fn, axes, leaf, *columns)
        if logs.shape != (len(leaf), rows):
            raise needs("likelihood", "log_likelihood_fn", f"one number per datum, ({rows},)", tuple(logs.shape[1:]))
        return -batch.scale * logs.sum(-1)

    energy, gradient = differentiate(energies, position)
    return Evaluation(energy + prior.energy(position), gradient + prior.gradient(position))


@dataclass(frozen=True)
class EnergyTarget(Target):
    """A user's energy; use `energy` to build one."""

    energy_fn: Callable[[Tensor], Tensor]
    gradient_noise: float
    dim: int | None = None

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        def energies(leaf: Tensor) -> Tensor:
            result = per_chain("energy", "energy_fn", self.energy_fn, (0,), leaf)
            if result.shape != leaf.shape[:1]:
                raise needs("energy", "energy_fn", "one number for one position (dim,)", tuple(result.shape[1:]))
            return result

        return differentiate(energies, position)


@dataclass(frozen=True)
class LikelihoodTarget(Target):
    """A user's log-likelihood and a prior; use `likelihood` to build one."""

    log_likelihood_fn: Callable[..., Tensor]
    prior: Prior
    gradient_noise: float
    dim: int | None = None

    needs_data = True

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if batch is None:
            raise needs("likelihood", "data", "the data set's columns", None)
        return posterior_energy(self.log_likelihood_fn, self.prior, position, batch)


def energy(energy_fn: Callable[[Tensor], Tensor], *, dim: int | None = None, gradient_noise: float = 0.0) -> EnergyTarget:
    """Make the target exp(-U) from an energy.

    Args:
        energy_fn: U, a function of ONE position (dim,) that returns one number.
        dim: elements of a position; `sample` without an init needs it.
        gradient_noise: standard deviation of noise added to the gradient at each step.

    Example:
        >>> energy(lambda theta: 0.5 * theta @ theta).evaluate(torch.tensor([[1.0, 2.0]]))
        Evaluation(energy=tensor([2.5000]), gradient=tensor([[1., 2.]]))
    """
    check_function("energy", "energy_fn", energy_fn, "a function of one position (dim,)", 1)
    noise = check_number("energy", "gradient_noise", gradient_noise, ">= 0", lambda v: v >= 0)
    return EnergyTarget(energy_fn, noise, None if dim is None else check_integer("energy", "dim", dim, 1))


def likelihood(
    log_likelihood_fn: Callable[..., Tensor], *, prior: Prior, dim: int | None = None, gradient_noise: float = 0.0
) -> LikelihoodTarget:
    """Make a posterior from a log-likelihood per datum and a prior; N / n is the library's business.

    Args:
        log_likelihood_fn: function of ONE position (dim,) and the data's columns, (n, ...) each, that returns the
            log-likelihood of every row, shape (n,).
        prior: one of `langevin.priors`.
        dim: elements of a position; `sample` without an init needs it.
        gradient_noise: standard deviation of noise added to the gradient at each step, on top of the minibatches'.

    Example:
        >>> from langevin.targets import priors
        >>> normal_mean = likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=priors.gaussian(std=1.0))
        >>> batch = Batch((torch.tensor([1.0, 3.0]),), num_data=100, per_chain=False)
        >>> normal_mean.evaluate(torch.tensor([[2.0]]), batch).gradient
        tensor([[2.]])
    """
    check_function("likelihood", "log_likelihood_fn", log_likelihood_fn, "a function of one position (dim,) and the data's columns")
    noise = check_number("likelihood", "gradient_noise", gradient_noise, ">= 0", lambda v: v >= 0)
    known = None if dim is None else check_integer("likelihood", "dim", dim, 1)
    return LikelihoodTarget(log_likelihood_fn, check_prior("likelihood", prior), noise, known)
