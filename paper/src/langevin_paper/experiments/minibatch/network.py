"""A small Bayesian network: what is compared are its predictions, for weights have symmetries."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from langevin.diagnostics import ess, rhat
from langevin.diagnostics.trust import TrustWarning
from langevin.random import Purpose, normal, permutation, stream
from langevin.sampling.sample import sample
from langevin.targets import Batch, Evaluation, Target
from langevin.targets.gradients import find_mode, full
from langevin_paper.experiments.minibatch.known import Problem, row_covariance

__all__ = ["Network", "network"]


@dataclass(frozen=True)
class Network(Target):
    """``y ~ N(f(x), noise_std^2)``, f one hidden layer of tanh; all weights are N(0, prior_std^2)."""

    inputs: int
    hidden: int
    noise_std: float
    prior_std: float

    needs_data = True
    has_closed_form = True

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Weights in all."""
        return self.hidden * (self.inputs + 2) + 1

    def predict(self, position: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and the hidden layer at rows (n, inputs), or (chains, n, inputs), for positions (chains, dim)."""
        first, second, last = self._split(position)
        hidden = torch.tanh(x @ first.mT + second[..., None, :])
        return (hidden @ last[..., :-1, None])[..., 0] + last[..., -1:], hidden

    def _split(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second, last = position.split([self.hidden * self.inputs, self.hidden, self.hidden + 1], -1)
        return first.unflatten(-1, (self.hidden, self.inputs)), second, last

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        assert batch is not None
        x, y = batch.columns
        found, hidden = self.predict(position, x)
        slope = batch.scale * (found - y) / self.noise_std**2
        energy = 0.5 * (slope * (found - y)).sum(-1)
        inward = slope[..., None] * self._split(position)[2][..., None, :-1] * (1 - hidden * hidden)  # (chains, n, hidden)
        outer = (slope[..., None, :] @ hidden)[..., 0, :]
        pulled = torch.cat([(inward.mT @ x).flatten(-2), inward.sum(-2), outer, slope.sum(-1, keepdim=True)], -1)
        shrunk = position / self.prior_std**2
        return Evaluation(energy + 0.5 * (position * shrunk).sum(-1), pulled + shrunk)


def network(given: Mapping[str, Any]) -> Problem:
    """Return the problem; its reference is a long run of the call without settings, with all data at every step."""
    target = Network(given["inputs"], given["hidden"], given["noise_std"], given["prior_std"])
    seed, at, number = given["data_seed"], stream(Purpose.DATA), given["num_data"]
    rows = number + given["test_points"]
    inputs = normal(seed, at, 1, rows * target.inputs).reshape(rows, target.inputs)
    truth = normal(seed, at, 2, target.dim)[None]
    output = target.predict(truth, inputs)[0][0] + target.noise_std * normal(seed, at, 3, rows)
    data, tests = (inputs[:number], output[:number]), inputs[number:]

    def coordinates(positions: Tensor) -> Tensor:
        return target.predict(positions.flatten(0, -2), tests)[0].unflatten(0, positions.shape[:-1])

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", TrustWarning)  # of single weights fewer draws are independent
        options: dict[str, Any] = {"data": data, "compile": False, "progress": False, **given["reference"]}
        draws = sample(target, init=truth[0], **options).draws  # from the true weights, so that chains share a mode
    predicted = coordinates(draws).double()
    flat, worst, agree = draws.flatten(0, 1), float(ess(predicted).min()), float(rhat(predicted).max())
    spread = float(ess((predicted - predicted.mean((0, 1))) ** 2).min())
    text = (
        f"a run with all data, {len(draws)} chains of {draws.shape[1]} draws: worth {worst:.0f} for the worst prediction, "
        f"{spread:.0f} for its square, R-hat at most {agree:.3f}"
    )
    slopes = torch.cat([full(target, data)(part, 0).gradient for part in flat[:: max(1, len(flat) // 2000)].split(100)]).double()

    def draw(number: int, seed: int) -> Tensor:
        return flat[permutation(seed, stream(Purpose.INIT), 0, len(flat))[torch.arange(number) % len(flat)]]

    mode = find_mode(target, data, flat[-1], num_steps=1000)

    @functools.cache
    def covariance(centred: bool) -> Tensor:
        places = draw(given["noise_places"], seed)
        return row_covariance(target, data, places, given["noise_rows"], mode if centred else None, seed)

    moments = (predicted.mean((0, 1)), predicted.flatten(0, 1).var(0), text, min(worst, spread))
    return Problem(number, slopes.mT @ slopes / len(slopes), coordinates, *moments, covariance, draw, target, data, mode)
