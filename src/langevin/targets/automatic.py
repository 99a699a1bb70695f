"""Targets defined by a user's function, with automatic gradients.

The function is written for ONE position (dim,); the library runs it on all chains at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from langevin.checks import check_function, check_integer, needs, takes
from langevin.targets.base import Batch, Evaluation, Target, check_noise
from langevin.targets.priors import Prior, check_prior

__all__ = [
    "REDUCED",
    "EnergyTarget",
    "LikelihoodTarget",
    "differentiate",
    "energy",
    "likelihood",
    "per_chain",
    "posterior_energy",
    "validation",
]

REDUCED = "leave out .mean() and .sum(): the library sums over rows and rescales minibatches"
"""The remedy for a log-likelihood that returns one number."""

_ARGUMENTS = {
    "energy": "one position (dim,)",
    "likelihood": "one position (dim,) and the data's columns",
    "Model": "the dict of parameters and the data's columns",
    "Model.log_density": "the dict of parameters",
}

# Parts of torch's errors about functions that cannot be vmapped, and what to write instead.
_INSTEAD = {
    "data-dependent control flow": (
        "torch.where(condition, a, b) instead of `if`, `while`, `and`, min() or max() on tensors"
    ),
    "calling .item()": (
        "tensor operations only, no .item(), float(), math.exp() or torch.tensor([a, b]): use "
        "torch.exp, torch.stack"
    ),
    "random operation": (
        "no random numbers: noise belongs to the sampler, and unknowns are parameters"
    ),
    "inplace": (
        "no in-place writes: collect parts in a list and torch.stack them, or use torch.where"
    ),
    "doesn't match the broadcast shape": (
        "no in-place writes: `total = total + x` instead of `total += x`"
    ),
    "data pointer": "torch operations only, no .numpy(), .tolist() or numpy functions",
    "boolean mask": "fixed shapes: torch.where(mask, x, 0.0) instead of x[mask]",
    "dynamic shape": "fixed shapes: no nonzero(), unique() or similar",
    "must only return Tensors": "a tensor as its result",
}


@contextlib.contextmanager
def validation(on: bool) -> Iterator[None]:
    """Switch the checks of `torch.distributions`; they look at values, so they fail under vmap."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(on)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def per_chain(
    who: str,
    argument: str,
    function: Callable[..., Tensor],
    in_dims: tuple[int | None, ...],
    *given: Tensor,
    names: Sequence[str] = (),
) -> Tensor:
    """Run a user's function on every chain, and explain torch's errors.

    Args:
        who: the caller, for errors.
        argument: its argument, the function.
        function: of one position and columns.
        in_dims: the axes of chains.
        given: positions and columns.
        names: of the columns, for errors.
    """
    run = torch.func.vmap(function, in_dims=in_dims)
    if torch.compiler.is_compiling():  # the compiler switches validation off itself
        return run(*given)
    try:
        with validation(False):
            return run(*given)
    except TypeError as error:
        if takes(function, len(given)):  # raised inside the function
            raise
        what = _ARGUMENTS.get(who, "its arguments")
        condition = f"a function that takes {what}, {len(given)} here"
        raise needs(who, argument, condition, str(error), TypeError) from error
    except (RuntimeError, ValueError) as error:
        text = str(error)
        if "bool tensor" in text:
            bools = [k for k, column in enumerate(given[1:]) if column.dtype == torch.bool]
            called = [repr(names[k]) if k < len(names) else f"column {k}" for k in bools]
            if called:
                column = names[bools[0]] if bools[0] < len(names) else "y"
                condition = (
                    f"numbers in arithmetic: {', '.join(called)} is boolean, which may be a mask; "
                    f"write {column}.double() for 0 and 1"
                )
                raise needs(who, argument, condition, text.strip().split(".")[0]) from error
        instead = next((advice for part, advice in _INSTEAD.items() if part in text), None)
        if instead is None and not text.lstrip().startswith("vmap"):
            raise
        advice = instead or "torch operations on tensors only"
        condition = f"{advice}, since it runs on all chains at once"
        raise needs(who, argument, condition, text.strip().splitlines()[0]) from error


