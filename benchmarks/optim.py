"""Optimizer steps and training steps: ours, torch's own, the peers', and the limit of the memory; ratios of one run.

    make bench-optim            makes an environment with the peers beside ours, measures, writes docs/benchmarks/optim.{md,png}

Contenders take turns, round after round, so that a busy moment of the machine hits all of them alike; the table shows the
median over the rounds (and the minimum), in milliseconds.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
import venv
import warnings
from pathlib import Path

import torch
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
PEERS = ["posteriors==0.1.3", "torch-sgld==0.1.0", "devinterp==2.0.1"]
NUM_DATA = 60_000


def enter_peer_environment():
    """Run this script again inside .venv-peers, which holds ours and the peers; made when it is missing."""
    folder = ROOT / ".venv-peers"
    python = folder / "bin" / "python"
    if Path(sys.prefix) == folder:
        return
    if not (folder / "installed").exists():
        print("installing the peers into .venv-peers", flush=True)
        venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "torch==2.13.0"], check=True)
        subprocess.run([*pip, *PEERS, "--editable", str(ROOT), "--editable", str(ROOT / "paper"), "torch==2.13.0"], check=True)
        (folder / "installed").touch()
    os.execv(python, [str(python), *sys.argv])


def plain_sgld(params, lr):
    """SGLD as most people write it: a loop, `randn_like`, in place."""
    epsilon = lr / NUM_DATA

    @torch.no_grad()
    def step():
        for p in params:
            p.sub_(p.grad + p / NUM_DATA, alpha=lr).add_(torch.randn_like(p), alpha=(2 * epsilon) ** 0.5)

    return step


def plain_msgld(params, lr, a=1.0, beta=0.9):
    """Algorithm 1 as most people would write it."""
    epsilon = lr / NUM_DATA
    averages = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step():
        for p, m in zip(params, averages, strict=True):
            g = p.grad * NUM_DATA + p
            p.sub_(g + a * m, alpha=epsilon).add_(torch.randn_like(p), alpha=(2 * epsilon) ** 0.5)
            m.mul_(beta).add_(g, alpha=1 - beta)

    return step


def contenders(model):
    """Return name -> step function for a model whose gradients are there."""
    import langevin as lv

    params, lr = list(model.parameters()), 1e-3
    ours = {"lr": lr, "num_data": NUM_DATA, "prior": lv.priors.gaussian(std=1.0)}
    steps = {
        "torch SGD(momentum, fused)": torch.optim.SGD(params, lr, momentum=0.9, fused=True).step,
        "torch Adam(fused)": torch.optim.Adam(params, lr, fused=True).step,
        "plain torch SGLD": plain_sgld(params, lr),
        "plain torch MSGLD": plain_msgld(params, lr),
        "langevin SGLD": lv.optim.SGLD(params, **ours).step,
        "langevin MSGLD": lv.optim.MSGLD(params, **ours).step,
        "langevin ASGLD": lv.optim.ASGLD(params, **ours).step,
        "langevin PSGLD": lv.optim.PSGLD(params, **ours).step,
        "langevin SGHMC": lv.optim.SGHMC(params, **ours).step,
        "langevin MSGLD(invariant)": lv.optim.MSGLD(params, invariant=True, **ours).step,
        "langevin ASGLD(invariant)": lv.optim.ASGLD(params, invariant=True, **ours).step,
        "langevin MSGLD(corrected)": lv.optim.MSGLD(params, invariant=True, noise="corrected", **ours).step,
        "langevin SGLRW": lv.optim.SGLRW(params, **ours).step,
        "langevin MSGLD(fused=False)": lv.optim.MSGLD(params, fused=False, **ours).step,
    }
    try:
        from torch_sgld import SGLD

        steps["torch-sgld SGLD"] = SGLD(params, lr / NUM_DATA).step
    except Exception as error:
        print(f"torch-sgld does not run here: {error!r}")
    try:
        from devinterp.optim import SGMCMC

        steps["devinterp SGLD"] = SGMCMC.sgld(params, lr=lr / NUM_DATA, nbeta=NUM_DATA).step
    except Exception as error:
        print(f"devinterp does not run here: {error!r}")
    return steps


def posteriors_step(model, x, y):
    """One whole training step of `posteriors`, which has no optimizer: gradient and update in one."""
    import posteriors

    parameters = dict(model.named_parameters())

    def log_posterior(values, batch):
        logits = torch.func.functional_call(model, values, batch[0])
        prior = posteriors.diag_normal_log_prob(values, normalize=False) / NUM_DATA
        return -functional.cross_entropy(logits, batch[1]) + prior, torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=1e-3 / NUM_DATA, temperature=1 / NUM_DATA)
    state = transform.init({name: value.detach().clone() for name, value in parameters.items()})

    def step():
        nonlocal state
        state, _ = transform.update(state, (x, y), inplace=True)

    return step


def measure(steps, rounds, repeats):
    """Return name -> seconds per call, one number per round; contenders take turns."""
    seconds = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            if number:  # the first round warms up and compiles
                seconds[name].append((time.perf_counter() - start) / repeats)
    return seconds


def bandwidth():
    """Return bytes per second of a triad over arrays far larger than the caches, the best of 10."""
    a, b, c = (torch.ones(16_000_000) for _ in range(3))
    best = min(_time(lambda: torch.add(a, b, out=c)) for _ in range(10))
    return 3 * 4 * a.numel() / best


def _time(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def training(model, x, y, step):
    """Return a whole training step around an optimizer's step function."""

    def whole():
        for p in model.parameters():
            p.grad = None
        functional.cross_entropy(model(x), y).backward()
        step()

    return whole


