"""The default call on posteriors whose moments are known from long runs of another sampler (posteriordb), beside NUTS."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, needs
from langevin.diagnostics import ess
from langevin.sampling import sample
from langevin.storage import Samples
from langevin_paper.check.database import ROOT, Reference, available, read_reference
from langevin_paper.check.report import Report, Row
from langevin_paper.check.right import allowed

__all__ = ["Verdict", "check_reference", "compare", "markdown"]

QUICK = ("eight_schools-eight_schools_noncentered", "gp_pois_regr-gp_regr", "kidiq-kidscore_momiq", "sblrc-blr")
_NUTS = ROOT / "docs" / "evidence" / "nuts.json"
METRICS = ("diagonal", "dense", "dense, not shrunk")  # of NUTS, in its record
_STRETCH = 1.25  # of the draws of the broken twin, about their means

Call = Callable[..., Samples]  # the default call: `sample(model, data=..., seed=..., chains=...)`


class Verdict(NamedTuple):
    """How draws compare with the reference; 1 is the most that is right. Infinite where there are too few finite draws."""

    mean: float  # the largest |mean - reference| over what is allowed, of all quantities
    sd: float  # the same of |sd / reference - 1|
    worst_ess: float  # the smallest bulk effective sample size

    @property
    def is_right(self) -> bool:
        """Whether all means and sds are within tolerance; no, where one is not a number."""
        return self.mean <= 1.0 and self.sd <= 1.0


def compare(reference: Reference, positions: Tensor) -> Verdict:
    """Compare the moments of draws with a reference.

    Right is ``|mean - m| <= 0.05 s + 4 e`` and ``|sd - s| <= 0.05 s + 4 e'`` (`langevin_paper.check.right`) for the reference's
    mean m and sd s. e is the Monte Carlo error of both means (ours by the bulk effective sample size), e' that of both sds
    (ours by the mean of squares).

    Args:
        reference: what is known.
        positions: draws in the unconstrained space, (chain, draw, dim).
    """
    draws = reference.report(positions)
    if draws.shape[0] == 0 or draws.shape[1] < 4 or not torch.isfinite(draws).all():
        return Verdict(math.inf, math.inf, math.nan)
    size = ess(draws)
    flat = draws.flatten(0, 1)
    mean, sd = flat.mean(0), flat.std(0)
    # Of the sd, by that of the variance, the mean of the squares; ArviZ has the same formula.
    squares = (draws - mean).square()
    error_of_sd = (squares.flatten(0, 1).var(0) / ess(squares, method="mean")).sqrt() / (2 * sd)
    of_mean = allowed(reference.sd, (sd.square() / size + reference.mcse_mean.square()).sqrt())
    of_sd = allowed(reference.sd, (error_of_sd.square() + reference.mcse_sd.square()).sqrt())
    off, off_sd = (mean - reference.mean).abs() / of_mean, (sd - reference.sd).abs() / of_sd
    return Verdict(float(off.max()), float(off_sd.max()), float(size.min()))


def check_reference(
    *, seed: int = 0, quick: bool = False, names: Sequence[str] | None = None, chains: int | None = None, call: Call = sample
) -> Report:
    """Run the default call on each posterior: it must give the reference's moments, or a warning.

    Args:
        seed: of the runs.
        quick: four posteriors instead of all that are there (`langevin_paper.check.database.available`).
        names: these posteriors.
        chains: of each run; the default call's own number where None.
        call: what runs a model; it is given the model, ``data``, ``seed`` and, where said, ``chains``.
    """
    check_integer("check_reference", "seed", seed, 0)
    there = available()
    chosen = list(names) if names is not None else [name for name in there if not quick or name in QUICK]
    if not chosen or not set(chosen) <= set(there):
        raise needs("check_reference", "names", f"some of {there}", chosen)
    nuts, settings = _read_nuts(), {"seed": seed} if chains is None else {"seed": seed, "chains": chains}
    rows: list[Row] = []
    for name in chosen:
        reference = read_reference(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are counted, in the table
            samples = call(reference.posterior.model, data=reference.posterior.data, **settings)
        rows.append(_row(reference, samples, samples.healthy, nuts))
        if not any(row.must_fail for row in rows) and rows[-1].numbers["right"] == "yes":
            rows.append(_twin(reference, samples, nuts))
    rows.sort(key=lambda row: row.must_fail)
    about = "moments of posteriordb's reference draws by the default call; 1 is the most that a mean or an sd may be off"
    return Report("reference", about, seed, tuple(rows), _notes([row for row in rows if not row.must_fail]))


def _row(reference: Reference, samples: Samples, positions: Tensor, nuts: dict[str, Any]) -> Row:
    verdict, words = compare(reference, positions), samples.trust.warnings
    steps = sum(status.steps for status in samples.status)  # each takes one gradient
    others = {metric: nuts.get(reference.name, {}).get(metric, {}) for metric in METRICS}
    return Row(
        reference.name,
        {
            "dim": reference.posterior.model.dim,
            "right": "yes" if verdict.is_right else "no",
            "mean off": verdict.mean,
            "sd off": verdict.sd,
            "warnings": len(words),
            "warm-up gradients": samples.warmup_gradients,  # of a chain
            "gradients per effective draw": steps / verdict.worst_ess,
            **{f"NUTS {metric}": other.get("gradients_per_effective_draw", "") for metric, other in others.items()},
            "NUTS warm-up": others["dense"].get("warmup_gradients_per_chain", ""),
            "first warning": words[0] if words else "",
        },
        passed=verdict.is_right or bool(words),
    )


def _twin(reference: Reference, samples: Samples, nuts: dict[str, Any]) -> Row:
    """Return the row of a sampler that is too wide by a quarter, in every free number, and says nothing."""
    positions = samples.healthy
    centre = positions.mean((0, 1))
    row = _row(reference, samples, centre + _STRETCH * (positions - centre), nuts)
    return Row(f"{reference.name}, stretched", row.numbers, passed=row.numbers["right"] == "yes", must_fail=True)


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    def listed(right: str, is_warned: bool) -> str:
        found = [row.name for row in rows if row.numbers["right"] == right and bool(row.numbers["warnings"]) == is_warned]
        return f"{len(found)}" + (f" ({', '.join(found)})" if found else "")

    def middle(column: str) -> str:
        numbers = [value for row in rows if isinstance(value := row.numbers[column], int | float)]
        return f"{statistics.median(numbers):.3g}" if numbers else "not known"

    right = sum(row.numbers["right"] == "yes" for row in rows)
    taken = [int(row.numbers["warm-up gradients"]) for row in rows]
    columns = ("gradients per effective draw", *(f"NUTS {metric}" for metric in METRICS), "warm-up gradients", "NUTS warm-up")
    return (
        f"right: {right} of {len(rows)}; wrong with a warning: {listed('no', True)}; wrong without: {listed('no', False)}; "
        f"right but warned of: {listed('yes', True)}",
        "medians: " + ", ".join(f"{column} {middle(column)}" for column in columns),
        _beside_nuts(rows),
        f"warm-up gradients of a chain: {min(taken)} to {max(taken)}",
    )


def _beside_nuts(rows: Sequence[Row]) -> str:
    """Compare with NUTS on the posteriors where both were measured."""
    pairs = [(row.numbers["gradients per effective draw"], row.numbers["NUTS dense"]) for row in rows]
    both = [(float(ours), float(nuts)) for ours, nuts in pairs if isinstance(nuts, int | float)]
    if not both:
        return "NUTS was not measured on these"
    ours, nuts = (statistics.median(values) for values in zip(*both, strict=True))
    fewer = sum(one < other for one, other in both)
    return f"where NUTS with a dense metric was measured: median {ours:.2g} against {nuts:.2g}, fewer on {fewer} of {len(both)}"


def _read_nuts() -> dict[str, Any]:
    """Return what `benchmarks/nuts.py` recorded, by posterior; nothing outside a checkout."""
    try:
        found = json.loads(_NUTS.read_text())["posteriors"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise needs("check_reference", "names", f"a record by benchmarks/nuts.py in {_NUTS}", repr(error)) from error
    return dict(found)


def markdown(report: Report) -> str:
    """Return the report's table for a page: a row per posterior, in the order of the rows."""
    shown = [name for name in report.rows[0].numbers if name != "first warning"]
    lines = [["posterior", *shown], ["---"] * (len(shown) + 1)]
    for row in report.rows:
        numbers = [row.numbers[name] for name in shown]
        lines.append([row.name, *(f"{value:.3g}" if isinstance(value, float) else str(value) for value in numbers)])
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*table, "", *(f"{note}." for note in report.notes)])
