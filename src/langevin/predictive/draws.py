"""Draws of every kind as one: functions from inputs to the outputs of a few draws."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from langevin.checks import check_function, check_position, needs
from langevin.space import Space
from langevin.store import Samples
from langevin.store.bank import SampleBank
from langevin.store.bank.batches import call, each_tensor
from langevin.targets import Posterior
from langevin.targets.likelihoods import LIKELIHOODS, Likelihood, as_likelihood

__all__ = ["Draws", "Few", "as_draws"]

_DRAWS_AT_ONCE = 16  # of a small model; of a large one fewer, so that their parameters stay within
_ELEMENTS_AT_ONCE = 2**18
_KINDS = "Samples, positions (..., dim), a SampleBank, or modules (a list of Samples, banks or modules too)"


class Few(NamedTuple):
    """A few draws that are evaluated together."""

    chains: list[int]  # the number of the chain that each is of
    outputs: Callable[[Any], Tensor]  # from the inputs of one call to (draws, rows, ...)


class Draws(NamedTuple):
    """Draws of a model, to be read once."""

    likelihood: Likelihood
    each: Iterator[Few]
    total: int | None  # how many there are, where that is known before they are read
    shape: tuple[int, ...] | None  # leading axes of positions; None for modules
    check: Callable[[Any], object]  # of the inputs of the first call


@dataclass(frozen=True)
class _Transformed(Likelihood):
    """What `transform` makes of the outputs is averaged, and no more is known of y."""

    function: Callable[[Tensor], Tensor]

    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        raise needs("predict", "y", "a likelihood, where `transform` is none", "transform")

    def mean(self, output: Tensor) -> Tensor:
        found = self.function(output)
        if not isinstance(found, Tensor):
            raise needs("predict", "transform", "to make the model's output a tensor", type(found), TypeError)
        if found.ndim == 0 or len(found) != len(output):
            raise needs("predict", "transform", f"a row per row of the output, {len(output)} of them", tuple(found.shape))
        return found


def as_draws(who: str, model: Any, draws: Any, likelihood: Any = None, transform: Any = None, on_error: Any = "raise") -> Draws:
    """Check a model and its draws, and return what evaluates them; the arguments are those of `predict`."""
    if model is not None and not isinstance(model, Posterior | nn.Module):
        raise needs(who, "model", "a Posterior, an nn.Module, or None where the draws are modules", model, TypeError)
    if not isinstance(on_error, str) or on_error not in ("raise", "skip"):
        raise needs(who, "on_error", '"raise" or "skip"', on_error)
    law = _likelihood(who, model, draws, likelihood, transform)
    if isinstance(draws, Samples | Tensor):
        return _of_positions(who, model, draws, law)
    if isinstance(draws, SampleBank):
        return _of_modules(who, model, [draws], law, on_error)
    if isinstance(draws, str | Mapping | nn.Module) or not isinstance(draws, Iterable):
        raise needs(who, "draws", _KINDS, draws, TypeError)
    if isinstance(draws, list | tuple) and draws and all(isinstance(part, Samples) for part in draws):
        return _joined([_of_positions(who, model, part, law) for part in draws])
    return _of_modules(who, model, draws, law, on_error)


def _likelihood(who: str, model: Any, draws: Any, likelihood: Any, transform: Any) -> Likelihood:
    """Return the likelihood that was given, or the one that is known."""
    if transform is not None:
        check_function(who, "transform", transform, "None or a function of the model's output", 1)
        if likelihood is not None:
            raise needs(who, "transform", "to be given in place of a likelihood, not beside one", transform)
        return _Transformed(transform)
    if likelihood is not None:
        return as_likelihood(who, likelihood)
    first = draws[0] if isinstance(draws, list | tuple) and draws else draws
    for known in (model, first.target if isinstance(first, Samples) else None):
        if isinstance(known, Posterior):
            return known.likelihood
    condition = f"one of {sorted(LIKELIHOODS)}, an object such as likelihoods.gaussian(std=...), or transform= in its place"
    raise needs(who, "likelihood", f"{condition}, for a module says nothing of y", None, TypeError)


# ---- positions


def _of_positions(who: str, model: Any, draws: Samples | Tensor, likelihood: Likelihood) -> Draws:
    if isinstance(draws, Samples):
        if draws.kept != "positions":
            raise needs(who, "draws", "positions", f"what `keep` made of them ({draws.kept})")
        draws = draws.healthy
    if draws.numel() == 0:
        raise needs(who, "draws", "at least one draw of a chain that ran to its end", f"draws of shape {tuple(draws.shape)}")
    check_position(who, "draws", draws)
    function: Callable[[Tensor, Any], Any]
    check: Callable[[Any], object]
    if isinstance(model, Posterior):
        space, function, check = model.space, model.output_fn, model.check_inputs  # which says what the model cannot take
    elif isinstance(model, nn.Module):
        space, function = _function(who, model, likelihood, draws.shape[-1])
        check = _anything
    else:
        raise needs(who, "model", "a Posterior or an nn.Module, where draws are positions", model, TypeError)
    space.check(who, "draws", draws)
    positions = draws.detach().to(space.device).reshape(-1, space.dim)
    shape = tuple(draws.shape[:-1])
    size = max(1, min(_DRAWS_AT_ONCE, _ELEMENTS_AT_ONCE // space.dim))
    per_chain = len(positions) // shape[0] if len(shape) > 1 else len(positions)
    parts = enumerate(positions.split(size))
    each = (
        Few([number // per_chain for number in range(k * size, k * size + len(part))], _outputs(who, function, part, space.device))
        for k, part in parts
    )
    return Draws(likelihood, each, len(positions), shape, check)


def _outputs(
    who: str, function: Callable[[Tensor, Any], Tensor], positions: Tensor, device: torch.device
) -> Callable[[Any], Tensor]:
    """Return the function from inputs to the outputs of these positions."""

    def outputs(inputs: Any) -> Tensor:
        inputs = each_tensor(inputs, lambda tensor: tensor.to(device))
        if len(positions) == 1:
            return _checked(who, function(positions[0], inputs))[None]
        return torch.func.vmap(lambda position: _checked(who, function(position, inputs)))(positions)

    return outputs


def _function(who: str, model: nn.Module, likelihood: Likelihood, dim: int) -> tuple[Space, Callable[[Tensor, Any], Tensor]]:
    """Return a module as a function of theta and inputs; a scale that the likelihood learned is one more element of theta."""
    module = copy.deepcopy(model).eval()
    if Space.of(module, who=who).dim != dim:
        module = likelihood.wrap(module)
    space = Space.of(module, who=who)

    def function(position: Tensor, inputs: Any) -> Any:
        parameters = space.unflatten(position)
        if isinstance(inputs, dict):
            return torch.func.functional_call(module, parameters, (), inputs)
        return torch.func.functional_call(module, parameters, (inputs,) if isinstance(inputs, Tensor) else tuple(inputs))

    return space, function


def _joined(parts: list[Draws]) -> Draws:
    """Put the draws of several runs behind each other."""

    def each() -> Iterator[Few]:
        first = 0
        for part in parts:
            last = first
            for few in part.each:
                yield few._replace(chains=[first + chain for chain in few.chains])
                last = max(last, first + max(few.chains))
            first = last + 1

    return parts[0]._replace(each=each(), total=sum(part.total or 0 for part in parts), shape=None)


# ---- modules


def _of_modules(who: str, model: Any, draws: Iterable[Any], likelihood: Likelihood, on_error: Any) -> Draws:
    def each() -> Iterator[Few]:
        chain = 0
        for part in draws:
            if isinstance(part, SampleBank):
                if not isinstance(model, nn.Module):
                    raise needs(who, "model", "an nn.Module, where draws are a bank", model, TypeError)
                for module in part.models(model, on_error=on_error):
                    yield Few([chain], _calls(who, module))
                chain += 1
            elif isinstance(part, nn.Module):
                yield Few([chain], _calls(who, part))
            else:
                raise needs(who, "draws", _KINDS, type(part), TypeError)

    sized = isinstance(draws, list | tuple)
    total = sum(len(part) if isinstance(part, SampleBank) else 1 for part in draws) if sized else None
    return Draws(likelihood, each(), total, None, _anything)


def _calls(who: str, module: nn.Module) -> Callable[[Any], Tensor]:
    def outputs(inputs: Any) -> Tensor:
        with _evaluating(module):
            return _checked(who, call(module, inputs))[None]

    return outputs


def _anything(x: Any) -> None:
    """Leave it to the module to say what it cannot take."""


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and back afterwards."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _checked(who: str, output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim == 0:
        found = type(output) if not isinstance(output, Tensor) else "a single number"
        raise needs(who, "model", "a tensor of outputs, one row per row of inputs", found, TypeError)
    return output
