"""How time per step grows with chains, dimension and data, compiled: a table, slopes and a picture for each.

    python benchmarks/growth.py            writes docs/benchmarks/growth.{md,png}
    python benchmarks/growth.py --quick    a smoke run, written to out/benchmarks

SGLD, float32, one process; every position is kept. The clock starts when compiled steps have begun. The slope is that of log time
over log size between neighbours: 0 where a step costs the same whatever its size, 1 where the cost grows as the size does.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import time
import warnings
from pathlib import Path

import torch

import langevin as lv

ROOT = Path(__file__).resolve().parents[1]


def microseconds(kernel, target, init, **data):
    """Return microseconds per step, the least over stretches of blocks of one compiled run."""
    steps = max(64, min(400_000, 2**27 // init.numel()))
    marks = []

    def tell(done, _):
        marks.append((done, time.perf_counter()))

    lv.sample(target, sampler=kernel, init=init, num_steps=steps, compile=True, progress=tell, **data)
    marks = marks[2:]  # the first steps are eager, and the next wait for the compiler
    stretch = max(1, len(marks) // 8)
    pairs = list(zip(marks, marks[stretch:], strict=False))
    return 1e6 * min((late - early) / (end - begin) for (begin, early), (end, late) in pairs if end > begin)


def with_chains(chains):
    return microseconds(lv.sgld(0.05), lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]]), torch.zeros(chains, 2))


def with_dimension(dim):
    target = lv.targets.energy(lambda theta: 0.5 * (theta * theta).sum())
    return microseconds(lv.sgld(0.05), target, torch.zeros(1, dim))


def with_data(rows):
    x = lv.random.normal(0, 0, 0, 10 * rows).view(rows, 10)
    y = (x[:, 0] > 0).float()
    softplus = torch.nn.functional.softplus
    target = lv.targets.likelihood(lambda theta, x, y: y * (x @ theta) - softplus(x @ theta), prior=lv.priors.gaussian(std=1.0))
    return microseconds(lv.sgld(0.1 / rows), target, torch.zeros(1, 10), data=(x, y), batch_size=100)


FAMILIES = {
    "chains": ("chains, 2-dimensional Gaussian", with_chains, [1, 10, 100, 1_000, 10_000, 100_000]),
    "dimension": ("dimension, one chain, unit Gaussian by automatic differentiation", with_dimension, [10**k for k in range(7)]),
    "data": ("rows, logistic regression, 10 coefficients, batches of 100", with_data, [10**k for k in range(3, 8)]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two sizes each, written to out/benchmarks")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore", lv.TrustWarning)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, langevin {lv.__version__}"
    lines = [
        "# How time grows",
        "",
        f"{datetime.date.today()}, {versions}, {os.cpu_count()} cores, {torch.get_num_threads()} threads. Made by "
        "`python benchmarks/growth.py`: microseconds per step of all chains, compiled, the least of eight stretches of one run; "
        "every position is kept. The slope is that of log time over log size since the row before: at most 1 means no cliff.",
    ]
    found = {}
    for name, (words, measure, sizes) in FAMILIES.items():
        lines += ["", f"## {name.capitalize()}: {words}", "", f"| {name} | µs per step | slope |", "| --- | --- | --- |"]
        rows = found[name] = []
        for size in sizes[:2] if quick else sizes:
            rows.append((size, measure(size)))
            slope = "" if len(rows) == 1 else f"{math.log(rows[-1][1] / rows[-2][1]) / math.log(rows[-1][0] / rows[-2][0]):.2f}"
            lines.append(f"| {size:,} | {rows[-1][1]:.4g} | {slope} |")
            print(name, lines[-1], flush=True)
    folder = ROOT / ("out" if quick else "docs") / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "growth.md").write_text("\n".join([*lines, "", "![time per step](growth.png)", ""]))
    draw(found, folder / "growth.png")


def draw(found, path):
    """Draw time over size, one panel for each kind of size, with a line of slope 1."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(12, 4), layout="constrained", sharey=True)
    for axes, (name, rows) in zip(panels, found.items(), strict=True):
        sizes, times = zip(*rows, strict=True)
        axes.loglog(sizes, times, "o-", color="#c44e3b")
        last = times[-1] / sizes[-1]
        axes.loglog(sizes, [last * size for size in sizes], ":", color="#5f6b7a")
        axes.set_ylim(bottom=0.8)
        axes.set_xlabel(name)
        axes.set_title(FAMILIES[name][0], fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("µs per step (dotted: slope 1)")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
