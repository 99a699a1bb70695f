"""Section 4.2, figure 2: five modes in the plane; NGVI as the baseline, equal processor time for every method."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from langevin.diagnostics import grid_total_variation, mode_shares
from langevin.kernels import Kernel
from langevin.random import Purpose, normal, streams
from langevin.targets import Mixture, mixture
from langevin.targets.analytic import FIVE_MODES
from langevin_paper import ngvi
from langevin_paper.chains import normal_starts, run_chains
from langevin_paper.spec import Column, Experiment, Method, Progress, Results, Scale, Setting, Table

__all__ = ["HALF_WIDTH", "MIXTURE", "NOISY"]

HALF_WIDTH = 6.0  # of the square, which holds all of the target but 1e-8

SHARED: dict[str, Any] = {
    "means": FIVE_MODES,
    "std": 0.5**0.5,
    "gradient_noise": 1.0,
    "temperature": 1.0,
    "start_std": 1.0,
    "seed": 0,
    "kept": 20_000,  # draws of each chain
    "half_width": HALF_WIDTH,
    "bins": 24,  # per axis, for the total variation: half a unit wide, and 20,000 draws fill them
    "grid": 64,  # cells per axis of the density in the figure
    # The speed is measured first: on so many steps, then on `growth` times as many until they take this share of the budget.
    "probe": {"steps": 512, "growth": 4, "share": 0.02},
    "compile": True,
}


def run(method: Method, scale: Scale, seeds: range, folder: Path, progress: Progress) -> Results:
    """Run a cell for the scale's processor seconds, which all seeds share."""
    given = scale.settings
    target = mixture(given["means"], std=given["std"], gradient_noise=given["gradient_noise"])
    runner = _fit if method.sampler == "ngvi" else _sample
    draws, facts = runner(method, target, given, seeds, progress)
    law_temperature = None if method.sampler == "ngvi" else _kernel(method, given).effective_temperature
    results: Results = {}
    for index, seed in enumerate(seeds):
        own = draws[index : index + 1]
        shares = mode_shares(own, target)
        exact = _exact(target, seed, own.shape[1])
        results[seed] = {
            "total_variation": grid_total_variation(own, target, given["half_width"], given["bins"]),
            "floor": grid_total_variation(exact, target, given["half_width"], given["bins"]),
            "smallest_share": float(shares.min()),
            "shares": shares.tolist(),
            "temperature": float((own * target.evaluate(own[0]).gradient).sum(-1).mean()) / 2,
            "law_temperature": law_temperature,
            **facts,
        }
    if 0 in results:
        results[0]["density"] = _histogram(draws[0], given["half_width"], given["grid"])
    return results


def _kernel(method: Method, given: Mapping[str, Any]) -> Kernel:
    return method.kernel(temperature=given["temperature"])


