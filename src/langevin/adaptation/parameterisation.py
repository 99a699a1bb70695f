"""Choose the weights of `targets.parameterisation` from the draws and gradients of a warm-up.

The data (and the parameters below θ in a hierarchy) pull at an element θ with the force
``r = -dU/dθ - d log p(θ | its parents)/dθ``. Along the draws r falls by q per unit of θ, by least
squares, and it is zero at the anchor a: so ``exp(-q (θ - a)^2 / 2)`` is what the data say about the
element alone, the others averaged over. For normal data this is exact wherever the draws lie. It
takes no gradients beside those of the chains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from langevin.targets.automatic import validation
from langevin.targets.conditionals import Conditionals, Weights
from langevin.targets.gradients import GradientFn
from langevin.targets.metric import Dense, Metric
from langevin.targets.parameterisation import Reparameterised

__all__ = [
    "Coordinates",
    "describe_weights",
    "estimate_weights",
    "in_new_coordinates",
    "in_own_coordinates",
    "moved_metric",
]

_FARTHEST = 3.0  # of an anchor from the mean of the draws, in units of what is plausible
_SAME = 0.2  # root mean square change of coordinates, in standard deviations, that is ignored
_SIDES = 0.25, 0.75  # shares of the data below and above which an element is called by one name


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of a warm-up's chains.

    Args:
        seen: the target in these coordinates.
        names: of the parameters whose weights are estimated.
        gradient_of: returns the exact gradient of a target.
    """

    seen: Reparameterised
    names: tuple[str, ...]
    gradient_of: Callable[[Reparameterised], GradientFn]

    def adapted(self, draws: Tensor, gradients: Tensor) -> tuple[Coordinates, Tensor, Tensor]:
        """Return coordinates estimated from draws and gradients (n, dim), and both in these.

        They are kept if they hardly change, since new ones are recorded again.
        """
        thetas, slopes = in_own_coordinates(self.seen, draws, gradients)
        weights = estimate_weights(self.seen, self.names, thetas, slopes)
        new = dataclasses.replace(self, seen=self.seen.with_weights(weights))
        positions, slopes = in_new_coordinates(new.seen, thetas, slopes)
        change = (positions - draws).square().mean(0)
        if bool((change < _SAME**2 * positions.var(0)).all()):
            return self, draws, gradients
        return new, positions, slopes


def in_own_coordinates(
    seen: Reparameterised, draws: Tensor, gradients: Tensor
) -> tuple[Tensor, Tensor]:
    """Return θ and the gradients of U(θ) at positions z (n, dim), given those of U(z)."""
    thetas = seen.theta(draws)
    leaf = thetas.detach().requires_grad_()
    with torch.enable_grad():
        positions, log_jacobian = seen.resolve(leaf)
        total = (positions * gradients).sum() - log_jacobian.sum()
        (slopes,) = torch.autograd.grad(total, leaf)
    return thetas, slopes


