"""What the records of the bias atlas say in sentences: the aims beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langevin_paper.experiments.minibatch.problems import TITLES
from langevin_paper.figures import View
from langevin_paper.figures.minibatch import kind_of, parts
from langevin_paper.spec import Method

__all__ = ["atlas_findings"]

Rung = Mapping[str, Any]
Found = Mapping[str, Mapping[str, Any]]  # of one problem and batch size, by method


def atlas_findings(view: View) -> list[str]:
    """Return sentences."""
    found = parts(view)
    if not found:
        return []
    methods = {method.name: method for method in view.experiment.methods}
    logistic = {key: own for key, own in found.items() if key[0].startswith("logistic")}
    return [
        *(_one_draw(_title(key), own, methods) for key, own in logistic.items()),
        *(_small_batches(_title(key), own, methods) for key, own in logistic.items() if key[1] == "10"),
        *(_centred(_title(key), own, methods) for key, own in logistic.items()),
        *(_others(_title(key), own, methods) for key, own in found.items() if key not in logistic and key[0] != "network"),
        *(_network(_title(key), own, methods) for key, own in found.items() if key[0] == "network"),
        "How the true moments are known. "
        + "; ".join(f"{TITLES[name]}: {text}" for name, text in _references(found).items())
        + ".",
    ]


def _title(key: tuple[str, str]) -> str:
    return f"{TITLES[key[0]]}, n = {key[1]}"


def _references(found: Mapping[tuple[str, str], Found]) -> dict[str, str]:
    return {name: next(iter(own.values()))["reference"] for (name, _), own in found.items()}


def _best(own: Found, methods: Mapping[str, Method], *kinds: str) -> tuple[str, Rung] | None:
    """Return the label and setting with the most draws among methods that do this about the noise."""
    near = [
        (methods[name].label, result["best"])
        for name, result in own.items()
        if kind_of(methods[name]) in kinds and result["best"] and result["best"]["draws"] is not None
    ]
    return max(near, key=lambda pair: pair[1]["draws"], default=None)


def _said(label: str, rung: Rung) -> str:
    if rung.get("is_slow") and rung["law_worst"] is not None:
        return f"{label} {rung['draws']:.3g} draws per epoch and a worst variance off by {rung['law_worst']:.2g} %, both by its law"
    law = f" (by its law {rung['law_draws']:.3g})" if rung["law_draws"] and rung["law_draws"] != rung["draws"] else ""
    chance = f" (chance {rung['worst_chance']:.1f} %)" if rung["worst_chance"] else ""
    return f"{label} {rung['draws']:.3g} draws per epoch{law}, worst variance off by {rung['worst']:.2g} %{chance}"


def _one_draw(title: str, own: Found, methods: Mapping[str, Method]) -> str:
    rungs = {methods[name].label: result["best"] for name, result in own.items() if kind_of(methods[name]) == "corrected"}
    shown = "; ".join(_said(label, rung) if rung else f"{label}: no setting near enough" for label, rung in rungs.items())
    enough = [rung for rung in rungs.values() if rung and rung["draws"] >= 0.7]
    within, perhaps = any(rung["worst"] <= 5 for rung in enough), any(rung["excess"] <= 5 for rung in enough)
    rival = _best(own, methods, "uncorrected")
    beside = f" The most of an uncorrected sampler within the bound: {_said(*rival)}." if rival else " No uncorrected one was near."
    verdict = "reached" if within else "reached but for chance" if perhaps else "not reached"
    return f"{title}: aim 0.7 draws per epoch, every variance within 5 %, without control variates: {verdict}. {shown}.{beside}"


def _small_batches(title: str, own: Found, methods: Mapping[str, Method]) -> str:
    def mean_of(name: str, rung: str) -> str | None:
        found = own.get(name, {}).get("rungs", {}).get(rung)
        if found is None:
            return None
        label = methods[name].label
        return (
            f"{label} unstable" if found["mean"] is None else f"{label} {found['mean']:.3g} % (chance {found['mean_chance']:.1f} %)"
        )

    corrected = [mean_of(name, rung) for name, rung in (("full", "0.5"), ("nasgld", "found"), ("default", "found"))]
    centred = [mean_of(name, rung) for name, rung in (("full-centred", "0.05"), ("default-centred", "found"))]
    free = [mean_of(name, "0.5") for name in ("sgld-white", "msgld-white", "diagonal")]
    text = "; ".join(", ".join(filter(None, part)) for part in (free, corrected, centred))
    return (
        f"{title}: aim a mean variance error of 2 % at most where uncorrected it is 500 %; at half the largest stable step: {text}."
    )


def _centred(title: str, own: Found, methods: Mapping[str, Method]) -> str:
    best, rival = _best(own, methods, "both"), _best(own, methods, "uncorrected")
    aim = f"{title}: aim 20 times the draws of any uncorrected method within 10 %, with control variates, per single-datum gradient"
    if not best or not rival:
        return f"{aim}: nothing to compare."
    return f"{aim}: {best[1]['draws'] / rival[1]['draws']:.3g} times. {_said(*best)}; {_said(*rival)}."


def _others(title: str, own: Found, methods: Mapping[str, Method]) -> str:
    pairs = [_best(own, methods, kind) for kind in ("uncorrected", "diagonal", "corrected", "both")]
    return f"{title}: {'; '.join(_said(*pair) for pair in pairs if pair)}."


def _network(title: str, own: Found, methods: Mapping[str, Method]) -> str:
    """Say what each form does to the variances of predictions, step by step."""

    def told(rung: Rung) -> str:
        if rung["worst"] is None:
            return "unstable"
        return f"{rung['least']:+.0f} to {rung['most']:+.0f} % (chance {rung['worst_chance']:.0f} %), {rung['draws']:.2g} draws"

    names = ("msgld-white", "diagonal", "full", "nasgld", "default", "msgld-centred", "full-centred", "default-centred")
    ladders = [
        f"{methods[name].label}: {', '.join(f'{step} {told(rung)}' for step, rung in own[name]['rungs'].items())}"
        for name in names
        if name in own
    ]
    return f"{title}: errors of the variances of predictions, and draws per epoch, by step. {'; '.join(ladders)}."
