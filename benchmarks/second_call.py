"""What a call of `sample` costs beside its steps when a call of equal structure came before: targets, data and samplers are new.

    python benchmarks/second_call.py | tee docs/benchmarks/second_call.txt

A call of 10 blocks and a call of 2 give the time of a block, and so what is left of the short call, its eager steps included:
medians of 9 pairs, in milliseconds. The first call compiles, where the code is not on disk.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import time
import warnings

import torch
from torch.nn import functional

import langevin as lv

BLOCK = 4096  # steps


def energy(number):
    precision = torch.tensor([[2.0, 0.5], [0.5, 1.0 + number]])
    return lv.sgld(0.05), lv.targets.energy(lambda theta: 0.5 * theta @ precision @ theta), torch.zeros(100, 2), {}


def gaussian(number):
    return lv.sghmc(0.05), lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0 + number]]), torch.zeros(100, 2), {}


def logistic(number):
    x = lv.random.normal(number, 0, 0, 600).view(200, 3)
    y = (x.sum(1) > 0).float()
    log_likelihood = lambda theta, x, y: y * (x @ theta) - functional.softplus(x @ theta)  # noqa: E731 - new at every call
    target = lv.targets.likelihood(log_likelihood, prior=lv.priors.gaussian(std=1.0))
    return lv.msgld(1e-3, invariant=True), target, torch.zeros(4, 3), {"data": (x, y), "batch_size": 20}


def seconds(build, number, blocks):
    kernel, target, init, options = build(number)
    start = time.perf_counter()
    lv.sample(target, sampler=kernel, init=init, num_steps=blocks * BLOCK, seed=number, compile=True, progress=False, **options)
    return time.perf_counter() - start


def main():
    warnings.simplefilter("ignore", lv.TrustWarning)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    print(f"{datetime.date.today()}, {versions}, {torch.get_num_threads()} threads")
    for build in (energy, gaussian, logistic):
        first = seconds(build, 0, 2)
        over, block = [], []
        for number in range(1, 10):
            long, short = seconds(build, number, 10), seconds(build, number, 2)
            block.append(1e3 * (long - short) / 8)
            over.append(1e3 * short - 2 * block[-1])
        later = f"a block of {BLOCK} steps {statistics.median(block):6.1f} ms, all the rest {statistics.median(over):5.1f} ms"
        print(f"{build.__name__:10s} first call {first:6.1f} s; later ones: {later} (largest {max(over):.1f})")


if __name__ == "__main__":
    main()
