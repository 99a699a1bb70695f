"""Smooth targets of one to three dimensions that are no Gaussians, with exact means and standard deviations by quadrature.

`TUNED` are those on which the warm-up's limits were chosen. `HELD_OUT` were written afterwards, and nothing was changed for them.

``python tests/law/shapes.py 10`` prints what the default call makes of each with 10 seeds (docs/benchmarks/shapes.txt); names, or
parts of them, that follow choose among the targets.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

import langevin as lv

SHARE = 0.05  # of a standard deviation, by which means and standard deviations may be wrong
GRID = {1: 400_001, 2: 2001}  # points of an axis


class Shape(lv.targets.Target):
    """A target in closed form.

    Args:
        formula: returns energies (chains,) and gradients (chains, dim) of positions (chains, dim).
        box: what holds all of the mass, one interval per dimension.
        sd: standard deviations where they are known, beside means of zero; else quadrature over the box finds both.
        moments: a function that returns means and standard deviations.
    """

    has_closed_form = True

    def __init__(
        self,
        formula: Callable[[Tensor], tuple[Tensor, Tensor]],
        *box: tuple[float, float],
        sd: Sequence[float] = (),
        moments: Callable[[], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.formula, self.box, self.sd, self.dim = formula, box, sd, len(sd) or len(box)
        self.known = moments

    def evaluate(self, position, batch=None):
        return lv.targets.Evaluation(*self.formula(position))

    def exact(self) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations, (dim,)."""
        if self.known is not None:
            return self.known()
        if self.sd:
            return torch.zeros(self.dim, dtype=torch.float64), torch.tensor(self.sd, dtype=torch.float64)
        axes = [torch.linspace(low, high, GRID[self.dim], dtype=torch.float64) for low, high in self.box]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, self.dim)
        energy = torch.cat([self.formula(part)[0] for part in grid.split(2**20)])
        weights = (energy.nan_to_num(torch.inf).min() - energy).nan_to_num(-torch.inf).softmax(0)
        mean = weights @ grid
        return mean, (weights @ (grid - mean) ** 2).sqrt()


def line(energy: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], low: float, high: float) -> Shape:
    """Return a target of one dimension."""
    return Shape(lambda theta: (energy(theta[:, 0]), slope(theta)), (low, high))


def logistic(x: Sequence[float], sd: float, box: Sequence[tuple[float, float]]) -> Shape:
    """Return logistic regression of x > 0 on x with normal priors; without an intercept in one dimension."""
    rows = torch.tensor(x, dtype=torch.float64)
    design = rows[:, None] if len(box) == 1 else torch.stack([torch.ones_like(rows), rows], 1)
    label = (rows > 0).double()

    def formula(theta):
        eta = theta @ design.mT
        energy = softplus(eta).sum(1) - eta @ label + theta.square().sum(1) / (2 * sd**2)
        return energy, (eta.sigmoid() - label) @ design + theta / sd**2

    return Shape(formula, *box)


def banana(bend: float, sd: float, copies: int = 1) -> Shape:
    """Return ``x ~ N(0, 1)`` and some ``y ~ N(bend (x^2 - 1), sd)``."""

    def formula(theta):
        x, force = theta[:, :1], (theta[:, 1:] - bend * (theta[:, :1] ** 2 - 1)) / sd**2
        energy = 0.5 * x[:, 0] ** 2 + 0.5 * sd**2 * force.square().sum(1)
        return energy, torch.cat([x - 2 * bend * x * force.sum(1, keepdim=True), force], 1)

    return Shape(formula, sd=[1.0, *[(2 * bend**2 + sd**2) ** 0.5] * copies])


def mixture(means: Sequence[float], sds: Sequence[float], shares: Sequence[float]) -> Shape:
    """Return a mixture of normals on the line."""
    mean, sd, share = (torch.tensor(values, dtype=torch.float64) for values in (means, sds, shares))

    def formula(theta):
        logs = (share / sd).log() - 0.5 * ((theta - mean) / sd) ** 2
        return -logs.logsumexp(1), (logs.softmax(1) * (theta - mean) / sd**2).sum(1, keepdim=True)

    return Shape(formula, (min(means) - 9 * max(sds), max(means) + 9 * max(sds)))


def funnel(theta):
    """Return ``v ~ N(0, 1)``, two ``x ~ N(0, exp(v / 2))``."""
    v, x = theta[:, :1], theta[:, 1:]
    squares = x**2 * (-v).exp()
    energy = (0.5 * v**2 + v)[:, 0] + 0.5 * squares.sum(1)
    return energy, torch.cat([v + 1 - 0.5 * squares.sum(1, keepdim=True), x * (-v).exp()], 1)


def ridge(theta):
    """Return two standard normals given that their exponentials sum to 3, with an error of .3."""
    powers = theta.exp()
    gap = (powers.sum(1) - 3) / 0.3**2
    return 0.5 * theta.square().sum(1) + 0.5 * 0.3**2 * gap**2, theta + gap[:, None] * powers


