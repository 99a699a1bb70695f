"""Does the chosen prior predict as well as the best one? Digits: every scale with what `choose_prior` saw, and what it did not.

    python benchmarks/choose_prior.py | tee docs/benchmarks/choose_prior.txt

sklearn's digits, 1438 rows to learn from (of which validation holds 288 out) and 359 for the test; a tanh network 64-32-10,
Gaussian priors. The test NLL is that of draws of a longer run (4 chains, 1500 steps) on all 1438 rows, at each scale and
temperature. One split.
"""

from __future__ import annotations

import datetime
import platform
import warnings

import torch
from sklearn.datasets import load_digits
from torch import nn

import langevin as lv
from langevin.nn.choice.validation import held_out_nll, split

SCALES, FEW, TEMPERATURES = (0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0), (0.5, 1.0, 2.0, 5.0), (0.01, 0.1, 1.0)


def nll_of_test(model, data, test, scale, temperature):
    posterior = lv.Posterior(model, "categorical", prior=lv.priors.gaussian(scale), num_data=len(data[0]))
    settings = {"chains": 4, "temperature": temperature, "num_steps": 1500, "seed": 1}
    losses = held_out_nll(posterior, data, test, report=lambda done: None, **settings)
    return float(losses.mean())


def show(choice):
    for text in choice.warnings:
        print(f"  warning: {text}")
    print()


def main():
    warnings.simplefilter("ignore", lv.TrustWarning)  # said by `show`
    print(f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}\n")
    images, labels = load_digits(return_X_y=True)
    data, test = split((torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)), 0.2, seed=0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    tables = {}
    for by in ("marginal likelihood", "validation"):
        tables[by] = lv.choose_prior(model, "categorical", data=data, scales=SCALES, by=by)
        show(tables[by])
    print(f"{'scale':>8s}{'log evidence':>16s}{'held-out NLL':>16s}{'test NLL':>12s}")
    for first, second in zip(*(choice.table for choice in tables.values()), strict=True):
        chosen = [f"<- {by}" for by, row in zip(tables, (first, second), strict=True) if row.is_chosen]
        nll = nll_of_test(model, data, test, first.scale, 1.0)
        print(f"{first.scale:8g}{first.score:16.1f}{second.score:16.4f}{nll:12.4f}  {' '.join(chosen)}".rstrip(), flush=True)
    print()
    choice = lv.choose_prior(model, "categorical", data=data, scales=FEW, temperatures=TEMPERATURES, by="validation")
    show(choice)
    print(f"{'scale':>8s}{'temperature':>13s}{'held-out NLL':>16s}{'test NLL':>12s}")
    for row in choice.table:
        nll = nll_of_test(model, data, test, row.scale, row.temperature)
        mark = "  <- validation" if row.is_chosen else ""
        print(f"{row.scale:8g}{row.temperature:13g}{row.score:16.4f}{nll:12.4f}{mark}", flush=True)


if __name__ == "__main__":
    main()
