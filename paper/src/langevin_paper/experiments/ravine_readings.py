"""Table 1 by readings of what the paper leaves open: the scale of the energy, the temperature, the decay, prior, start, batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.kernels import Kernel
from langevin.kernels.samplers import SAMPLERS
from langevin.kernels.schedules import constant, step_decay
from langevin_paper.batched import mean_positions
from langevin_paper.chains import normal_starts
from langevin_paper.experiments import ravine
from langevin_paper.experiments.ravine import NEAR, RAVINE, TRUTH, near_share, stacked_data, target_of
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["RAVINE_READINGS", "kernel_of"]

ROWS = ("sgld", "sghmc", "psgld", "asgld", "msgld")
STATED = {name: {"sampler": RAVINE.method(name).sampler, **RAVINE.method(name).settings} for name in ROWS}
"""Table 5 of the appendix."""


def kernel_of(stated: Mapping[str, Any], reading: Mapping[str, Any]) -> Kernel:
    """Make a sampler with the stated settings on c U, as one on U that takes the same steps.

    With gradients c g, ε g becomes (ε c) g and the noise sqrt(2 ε τ) is that of ε c at temperature τ / c; ASGLD's m / sqrt(V + λ)
    is the same for c g but for λ, so a becomes a / c; pSGLD's V is of c g.
    """
    own = dict(stated)
    sampler, scale = own.pop("sampler"), reading["energy_factor"]
    epsilon = own.pop("step_size") * scale * reading["step_factor"]
    decay = reading["decay"]
    own["step_size"] = constant(epsilon) if decay is None else step_decay(epsilon, factor=decay["factor"], every=decay["every"])
    if sampler == "asgld":
        own |= {"bias_factor": own["bias_factor"] / scale, "eps_root": own["eps_root"] / scale**2}
    if sampler == "psgld":
        own["num_data"] = 1 / scale
    return SAMPLERS[sampler](**own, temperature=reading["temperature"] / scale)


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell: all five samplers by one reading; seed s is data set s with chain s."""
    given, reading = scale.settings, _scaled(method.settings, scale.settings)
    centre = torch.tensor(given["truth"] if reading["start_at_truth"] else (0.0, 0.0), dtype=torch.float64)
    starts = centre + normal_starts(seeds, 2, seed=given["seed"], std=reading["start_std"])
    results: Results = {seed: {} for seed in seeds}
    for number, (name, stated) in enumerate(given["stated"].items()):

        def told(share: float, number: int = number) -> None:
            progress((number + share) / len(given["stated"]))

        means = mean_positions(
            [kernel_of(stated, reading)], target_of({**given, "prior_std": reading["prior_std"]}), starts,
            stacked_data(seeds, given), chains=seeds, num_steps=given["num_steps"], warmup=given["warmup"],
            batch_size=given["batch_size"], seed=given["seed"], progress=told, replace=reading["replacement"],
        )[0]  # fmt: skip
        for seed, mean in zip(seeds, means, strict=True):
            results[seed][name] = _found(mean, given)
    return results


