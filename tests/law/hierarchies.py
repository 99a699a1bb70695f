"""Hierarchical models whose posterior moments are known: normal conditionals in closed form, quadrature over the scales.

Each is written in three ways: as in a textbook, ``theta ~ Normal(mu, tau)``, which the default call reparameterises; the same with
``centredness=1``, which it does not; and with ``theta = mu + tau z`` by hand.

``python tests/law/hierarchies.py 5`` prints what the default call makes of each with 5 seeds (docs/benchmarks/hierarchies.txt).
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import HalfNormal, Normal

import langevin as lv
from langevin.diagnostics.convergence import mixing

SHARE = 0.05  # of a standard deviation, by which means and standard deviations may be wrong
F64 = torch.float64
SPREAD, WIDTH = 10.0, 5.0  # scales of the priors of mu and tau


class Hierarchy(NamedTuple):
    """A model in its two forms, and its exact posterior.

    Args:
        written: returns the model as in a textbook, given `centredness`.
        by_hand: returns the model with the reparameterisation by hand.
        numbers: of the values of a parameter dict, (..., k), those that are compared; as written, and by hand.
        exact: returns their means and standard deviations, (k,).
    """

    written: Callable[..., lv.Model]
    by_hand: Callable[[], lv.Model]
    numbers: tuple[Callable[[dict[str, Tensor]], Tensor], Callable[[dict[str, Tensor]], Tensor]]
    exact: Callable[[], tuple[Tensor, Tensor]]


def joined(*parts: Tensor) -> Tensor:
    """Return values with axes (..., *shape) along one last axis."""
    return torch.cat([part.reshape(*parts[0].shape[:2], -1) for part in parts], -1)


def moments(log_weights: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of a mixture of normals, (points,) and (points, k)."""
    weights = log_weights.softmax(0)
    mean = weights @ means
    return mean, (weights @ (variances + (means - mean) ** 2)).sqrt()


def groups(y: Tensor, error: Tensor) -> Hierarchy:
    """Return ``y ~ N(theta, error)``, ``theta ~ N(mu, tau)`` with normal and half-normal priors of mu and tau."""
    count = len(y)
    priors = {"mu": Normal(0.0, SPREAD), "tau": HalfNormal(WIDTH)}

    def written(**settings):
        return lv.Model.log_density(
            lambda p: Normal(p["theta"], error).log_prob(y).sum(),
            {"mu": lv.real(), "tau": lv.positive(), "theta": lv.real(count)},
            {**priors, "theta": lambda p: Normal(p["mu"], p["tau"])},
            **settings,
        )

    def by_hand():
        return lv.Model.log_density(
            lambda p: Normal(p["mu"] + p["tau"] * p["z"], error).log_prob(y).sum(),
            {"mu": lv.real(), "tau": lv.positive(), "z": lv.real(count)},
            {**priors, "z": Normal(0.0, 1.0)},
        )

    def exact():
        log_tau = torch.linspace(-16, 6, 8001, dtype=F64)
        tau = log_tau.exp()[:, None]
        total = error**2 + tau**2
        precision = 1 / SPREAD**2 + (1 / total).sum(1)
        mu, var_mu = (y / total).sum(1) / precision, 1 / precision
        logs = Normal(0.0, total.sqrt()).log_prob(y).sum(1) + 0.5 * mu**2 * precision + 0.5 * var_mu.log()
        logs = logs + log_tau - 0.5 * (tau[:, 0] / WIDTH) ** 2
        share = tau**2 / total
        theta = share * y + (1 - share) * mu[:, None]
        var_theta = share * error**2 + (1 - share) ** 2 * var_mu[:, None]
        zeros = torch.zeros_like(tau)
        return moments(logs, torch.cat([mu[:, None], tau, theta], 1), torch.cat([var_mu[:, None], zeros, var_theta], 1))

    def numbers(p):
        return joined(p["mu"], p["tau"], p["theta"])

    def numbers_by_hand(p):
        return joined(p["mu"], p["tau"], p["mu"][..., None] + p["tau"][..., None] * p["z"])

    return Hierarchy(written, by_hand, (numbers, numbers_by_hand), exact)


