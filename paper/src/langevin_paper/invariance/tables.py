"""The tables of the page, in Markdown, from saved results."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

__all__ = ["FLOOR", "efficiency", "integrator", "law_errors", "law_plans", "law_shares", "ravine"]

Part = dict[str, Any]
FLOOR = 3  # independent draws per chain below which an effective sample size is mostly that of the starts


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _names(part: Part, place: int) -> list[str]:
    """Return the problems (place 0) or the forms (1) of a part, in order."""
    return list(dict.fromkeys(unit.split("/")[place] for unit in part))


def law_errors(part: Part) -> str:
    """Return the errors at the fixed step, by problem and form, against the bias factor."""
    return _by_factor(part, _names(part, 0), "error", "chance")


def law_shares(part: Part) -> str | None:
    """Return the same for the mode shares of the mixture."""
    return _by_factor(part, ["mixture"], "shares", "shares_chance") if "mixture" in _names(part, 0) else None


def _by_factor(part: Part, problems: list[str], what: str, chance: str) -> str:
    forms = _names(part, 1)
    factors = sorted({point["factor"] for point in part[f"{problems[0]}/{forms[-1]}"]["points"]})
    rows = []
    for name in problems:
        if len(problems) > 1:
            rows.append([f"**{name}**", *("" for _ in factors)])
        step = part[f"{name}/SGLD"]["points"][0]["step"]
        for form in forms:
            at = {point["factor"]: point for point in part[f"{name}/{form}"]["points"] if point["step"] == step}
            points = [at[0.0 if form == "SGLD" else factor] for factor in factors]
            cells = ["unstable" if p[what] is None else f"{100 * p[what]:.1f} ({100 * p[chance]:.1f})" for p in points]
            rows.append([form, *cells])
    return _table(["", *(f"a = {factor:g}" for factor in factors)], rows)


def law_plans(part: Part) -> str:
    """Return how much was run on each problem, and what it was compared with."""
    rows = []
    for name in _names(part, 0):
        found = part[f"{name}/SGLD"]
        plan, seconds = found["plan"], sum(part[f"{name}/{form}"]["run"]["seconds"] for form in _names(part, 1))
        steps = f"{plan['num_steps']:,} ({plan['warmup']:,})"
        numbers = [f"{plan['num_chains']}", steps, f"{found['points'][0]['step']:g}", f"{plan['curvature']:.3g}"]
        rows.append([name, *numbers, plan["reference"], f"{seconds:.0f}"])
    return _table(["", "chains", "steps", "eps k", "k", "true moments", "seconds"], rows)


def integrator(part: Part) -> str:
    """Return the errors of the three forms, by setting and step size."""
    rows = [
        [
            setting,
            f"{point['step']:g}",
            point["form"],
            f"{point['value']:.4f}",
            f"{100 * point['bias']:+.2f} ± {100 * point['spread']:.2f}",
            "unstable" if point["gaussian"] is None else f"{100 * round(point['gaussian'], 12):+.2f}",
        ]
        for setting, found in part.items()
        for point in found["points"]
    ]
    return _table(["setting", "eps", "form", "E x²", "error, %", "error on the Gaussian, %"], rows)


def efficiency(part: Part) -> str:
    """Return what each sampler reached on fresh seeds, with which setting."""
    head = ["", "per 1000 gradients", "error, % (chance)", "worst axis beyond 2 s.e., %", "eps k", "a", "beta"]
    rows = []
    for unit, found in part.items():
        name, method = unit.split("/")
        if method == "SGLD":
            rows.append([f"**{name}**", *("" for _ in range(9))])
        chosen, plan, pooled = found["chosen"], found["plan"], found["pooled"]
        last = [f"{found['num_near']} of {plan['budget']}", f"{found['num_refused']}", f"{found['run']['seconds']:.0f}"]
        if chosen is None:
            rows.append([method, "none near enough", *("" for _ in range(5)), *last])
            continue
        law = ["", ""]
        if pooled is not None:
            law = [f"{100 * pooled['error']:.1f} ({100 * pooled['chance']:.1f})", f"{100 * max(0.0, pooled['excess']):.1f}"]
        setting = [
            f"{chosen['step_size'] * plan['curvature']:.2g}",
            *(f"{chosen[key]:.3g}" if chosen[key] else "" for key in ("factor", "beta")),
        ]
        rows.append([method, _draws(found["reports"], FLOOR * plan["num_chains"]), *law, *setting, *last])
    return _table([*head, "near of tried", "refused", "seconds"], rows)


def _draws(reports: list[dict[str, Any]], floor: float) -> str:
    good = [report for report in reports if report["per_1000"] is not None]
    broken = f"unstable on {len(reports) - len(good)} of {len(reports)} seeds" if len(good) < len(reports) else ""
    if not good:
        return broken
    values = [report["per_1000"] for report in good]
    mark = "<" if median(report["ess"] for report in good) < floor else ""
    return f"{mark}{median(values):.3g} [{min(values):.3g}, {max(values):.3g}] {broken}".strip()


def ravine(part: Part) -> str:
    """Return how many runs found the truth, and the averages of those on the first five data sets."""
    rows = [
        [
            name,
            f"{sum(found['hits'][:5])} of 5",
            f"{sum(found['hits'])} of {len(found['hits'])}",
            *("blew up" if mean is None else f"{mean[0]:.2f}, {mean[1]:.2f}" for mean in found["averages"][:5]),
            f"{found['plan']['warmup']:,}",
            f"{found['run']['seconds']:.0f}",
        ]
        for name, found in part.items()
    ]
    first = next(iter(part.values()))["plan"]["data"]
    return _table(["", "first five", "all", *(f"data {first + k}" for k in range(5)), "warm-up", "seconds"], rows)