def _scaled(reading: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reading with its decay shrunk to the length of the run."""
    made = dict(reading)
    if made["decay"] is not None:
        share = given["num_steps"] / given["stated_for"]
        made["decay"] = {**made["decay"], "every": max(1, round(made["decay"]["every"] * share))}
    return made


def _found(mean: Tensor, given: Mapping[str, Any]) -> dict[str, Any]:
    first, second = mean.tolist()
    distance = math.dist((first, second), given["truth"])
    if not math.isfinite(distance):
        return {"theta_1": None, "theta_2": None, "distance": None, "near": 0.0}
    return {"theta_1": first, "theta_2": second, "distance": distance, "near": float(distance < given["near"])}


LITERAL: dict[str, Any] = {
    "energy_factor": 1.0,  # what U, prior included, is multiplied by
    "step_factor": 1.0,  # what the stated ε is multiplied by, the noise with it
    "temperature": ravine.SHARED["temperature"],
    "decay": None,
    "prior_std": ravine.SHARED["prior_std"],
    "start_std": ravine.SHARED["start_std"],
    "start_at_truth": False,
    "replacement": False,
}
HALVED = {"factor": 0.5, "every": 3_000}  # ten times in the run, as for Landsat
OFTEN = {"factor": 0.5, "every": 1_000}
TENTHS = {"factor": 0.1, "every": 10_000}
SHARE = 0.01  # of U that is the sum over a batch
MEAN = 1e-4  # of U that is the mean over the data


def _reading(name: str, label: str, **settings: Any) -> Method:
    return Method(name, label, "five samplers", {**LITERAL, **settings}, ours=("*",))


READINGS = (
    _reading("literal", "to the letter: U, τ = 1, ε constant, start N(0, I)"),
    _reading("cold", "τ = 0.01, as for Landsat", temperature=0.01),
    _reading("no-noise", "τ = 0", temperature=0.0),
    _reading("halved", "ε halved every 30 of 300 epochs", decay=HALVED),
    _reading("halved-often", "ε halved every 10 epochs", decay=OFTEN),
    _reading("tenths", "ε a tenth after every third of the run", decay=TENTHS),
    _reading("halved-cold", "halved every 30 epochs, τ = 0.01", decay=HALVED, temperature=0.01),
    _reading("half-step", "ε / 2 (Welling and Teh)", step_factor=0.5),
    _reading("half-step-halved", "ε / 2, halved every 30 epochs", step_factor=0.5, decay=HALVED),
    _reading("squares", "sum of squares without the ½: 2 U", energy_factor=2.0),
    _reading("squares-halved", "2 U, halved every 30 epochs", energy_factor=2.0, decay=HALVED),
    _reading("squares-tenths", "2 U, a tenth after every third", energy_factor=2.0, decay=TENTHS),
    _reading("batch-sum", "sum over the batch: n / N of U", energy_factor=SHARE),
    _reading("batch-sum-cold", "n / N of U, τ = 0.01: the law of U", energy_factor=SHARE, temperature=SHARE),
    _reading("batch-sum-prior", "sum over the batch, prior whole", energy_factor=SHARE, prior_std=SHARE**0.5),
    _reading("tenth", "a tenth of U (no text says so)", energy_factor=0.1),
    _reading("tenth-halved", "a tenth of U, halved every 30 epochs", energy_factor=0.1, decay=HALVED),
    _reading("third", "0.3 U (no text says so)", energy_factor=0.3),
    _reading("third-halved", "0.3 U, halved every 30 epochs", energy_factor=0.3, decay=HALVED),
    _reading("mean", "mean loss: U / N", energy_factor=MEAN),
    _reading("mean-cold", "U / N, τ = 1 / N: the law of U", energy_factor=MEAN, temperature=MEAN),
    _reading("flat", "no prior", prior_std=1e6),
    _reading("flat-halved", "no prior, halved every 30 epochs", prior_std=1e6, decay=HALVED),
    _reading("zero", "start at 0", start_std=0.0),
    _reading("wide", "start N(0, 100 I)", start_std=10.0),
    _reading("wide-halved", "start N(0, 100 I), halved every 30 epochs", start_std=10.0, decay=HALVED),
    _reading("truth", "start at the truth: can a run stay there?", start_std=0.0, start_at_truth=True),
    _reading("replacement", "batches drawn with replacement", replacement=True),
    _reading("replacement-halved", "with replacement, halved every 30 epochs", replacement=True, decay=HALVED),
)

SHARED: dict[str, Any] = {
    **{name: value for name, value in ravine.SHARED.items() if name not in LITERAL},
    "stated": STATED,
    "stated_for": 30_000,  # steps: decays shrink with the run
}

RAVINE_READINGS = Experiment(
    name="ravine-readings",
    title="Long narrow ravines, by other readings",
    section="Section 4.3, table 1",
    about="The appendix's settings of all five methods, by readings of what the paper leaves open. In the paper the truth "
    f"{TRUTH} is found by MSGLD in five runs of five, by ASGLD in three (four in its text), by the others never. A reading that "
    "explains table 1 would have these counts in its row.",
    methods=READINGS,
    scales=(
        Scale("quick", {**SHARED, "num_steps": 600, "warmup": 200}, num_seeds=5, seconds=3),
        Scale("short", {**SHARED, "num_steps": 10_000, "warmup": 3_000}, num_seeds=5, seconds=12),
        Scale("paper", {**SHARED, "num_steps": 30_000, "warmup": 10_000}, num_seeds=5, seconds=25, is_paper=True),
    ),
    run=run,
    tables=(
        Table(
            f"Runs within {NEAR} of the truth, on data sets 0 to 4",
            tuple(
                Column(
                    f"{name}/near",
                    RAVINE.method(name).label,
                    0,
                    {reading.name: near_share(name) for reading in READINGS},
                    is_count=True,
                )
                for name in ROWS
            ),
            note="Beside each count stands the paper's, from its table 1; its data sets are not known.",
        ),
    ),
    settings=(
        Setting("ε, β, a, λ", "table “ravinetab” of the appendix, in every row", "paper"),
        Setting("iterations, batch", "30,000, of which 10,000 burn-in; 100", "paper"),
        Setting("batches", "every datum once per epoch, unless the row says otherwise", "ours", "not given"),
        Setting(
            "a factor c of U",
            "run as the same steps on U: ε c, τ / c, a / c for ASGLD, V of c g for pSGLD",
            "ours",
            "the prior has the factor too, unless the row says that it is whole",
        ),
    ),
)