def in_new_coordinates(
    new: Reparameterised, thetas: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return z and the gradients of U(z) at θ (n, dim), given those of U(θ)."""
    positions = new.position(thetas)
    leaf = positions.detach().requires_grad_()
    with torch.enable_grad():
        found, log_jacobian = new.substitute(leaf)
        total = (found * slopes).sum() - log_jacobian.sum()
        (gradients,) = torch.autograd.grad(total, leaf)
    return positions, gradients


def estimate_weights(
    seen: Reparameterised, names: Sequence[str], thetas: Tensor, slopes: Tensor
) -> Weights:
    """Return the weights with those of some parameters estimated.

    Args:
        seen: the target, in any coordinates.
        names: of the parameters.
        thetas: draws of θ, (n, dim).
        slopes: gradients of U(θ) there.
    """
    is_good = torch.isfinite(thetas).all(-1) & torch.isfinite(slopes).all(-1)
    thetas, slopes = thetas[is_good], slopes[is_good]
    found = Weights(*(part.clone() for part in seen.weights))
    if len(thetas) < 2:
        return found
    pulls = (-slopes - _own_forces(seen.conditionals, names, thetas)).double().cpu()
    scales = _scales(seen.conditionals, names, thetas).double().cpu()
    theta = thetas.double().cpu()
    centre, mean = theta.mean(0), pulls.mean(0)
    spread = (theta - centre).square().mean(0).clamp(min=torch.finfo(torch.float64).tiny)
    data = (-((theta - centre) * (pulls - mean)).mean(0) / spread).nan_to_num(0.0).clamp(min=0.0)
    # The anchor is about as far as the widths of prior and data explain, less what they share.
    usual = scales.median(0).values
    most = _FARTHEST * ((1 + data * usual**2) / data.clamp(min=1e-300)).sqrt()
    most = most / (1 + data * usual**2)
    offset = (mean / data.clamp(min=1e-300)).clamp(-most, most)
    anchor = torch.where(data > 0, centre + offset, torch.zeros_like(centre))
    for name in names:
        part = seen.conditionals.space.slices[name]
        found.prior[part], found.data[part] = 1.0, data[part]
        found.anchor[part] = anchor[part].nan_to_num(0.0)
    return found


def _own_forces(conditionals: Conditionals, names: Sequence[str], thetas: Tensor) -> Tensor:
    """Return the gradients of each element's own log prior given its parents, (n, dim)."""
    space = conditionals.space
    constraints = dict(zip(space.names, space.constraints, strict=True))

    def log_priors(theta: Tensor) -> Tensor:
        values, _ = space.constrain(theta.detach())
        parts = dict(zip(space.names, theta.split(space.sizes), strict=True))
        total = theta.new_zeros(())
        for name in names:
            value, log_jacobian = constraints[name].constrain(parts[name], values)
            prior = conditionals.priors[name](values)
            total = total + prior.log_prob(value).sum() + log_jacobian
        return total

    leaf = thetas.detach().requires_grad_()
    with torch.enable_grad(), validation(False):
        (forces,) = torch.autograd.grad(torch.func.vmap(log_priors)(leaf).sum(), leaf)
    return forces


def _scales(conditionals: Conditionals, names: Sequence[str], thetas: Tensor) -> Tensor:
    """Return the prior's scale of each element, (n, dim); ones for other parameters."""
    space = conditionals.space

    def of_one(theta: Tensor) -> Tensor:
        values, _ = space.constrain(theta)
        parts = []
        for name, size in zip(space.names, space.sizes, strict=True):
            scale = theta.new_ones(size)
            if name in names:
                found = conditionals.prior_of(name, values)
                scale = found.scale
                if found.is_factor:
                    scale = torch.linalg.vector_norm(scale, dim=-1)
            parts.append(scale.reshape(-1))
        return torch.cat(parts)

    with torch.no_grad(), validation(False):
        return torch.func.vmap(of_one)(thetas)


def moved_metric(
    metric: Metric, old: Reparameterised, new: Reparameterised, centre: Tensor
) -> Metric:
    """Return a dense metric in new coordinates, by the Jacobian at θ = `centre`; others as is."""
    if not isinstance(metric, Dense):
        return metric
    dim = len(centre)
    leaf = old.position(centre[None]).expand(dim, dim).clone().requires_grad_()
    with torch.enable_grad():
        across, _ = new.resolve(old.substitute(leaf)[0])
        (jacobian,) = torch.autograd.grad(across.diagonal().sum(), leaf)
    root = jacobian.to(metric.root) @ metric.root
    return Dense(root) if bool(torch.isfinite(root).all()) else metric


def describe_weights(
    conditionals: Conditionals, seen: Reparameterised | None, thetas: Tensor
) -> str:
    """Return which parameters are sampled how, and which stay as written; "" if none is listed.

    The share of the data in an element's conditional mean is ``q s^2 / (p + q s^2)``, at the median
    of the prior's scale s over draws of θ (n, dim): 0 is non-centred, 1 centred.
    """
    parts: list[str] = []
    names = [name for name in conditionals.space.names if name in conditionals.priors]
    if seen is not None:
        scales = _scales(conditionals, names, thetas).double().cpu().median(0).values
        squares = seen.weights.data * scales**2
        share = squares / (seen.weights.prior + squares)
    for name in names:
        size = conditionals.space.sizes[conditionals.space.names.index(name)]
        counts = {"as written": size}
        if seen is not None and name in seen.names:
            shares = share[conditionals.space.slices[name]]
            low, high = int((shares < _SIDES[0]).sum()), int((shares > _SIDES[1]).sum())
            counts = {"non-centred": low, "between": size - low - high, "centred": high}
        texts = [f"{word} ({count} of {size})" for word, count in counts.items() if count]
        parts.append(f"{name} {', '.join(texts)}")
    parts += [f"{name} as written, since {why}" for name, why in conditionals.left.items()]
    return "parameterisation: " + "; ".join(parts) if parts else ""
