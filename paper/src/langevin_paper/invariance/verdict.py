"""The study's last section: where the invariant form wins and where it does not, sentence by sentence from the numbers."""

from __future__ import annotations

from statistics import median
from typing import Any

__all__ = ["verdict"]

Part = dict[str, Any]


def verdict(parts: dict[str, Part]) -> list[str]:
    """Return the sentences, of whatever parts there are."""
    makers = {"law": _law, "integrator": _integrator, "efficiency": _efficiency, "ravine": _ravine}
    return [sentence for part, sentences in makers.items() if part in parts for sentence in sentences(parts[part])]


def _law(part: Part) -> list[str]:
    sentences = []
    for name in dict.fromkeys(unit.split("/")[0] for unit in part):
        step = part[f"{name}/SGLD"]["points"][0]["step"]
        worst = {}
        for form in ("MSGLD published", "MSGLD corrected", "MSGLD annealed", "MSGLD invariant", "ASGLD invariant"):
            points = [p for p in part[f"{name}/{form}"]["points"] if p["step"] == step and p["error"] is not None]
            worst[form] = max(points, key=lambda point: point["error"]) if points else None
        invariant = worst["MSGLD invariant"]
        if invariant is None:
            sentences.append(f"Law, {name}: the invariant MSGLD is unstable for every bias factor at this step.")
            continue
        within = invariant["error"] <= 3 * invariant["chance"]
        others = ", ".join(
            f"{form.split()[1]} {100 * point['error']:.0f} % (a = {point['factor']:g})"
            for form, point in worst.items()
            if point is not None and form.startswith("MSGLD") and form != "MSGLD invariant"
        )
        judged = "within three times chance" if within else "**more than chance**"
        sgld = part[f"{name}/SGLD"]["points"][0]["error"]
        sentences.append(
            f"Law, {name}: over all bias factors the invariant MSGLD is off by at most {100 * invariant['error']:.1f} % "
            f"(a = {invariant['factor']:g}, chance {100 * invariant['chance']:.1f} %), {judged}; worst of its other forms: "
            f"{others}; SGLD {100 * sgld:.1f} %."
        )
    return sentences


def _integrator(part: Part) -> list[str]:
    at = {
        form: [
            abs(point["bias"])
            for found in part.values()
            for point in found["points"]
            if point["form"] == form and point["step"] == 0.12
        ]
        for form in ("SGLD", "simple", "BAOAB")
    }
    ends = {form: dict.fromkeys(f"{100 * value:.1f}" for value in (min(values), max(values))) for form, values in at.items()}
    shown = ", ".join(f"{form} {' to '.join(values)} %" for form, values in ends.items())
    return [f"Integrator: error of E x² at step 0.12, over the settings: {shown}. BAOAB is exact on Gaussians, the others are not."]


def _efficiency(part: Part) -> list[str]:
    return [_race(name, part) for name in dict.fromkeys(unit.split("/")[0] for unit in part)]


def _race(name: str, part: Part) -> str:
    """Compare the best invariant form with the best other sampler on one problem."""
    found = {unit.split("/")[1]: result for unit, result in part.items() if unit.split("/")[0] == name}
    values = {method: [r["per_1000"] for r in result["reports"] if r["per_1000"] is not None] for method, result in found.items()}
    ranked = sorted((method for method in values if values[method]), key=lambda method: -median(values[method]))
    best = next((method for method in ranked if "invariant" in method), None)
    rival = next((method for method in ranked if "invariant" not in method), None)
    none = [method for method in values if not values[method]]
    missing = f" No setting of {_list(none)} was near enough to the target." if none else ""
    if best is None or rival is None:
        return f"Draws per gradient, {name}: only {_list(ranked) or 'none'} had a setting near enough to the target.{missing}"
    ratio = median(values[best]) / median(values[rival])
    if min(values[best]) > max(values[rival]):
        outcome = f"**wins**: {ratio:.1f} times the draws of {rival}"
    elif max(values[best]) < min(values[rival]):
        outcome = f"**loses**: {rival} has {1 / ratio:.2f} times its draws"
    else:
        outcome = f"**ties** with {rival}: {ratio:.2f} times its draws, and the ranges of the seeds overlap"
    notes = [note for method in (best, rival) for note in _blemishes(method, found[method])]
    order = ", ".join(f"{method} {median(values[method]):.3g}" for method in ranked)
    return f"Draws per gradient, {name}: {best} {outcome}{''.join(f'; {note}' for note in notes)}. Per 1000: {order}.{missing}"


def _blemishes(method: str, result: dict[str, Any]) -> list[str]:
    """Say what fresh seeds speak against a setting."""
    broken = sum(report["per_1000"] is None for report in result["reports"])
    if broken:
        return [f"{method} blew up on {broken} of {len(result['reports'])} fresh seeds"]
    if result["pooled"]["excess"] > result["plan"]["bound"]:
        return [f"{method} broke the bound on its law on the fresh seeds"]
    return []


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ravine(part: Part) -> list[str]:
    shown = ", ".join(
        f"{name} {sum(found['hits'][:5])} of 5 ({sum(found['hits'])} of {len(found['hits'])})" for name, found in part.items()
    )
    return [f"Ravine, data sets on which a run finds the truth, the first five (all): {shown}."]
