"""What records say in a sentence, number by number: where the invariant form wins, and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isnan
from statistics import mean, median
from typing import Any

from langevin_paper.atlas_findings import atlas_findings
from langevin_paper.experiments.invariant.problems import TITLES
from langevin_paper.experiments.tables import PUBLISHED
from langevin_paper.figures import View
from langevin_paper.paper_findings import landsat_reading_findings, ranking_findings, ravine_reading_findings

__all__ = ["FINDINGS"]

Results = list[Mapping[str, Any]]  # of one method, seed by seed


def _law(view: View) -> list[str]:
    found = {label: results[0] for label, results in view.by_label().items()}
    sentences = []
    for name in TITLES:
        worst = {label: _worst(results[name]["factors"]) for label, results in found.items() if name in results}
        if not (best := worst.get("MSGLD invariant")):
            continue
        factor, error, chance = best
        judged = "within three times chance" if error <= 3 * chance else "more than chance"
        others = [
            f"{label} {off[1]:.1f} % (a = {off[0]})"
            for label, off in worst.items()
            if off and label not in ("SGLD", "MSGLD invariant")
        ]
        plain = f"; SGLD {worst['SGLD'][1]:.1f} %" if worst.get("SGLD") else ""  # type: ignore[index]
        sentences.append(
            f"{TITLES[name]}: over all bias factors the invariant MSGLD is off by at most {error:.1f} % (a = {factor}, chance "
            f"{chance:.1f} %), {judged}; worst of the others: {', '.join(others)}{plain}."
        )
    if found:
        first = next(iter(found.values()))
        known = [
            f"{TITLES[name]}: k = {first[name]['curvature']:.4g}, {first[name]['reference']}" for name in TITLES if name in first
        ]
        sentences.append(f"The curvature k, and how the true moments are known. {'; '.join(known)}.")
    return sentences


def _worst(points: Mapping[str, Mapping[str, Any]]) -> tuple[str, float, float] | None:
    """Return the bias factor with the largest error, that error and its chance; None where all are unstable."""
    stable = [(factor, point["error"], point["chance"]) for factor, point in points.items() if point["error"] is not None]
    return max(stable, key=lambda point: point[1], default=None)


def _integrator(view: View) -> list[str]:
    ranges: dict[str, list[float]] = {}
    for label, (results, *_) in view.by_label().items():
        if "0.12" in results["steps"]:
            ranges.setdefault(label.partition(",")[0], []).append(abs(results["steps"]["0.12"]["error"]))
    ends = {name: dict.fromkeys(f"{value:.1f}" for value in (min(values), max(values))) for name, values in ranges.items()}
    shown = ", ".join(f"{name} {' to '.join(values)} %" for name, values in ends.items())
    return [f"Error of E x² at step 0.12, over the settings: {shown}. BAOAB is exact on Gaussians, the others are not."]


def _efficiency(view: View) -> list[str]:
    found = view.by_label()
    if not found:
        return []
    bound = view.records[0].settings["scale"]["bound"]
    return [
        _race(title, {label: [r[name] for r in results] for label, results in found.items() if name in results[0]}, bound)
        for name, title in TITLES.items()
        if any(name in results[0] for results in found.values())
    ]


def _race(title: str, found: Mapping[str, Results], bound: float) -> str:
    """Compare the best invariant form with the best other sampler on one problem."""
    values = {label: [r["per_1000"] for r in reports if r.get("per_1000") is not None] for label, reports in found.items()}
    ranked = sorted((label for label in values if values[label]), key=lambda label: -median(values[label]))
    best = next((label for label in ranked if "invariant" in label), None)
    rival = next((label for label in ranked if "invariant" not in label), None)
    none = [label for label in values if not values[label]]
    missing = f" No setting of {_listed(none)} was near enough to the target." if none else ""
    if best is None or rival is None:
        return f"{title}: only {_listed(ranked) or 'none'} had a setting near enough to the target.{missing}"
    ratio = median(values[best]) / median(values[rival])
    if min(values[best]) > max(values[rival]):
        outcome = f"wins: {ratio:.1f} times the draws of {rival}"
    elif max(values[best]) < min(values[rival]):
        outcome = f"loses: {rival} has {1 / ratio:.2f} times its draws"
    else:
        outcome = f"ties with {rival}: {ratio:.2f} times its draws, and the ranges of the seeds overlap"
    notes = "".join(f"; {note}" for label in (best, rival) if (note := _blemish(label, found[label], bound)))
    order = ", ".join(f"{k} {median(values[k]):.3g} [{min(values[k]):.3g}, {max(values[k]):.3g}]" for k in ranked)
    return f"{title}: {best} {outcome}{notes}. Per 1000 gradients, median [least, most] of the seeds: {order}.{missing}"


def _blemish(label: str, reports: Results, bound: float) -> str:
    """Say what fresh seeds speak against a setting."""
    broken = sum(report["per_1000"] is None for report in reports)
    if broken:
        return f"{label} blew up on {broken} of {len(reports)} fresh seeds"
    return f"{label} broke the bound on its law on the fresh seeds" if reports[0]["pooled"]["excess"] > bound else ""


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ravine(view: View) -> list[str]:
    counts = {label: [result["near"] for result in results] for label, results in view.by_label().items()}
    shown = ", ".join(
        f"{label} {sum(near[:5]):.0f} of {len(near[:5])} ({sum(near):.0f} of {len(near)})" for label, near in counts.items()
    )
    return [f"Data sets on which a run finds the truth, of the first five (of all): {shown}."]


def _uci(view: View) -> list[str]:
    found = {label: results for label, results in view.by_label().items() if results}
    sentences = [
        _below(title, {label: (_mean(results, key), results[0][beside]) for label, results in found.items()})
        for title, key, beside in (
            ("NLL of the mixture", "nll", "published_nll"),
            ("NLL of a Gaussian", "nll_gaussian", "published_nll"),
            ("RMSE", "rmse", "published_rmse"),
        )
        if found
    ]
    if found:
        shares = {label: _mean(results, "coverage") for label, results in found.items()}
        few, many = min(shares, key=lambda label: shares[label]), max(shares, key=lambda label: shares[label])
        sentences.append(f"The 90 % intervals hold {shares[few]:.1f} % ({few}) to {shares[many]:.1f} % ({many}) of the test rows.")
    broken = {label: sum(result["nll_gaussian"] is None for result in results) for label, results in found.items()}
    if shown := [f"{label} ({count} of {len(found[label])})" for label, count in broken.items() if count]:
        sentences.append(
            f"Splits on which the variance of a test row overflows, so that the Gaussian has no finite NLL: {', '.join(shown)}. "
            "The table's means leave them out; the sentences above count them as infinite."
        )
    return sentences


def _below(title: str, pairs: Mapping[str, tuple[float, float]]) -> str:
    """Say on which sets our mean is below the published one, and on which not."""
    lower = [label for label, (ours, theirs) in pairs.items() if ours < theirs]
    others = [f"{label} ({ours:.3g} against {theirs:.3g})" for label, (ours, theirs) in pairs.items() if label not in lower]
    names = f": {', '.join(lower)}" if lower else ""
    rest = f" Not on {_listed(others)}." if others else ""
    return f"{title} below the deep ensemble's on {len(lower)} of {len(pairs)} sets{names}.{rest}"


def _tables(view: View) -> list[str]:
    sentences = []
    for method in view.experiment.methods:
        if not (results := view.results(method)):
            continue
        for title, key, place in (("RMSE", "rmse", 0), ("NLL of a Gaussian", "nll_gaussian", 1)):
            ours = _mean(results, key)
            known = {name: values[place] for name, values in PUBLISHED[method.name].items() if not isnan(values[place])}
            lower = [f"{name} ({value:.4g})" for name, value in known.items() if ours < value]
            others = [f"{name} ({value:.4g})" for name, value in known.items() if ours >= value]
            sentences.append(
                f"{method.label}, {title} {ours:.4f}: below {_listed(lower) or 'none'}"
                + (f"; not below {_listed(others)}." if others else ".")
            )
    return sentences


def _scoring(view: View) -> list[str]:
    """Return the mean rank of each model over tables, by each score, and the mean coverage."""
    sentences = []
    for key, title, sign in (("nll", "NLL", 1), ("crps", "CRPS", 1), ("brier", "Brier score", 1), ("accuracy", "accuracy", -1)):
        ranks: dict[str, list[float]] = {}
        for method in view.experiment.methods:
            scores = [result[key] for result in view.results(method) if key in result]
            for name in scores[0] if scores else ():
                if all(score.get(name) is not None for score in scores):
                    ranks.setdefault(name, []).append(sign * mean(score[name] for score in scores))
        tables = max(map(len, ranks.values()), default=0)
        whole = {name: values for name, values in ranks.items() if len(values) == tables}
        if len(whole) > 1:
            columns = [sorted(row) for row in zip(*whole.values(), strict=True)]
            places = {
                name: mean(
                    column.index(value) + (1 + column.count(value)) / 2 for column, value in zip(columns, values, strict=True)
                )
                for name, values in whole.items()
            }
            shown = ", ".join(f"{name} {place:.2f}" for name, place in sorted(places.items(), key=lambda pair: pair[1]))
            sentences.append(f"Mean rank by {title} over {tables} tables, of models that ran on all: {shown}.")
    found = [result["coverage"] for method in view.experiment.methods for result in view.results(method) if "coverage" in result]
    if found:
        names = dict.fromkeys(name for score in found for name in score)
        shares = {name: mean(score[name] for score in found if name in score) for name in names}
        shown = ", ".join(f"{name} {share:.1f} %" for name, share in shares.items())
        sentences.append(f"The 90 % intervals hold, on average: {shown}.")
    return sentences


def _mean(results: Results, key: str) -> float:
    return mean(inf if result[key] is None else result[key] for result in results)  # a record has None for what is not finite


FINDINGS: dict[str, Callable[[View], list[str]]] = {
    "invariant-law": _law,
    "invariant-integrator": _integrator,
    "invariant-efficiency": _efficiency,
    "invariant-ravine": _ravine,
    "minibatch": atlas_findings,
    "ravine-readings": ravine_reading_findings,
    "landsat-readings": landsat_reading_findings,
    "cifar10": ranking_findings,
    "cifar100": ranking_findings,
    "uci": _uci,
    "tables": _tables,
    "scoring": _scoring,
    "scoring-classes": _scoring,
}
"""By experiment."""