def _sample(
    method: Method, target: Mixture, given: Mapping[str, Any], seeds: range, progress: Progress
) -> tuple[Tensor, dict[str, Any]]:
    """Run chains for about the budget of processor seconds: the speed is measured first, after compiling."""
    budget, probe = given["cpu_seconds"], given["probe"]

    def chains(num_steps: int, progress: Progress, thin: int = 1) -> Tensor:
        return run_chains(
            _kernel(method, given),
            target,
            normal_starts(seeds, 2, seed=given["seed"], std=given["start_std"]),
            chains=seeds,
            seed=given["seed"],
            num_steps=num_steps,
            progress=progress,
            thin=thin,
            compile=given["compile"],
        ).draws

    num_steps, cost = probe["steps"], 0.0
    chains(num_steps, _untold, num_steps)  # compiles
    while cost < probe["share"] * budget:
        num_steps *= probe["growth"]
        start = time.process_time()
        chains(num_steps, _untold, num_steps)
        cost = time.process_time() - start
    num_steps = int(num_steps * budget / cost)
    thin = max(1, num_steps // given["kept"])
    if thin > 16:
        # Compiled steps are taken up to 16 at a time, by a divisor of `thin`: by threes, runs took a quarter longer than trials.
        thin -= thin % 16
        num_steps = thin * given["kept"]
    start = time.process_time()
    draws = chains(num_steps, progress, thin)
    return draws, {"steps": num_steps, "cpu_seconds": time.process_time() - start}


def _untold(share: float) -> None:
    """Take no note of progress."""


def _fit(
    method: Method, target: Mixture, given: Mapping[str, Any], seeds: range, progress: Progress
) -> tuple[Tensor, dict[str, Any]]:
    """Fit NGVI for the budget of processor seconds and draw from the result."""
    own, seed, budget, kept = method.settings, given["seed"], given["cpu_seconds"], given["kept"]
    components, chunk = own["components"], own["steps_at_a_time"]
    state = ngvi.start(seeds, components=components, dim=2, variance=own["variance"], seed=seed)
    shape = len(seeds), own["samples"], components, 2
    at, count, start = streams(Purpose.POSITION, seeds), 0, time.process_time()
    while (spent := time.process_time() - start) < budget:
        steps = range(count, count + chunk)
        noise = normal(seed, at, steps, shape[1] * shape[2] * 2, dtype=torch.float64)
        errors: Iterable[Tensor | None] = [None] * chunk
        if "gradient_noise" in own:
            white = normal(seed, streams(Purpose.GRADIENT, seeds), steps, shape[1] * shape[2] * 2, dtype=torch.float64)
            errors = own["gradient_noise"] * white.reshape(chunk, *shape)
        for row, error in zip(noise, errors, strict=True):
            state = ngvi.step(state, target, row.reshape(shape), rate=own["rate"], error=error)
        count += chunk
        progress(min(1.0, spent / budget))
    cost = time.process_time() - start
    noise = normal(seed, streams(Purpose.SECOND, seeds), 0, kept * components * 2, dtype=torch.float64)
    every = ngvi.draw(state, noise.reshape(len(seeds), kept, components, 2))  # a draw of each component; then one is chosen
    chance = torch.special.ndtr(normal(seed, streams(Purpose.SECOND, seeds), 1, kept, dtype=torch.float64))
    chosen = torch.searchsorted(state.log_weights.exp().cumsum(-1), chance).clamp(max=components - 1)
    draws = every.gather(2, chosen[..., None, None].expand(-1, -1, 1, 2))[:, :, 0]
    return draws, {"steps": count, "cpu_seconds": cost, "guarded": state.guarded}


def _exact(target: Mixture, seed: int, count: int) -> Tensor:
    """Return independent draws of the target, (1, count, 2): what a perfect sampler would have."""
    noise = normal(seed, streams(Purpose.DATA, range(1)), range(count), 3, dtype=torch.float64)[:, 0]
    chosen = torch.searchsorted(target.weights.cumsum(0), torch.special.ndtr(noise[:, 2])).clamp(max=len(target.means) - 1)
    return (target.means[chosen] + target.std * noise[:, :2])[None]


def _histogram(draws: Tensor, half_width: float, grid: int) -> NDArray[np.float32]:
    """Return the density of the draws (n, 2) on the figure's grid, first axis first."""
    edges = np.linspace(-half_width, half_width, grid + 1)
    counts, *_ = np.histogram2d(draws[:, 0].numpy(), draws[:, 1].numpy(), bins=(edges, edges))
    return (counts / len(draws) / (2 * half_width / grid) ** 2).astype(np.float32)


MIXTURE = Experiment(
    name="mixture",
    title="Five modes",
    section="Section 4.2, figure 2",
    about="Five equal Gaussians of variance ½ in the plane. The paper finds that MSGLD and ASGLD explore it better than "
    "natural-gradient "
    "variational inference (NGVI) in the same processor time. NGVI here is written from Lin, Khan and Schmidt (2019), has exact "
    "gradients, and a family that contains the target.",
    methods=(
        Method(
            "ngvi",
            "NGVI",
            "ngvi",
            {"rate": 0.005, "variance": 1.5, "components": 5, "samples": 10, "steps_at_a_time": 100},
            ours=("samples", "steps_at_a_time"),
        ),
        Method("msgld", "MSGLD", "msgld", {"step_size": 0.05, "bias_factor": 10.0, "beta": 0.9}),
        Method(
            "asgld",
            "ASGLD",
            "asgld",
            {"step_size": 0.05, "bias_factor": 1.0, "betas": (0.9, 0.999), "eps_root": 1e-5},
            ours=("eps_root",),
        ),
        Method("sgld", "SGLD", "sgld", {"step_size": 0.05}, ours=("*",), note="not in the paper's figure"),
        Method(
            "msgld-invariant",
            "MSGLD invariant",
            "msgld",
            {"step_size": 0.05, "bias_factor": 10.0, "beta": 0.9, "invariant": True},
            ours=("*",),
            note="the momentum has noise of its own",
        ),
        Method(
            "asgld-invariant",
            "ASGLD invariant",
            "asgld",
            {
                "step_size": 0.05,
                "bias_factor": 1.0,
                "betas": (0.9, 0.999),
                "eps_root": 1e-5,
                "invariant": True,
                "adapt_steps": 10_000,
            },
            ours=("*",),
            note="the momentum has noise of its own; V is frozen after 10,000 steps",
        ),
    ),
    scales=(
        Scale("quick", {**SHARED, "cpu_seconds": 3.0}, num_seeds=5, seconds=12),
        Scale("short", {**SHARED, "cpu_seconds": 60.0}, num_seeds=5, seconds=75),
        Scale("paper", {**SHARED, "cpu_seconds": 360.0}, num_seeds=5, seconds=380, is_paper=True),
    ),
    run=run,
    tables=(
        Table(
            "Distance to the target, after equal processor time",
            (
                Column("total_variation", "total variation", 3, better="low"),
                Column("floor", "of exact draws", 3),
                Column("smallest_share", "smallest mode (of 0.2)", 3),
                Column("temperature", "temperature measured", 2),
                Column("steps", "steps", 0),
                Column("cpu_seconds", "CPU seconds", 1),
            ),
            note=f"Total variation of a histogram of {SHARED['kept']:,} thinned draws, {SHARED['bins']} × {SHARED['bins']} cells "
            f"on [−{HALF_WIDTH:g}, {HALF_WIDTH:g}]²; "
            "“of exact draws” is what as many independent draws of the target score, which no method can beat but by luck. CPU "
            "seconds are those of sampling or fitting, all seeds together, without compiling. The paper gives a figure only. "
            "“Temperature measured” is ½ E[θ·∇U], which is 1 for the target.",
        ),
    ),
    settings=(
        Setting("step size ε", "0.05", "paper"),
        Setting("MSGLD (a, β₁); ASGLD (a, β₁, β₂)", "(10, 0.9); (1, 0.9, 0.999)", "paper"),
        Setting("λ of ASGLD", "1e-5, inside the root", "ours", "not given for this example"),
        Setting("gradient noise", "N(0, I); none for NGVI", "paper"),
        Setting("NGVI start and rate", "weights 1/5, means from N(0, 1.5 I), covariances I; 0.005", "paper"),
        Setting("NGVI samples", "10 draws per component and step, Stein's identity for the Hessian", "ours"),
        Setting("processor time", "360 s per method, shared by its five chains", "paper", "one run each in the paper"),
        Setting("start of the chains", "N(0, I), no burn-in", "ours"),
    ),
)

NGVI: dict[str, Any] = {**MIXTURE.method("ngvi").settings, "gradient_noise": SHARED["gradient_noise"]}

NOISY = Experiment(
    name="mixture-noisy",
    title="Five modes, NGVI with noisy gradients",
    section="Section 4.2, figure 2: the baseline",
    about="NGVI above has exact gradients; its own paper is about stochastic ones. Here its gradients of U have the samplers' "
    "noise N(0, I), and its expectations ten draws of each component a step, or one.",
    methods=(
        Method("ten", "NGVI, noisy gradients, ten draws", "ngvi", NGVI, ours=("*",)),
        Method("one", "NGVI, noisy gradients, one draw", "ngvi", {**NGVI, "samples": 1}, ours=("*",)),
    ),
    scales=MIXTURE.scales,
    run=run,
    tables=MIXTURE.tables,
    settings=(
        *(line for line in MIXTURE.settings if line.name.startswith(("NGVI start", "processor"))),
        Setting("gradient noise", "N(0, I), as for the samplers", "ours", "of NGVI the paper does not say"),
    ),
)
