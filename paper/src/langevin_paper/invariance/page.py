"""The page of the study, made from `results.json` alone: every number in it is read from there, the words are in `page.md.j2`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from langevin.store.journal import write_atomic
from langevin_paper.invariance import tables
from langevin_paper.invariance.figures import draw_efficiency, draw_integrator, draw_law
from langevin_paper.invariance.parts import units
from langevin_paper.invariance.verdict import verdict

__all__ = ["write_page"]

Part = dict[str, Any]


def write_page(folder: Path) -> Path:
    """Write `README.md` and its figures beside the results in a folder; return the page's path."""
    found = json.loads((folder / "results.json").read_text())
    # Units are kept in the order in which they were done, with two at a time not the one to read them in.
    parts = {part: {unit: kept[unit] for unit in units(part) if unit in kept} for part, kept in found["parts"].items()}
    context: dict[str, Any] = {name: make(parts[name], folder) if name in parts else None for name, make in _SECTIONS.items()}
    text = resources.files("langevin_paper.invariance").joinpath("page.md.j2").read_text()
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined, autoescape=False
    )
    page = environment.from_string(text).render(quick=found["quick"], runs=_runs(parts), verdict=verdict(parts), **context)
    write_atomic(folder / "README.md", page.encode())
    return folder / "README.md"


def _runs(parts: dict[str, Part]) -> dict[str, Any]:
    """Sum up the circumstances."""
    runs = [unit["run"] for part in parts.values() for unit in part.values()]
    loads = [run["load"] for run in runs]
    return {
        "number": len(runs),
        "seconds": f"{sum(run['seconds'] for run in runs):.0f}",
        "load": f"{min(loads):g} to {max(loads):g}",
        "cores": runs[0]["machine"]["cores"],
        "processor": runs[0]["machine"]["processor"],
        "dates": _each(run["date"] for run in runs),
        "versions": _each(", ".join(f"{name} {version}" for name, version in run["versions"].items()) for run in runs),
        "commits": _each(str(run["commit"])[:10] + ("+changes" if str(run["commit"]).endswith("+changes") else "") for run in runs),
    }


def _each(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _first(part: Part) -> dict[str, Any]:
    return next(iter(part.values()))


def _law(part: Part, folder: Path) -> dict[str, Any]:
    draw_law(part, folder / "law_factor.png", factor=None)
    draw_law(part, folder / "law_step.png", factor=10.0)
    return {
        "seed": _first(part)["run"]["seed"],
        "annealing": _first(part)["plan"]["annealing"],
        "errors": tables.law_errors(part),
        "shares": tables.law_shares(part),
        "plans": tables.law_plans(part),
    }


def _integrator(part: Part, folder: Path) -> dict[str, Any]:
    draw_integrator(part, folder / "integrator.png")
    first = _first(part)
    return {
        "truth": f"{first['truth']:.4f}",
        "curvature": first["plan"]["curvature"],
        "chains": f"{first['plan']['num_chains']:,}",
        "steps": f"{first['plan']['num_steps']:,}",
        "seed": first["run"]["seed"],
        "seconds": f"{sum(found['run']['seconds'] for found in part.values()):.0f}",
        "table": tables.integrator(part),
    }


def _efficiency(part: Part, folder: Path) -> dict[str, Any]:
    draw_efficiency(part, folder / "efficiency.png")
    plan = _first(part)["plan"]
    numbers = {"bound": f"{100 * plan['bound']:g}", "floor": tables.FLOOR * plan["num_chains"], "seed": _first(part)["run"]["seed"]}
    return {**plan, **numbers, "table": tables.efficiency(part)}


def _ravine(part: Part, folder: Path) -> dict[str, Any]:
    first = _first(part)
    return {
        "number": len(first["hits"]),
        "first": first["plan"]["data"],
        "num_steps": f"{first['plan']['num_steps']:,}",
        "batch_size": first["plan"]["batch_size"],
        "seed": first["run"]["seed"],
        "table": tables.ravine(part),
    }


_SECTIONS = {"law": _law, "integrator": _integrator, "efficiency": _efficiency, "ravine": _ravine}
