"""`llc`: the local learning coefficient of a module, by sampling around its parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from langevin.adaptation import sampler_at
from langevin.checks import check_integer, check_number, needs
from langevin.diagnostics.convergence import mixing
from langevin.diagnostics.trust import EXCURSION, TrustWarning
from langevin.kernels import Kernel
from langevin.kernels.samplers import sghmc
from langevin.nn.llc.localised import LossLike, Problem
from langevin.nn.llc.result import LLC, Rung, measure
from langevin.sampling.progress import Progress
from langevin.sampling.sample import sample
from langevin.storage import Samples
from langevin.targets import Target

__all__ = ["llc"]

LADDER = (100.0, 10.0, 1.0)
"""The localisations that are tried by default, from tight to loose."""

_MIN_CHAINS = 4
_PER_CROSSING, _MAX_THIN = 8, 500  # draws per crossing of a flat direction; largest thinning
_TRIES = 4  # runs, each with a quarter of the size, while a chain diverges
_BLOCK = 256  # steps that `sample` takes at a time
_CHECKS = ("stopped chains", "sign", "temperature", "energy drift", "excursions")
_RHAT = 1.05  # of the loss

_MAX_RESIDUAL = 0.1
"""Largest RMS energy error per step of a pilot, in units of tau (`adaptation.work`)."""

_AIM = 0.08
_PILOT_STEPS, _PILOT_DRAWS, _MAX_PILOTS = 200, 4, 200
_CROSSINGS = 10.0  # of flat directions, until the chains have spread
_MARGIN = 0.25  # of the pilots' size: they are short, and may miss regions where the loss is steep


class _Run(NamedTuple):
    """Settings of the runs."""

    sampler: Kernel | None
    chains: int
    num_draws: int
    thin: int | None
    batch_size: int | None
    seed: int
    compile: bool | str
    progress: Progress


def llc(
    model: nn.Module,
    loss: LossLike = None,
    data: Sequence[Tensor] | None = None,
    *,
    num_data: int | None = None,
    beta: float | None = None,
    localisation: float | Sequence[float] = LADDER,
    sampler: Kernel | None = None,
    chains: int = 8,
    num_draws: int = 1000,
    thin: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    compile: bool | str = "auto",
    progress: Progress = None,
) -> LLC:
    """Estimate the local learning coefficient of a trained model.

    ``λ̂ = n β (E[L_n(w)] - L_n(w*))``, w drawn from ``exp(-n β L_n(w) - γ/2 |w - w*|^2)`` around
    w*, the present parameters (Watanabe 2013, WBIC; Lau et al. 2023). It is dim / 2 for a regular
    model, and smaller the more singular the loss is around w*.

    λ̂ depends on β and γ; `rung.beta_slope` and `rung.localisation_slope` measure how much, from the
    same draws. Where the multiplicity m is above one, the limit β -> infinity is approached only
    like 1 / log(n β): `llc_limit` extrapolates.

    The loss of a draw is always computed over all data; minibatches are used for the steps only.

    Args:
        model: maps x to outputs, row by row, in evaluation mode; it is copied, not changed. Without
            data, it is called without arguments and returns the loss itself, one number: a
            population loss, or a normal crossing.
        loss: "mse" (mean over outputs), "cross_entropy", one of `langevin.likelihoods` (its
            negative logarithm), or a function (output, y) that returns the loss of every row, (n,).
            None without data.
        data: (x, y).
        num_data: n, without data.
        beta: β; None takes 1 / log n.
        localisation: γ, or several, which are run from tight to loose until λ̂ no longer depends on
            γ, or chains leave the neighbourhood of w*: the last one before that is used.
        sampler: such as ``langevin.sgld("auto")``; its temperature must be 1, as β is the inverse
            temperature. None takes invariant MSGLD with a friction that suits γ and a step size
            found by pilot runs; with minibatches ``sghmc("auto")``, which holds the excess
            temperature below 5 percent.
        chains: number of chains, all at once; from 30 on the error does not rest on
            autocorrelations.
        num_draws: draws per chain, after a warm-up of half as many steps.
        thin: keep every `thin`-th draw; None takes 1 with a sampler, and 8 draws per crossing of a
            flat direction otherwise.
        batch_size: rows per step and chain; None takes all data.
        seed: an int in [0, 2**64).
        compile: as in `sample`.
        progress: as in `sample`.

    Returns:
        The estimate with its error and the ladder of localisations. Reasons not to trust it are in
        `warnings` and in a `TrustWarning`.

    Example:
        >>> import torch
        >>> x = torch.linspace(-1, 1, 100).unsqueeze(1)
        >>> line = nn.Linear(1, 1)
        >>> with torch.no_grad():
        ...     _ = line.weight.fill_(2.0), line.bias.fill_(1.0)
        >>> settings = {"num_draws": 200, "compile": False, "progress": False}
        >>> found = llc(line, "mse", (x, 2 * x + 1), localisation=1.0, **settings)
        >>> abs(found.estimate - 0.96) < 5 * found.error, found.error < 0.1  # 1 for γ -> 0
        (True, True)
    """
    problem = Problem(model, loss, data, num_data)
    if sampler is not None and not isinstance(sampler, Kernel):
        raise needs("llc", "sampler", 'a sampler such as sgld("auto"), or None', sampler, TypeError)
    if sampler is not None and sampler.temperature != 1:
        what = "temperature 1: beta is the inverse temperature"
        raise needs("llc", "sampler", what, sampler.temperature)
    check_integer("llc", "chains", chains, _MIN_CHAINS)
    check_integer("llc", "num_draws", num_draws, 16)
    if thin is not None:
        check_integer("llc", "thin", thin, 1)
    if batch_size is not None and not problem.columns:
        raise needs("llc", "batch_size", "None without data", batch_size)
    if beta is None:
        beta = 1 / math.log(problem.num_data)
    n_beta = check_number("llc", "beta", beta, "> 0", lambda v: v > 0) * problem.num_data
    run = _Run(sampler, chains, num_draws, thin, batch_size, seed, compile, progress)
    rungs: list[Rung] = []
    result: LLC | None = None
    for gamma in _ladder(localisation):
        found = _estimate(problem, n_beta, gamma, run)
        rungs.append(found.rung)
        if result is not None and found.rung.has_left:
            break
        result = found
        if found.rung.is_flat:
            break
    assert result is not None
    result = replace(result, rungs=tuple(rungs))
    if result.warnings:
        text = "\n".join(["the learning coefficient may be wrong:", *result.warnings])
        warnings.warn(text, TrustWarning, stacklevel=2)
    return result


def _estimate(problem: Problem, n_beta: float, gamma: float, run: _Run) -> LLC:
    """Estimate at one localisation."""
    target = problem.target(n_beta, gamma)
    if run.sampler or run.batch_size:
        kernel, start = run.sampler or sghmc("auto"), problem.start.expand(run.chains, -1)
        samples = _sample(problem, target, kernel, start, run.thin or 1, run)
        how = f"{samples.description.splitlines()[0]}, step_size {_step_size(samples):.3g}"
    else:
        samples, how = _sample_default(problem, target, n_beta, gamma, run)
    good = [index for index, status in enumerate(samples.status) if status.is_healthy]
    if not good:
        what = "a smaller step_size: no chain finished"
        raise needs("llc", "sampler", what, str(samples.status[0]))
    losses, squared = samples.draws[good].double().unbind(-1)
    excess = n_beta * (losses - problem.loss_at_start)
    rung, covariance = measure(excess, squared, gamma, problem.space.dim)
    found = list(rung.warnings)
    rhat = float(mixing(losses[..., None]).rhat)
    if rhat > _RHAT:
        found.append(
            f"chains disagree: R-hat of the loss is {rhat:.3f} (at most {_RHAT}). Take more draws, "
            f"or a tighter localisation if chains are in different valleys."
        )
    checks = [samples.trust[name] for name in _CHECKS]
    found += [check.sentence for check in checks if check.is_fine is False]
    return LLC(
        rung.estimate, rung.error, problem.loss_at_start, float(losses.mean()), n_beta,
        problem.num_data, problem.space.dim, rung, (rung,), float(excess.square().mean()),
        covariance, samples, tuple(found),
        {"sampler": how, "num_draws": run.num_draws, "seed": run.seed},
    )  # fmt: skip


def _sample_default(
    problem: Problem, target: Target, n_beta: float, gamma: float, run: _Run
) -> tuple[Samples, str]:
    """Run invariant MSGLD at the size that pilots found, or smaller while a chain diverges."""
    pilot_size, position, pilot_steps = _run_pilots(problem, target, n_beta, gamma, run)
    for attempt in range(_TRIES):
        size = pilot_size / 4**attempt
        crossing = _steps_per_crossing(size, gamma)
        thin = run.thin or min(_MAX_THIN, max(1, round(crossing / _PER_CROSSING)))
        samples = _sample(problem, target, sampler_at(size, gamma), position, thin, run)
        if _are_healthy(samples) and samples.trust["excursions"].is_fine is not False:
            break
    how = (
        f"msgld, invariant, step_size {_step_size(samples):.3g}: {pilot_steps} pilot steps; "
        f"{crossing:.0f} steps per crossing of a flat direction, thinning {thin}"
    )
    return samples, how


def _sample(
    problem: Problem, target: Target, kernel: Kernel, init: Tensor, thin: int, run: _Run
) -> Samples:
    steps = run.num_draws * thin
    draws_at_once = run.chains * -(-min(_BLOCK, steps) // thin)
    warmup = -(-steps // 2)
    return _quietly(
        target, sampler=kernel, init=init, num_steps=steps + warmup, warmup=warmup, thin=thin,
        data=problem.columns or None, batch_size=run.batch_size, seed=run.seed,
        keep=problem.watch(draws_at_once), compile=run.compile, progress=run.progress,
    )  # fmt: skip


def _quietly(target: Target, **settings: Any) -> Samples:
    """Run `sample` without warnings; the diagnostics are read from the samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustWarning)
        return sample(target, **settings)