def corner(theta):
    """Return a Laplace distribution beside a normal one."""
    x, y = theta.unbind(1)
    return x.abs() + 0.5 * y**2, torch.stack([x.sign(), y], 1)


def rosenbrock(copies):
    """Return ``x ~ N(1, sqrt(10))`` and ``y ~ N(x^2, sqrt(.1))``, less their means 1 and 11, so many times."""

    def formula(theta):
        x, y = 1 + theta[:, :copies], 11 + theta[:, copies:]
        gap = y - x**2
        energy = ((1 - x) ** 2 / 20 + 5 * gap**2).sum(1)
        return energy, torch.cat([(x - 1) / 10 - 20 * gap * x, 10 * gap], 1)

    return Shape(formula, sd=[10**0.5] * copies + [240.1**0.5] * copies)


def horseshoe(y, sd, is_centred):
    """Return ``y ~ N(b, sd)``, ``b ~ N(0, lambda)``, lambda half-Cauchy: (b, log lambda), or (b / lambda, log lambda)."""

    def free(theta):
        z, log = theta.unbind(1)
        b = z * log.exp()
        pull = (b - y) / sd**2
        energy = z**2 / 2 + (y - b) ** 2 / (2 * sd**2) + softplus(2 * log) - log
        return energy, torch.stack([z + pull * log.exp(), pull * b + 2 * (2 * log).sigmoid() - 1], 1)

    def centred(theta):
        b, log = theta.unbind(1)
        z, pull = b * (-log).exp(), (b - y) / sd**2
        energy = z**2 / 2 + (y - b) ** 2 / (2 * sd**2) + softplus(2 * log)
        return energy, torch.stack([z * (-log).exp() + pull, -(z**2) + 2 * (2 * log).sigmoid()], 1)

    def moments():
        axes = [torch.linspace(-9, 9, 2001, dtype=torch.float64), torch.linspace(-30, 30, 2001, dtype=torch.float64)]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
        weights = (-free(grid)[0]).softmax(0)
        if is_centred:
            grid = torch.stack([grid[:, 0] * grid[:, 1].exp(), grid[:, 1]], 1)
        mean = weights @ grid
        return mean, (weights @ (grid - mean) ** 2).sqrt()

    return Shape(centred if is_centred else free, (-9, 9), (-30, 30), moments=moments)


def student(degrees):
    """Return Student's t in the tails of which a standard deviation is decided; the box cuts them off."""
    half = (degrees + 1) / 2
    return line(lambda x: half * (x * x / degrees).log1p(), lambda x: (degrees + 1) * x / (degrees + x * x), -20_000, 20_000)


TEN = (-3, -2, -1.5, -0.8, -0.2, 0.3, 0.9, 1.4, 2.2, 3)
TUNED = {
    "separated logistic regression": logistic(TEN, 10.0, [(-45, 45), (-5, 60)]),
    "banana, bend 1, sd .5": banana(1.0, 0.5),
    "banana, bend .7, sd .3": banana(0.7, 0.3),
    "log of a half-normal": line(lambda x: (2 * x).exp() / 2 - x, lambda x: (2 * x).exp() - 1, -40, 5),
    "sqrt(x^2 + .01)": line(lambda x: (x * x + 0.01).sqrt(), lambda x: x / (x * x + 0.01).sqrt(), -50, 50),
    "x^4 / 4": line(lambda x: x**4 / 4, lambda x: x**3, -9, 9),
    "Student's t, 5 degrees": line(lambda x: 3 * (x * x / 5).log1p(), lambda x: 6 * x / (5 + x * x), -2000, 2000),
    "equal modes at distance 6": mixture([-3, 3], [1, 1], [0.5, 0.5]),
    "equal modes at distance 4": mixture([-2, 2], [1, 1], [0.5, 0.5]),
}
HELD_OUT = {
    "log of a gamma, shape .5": line(lambda x: x.exp() - 0.5 * x, lambda x: x.exp() - 0.5, -90, 8),
    "log variance of 3 residuals": line(
        lambda x: 1.5 * x + 1.5 * (-x).exp() + x**2 / 18, lambda x: 1.5 - 1.5 * (-x).exp() + x / 9, -6, 30
    ),
    "Gumbel": line(lambda x: x + (-x).exp(), lambda x: 1 - (-x).exp(), -8, 60),
    "Student's t, 3 degrees": student(3),
    "normal with a wall": line(lambda x: x * x / 2 + softplus(30 * (x - 1)), lambda x: x + 30 * (30 * (x - 1)).sigmoid(), -10, 4),
    "x^8 / 8": line(lambda x: x**8 / 8, lambda x: x**7, -4, 4),
    "shallow double well": line(lambda x: (x * x - 1) ** 2, lambda x: 4 * x * (x * x - 1), -6, 6),
    "two near modes, .7 and .3": mixture([0, 2.5], [1, 0.5], [0.7, 0.3]),
    "separated logistic, one slope": logistic((-2, -1, 1, 2), 5.0, [(-5, 40)]),
    "Laplace beside a normal": Shape(corner, (-40, 40), (-9, 9)),
    "ridge of exponentials": Shape(ridge, (-9, 2.5), (-9, 2.5)),
    "banana, bend .3, sd .2": banana(0.3, 0.2),
    "two bananas, bend .5, sd .5": banana(0.5, 0.5, copies=2),
    "Rosenbrock, 2 dimensions": rosenbrock(1),
    "Rosenbrock, 36 dimensions": rosenbrock(18),
    "horseshoe, y = 1.5": horseshoe(1.5, 0.5, is_centred=False),
    "centred horseshoe, y = 1.5": horseshoe(1.5, 0.5, is_centred=True),
    "mild funnel": Shape(funnel, sd=[1.0, math.exp(0.25), math.exp(0.25)]),
}
MUST_WARN = {"Cauchy": student(1), "Student's t, 2 degrees": student(2), "Student's t, 3 degrees": student(3)}


