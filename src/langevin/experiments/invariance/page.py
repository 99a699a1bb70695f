"""The page of the study, made from `results.json` alone: every number in it is read from there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from langevin.experiments.invariance.figures import draw_efficiency, draw_integrator, draw_law
from langevin.experiments.invariance.verdict import verdict

__all__ = ["write_page"]

Part = dict[str, Any]


def write_page(folder: Path) -> Path:
    """Write `README.md` and its figures beside the results in a folder; return the page's path."""
    found = json.loads((folder / "results.json").read_text())
    parts = found["parts"]
    sections = [_head(found), *(_SECTIONS[part](parts[part], folder) for part in _SECTIONS if part in parts), verdict(parts)]
    page = folder / "README.md"
    page.write_text("\n\n".join(section for section in sections if section) + "\n")
    return page


def _head(found: dict[str, Any]) -> str:
    runs = [unit["run"] for part in found["parts"].values() for unit in part.values()]
    packages = ", ".join(f"{name} {version}" for name, version in runs[-1]["packages"].items())
    commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
    seconds = sum(run["seconds"] for run in runs)
    warning = "\n\n**A quick run: it shows that everything works, its numbers mean nothing.**" if found["quick"] else ""
    return f"""# Which law do adaptive drifts sample, and at what price?{warning}

Made by `python -m langevin.experiments.invariance` (`make study`) from `results.json`, and from nothing else. {len(runs)} runs, {seconds:.0f} seconds
of one core each in all, at a load of {min(run["load"] for run in runs):g} to {max(run["load"] for run in runs):g} on {runs[-1]["cores"]} cores. {runs[-1]["date"]}, Python {runs[-1]["python"]}, {packages}; commit {commits}.

The published MSGLD and ASGLD add a bias `a A_t` to the drift and no noise for it: their law is colder than the posterior. The invariant forms
give the momentum noise of its own (`langevin.kernels.Invariant`). Every random number has an address, so the same command gives the same
numbers. All chains start at draws of the target: what is measured is where a sampler goes from there, not how it gets there."""


def _law(part: Part, folder: Path) -> str:
    draw_law(part, folder / "law_factor.png", factor=None)
    draw_law(part, folder / "law_step.png", factor=10.0)
    problems = list(dict.fromkeys(unit.split("/")[0] for unit in part))
    forms = list(dict.fromkeys(unit.split("/")[1] for unit in part))
    plans = "\n".join(
        f"| {name} | {plan['num_chains']} | {plan['num_steps']:,} ({plan['warmup']:,}) | {plan['curvature']:.3g} | {plan['reference']} | {seconds:.0f} |"
        for name in problems
        for plan in [part[f"{name}/{forms[0]}"]["plan"]]
        for seconds in [sum(part[f"{name}/{form}"]["run"]["seconds"] for form in forms)]
    )
    factors = sorted({point["factor"] for point in part[f"{problems[0]}/{forms[-1]}"]["points"]})
    text = f"""## 1. The law

Error: second moments about the true mean, along the principal axes of the true covariance, relative to the true variances; the mean over
the axes of |moment / variance - 1|. Chance: what that would be without bias, from the spread over independent chains (grey: twice that).
Every form takes exact gradients but on the logistic regression: there the noise of the minibatches heats all of them, the more the larger
eps (1 + a) is, and no form corrects for it. Corrected: the published form with noise of temperature 1 + a. Annealed: a_t = a (1 + t/10)^-0.75. Seed {next(iter(part.values()))["run"]["seed"]}, beta 0.9, betas (0.9, 0.999).

![error against the bias factor](law_factor.png)

![error against the step size](law_step.png)

Error (chance) in percent at the step of the first figure, for each bias factor; "unstable" where a chain blew up.

{_table(["", *(f"a = {a:g}" for a in factors)], _law_rows(part, problems, forms, factors, "error"))}

Each setting of each problem: chains, steps (of them warm-up), the curvature k that step sizes are multiplied by, the reference.

| | chains | steps | k | reference | seconds |
| --- | --- | --- | --- | --- | --- |
{plans}
"""
    if "mixture" in problems:
        text += f"""
Mode shares of the mixture, total variation distance from those of exact draws (chance) in percent:

{_table(["", *(f"a = {a:g}" for a in factors)], _law_rows(part, ["mixture"], forms, factors, "shares"))}"""
    return text


def _law_rows(part: Part, problems: list[str], forms: list[str], factors: list[float], what: str) -> Iterable[list[str]]:
    for name in problems:
        if len(problems) > 1:
            yield [f"**{name}**", *("" for _ in factors)]
        step = part[f"{name}/{forms[0]}"]["points"][0]["step"]
        for form in forms:
            at = {point["factor"]: point for point in part[f"{name}/{form}"]["points"] if point["step"] == step}
            if form == "SGLD":
                at = dict.fromkeys(factors, at[0.0])
            yield [form, *(_cell(at[a], what) for a in factors)]


def _cell(point: dict[str, Any], what: str) -> str:
    if point["error"] is None:
        return "unstable"
    return f"{100 * point[what]:.1f} ({100 * point['chance' if what == 'error' else 'shares_chance']:.1f})"