def drawn(count: int, tau: float, error: float, seed: int) -> Hierarchy:
    """Return `groups` with data drawn for mu = 2."""
    noise = torch.randn(2, count, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return groups(2 + tau * noise[0] + error * noise[1], torch.full((count,), error, dtype=F64))


def two_levels(schools: int, classes: int, tau: float, width: float, error: float, seed: int) -> Hierarchy:
    """Return ``y ~ N(theta, error)``, ``theta ~ N(g, s)`` for each class, ``g ~ N(mu, tau)`` for each school."""
    noise = torch.Generator().manual_seed(seed)
    g = 2 + tau * torch.randn(schools, 1, dtype=F64, generator=noise)
    y = g + (width**2 + error**2) ** 0.5 * torch.randn(schools, classes, dtype=F64, generator=noise)
    shapes = {"mu": lv.real(), "tau": lv.positive(), "s": lv.positive()}
    priors = {"mu": Normal(0.0, SPREAD), "tau": HalfNormal(WIDTH), "s": HalfNormal(WIDTH)}

    def written(**settings):
        return lv.Model.log_density(
            lambda p: Normal(p["theta"], error).log_prob(y).sum(),
            {**shapes, "g": lv.real(schools), "theta": lv.real(schools, classes)},
            {**priors, "g": lambda p: Normal(p["mu"], p["tau"]), "theta": lambda p: Normal(p["g"][:, None], p["s"])},
            **settings,
        )

    def by_hand():
        def log_density(p):
            theta = (p["mu"] + p["tau"] * p["z"])[:, None] + p["s"] * p["e"]
            return Normal(theta, error).log_prob(y).sum()

        names = {**shapes, "z": lv.real(schools), "e": lv.real(schools, classes)}
        return lv.Model.log_density(log_density, names, {**priors, **dict.fromkeys(("z", "e"), Normal(0.0, 1.0))})

    def exact():
        axes = torch.linspace(-12, 4, 401, dtype=F64), torch.linspace(-12, 4, 401, dtype=F64)
        log_tau, log_s = (part.reshape(-1, 1) for part in torch.meshgrid(*axes, indexing="ij"))
        tau, s = log_tau.exp(), log_s.exp()
        within, mean = s**2 + error**2, y.mean(1)
        squares = (y - mean[:, None]).square().sum()
        each = within / classes  # variance of a school's mean
        total = tau**2 + each
        precision = 1 / SPREAD**2 + schools / total
        mu, var_mu = (mean / total).sum(1, keepdim=True) / precision, 1 / precision
        logs = Normal(0.0, total.sqrt()).log_prob(mean).sum(1, keepdim=True) + 0.5 * mu**2 * precision + 0.5 * var_mu.log()
        logs = logs - 0.5 * squares / within - 0.5 * schools * (classes - 1) * within.log()
        logs = logs + log_tau + log_s - 0.5 * (tau / WIDTH) ** 2 - 0.5 * (s / WIDTH) ** 2
        share = tau**2 / total
        g = share * mean + (1 - share) * mu
        var_g = share * each + (1 - share) ** 2 * var_mu.expand(-1, schools)
        part = s**2 / within
        theta = (part * y.reshape(1, -1)) + (1 - part) * g.repeat_interleave(classes, 1)
        var_theta = part * error**2 + (1 - part) ** 2 * var_g.repeat_interleave(classes, 1)
        zeros = torch.zeros_like(tau)
        means = torch.cat([mu, tau, s, g, theta], 1)
        variances = torch.cat([var_mu, zeros, zeros, var_g, var_theta], 1)
        return moments(logs[:, 0], means, variances)

    def numbers(p):
        return joined(p["mu"], p["tau"], p["s"], p["g"], p["theta"])

    def numbers_by_hand(p):
        g = p["mu"][..., None] + p["tau"][..., None] * p["z"]
        return joined(p["mu"], p["tau"], p["s"], g, g[..., None] + p["s"][..., None, None] * p["e"])

    return Hierarchy(written, by_hand, (numbers, numbers_by_hand), exact)


def funnel(size: int) -> Hierarchy:
    """Return Neal's funnel, ``v ~ N(0, 3)``, ``x ~ N(0, exp(v / 2))``; log |x| has moments that draws can estimate."""
    shapes, prior = {"v": lv.real(), "x": lv.real(size)}, {"v": Normal(0.0, 3.0)}

    def written(**settings):
        conditional = {"x": lambda p: Normal(0.0, (p["v"] / 2).exp().expand(size))}
        return lv.Model.log_density(lambda p: 0.0 * p["v"], shapes, {**prior, **conditional}, **settings)

    def by_hand():
        return lv.Model.log_density(lambda p: 0.0 * p["v"], shapes, {**prior, "x": Normal(0.0, 1.0)})

    def exact():
        log_mean, log_var = -(math.log(2) + 0.5772156649015329) / 2, math.pi**2 / 8  # of log |N(0, 1)|
        mean = torch.tensor([0.0] + [log_mean] * size, dtype=F64)
        return mean, torch.tensor([3.0] + [(log_var + 9 / 4) ** 0.5] * size, dtype=F64)

    def numbers(p):
        return joined(p["v"], p["x"].abs().log())

    def numbers_by_hand(p):
        return joined(p["v"], p["x"].abs().log() + p["v"][..., None] / 2)

    return Hierarchy(written, by_hand, (numbers, numbers_by_hand), exact)


SCHOOLS = ([28.0, 8, -3, 7, -1, 1, 18, 12], [15.0, 10, 16, 11, 9, 11, 10, 18])
HIERARCHIES = {
    "eight schools": groups(*(torch.tensor(part, dtype=F64) for part in SCHOOLS)),
    "50 groups, weak data": drawn(50, 1.0, 5.0, seed=1),
    "50 groups, middling data": drawn(50, 1.0, 1.0, seed=2),
    "50 groups, rich data": drawn(50, 1.0, 0.1, seed=3),
    "50 groups, some of each": groups(
        2 + torch.randn(50, dtype=F64, generator=torch.Generator().manual_seed(4)), torch.logspace(-2, 1, 50, dtype=F64)
    ),
    "two levels, weak": two_levels(8, 5, 1.0, 0.5, 2.0, seed=5),
    "two levels, rich": two_levels(8, 5, 2.0, 1.0, 0.2, seed=6),
    "Neal's funnel": funnel(9),
}
FORMS = ("default", "as written", "by hand")


class Found(NamedTuple):
    """What the default call makes of a model."""

    mean: Tensor  # errors of the means, in standard deviations
    sd: Tensor  # relative errors of the standard deviations
    mean_error: Tensor  # standard errors, from the chains
    sd_error: Tensor
    warned: bool
    cost: float  # gradients of all chains per effective draw of the slowest number, without the warm-up
    samples: lv.Samples

    def is_right(self, errors: float) -> bool:
        """Return whether all are within `SHARE` and so many standard errors."""
        gaps = torch.cat([self.mean.abs() - errors * self.mean_error, self.sd.abs() - errors * self.sd_error])
        return bool((gaps < SHARE).all())


def run(hierarchy: Hierarchy, form: str, exact: tuple[Tensor, Tensor], seed: int, **settings) -> Found:
    """Sample from a form of a model by the default call."""
    model = hierarchy.by_hand() if form == "by hand" else hierarchy.written(centredness=1.0 if form == "as written" else "auto")
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        samples = lv.sample(model, seed=seed, progress=False, **settings)
    numbers = hierarchy.numbers[form == "by hand"](model.constrain(samples.healthy))
    z = (numbers - exact[0]) / exact[1]
    means, squares, root = z.mean(1), z.square().mean(1), len(z) ** 0.5
    mean = means.mean(0)
    found = mixing(numbers)
    size = float(torch.minimum(found.bulk, found.tail).min())
    cost = samples.status[0].steps * len(samples.status) / size
    warned = any(issubclass(each.category, lv.TrustWarning) for each in caught)
    sd = (squares.mean(0) - mean**2).sqrt() - 1
    return Found(mean, sd, means.std(0) / root, squares.std(0) / (2 * root), warned, cost, samples)


def rows(name: str, seeds: range) -> str:
    """Return what becomes of a model in each form, as lines of the table."""
    hierarchy, lines = HIERARCHIES[name], []
    exact = hierarchy.exact()
    for form in FORMS:
        found = [run(hierarchy, form, exact, seed) for seed in seeds]
        right = sum(each.is_right(4.0) for each in found)
        mean, sd = (max(float(getattr(each, what).abs().max()) for each in found) for what in ("mean", "sd"))
        cost = sum(each.cost for each in found) / len(found)
        warmup = sum(each.samples.warmup_gradients for each in found) / len(found)
        warned = sum(each.warned for each in found)
        first = name if form == FORMS[0] else ""
        counts = f"{right:3} of {len(found)}{mean:8.1%}{sd:8.1%}{warned:8}{cost:9.1f}{warmup:9.0f}"
        lines.append(f"{first:26}{form:12}{counts}")
    return "\n".join(lines)


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]))
    print(f"Hierarchical models, langevin {lv.__version__}, {len(seeds)} seeds: python tests/law/hierarchies.py {len(seeds)}")
    print("default: theta ~ Normal(mu, tau), reparameterised by the warm-up; as written: the same with centredness=1; by hand:")
    print("theta = mu + tau z in the model. right: runs whose means and sds are within 5 % of an sd and four standard errors of")
    print("the exact ones; the largest errors (of a mean, in sds; of an sd); runs with a warning; gradients of all chains per")
    print("effective draw of the slowest number, without the warm-up; gradients per chain of the warm-up")
    print(f"\n{'':38}{'right':>8}{'mean':>8}{'sd':>8}{'warned':>8}{'cost':>9}{'warm-up':>9}")
    for name in HIERARCHIES:
        print(rows(name, seeds), flush=True)
