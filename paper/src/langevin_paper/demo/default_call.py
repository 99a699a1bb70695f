"""Part 1: a posterior by the default call, names and warnings included.

Effects of coaching in eight schools (Rubin 1981): a hierarchy that makes a funnel in one set of parameters and none in another.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import HalfCauchy, Normal

import langevin as lv
from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.plots import INK, PALETTE
from langevin.storage import Samples
from langevin_paper.demo.shown import Shown, count, legend, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["show"]

SCHOOLS = "ABCDEFGH"
EFFECTS = (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0)
ERRORS = (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0)
POINTS = 3_000  # drawn in the picture


def schools() -> lv.Model:
    """Return the model in parameters without a funnel: ``theta = mu + tau z``."""
    return lv.Model(
        lambda p, y, error: Normal(p["mu"] + p["tau"] * p["z"], error).log_prob(y),
        parameters={"mu": lv.real(), "tau": lv.positive(), "z": lv.real(8)},
        prior={"mu": Normal(0.0, 5.0), "tau": HalfCauchy(5.0), "z": Normal(0.0, 1.0)},
        dims={"z": ["school"]},
        coords={"school": list("ABCDEFGH")},
    )


def funnel() -> lv.Model:
    """Return the same model with theta itself as the parameter, sampled as written."""
    return lv.Model(
        lambda p, y, error: Normal(p["theta"], error).log_prob(y),
        parameters={"mu": lv.real(), "tau": lv.positive(), "theta": lv.real(8)},
        prior={"mu": Normal(0.0, 5.0), "tau": HalfCauchy(5.0), "theta": lambda p: Normal(p["mu"], p["tau"])},
        centredness=1.0,  # without the reparameterisation of the default call
        dims={"theta": ["school"]},
        coords={"school": list("ABCDEFGH")},
    )


def show(quick: bool) -> Shown:
    """Run both, and say what each run says of itself."""
    data = (torch.tensor(EFFECTS), torch.tensor(ERRORS))
    settings: dict[str, Any] = {"chains": 2, "num_draws": 10} if quick else {}
    with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)  # shown on the page
        good = lv.sample(schools(), data=data, progress=False, **settings)
        told = printed.getvalue().strip()
        bad = lv.sample(funnel(), data=data, progress=False, **settings)
    table = good.summary()
    theta = good["mu"][..., None] + good["tau"][..., None] * good["z"]
    worst, fewest = max(table["r_hat"].values()), min(table["ess_bulk"].values())
    draws = good.draws.shape[0] * good.draws.shape[1]
    first = (
        f"lv.sample(model, data=...) without a setting took {good.warmup_gradients:,} gradients a chain to find starts, scale and "
        f"step size, and gave {draws:,} draws by name: R-hat at most {worst:.3f}, at least {fewest:,.0f} effective draws, and "
        f"{_verdict(good)}."
    )
    second = f"The same schools in parameters that make a funnel, as written: that run {_verdict(bad, quote=True)}"
    call = "samples = lv.sample(model, data=(effects, errors))\nsamples.summary()"
    lines = textwrap.dedent(inspect.getsource(schools)).splitlines()[2:]
    code = textwrap.dedent("\n".join(lines)).replace("return lv.Model", "model = lv.Model") + "\n" + call
    printed_text = f"{told}\n\n{table}\n\nThe same in the parameters of the funnel, samples.trust:\n\n{bad.trust}"
    return Shown((_forest(theta), _scatter(good, theta, bad)), (first, second.rstrip(".") + "."), code, printed_text)


def _verdict(samples: Samples, quote: bool = False) -> str:
    """Return what a run says of itself."""
    found = samples.trust.warnings
    if not found:
        return "found nothing that speaks against its draws" if quote else "nothing that speaks against them"
    return (
        f"ends with {count(len(found), 'warning')}, the first: “{found[0].rstrip('.')}”" if quote else count(len(found), "warning")
    )


def _forest(theta: Tensor) -> Figure:
    figure, axes = panel("effect of coaching, points", "school", title="Effects by name")
    flat = theta.flatten(0, -2)
    low, middle, high = torch.quantile(flat, torch.tensor([0.03, 0.5, 0.97], dtype=flat.dtype), 0).numpy()
    places = range(len(SCHOOLS))
    axes.hlines(places, low, high, color=PALETTE[0], linewidth=3, label="94 % of the draws")
    axes.plot(middle, places, "o", color=PALETTE[0], markersize=6)
    axes.plot(EFFECTS, places, "x", color=PALETTE[5], markersize=6, label="measured in the school")
    axes.set_yticks(list(places), list(SCHOOLS))
    axes.invert_yaxis()
    legend(axes)
    return figure


def _scatter(good: Samples, theta: Tensor, bad: Samples) -> Figure:
    figure, axes = panel("log τ, the spread of schools", "effect in school A", title="The funnel")
    rows = [
        ("theta sampled", bad["tau"].log().flatten(), bad["theta"][..., 0].flatten(), PALETTE[1]),
        ("μ + τ z sampled", good["tau"].log().flatten(), theta[..., 0].flatten(), PALETTE[0]),
    ]
    for label, x, y, colour in rows:
        at = evenly_spaced(len(x), POINTS)
        axes.plot(x[at].numpy(), y[at].numpy(), ".", color=colour, markersize=3, alpha=0.5, label=label, rasterized=True)
    axes.set_xlim(-6, 5)
    axes.set_ylim(-30, 60)
    axes.axhline(0, color=INK, linewidth=0.6, zorder=0)
    legend(axes, markersize=10)
    return figure