def models(quick):
    from langevin_paper.models import mlp, resnet18

    torch.manual_seed(0)
    yield "MLP 36-30-30-6", mlp(36, 30, 30, 6), torch.rand(50, 36), torch.randint(6, (50,)), (15, 200), (15, 50)
    yield "MLP 784-800-800-10", mlp(784, 800, 800, 10), torch.rand(100, 784), torch.randint(10, (100,)), (25, 8), (25, 6)
    tiny = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(100)))
    yield "200 tiny tensors", tiny, torch.rand(50, 3), torch.randint(3, (50,)), (15, 30), (9, 10)
    if not quick:
        yield "ResNet-18, batch 100", resnet18(), torch.rand(100, 3, 32, 32), torch.randint(10, (100,)), (9, 2), (5, 1)


def report(quick):
    """Measure everything; return the lines of a Markdown page and the numbers for the chart."""
    speed = bandwidth()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy"))
    peers = ", ".join(peer.replace("==", " ") for peer in PEERS)
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    processor = next((line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line), platform.machine())
    lines = [
        "# Optimizer and training steps",
        "",
        f"{datetime.date.today()}, {processor}, {torch.get_num_threads()} threads, Python {platform.python_version()}, {versions}; "
        f"peers: {peers}. Made by `make bench-optim`. Memory moves {speed / 1e9:.1f} GB/s (triad). Medians over rounds in which "
        "contenders take turns, then the minimum. Trust the ratios.",
    ]
    chart = {}
    for name, model, x, y, (rounds, repeats), (train_rounds, train_repeats) in models(quick):
        functional.cross_entropy(model(x), y).backward()
        steps = contenders(model)
        alone = measure(steps, rounds, repeats)
        size = sum(p.numel() for p in model.parameters())
        limit = 5 * 4 * size / speed  # MSGLD reads position, gradient and average and writes two of them back
        chosen = (
            steps
            if size < 1e7
            else {k: v for k, v in steps.items() if k.startswith(("torch SGD", "plain torch M", "langevin M", "langevin A"))}
        )
        whole = {key: training(model, x, y, step) for key, step in chosen.items()}
        whole["gradient alone"] = training(model, x, y, lambda: None)
        if size < 1e7:
            try:
                whole["posteriors SGLD"] = posteriors_step(model, x, y)
            except Exception as error:
                print(f"posteriors does not run here: {error!r}")
        trained = measure(whole, train_rounds, train_repeats)
        lines += _table(name, size, alone, trained, limit)
        chart[name] = (alone, trained)
        print("\n".join(lines[-len(alone) - 9 :]), flush=True)
    return lines, chart


def _table(name, size, alone, trained, limit):
    def cell(seconds, base):
        if seconds is None:
            return "| | | "
        middle = statistics.median(seconds)
        return f"| {1e3 * middle:.3f} | {1e3 * min(seconds):.3f} | {middle / base:.2f} "

    sgd_alone, sgd_whole = (statistics.median(t["torch SGD(momentum, fused)"]) for t in (alone, trained))
    rows = [f"| {key} {cell(alone.get(key), sgd_alone)}{cell(trained.get(key), sgd_whole)}|" for key in {**alone, **trained}]
    return [
        "",
        f"## {name}: {size:,} parameters",
        "",
        "| | update, ms | min | / SGD | training step, ms | min | / SGD |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"Limit for the MSGLD update: {1e3 * limit:.3f} ms (five passes over memory, no noise).",
    ]


def draw(chart, path):
    """Draw a bar chart of training steps relative to SGD, one panel per model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(chart), figsize=(5.2 * len(chart), 4.6), layout="constrained", squeeze=False)
    for axes, (name, (_, trained)) in zip(panels[0], chart.items(), strict=True):
        base = statistics.median(trained["torch SGD(momentum, fused)"])
        ratios = {key: statistics.median(values) / base for key, values in trained.items()}
        order = sorted(ratios, key=ratios.get, reverse=True)
        colours = ["#c44e3b" if "langevin" in key else "#9aa5b1" for key in order]
        bars = axes.barh(order, [ratios[key] for key in order], color=colours)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(f"{name}\ntraining step relative to fused SGD", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave ResNet-18 out")
    arguments = parser.parse_args()
    enter_peer_environment()
    warnings.filterwarnings("ignore")
    lines, chart = report(arguments.quick)
    folder = ROOT / "docs" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "optim.md").write_text("\n".join([*lines, "", "![training steps](optim.png)", ""]))
    draw(chart, folder / "optim.png")
    print(f"\nwritten: {folder / 'optim.md'} and optim.png")


if __name__ == "__main__":
    main()
