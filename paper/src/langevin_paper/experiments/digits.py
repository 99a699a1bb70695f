"""Scikit-learn's digits: the rows of `mnist_ood` on little data, where the prior decides, and a prior that the data choose."""

from __future__ import annotations

import contextlib
import io
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import langevin as lv
from langevin.random import Purpose, batch_indices, stream
from langevin.targets import priors
from langevin_paper.experiments.uncertainty import COLUMNS, COST, Rows, network, run_seed
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["DIGITS"]


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: every seed has a split, starts and noise of its own."""
    return {seed: _run(dict(method.settings), dict(scale.settings), seed, progress) for seed in seeds}


def _run(method: dict[str, Any], scale: dict[str, Any], seed: int, progress: Progress) -> dict[str, Any]:
    rows = _rows(scale, seed)
    given, scales = method.pop("prior"), method.pop("scales", None)
    chosen: dict[str, Any] = {}
    if scales is not None:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # both are recorded
            warnings.simplefilter("ignore", lv.TrustWarning)
            model = network(scale["sizes"], scale["activation"], seed, 0)
            choice = lv.choose_prior(model, "categorical", data=(rows.x, rows.y), scales=scales, seed=seed, progress=False)
        chosen = {"prior_std": choice.scale, "choice": choice.why, "choice_warnings": list(choice.warnings)}
        prior: Any = choice.prior
    else:
        prior = priors.from_plain(given)
        if isinstance(prior, priors.GaussianPrior):
            chosen = {"prior_std": prior.std}
    return {**chosen, **run_seed(rows, method, scale, seed, prior, progress)}


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits  # a second to import, and for this experiment alone

    found = load_digits()
    return torch.from_numpy(found.images).float().flatten(1), torch.from_numpy(found.target).long()


def _rows(scale: dict[str, Any], seed: int) -> Rows:
    """Return a split: rows in an order that is the seed's, the first of them to learn from, then those held out, then the test.

    With `held_out` the rows held out are predicted in place of the test's; without, they are learnt from.
    """
    x, y = _digits()
    order = batch_indices(seed, stream(Purpose.DATA), 0, len(x), len(x))
    x, y = x[order] / x.max(), y[order]
    tests, held_out = scale["tests"], scale["held_out"]
    if held_out:
        x, y, tests = x[:-tests], y[:-tests], held_out
    most = scale["rows"]
    return Rows(x[:-tests][:most], y[:-tests][:most], x[-tests:], y[-tests:])


def _sampler(name: str, label: str, optimizer: str, temperature: float, prior: Any, **settings: Any) -> Method:
    shared = {"optimizer": optimizer, "members": 1, "share": 1.0, "draws": 50, "burn_in": 0.5}
    settings = {**shared, "prior": prior, "temperature": temperature, **settings}
    return Method(name, label, optimizer.lower(), settings, ("*",))


_NORMAL = priors.to_plain(priors.gaussian(std=1.0))
_ADAM: dict[str, Any] = {"optimizer": "Adam", "prior": None, "draws": 1, "lr": 3e-2, "end_lr": 1e-3, "burn_in": 1.0}
_SGHMC: dict[str, Any] = {"lr": 0.2, "end_lr": 0.2, "beta": 0.9}
_MSGLD: dict[str, Any] = {"lr": 0.2, "end_lr": 0.2, "beta": 0.9, "bias_factor": 9.0, "invariant": True}
_ASGLD: dict[str, Any] = {
    "lr": 0.2, "end_lr": 0.2, "bias_factor": 100.0, "eps_root": 1e-5, "invariant": True, "adapt_steps": 2_000,
}  # fmt: skip
_SCALES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)

METHODS = (
    Method("adam", "Adam, one network", "adam", {**_ADAM, "members": 1, "share": 0.2}, ("*",)),
    Method("ensemble", "Adam, ensemble of 5", "adam", {**_ADAM, "members": 5, "share": 1.0}, ("*",)),
    _sampler("sghmc", "SGHMC, T = 1", "SGHMC", 1.0, _NORMAL, **_SGHMC),
    _sampler("sghmc-cold", "SGHMC, T = 0.01", "SGHMC", 1e-2, _NORMAL, **_SGHMC),
    _sampler("msgld", "MSGLD invariant, T = 1", "MSGLD", 1.0, _NORMAL, **_MSGLD),
    _sampler("msgld-cold", "MSGLD invariant, T = 0.01", "MSGLD", 1e-2, _NORMAL, **_MSGLD),
    _sampler("asgld", "ASGLD invariant, T = 1", "ASGLD", 1.0, _NORMAL, **_ASGLD),
    _sampler("asgld-cold", "ASGLD invariant, T = 0.01", "ASGLD", 1e-2, _NORMAL, **_ASGLD),
    _sampler("sghmc-chosen", "SGHMC, T = 1, prior chosen", "SGHMC", 1.0, None, scales=_SCALES, **_SGHMC),
    _sampler("sghmc-narrow", "SGHMC, T = 1, prior too narrow", "SGHMC", 1.0, priors.to_plain(priors.gaussian(std=0.1)), **_SGHMC),
)

SHARED: dict[str, Any] = {
    "sizes": (64, 32, 10), "activation": "Tanh", "batch_size": 100, "rows": None, "tests": 360, "held_out": 0, "epochs": 1_000,
}  # fmt: skip

DIGITS = Experiment(
    name="digits",
    title="Digits: little data, and a prior that the data choose",
    section="Not in the paper",
    about="A 64-32-10 tanh network learns 1,437 of scikit-learn's 8 x 8 digits and predicts 360 others; every seed has its own "
    "split. One row takes the prior that lv.choose_prior finds by marginal likelihood on the rows to learn from.",
    methods=METHODS,
    scales=(
        Scale("quick", {**SHARED, "rows": 300, "epochs": 40}, num_seeds=1, seconds=5),
        # For choosing settings: the test rows are not looked at.
        Scale("short", {**SHARED, "held_out": 360}, num_seeds=1, seconds=6),
        Scale("paper", SHARED, num_seeds=3, seconds=6),
    ),
    run=run,
    tables=(
        Table("The 360 test rows of each split", COLUMNS),
        Table("What it took", (*COST, Column("prior_std", "std of the prior", 2))),
    ),
    settings=(
        Setting("cost", "gradients of minibatches of 100 rows; the one network is a member of the ensemble, a fifth of its cost. "
                "What lv.choose_prior costs is not counted", "ours"),
        Setting("prior", "N(0, 1) on all parameters, unless the row says another", "ours"),
        Setting("chosen on", "360 rows of split 0 that are not its test rows (scale short)", "ours"),
    ),
    seeds_together=False,
)  # fmt: skip
