"""The ravine of section 4.3 by the library's own defaults: nothing is set by hand, on data sets that no one had looked at."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from pathlib import Path
from typing import Any

from langevin import TrustWarning, sample
from langevin.targets import ravine_data
from langevin_paper.chains import normal_starts
from langevin_paper.experiments import ravine
from langevin_paper.experiments.ravine import NEAR, target_of
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["RAVINE_DEFAULTS"]


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: seed s is data set s after the first; each is a call of `sample` of its own."""
    given, results = scale.settings, {}
    for number, seed in enumerate(seeds):
        x, y = ravine_data(given["num_data"], truth=given["truth"], seed=given["first_set"] + seed)
        shared: dict[str, Any] = {
            "data": (x, y), "batch_size": given["batch_size"], "seed": given["seed"] + seed, "compile": False, "progress": False,
        }  # fmt: skip
        with warnings.catch_warnings(record=True) as heard, contextlib.redirect_stdout(io.StringIO()) as told:
            warnings.simplefilter("always", TrustWarning)
            if method.sampler == "none":
                samples = sample(target_of(given), chains=given["chains"], num_draws=given["num_draws"], **shared)
            else:
                starts = normal_starts(range(given["chains"]), 2, seed=given["seed"] + seed, std=given["start_std"])
                lengths = {name: given[name] for name in ("num_steps", "warmup")}
                samples = sample(
                    target_of(given), sampler=method.kernel(temperature=given["temperature"]), init=starts, **lengths, **shared
                )
        by_chain = [math.dist(mean, given["truth"]) for mean in samples.draws.mean(1).tolist()]
        first, second = samples.draws.mean((0, 1)).tolist()
        distance = math.dist((first, second), given["truth"])
        results[seed] = {
            "theta_1": first, "theta_2": second, "distance": distance, "near": float(distance < given["near"]),
            "chains_near": sum(far < given["near"] for far in by_chain), "told": told.getvalue().strip(),
            "warned": float(any(issubclass(entry.category, TrustWarning) for entry in heard)),
        }  # fmt: skip
        progress((number + 1) / len(seeds))
    return results


SHARED: dict[str, Any] = {**ravine.SHARED, "first_set": 2_000, "seed": 2_000, "chains": 8, "num_draws": 1_000}
_AUTO: dict[str, Any] = {"step_size": "auto", "bias_factor": "auto", "invariant": True}


def _row(name: str, label: str, sampler: str, note: str = "", **settings: Any) -> Method:
    return Method(name, label, sampler, settings, ("*",), note)


RAVINE_DEFAULTS = Experiment(
    name="ravine-defaults",
    title="Long narrow ravines, by the library's defaults",
    section="Not in the paper: table 1 (section 4.3) with nothing set by hand",
    about="The regression of section 4.3 given to the library as a user would: `sample` without a sampler finds everything itself, "
    "and the other rows leave to it what they can. Data sets 2000 to 2019, which no one had looked at.",
    methods=(
        _row("none", "sample(target, data=data)", "none", "finds modes, scale, step, bias factor and noise by itself"),
        _row("sghmc", "SGHMC, step found", "sghmc", step_size="auto"),
        _row("msgld-invariant", "MSGLD invariant, step and a found", "msgld", **_AUTO),
        _row("asgld-invariant", "ASGLD invariant, step and a found", "asgld", **_AUTO),
    ),
    scales=(
        Scale("quick", {**SHARED, "num_steps": 600, "warmup": 200, "num_draws": 100}, num_seeds=2, seconds=10),
        Scale("short", {**SHARED, "num_steps": 10_000, "warmup": 3_000}, num_seeds=5, seconds=60),
        Scale("paper", {**SHARED, "num_steps": 30_000, "warmup": 10_000}, num_seeds=20, seconds=240),
    ),
    run=run,
    tables=(
        Table(
            "How far the estimate is from (20, 10), over data sets 2000 to 2019",
            (
                Column("near", f"estimates within {NEAR} of it", 0, is_count=True),
                Column("distance", "distance to the truth", 2, better="low"),
                Column("chains_near", "chains of 8 within it", 2),
                Column("warned", "runs that warn", 0, is_count=True),
            ),
            note="The estimate is the mean of all eight chains. “Runs that warn” are those whose draws `sample` itself speaks "
            "against (TrustWarning).",
        ),
    ),
    settings=(
        Setting("iterations", "30,000, of which 10,000 burn-in; the first row: 1,000 draws of each chain", "ours"),
        Setting("batch, chains", "100; 8", "ours"),
        Setting("start", "θ ~ N(0, I); the first row goes downhill from random starts of its own", "ours"),
    ),
)
