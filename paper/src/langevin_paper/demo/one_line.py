"""Part 6: one line changed in a training loop."""

from __future__ import annotations

import inspect
import textwrap
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import langevin as lv
from langevin.diagnostics.plots import INK, PALETTE
from langevin.random import Purpose, normal, stream
from langevin_paper.demo.shown import Shown, legend, panel
from langevin_paper.demo.training import loop, network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["after", "before", "show"]

NOISE = 0.1  # standard deviation of y


def before(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer as it was."""
    return torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.98)


def after(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that samples the posterior."""
    return lv.optim.SGHMC(model.parameters(), lr=5e-4, beta=0.98, num_data=100, prior=lv.priors.gaussian(std=1.0))


class Loss(nn.Module):
    """The mean negative log-likelihood of a Gaussian, without its constant."""

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        """Return it."""
        return (output - y).square().mean() / (2 * NOISE**2)


def show(quick: bool) -> Shown:
    """Run the same loop twice: a curve, and a posterior of curves that widens where there are no data."""
    steps, thin = (60, 10) if quick else (10_000, 50)
    spots = torch.special.ndtr(normal(0, stream(Purpose.DATA), 0, 100))[:, None]
    x = torch.where(torch.arange(100)[:, None] < 50, spots - 1.5, spots + 0.5)  # a gap from -0.5 to 0.5
    y = torch.sin(3 * x) + NOISE * normal(0, stream(Purpose.DATA), 1, 100)[:, None]
    places = torch.linspace(-2, 2, 201)[:, None]
    rows = torch.arange(100).expand(steps, 100)  # all of them at every step
    curves = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        for make in (before, after):
            model = network((1, 50, 1), nn.Tanh)
            kept = loop(
                model, Loss(), make(model), x, y, rows, range(steps // 2, steps, thin) if make is after else range(steps - 1, steps)
            )
            with torch.no_grad():
                curves.append(torch.stack([each(places)[:, 0] for each in kept]))
    (line,), draws = curves
    mean, sd = draws.mean(0), draws.std(0)
    gap, near = (places[:, 0].abs() < 0.3), (places[:, 0].abs() > 0.7) & (places[:, 0].abs() < 1.3)
    first = (
        f"The optimizer is the one line that changes; the {steps:,} steps and the loss stay, and the loop gives {len(draws)} "
        "networks in place of one."
    )
    second = (
        f"Their spread is {float(sd[near].mean()):.2f} where there are data and {float(sd[gap].mean()):.2f}, "
        f"{float(sd[gap].mean() / sd[near].mean()):.0f} times as wide, in the gap; the one network says "
        "nothing of what it does not know."
    )
    lines = [
        textwrap.dedent(inspect.getsource(make)).splitlines()[-1].replace("return ", "optimizer = ").strip()
        for make in (before, after)
    ]
    body = textwrap.dedent(inspect.getsource(loop)).splitlines()
    begin = next(number for number, text in enumerate(body) if "for step" in text)
    code = "\n".join([f"- {lines[0]}", f"+ {lines[1]}", "", *(text.removeprefix("    ") for text in body[begin : begin + 6])])
    return Shown((_curves(places[:, 0], line, mean, sd, draws, x, y), _spread(places[:, 0], sd)), (first, second), code)


def _curves(places: Tensor, line: Tensor, mean: Tensor, sd: Tensor, draws: Tensor, x: Tensor, y: Tensor) -> Figure:
    figure, axes = panel("x", "y", title="One network, and a posterior of networks")
    axes.fill_between(
        places.numpy(),
        (mean - 2 * sd).numpy(),
        (mean + 2 * sd).numpy(),
        color=PALETTE[4],
        alpha=0.4,
        label="draws, ± 2 sd",
        linewidth=0,
    )
    axes.plot(places.numpy(), draws[:: max(1, len(draws) // 8)].mT.numpy(), color=PALETTE[0], linewidth=0.7, alpha=0.8)
    axes.plot(places.numpy(), line.numpy(), color=PALETTE[5], linewidth=1.8, label="SGD")
    axes.plot(x[:, 0].numpy(), y[:, 0].numpy(), ".", color=INK, markersize=4, label="data")
    axes.set_ylim(-3, 3)
    legend(axes, 3)
    return figure


def _spread(places: Tensor, sd: Tensor) -> Figure:
    figure, axes = panel("x", "sd of the draws", title="What is not known")
    axes.plot(places.numpy(), sd.numpy(), color=PALETTE[0], linewidth=2)
    for low, high in ((-1.5, -0.5), (0.5, 1.5)):
        axes.axvspan(low, high, color=PALETTE[4], alpha=0.2, linewidth=0)
        axes.text(
            (low + high) / 2, 0.97, "data", transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=10, color=INK
        )
    axes.set_ylim(0, 1.2 * float(sd.max()))
    return figure
