"""TEMPORARY, for tuning experiments: ``load(name, folder)`` -> energy of ONE position (float64, vmappable), dim, report, moments.

from langevin.evidence.posteriors.plain_energies import NAMES, load
p = load("garch-garch11", folder)        # folder with the json files
target = lv.targets.energy(p.energy);  p.dim;  p.report(positions (..., dim)) -> (..., len(p.names));  p.mean, p.sd
p.model, p.data                          # the lv.Model and its data (None for log_density)
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from langevin.evidence.posteriors import POSTERIORS
from langevin.targets.named_priors import log_prior

NAMES = list(POSTERIORS)


def load(name: str, folder: str) -> SimpleNamespace:
    reference = json.loads((Path(folder) / f"{name}.json").read_text())
    posterior = POSTERIORS[name](reference["data"])
    model, data = posterior.model, posterior.data
    columns = () if data is None else model.columns("load", data)

    torch.distributions.Distribution.set_default_validate_args(False)

    def energy(position: Tensor) -> Tensor:
        values, log_jacobian = model.space.constrain(position)
        return -(model._function(values, *columns).sum() + log_prior("load", model.prior, values) + log_jacobian)

    def report_one(position: Tensor) -> Tensor:
        values = posterior.reported(model.space.constrain(position)[0])
        return torch.cat([values[part].reshape(-1) for part in reference["dimensions"]])

    def report(positions: Tensor) -> Tensor:
        flat = positions.reshape(-1, model.dim)
        return torch.func.vmap(report_one)(flat).reshape(*positions.shape[:-1], -1)

    moments = {key: torch.tensor(reference[key], dtype=torch.float64) for key in ("mean", "sd", "mcse_mean", "mcse_sd")}
    return SimpleNamespace(
        name=name, energy=energy, dim=model.dim, report=report, names=reference["parameters"], model=model, data=data, **moments
    )
