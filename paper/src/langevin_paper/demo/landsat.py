"""Part 4: a network on the Landsat data. How often is it right, does it know where it is wrong, is it as sure as it is right?"""

from __future__ import annotations

import importlib.util
import math
import warnings
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import langevin as lv
from langevin.diagnostics.plots import INK, PALETTE
from langevin.nn.predictive import Prediction
from langevin.nn.predictive.plots import calibration_bins, risks
from langevin_paper.demo.shown import LeftOut, Shown, legend, panel
from langevin_paper.demo.training import loop, network, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Data", "Scores", "load", "scores", "show"]

SIZES, BATCH = (36, 30, 30, 6), 500
BINS = 10


class Data(NamedTuple):
    """Standardised pixels and classes."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


class Scores(NamedTuple):
    """How good predictions are."""

    accuracy: float
    nll: float
    ece: float


def load() -> Data:
    """Read the data that the distribution `langevin-paper` brings along.

    Raises:
        LeftOut: it is not installed.
    """
    if importlib.util.find_spec("langevin_paper") is None:  # a name, not an import: the library does not need the paper
        raise LeftOut("the Landsat data come with the paper's experiments: pip install langevin-paper")
    with (resources.files("langevin_paper") / "landsat.npz").open("rb") as stream:
        arrays = dict(np.load(stream))
    x, x_test = (torch.tensor(arrays[name], dtype=torch.float32) for name in ("x_train", "x_test"))
    names, y = np.unique(arrays["y_train"], return_inverse=True)
    y_test = np.searchsorted(names, arrays["y_test"])
    mean, std = x.mean(0), x.std(0)
    return Data((x - mean) / std, torch.tensor(y), (x_test - mean) / std, torch.tensor(y_test))


def scores(prediction: Prediction, y: Tensor) -> Scores:
    """Return accuracy, mean negative log-likelihood and expected calibration error."""
    bins = calibration_bins(prediction, y, bins=BINS)
    p = prediction.probabilities.double()
    nll = -p[torch.arange(len(y)), y].clamp(min=1e-300).log().mean()
    ece = ((bins.accuracy - bins.confidence).abs() * bins.share).nansum()
    return Scores(float((prediction.labels == y).double().mean()), float(nll), float(ece))


def show(quick: bool) -> Shown:
    """Train with SGD, sample with MSGLD by the same loop, and compare on the test set."""
    data, steps, draws = load(), 100 if quick else 10_000, 5 if quick else 100
    model = network(SIZES, nn.ReLU)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1 / len(data.x))  # the same prior
    point = loop(model, nn.CrossEntropyLoss(), sgd, data.x, data.y, rows_of(len(data.x), BATCH, steps), range(steps - 1, steps))
    model = network(SIZES, nn.ReLU)
    msgld = lv.optim.MSGLD(
        model.parameters(), lr=0.05, num_data=len(data.x), prior=lv.priors.gaussian(std=1.0), bias_factor=10.0, beta=0.9,
        invariant=True, noise="corrected", seed=0,
    )  # fmt: skip
    thin = steps * 2 // 3 // draws
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        kept = loop(
            model,
            nn.CrossEntropyLoss(),
            msgld,
            data.x,
            data.y,
            rows_of(len(data.x), BATCH, steps),
            range(steps - thin * (draws - 1) - 1, steps, thin),
        )
        one, many = (lv.predict(None, models, data.x_test, likelihood="categorical", progress=False) for models in (point, kept))
    found = {"one network, SGD": (one, PALETTE[1]), f"{len(kept)} draws, MSGLD": (many, PALETTE[0])}
    sgd_scores, our_scores = scores(one, data.y_test), scores(many, data.y_test)
    wrong = many.labels != data.y_test
    assert many.total is not None
    unsure = many.total.double()
    _, risk = risks(many, data.y_test)
    half = float(risk[math.ceil(len(risk) / 2) - 1])
    first = (
        f"On {len(data.y_test):,} test pixels the average of {len(kept)} draws of a 36-30-30-6 network is right on "
        f"{100 * our_scores.accuracy:.1f} %, and one network trained by SGD, the same loop, steps and prior, "
        f"on {100 * sgd_scores.accuracy:.1f} %; their negative log-likelihoods are {our_scores.nll:.3f} "
        f"and {sgd_scores.nll:.3f}, their calibration errors "
        f"{100 * our_scores.ece:.1f} % and {100 * sgd_scores.ece:.1f} %."
    )
    second = (
        f"The draws know where they are wrong: the entropy of their prediction is {float(unsure[wrong].mean()):.2f} on average "
        f"where they are and {float(unsure[~wrong].mean()):.2f} where they are not, and on the surest half of the pixels "
        f"{100 * half:.1f} % are wrong instead of {100 * (1 - our_scores.accuracy):.1f} %."
    )
    return Shown((_sure(found, data.y_test), _unsure(unsure, wrong), _risk(found, data.y_test)), (first, second))


def _sure(found: dict[str, tuple[Prediction, str]], y: Tensor) -> Figure:
    figure, axes = panel("how sure", "share that is right", title="Calibration")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)), label="as sure as right")
    for name, (prediction, colour) in found.items():
        bins = calibration_bins(prediction, y, bins=BINS)
        many = bins.share * len(y) >= 10  # fewer say little
        axes.plot(bins.confidence[many].numpy(), bins.accuracy[many].numpy(), "o-", color=colour, label=name, markersize=5)
    axes.set_xlim(0.3, 1.01)
    axes.set_ylim(0.3, 1.01)
    legend(axes)
    return figure


def _unsure(unsure: Tensor, wrong: Tensor) -> Figure:
    figure, axes = panel("entropy of the prediction, nats", "share of the pixels, %", title="Where the draws are wrong")
    edges = np.linspace(0, float(unsure.max()), 16).tolist()
    for label, rows, colour in (("right", ~wrong, PALETTE[2]), ("wrong", wrong, PALETTE[5])):
        values = unsure[rows].numpy()
        axes.hist(
            values,
            edges,
            weights=np.full(len(values), 100 / max(1, len(values))),
            histtype="step",
            linewidth=2,
            color=colour,
            label=label,
        )
    legend(axes)
    return figure


def _risk(found: dict[str, tuple[Prediction, str]], y: Tensor) -> Figure:
    figure, axes = panel("share of the pixels kept, surest first, %", "wrong among them, %", title="Leave out what is unsure")
    for name, (prediction, colour) in found.items():
        coverage, risk = risks(prediction, y)
        at = slice(len(coverage) // 20, None)  # the first few jump
        axes.plot(100 * coverage[at].numpy(), 100 * risk[at].numpy(), color=colour, linewidth=2, label=name)
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure
