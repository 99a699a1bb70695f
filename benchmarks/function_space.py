"""Predictive spread of optimizers on small networks against HMC: what minibatches add, measured and as `heat()` predicts it.

    python benchmarks/function_space.py reference regression digits cnn   (HMC; writes benchmarks/function_space/*.npz)
    python benchmarks/function_space.py run [regression] [digits] [cnn] | tee docs/benchmarks/function_space.txt

Three networks, Gaussian prior N(0, 1), temperature 1: `regression`, 1-50-1 tanh on 400 rows with noise sd .5; `digits`, 64-8-10
tanh on 500 images of scikit-learn's digits; `cnn`, a convolution of 4 channels, tanh and a linear layer on the same.
The reference is HMC with all data (16 chains; acceptance and the agreement of its two halves are printed). Every
optimizer starts from the reference's draws, draws rows with replacement, and runs at one learning rate, chosen with the
uncorrected MSGLD (invariant, a = 10, beta .9); other optimizers have the same total response to a gradient. `LR` has the
learning rates of batches of 100 and of 10. Runs are short: slow directions have not gone all the way to their excess.

*sd* is the root of the mean over rows and outputs of E (f - mean)^2, mean and variance of the reference, over its own, with the
standard error over chains; f are the outputs, of a classifier the probabilities. *excess* is its square minus 1, to compare with
`predicted`, which is `heat().predictions` (`before`: before the correction), the mean over chains. *share* is the mean over
elements, *effective* the effective number of parameters that `heat()` finds.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import langevin as lv

FOLDER = Path(__file__).parent / "function_space"
CHAINS = 6
LR = {"regression": (3e-3, 3e-4), "digits": (0.13, 0.013), "cnn": (0.6, 0.18)}  # batches of 100, of 10
STEPS, BURN, EVERY = 3000, 750, 20
HMC = {"regression": (0.0055, 60, 200), "digits": (0.03, 40, 300), "cnn": (0.06, 40, 300)}  # step size, mean length, draws


SHAPES = {
    "regression": [(50, 1), (50,), (1, 50), (1,)],
    "digits": [(8, 64), (8,), (10, 8), (10,)],
    "cnn": [(4, 1, 3, 3), (4,), (10, 36), (10,)],
}


class Problem:
    """A network with its data; gradients of several positions at once."""

    def __init__(self, name: str) -> None:
        """Make the data."""
        self.name, self.shapes, generator = name, SHAPES[name], torch.Generator().manual_seed(1)
        if name == "regression":
            self.x = torch.rand(400, 1, generator=generator) * 4 - 2
            self.y = torch.sin(2 * self.x) + 0.5 * torch.randn(400, 1, generator=generator)
        else:
            from sklearn.datasets import load_digits

            images, labels = load_digits(return_X_y=True)
            rows = torch.randperm(len(labels), generator=generator)[:500]
            self.x, self.y = torch.tensor(images, dtype=torch.float32)[rows] / 8 - 1, torch.tensor(labels)[rows]
        if name == "cnn":  # the nine patches that a convolution of 3 x 3 with stride 2 sees
            self.x = nn.functional.unfold(self.x.view(-1, 1, 8, 8), 3, stride=2).mT.contiguous()
        self.num_data = len(self.y)
        self.dim = sum(map(math.prod, self.shapes))

    def outputs(self, theta, x):
        """Return the outputs (chains, n, outputs) of networks at their inputs (chains, n, ...)."""
        first, bias, last, constant = self.split(theta)
        hidden = (x.flatten(1, -2) @ first.flatten(2).mT + bias[:, None]).tanh()
        if self.name == "cnn":
            hidden = hidden.unflatten(1, (-1, 9)).mT.flatten(2)
        return hidden @ last.mT + constant[:, None]

    def loss(self, theta, x, y):
        """Return the mean negative log-likelihood of each network (chains,)."""
        values = self.outputs(theta, x)
        if self.name == "regression":
            return (values - y).square().sum(-1).mean(1) / (2 * 0.5**2)
        return nn.functional.cross_entropy(values.mT, y, reduction="none").mean(1)

    def split(self, theta):
        """Return the parameters of positions (chains, dim)."""
        parts = theta.split(list(map(math.prod, self.shapes)), 1)
        return [part.reshape(-1, *shape) for shape, part in zip(self.shapes, parts, strict=True)]

    def gradient(self, theta, rows=None):
        """Return the gradients of the mean loss and the losses, from rows (chains, n) or all."""
        x, y = (value.expand(len(theta), *value.shape) if rows is None else value[rows] for value in (self.x, self.y))
        theta = theta.detach().requires_grad_()
        losses = self.loss(theta, x, y)
        return torch.autograd.grad(losses.sum(), theta)[0], losses.detach()

    @torch.no_grad()
    def predictions(self, theta):
        """Return outputs, or probabilities, at every second row: (chains, rows, outputs)."""
        values = self.outputs(theta, self.x[::2].expand(len(theta), *self.x[::2].shape))
        return values if self.name == "regression" else values.softmax(-1)


def hmc(problem, theta, step, length, draws, generator):
    """Yield positions of HMC with all data, and whether they were accepted."""
    for _ in range(draws):
        momentum = torch.randn(theta.shape, generator=generator)
        new, steps = theta, int(length * (0.5 + float(torch.rand(1, generator=generator))))
        gradient, loss = problem.gradient(theta)
        before = problem.num_data * loss + 0.5 * (theta.square() + momentum.square()).sum(1)
        momentum = momentum - 0.5 * step * (problem.num_data * gradient + theta)
        for index in range(steps):
            new = new + step * momentum
            gradient, loss = problem.gradient(new)
            momentum = momentum - (0.5 if index == steps - 1 else 1) * step * (problem.num_data * gradient + new)
        after = problem.num_data * loss + 0.5 * (new.square() + momentum.square()).sum(1)
        accepted = torch.rand(len(theta), generator=generator).log() < before - after
        theta = torch.where(accepted[:, None], new, theta)
        yield theta, accepted


def reference(name):
    """Run HMC and write its moments and last draws."""
    problem, begin, generator = Problem(name), time.perf_counter(), torch.Generator().manual_seed(0)
    theta = torch.nn.Parameter(0.5 * torch.randn(16, problem.dim, generator=generator))
    adam = torch.optim.Adam([theta], lr=0.02)
    for index in range(600):
        adam.param_groups[0]["lr"] = 0.02 if index < 400 else 0.003
        theta.grad = problem.num_data * problem.gradient(theta.detach())[0] + theta.detach()
        adam.step()
    step, length, draws = HMC[name]
    *_, (start, _) = hmc(problem, theta.detach(), step / 2, length, draws // 5, generator)
    found, rates = [], []
    for last, accepted in hmc(problem, start, step, length, draws, generator):
        found.append(problem.predictions(last))
        rates.append(accepted.float().mean())
    values = torch.stack(found)
    variance = values.flatten(0, 1).var(0)
    halves = [float((half - values.mean((0, 1))).square().mean() / variance.mean()) ** 0.5 for half in values.chunk(2)]
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        mean=values.mean((0, 1)),
        variance=variance,
        draws=last[: CHAINS + 2],
        halves=halves,
        rate=np.mean(rates),
    )
    print(
        f"{name}: {problem.dim} parameters, acceptance {np.mean(rates):.2f}, sd of the two halves {halves[0]:.3f} {halves[1]:.3f},"
        f" {time.perf_counter() - begin:.0f} s"
    )


def run(problem, kind, settings, *, batch, steps, burn, chains=CHAINS, seed=0):
    """Return the sd of predictions over the reference's, its error, and the optimizer."""
    saved = np.load(FOLDER / f"{problem.name}.npz")
    mean, variance = torch.tensor(saved["mean"]), torch.tensor(saved["variance"])
    starts = torch.tensor(saved["draws"][:chains])
    parameters = [[nn.Parameter(value[0].clone()) for value in problem.split(start[None])] for start in starts]
    groups = [{"params": own} for own in parameters]
    optimizer = kind(groups, num_data=problem.num_data, prior=lv.priors.gaussian(std=1.0), seed=seed, **settings)
    generator, total, count = torch.Generator().manual_seed(seed + 5), torch.zeros(chains), 0
    for index in range(steps):
        rows = None if batch is None else torch.randint(problem.num_data, (chains, batch), generator=generator)
        theta = torch.stack([torch.cat([p.detach().flatten() for p in own]) for own in parameters])
        if index >= burn and index % EVERY == 0:
            total += (problem.predictions(theta) - mean).square().mean((1, 2)) / variance.mean()
            count += 1
        for own, gradients in zip(parameters, problem.gradient(theta, rows)[0], strict=True):
            for p, g in zip(own, problem.split(gradients[None]), strict=True):
                p.grad = g[0]
        optimizer.step()
    ratio = total / count
    return float(ratio.mean()), float(ratio.std()) / chains**0.5, optimizer


def cases(lr):
    """Return name, class and settings of every row, of equal total response."""
    average = {"lr": lr, "bias_factor": 10.0}
    scaled = {"lr": lr, "bias_factor": 10.0, "eps_root": 1.0, "adapt_steps": 1000}
    return {
        "MSGLD, invariant": (lv.optim.MSGLD, {**average, "invariant": True}),
        "MSGLD, corrected, diagonal": (lv.optim.MSGLD, {**average, "invariant": True, "noise": "corrected-diagonal"}),
        "MSGLD, corrected": (lv.optim.MSGLD, {**average, "invariant": True, "noise": "corrected"}),
        "ASGLD, corrected": (lv.optim.ASGLD, {**scaled, "invariant": True, "noise": "corrected"}),
        "MSGLD, published": (lv.optim.MSGLD, average),
        "SGHMC": (lv.optim.SGHMC, {"lr": 1.1 * lr, "beta": 0.9}),
        "SGNHT": (lv.optim.SGNHT, {"lr": 1.1 * lr, "beta": 0.9}),
    }


MOST = (
    "MSGLD, invariant",
    "MSGLD, corrected",
    "ASGLD, corrected",
    "SGHMC",
    "SGNHT",
    "MSGLD, published",
    "MSGLD, corrected, diagonal",
)


