"""How fast is addressed noise? One table, measured side by side in one run: `python benchmarks/noise.py`."""

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from langevin.random import Purpose, batch_indices, normal, normal_reference, stream, streams

REPEATS = 60
CHAIN = stream(Purpose.POSITION)

Contenders = dict[str, tuple[int, Callable[[], object]]]  # name: torch threads, what to run


def measure(contenders: Contenders, repeats: int) -> dict[str, list[float]]:
    """Seconds of each contender, taking turns so that a busy moment of the machine hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 2):
        for name, (num_threads, draw) in contenders.items():
            torch.set_num_threads(num_threads)
            begin = time.perf_counter()
            draw()
            if turn >= 2:  # the first turns compile and warm up
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def report(title: str, numbers: int, contenders: Contenders, repeats: int = REPEATS) -> None:
    seconds = measure(contenders, repeats)
    baseline = min(next(iter(seconds.values())))
    print(f"\n{title}\n{'':34}{'min ms':>9}{'median ms':>11}{'min ns each':>13}{'times first':>13}")
    for name, values in seconds.items():
        low, middle = min(values), statistics.median(values)
        print(f"{name:34}{low * 1e3:9.3f}{middle * 1e3:11.3f}{low / numbers * 1e9:13.2f}{baseline / low:13.2f}")


def main() -> None:
    threads = torch.get_num_threads()
    print(f"{datetime.datetime.now():%Y-%m-%d %H:%M}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}")

    size = 1_280_000
    generator, buffer = np.random.default_rng(0), torch.empty(size)
    report(
        f"{size} float32, n = {REPEATS}",
        size,
        {
            "torch.randn": (threads, lambda: torch.randn(size)),
            "numpy standard_normal": (1, lambda: generator.standard_normal(size, dtype=np.float32)),
            "normal, 1 thread": (1, lambda: normal(0, CHAIN, 0, size)),
            "normal, 2 threads": (2, lambda: normal(0, CHAIN, 0, size)),
            "normal_reference": (threads, lambda: normal_reference(0, CHAIN, 0, size)),
            "fill_ of an old array, 1 thread": (1, lambda: buffer.fill_(1.0)),
            "fill_ of a new array, 1 thread": (1, lambda: torch.empty(size).fill_(1.0)),
        },
    )
    report(
        f"{size} float64, n = {REPEATS}",
        size,
        {
            "torch.randn": (threads, lambda: torch.randn(size, dtype=torch.float64)),
            "normal, 1 thread": (1, lambda: normal(0, CHAIN, 0, size, dtype=torch.float64)),
            "normal, 2 threads": (2, lambda: normal(0, CHAIN, 0, size, dtype=torch.float64)),
        },
    )
    for steps, chains, dim in [(64, 1000, 2), (1, 1000, 2), (16, 25, 2000), (1, 1, 100)]:
        address = (streams(Purpose.POSITION, range(chains)), range(steps), dim)
        report(
            f"{steps} steps x {chains} chains x {dim} float32, n = {20 * REPEATS}",
            steps * chains * dim,
            {
                "torch.randn": (threads, lambda: torch.randn(steps, chains, dim)),  # noqa: B023
                "normal, 1 thread": (1, lambda: normal(0, *address)),  # noqa: B023
                "normal, 2 threads": (2, lambda: normal(0, *address)),  # noqa: B023
            },
            20 * REPEATS,
        )
    batches = streams(Purpose.BATCH, range(25))
    report(
        f"64 steps x 25 chains x batches of 50 out of 4435, n = {REPEATS}",
        64 * 25 * 50,
        {
            "torch.randint (with replacement)": (threads, lambda: torch.randint(4435, (64, 25, 50))),
            "batch_indices, 1 thread": (1, lambda: batch_indices(0, batches, range(64), 50, 4435)),
            "batch_indices, 2 threads": (2, lambda: batch_indices(0, batches, range(64), 50, 4435)),
        },
    )


if __name__ == "__main__":
    main()
