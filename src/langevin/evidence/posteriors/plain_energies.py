"""TEMPORARY, for tuning experiments: ``load(name)`` -> energy of ONE position (float64, vmappable), dim, reported, reference.

    from langevin.evidence.posteriors.plain_energies import NAMES, load
    p = load("garch-garch11", folder)        # folder with the json files
    target = lv.targets.energy(p.energy);  p.dim;  p.report(positions (..., dim)) -> (..., len(p.names));  p.mean, p.sd
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from langevin.evidence.posteriors import POSTERIORS

NAMES = list(POSTERIORS)


def load(name: str, folder: str) -> SimpleNamespace:
    reference = json.loads((Path(folder) / f"{name}.json").read_text())
    posterior = POSTERIORS[name](reference["data"])
    model, data = posterior.model, posterior.data

    def energy(position: Tensor) -> Tensor:
        return model.energy(position, data)

    def report_one(position: Tensor) -> Tensor:
        values = posterior.reported(model.constrain(position)[0])
        return torch.cat([values[part].reshape(-1) for part in reference["dimensions"]])

    def report(positions: Tensor) -> Tensor:
        flat = positions.reshape(-1, model.dim)
        return torch.func.vmap(report_one)(flat).reshape(*positions.shape[:-1], -1)

    moments = {key: torch.tensor(reference[key], dtype=torch.float64) for key in ("mean", "sd", "mcse_mean", "mcse_sd")}
    return SimpleNamespace(name=name, energy=energy, dim=model.dim, report=report, names=reference["parameters"], **moments)
