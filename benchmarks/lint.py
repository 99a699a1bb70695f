"""What the mistakes that `langevin.nn.lint` looks for do to a posterior: sd and bias of the draws against the exact ones.

.venv/bin/python benchmarks/lint.py | tee docs/benchmarks/lint.txt       minutes
"""

from __future__ import annotations

import warnings

import torch
from torch import nn

import langevin as lv

NUM_DATA, BATCH, STEPS, BURN, NOISE, PRIOR_STD = 100, 20, 30_000, 2_000, 0.5, 1.0
DATA = lv.random.stream(lv.random.Purpose.DATA)


def mean_loss(f, y):
    return ((f - y) ** 2 / (2 * NOISE**2)).mean()


def regression_data():
    """Two columns and a line with errors of sd .5."""
    draw = lv.random.normal(0, DATA, 0, 3 * NUM_DATA, dtype=torch.float64).reshape(NUM_DATA, 3)
    x = draw[:, :2]
    return x, x @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + NOISE * draw[:, 2:]


def run(loss_fn=mean_loss, *, num_data=NUM_DATA, parts=1, zero=True, clip=None, dropout=0.0, scale=1.0, penalty=0.0, norm=False):
    """Train by SGLD with one mistake, on batches in turn; return sd and bias of the draws in units of the exact sd."""
    x, y = regression_data()
    linear = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(linear.weight)
    layers = [nn.BatchNorm1d(2, affine=False, dtype=torch.float64)] if norm else []
    model = nn.Sequential(*layers, nn.Dropout(dropout), linear)
    precision = x.T @ x / NOISE**2 + torch.eye(2, dtype=torch.float64) / PRIOR_STD**2
    mean, sd = torch.linalg.solve(precision, x.T @ y / NOISE**2)[:, 0], precision.inverse().diagonal().sqrt()
    lr = 0.02 * NUM_DATA / float(torch.linalg.eigvalsh(precision)[-1])
    prior = lv.priors.gaussian(std=PRIOR_STD)
    optimizer = lv.optim.SGLD(model.parameters(), lr=lr, num_data=num_data, prior=prior, seed=3)
    draws = torch.empty(STEPS, 2, dtype=torch.float64)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        torch.manual_seed(0)
        for step in range(STEPS):
            rows = slice(BATCH * (step % (NUM_DATA // BATCH)), BATCH * (step % (NUM_DATA // BATCH) + 1))
            if zero:
                optimizer.zero_grad()
            for x_part, y_part in zip(x[rows].chunk(parts), y[rows].chunk(parts), strict=True):
                loss = scale * loss_fn(model(x_part), y_part) + penalty / 2 * linear.weight.square().sum()
                loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            draws[step] = linear.weight.detach()[0]
    draws = draws[BURN:]
    return float((draws.std(0) / sd).mean()), float(((draws.mean(0) - mean) / sd).abs().max())


def labelled(weight=1.0, smoothing=0.0):
    """Return sd and bias of the slope of a logistic regression, by quadrature: the law that such a loss belongs to."""
    x = lv.random.normal(0, DATA, 1, NUM_DATA, dtype=torch.float64)
    y = (torch.special.ndtr(lv.random.normal(0, DATA, 2, NUM_DATA, dtype=torch.float64)) < torch.sigmoid(1.5 * x)).double()
    theta = torch.linspace(-2, 6, 8001, dtype=torch.float64)

    def moments(weight, smoothing):
        label = y * (1 - smoothing) + smoothing / 2
        logit = theta[:, None] * x
        nll = nn.functional.binary_cross_entropy_with_logits(logit, label.expand_as(logit), reduction="none")
        energy = (nll * (1 + (weight - 1) * y)).sum(1) + theta**2 / 2
        law = torch.softmax(-energy, 0)
        mean = law @ theta
        return mean, (law @ (theta - mean) ** 2).sqrt()

    (mean, sd), (wrong_mean, wrong_sd) = moments(1.0, 0.0), moments(weight, smoothing)
    return float(wrong_sd / sd), float((wrong_mean - mean).abs() / sd)


CASES = {
    "no mistake": lambda: run(),
    "sum loss": lambda: run(lambda f, y: ((f - y) ** 2 / (2 * NOISE**2)).sum()),
    "squared error (MSELoss)": lambda: run(nn.MSELoss()),
    "num_data of batches, 5": lambda: run(num_data=NUM_DATA // BATCH),
    "num_data of a batch, 20": lambda: run(num_data=BATCH),
    "accumulation, 4 summed": lambda: run(parts=4),
    "zero_grad missing": lambda: run(zero=False),
    "penalty of the prior's size": lambda: run(penalty=1 / NUM_DATA / PRIOR_STD**2),
    "penalty of 0.1 theta": lambda: run(penalty=0.1),
    "dropout of 0.2": lambda: run(dropout=0.2),
    "batchnorm in training mode": lambda: run(norm=True),
    "clipping at norm 0.1": lambda: run(clip=0.1),
    "loss scale of 65536": lambda: run(scale=65536.0),
    "class weights, 1 counts 3 times": lambda: labelled(weight=3.0),
    "label smoothing of 0.1": lambda: labelled(smoothing=0.1),
}

if __name__ == "__main__":
    print(f"{'mistake':<34}{'sd / exact sd':>16}{'|bias| / exact sd':>20}")
    for name, case in CASES.items():
        sd, bias = case()
        print(f"{name:<34}{sd:>16.2f}{bias:>20.2f}", flush=True)
