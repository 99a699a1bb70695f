"""The local learning coefficient against the truth: nine normal crossings and twelve reduced-rank regressions.

.venv/bin/python benchmarks/llc.py              writes docs/benchmarks/llc.md; about half an hour on one core
.venv/bin/python benchmarks/llc.py crossings    one of the two tables only

Population losses, so w* is an exact minimum and n β can be as large as one likes:

- K = w1^(2a) w2^(2b), w* = 0: λ = min 1 / (2 k_i), multiplicity m = how often that is attained; λ̂ at each n β also by quadrature;
- K = |B A - B0 A0|^2 / 2, the loss of y = B A x + N(0, I) for x ~ N(0, I), w* = (A0, B0) with H - r hidden units at zero, where the
  loss is most singular: λ by Aoyagi and Watanabe (2005). Their formula is checked against a second derivation in tests/test_llc.py.

`plain` is λ̂ at the largest n β, `limit` what `llc_limit` makes of all rungs. Localisation γ = 1 throughout: for K that scales with
w, less γ is the same as more β. Seed 0, float64; 8000 chains x 100 draws for crossings, 200 x 200 for regressions (1000 x 200 up
to 12 parameters). `sigma` is how many standard errors the worst rung is from quadrature.

No blind test of the limit: two weights of `llc_limit`, and the n β of the crossings, were chosen with these crossings and the
regressions (2, 2, 2; 0), (2, 1, 2; 0), (3, 2, 3; 1) and (4, 2, 4; 0) in view (exact moments with noise, and shorter runs). The
limits of the other eight regressions were first seen after that. Plain estimates have no such weights; their n β was chosen.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import langevin as lv

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "llc.md"
NUM_DATA, GAMMA, SEED = 1000, 1.0, 0
CROSSINGS = {  # exponents (a, b): the powers of ten of n β
    (0, 1): (2, 3, 4), (1, 1): (2, 3, 4, 5), (0, 2): (2, 4, 6), (1, 2): (2, 3, 4, 5), (2, 2): (2, 4, 6, 8),
    (0, 3): (2, 4, 6, 8), (1, 3): (2, 3, 4, 5), (2, 3): (2, 4, 6, 8), (3, 3): (2, 4, 6, 8, 10),
}  # fmt: skip
REGRESSIONS = [  # (inputs M, hidden H, outputs N, true rank r)
    (2, 2, 2, 0), (2, 1, 2, 0), (3, 2, 3, 1), (4, 2, 4, 0), (5, 3, 5, 0), (5, 3, 5, 1), (5, 3, 5, 2), (5, 3, 5, 3),
    (5, 4, 5, 0), (4, 3, 8, 0), (8, 3, 4, 0), (3, 8, 4, 0),
]  # fmt: skip
POWERS = (2, 3, 4)


class Crossing(nn.Module):
    """K = prod w_i^(2 k_i), the loss itself."""

    def __init__(self, *exponents):
        """Start at the singularity, w = 0."""
        super().__init__()
        self.exponents = exponents
        self.w = nn.Parameter(torch.zeros(len(exponents), dtype=torch.float64))

    def forward(self):
        """Return K."""
        result = self.w.new_ones(())
        for k, power in enumerate(self.exponents):
            result = result * self.w[k] ** (2 * power) if power else result
        return result


class ReducedRank(nn.Module):
    """K = |B A - B0 A0|^2 / 2 with B0 A0 of rank r, its nonzero singular values 1."""

    def __init__(self, inputs, hidden, outputs, rank):
        """Start at (A0, B0)."""
        super().__init__()
        first, second = torch.eye(hidden, inputs, dtype=torch.float64), torch.eye(outputs, hidden, dtype=torch.float64)
        first[rank:], second[:, rank:] = 0.0, 0.0
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.register_buffer("truth", second @ first)

    def forward(self):
        """Return K."""
        return 0.5 * (self.second @ self.first - self.truth).square().sum()


def truth_of_crossing(exponents):
    """Return λ and the multiplicity."""
    most = max(exponents)
    return 1 / (2 * most), exponents.count(most)


def truth_of_regression(inputs, hidden, outputs, rank):
    """Return λ and the multiplicity (Aoyagi and Watanabe 2005)."""
    m, h, n, r = inputs, hidden, outputs, rank
    if m + h < n + r:
        return (h * m - h * r + n * r) / 2, 1
    if n + h < m + r:
        return (h * n - h * r + m * r) / 2, 1
    if m + n < h + r:
        return m * n / 2, 1
    odd = (m + h + n + r) % 2
    return (2 * (h + r) * (m + n) - (m - n) ** 2 - (h + r) ** 2 + odd) / 8, 1 + odd


def quadrature(exponents, n_beta, points=2501):
    """Return E[n β K] under exp(-n β K - γ/2 |w|^2), by the trapezoid rule in log |w|."""
    logs = np.linspace(np.log(1e-14), np.log(9.0), points)
    w = np.exp(logs)
    weight = -GAMMA * w * w / 2 + logs
    x = n_beta * w[:, None] ** (2 * exponents[0]) * w[None, :] ** (2 * exponents[1])
    density = np.exp(weight[:, None] + weight[None, :] - x)
    return float((density * x).sum() / density.sum())


def ladder(model, powers, chains, draws):
    """Return the estimates at each power of ten of n β, and what was said against them other than that λ̂ depends on γ."""
    found, said = [], []
    for power in powers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lv.TrustWarning)
            found.append(
                lv.llc(
                    model, num_data=NUM_DATA, beta=10.0**power / NUM_DATA, localisation=GAMMA, chains=chains, num_draws=draws,
                    seed=SEED, compile=False, progress=False,
                )
            )  # fmt: skip
        said += [f"1e{power}: {text.split(':')[0]}" for text in found[-1].warnings if "depends on" not in text]
    return found, said


def row(name, truth, found, said, seconds, sigma):
    """Return a line of the table."""
    (value, multiplicity), limit, last = truth, lv.llc_limit(found), found[-1]
    off, plain = limit.estimate / value - 1, last.estimate / value - 1
    text = (
        f"| {name} | {value:.4g} | {multiplicity} | {last.n_beta:.0e} | {last.estimate:.4g} ± {last.error:.1g} | {plain:+.1%} | "
        f"{limit.estimate:.4g} ± {limit.error:.1g} | {off:+.1%} | {sigma} | {seconds:.0f} | {'; '.join(said)} |"
    )
    print(text, flush=True)
    return text, abs(plain), abs(off)


def crossings():
    """Yield the lines of the first table."""
    for exponents, powers in CROSSINGS.items():
        began = time.perf_counter()
        found, said = ladder(Crossing(*exponents), powers, 8000, 100)
        exact = [quadrature(exponents, result.n_beta) for result in found]
        sigma = max(((r.estimate - e) / r.error for r, e in zip(found, exact, strict=True)), key=abs)
        yield row(f"w1^{2 * exponents[0]} w2^{2 * exponents[1]}", truth_of_crossing(exponents), found, said,
                  time.perf_counter() - began, f"{sigma:+.1f}")  # fmt: skip


def regressions():
    """Yield the lines of the second table."""
    for case in REGRESSIONS:
        began, model = time.perf_counter(), ReducedRank(*case)
        found, said = ladder(model, POWERS, 1000 if model.first.numel() + model.second.numel() <= 12 else 200, 200)
        yield row(f"({case[0]}, {case[1]}, {case[2]}; {case[3]})", truth_of_regression(*case), found, said,
                  time.perf_counter() - began, "")  # fmt: skip


HEAD = """| loss | λ | m | n β | plain λ̂ | off | limit | off | sigma | s | said against it |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
TABLES = {"crossings": ("Normal crossings", crossings), "regressions": ("Reduced-rank regression, (M, H, N; r)", regressions)}


