"""`langevin-paper check sbc`: calibration of the invariant MSGLD on two regressions, and of samplers broken on purpose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus
from tqdm.auto import tqdm

from langevin.diagnostics.calibration import Calibration, Simulate, sbc
from langevin.kernels import Kernel
from langevin.kernels.samplers import msgld, sgld
from langevin.random import Purpose, normal, streams
from langevin.targets import Target, likelihood, priors
from langevin_paper.check.ranks import SIGMA, Regression
from langevin_paper.check.report import Report, Row
from langevin_paper.check.twins import hot, turned_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_sbc"]

A, BETA = 10.0, 0.9


class Built(NamedTuple):
    """A model with its simulator and the largest curvature of its posteriors."""

    simulate: Simulate
    target: Target
    curvature: float


def _linear(seed: int) -> Built:
    """Conjugate: ``y = X b + σ e``, b ~ N(0, I)."""
    model = Regression.standard(seed)
    features = model.features

    def simulate(replications: int, seed: int) -> tuple[Tensor, list[Tensor]]:
        slopes, y = model.simulate(seed, range(replications))
        return slopes, [features.expand(replications, *features.shape), y]

    target = likelihood(lambda b, x, y: -0.5 * ((y - x @ b) / SIGMA) ** 2, prior=priors.gaussian(std=1.0))
    return Built(simulate, target, float(torch.linalg.eigvalsh(model.precision).max()))


def _logistic(seed: int) -> Built:
    """Not conjugate: y is 1 with probability ``1 / (1 + exp(-x b))``, b ~ N(0, I)."""
    features = Regression.standard(seed).features
    rows, dim = features.shape

    def simulate(replications: int, seed: int) -> tuple[Tensor, list[Tensor]]:
        chains = range(replications)
        slopes = normal(seed, streams(Purpose.INIT, chains), 1, dim, dtype=torch.float64)
        uniform = torch.special.ndtr(normal(seed, streams(Purpose.DATA, chains), 1, rows, dtype=torch.float64))
        y = (uniform < torch.sigmoid(slopes @ features.mT)).double()
        return slopes, [features.expand(replications, *features.shape), y]

    target = likelihood(lambda b, x, y: y * (x @ b) - softplus(x @ b), prior=priors.gaussian(std=1.0))
    return Built(simulate, target, 1 + float(torch.linalg.eigvalsh(features.mT @ features).max()) / 4)


def check_sbc(*, seed: int = 0, quick: bool = False, level: float = 1e-4, progress: bool | None = None) -> Report:
    """Calibrate the invariant MSGLD by simulation on a linear and a logistic regression.

    Args:
        seed: of everything random.
        quick: a quarter of the replications.
        level: probability that any sampler is refused by chance, by Bonferroni's bound.
        progress: show a bar; None shows one on a terminal only.
    """
    replications = 1_000 if quick else 4_000
    linear, logistic = _linear(seed), _logistic(seed)
    # k (2 ε + h^2) is 4 at the limit of stability; the logistic model is not Gaussian and has a smaller step.
    limit = 4 / (2 + 2 * A * (1 - BETA) / (1 + BETA))
    good = {id(model): _kernel(share * limit / model.curvature) for model, share in ((linear, 0.5), (logistic, 0.15))}
    runs: list[tuple[str, bool, Built, Kernel]] = [
        ("msgld, invariant; linear regression", False, linear, good[id(linear)]),
        ("msgld, invariant; logistic regression", False, logistic, good[id(logistic)]),
        ("msgld, published; linear regression", True, linear, msgld(0.1 / linear.curvature, bias_factor=1.0)),
        ("msgld, published; logistic regression", True, logistic, msgld(0.1 / logistic.curvature, bias_factor=1.0)),
        ("noise 10 % too large; linear regression", True, linear, hot(good[id(linear)])),
        ("noise 10 % too large; logistic regression", True, logistic, hot(good[id(logistic)])),
        ("velocity of the wrong sign; logistic regression", True, logistic, turned_round(good[id(logistic)])),
        ("sgld, step too large; linear regression", True, linear, sgld(1.2 / linear.curvature)),
    ]
    share = level / sum(not must_fail for _, must_fail, _, _ in runs)
    rows, accepted = [], {}
    for name, must_fail, model, kernel in tqdm(runs, desc="sbc", disable=None if progress is None else not progress):
        found = sbc(model.simulate, model.target, kernel, replications=replications, seed=seed, progress=False)
        numbers = {"quantities": len(found.names), "lost": found.lost, "smallest p": found.p_value}
        rows.append(Row(name, numbers, found.p_value > share, must_fail))
        accepted[name] = found
    about = f"ranks of {replications} truths among their draws; refused where p < {share:.3g} (level {level:g} for all samplers)"
    return Report("sbc", about, seed, tuple(rows), picture=partial(_draw, found=accepted))


def _kernel(step_size: float) -> Kernel:
    return msgld(step_size, bias_factor=A, beta=BETA, invariant=True)


def _draw(figure: Figure, found: dict[str, Calibration]) -> None:
    """Draw the rank histogram and the ECDF difference of the quantity with the smallest p-value, a row for each sampler."""
    figure.set_size_inches(9, 1.5 * len(found))
    panels = figure.subplots(len(found), 2)
    for (histogram, difference), (name, calibration) in zip(panels, found.items(), strict=True):
        worst = int(calibration.p_values.argmin())
        calibration.plot(histogram, difference, worst)
        histogram.set_title(f"{name}: {calibration.names[worst]}", fontsize=6)
        for axes in (histogram, difference):
            axes.tick_params(labelsize=5)
