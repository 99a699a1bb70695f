"""The settings that each sampler is tried with: a ladder of step sizes, and for uncorrected ones the best that a law allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.kernels import Kernel
from langevin.kernels.samplers import asgld, msgld, nasgld, psgld, sghmc, sgld
from langevin_paper.experiments.minibatch.known import Problem
from langevin_paper.experiments.minibatch.laws import Law, law_of
from langevin_paper.spec import Method

__all__ = ["Rung", "kernel_of", "law_at", "noise_of", "rungs_of"]

Given = Mapping[str, Any]
_LIKE = {"psgld": "sgld", "asgld": "msgld"}  # without their scale


class Rung(NamedTuple):
    """A setting of a sampler."""

    name: str  # the share of the largest stable step, or "tuned"
    step: float  # ε k
    factor: float  # a, times the scale for a sampler that has one
    beta: float


def noise_of(method: Method, case: Problem, batch_size: int) -> Tensor:
    """Return the Σ that a method's gradients have."""
    return case.noise(batch_size, centred=method.settings["centred"])


def rungs_of(method: Method, case: Problem, batch_size: int, given: Given) -> list[Rung]:
    """Return the ladder of a method on a problem."""
    own = method.settings
    rungs = [
        Rung(f"{share:g}", share * _largest(own["family"], own["factor"], own["beta"]), own["factor"], own["beta"])
        for share in own["shares"]
    ]
    if own["noise"] is None and given["tuned"]:
        rungs.append(_tuned(method, case, batch_size, given))
    return rungs


def kernel_of(method: Method, rung: Rung, case: Problem, batch_size: int, dtype: torch.dtype, warmup: int) -> Kernel:
    """Make the sampler of a setting; one with a scale G has steps over its mean, so that it is near the one without."""
    family, own = method.settings["family"], method.settings
    noise, step_size = noise_of(method, case, batch_size), rung.step / case.curvature
    scale = float((noise + case.hessian).diagonal().pow(-0.5).mean())
    match family:
        case "sgld":
            return sgld(step_size)
        case "psgld":
            return psgld(step_size / scale, beta=own["beta_2"], adapt_steps=warmup)
        case "sghmc":
            return sghmc(step_size, beta=rung.beta)
        case "asgld":
            betas = (rung.beta, own["beta_2"])
            return asgld(step_size, bias_factor=rung.factor / scale, betas=betas, invariant=True, adapt_steps=warmup)
        case "nasgld":
            return nasgld()
    pair = None
    if own["noise"] is not None:
        pair = (noise.to(dtype), case.hessian.to(dtype))
        pair = (pair[0].diagonal().clone(), pair[1].diagonal().clone()) if own["noise"] == "diagonal" else pair
    return msgld(step_size, bias_factor=rung.factor, beta=rung.beta, invariant=True, noise=pair)


def law_at(method: Method, rung: Rung, case: Problem, batch_size: int) -> tuple[float, float, Law] | None:
    """Return the worst relative error of a variance and the draws per epoch, on a Gaussian of like curvature and noise."""
    noise = noise_of(method, case, batch_size)
    kernel = kernel_of(method, rung, case, batch_size, torch.float64, warmup=1)
    law = law_of(kernel, case.hessian, noise, period=_period(method, case, batch_size), squares=(noise + case.hessian).diagonal())
    if law is None:
        return None
    curvatures, axes = torch.linalg.eigh(case.hessian)
    steps = case.num_data / batch_size / (2 if method.settings["centred"] else 1)
    return float(law.errors(axes, 1 / curvatures).abs().max()), steps / float(law.steps_per_draw(axes).max()), law


def _period(method: Method, case: Problem, batch_size: int) -> int | None:
    return max(2, case.num_data // batch_size) if method.settings["batches"] == "reshuffled" else None


def _largest(family: str, factor: float, beta: float) -> float:
    """Return the largest stable ε k."""
    match _LIKE.get(family, family):
        case "sgld":
            return 2.0
        case "sghmc":
            return 2 * (1 + beta)
    return 4 / (2 + 2 * factor * (1 - beta) / (1 + beta))


def _tuned(method: Method, case: Problem, batch_size: int, given: Given) -> Rung:
    """Return the setting with the most draws whose law keeps the bound along three axes: softest, stiffest, noisiest."""
    family = _LIKE.get(method.settings["family"], method.settings["family"])
    curvatures, axes = torch.linalg.eigh(case.hessian)
    heats = (axes * (noise_of(method, case, batch_size) @ axes)).sum(0)
    chosen = [0, len(curvatures) - 1, int((heats / curvatures).argmax())]
    curvature, heat, period = curvatures[chosen], heats[chosen], _period(method, case, batch_size)
    eye = torch.eye(3, dtype=torch.float64)

    def law(step: float, factor: float, beta: float) -> Law | None:
        size = step / case.curvature
        kernels = {"sgld": lambda: sgld(size), "sghmc": lambda: sghmc(size, beta=beta)}
        kernel = kernels.get(family, lambda: msgld(size, bias_factor=factor, beta=beta, invariant=True))()
        return law_of(kernel, curvature.diag(), heat.diag(), period=period)

    best, most = None, 0.0
    for factor, beta in given["grid"][method.settings["family"]]:
        low, high = 1e-8, 0.95 * _largest(family, factor, beta)
        for _ in range(given["halvings"]):
            middle = (low * high) ** 0.5
            found = law(middle, factor, beta)
            is_near = found is not None and float(found.errors(eye, 1 / curvature).abs().max()) <= given["bound"] / 100
            low, high = (middle, high) if is_near else (low, middle)
        found = law(low, factor, beta)
        draws = 0.0 if found is None else 1 / float(found.steps_per_draw(eye).max())
        if draws > most:
            best, most = Rung("tuned", low, factor, beta), draws
    assert best is not None
    return best
