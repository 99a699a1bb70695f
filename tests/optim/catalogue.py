"""The optimizers of the sampler table, what they must refuse, and a small network to train with them."""

from __future__ import annotations

import math

import torch
from sampler_table import TABLE
from torch import nn

import langevin as lv

ENTRIES = {
    entry.optimizer.__name__ + name.removeprefix(name.partition(",")[0]): entry for name, entry in TABLE.items() if entry.optimizer
}  # by the name of the class and the form: "MSGLD, invariant"
OPTIMIZERS = {  # with those of the sampler's settings that an optimizer takes: its form may be fixed
    name: (entry.optimizer, {key: value for key, value in entry.settings.items() if key in entry.optimizer.settings})
    for name, entry in ENTRIES.items()
}
MEMORY = {name: set(entry.memory) for name, entry in ENTRIES.items()}
GAUSSIAN = lv.priors.gaussian(std=0.7)
NUM_DATA = 50


def network(dtype=torch.float32, bias=True):
    """Make a small network whose sizes are no multiples of a vector, with weights from addressed noise."""
    with torch.random.fork_rng():  # torch's own initialisation draws from the global generator, which tests leave alone
        model = nn.Sequential(nn.Linear(5, 7, bias=bias), nn.Tanh(), nn.Linear(7, 3, bias=bias)).to(dtype)
    weights = lv.random.normal(1, lv.random.stream(lv.random.Purpose.INIT), 0, sum(p.numel() for p in model.parameters()))
    nn.utils.vector_to_parameters((0.3 * weights).to(dtype), model.parameters())
    return model


def build(name, params, **changes):
    cls, settings = OPTIMIZERS[name]
    return cls(params, **{"lr": 0.02, "num_data": NUM_DATA, "prior": GAUSSIAN, "seed": 5, **settings, **changes})


def data(dtype=torch.float32, rows=11):
    at = lv.random.stream(lv.random.Purpose.DATA)
    x = lv.random.normal(2, at, 0, rows * 5, dtype=torch.float64).reshape(rows, 5)
    y = lv.random.normal(2, at, 1, rows * 3, dtype=torch.float64).reshape(rows, 3)
    return x.to(dtype), y.to(dtype)


def train(model, optimizer, steps, dtype=torch.float32):
    x, y = data(dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def one():
    return [nn.Parameter(torch.ones(3))]


BAD = {
    "no num_data": (lambda: lv.optim.SGLD(one(), lr=0.1), TypeError, "num_data"),
    "fractional num_data": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10.5), TypeError, r"num_data=.*10\.5"),
    "num_data of zero": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=0), ValueError, r"num_data=.*0"),
    "negative lr": (lambda: lv.optim.MSGLD(one(), lr=-0.1, num_data=10), ValueError, r"MSGLD\(lr=.*-0\.1"),
    "nan lr": (lambda: lv.optim.SGLD(one(), lr=math.nan, num_data=10), ValueError, r"lr=.*nan"),
    "lr as text": (lambda: lv.optim.SGLD(one(), lr="0.1", num_data=10), TypeError, r"lr=.*'0\.1'"),
    "negative temperature": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, temperature=-1.0), ValueError, r"temperature=.*-1"),
    "negative weight decay": (
        lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, weight_decay=-5e-4),
        ValueError,
        r"SGLD\(weight_decay=.*-0\.0005",
    ),
    "weight decay beside a prior": (
        lambda: lv.optim.SGLD([{"params": one(), "weight_decay": 0.1}], lr=0.1, num_data=10, prior=GAUSSIAN),
        ValueError,
        r"weight_decay=.*together with prior=GaussianPrior.*0\.1",
    ),
    "fused as a number": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, fused=0), TypeError, r"SGLD\(fused=.*got 0"),
    "fused as text": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, fused="x"), TypeError, r"SGLD\(fused=.*'x'"),
    "negative chain": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, chain=-1), ValueError, r"SGLD\(chain=.*-1"),
    "huge chain": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, chain=2**32), ValueError, r"SGLD\(chain=.*2\*\*32"),
    "address inside a block": (
        lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, first_address=6),
        ValueError,
        r"multiple of 4.*got 6",
    ),
    "addresses of its own for a group": (
        lambda: lv.optim.SGLD([{"params": one()}, {"params": one(), "first_address": 8}], lr=0.1, num_data=10),
        ValueError,
        r"equal in all groups.*got 8",
    ),
    "schedule that is none": (
        lambda: lv.optim.MSGLD(one(), lr=0.1, num_data=10, bias_factor="linear"),
        TypeError,
        r"bias_factor=.*'linear'",
    ),
    "momentum": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, momentum=0.9), TypeError, r"momentum=0\.9.*SGHMC"),
    "unknown argument": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, nesterov=True), TypeError, "nesterov"),
    "prior that is none": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, prior=0.5), TypeError, r"prior=.*0\.5"),
    "seed as text": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, seed="1"), TypeError, r"seed=.*'1'"),
    "negative seed": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, seed=-1), ValueError, r"seed=.*-1"),
    "huge seed": (lambda: lv.optim.SGLD(one(), lr=0.1, num_data=10, seed=2**64), ValueError, r"seed="),
    "beta": (lambda: lv.optim.MSGLD(one(), lr=0.1, num_data=10, beta=1.0), ValueError, r"beta=.*1\.0"),
    "betas": (lambda: lv.optim.ASGLD(one(), lr=0.1, num_data=10, betas=(0.9, 0.8)), ValueError, r"beta_1\*\*2 < beta_2"),
    "adapt_steps of zero": (
        lambda: lv.optim.ASGLD(one(), lr=0.1, num_data=10, invariant=True, adapt_steps=0),
        ValueError,
        r"adapt_steps=.*0",
    ),
    "adapt_steps without invariant": (
        lambda: lv.optim.ASGLD(one(), lr=0.1, num_data=10, adapt_steps=100),
        ValueError,
        r"adapt_steps=.*invariant=True.*100",
    ),
    "invariant as text": (lambda: lv.optim.MSGLD(one(), lr=0.1, num_data=10, invariant="yes"), TypeError, r"invariant=.*'yes'"),
    "betas of AdaMax": (lambda: lv.optim.AdaMaxSGLD(one(), lr=0.1, num_data=10, betas=(0.9, 0.9)), ValueError, r"beta_1 < beta_2"),
    "bias factor": (lambda: lv.optim.MSGLD(one(), lr=0.1, num_data=10, bias_factor=-1.0), ValueError, r"bias_factor=.*-1"),
    "complex parameters": (
        lambda: lv.optim.SGLD([nn.Parameter(torch.ones(2, dtype=torch.complex64))], lr=0.1, num_data=10),
        TypeError,
        r"params=.*complex64",
    ),
    "no parameters": (lambda: lv.optim.SGLD([], lr=0.1, num_data=10), ValueError, "empty"),
}
