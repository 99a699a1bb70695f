"""Step sizes found by `langevin.adaptation` beside the best ones of a grid search.

    .venv/bin/python benchmarks/step_size.py

Best is the largest step of a grid of factor sqrt(2) whose measured variance is within SHARE of that of the sampler's small-step
law, in the worst of the target's principal directions: the one that is worst at the largest stable step. Many chains of every grid
step run side by side, from draws of that law whose sample moments are made exact, so that directions too soft to move within the
run add no noise. The printed errors have a standard error of roughly 1 to 3 percent (estimated from chains and relaxation times).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import langevin as lv
from langevin.adaptation import find_step_size
from langevin.execution import take_step
from langevin.kernels import Kernel, KernelState
from langevin.random import Purpose, normal, streams
from langevin.targets.gradients import full, minibatch, noisy

SHARE = 0.05
GRID = range(-3, 5)  # powers of sqrt(2) around the found step, rounded to the grid of all such powers
SEED = 1
KERNELS = {"sgld": lv.sgld(1.0), "msgld": lv.msgld(1.0, bias_factor=1.0), "sghmc": lv.sghmc(1.0)}


@dataclass(frozen=True)
class Case:
    """A target, where the tuner starts, and draws of exp(-U / temperature)."""

    name: str
    target: object
    start: Tensor  # (chains, dim), on purpose far away
    law: Callable[[float, int], Tensor]  # temperature and number -> draws, (number or more, dim)
    num_chains: int  # per grid step
    data: tuple[Tensor, ...] | None = None
    batch_size: int | None = None
    spread: Callable[[Tensor], Tensor] = lambda theta: theta  # what the variance is taken of, by chain

    def gradient(self, like: Tensor):
        """Return the gradient as the chains at `like` see it."""
        chains = range(len(like))
        if self.batch_size is not None:
            return minibatch(self.target, self.data, self.batch_size, seed=SEED, chains=chains)
        exact = full(self.target, self.data)
        std = self.target.gradient_noise
        return noisy(exact, std, seed=SEED, chains=chains, like=like) if std else exact

    @property
    def steps_per_epoch(self) -> float | None:
        """Return N / n, or None without minibatches."""
        return None if self.batch_size is None else len(self.data[0]) / self.batch_size


def normals(number: int, dim: int, at: int) -> Tensor:
    return normal(SEED, streams(Purpose.INIT, range(number)), at, dim)


def white(number: int, dim: int) -> Tensor:
    """Normals whose sample mean is zero and whose sample covariance is the identity."""
    draws = normals(number, dim, 0).double()
    draws = draws - draws.mean(0)
    root = torch.linalg.cholesky(draws.T @ draws / number)
    return torch.linalg.solve_triangular(root, draws.T, upper=False).T.float()


def gaussian_case(name: str, covariance: Tensor, num_chains: int, gradient_noise: float = 0.0) -> Case:
    root = torch.linalg.cholesky(covariance).float()
    target = lv.targets.gaussian(covariance, gradient_noise=gradient_noise)
    start = 5.0 * torch.ones(4, len(covariance))
    return Case(name, target, start, lambda tau, number: tau**0.5 * white(number, len(covariance)) @ root.T, num_chains)


def plane_law(target, edge: float) -> Callable[[float, int], Tensor]:
    """Draw from a density on the plane: quadrature on a fine grid, evenly spaced quantiles of the cells."""

    def law(tau: float, number: int) -> Tensor:
        side = torch.linspace(-edge, edge, 801)
        cells = torch.cartesian_prod(side, side)
        cumulative = (-target.evaluate(cells).energy.double() / tau).softmax(0).cumsum(0)
        count = 100 * number  # fine enough for the moments to be those of the quadrature
        quantiles = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        return cells[torch.searchsorted(cumulative, quantiles).clamp(max=len(cells) - 1)]

    return law


def mixture_case() -> Case:
    target = lv.targets.mixture()
    means = target.means.float()
    # Within the modes: the variance of the whole is that between them, and says nothing of the step.
    return Case(
        "mixture (within modes)",
        target,
        4.0 * torch.ones(4, 2),
        plane_law(target, 7.0),
        4000,
        spread=lambda theta: theta - means[target.nearest_mode(theta)],
    )


def banana_case() -> Case:
    target = lv.targets.energy(lambda t: 0.5 * t[0] ** 2 + 2.0 * (t[1] - 0.5 * t[0] ** 2) ** 2)
    return Case("banana", target, torch.tensor([[3.0, -3.0]]).repeat(8, 1), plane_law(target, 8.0), 4000)


def logistic_case() -> Case:
    num, dim = 5000, 10
    x = normal(SEED, streams(Purpose.DATA, range(1)), 0, num * dim).reshape(num, dim) * torch.logspace(-0.5, 0.5, dim)
    truth = torch.linspace(-1, 1, dim)
    uniform = 0.5 * (1 + torch.erf(normal(SEED, streams(Purpose.DATA, range(1)), 1, num)[0] * 0.5**0.5))
    y = (uniform < torch.sigmoid(x @ truth)).float()
    target = lv.targets.likelihood(
        lambda theta, x, y: y * (x @ theta) - torch.nn.functional.softplus(x @ theta), prior=lv.priors.gaussian(std=1.0)
    )

    known: dict[float, Tensor] = {}

    def law(tau: float, number: int) -> Tensor:
        if tau not in known:
            known[tau] = metropolis(full(target, (x, y)), torch.zeros(1000, dim), tau)
        return known[tau]

    return Case("logistic N=5000 d=10 n=100", target, torch.zeros(4, dim), law, 200, (x, y), 100)


def metropolis(gradient_fn, position: Tensor, tau: float, num_steps: int = 100) -> Tensor:
    """Metropolis-adjusted Langevin in the metric of the Laplace approximation: exact draws, to compare with."""
    dim = position.shape[-1]
    mode = position[:1].double()
    for _ in range(20):  # Newton, the Hessian by central differences
        steps = 1e-3 * torch.eye(dim, dtype=torch.float64)
        both = gradient_fn(torch.cat([mode + steps, mode - steps]).float(), 0).gradient.double()
        hessian = (both[:dim] - both[dim:]) / 2e-3
        hessian = 0.5 * (hessian + hessian.T)
        mode = mode - torch.linalg.solve(hessian, gradient_fn(mode.float(), 0).gradient[0].double())
    root = torch.linalg.cholesky(torch.linalg.inv(hessian)).float()
    position = mode.float() + tau**0.5 * white(len(position), dim) @ root.T
    eps = 0.8 / dim ** (1 / 3)
    energy, gradient = gradient_fn(position, 0)
    kept = []
    for step in range(num_steps):
        noise, uniform = normals(len(position), dim, 10 + 2 * step), normals(len(position), 1, 11 + 2 * step)[:, 0]
        forward = gradient @ root  # in whitened coordinates, theta = root y
        moved = position + (-eps * forward + (2 * eps * tau) ** 0.5 * noise) @ root.T
        there = gradient_fn(moved, 0)
        back = there.gradient @ root
        returned = ((2 * eps * tau) ** 0.5 * noise - eps * (forward + back)) / (2 * eps * tau) ** 0.5
        log_ratio = (energy - there.energy) / tau + 0.5 * (noise**2 - returned**2).sum(-1)
        take = torch.log(0.5 * (1 + torch.erf(uniform * 0.5**0.5))) < log_ratio
        position = torch.where(take[:, None], moved, position)
        energy, gradient = torch.where(take, there.energy, energy), torch.where(take[:, None], there.gradient, gradient)
        if step >= 20 and step % 4 == 0:
            kept.append(position)
    return torch.cat(kept)


def match(draws: Tensor, law: Tensor) -> Tensor:
    """Shift and stretch some draws so that they have the mean and the covariance of many."""
    mine, theirs = (torch.linalg.cholesky(torch.cov(x.double().T, correction=0)) for x in (draws, law))
    standard = torch.linalg.solve_triangular(mine, (draws - draws.mean(0)).double().T, upper=False)
    return (theirs @ standard).T.float() + law.mean(0)


def errors(case: Case, kernel: Kernel, steps: list[float], relaxation: float) -> list[float]:
    """Return the relative error of the variance in the worst principal direction, for each step size; infinite when unstable."""
    number = case.num_chains
    law = case.law(kernel.effective_temperature, number)
    spread = case.spread(law).double()
    if len(law) > number:
        law = match(law[:: len(law) // number][:number], law)
    reference = torch.cov(spread.T, correction=0)
    values, vectors = torch.linalg.eigh(reference)
    position = law.repeat(len(steps), 1)
    eps = torch.tensor(steps, dtype=torch.float32).repeat_interleave(number)[:, None]
    gradient_fn, chains = case.gradient(position), range(len(position))
    memory = kernel.init(position).tensors
    # Memories start where they would be after some time at this place: averages at the gradient, velocities at random.
    if kernel.name == "msgld":
        memory = (gradient_fn(position, 0).gradient,)
    elif kernel.name == "sghmc":
        memory = ((eps * kernel.temperature) ** 0.5 * normal(SEED, streams(Purpose.INIT, chains), 5, position.shape[-1]),)
    burn, keep = math.ceil(4 * relaxation), math.ceil(16 * relaxation)
    total = torch.zeros(len(steps), len(values), dtype=torch.float64)
    centre = spread.mean(0).float()
    for step in range(burn + keep):
        noise = normal(SEED, streams(Purpose.POSITION, chains), step, position.shape[-1])
        inputs = kernel.inputs(step)._replace(step_size=eps, started=1.0)
        drawn = tuple(tensor[0] for tensor in gradient_fn.draw(range(step, step + 1)))
        state, _ = take_step(kernel, gradient_fn, KernelState(position, memory, step), drawn, noise[None], inputs)
        position, memory = state.position, state.tensors
        if step >= burn:
            along = (case.spread(position) - centre) @ vectors.float()
            total += (along * along).reshape(len(steps), number, -1).mean(1).double() / keep
    off = total / values - 1
    worst = off[off.isfinite().all(-1)][-1].abs().argmax()
    return [float(row[worst]) if row.isfinite().all() else math.inf for row in off]


def main() -> None:
    correlated = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    spectrum = torch.logspace(-4, 0, 50, dtype=torch.float64)
    rotation = torch.linalg.qr(normals(50, 50, 3).double()).Q
    cases = [
        gaussian_case("correlated Gaussian, gradient noise 1", correlated, 6000, gradient_noise=1.0),
        gaussian_case("Gaussian d=50, condition 1e4", rotation * spectrum @ rotation.T, 800),
        mixture_case(),
        logistic_case(),
        banana_case(),
    ]
    torch.set_num_threads(1)  # small tensors: on a busy machine a second thread is mostly waited for
    begin = time.perf_counter()
    print(f"share {SHARE:g}; grid of factor sqrt(2); seed {SEED}; error = signed relative error of the variance, worst direction")
    print(f"{'target':38s} {'sampler':7s} {'found':>10s} {'best':>10s} {'ratio':>6s} {'error at found':>14s} {'at best':>8s}  sec")
    ratios = []
    for case in cases:
        for name, kernel in KERNELS.items():
            watch = time.perf_counter()
            tuned = find_step_size(
                kernel, case.gradient(case.start), case.start, chains=range(len(case.start)), seed=SEED, share=SHARE,
                steps_per_epoch=case.steps_per_epoch,
            )  # fmt: skip
            anchor = round(2 * math.log2(tuned.step_size))
            steps = [tuned.step_size, *(2 ** ((anchor + k) / 2) for k in GRID)]
            cooling = kernel.temperature / kernel.effective_temperature
            relaxation = 1 / (tuned.step_size * tuned.curvature * cooling) if name != "sghmc" else 20.0
            relaxation = max(relaxation, 0.1 / (tuned.step_size * tuned.curvature))
            off, *grid = errors(case, kernel, steps, relaxation)
            best = max((k for k, error in enumerate(grid) if abs(error) <= SHARE), default=-1)
            shown = f"{steps[1 + best]:10.3g}" if best >= 0 else f"<{steps[1]:9.3g}"
            mark = "" if best < len(grid) - 1 else " (edge)"
            ratio = tuned.step_size / steps[1 + max(best, 0)]
            ratios.append(ratio)
            print(
                f"{case.name:38s} {name:7s} {tuned.step_size:10.3g} {shown} {ratio:6.2f} {100 * off:+13.1f}% "
                f"{100 * grid[max(best, 0)]:+7.1f}% {time.perf_counter() - watch:5.1f}{mark}",
                flush=True,
            )
    print(f"found / best from {min(ratios):.2f} to {max(ratios):.2f}; {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
