"""Draws of every kind in one form: functions from inputs to the outputs of a few draws."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from langevin.checks import check_function, check_position, needs
from langevin.nn.bank import SampleBank
from langevin.nn.bank.reading import OnError, check_on_error
from langevin.nn.batches import call, evaluation_mode
from langevin.nn.trees import Tree, logits_of, map_tensors
from langevin.storage import Samples
from langevin.targets import Posterior
from langevin.targets.data import arguments
from langevin.targets.likelihoods import LIKELIHOODS, Likelihood, as_likelihood
from langevin.targets.space import Space

__all__ = ["Draws", "DrawsLike", "Group", "LikelihoodLike", "Transform", "as_draws"]

DrawsLike: TypeAlias = Samples | Tensor | SampleBank | Iterable[object]
LikelihoodLike: TypeAlias = str | Likelihood | Callable[..., Tensor] | None
Transform: TypeAlias = Callable[[Tree], Tensor] | None

_DRAWS_AT_ONCE = 16  # of a small model; fewer of a large one, so that their parameters stay within
_ELEMENTS_AT_ONCE = 2**18
_KINDS = (
    "Samples, positions (..., dim), a SampleBank, or modules "
    "(a list of Samples, banks or modules too)"
)


class Group(NamedTuple):
    """A few draws that are evaluated together."""

    chains: list[int]  # the chain of each draw
    outputs: Callable[[Tree], Tensor]  # from the inputs of one call to (draws, rows, ...)


class Draws(NamedTuple):
    """Draws of a model, readable once."""

    likelihood: Likelihood
    groups: Iterator[Group]
    total: int | None  # number of draws, where it is known before reading
    shape: tuple[int, ...] | None = None  # leading axes of positions; None for modules
    check: Callable[[Tree], object] = lambda x: None  # of the inputs of the first call

    @property
    def argument(self) -> str:
        """The argument of `predict` that outputs come from."""
        return "transform" if isinstance(self.likelihood, _Transformed) else "model"


@dataclass(frozen=True)
class _Transformed(Likelihood):
    """Average the outputs of `transform` as they are."""

    function: Callable[[Tree], Tensor]

    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        raise needs("predict", "y", "a likelihood, which `transform` is not", "transform")

    def mean(self, output: Tensor) -> Tensor:
        return output


def as_draws(
    who: str,
    model: object,
    draws: object,
    likelihood: LikelihoodLike = None,
    transform: Transform = None,
    on_error: str = "raise",
) -> Draws:
    """Check a model and its draws, and return functions that evaluate them; see `predict`."""
    if model is not None and not isinstance(model, Posterior | nn.Module):
        condition = "a Posterior, an nn.Module, or None where the draws are modules"
        raise needs(who, "model", condition, model, TypeError)
    skips = check_on_error(who, on_error)
    family = _likelihood(who, model, draws, likelihood, transform)
    if isinstance(draws, Samples | Tensor):
        return _of_positions(who, model, draws, family)
    if isinstance(draws, SampleBank):
        return _of_modules(who, model, [draws], family, skips)
    if isinstance(draws, str | Mapping | nn.Module) or not isinstance(draws, Iterable):
        raise needs(who, "draws", _KINDS, draws, TypeError)
    is_list = isinstance(draws, list | tuple) and draws
    if is_list and all(isinstance(part, Samples) for part in draws):
        return _concatenate([_of_positions(who, model, part, family) for part in draws])
    return _of_modules(who, model, draws, family, skips)


def _likelihood(
    who: str, model: object, draws: object, likelihood: LikelihoodLike, transform: Transform
) -> Likelihood:
    """Return the likelihood that was passed, or that of a `Posterior`."""
    if transform is not None:
        check_function(who, "transform", transform, "None or a function of the model's output", 1)
        if likelihood is not None:
            raise needs(who, "transform", "likelihood=None", transform)
        return _Transformed(transform)
    if likelihood is not None:
        return as_likelihood(who, likelihood)
    first = draws[0] if isinstance(draws, list | tuple) and draws else draws
    for known in (model, first.target if isinstance(first, Samples) else None):
        if isinstance(known, Posterior):
            return known.likelihood
    names = f"one of {sorted(LIKELIHOODS)}, an object such as likelihoods.gaussian(std=...)"
    condition = f"{names}, or transform= in its place, as a module has no likelihood"
    raise needs(who, "likelihood", condition, None, TypeError)


def _finish(who: str, likelihood: Likelihood, output: Tree) -> Tensor:
    """Return the outputs of one draw's model as rows: its tensor or logits, or by `transform`."""
    found: Tensor | None
    shown: object
    if isinstance(likelihood, _Transformed):
        found = likelihood.function(output)
        argument, condition, shown = "transform", "to return a tensor", type(found)
    else:
        found = logits_of(output)
        argument, condition = "model", "a tensor of outputs, or an output with logits, one row per "
        condition += "row of inputs; transform= takes any output, as in lambda out: out.pooled"
        fields = f" of {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        shown = f"{type(output).__name__}{fields}"
    if not isinstance(found, Tensor):
        raise needs(who, argument, condition, shown, TypeError)
    if not found.ndim:
        raise needs(who, argument, "a row per row of inputs", "a single number")
    return found


