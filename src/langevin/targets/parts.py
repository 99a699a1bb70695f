"""Which parameters of a module, and which of their elements, are part of theta."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import needs

__all__ = ["Parameters", "choose", "own_names", "renamed_masks"]

Parameters = str | Sequence[str] | Callable[[str], bool]
"""Names of parameters: a pattern such as "head.*", several, or a function that says of a name whether it is one."""


def choose(who: str, model: Any, parameters: Parameters | None) -> None:
    """Freeze all parameters of a module but those chosen, which are made trainable; None leaves them as they are."""
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", model, TypeError)
    if parameters is None:
        return
    found = dict(model.named_parameters())
    chosen = _chosen(who, parameters, list(found))
    for name, parameter in found.items():
        if name in chosen and not parameter.is_floating_point():
            raise needs(who, "parameters", "real floating-point parameters", f"{name!r} of {parameter.dtype}", TypeError)
        parameter.requires_grad_(name in chosen)


def _chosen(who: str, parameters: Any, names: list[str]) -> set[str]:
    """Return the names that are meant."""
    if callable(parameters):
        chosen = {name for name in names if parameters(name)}
        if not chosen:
            raise needs(who, "parameters", f"a function that chooses one of {names}", parameters)
        return chosen
    patterns = [parameters] if isinstance(parameters, str) else parameters
    if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise needs(
            who, "parameters", 'a pattern of names such as "head.*", several, or a function of a name', parameters, TypeError
        )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise needs(who, "parameters", f"patterns that match one of {names}", pattern)
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def own_names(model: nn.Module, wrapped: nn.Module) -> dict[str, str]:
    """Return the names in a module that contains another by the other's own, and its new parameters by theirs."""
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    return {own.get(id(parameter), name): name for name, parameter in wrapped.named_parameters()}


def renamed_masks(who: str, mask: Any, model: nn.Module, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Check masks by name, freeze the parameters of which nothing is left, and return the others by their new names.

    Args:
        who: the caller, for error messages.
        mask: by a parameter's name, booleans of its shape.
        model: the module that has the parameters, under their new names.
        names: new names, by those that the user knows.
    """
    if mask is None:
        return {}
    if not isinstance(mask, Mapping):
        raise needs(who, "mask", "a dict of boolean tensors by name", mask, TypeError)
    found, masks = dict(model.named_parameters()), {}
    for name, kept in mask.items():
        parameter = found.get(names.get(name, ""))
        if parameter is None or not parameter.requires_grad:
            trainable = [own for own, new in names.items() if found[new].requires_grad]
            raise needs(who, "mask", f"names of trainable parameters, {trainable}", name)
        if not isinstance(kept, Tensor) or kept.dtype != torch.bool or kept.shape != parameter.shape:
            shown = f"{kept.dtype} of shape {tuple(kept.shape)}" if isinstance(kept, Tensor) else type(kept).__name__
            raise needs(who, "mask", f"booleans of shape {tuple(parameter.shape)} for {name!r}", shown, TypeError)
        if not kept.any():
            parameter.requires_grad_(False)
        elif not kept.all():
            masks[names[name]] = kept
    return masks
