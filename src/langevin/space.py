"""The space of theta: names, shapes and constraints of parameters live here, everywhere else theta is one tensor (..., dim)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from langevin.constraints import Constraint, Values, real

__all__ = ["Space"]


@dataclass(frozen=True)
class Space:
    """The names, constraints, dtype and device of theta's parts, in their order; `Space.of` reads those of a module.

    The order is that of ``model.parameters()``, a tied parameter counts once, and a frozen one (``requires_grad=False``) or a
    buffer is no part of theta. So element i has the noise address of element i in an optimizer over the same parameters.

    theta has the free numbers of every part; `constrain` makes values of them, which are theta itself where a part is `real`.

    Args:
        names: of the parts.
        constraints: their shapes and the values that they may take.
        dtype: of theta.
        device: of theta.
        dims: names of a part's axes, for ArviZ.
        coords: labels along those axes, for ArviZ.

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
    coords: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, *, who: str = "Space.of", masks: Mapping[str, Tensor] | None = None) -> Space:
        """Read the parameters of a module, or refuse one that is no function of (theta, x) alone.

        Args:
            model: the module; layers that draw random numbers or keep statistics of the batches must be in evaluation mode.
            who: the caller, for error messages.
            masks: by name, which elements of a parameter are part of theta; the others stay what they are.
        """
        if not isinstance(model, nn.Module):
            raise needs(who, "model", "an nn.Module", model, TypeError)
        _check_is_function(model, who)
        theta = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not theta:
            raise needs(who, "model", "at least one parameter with requires_grad=True", type(model).__name__)
        for name, parameter in theta.items():
            if is_lazy(parameter):
                raise needs(who, "model", "parameters with shapes: run the model on one batch first", f"lazy parameter {name!r}")
            if not parameter.is_floating_point():
                raise needs(who, "model", "real floating-point parameters", f"{name!r} of {parameter.dtype}", TypeError)
        for about in ("dtype", "device"):
            kinds = {name: getattr(parameter, about) for name, parameter in theta.items()}
            if len(set(kinds.values())) > 1:
                listed = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
                raise needs(who, "model", f"parameters of one {about}", listed, TypeError)
        first = next(iter(theta.values()))
        masks = masks or {}
        constraints = [_kept(value, masks[name]) if name in masks else real(*value.shape) for name, value in theta.items()]
        return cls(tuple(theta), tuple(constraints), first.dtype, first.device)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shape of each parameter's values."""
        return tuple(constraint.shape for constraint in self.constraints)

    @property
    def sizes(self) -> list[int]:
        """The number of elements of theta that each parameter has."""
        return [constraint.size for constraint in self.constraints]

    @property
    def dim(self) -> int:
        """The number of elements of theta."""
        return sum(self.sizes)

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in the vector."""
        ends = list(accumulate(self.sizes))
        return {name: slice(end - size, end) for name, size, end in zip(self.names, self.sizes, ends, strict=True)}

    def element(self, index: int) -> str:
        """Return the name of one element of theta, such as "b[0, 1]"."""
        for (name, place), constraint in zip(self.slices.items(), self.constraints, strict=True):
            if place.start <= index < place.stop:
                return _label(name, constraint.place(index - place.start))
        raise IndexError(index)

    @property
    def elements(self) -> list[str]:
        """The name of each element of theta, such as "b[0, 1]"; free numbers that stand for no single value are counted."""
        parts = zip(self.names, self.constraints, strict=True)
        return [_label(name, constraint.place(at)) for name, constraint in parts for at in range(constraint.size)]

    def flatten(self, module: nn.Module) -> Tensor:
        """Return a copy of a module's theta, (dim,)."""
        values = self._parameters(module).values()
        return torch.cat([part.unconstrain(value.detach(), {}) for part, value in zip(self.constraints, values, strict=True)])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parameters, views of a vector (dim,) but for masked ones; for many vectors use it under `torch.func.vmap`."""
        if vector.shape != (self.dim,):
            raise needs("unflatten", "vector", f"shape ({self.dim},), the model's parameters", tuple(vector.shape))
        # One split, not many slices: its gradient is one concatenation, where each slice would add a vector full of zeros.
        parts = vector.split(self.sizes)
        constraints = zip(self.names, self.constraints, parts, strict=True)
        return {name: _value(constraint, part) for name, constraint, part in constraints}

    def constrain(self, vector: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the values that a vector (dim,) stands for, by name, and ``log |det d values / d vector|``; see `unflatten`."""
        values: dict[str, Tensor] = {}
        jacobian = vector.new_zeros(())
        for name, constraint, part in zip(self.names, self.constraints, vector.split(self.sizes), strict=True):
            values[name], term = constraint.constrain(part, values)
            jacobian = jacobian + term
        return values, jacobian

    def values(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the values by name, (..., *shape), that vectors (..., dim) stand for."""
        flat = torch.func.vmap(lambda vector: self.constrain(vector)[0])(vectors.reshape(-1, self.dim))
        return {name: value.reshape(vectors.shape[:-1] + value.shape[1:]) for name, value in flat.items()}

    def unconstrain(self, values: Mapping[str, Tensor], *, partial: bool = False) -> Tensor:
        """Return the vector (dim,) that stands for these values, or fail when one is missing, misshaped or not allowed.

        Args:
            values: by name.
            partial: let names be missing, whose free numbers are then 0.
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
                raise needs(who, "values", f"{name!r} of shape {tuple(constraint.shape)}", tuple(value.shape))
            parts.append(constraint.unconstrain(value, known))
            back = constraint.constrain(parts[-1], known)[0]  # a sum that is not 1, or a row of another length, does not come back
            if not parts[-1].isfinite().all() or not torch.allclose(back, value, rtol=1e-4, atol=1e-6):
                raise needs(who, "values", f"{name!r}: {constraint}", value.tolist())
        return torch.cat(parts)

    def assign(self, module: nn.Module, vector: Tensor) -> None:
        """Copy a vector (dim,) into a module's parameters, in place."""
        parameters = self._parameters(module)
        with torch.no_grad():
            for name, value in self.unflatten(vector).items():
                parameters[name].copy_(value)

    def check(self, who: str, argument: str, vectors: Tensor) -> None:
        """Fail when vectors (..., dim) have another length or dtype than theta."""
        if vectors.shape[-1:] != (self.dim,):
            raise needs(who, argument, f"{self.dim} elements, the model's parameters, per draw", tuple(vectors.shape))
        self.check_dtype(who, argument, vectors)

    def check_dtype(self, who: str, argument: str, value: Tensor) -> None:
        """Fail when a tensor has another dtype than theta."""
        if value.dtype != self.dtype:
            raise needs(who, argument, f"the dtype of the model's parameters, {self.dtype}", value.dtype, TypeError)

    def _parameters(self, module: nn.Module) -> dict[str, Tensor]:
        found = dict(module.named_parameters())
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in found or found[name].shape != shape:
                shown = tuple(found[name].shape) if name in found else f"no such parameter in {type(module).__name__}"
                raise needs("Space", "module", f"a parameter {name!r} of shape {tuple(shape)}", shown)
        return {name: found[name] for name in self.names}


@dataclass(frozen=True, eq=False)
class Kept(Constraint):
    """Some elements of a parameter; the others stay what they are."""

    index: Tensor  # of the elements of theta among all, flat
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


def _kept(value: Tensor, mask: Tensor) -> Constraint:
    index = mask.reshape(-1).nonzero()[:, 0].to(value.device)
    return Kept(value.shape, index, value.detach().reshape(-1).clone())


def _value(constraint: Constraint, part: Tensor) -> Tensor:
    """Return the value without its Jacobian, which is a constant for the parameters of modules."""
    return part.view(constraint.shape) if len(part) == constraint.shape.numel() else constraint.constrain(part, {})[0]


def _label(name: str, place: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, place))}]" if place else name


def _check_is_function(model: nn.Module, who: str) -> None:
    """Refuse layers whose output depends on more than theta and the datum: on the rest of the batch, or on random numbers."""
    for name, module in model.named_modules():
        what = f"{type(module).__name__} {name!r}" if name else type(module).__name__
        if isinstance(module, _NormBase):
            always = not module.track_running_stats and not isinstance(module, _InstanceNorm)
            if always or (module.training and module.track_running_stats):
                mode = "without running statistics" if always else "in training mode"
                advice = "" if always else "model.eval(), which uses the running statistics, or "
                condition = f"outputs that do not depend on the rest of the batch: {advice}GroupNorm or FRN instead"
                raise needs(who, "model", condition, f"{what} {mode}")
        share = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
        has_noise = isinstance(module, nn.RReLU) or (isinstance(share, (int, float)) and share > 0)
        if module.training and has_noise:
            raise needs(who, "model", "no noise without an address: model.eval(), or no such layer", f"{what} in training mode")
