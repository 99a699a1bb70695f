"""Sample hierarchical parameters in coordinates that do not depend on hyperparameters.

A parameter θ whose prior has location m and scale s, both functions of other parameters, is
sampled as z, with weights p of the prior and q of the data and an anchor a per element:

    ``θ = (p m + q s^2 a) / (p + q s^2) + s / sqrt(p + q s^2) z``

p = 1, q = 0 is ``θ = m + s z`` (non-centred); p = 0, q = 1 is ``θ = a + z`` (centred, as
written). For data that would measure θ with a normal error, ``a ± 1 / sqrt(q)``, p = 1 makes z
standard normal given m and s in the *posterior*, whatever m and s are: there is no funnel, with
weak, middling or rich data. The partial centring of Papaspiliopoulos, Roberts and Sköld (2007) has
``s^(1 - c)`` in the place of the root; it does so for one value of s only. For a multivariate
normal prior with factor L, and ``Q = diag(q / p)``, ``R R^T = I + L^T Q L``,

    ``θ = m + L R^-T (R^-1 L^T Q (a - m) + z)``

The density of θ is the model's: z has that of θ times ``|det dθ / dz|``. Draws and initial
positions are those of θ; only a run's state has z.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.targets.automatic import differentiate, validation
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.conditionals import Conditionals, Values, Weights
from langevin.targets.location_scale import LocationScale

__all__ = ["Reparameterised", "starting_coordinates"]

_CHUNK = 2**22  # numbers that are mapped at once
_LEAST = 1e-9  # of the weight of a multivariate normal prior, which the equation divides by


class Reparameterised(Target):
    """A target in the coordinates z of some weights; see the module.

    Args:
        target: the target in its own coordinates θ.
        conditionals: its priors that depend on other parameters.
        weights: of each element of θ.

    Example:
        >>> import langevin as lv
        >>> from torch.distributions import Normal
        >>> model = lv.Model.log_density(
        ...     lambda p: -p["v"] ** 2 / 2,
        ...     {"v": lv.real(), "x": lv.real()},
        ...     {"x": lambda p: Normal(0.0, (p["v"] / 2).exp())},
        ... )
        >>> funnel = Reparameterised.of(model, {"x": 0.0})
        >>> funnel.theta(torch.tensor([[2.0, 1.0]], dtype=torch.float64))
        tensor([[2.0000, 2.7183]], dtype=torch.float64)
    """

    def __init__(self, target: Target, conditionals: Conditionals, weights: Weights) -> None:
        """See the class."""
        self.target, self._conditionals, self.weights = target, conditionals, weights
        self.needs_data, self.gradient_noise = target.needs_data, target.gradient_noise
        self.dim, self.space = target.dim, conditionals.space
        space, moved = conditionals.space, conditionals.moved(weights)
        self.names = [name for name in conditionals.order if name in moved]
        # Where values end: those after the last prior to be read are not needed.
        ends = max((conditionals.order.index(name) for name in self.names), default=0)
        self._order = conditionals.order[: ends + 1]
        self._constraints = dict(zip(space.names, space.constraints, strict=True))
        self._weights = {
            name: Weights(
                *(
                    part[space.slices[name]].to(space.dtype).to(space.device)
                    for part in self.weights
                )
            )
            for name in self.names
        }

    @classmethod
    def of(cls, target: Target, centredness: Mapping[str, Any]) -> Reparameterised:
        """Return the target with a fixed centredness of some parameters."""
        conditionals = target.conditionals
        if conditionals is None:
            what = "a target whose priors are known, such as a Model"
            raise needs("Reparameterised", "target", what, type(target).__name__, TypeError)
        return cls(target, conditionals, conditionals.weights(centredness))

    @property
    @override
    def conditionals(self) -> Conditionals:
        return self._conditionals

    def with_weights(self, weights: Weights) -> Reparameterised:
        """Return the same target in other coordinates."""
        return Reparameterised(self.target, self.conditionals, weights)

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        def energies(leaf: Tensor) -> Tensor:
            theta, log_jacobian = self.substitute(leaf)
            energy, gradient = self.target.evaluate(theta.detach(), batch)
            return energy + ((theta - theta.detach()) * gradient).sum(-1) - log_jacobian

        return differentiate(energies, position)

    @override
    def as_columns(self, who: str, data: Any) -> tuple[Tensor, ...]:
        return self.target.as_columns(who, data)

    @override
    def init(self, chains: int, seed: int = 0, *, first_chain: int = 0) -> Tensor | None:
        return self.target.init(chains, seed, first_chain=first_chain)

    @override
    def explore(self, count: int, seed: int = 0) -> Tensor | None:
        starts = self.target.explore(count, seed)
        return None if starts is None else self.position(starts)

    def theta(self, positions: Tensor) -> Tensor:
        """Return θ (..., dim) of positions z (..., dim)."""
        with torch.no_grad():
            return self._in_parts(lambda part: self.substitute(part)[0], positions)

    def position(self, thetas: Tensor) -> Tensor:
        """Return the position z (..., dim) of θ (..., dim)."""
        with torch.no_grad():
            return self._in_parts(lambda part: self.resolve(part)[0], thetas)

    def _in_parts(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        parts = flat.split(max(1, _CHUNK // max(1, rows.shape[-1])))
        return torch.cat([function(part) for part in parts]).view(rows.shape)

    def substitute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return θ and ``log |det dθ / dz|`` of positions (n, dim)."""
        return _run(self._theta_of_one, positions)

    def resolve(self, thetas: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and ``log |det dz / dθ|`` of θ (n, dim)."""
        return _run(self._position_of_one, thetas)

    def _theta_of_one(self, position: Tensor) -> tuple[Tensor, Tensor]:
        space = self.conditionals.space
        free = dict(zip(space.names, position.split(space.sizes), strict=True))
        values: Values = {}
        total = position.new_zeros(())
        for name in self._order:
            if name in self._weights:
                found = self.conditionals.prior_of(name, values)
                free[name], term = _from_z(found, self._weights[name], free[name])
                total = total + term
            values[name], _ = self._constraints[name].constrain(free[name], values)
        return torch.cat([free[name] for name in space.names]), total

    def _position_of_one(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        space = self.conditionals.space
        values, _ = space.constrain(theta)
        free = dict(zip(space.names, theta.split(space.sizes), strict=True))
        total = theta.new_zeros(())
        for name in self.names:
            found = self.conditionals.prior_of(name, values)
            free[name], term = _to_z(found, self._weights[name], free[name])
            total = total - term
        return torch.cat([free[name] for name in space.names]), total


def starting_coordinates(
    who: str, target: Target, adapts: bool
) -> tuple[Reparameterised | None, list[str]]:
    """Return the target in the coordinates in which a run begins, and what a warm-up adapts.

    Adapted parameters begin non-centred. The target is None where all stay as written.

    Args:
        who: the caller, for error messages.
        target: the target.
        adapts: whether a warm-up chooses the weights of "auto".
    """
    conditionals, given = target.conditionals, target.centredness
    if conditionals is None:
        return None, []
    names = list(conditionals.priors)
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    fixed = {name: value for name, value in by_name.items() if not isinstance(value, str)}
    for name, value in fixed.items():
        if name not in names and not bool((torch.as_tensor(value) == 1).all()):
            why = conditionals.left.get(name, "its prior does not depend on other parameters")
            raise needs(who, "centredness", f"1 for {name!r}: {why}", value)
    free = [name for name in names if name not in fixed] if adapts else []
    chosen = {name: value for name, value in fixed.items() if name in names}
    weights = conditionals.weights({**chosen, **dict.fromkeys(free, 0.0)})
    found = Reparameterised(target, conditionals, weights)
    return (found, free) if found.names else (None, [])


def _run(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], rows: Tensor
) -> tuple[Tensor, Tensor]:
    run: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.func.vmap(function)
    if torch.compiler.is_compiling():  # the compiler switches validation off itself
        return run(rows)
    with validation(False):
        return run(rows)


def _from_z(prior: LocationScale, weights: Weights, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unconstrained numbers of z, and ``log |det|`` of the map."""
    if prior.is_factor:
        shift, L, R = _factors(prior, weights)
        whole = (shift + z.view(shift.shape))[..., None]
        step = L @ torch.linalg.solve_triangular(R.mT, whole, upper=True)
        return (prior.location + step[..., 0]).reshape(-1), _log_det(L) - _log_det(R)
    m, s = prior.location.reshape(-1), prior.scale.reshape(-1)
    total = weights.prior + weights.data * s * s
    root = s * total**-0.5
    centre = (weights.prior * m + weights.data * s * s * weights.anchor) / total
    return centre + root * z, root.log().sum()


def _to_z(prior: LocationScale, weights: Weights, free: Tensor) -> tuple[Tensor, Tensor]:
    """Return z of unconstrained numbers, and ``log |det|`` of the map from z."""
    if prior.is_factor:
        shift, L, R = _factors(prior, weights)
        above = (free.view(shift.shape) - prior.location)[..., None]
        back = R.mT @ torch.linalg.solve_triangular(L, above, upper=False)
        return (back[..., 0] - shift).reshape(-1), _log_det(L) - _log_det(R)
    m, s = prior.location.reshape(-1), prior.scale.reshape(-1)
    total = weights.prior + weights.data * s * s
    root = s * total**-0.5
    centre = (weights.prior * m + weights.data * s * s * weights.anchor) / total
    return (free - centre) / root, root.log().sum()


def _factors(prior: LocationScale, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``R^-1 L^T Q (a - m)``, L and R of a multivariate normal prior."""
    shape = prior.location.shape
    p, q, a = (part.view(shape) for part in weights)
    L, precision = prior.scale, q / p.clamp(min=_LEAST)
    eye = torch.eye(shape[-1], dtype=L.dtype, device=L.device)
    R = torch.linalg.cholesky_ex(eye + L.mT @ (precision[..., None] * L))[0]
    pull = L.mT @ (precision * (a - prior.location))[..., None]
    return torch.linalg.solve_triangular(R, pull, upper=False)[..., 0], L, R


def _log_det(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).log().sum()