def differentiate(energies_fn: Callable[[Tensor], Tensor], position: Tensor) -> Evaluation:
    """Return the chains' energies and gradients.

    Chains are independent, so the gradient of the sum of energies has the gradient of each.
    """
    # A user's torch.compile traces torch.func; run eagerly it costs twice as much as autograd.
    if torch.compiler.is_compiling():

        def total(at: Tensor) -> tuple[Tensor, Tensor]:
            energies = energies_fn(at)
            return energies.sum(), energies

        gradient, energies = torch.func.grad(total, has_aux=True)(position)
        return Evaluation(energies, gradient)
    leaf = position.detach().requires_grad_()
    with torch.enable_grad():
        energies = energies_fn(leaf)
        if not energies.requires_grad:
            condition = "a result that depends on theta"
            raise needs("targets", "function", condition, energies.tolist())
        (gradient,) = torch.autograd.grad(energies.sum(), leaf)
    return Evaluation(energies.detach(), gradient)


def posterior_energy(
    log_likelihood_fn: Callable[..., Tensor], prior: Prior, position: Tensor, batch: Batch
) -> Evaluation:
    """Return ``U = -(N / n) sum_i log p(x_i | theta) - log prior`` and its gradient."""
    columns, row_axis = batch.columns, 0 if batch.per_chain else None
    rows = columns[0].shape[1 if batch.per_chain else 0]
    axes, who = (0, *(row_axis for _ in columns)), ("likelihood", "log_likelihood_fn")

    def energies(leaf: Tensor) -> Tensor:
        logs = per_chain(*who, log_likelihood_fn, axes, leaf, *columns)
        if logs.shape != (len(leaf), rows):
            hint = f"; {REDUCED}" if logs.shape == (len(leaf),) else ""
            condition = f"one number per datum, ({rows},){hint}"
            raise needs(*who, condition, tuple(logs.shape[1:]))
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
                condition = "one number for one position (dim,)"
                raise needs("energy", "energy_fn", condition, tuple(result.shape[1:]))
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


def energy(
    energy_fn: Callable[[Tensor], Tensor], *, dim: int | None = None, gradient_noise: float = 0.0
) -> EnergyTarget:
    """Make the target exp(-U) from an energy U.

    Args:
        energy_fn: function of ONE position (dim,) that returns one number, U.
        dim: elements of a position; `sample` needs it without an init.
        gradient_noise: standard deviation of noise added to the gradient at each step.

    Example:
        >>> energy(lambda theta: 0.5 * theta @ theta).evaluate(torch.tensor([[1.0, 2.0]]))
        Evaluation(energy=tensor([2.5000]), gradient=tensor([[1., 2.]]))
    """
    check_function("energy", "energy_fn", energy_fn, "a function of one position (dim,)", 1)
    return EnergyTarget(energy_fn, *_settings("energy", gradient_noise, dim))


def likelihood(
    log_likelihood_fn: Callable[..., Tensor],
    *,
    prior: Prior,
    dim: int | None = None,
    gradient_noise: float = 0.0,
) -> LikelihoodTarget:
    """Make a posterior from a log-likelihood per datum and a prior.

    The library rescales minibatches by N / n.

    Args:
        log_likelihood_fn: function of ONE position (dim,) and the data's columns, (n, ...) each,
            that returns the log-likelihood of every row, (n,).
        prior: one of `langevin.priors`.
        dim: elements of a position; `sample` needs it without an init.
        gradient_noise: standard deviation of noise added to the gradient at each step, in addition
            to that of minibatches.

    Example:
        >>> from langevin.targets import priors
        >>> prior = priors.gaussian(std=1.0)
        >>> normal_mean = likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=prior)
        >>> batch = Batch((torch.tensor([1.0, 3.0]),), num_data=100, per_chain=False)
        >>> normal_mean.evaluate(torch.tensor([[2.0]]), batch).gradient
        tensor([[2.]])
    """
    what = "a function of one position (dim,) and the data's columns"
    check_function("likelihood", "log_likelihood_fn", log_likelihood_fn, what)
    noise, dim = _settings("likelihood", gradient_noise, dim)
    return LikelihoodTarget(log_likelihood_fn, check_prior("likelihood", prior), noise, dim)


def _settings(who: str, gradient_noise: float, dim: int | None) -> tuple[float, int | None]:
    noise = check_noise(who, gradient_noise)
    return noise, None if dim is None else check_integer(who, "dim", dim, 1)