def row(problem, name, kind, settings, batch, steps=STEPS, burn=BURN):
    """Print one row of the table."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        ratio, error, optimizer = run(problem, kind, settings, batch=batch, steps=steps, burn=burn)
        heats = optimizer.heat()
    keys = ("predictions", "before", "share", "effective_parameters")
    means = [float(np.mean([getattr(heat, key) for heat in heats])) for key in keys]
    print(
        f"  {name:28s}{ratio**0.5:7.2f} ± {error / (2 * ratio**0.5):4.2f}{ratio - 1:+9.2f}"
        + "".join(f"{value:11.2f}" for value in means)
        + f"{time.perf_counter() - begin:9.0f}",
        flush=True,
    )


def table(name):
    """Print the rows of a network."""
    problem, saved = Problem(name), np.load(FOLDER / f"{name}.npz")
    effective = ""
    if name == "regression":
        effective = f", effective parameters sum Var(f) / sigma^2 = {saved['variance'].sum() * 2 / 0.25:.1f}"
    print(f"\n{name}: {problem.dim} parameters, N = {problem.num_data}, HMC's halves {saved['halves'].round(3)}{effective}")
    print(f"{'':30s}{'sd':>7s}{'excess':>16s}{'predicted':>11s}{'before':>11s}{'share':>11s}{'effective':>11s}{'seconds':>9s}")
    for batch, lr in ((None, LR[name][0]), (100, LR[name][0]), (10, LR[name][1])):
        print(f" {'all data' if batch is None else f'batches of {batch}'}, lr {lr:g}")
        for case in MOST if batch == 100 and name == "regression" else MOST[: 1 if batch is None else 2]:
            row(problem, case, *cases(lr)[case], batch)


def main():
    """Run what is asked for."""
    torch.set_num_threads(1)
    what, *names = sys.argv[1:] or ["run"]
    print(f"{CHAINS} chains, {STEPS} steps, the first {BURN} not counted, torch {torch.__version__}, langevin {lv.__version__}")
    for name in names or HMC:
        (reference if what == "reference" else table)(name)


if __name__ == "__main__":
    main()
