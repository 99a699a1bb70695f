"""The default call on posteriors with known moments, beside other samplers."""

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
from langevin_paper.check.database import ROOT, Reference, available, read_reference, suite
from langevin_paper.check.report import Report, Row
from langevin_paper.check.right import allowed

__all__ = ["Verdict", "check_reference", "check_suite", "compare", "markdown"]

QUICK = ("eight_schools-eight_schools_noncentered", "gp_pois_regr-gp_regr", "kidiq-kidscore_momiq", "sblrc-blr")
QUICK_SUITE = ("banana", "brownian_motion", "eight_schools", "ill_conditioned_gaussian_50")
_EVIDENCE = ROOT / "docs" / "evidence"
_PER_DRAW, _WARMUP = "gradients_per_effective_draw", "warmup_gradients_per_chain"
NUTS = {  # columns: the sampler and its number in docs/evidence/nuts.json, by benchmarks/nuts.py
    "NUTS diagonal": ("diagonal", _PER_DRAW),
    "NUTS dense": ("dense", _PER_DRAW),
    "NUTS dense, not shrunk": ("dense, not shrunk", _PER_DRAW),
    "NUTS warm-up": ("dense", _WARMUP),
}
PEERS = {  # the same of docs/evidence/peers.json, by benchmarks/peers.py
    "nutpie": ("nutpie", _PER_DRAW),
    "nutpie warm-up": ("nutpie", _WARMUP),
    "nutpie right": ("nutpie", "right"),
    "MCLMC": ("MCLMC", _PER_DRAW),
    "MCLMC right": ("MCLMC", "right"),
}
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
    about = "moments of posteriordb's reference draws by the default call; 1 is the most that a mean or an sd may be off"
    return _report("reference", about, chosen, call, seed, chains, _Peers("nuts", NUTS))


def check_suite(*, seed: int = 0, quick: bool = False, call: Call = sample) -> Report:
    """Run the default call on all posteriors with known moments: posteriordb, the Inference Gym and exact ones.

    Args:
        seed: of the runs.
        quick: four posteriors that `check_reference` does not have.
        call: as for `check_reference`.
    """
    about = "moments of posteriors by the default call; 1 is the most that a mean or an sd may be off"
    return _report("suite", about, list(QUICK_SUITE) if quick else suite(), call, seed, None, _Peers("peers", PEERS))


class _Peers:
    """What other samplers need on the same posteriors, from a record in docs/evidence; nothing outside a checkout.

    Args:
        name: of the record's file.
        columns: of the table, each with the sampler and its number in the record.
    """

    def __init__(self, name: str, columns: dict[str, tuple[str, str]]) -> None:
        self.columns, path = columns, _EVIDENCE / f"{name}.json"
        self.found: dict[str, Any] = {}
        try:
            self.found = dict(json.loads(path.read_text())["posteriors"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise needs("check_reference", "names", f"a record by benchmarks/{name}.py in {path}", repr(error)) from error

    def numbers(self, posterior: str) -> dict[str, Any]:
        """Return the columns of a posterior; empty where nothing was measured."""
        there = self.found.get(posterior, {})
        found = {column: there.get(sampler, {}).get(key, "") for column, (sampler, key) in self.columns.items()}
        return {column: ("yes" if value else "no") if isinstance(value, bool) else value for column, value in found.items()}


def _report(name: str, about: str, chosen: Sequence[str], call: Call, seed: int, chains: int | None, peers: _Peers) -> Report:
    settings = {"seed": seed} if chains is None else {"seed": seed, "chains": chains}
    rows: list[Row] = []
    for posterior in chosen:
        reference = read_reference(posterior)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are counted, in the table
            samples = call(reference.posterior.model, data=reference.posterior.data, **settings)
        rows.append(_row(reference, samples, samples.healthy, peers))
        is_clear = rows[-1].numbers["right"] == "yes" and not samples.trust.warnings  # with enough draws to see a quarter
        if is_clear and not any(row.must_fail for row in rows):
            rows.append(_twin(reference, samples, peers))
    rows.sort(key=lambda row: row.must_fail)
    return Report(name, about, seed, tuple(rows), _notes([row for row in rows if not row.must_fail], peers))


def _row(reference: Reference, samples: Samples, positions: Tensor, peers: _Peers) -> Row:
    verdict, words = compare(reference, positions), samples.trust.warnings
    steps = sum(status.steps for status in samples.status)  # each takes one gradient
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
            **peers.numbers(reference.name),
            "first warning": words[0] if words else "",
        },
        passed=verdict.is_right or bool(words),
    )


def _twin(reference: Reference, samples: Samples, peers: _Peers) -> Row:
    """Return the row of a sampler that is too wide by a quarter, in every free number, without a warning."""
    positions = samples.healthy
    centre = positions.mean((0, 1))
    row = _row(reference, samples, centre + _STRETCH * (positions - centre), peers)
    return Row(f"{reference.name}, stretched", row.numbers, passed=row.numbers["right"] == "yes", must_fail=True)


def _notes(rows: Sequence[Row], peers: _Peers) -> tuple[str, ...]:
    def listed(right: str, is_warned: bool) -> str:
        found = [row.name for row in rows if row.numbers["right"] == right and bool(row.numbers["warnings"]) == is_warned]
        return f"{len(found)}" + (f" ({', '.join(found)})" if found else "")

    def middle(column: str) -> str:
        numbers = [value for row in rows if isinstance(value := row.numbers[column], int | float)]
        return f"{statistics.median(numbers):.3g}" if numbers else "not known"

    right = sum(row.numbers["right"] == "yes" for row in rows)
    taken = [int(row.numbers["warm-up gradients"]) for row in rows]
    per_draw = [column for column, (_, key) in peers.columns.items() if key == _PER_DRAW]
    columns = ["gradients per effective draw", *per_draw, "warm-up gradients"]
    columns += [column for column, (_, key) in peers.columns.items() if key == _WARMUP]
    return (
        f"right: {right} of {len(rows)}; wrong with a warning: {listed('no', True)}; wrong without: {listed('no', False)}; "
        f"right but warned of: {listed('yes', True)}",
        "medians: " + ", ".join(f"{column} {middle(column)}" for column in columns),
        *(_beside(rows, column) for column in per_draw if column not in ("NUTS diagonal", "NUTS dense, not shrunk")),
        f"warm-up gradients of a chain: {min(taken)} to {max(taken)}",
    )


def _beside(rows: Sequence[Row], column: str) -> str:
    """Compare with another sampler on the posteriors where both were measured."""
    pairs = [(row.numbers["gradients per effective draw"], row.numbers[column]) for row in rows]
    both = [(float(ours), float(other)) for ours, other in pairs if isinstance(other, int | float)]
    metric = "NUTS with a dense metric" if column == "NUTS dense" else column
    if not both:
        return f"{metric.split(' with')[0]} was not measured on these"
    ours, others = (statistics.median(values) for values in zip(*both, strict=True))
    fewer = sum(one < other for one, other in both)
    return f"where {metric} was measured: median {ours:.2g} against {others:.2g}, fewer on {fewer} of {len(both)}"


def markdown(report: Report) -> str:
    """Return the report's table for a page: a row per posterior, in the order of the rows."""
    shown = [name for name in report.rows[0].numbers if name != "first warning"]
    lines = [["posterior", *shown], ["---"] * (len(shown) + 1)]
    for row in report.rows:
        numbers = [row.numbers[name] for name in shown]
        lines.append([row.name, *(f"{value:.3g}" if isinstance(value, float) else str(value) for value in numbers)])
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*table, "", *(f"{note}." for note in report.notes)])
