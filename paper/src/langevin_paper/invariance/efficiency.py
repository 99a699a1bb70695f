"""Part 3: independent draws per gradient, every sampler tuned with the same number of random settings, on fresh seeds.

A setting's step size is a share of the sampler's largest stable one on a Gaussian of the problem's curvature (for scaled samplers,
of the curvature in the scaled coordinates). The share is log-uniform from the problem's least to 100 %, the same for all samplers;
the rest are the settings that are the sampler's own. Chosen is the setting with the most independent draws among those whose law is
near enough to the target.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.chains.sample import sample
from langevin.kernels import Kernel
from langevin.noise import Purpose, normal, permutation, streams
from langevin.samplers import adamax_sgld, asgld, msgld, psgld, sghmc, sgld
from langevin_paper.invariance.problems import Problem
from langevin_paper.invariance.walk import Error, errors, independent_draws, walk

__all__ = ["BOUND", "METHODS", "efficiency"]

BOUND = 0.1  # of the variance, beyond two standard errors, along the worst axis
LARGEST = 3.0  # AdaMax divides by the largest recent gradient, about three root mean squares
BETAS = (0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Method:
    """A sampler and its settings.

    Args:
        make: step size, bias factor and beta -> kernel.
        betas: values of beta to choose from.
        is_biased: whether it has a bias factor.
        scale: None without a scale; else what the root mean square of the gradient is multiplied by in it.
    """

    make: Callable[[float, float, float], Kernel]
    betas: tuple[float, ...] = BETAS
    is_biased: bool = False
    scale: float | None = None
    is_hamiltonian: bool = False

    def setting(self, problem: Problem, uniform: list[float]) -> dict[str, float]:
        """Turn three uniform numbers into a setting."""
        share, beta = problem.least_share ** (1 - uniform[0]), self.betas[int(uniform[1] * len(self.betas))]
        curvature = problem.curvature if self.scale is None else problem.scaled_curvature / self.scale
        if self.is_hamiltonian:
            return {"share": share, "beta": beta, "factor": 0.0, "step_size": share * 2 * (1 + beta) / curvature}
        if not self.is_biased:
            return {"share": share, "beta": beta, "factor": 0.0, "step_size": share * 2 / curvature}
        # Stable where eps (2 k + 2 a (1 - beta) / (1 + beta) k') < 4, k' the scaled curvature; a k' / k is in [0.1, 1000].
        push = 10 ** (4 * uniform[2] - 1)
        step_size = share * 4 / (problem.curvature * (2 + 2 * push * (1 - beta) / (1 + beta)))
        return {"share": share, "beta": beta, "factor": push * problem.curvature / curvature, "step_size": step_size}


METHODS: dict[str, Method] = {
    "SGLD": Method(lambda eps, a, beta: sgld(eps), betas=(0.0,)),
    "pSGLD": Method(lambda eps, a, beta: psgld(eps, beta=beta), betas=(0.9, 0.99, 0.999), scale=1.0),
    "SGHMC": Method(lambda eps, a, beta: sghmc(eps, beta=beta), is_hamiltonian=True),
    "MSGLD invariant": Method(lambda eps, a, beta: msgld(eps, bias_factor=a, beta=beta, invariant=True), is_biased=True),
    "ASGLD invariant": Method(
        lambda eps, a, beta: asgld(eps, bias_factor=a, betas=(beta, 0.999), invariant=True), is_biased=True, scale=1.0
    ),
    "AdaMax invariant": Method(
        lambda eps, a, beta: adamax_sgld(eps, bias_factor=a, betas=(beta, 0.999), invariant=True), is_biased=True, scale=LARGEST
    ),
}


def efficiency(problem: Problem, name: str, *, seed: int, quick: bool) -> dict[str, Any]:
    """Tune one sampler on one problem and report it on fresh seeds.

    The best setting of the search must stay near enough to the target in a second run, of more chains and another seed; else the
    next best is taken.
    """
    long = {"wide": 8000, "mixture": 5000, "logistic": 4000}.get(problem.name, 2500)  # by how slowly chains forget
    plan = {"budget": 16, "num_chains": 16, "confirm_chains": 64, "warmup": 1000, "num_steps": 1000 + long, "num_seeds": 5}
    if quick:
        plan = {"budget": 3, "num_chains": 8, "confirm_chains": 16, "warmup": 100, "num_steps": 300, "num_seeds": 2}
    method = METHODS[name]
    tried = _search(method, problem, seed, plan)
    near = sorted((trial for trial in tried if _is_near(trial)), key=lambda trial: -trial["per_1000"])
    confirmed = (trial for trial in near if _is_near(_try(method, problem, [trial], seed + 1, plan, plan["confirm_chains"])[0]))
    chosen = next(confirmed, None)
    reports, pooled = ([], None) if chosen is None else _report(method, problem, seed, plan, chosen)
    described = {
        **plan,
        "bound": BOUND,
        "reference": problem.reference,
        "curvature": problem.curvature,
        "least_share": problem.least_share,
    }
    refused = len(near) if chosen is None else near.index(chosen)
    found = {"tried": tried, "num_near": len(near), "num_refused": refused, "chosen": chosen, "reports": reports}
    return {**found, "pooled": None if pooled is None else pooled._asdict(), "plan": described}


def _is_near(trial: dict[str, Any]) -> bool:
    return trial["excess"] is not None and trial["excess"] <= BOUND


def _search(method: Method, problem: Problem, seed: int, plan: dict[str, int]) -> list[dict[str, Any]]:
    """Try random settings, the same random numbers for every method; those of one beta run side by side."""
    numbers = _even_numbers(seed, plan["budget"])
    settings = sorted((method.setting(problem, uniform) for uniform in numbers), key=lambda setting: setting["beta"])
    groups = itertools.groupby(settings, lambda setting: setting["beta"])
    return [trial for _, group in groups for trial in _try(method, problem, list(group), seed, plan, plan["num_chains"])]


def _even_numbers(seed: int, number: int) -> list[list[float]]:
    """Return triples of uniform numbers, each element spread evenly over (0, 1): a Latin hypercube (McKay et al. 1979)."""
    places = permutation(seed, streams(Purpose.DATA, range(3)), 0, number).T
    within = torch.special.ndtr(normal(seed, streams(Purpose.DATA, range(3)), 1, number, dtype=torch.float64)).T
    return ((places + within) / number).tolist()


def _try(
    method: Method, problem: Problem, settings: list[dict[str, Any]], seed: int, plan: dict[str, int], num_chains: int
) -> list[dict[str, Any]]:
    """Run settings that share a beta; return them with what was found."""
    draws = walk(
        method.make(1.0, 1.0, settings[0]["beta"]), problem, torch.tensor([setting["step_size"] for setting in settings]),
        factors=torch.tensor([setting["factor"] for setting in settings]), seed=seed,
        num_chains=num_chains, num_steps=plan["num_steps"], warmup=plan["warmup"],
    )  # fmt: skip
    return [{**setting, **_measure(found, problem)} for setting, found in zip(settings, draws, strict=True)]


def _report(
    method: Method, problem: Problem, seed: int, plan: dict[str, int], chosen: dict[str, Any]
) -> tuple[list[dict[str, Any]], Error | None]:
    """Run the chosen setting on fresh seeds, through the front door; return what each found, and the law of all together."""
    kernel = method.make(chosen["step_size"], chosen["factor"], chosen["beta"])
    reports, draws = [], []
    for fresh in range(seed + 2, seed + 2 + plan["num_seeds"]):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "chain .* stopped")  # it has no law then, which is the answer
            found = sample(
                kernel, problem.target, problem.draw(plan["num_chains"], fresh), num_steps=plan["num_steps"], warmup=plan["warmup"],
                data=problem.data, batch_size=problem.batch_size, seed=fresh, compile=False, progress=False,
            )  # fmt: skip
        reports.append({"seed": fresh, **_measure(found.draws, problem)})
        draws.append(found.draws)
    return reports, errors(torch.cat(draws), problem)


def _measure(draws: Tensor, problem: Problem) -> dict[str, Any]:
    """Return how good draws (chain, draw, dim) are; None for everything where a chain is not finite."""
    error = errors(draws, problem)
    if error is None:
        return dict.fromkeys(("per_1000", "ess", "error", "signed", "chance", "excess"))
    count = independent_draws(draws, problem)
    return {"per_1000": 1000 * count / draws.shape[0] / draws.shape[1], "ess": count, **error._asdict()}
