"""Memory of a run that streams its draws to disk, for 1 and 10 times as many draws, beside a run that keeps them in memory.

    python benchmarks/memory.py        about a minute; writes docs/benchmarks/memory.{md,png}

Each run is a process of its own; its resident memory is read every 50 ms from /proc.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
CHAINS, DIM, STEPS = 100, 100, 2_000


def run(num_steps, out):
    """Sample once and print the curve of resident megabytes above the start, and the seconds, as JSON."""
    import langevin as lv

    page = 4096 / 2**20
    curve, done = [], threading.Event()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    target, kernel = lv.targets.gaussian(torch.eye(DIM)), lv.sgld(step_size=0.05)
    init = torch.zeros(CHAINS, DIM)
    lv.sample(target, sampler=kernel, init=init, num_steps=300, compile=False)  # what is loaded once is not of interest
    first, start = resident(), time.perf_counter()

    def watch():
        while not done.wait(0.05):
            curve.append((time.perf_counter() - start, resident() - first))

    watcher = threading.Thread(target=watch)
    watcher.start()
    lv.sample(target, sampler=kernel, init=init, num_steps=num_steps, compile=False, out=out, progress=False)
    done.set()
    watcher.join()
    print(json.dumps({"curve": curve, "seconds": time.perf_counter() - start}))


def main():
    if len(sys.argv) > 1:
        run(int(sys.argv[1]), None if sys.argv[2] == "-" else sys.argv[2])
        return
    results = {}
    for factor in (1, 10):
        for where in ("memory", "disk"):
            with tempfile.TemporaryDirectory() as folder:
                out = "-" if where == "memory" else f"{folder}/run.zarr"
                done = subprocess.run(
                    [sys.executable, __file__, str(factor * STEPS), out], capture_output=True, text=True, check=True
                )
            results[factor, where] = json.loads(done.stdout.splitlines()[-1])
    lines = [
        "# Memory of a streaming run",
        "",
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} "
        f"threads. {CHAINS} chains of dimension {DIM}, float32, every position kept. Made by `python benchmarks/memory.py`.",
        "",
        "| draws per chain | size of the draws, MB | kept in | peak memory above the start, MB | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (factor, where), result in results.items():
        peak = max(megabytes for _, megabytes in result["curve"])
        size = factor * STEPS * CHAINS * DIM * 4 / 2**20
        lines.append(f"| {factor * STEPS:,} | {size:.0f} | {where} | {peak:.0f} | {result['seconds']:.1f} |")
        times, values = zip(*result["curve"], strict=True)
        colour = "#c44e3b" if where == "disk" else "#9aa5b1"
        axes.plot(
            [t / times[-1] for t in times],
            values,
            color=colour,
            linewidth=1 + (factor > 1),
            label=f"{where}, {factor * STEPS:,} draws",
        )
    axes.set(xlabel="share of the run", ylabel="resident memory above the start, MB")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / "memory.png", dpi=130)
    (FOLDER / "memory.md").write_text("\n".join([*lines, "", "![memory](memory.png)", ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
