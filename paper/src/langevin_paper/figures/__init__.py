"""The paper's figures, from records: functions that draw into Matplotlib axes, and the list of them for each experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from langevin.diagnostics.plots import INK
from langevin_paper.figures.base import Drawn, View, panel_grid, png, put_legend, put_title
from langevin_paper.figures.densities import draw_energy, draw_errors, gaussian_figure, mixture_figure
from langevin_paper.figures.invariant import efficiency_figure, factor_figure, integrator_figure, step_figure
from langevin_paper.figures.minibatch import atlas_figure, race_figure
from langevin_paper.figures.networks import cifar_figure, draw_accuracy, landsat_figure, mnist_figure
from langevin_paper.figures.ravines import draw_path, ravine_figure, ravine_grid, regression_figure, search_figure
from langevin_paper.figures.sparse import course_figure, network_figure
from langevin_paper.spec import Method

__all__ = ["FIGURES", "Drawn", "View", "overview", "png"]

FIGURES: dict[str, Sequence[Drawn]] = {
    "gaussian": (
        Drawn(
            "figure-1",
            "Figure 1. Left: error of the covariance along iterations, one run as a line and the middle 80 percent of all runs as "
            "a band; of the rows of ours the mean. Right: the first 1000 iterations over contours that hold 50, 90 and 99 percent.",
            gaussian_figure,
        ),
    ),
    "mixture": (
        Drawn(
            "figure-2",
            "Figure 2. The true energy, and what the draws of one run say it is: −log of their histogram, smoothed by a fifth of a "
            "unit; white where there was no draw. White lines are contours of the true energy.",
            mixture_figure,
        ),
    ),
    "ravine": (
        Drawn("figure-3a", "Figure 3a. The regression, its global pattern, and 100 data.", regression_figure),
        Drawn(
            "figure-3b",
            "Figure 3b. Sample paths on data set 0, thinned by 50, over the energy (dark is low). The circle is the first point of "
            "the path, the star the truth.",
            ravine_figure,
        ),
    ),
    "ravine-search": (
        Drawn(
            "ravine-search",
            "How often the truth was found: bars on fresh data sets, with binomial standard errors; rings on the data sets of the "
            "search, where the best of many tries looks better than it is. Paler bars are rows of ours.",
            search_figure,
        ),
    ),
    "landsat": (
        Drawn(
            "figure-4",
            "Figure 4. Training (left) and test error along the run: mean over seeds, with their range as a band.",
            landsat_figure,
        ),
    ),
    "mnist": (
        Drawn(
            "mnist", "Test error and sparsity ratio after every epoch: mean over seeds, with their range as a band.", mnist_figure
        ),
    ),
    "cifar10": (Drawn("cifar10", "Test error after every epoch: mean over seeds, with their range as a band.", cifar_figure),),
    "cifar100": (Drawn("cifar100", "Test error after every epoch: mean over seeds, with their range as a band.", cifar_figure),),
    "invariant-law": (
        Drawn("law_factor", "Error of the variance against the bias factor, at one step size for each problem.", factor_figure),
        Drawn("law_step", "Error of the variance against the step size, at bias factor 10.", step_figure),
    ),
    "invariant-integrator": (
        Drawn("integrator", "Error of E x² against the step size; the grey band is two standard errors.", integrator_figure),
    ),
    "invariant-efficiency": (
        Drawn(
            "efficiency",
            "Independent draws per 1000 gradients on fresh seeds. Dot: median; line: least to most; blue: invariant forms; "
            "hollow: off by more than the bound, or unstable, on fresh seeds.",
            efficiency_figure,
        ),
    ),
    "minibatch": (
        Drawn(
            "race",
            "The mean error of the variances against independent draws per epoch, every sampler at all its steps. Grey: not "
            "corrected (hollow: white minibatches); pink: corrected by a diagonal; orange: corrected; light blue: control "
            "variates; dark blue: both. Beyond the edges they are drawn at them. The shade is below 10 %; the errors of slow "
            "chains, on the left, are mostly chance.",
            race_figure,
        ),
        Drawn(
            "atlas",
            "The worst error of a variance, percent, by share of the largest stable step, and as tuned by the law (or found). With "
            "a star: by the law, where chains are too slow to say; chance is in all others.",
            atlas_figure,
        ),
    ),
    "sparse": (
        Drawn(
            "network",
            "What is left of the first row's network, seed 0: its inputs, the connections between its hidden layers, and "
            "the weights of each layer.",
            network_figure,
        ),
        Drawn(
            "course", "Test error and weights left after every epoch: mean over seeds, with their range as a band.", course_figure
        ),
    ),
}


def overview(views: Mapping[str, View]) -> Figure | None:
    """Draw one panel of each of the four experiments, for the README; None unless all are there."""
    needed = {"gaussian": "curve", "mixture": "density", "ravine": "path", "landsat": "test_error"}
    if not all(name in views and views[name].methods(array) for name, array in needed.items()):
        return None
    figure, panels = panel_grid(2, 2, 5.6, 3.9)
    draw_errors(panels[0], views["gaussian"])
    put_title(panels[0], "Gaussian: error of the covariance")
    draw_accuracy(panels[1], views["landsat"], "test_error", "test error, percent")
    put_legend(panels[1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    put_title(panels[1], "Landsat: test error")
    mixed, ravined = views["mixture"], views["ravine"]
    draw_energy(panels[2], mixed, _prefer(mixed.methods("density"), "msgld-invariant"))
    panels[2].set_title("Five modes: " + panels[2].get_title(loc="left"), fontsize=10, color=INK, loc="left")
    draw_path(panels[3], ravined, _prefer(ravined.methods("path"), "msgld"), ravine_grid())
    panels[3].set_title("Ravine: " + panels[3].get_title(loc="left"), fontsize=10, color=INK, loc="left")
    return figure


def _prefer(methods: Sequence[Method], name: str) -> Method:
    return next((method for method in methods if method.name == name), methods[0])
