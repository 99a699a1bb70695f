"""One network, an ensemble and samplers at the same cost, and what their predictions know of what they do not know."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import langevin as lv
from langevin.random import Purpose, batch_indices, stream
from langevin.random.torch_rng import fork_rng
from langevin_paper.spec import Column

__all__ = ["COLUMNS", "COST", "Rows", "measure", "network", "run_seed", "train"]

COLUMNS = (
    Column("accuracy", "accuracy, %", 2, better="high"),
    Column("nll", "NLL", 4, better="low"),
    Column("ece", "ECE, %", 2, better="low"),
)
"""What is said of predictions; the ECE has 15 bins."""

COST = (
    Column("gradients", "gradients", 0),
    Column("draws", "networks averaged", 0),
    Column("heat", "heat of minibatches", 3),
    Column("ess", "independent draws", 1),
)
"""What a row takes, the share of its temperature that minibatches add in the last 800 steps or so (`opt.heat()`), and what the
draws of its one chain are worth: the median over predictions of the bulk ESS (`lv.function_diagnostics`)."""

BASELINES = ("Adam",)


class Rows(NamedTuple):
    """Rows to learn from and rows to predict; `other` are inputs of another kind, where there are some."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    other: Tensor | None = None


def network(sizes: tuple[int, ...], activation: str, seed: int, member: int) -> nn.Sequential:
    """Make a fully connected network that starts where torch lets it start, as a function of the seed and the member."""
    with fork_rng(seed, Purpose.INIT, member):
        layers: list[nn.Module] = []
        for k in range(len(sizes) - 1):
            layers += [nn.Linear(sizes[k], sizes[k + 1]), getattr(nn, activation)()]
        return nn.Sequential(*layers[:-1])


def train(
    rows: Rows, method: dict[str, Any], scale: dict[str, Any], seed: int, prior: Any, progress: Callable[[float], None]
) -> tuple[list[nn.Module], dict[str, Any]]:
    """Run a row: its members one after the other, which share the gradients of `scale["epochs"]` epochs.

    The learning rate falls geometrically from `lr` to `end_lr` over the share `burn_in` of a member's steps, and stays. The draws
    are spread evenly over the rest, and the last one is the last step.

    Returns:
        The draws of all members, and what the run cost: gradients of minibatches.
    """
    given = dict(method)
    members, share, draws = given.pop("members"), given.pop("share"), given.pop("draws")
    lr, end_lr, burn_in, optimizer = (given.pop(name) for name in ("lr", "end_lr", "burn_in", "optimizer"))
    batch_size, num_data = scale["batch_size"], len(rows.x)
    steps = round(share * scale["epochs"] * num_data / batch_size / members)
    epoch, falls = num_data // batch_size, max(1, round(burn_in * steps))
    drawn = {steps - round(k * (steps - falls) / draws) for k in range(draws)}
    found: list[nn.Module] = []
    heat = math.nan
    for member in range(members):
        model = network(scale["sizes"], scale["activation"], seed, member)
        if optimizer in BASELINES:
            opt = getattr(torch.optim, optimizer)(model.parameters(), lr=lr, fused=True, **given)
        else:
            opt = getattr(lv.optim, optimizer)(
                model.named_parameters(), lr=lr, num_data=num_data, prior=prior, seed=seed, chain=member, **given
            )
        for step in range(steps):
            for group in opt.param_groups:
                group["lr"] = lr * (end_lr / lr) ** min(step / falls, 1.0)
            batch = batch_indices(seed, stream(Purpose.BATCH, member), step, batch_size, num_data)
            opt.zero_grad()
            functional.cross_entropy(model(rows.x[batch]), rows.y[batch]).backward()
            opt.step()
            if step + 1 in drawn:
                found.append(copy.deepcopy(model))
            if step % epoch == 0:
                progress((member + step / steps) / members)
        if isinstance(opt, lv.optim.LangevinOptimizer):
            (heat,) = (group.share for group in opt.heat())
    return found, {"gradients": steps * members, **({} if math.isnan(heat) else {"heat": heat})}


def run_seed(
    rows: Rows, method: dict[str, Any], scale: dict[str, Any], seed: int, prior: Any, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Train a row and measure it; what speaks against its draws is kept, not printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        draws, cost = train(rows, method, scale, seed, prior, progress)
        results = {**cost, **measure(draws, rows), "threads": torch.get_num_threads()}
        if method["members"] == 1 and len(draws) > 1:
            chain = lv.function_diagnostics(None, draws, rows.x_test, likelihood="categorical")
            results["ess"] = float(chain.bulk_ess.nanmedian())
        return results


def measure(draws: list[nn.Module], rows: Rows) -> dict[str, Any]:
    """Return what the average over draws is worth on the test rows, and how well it tells them from rows of another kind."""
    inside = lv.predict(None, draws, rows.x_test, y=rows.y_test, likelihood="categorical", batch_size=None, progress=False)
    found = lv.metrics(inside)
    assert found.accuracy is not None
    assert found.ece is not None
    results: dict[str, Any] = {"accuracy": 100 * found.accuracy, "nll": found.nll, "ece": 100 * found.ece, "draws": len(draws)}
    results["warnings"] = list(inside.warnings)
    if rows.other is not None:
        outside = lv.predict(None, draws, rows.other, likelihood="categorical", batch_size=None, progress=False)
        results["auroc_total"] = 100 * lv.ood_auroc(inside, outside, "total")
        if len(draws) > 1:  # one network does not disagree with itself
            results["auroc_epistemic"] = 100 * lv.ood_auroc(inside, outside, "epistemic")
    return results