class Found(NamedTuple):
    """What the default call makes of a target."""

    mean: Tensor  # errors of the means, in standard deviations
    sd: Tensor  # relative errors of the standard deviations
    mean_error: Tensor  # standard errors, from the chains
    sd_error: Tensor
    warned: list[str]  # the warnings' first words
    stopped: int  # chains
    samples: lv.Samples

    def is_right(self, errors: float) -> bool:
        """Return whether all are within `SHARE` and so many standard errors."""
        gaps = torch.cat([self.mean.abs() - errors * self.mean_error, self.sd.abs() - errors * self.sd_error])
        return bool((gaps < SHARE).all())


def run(target: Shape, exact: tuple[Tensor, Tensor], seed: int, num_draws: int = 1000) -> Found:
    """Sample from a target by the default call."""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        samples = lv.sample(target, seed=seed, num_draws=num_draws, compile=False, progress=False)
    told = [line for each in caught if issubclass(each.category, lv.TrustWarning) for line in str(each.message).splitlines()]
    z = (samples.healthy.double() - exact[0]) / exact[1]
    means, squares, root = z.mean(1), z.square().mean(1), len(z) ** 0.5
    mean = means.mean(0)
    sd = (squares.mean(0) - mean**2).sqrt() - 1
    stopped = sum(not status.is_healthy for status in samples.status)
    first = [line.split(":")[0] for line in told if not line.startswith("what speaks")]
    return Found(mean, sd, means.std(0) / root, squares.std(0) / (2 * root), first, stopped, samples)


def row(name: str, target: Shape, seeds: range) -> str:
    """Return what becomes of a target, as a line of the table."""
    exact = target.exact()
    found = [run(target, exact, seed) for seed in seeds]
    silent = [each for each in found if not each.warned]
    worst = [max((float(getattr(each, what).abs().max()) for each in silent), default=math.nan) for what in ("mean", "sd")]
    pooled = torch.stack([each.sd for each in silent]).mean(0).abs().max() if silent else math.nan
    right = sum(each.is_right(2.0) for each in silent)
    steps = sum(each.samples.status[0].steps for each in found) * 8
    size = sum(min(each.samples.trust["bulk ESS"].value or 1, each.samples.trust["tail ESS"].value or 1) for each in found)
    said = "; ".join(f"{text[:33]} {count}" for text, count in Counter(text for each in found for text in each.warned).items())
    return (
        f"{name:31}{right:4} of {len(silent):2}{worst[0]:8.1%}{worst[1]:8.1%}{pooled:8.1%}{len(found) - len(silent):7}"
        f"{sum(each.stopped for each in found):8}{steps / size:8.1f}  {said}"
    )


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]))
    count = len(TUNED) + len(HELD_OUT) + len(MUST_WARN) - 1
    print(f"The default call of langevin {lv.__version__}, {count} targets, {len(seeds)} seeds (shapes.py {len(seeds)})")
    print("right: of the runs without a warning, those whose means and sds are within 5 % of an sd and two standard errors;")
    print("the largest errors of these runs (of a mean, in sds; of an sd), and of the sd averaged over them; runs with a warning;")
    print("chains that stopped; gradients of all chains per effective draw, without the warm-up; the warnings")
    print(f"\n{'':31}{'right':>10}{'mean':>8}{'sd':>8}{'pooled':>8}{'warned':>7}{'stopped':>8}{'cost':>8}")
    further = {name: target for name, target in MUST_WARN.items() if name not in HELD_OUT}
    for title, targets in (("tuned on", TUNED), ("held out", HELD_OUT), ("infinite variance", further)):
        print(title)
        for name, target in targets.items():
            if len(sys.argv) < 3 or any(part in name for part in sys.argv[2:]):
                print(row(name, target, seeds), flush=True)
