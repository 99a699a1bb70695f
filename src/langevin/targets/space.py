"""Map parameters by name to the vector theta and back.

Names, shapes and constraints live here; everywhere else theta is one tensor (..., dim).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from typing_extensions import override

from langevin.checks import needs
from langevin.targets.constraints import Constraint, Values, real

__all__ = ["NO_NOISE", "Parameters", "Space", "choose", "own_names", "renamed_masks"]

NO_NOISE = "a model without random layers: call model.eval(), or remove the layer"

_CHUNK = 1000  # vectors of which further outputs are computed at once

Parameters = str | Sequence[str] | Callable[[str], bool]
"""A choice of parameters: one or several name patterns such as "head.*", or a predicate."""


@dataclass(frozen=True)
class Space:
    """Hold the names, constraints, dtype and device of the parts of theta, in order.

    The order is that of ``model.parameters()``. A tied parameter counts once; frozen parameters
    (``requires_grad=False``) and buffers are not part of theta. So element i has the noise address
    of element i in an optimizer over the same parameters.

    theta holds the unconstrained numbers of every part; `constrain` maps them to values. For a
    `real` part both are equal.

    Args:
        names: of the parts.
        constraints: of the parts, with their shapes.
        dtype: of theta.
        device: of theta.
        dims: names of a part's axes, for ArviZ.
        coords: labels along those axes, for ArviZ.
        derived_names: further outputs, which are functions of theta.
        derived_fn: returns them by name for ONE vector (dim,).

    Example:
        >>> space = Space.of(nn.Linear(2, 1))
        >>> space.names, space.shapes, space.dim
        (('weight', 'bias'), (torch.Size([1, 2]), torch.Size([1])), 3)
        >>> space.unflatten(torch.tensor([1.0, 2.0, 3.0]))
        {'weight': tensor([[1., 2.]]), 'bias': tensor([3.])}
    """

    names: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    dtype: torch.dtype
    device: torch.device
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[object]] = field(default_factory=dict)
    derived_names: tuple[str, ...] = ()
    derived_fn: Callable[[Tensor], dict[str, Tensor]] | None = None

    @classmethod
    def of(
        cls, model: nn.Module, *, who: str = "Space.of", masks: Mapping[str, Tensor] | None = None
    ) -> Space:
        """Read the parameters of a module whose outputs depend on theta and one input row only.

        Args:
            model: the module; random layers and BatchNorm must be in evaluation mode.
            who: the caller, for error messages.
            masks: by name, which elements of a parameter are in theta; others keep their values.
        """
        if not isinstance(model, nn.Module):
            raise needs(who, "model", "an nn.Module", model, TypeError)
        _check_is_function(model, who)
        theta = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if not theta:
            condition = "at least one parameter with requires_grad=True"
            raise needs(who, "model", condition, type(model).__name__)
        for name, value in theta.items():
            if is_lazy(value):
                condition = "initialised parameters: run the model on one batch first"
                raise needs(who, "model", condition, f"lazy parameter {name!r}")
            check_real(who, "model", name, value)
        for kind in ("dtype", "device"):
            found = {name: getattr(value, kind) for name, value in theta.items()}
            if len(set(found.values())) > 1:
                listed = ", ".join(f"{name}: {value}" for name, value in found.items())
                raise needs(who, "model", f"parameters of one {kind}", listed, TypeError)
        constraints: list[Constraint] = []
        for name, value in theta.items():
            if masks is None or name not in masks:
                constraints.append(real(*value.shape))
                continue
            index = masks[name].reshape(-1).nonzero()[:, 0].to(value.device)
            constraints.append(Kept(value.shape, index, value.detach().reshape(-1).clone()))
        first = next(iter(theta.values()))
        return cls(tuple(theta), tuple(constraints), first.dtype, first.device)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shape of each parameter's values."""
        return tuple(constraint.shape for constraint in self.constraints)

    @property
    def sizes(self) -> list[int]:
        """The number of elements of theta of each parameter."""
        return [constraint.size for constraint in self.constraints]

    @property
    def dim(self) -> int:
        """The number of elements of theta."""
        return sum(self.sizes)

    @property
    def slices(self) -> dict[str, slice]:
        """The slice of theta of each parameter."""
        sizes = self.sizes
        slices = [slice(end - n, end) for n, end in zip(sizes, accumulate(sizes), strict=True)]
        return dict(zip(self.names, slices, strict=True))

    def element(self, index: int) -> str:
        """Return the name of one element of theta, such as "b[0, 1]"."""
        for (name, part), constraint in zip(self.slices.items(), self.constraints, strict=True):
            if part.start <= index < part.stop:
                place = constraint.place(index - part.start)
                return f"{name}[{', '.join(map(str, place))}]" if place else name
        raise IndexError(index)

    def flatten(self, module: nn.Module) -> Tensor:
        """Return a copy of a module's theta, (dim,)."""
        parts = zip(self.constraints, self._parameters(module).values(), strict=True)
        return torch.cat([part.unconstrain(value.detach(), {}) for part, value in parts])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parameters of a vector (dim,); views, unless masked.

        For many vectors, call it under `torch.func.vmap`.
        """
        if vector.shape != (self.dim,):
            condition = f"shape ({self.dim},), the model's parameters"
            raise needs("unflatten", "vector", condition, tuple(vector.shape))
        values = {}
        # One split, since each of many slices would add a vector of zeros to the gradient.
        parts = zip(self.names, self.constraints, vector.split(self.sizes), strict=True)
        for name, constraint, part in parts:
            is_whole = len(part) == constraint.shape.numel()
            # Without the log-Jacobian, which is constant for the parameters of modules.
            value = part.view(constraint.shape) if is_whole else constraint.constrain(part, {})[0]
            values[name] = value
        return values

    def constrain(self, vector: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the values of a vector (dim,), and ``log |det d values / d vector|``."""
        values: dict[str, Tensor] = {}
        jacobian = vector.new_zeros(())
        parts = zip(self.names, self.constraints, vector.split(self.sizes), strict=True)
        for name, constraint, part in parts:
            values[name], term = constraint.constrain(part, values)
            jacobian = jacobian + term
        return values, jacobian

    def values(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the values by name, (..., *shape), of vectors (..., dim)."""
        constrain = torch.func.vmap(lambda vector: self.constrain(vector)[0])
        flat, axes = constrain(vectors.reshape(-1, self.dim)), vectors.shape[:-1]
        return {name: value.reshape(axes + value.shape[1:]) for name, value in flat.items()}

    def derived(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the further outputs by name, (..., *shape), of vectors (..., dim)."""
        if self.derived_fn is None:
            return {}
        flat = torch.func.vmap(self.derived_fn, chunk_size=_CHUNK)(vectors.reshape(-1, self.dim))
        axes = vectors.shape[:-1]
        return {name: value.reshape(axes + value.shape[1:]) for name, value in flat.items()}

    def unconstrain(self, values: Mapping[str, Tensor], *, partial: bool = False) -> Tensor:
        """Return the vector (dim,) of values by name.

        Args:
            values: by name; fails if one is missing, misshaped or violates its constraint.
            partial: allow missing names; their elements of theta are 0.
        """
        parts: list[Tensor] = []
        known: dict[str, Tensor] = {}
        who, unknown = "unconstrain", sorted(set(values) - set(self.names))
        if unknown:
            raise needs(who, "values", f"names among {list(self.names)}", unknown)
        for name, constraint in zip(self.names, self.constraints, strict=True):
            if name not in values:
                if not partial:
                    raise needs(who, "values", f"a value for {name!r}", sorted(values))
                parts.append(torch.zeros(constraint.size, dtype=self.dtype, device=self.device))
                known[name] = constraint.constrain(parts[-1], known)[0]
                continue
            known[name] = value = values[name]
            if value.shape != constraint.shape:
                condition = f"{name!r} of shape {tuple(constraint.shape)}"
                raise needs(who, "values", condition, tuple(value.shape))
            parts.append(constraint.unconstrain(value, known))
            # A round trip detects a sum other than 1, or a row of another length.
            back = constraint.constrain(parts[-1], known)[0]
            is_finite = bool(parts[-1].isfinite().all())
            if not is_finite or not torch.allclose(back, value, rtol=1e-4, atol=1e-6):
                raise needs(who, "values", f"{name!r}: {constraint}", value.tolist())
        return torch.cat(parts)

    def assign(self, module: nn.Module, vector: Tensor) -> None:
        """Copy a vector (dim,) into a module's parameters, in place."""
        parameters = self._parameters(module)
        with torch.no_grad():
            for name, value in self.unflatten(vector).items():
                parameters[name].copy_(value)

    def check(self, who: str, argument: str, vectors: Tensor) -> None:
        """Fail if vectors (..., dim) have another length or dtype than theta."""
        if vectors.shape[-1:] != (self.dim,):
            condition = f"{self.dim} elements, the model's parameters, per draw"
            raise needs(who, argument, condition, tuple(vectors.shape))
        self.check_dtype(who, argument, vectors)

    def check_dtype(self, who: str, argument: str, value: Tensor) -> None:
        """Fail if a tensor has another dtype than theta."""
        if value.dtype != self.dtype:
            condition = f"the dtype of the model's parameters, {self.dtype}"
            raise needs(who, argument, condition, value.dtype, TypeError)

    def _parameters(self, module: nn.Module) -> dict[str, Tensor]:
        found = dict(module.named_parameters())
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in found or found[name].shape != shape:
                shown = f"no such parameter in {type(module).__name__}"
                shown = str(tuple(found[name].shape)) if name in found else shown
                condition = f"a parameter {name!r} of shape {tuple(shape)}"
                raise needs("Space", "module", condition, shown)
        return {name: found[name] for name in self.names}


@dataclass(frozen=True, eq=False)
class Kept(Constraint):
    """Sample some elements of a parameter; the others keep their values."""

    index: Tensor  # of the sampled elements among all, flat
    fixed: Tensor  # all values, flat

    __eq__, __hash__ = object.__eq__, object.__hash__  # tensors have no truth value

    @property
    @override
    def size(self) -> int:
        return len(self.index)

    @override
    def place(self, at: int) -> tuple[int, ...]:
        return real(*self.shape).place(int(self.index[at]))

    @override
    def constrain(self, free: Tensor, before: Values) -> tuple[Tensor, Tensor]:
        return self.fixed.scatter(0, self.index, free).view(self.shape), free.new_zeros(())

    @override
    def unconstrain(self, value: Tensor, before: Values) -> Tensor:
        return value.reshape(-1)[self.index]

    def __repr__(self) -> str:
        return f"{self.size} of the values of shape {tuple(self.shape)}"


def _check_is_function(model: nn.Module, who: str) -> None:
    """Reject layers whose output depends on the rest of the batch or on random numbers."""
    for name, module in model.named_modules():
        what = f"{type(module).__name__} {name!r}" if name else type(module).__name__
        if isinstance(module, _NormBase):
            always = not module.track_running_stats and not isinstance(module, _InstanceNorm)
            if always or (module.training and module.track_running_stats):
                mode = "without running statistics" if always else "in training mode"
                advice = "" if always else "model.eval(), which uses the running statistics, or "
                condition = (
                    f"outputs that do not depend on the rest of the batch: {advice}GroupNorm or "
                    "FRN instead"
                )
                raise needs(who, "model", condition, f"{what} {mode}")
        share = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
        has_noise = isinstance(module, nn.RReLU) or (isinstance(share, (int, float)) and share > 0)
        if module.training and has_noise:
            raise needs(who, "model", NO_NOISE, f"{what} in training mode")


def check_real(who: str, argument: str, name: str, parameter: Tensor) -> None:
    """Fail if a parameter is complex or integer."""
    if not parameter.is_floating_point():
        found = f"{name!r} of {parameter.dtype}"
        raise needs(who, argument, "real floating-point parameters", found, TypeError)


def choose(who: str, model: nn.Module, parameters: Parameters | None) -> None:
    """Make the chosen parameters trainable and freeze all others; None changes nothing."""
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", model, TypeError)
    if parameters is None:
        return
    found = dict(model.named_parameters())
    chosen = _chosen(who, parameters, list(found))
    for name, parameter in found.items():
        if name in chosen:
            check_real(who, "parameters", name, parameter)
        parameter.requires_grad_(name in chosen)


def _chosen(who: str, parameters: Any, names: list[str]) -> set[str]:
    if callable(parameters):
        chosen = {name for name in names if parameters(name)}
        if not chosen:
            raise needs(who, "parameters", f"a function that chooses one of {names}", parameters)
        return chosen
    patterns = [parameters] if isinstance(parameters, str) else parameters
    is_sequence = isinstance(patterns, Sequence) and bool(patterns)
    if not is_sequence or not all(isinstance(pattern, str) for pattern in patterns):
        condition = 'a pattern of names such as "head.*", several, or a function of a name'
        raise needs(who, "parameters", condition, parameters, TypeError)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise needs(who, "parameters", f"patterns that match one of {names}", pattern)
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def own_names(model: nn.Module, wrapped: nn.Module) -> dict[str, str]:
    """Map the parameter names of a module to those in a module that wraps it.

    Parameters that the wrapper adds map to themselves.
    """
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    return {own.get(id(parameter), name): name for name, parameter in wrapped.named_parameters()}


def renamed_masks(
    who: str, mask: Mapping[str, Tensor] | None, model: nn.Module, names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Check masks and return them by their new names, except for trivial ones.

    Parameters of which no element is kept are frozen.

    Args:
        who: the caller, for error messages.
        mask: by a parameter's name, booleans of its shape.
        model: the module with the new names.
        names: new names by the names in the user's module.
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
        is_tensor = isinstance(kept, Tensor)
        if not is_tensor or kept.dtype != torch.bool or kept.shape != parameter.shape:
            shown = type(kept).__name__
            shown = f"{kept.dtype} of shape {tuple(kept.shape)}" if is_tensor else shown
            condition = f"booleans of shape {tuple(parameter.shape)} for {name!r}"
            raise needs(who, "mask", condition, shown, TypeError)
        if not kept.any():
            parameter.requires_grad_(False)
        elif not kept.all():
            masks[names[name]] = kept
    return masks