def _integrator(part: Part, folder: Path) -> str:
    draw_integrator(part, folder / "integrator.png")
    first = next(iter(part.values()))
    rows = (
        [
            setting, f"{point['step']:g}", point["form"], f"{point['value']:.4f}", f"{100 * point['bias']:+.2f} ± {100 * point['spread']:.2f}",
            "unstable" if point["gaussian"] is None else f"{100 * point['gaussian']:+.2f}",
        ]
        for setting, found in part.items()
        for point in found["points"]
    )  # fmt: skip
    return f"""## 2. The integrator

The same invariant law by two integrators, and SGLD, one gradient per step each. "Simple" is
`m' = beta m + (1 - beta)(g + sqrt(2 tau / (a eps)) xi)`, `theta' = theta - eps (g + a m') + sqrt(2 eps tau) eta`; BAOAB is the library's. E x^2 under
`U = log cosh 3x + x^2 / 4`, whose true value is {first["truth"]:.4f} (quadrature), measured on {first["plan"]["num_chains"]:,} chains of {first["plan"]["num_steps"]:,} steps (a tenth of
them warm-up), seed {first["run"]["seed"]}, ± one standard error; and the variance on a Gaussian of the same curvature, 9.5, by the discrete Lyapunov equation
(no noise, zero is exact). {sum(found["run"]["seconds"] for found in part.values()):.0f} seconds.

![error against the step size](integrator.png)

{_table(["setting", "eps", "form", "E x^2", "error, %", "error on the Gaussian, %"], rows)}"""


def _efficiency(part: Part, folder: Path) -> str:
    draw_efficiency(part, folder / "efficiency.png")
    first = next(iter(part.values()))
    plan = first["plan"]
    return f"""## 3. Independent draws per gradient

Effective sample size (ArviZ, bulk), the least over coordinates and their squares, per 1000 gradients after the warm-up. Every sampler has
{plan["budget"]} random settings, from the same evenly spread random numbers: the step size a share of the largest stable one on a Gaussian of the problem's
curvature, log-uniform in [1 %, 100 %] (logistic: [0.01 %, 100 %], for there the noise of the minibatches sets the limit); beta of 0.8, 0.9, 0.95, 0.99 (of V in pSGLD: 0.9, 0.99, 0.999); a bias factor log-uniform over four decades. {plan["num_chains"]} chains,
{plan["warmup"]:,} steps of warm-up; the scales of ASGLD and AdaMax are learnt there and frozen. A setting is near enough when along no axis the second
moment is off by more than {100 * plan["bound"]:.0f} % and two standard errors. The best of those (search seed {first["run"]["seed"]}) must be near enough again with
{plan["confirm_chains"]} chains of another seed, else the next best is taken. Reported: {plan["num_seeds"]} further seeds, median [least, most], and the law of all their
chains together. Below {3 * plan["num_chains"]} independent draws in a run the number is an upper bound, for the chains' independent starts count as well: marked <.

![independent draws per 1000 gradients](efficiency.png)

{_table(["", "per 1000 gradients", "error, % (chance)", "worst axis beyond 2 s.e., %", "step size × k", "a", "beta", "near of tried", "refused", "seconds"], _efficiency_rows(part))}"""


def _efficiency_rows(part: Part) -> Iterable[list[str]]:
    for unit, found in part.items():
        name, method = unit.split("/")
        if method == "SGLD":
            yield [f"**{name}**", *("" for _ in range(9))]
        chosen, plan, seconds = found["chosen"], found["plan"], f"{found['run']['seconds']:.0f}"
        near = f"{found['num_near']} of {plan['budget']}"
        if chosen is None:
            yield [method, "none near enough", "", "", "", "", "", near, f"{found['num_refused']}", seconds]
            continue
        good = [report for report in found["reports"] if report["per_1000"] is not None]
        broken = len(found["reports"]) - len(good)
        values = [report["per_1000"] for report in good]
        mark = "<" if good and median(report["ess"] for report in good) < 3 * plan["num_chains"] else ""
        shown = f"{mark}{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]" if good else ""
        if broken:
            shown += f" unstable on {broken} seeds"
        pooled = found["pooled"]
        law = ["", ""] if pooled is None else [f"{100 * pooled['error']:.1f} ({100 * pooled['chance']:.1f})", f"{100 * pooled['excess']:.1f}"]
        yield [
            method, shown, *law, f"{chosen['step_size'] * plan['curvature']:.2g}", f"{chosen['factor']:.3g}" if chosen["factor"] else "",
            f"{chosen['beta']:g}" if chosen["beta"] else "", near, f"{found['num_refused']}", seconds,
        ]  # fmt: skip


def _ravine(part: Part, folder: Path) -> str:
    first = next(iter(part.values()))
    plan, number = first["plan"], len(first["hits"])
    rows = [
        [
            name, f"{sum(row[0] for row in found['hits'])} of {number}", f"{sum(map(sum, found['hits']))} of {sum(map(len, found['hits']))}",
            *(f"{sum(row)}" for row in found["hits"]), f"{found['plan']['warmup']:,}", f"{found['run']['seconds']:.0f}",
        ]
        for name, found in part.items()
    ]  # fmt: skip
    return f"""## 4. The ravine

The regression of section 4.3 on {number} data sets, {len(first["hits"][0])} starts from N(0, I) on each, runs of {plan["num_steps"]:,} iterations, batch {plan["batch_size"]}, seed {first["run"]["seed"]}. A run counts when
its average after the warm-up is within 0.3 of the truth (20, 10) in both elements. The settings were chosen on other data sets
(`ravine.py` has them and says how; "ASGLD invariant, cycles" had a larger search than the others). "First": one run per data set, the first.

{_table(["", "first", "all runs", *(f"data {k}" for k in range(number)), "warm-up", "seconds"], rows)}"""


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


_SECTIONS = {"law": _law, "integrator": _integrator, "efficiency": _efficiency, "ravine": _ravine}