# ---- positions


def _of_positions(
    who: str, model: object, draws: Samples | Tensor, likelihood: Likelihood
) -> Draws:
    if isinstance(draws, Samples):
        if draws.kept != "positions":
            raise needs(who, "draws", "positions", f"the output of `keep` ({draws.kept})")
        draws = draws.healthy
    if draws.numel() == 0:
        condition = "at least one draw of a chain that ran to its end"
        raise needs(who, "draws", condition, f"draws of shape {tuple(draws.shape)}")
    check_position(who, "draws", draws)
    *shape, dim = draws.shape
    function: Callable[[Tensor, Tree], Tree]
    if isinstance(model, Posterior):
        space, function = model.space, model.output_fn
    elif isinstance(model, nn.Module):
        space, function = _functional(who, model, likelihood, dim)
    else:
        condition = "a Posterior or an nn.Module, where draws are positions"
        raise needs(who, "model", condition, model, TypeError)
    space.check(who, "draws", draws)
    positions = draws.detach().to(space.device).reshape(-1, space.dim)
    size = max(1, min(_DRAWS_AT_ONCE, _ELEMENTS_AT_ONCE // space.dim))
    per_chain = len(positions) // shape[0] if len(shape) > 1 else len(positions)

    def outputs(part: Tensor, inputs: Tree) -> Tensor:
        inputs = map_tensors(inputs, lambda tensor: tensor.to(space.device))

        def output(position: Tensor) -> Tensor:
            return _finish(who, likelihood, function(position, inputs))

        if len(part) > 1:
            with suppress(RuntimeError):  # vmap does not support branches on values
                return torch.func.vmap(output)(part)
        return torch.stack([output(position) for position in part])

    groups = (
        Group([k // per_chain for k in range(first, first + len(part))], partial(outputs, part))
        for first, part in zip(range(0, len(positions), size), positions.split(size), strict=True)
    )
    found = Draws(likelihood, groups, len(positions), tuple(shape))
    return found._replace(check=model.check_inputs) if isinstance(model, Posterior) else found


def _functional(
    who: str, model: nn.Module, likelihood: Likelihood, dim: int
) -> tuple[Space, Callable[[Tensor, Tree], Tree]]:
    """Return a module as a function of theta, maybe with the likelihood's scale, and inputs."""
    module = copy.deepcopy(model).eval()
    if Space.of(module, who=who).dim != dim:
        module = likelihood.wrap(module)
    space = Space.of(module, who=who)

    def function(position: Tensor, inputs: Tree) -> Tree:
        parameters = space.unflatten(position)
        return torch.func.functional_call(module, parameters, *arguments((inputs,)))

    return space, function


def _concatenate(parts: list[Draws]) -> Draws:
    """Return the draws of several runs one after the other."""

    def groups() -> Iterator[Group]:
        first = 0
        for part in parts:
            last = first
            for group in part.groups:
                yield group._replace(chains=[first + chain for chain in group.chains])
                last = max(last, first + max(group.chains))
            first = last + 1

    total = sum(part.total or 0 for part in parts)
    return parts[0]._replace(groups=groups(), total=total, shape=None)


# ---- modules


def _of_modules(
    who: str,
    model: object,
    draws: Iterable[object],
    likelihood: Likelihood,
    on_error: OnError,
) -> Draws:
    def groups() -> Iterator[Group]:
        chain = 0
        for part in draws:
            if isinstance(part, SampleBank):
                if not isinstance(model, nn.Module):
                    condition = "an nn.Module, where draws are a bank"
                    raise needs(who, "model", condition, model, TypeError)
                for module in part.models(model, on_error=on_error):
                    yield Group([chain], partial(outputs, module))
                chain += 1
            elif isinstance(part, nn.Module):
                yield Group([chain], partial(in_evaluation_mode, part))
            else:
                raise needs(who, "draws", _KINDS, type(part), TypeError)

    def outputs(module: nn.Module, inputs: Tree) -> Tensor:
        return _finish(who, likelihood, call(module, inputs))[None]

    def in_evaluation_mode(module: nn.Module, inputs: Tree) -> Tensor:
        with evaluation_mode(module):
            return outputs(module, inputs)

    total = None
    if isinstance(draws, list | tuple):
        total = sum(len(part) if isinstance(part, SampleBank) else 1 for part in draws)
    return Draws(likelihood, groups(), total)
