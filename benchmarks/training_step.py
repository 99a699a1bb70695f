"""A training step of our optimizers over one of torch's fused SGD with momentum, on three networks; ratios of one run.

    OMP_NUM_THREADS=1 python benchmarks/training_step.py | tee docs/benchmarks/training_step.txt

A training step is forward, backward and step. Contenders take turns; a row is the least of all rounds. 36-30-30-6 is the paper's
network for Landsat, 784-800-800-10 that for MNIST, and 200 tensors of 10 numbers are many small ones.
"""

from __future__ import annotations

import datetime
import itertools
import platform
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

import langevin as lv


class Many(nn.Module):
    """Two hundred small tensors."""

    def __init__(self) -> None:
        """Zeros."""
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(10)) for _ in range(200)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return their sum for each row."""
        return (torch.stack(list(self.parts)).sum() + 0 * x).sum(-1, keepdim=True).expand(-1, 2)


def mlp(*sizes: int) -> nn.Module:
    """Return a network."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int, int, int]] = {
    "36-30-30-6": (lambda: mlp(36, 30, 30, 6), 36, 6, 50, 400),
    "784-800-800-10": (lambda: mlp(784, 800, 800, 10), 784, 10, 100, 10),
    "200 tensors of 10": (Many, 4, 2, 8, 60),
}
OPTIMIZERS = {
    "SGD (fused, momentum)": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
    "SGLD": lambda p: lv.optim.SGLD(p, lr=1e-3, num_data=10_000),
    "MSGLD": lambda p: lv.optim.MSGLD(p, lr=1e-3, num_data=10_000),
    "SGHMC": lambda p: lv.optim.SGHMC(p, lr=1e-3, num_data=10_000),
    "PSGLD": lambda p: lv.optim.PSGLD(p, lr=1e-5, num_data=10_000),
    "MSGLD, invariant": lambda p: lv.optim.MSGLD(p, lr=1e-3, num_data=10_000, invariant=True),
    "ASGLD, invariant": lambda p: lv.optim.ASGLD(p, lr=1e-3, num_data=10_000, invariant=True),
}


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")  # contenders draw the same noise
    print(
        f"{datetime.date.today()}, langevin {lv.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} thread; microseconds of a training step (over fused SGD's)"
    )
    for name, (make, inputs, classes, rows, steps) in NETWORKS.items():
        x, y = torch.randn(rows, inputs), torch.arange(rows) % classes
        calls: dict[str, Callable[[], None]] = {}
        for which, build in OPTIMIZERS.items():
            model = make()
            optimizer = build(list(model.parameters()))

            def call(model=model, optimizer=optimizer, x=x, y=y):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

            calls[which] = call
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(15):
            for which, call in calls.items():
                begin = time.perf_counter()
                for _ in range(steps):
                    call()
                best[which] = min(best[which], (time.perf_counter() - begin) / steps)
        base = best["SGD (fused, momentum)"]
        print(f"\n{name}")
        for which, seconds in best.items():
            print(f"  {which:24s} {1e6 * seconds:9.1f}  {seconds / base:5.2f}")


if __name__ == "__main__":
    main()
