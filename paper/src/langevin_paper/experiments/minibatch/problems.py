"""What is sampled, by name: definitions as records hold them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from langevin_paper.experiments.minibatch.known import Problem
from langevin_paper.experiments.minibatch.network import network
from langevin_paper.experiments.minibatch.regressions import noisy_gaussian, regression

__all__ = ["DEFINITIONS", "TITLES", "problem"]

TITLES = {
    "gaussian": "Gaussian, white noise (exact laws)", "linear": "Linear, d = 10", "logistic": "Logistic, d = 10",
    "misspecified": "Linear, misspecified", "linear-50": "Linear, d = 50", "logistic-50": "Logistic, d = 50",
    "logistic-200": "Logistic, N = 10⁵, d = 200", "linear-million": "Linear, N = 10⁶", "logistic-million": "Logistic, N = 10⁶",
    "network": "Network, 36 weights: predictions",
}  # fmt: skip

_SHARED = {"prior_std": 1.0, "condition": 100.0, "data_seed": 20, "noise_rows": 20_000, "noise_places": 8}
_REGRESSION = {**_SHARED, "num_data": 10_000, "dim": 10, "reference_draws": 2000, "growth": 0.0}
DEFINITIONS: dict[str, dict[str, Any]] = {
    "gaussian": {"num_data": 10_000, "dim": 10, "condition": 100.0, "data_seed": 20},
    "linear": {**_REGRESSION, "link": "identity"},
    "logistic": {**_REGRESSION, "link": "logit"},
    "misspecified": {**_REGRESSION, "link": "identity", "growth": 2.0},
    "linear-50": {**_REGRESSION, "link": "identity", "dim": 50},
    "logistic-50": {**_REGRESSION, "link": "logit", "dim": 50},
    "logistic-200": {**_REGRESSION, "link": "logit", "num_data": 100_000, "dim": 200, "reference_draws": 8000},
    "linear-million": {**_REGRESSION, "link": "identity", "num_data": 1_000_000},
    "logistic-million": {**_REGRESSION, "link": "logit", "num_data": 1_000_000, "reference_draws": 200},
    "network": {
        "num_data": 1000, "inputs": 5, "hidden": 5, "noise_std": 0.25, "prior_std": 1.0, "data_seed": 20, "test_points": 40,
        "noise_rows": 1000, "noise_places": 16, "reference": {"chains": 16, "num_draws": 600, "seed": 21},
    },
}  # fmt: skip
"""What makes each problem, as records hold it."""


def problem(name: str, given: Mapping[str, Any]) -> Problem:
    """Return the problem of that name and definition, made once in a process."""
    return _cached(name, json.dumps({key: given[key] for key in DEFINITIONS[name]}))


@functools.cache
def _cached(name: str, definition: str) -> Problem:
    return {"gaussian": noisy_gaussian, "network": network}.get(name, regression)(json.loads(definition))
