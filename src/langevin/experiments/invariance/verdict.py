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
        judged = "which is chance" if within else "which is **more than chance**"
        sgld = part[f"{name}/SGLD"]["points"][0]["error"]
        sentences.append(
            f"Law, {name}: over all bias factors the invariant MSGLD is off by at most {100 * invariant['error']:.1f} % "
            f"(a = {invariant['factor']:g}, chance {100 * invariant['chance']:.1f} %), {judged}; worst of the other forms of MSGLD: "
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
    shown = ", ".join(f"{form} {100 * min(values):.1f} to {100 * max(values):.1f} %" for form, values in at.items())
    return [
        f"Integrator: error of E x^2 at step 0.12, over the settings: {shown}. BAOAB is exact on Gaussians, the others are not."
    ]


def _efficiency(part: Part) -> list[str]:
    sentences = []
    for name in dict.fromkeys(unit.split("/")[0] for unit in part):
        values = {
            unit.split("/")[1]: sorted(report["per_1000"] for report in found["reports"] if report["per_1000"] is not None)
            for unit, found in part.items()
            if unit.split("/")[0] == name
        }
        values = {method: found for method, found in values.items() if found}
        new = {method: found for method, found in values.items() if "invariant" in method}
        old = {method: found for method, found in values.items() if "invariant" not in method}
        if not new or not old:
            sentences.append(
                f"Draws per gradient, {name}: only {', '.join(values) or 'no sampler'} had a setting near enough to the target."
            )
            continue
        best, rival = (max(group, key=lambda method, group=group: median(group[method])) for group in (new, old))  # type: ignore[misc]
        ratio = median(new[best]) / median(old[rival])
        if new[best][0] > old[rival][-1]:
            outcome = f"**wins**, {ratio:.1f} times the draws of {rival}"
        elif new[best][-1] < old[rival][0]:
            outcome = f"**loses** to {rival}, which has {1 / ratio:.1f} times its draws"
        else:
            outcome = f"**ties** with {rival} (ratio {ratio:.2f}, the ranges of the seeds overlap)"
        off = [method for method in (best, rival) if (part[f"{name}/{method}"]["pooled"] or {"excess": 1.0})["excess"] > 0.1]
        note = f" ({' and '.join(off)} broke the bound on the law on the fresh seeds)" if off else ""
        sentences.append(f"Draws per gradient, {name}: {best} {outcome}{note}.")
    return sentences


def _ravine(part: Part) -> list[str]:
    shown = ", ".join(
        f"{name} {sum(row[0] for row in found['hits'])} of {len(found['hits'])} ({sum(map(sum, found['hits']))} of "
        f"{sum(map(len, found['hits']))} runs)"
        for name, found in part.items()
    )
    return [f"Ravine, data sets on which the first run finds the truth: {shown}."]