def _are_healthy(samples: Samples) -> bool:
    return all(status.is_healthy for status in samples.status)


def _step_size(samples: Samples) -> float:
    return float(samples.step_size.flatten()[-1])


def _steps_per_crossing(size: float, localisation: float) -> float:
    """Return the steps to cross a flat direction, ``1 / sqrt(size γ)``."""
    return (size * localisation) ** -0.5


def _run_pilots(
    problem: Problem, target: Target, n_beta: float, gamma: float, run: _Run
) -> tuple[float, Tensor, int]:
    """Find the size ``2 ε + h^2`` of invariant MSGLD by short runs.

    The friction suits the localisation, so chains cross flat directions, the slowest ones, without
    turning back. A size is too large if chains diverge, or if the energy is not quadratic over a
    step. Pilots end when the chains have crossed flat directions a few times.

    Returns:
        The size, the chains' positions (chains, dim), and the steps per chain.
    """
    start = problem.start.expand(run.chains, -1)
    max_energy = n_beta * problem.loss_at_start + EXCURSION[0] + EXCURSION[1] * problem.space.dim
    size, position, crossings, pilots = 1 / gamma, start, 0.0, 0
    while pilots < _MAX_PILOTS and crossings <= _CROSSINGS:
        pilots += 1
        samples = _quietly(
            target, sampler=sampler_at(size, gamma), init=position, num_steps=_PILOT_STEPS,
            thin=_PILOT_STEPS // _PILOT_DRAWS, data=problem.columns or None, seed=run.seed,
            first_chain=pilots * run.chains,  # every pilot has its own noise
            compile=False, progress=False,
        )  # fmt: skip
        residual = float(samples.trust["energy residual"].value or 0.0)
        is_bounded = bool((samples.energy < max_energy).all())  # no NaN
        if not (is_bounded and _are_healthy(samples)):
            size, position, crossings = size / 4, start, 0.0
            continue
        position = samples.draws[:, -1]
        if residual > _MAX_RESIDUAL:
            size, crossings = size * max(0.1, 0.8 * (_AIM / residual) ** (2 / 3)), 0.0
        else:
            crossings += _PILOT_STEPS / _steps_per_crossing(size, gamma)
    if not torch.isfinite(position).all():
        what = "a sampler with a step size: every step size of the default sampler diverged"
        raise needs("llc", "sampler", what, None)
    return _MARGIN * size, position, pilots * _PILOT_STEPS


def _ladder(localisation: float | Sequence[float]) -> list[float]:
    """Return the localisations from tight to loose."""
    several = isinstance(localisation, Sequence) and not isinstance(localisation, str)
    values = list(localisation) if several else [localisation]  # type: ignore[arg-type]
    if not values:
        raise needs("llc", "localisation", "at least one number", localisation)
    checked = [check_number("llc", "localisation", v, "> 0", lambda v: v > 0) for v in values]
    return sorted(checked, reverse=True)