def when():
    """Say with what a table was made."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy"))
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return f"{datetime.date.today()}, Python {platform.python_version()}, {versions}, OMP_NUM_THREADS={threads}"


def section(name):
    """Return the text of one table, printed line by line while it is made."""
    title, lines = TABLES[name]
    print(f"{title}\n{HEAD}", flush=True)
    rows = list(lines())
    plain, limit = (sum(line[k] < 0.05 for line in rows) for k in (1, 2))
    verdict = f"Within 5 %: {limit} of {len(rows)} limits, {plain} of {len(rows)} plain estimates. ({when()}; a shared machine.)"
    print(verdict, flush=True)
    return "\n\n".join([f"## {title}", "\n".join([HEAD, *(line[0] for line in rows)]), verdict])


def main(asked):
    """Make the tables that are asked for, all by default; the page keeps the others as they are."""
    for name in asked or TABLES:
        text = section(name)
        old = PAGE.read_text().split("\n\n## ")[1:] if PAGE.exists() else []
        parts = {title: part for title, _ in TABLES.values() for part in ["## " + o for o in old] if part.startswith(f"## {title}")}
        parts[TABLES[name][0]] = text
        head = [
            "# Accuracy of the local learning coefficient",
            "Written by `benchmarks/llc.py`.",
            __doc__.split("\n\n", 2)[2].strip(),
        ]
        ordered = [parts[title].strip() for title, _ in TABLES.values() if title in parts]
        PAGE.write_text("\n\n".join([*head, *ordered]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
