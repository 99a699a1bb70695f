"""What minibatch noise adds to predictions: measured, as `heat()` predicts it, and corrected."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import langevin as lv

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "function_space.py"


@pytest.mark.parametrize("name", ["SGLD", "SGHMC"])
def test_noise_in_few_directions_heats_predictions_much_more_than_elements(name):
    """50 elements, outputs in 4 directions: the noise adds .08 to elements and once their variance to outputs."""
    chains, size, rank, curvature, lr, steps = 6, 50, 4, 50.0, 0.004, 1500
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size, generator=generator)) for _ in range(chains)]
    outputs = torch.linalg.qr(torch.randn(size, rank, generator=generator))[0].mT
    with torch.no_grad():
        for p in parameters:  # a draw of the posterior
            p -= outputs.mT @ (outputs @ p) * (1 - (1 + curvature) ** -0.5)
    kind, settings = {"SGLD": (lv.optim.SGLD, {}), "SGHMC": (lv.optim.SGHMC, {"beta": 0.5})}[name]
    response = lr if name == "SGLD" else 2 * lr
    groups = [{"params": [p]} for p in parameters]
    optimizer = kind(groups, lr=lr, num_data=1, prior=lv.priors.gaussian(std=1.0), **settings)
    total = 0.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", lv.TrustWarning)
        for _ in range(steps):
            noise = torch.randn(chains, rank, generator=generator) * (2 / response) ** 0.5
            for p, white in zip(parameters, noise, strict=True):
                output = outputs @ p.detach()
                p.grad = outputs.mT @ (curvature * output + white)
                total += float(output.square().sum()) * (1 + curvature) / (steps * chains * rank)
            optimizer.step()
    heats = optimizer.heat()
    effective = sum(heat.effective_parameters for heat in heats)
    predicted = sum(heat.predictions * heat.effective_parameters for heat in heats) / effective
    assert predicted == pytest.approx(total - 1, rel=0.3)
    assert effective / chains == pytest.approx(rank * curvature / (1 + curvature), rel=0.3)
    assert np.mean([heat.share for heat in heats]) == pytest.approx(rank / size, rel=0.3)
    assert sum("of predictions" in str(warning.message) for warning in caught) == chains


def test_predictions_of_a_network_are_corrected():
    """The 1-50-1 network in batches of 100, against HMC: the long version is benchmarks/function_space.py."""
    benchmark = runpy.run_path(str(BENCHMARK))
    problem, (lr, _) = benchmark["Problem"]("regression"), benchmark["LR"]["regression"]
    found = {}
    for name in benchmark["PAIR"]:
        kind, settings = benchmark["cases"](lr)[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lv.TrustWarning)
            ratio, _, optimizer = benchmark["run"](problem, kind, settings, batch=100, steps=400, burn=100, chains=3)
        found[name] = ratio**0.5
    assert found["MSGLD, invariant"] > 1.2
    assert found["MSGLD, corrected"] < 1.2
    assert found["MSGLD, corrected"] < found["MSGLD, invariant"] - 0.15
    assert "Kronecker eigenbasis of 2 matrices" in optimizer.description
