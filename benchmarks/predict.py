"""What `predict` costs compared with the forward passes that it needs, for a large and a small network.

    python benchmarks/predict.py | tee docs/benchmarks/predict.txt

*Bare* is the loop that one would write: load the weights with `load_state_dict`, call the network on each batch of 256 rows, add
up the softmax. It returns the mean alone; `predict` also returns entropies and the spread, and warns. All take turns: the output
is milliseconds per draw, the median and the least of five turns, and the median of the five ratios to the bare loop of the same
turn, so that other work on the machine slows both. The parts of `predict` are timed by themselves, in the same turns.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

import langevin as lv
from langevin.checks import check_finite
from langevin.nn.predictive.averages import Averages, Block
from langevin.nn.predictive.predict import merged
from langevin.targets.likelihoods import as_likelihood
from langevin.targets.space import Space

BATCH, TURNS = 256, 5


class Case(NamedTuple):
    """Widths of the network's layers, rows, and draws in a turn."""

    widths: tuple[int, ...]
    rows: int
    draws: int


CASES = (Case((784, 800, 800, 10), 4_000, 10), Case((20, 50, 10), 1_000, 1_000))


def network(widths: tuple[int, ...]) -> nn.Module:
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def batches(x: Tensor) -> list[tuple[slice, Tensor]]:
    places = [slice(start, min(start + BATCH, len(x))) for start in range(0, len(x), BATCH)]
    return [(here, x[here]) for here in places]


def bare(model: nn.Module, states: list[dict[str, Tensor]], x: Tensor) -> Tensor:
    total = torch.zeros(len(x), 10)
    with torch.no_grad():
        for state in states:
            model.load_state_dict(state)
            for here, inputs in batches(x):
                total[here] += model(inputs).softmax(-1)
    return total / len(states)


def by_functional_call(model: nn.Module, states: list[dict[str, Tensor]], x: Tensor) -> None:
    with torch.no_grad():
        for state in states:
            for _, inputs in batches(x):
                torch.func.functional_call(model, state, (inputs,))


def sums(outputs: Tensor, count: int) -> None:
    """Average the outputs of so many equal draws."""
    running: list[Averages] = []
    pieces = (
        Block(k, here, number, rows[None], None, [0]) for number in range(count) for k, (here, rows) in enumerate(batches(outputs))
    )
    for piece in merged(pieces):
        if piece.batch == len(running):
            running.append(Averages(as_likelihood("predict", "categorical"), keep=False))
        running[piece.batch].add(piece)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(case: Case) -> None:
    model, other = network(case.widths).eval(), network(case.widths).eval()
    x = lv.random.normal(0, 0, 0, case.rows * case.widths[0]).view(case.rows, -1)
    space = Space.of(model)
    positions = space.flatten(model).detach() + 0.01 * lv.random.normal(0, 1, range(case.draws), space.dim)
    states = [space.unflatten(position) for position in positions]
    outputs = model(x).detach()
    with tempfile.TemporaryDirectory() as folder, lv.SampleBank(f"{folder}/bank") as bank:
        for state in states:
            other.load_state_dict(state)
            bank.add(other)
        ways: dict[str, Callable[[], object]] = {
            "bare": lambda: bare(other, states, x),
            "predict, positions in memory": lambda: lv.predict(model, positions, x, likelihood="categorical"),
            "predict, a bank on disk": lambda: lv.predict(model, bank, x, likelihood="categorical"),
            "part: forward passes by functional_call": lambda: by_functional_call(model, states, x),
            "part: sums over draws": lambda: sums(outputs, case.draws),
            "part: the bank is read": lambda: [None for _ in bank.models(model)],
            "part: positions are finite": lambda: check_finite("predict", "draws", positions),
        }
        apart = lv.predict(model, bank, x, likelihood="categorical").probabilities - bare(other, states, x)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, work in ways.items():
                found[name].append(1e3 * seconds(work) / case.draws)
    print(f"\n{'-'.join(map(str, case.widths))}, {case.rows:,} rows, {case.draws:,} draws in each of {TURNS} turns")
    print(f"largest difference between predict and the bare loop: {float(apart.abs().max()):.1e}")
    for name, times in found.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times, found["bare"], strict=True))
        print(f"{name:42s} median {statistics.median(times):7.2f} ms per draw, least {min(times):7.2f}   {ratio:6.3f} of bare")


def main() -> None:
    warnings.simplefilter("ignore", lv.TrustWarning)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, langevin {lv.__version__}"
    print(f"{datetime.date.today()}, {versions}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")
    for case in CASES:
        measure(case)


if __name__ == "__main__":
    main()
