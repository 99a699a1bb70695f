"""Posteriors on disk: their data, and the moments of their reference draws; and those whose moments are exact."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import needs
from langevin_paper.check.posteriors import ANALYTIC, GYM, POSTERIORS, KnownPosterior

__all__ = ["ROOT", "Reference", "available", "data_folder", "read_reference", "suite"]

ROOT = Path(__file__).parents[4]  # of a checkout; the data are no part of the installed package
_SHIPPED = ROOT / "tests" / "evidence" / "posteriordb"
_GYM = ROOT / "tests" / "evidence" / "inference_gym"
_MOMENTS = ("mean", "sd", "mcse_mean", "mcse_sd")


class Reference(NamedTuple):
    """A posterior, and what is known of it."""

    name: str
    posterior: KnownPosterior
    quantities: tuple[str, ...]  # names of the reported numbers
    parts: dict[str, int]  # names of the parameters that they come from, and how many numbers each has
    mean: Tensor
    sd: Tensor
    mcse_mean: Tensor  # Monte Carlo errors of the reference itself
    mcse_sd: Tensor

    def report(self, positions: Tensor) -> Tensor:
        """Return the reported numbers (..., quantities) of positions (..., dim)."""
        space = self.posterior.model.space

        def one(position: Tensor) -> Tensor:
            values = self.posterior.reported(space.constrain(position)[0])
            return torch.cat([values[part].reshape(-1) for part in self.parts])

        flat = torch.func.vmap(one)(positions.reshape(-1, space.dim))
        return flat.reshape(*positions.shape[:-1], len(self.quantities))


def data_folder() -> Path:
    """Return the folder of the posteriors' files: posteriordb/ in the folder that LANGEVIN_DATA names, or those of a checkout."""
    given = os.environ.get("LANGEVIN_DATA")
    folder = Path(given) / "posteriordb" if given else _SHIPPED
    if not folder.is_dir():
        raise needs("reference", "LANGEVIN_DATA", "a folder that has posteriordb/*.json", given, FileNotFoundError)
    return folder


def available() -> list[str]:
    """Return the names of the posteriors that are written as models and whose files are there."""
    folder = data_folder()
    return [name for name in POSTERIORS if (folder / f"{name}.json").is_file()]


def suite() -> list[str]:
    """Return the names of all posteriors: those of `available`, of the Inference Gym, and exact ones."""
    return [*available(), *GYM, *ANALYTIC]


def read_reference(name: str) -> Reference:
    """Read a posterior's file and build its model.

    Args:
        name: as in posteriordb, such as "garch-garch11", or another name of `suite`.
    """
    if name in ANALYTIC:
        return _exact(name)
    models = {**POSTERIORS, **GYM}
    if name not in models:
        raise needs("read_reference", "name", f"one of {[*models, *ANALYTIC]}", name)
    path = (_GYM if name in GYM else data_folder()) / f"{name}.json"
    if not path.is_file():
        raise needs("read_reference", "name", f"a file in {path.parent}, or in that of LANGEVIN_DATA", name, FileNotFoundError)
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise needs("read_reference", "name", f"a JSON file in {path}", str(error)) from error
    parts, quantities, moments = _check(path, content)
    try:
        posterior = models[name](content["data"])
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise needs("read_reference", "name", f"data of {name} in {path}", f"{type(error).__name__}: {error}") from error
    return Reference(name, posterior, quantities, parts, *moments)


def _exact(name: str) -> Reference:
    """Return a posterior whose moments have no Monte Carlo error."""
    posterior, mean, sd = ANALYTIC[name]()
    space = posterior.model.space
    values = posterior.reported(space.constrain(torch.zeros(space.dim, dtype=space.dtype))[0])
    parts = {part: value.numel() for part, value in values.items()}
    names = tuple(f"{part}[{index + 1}]" for part, count in parts.items() for index in range(count))
    exact = torch.zeros(len(names), dtype=torch.float64)
    means, sds = torch.tensor(mean, dtype=torch.float64), torch.tensor(sd, dtype=torch.float64)
    return Reference(name, posterior, names, parts, means, sds, exact, exact)


def _check(path: Path, content: Any) -> tuple[dict[str, int], tuple[str, ...], list[Tensor]]:
    """Return parts, quantities and moments of a file, or say what is wrong with it."""

    def expect(holds: bool, what: str, value: Any) -> None:
        if not holds:
            raise needs("read_reference", "name", f"{what} in {path}", value)

    expect(isinstance(content, dict), "an object", type(content).__name__)
    missing = [key for key in ("data", "dimensions", "parameters", *_MOMENTS) if key not in content]
    expect(not missing, f"no missing keys, such as {missing}", sorted(content))
    parts, names = content["dimensions"], content["parameters"]
    counts = isinstance(parts, dict) and all(isinstance(count, int) and count > 0 for count in parts.values())
    expect(counts, "dimensions that count numbers", parts)
    expect(isinstance(names, list) and len(names) == sum(parts.values()), f"{sum(parts.values())} parameters", names)
    expect(isinstance(content["data"], dict), "an object as data", type(content["data"]).__name__)
    for key in _MOMENTS:
        values = content[key]
        fits = isinstance(values, list) and len(values) == len(names)
        expect(fits, f"{len(names)} numbers as {key}", values)
        positive = key == "mean" or all(isinstance(value, int | float) and value > 0 for value in values)
        finite = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
        expect(finite and positive, f"finite numbers, and positive errors, as {key}", values)
    return parts, tuple(names), [torch.tensor(content[key], dtype=torch.float64) for key in _MOMENTS]
