"""What `predict` costs beside the forward passes that it needs: 100 draws of 784-800-800-10, 10,000 rows, batches of 256.

    python benchmarks/predict.py | tee docs/benchmarks/predict.txt

*Bare* is the loop that one would write: weights in by `load_state_dict`, the network on each batch, softmax, a sum. It has the mean
alone; `predict` gives uncertainties, spread and warnings too. All take turns, 20 draws at a time, five times over: milliseconds per
draw, the median and the least of the five, and the median of the five ratios to the bare loop of the same turn. The parts of
`predict` are timed by themselves, in the same turns.
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

import torch
from torch import Tensor, nn

import langevin as lv
from langevin.predictive.running import Running
from langevin.predictive.walk import Piece
from langevin.space import Space
from langevin.targets.likelihoods import as_likelihood

ROWS, BATCH, DRAWS, TURNS = 10_000, 256, 20, 5


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 10))


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
    """Take in the outputs of so many draws, which are all the same."""
    running = Running(as_likelihood("predict", "categorical"), keep=False)
    for number in range(count):
        for k, (here, rows) in enumerate(batches(outputs)):
            running.add(Piece(k, here, number, rows[None], None, [0]))


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    warnings.simplefilter("ignore", lv.TrustWarning)
    model, other, x = network().eval(), network().eval(), lv.noise.normal(0, 0, 0, ROWS * 784).view(ROWS, 784)
    space = Space.of(model)
    positions = space.flatten(model).detach() + 0.01 * lv.noise.normal(0, 1, range(DRAWS), space.dim)
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
            "part: sums over draws": lambda: sums(outputs, DRAWS),
            "part: the bank is read": lambda: [None for _ in bank.models(model)],
            "part: positions are finite": lambda: positions.isfinite().all(),
        }
        apart = lv.predict(model, bank, x, likelihood="categorical").probabilities - bare(other, states, x)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, work in ways.items():
                found[name].append(1e3 * seconds(work) / DRAWS)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, langevin {lv.__version__}"
    print(f"{datetime.date.today()}, {versions}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")
    print(f"largest difference between predict and the bare loop: {float(apart.abs().max()):.1e}")
    for name, times in found.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times, found["bare"], strict=True))
        print(f"{name:42s} median {statistics.median(times):7.2f} ms per draw, least {min(times):7.2f}   {ratio:6.3f} of bare")


if __name__ == "__main__":
    main()
