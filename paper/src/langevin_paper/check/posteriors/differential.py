"""A differential equation inside the likelihood: hares and lynxes (Lotka and Volterra)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import LogNormal, Normal

from langevin.targets import Model
from langevin.targets.constraints import positive
from langevin_paper.check.posteriors.base import Data, KnownPosterior, Parameters, column

__all__ = ["DIFFERENTIAL", "log_populations"]

_STEPS = 3  # a year: the log density is then within 1e-3 of that of a much finer solution, where the posterior lies
# Symmetric splitting of order 4 in 6 stages (Blanes and Moan 2002, Practical symplectic partitioned Runge-Kutta and Runge-Kutta-
# Nyström methods): the parts of a step that x moves, and those that y moves in between.
_X = (0.0792036964311957, 0.353172906049774, -0.0420650803577195)
_Y = (0.209515106613362, -0.143851773179818)
_X_PARTS = (*_X, 1 - 2 * sum(_X), *reversed(_X))
_Y_PARTS = (*_Y, 0.5 - sum(_Y), 0.5 - sum(_Y), *reversed(_Y))


def log_populations(theta: Tensor, start: Tensor, years: int, steps: int = _STEPS) -> Tensor:
    """Solve ``u' = (α - β v) u``, ``v' = (-γ + δ u) v`` for log u and log v; return them at years 1, 2, .. (years, 2).

    In logarithms, ``x' = α - β exp(y)``, ``y' = -γ + δ exp(x)``: each moves in a straight line while the other stands still, so
    that the order 4 of Runge and Kutta costs half of their operations; no loop depends on the values.
    """
    alpha, beta, gamma, delta = (theta / steps).unbind()
    moves_x = [(part * alpha, -part * beta) for part in _X_PARTS]
    moves_y = [(-part * gamma, part * delta) for part in _Y_PARTS]
    (x, y), every_year = start.log().unbind(), []
    for _ in range(years):
        for _ in range(steps):
            for (free_x, fed_x), (free_y, fed_y) in zip(moves_x, moves_y, strict=False):
                x = torch.addcmul(x + free_x, fed_x, y.exp())
                y = torch.addcmul(y + free_y, fed_y, x.exp())
            x = torch.addcmul(x + moves_x[-1][0], moves_x[-1][1], y.exp())
        every_year.append(torch.stack([x, y]))
    return torch.stack(every_year)


def lotka_volterra(data: Data) -> KnownPosterior:
    """Pelts of hares and lynxes: lognormal around the solution of the equation, from the start on."""
    observed = torch.cat([column(data, "y_init")[None], column(data, "y")])
    if data["ts"] != list(range(1, len(observed))):
        raise ValueError("lotka_volterra needs observations at the years 1, 2, ..")

    def log_density(p: Parameters) -> Tensor:
        later = log_populations(p["theta"], p["z_init"], len(observed) - 1)
        return LogNormal(torch.cat([p["z_init"].log()[None], later]), p["sigma"]).log_prob(observed).sum()

    # As tensors of float64: torch.distributions would round the numbers to float32.
    means, sds = torch.tensor([[1.0, 0.05, 1.0, 0.05], [0.5, 0.05, 0.5, 0.05]], dtype=torch.float64)
    log_ten = torch.tensor(math.log(10.0), dtype=torch.float64)
    return KnownPosterior(
        Model.log_density(
            log_density,
            parameters={"theta": positive(4), "z_init": positive(2), "sigma": positive(2)},
            prior={"theta": Normal(means, sds), "z_init": LogNormal(log_ten, 1.0), "sigma": LogNormal(-1.0, 1.0)},
        )
    )


DIFFERENTIAL = {"hudson_lynx_hare-lotka_volterra": lotka_volterra}
