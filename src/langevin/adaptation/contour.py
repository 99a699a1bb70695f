"""Estimate the contour of a target, the log density of its energies; weight draws by it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, check_position, needs
from langevin.execution import run_blocks
from langevin.kernels import Contour, Kernel
from langevin.storage import Samples
from langevin.targets import Target
from langevin.targets.base import check_target
from langevin.targets.gradients import full, minibatch, noisy

__all__ = ["contour_weights", "learn_contour"]

_STEPS = 10  # with one V
_RATE = 0.02  # first change of V in an update, if energies are spread evenly
_FULL_RATE = 0.3  # share of the updates at the first rate, which then falls like 1 / t
_STEEPEST = 3.0  # limit of |1 + τ V'|, which multiplies the gradient: a step must stay stable


def learn_contour(
    kernel: Kernel,
    target: Target,
    init: Tensor,
    *,
    energies: tuple[float, float],
    num_steps: int,
    bins: int = 50,
    zeta: float = 1.0,
    data: Any = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Contour:
    """Estimate the contour of a target for contour SGLD (Deng, Lin and Liang 2020).

    ``θ' = θ - ε g (1 + ζ τ (log ψ_i+1 - log ψ_i) / Δu) + sqrt(2 ε τ) η`` between knots i and i + 1
    of the energy, with SGLD; any sampler can take the steps.

    V = log ψ grows at the energies of the chains, which drives them away, until all energies in the
    range are visited equally often and V is the log density of the energy. V is then constant:
    sample with the kernel that this returns, and weight the draws by `contour_weights`.

    Args:
        kernel: the sampler of each step, such as ``sgld(0.01)``.
        target: the target.
        init: initial positions, (chains, dim); all chains share one V.
        energies: from about the lowest energy of the modes to above the barriers between them.
        num_steps: steps of each chain.
        bins: pieces of V.
        zeta: ζ of the returned kernel; the estimate uses 1.
        data: the columns of the target.
        batch_size: rows per step; None takes all data.
        seed: of all random numbers. Use another seed for the run that follows, since its chains
            would begin with the same noise.

    Differs from: Deng et al. adapt V while they sample, one V per chain, and use a piecewise
    constant V in the weights; ours is constant in time and continuous, so that the weights are
    exact for any V. Their update of ψ is, for ζ = 1 and to first order in its rate, the one here,
    which is that of Wang and Landau (2001).

    Example:
        >>> import langevin as lv
        >>> target = lv.targets.mixture([[-2.0], [2.0]], std=0.5)
        >>> init, settings = torch.zeros(8, 1), {"energies": (0.9, 9.0), "num_steps": 2000}
        >>> kernel = lv.learn_contour(lv.sgld(0.05), target, init, bins=20, **settings)
        >>> samples = lv.sample(target, sampler=kernel, init=init, num_steps=2000, seed=1)
        >>> weights = lv.contour_weights(kernel, samples)
        >>> variance = float((weights * samples.draws[..., 0] ** 2).sum())  # 4.25
        >>> 3.9 < variance < 4.6
        True
    """
    who = "learn_contour"
    if not isinstance(kernel, Kernel):
        raise needs(who, "kernel", "a sampler such as sgld(step_size=...)", kernel, TypeError)
    check_target(who, target, data)
    columns = () if data is None else target.as_columns(who, data)
    position = check_position(who, "init", init)
    if position.ndim != 2:
        raise needs(who, "init", "shape (chains, dim)", tuple(position.shape))
    if not isinstance(energies, tuple) or len(energies) != 2:
        raise needs(who, "energies", "two numbers, the lower first", energies, TypeError)
    check_integer(who, "num_steps", num_steps, _STEPS)
    check_integer(who, "bins", bins, 2)
    check_number(who, "zeta", zeta, ">= 0", lambda v: v >= 0)
    chains = range(len(position))
    gradient_fn = full(target, columns or None)
    if batch_size is not None:
        gradient_fn = minibatch(
            target, columns, batch_size, seed=seed, chains=chains, batches="white"
        )
    if target.gradient_noise:
        gradient_fn = noisy(
            gradient_fn, target.gradient_noise, seed=seed, chains=chains, like=position
        )

    low, high = energies
    made = Contour(
        "contour", kernel.step_size, kernel.temperature,
        inner=kernel, low=low, high=high, log_density=(0.0,) * (bins + 1),
    )  # fmt: skip
    state, updates = made.init(position), num_steps // _STEPS
    gap = (high - low) / bins / kernel.temperature
    value = -gap * torch.arange(bins + 1, dtype=torch.float64)  # no force between the knots
    visited = torch.zeros(bins + 1, dtype=torch.float64)
    for update in range(updates):
        made = dataclasses.replace(made, log_density=tuple(value.tolist()))
        for trace in run_blocks(
            made, gradient_fn, state, seed=seed, chains=chains, num_steps=_STEPS
        ):
            state = trace.state
            share = _shares(made, trace.energies.double().flatten().cpu())
            rate = min(1.0, _FULL_RATE * updates / (update + 1))
            value += rate * _RATE * bins * share
            slopes = (value.diff() / gap).clamp(-1 - _STEEPEST, _STEEPEST - 1)
            value[1:] = value[0] + slopes.cumsum(0) * gap
            visited += share * (rate < 1)
    if not bool(torch.isfinite(state.position).all()):
        what = "steps so small that chains stay finite where the energy is high"
        raise needs(who, "kernel", what, kernel.step_size)
    empty = int((visited < 0.03 * visited.mean()).sum())
    if empty:
        what = (
            f"a range that chains visit: {empty} of {bins + 1} knots were hardly visited; take "
            "more steps, or another range"
        )
        raise needs(who, "energies", what, energies)
    return dataclasses.replace(made, log_density=tuple((value - value.max()).tolist()), zeta=zeta)


def _shares(kernel: Contour, energy: Tensor) -> Tensor:
    """Return the share of the energies near each knot; energies outside the range do not count."""
    total, energy = len(energy), energy[(energy > kernel.low) & (energy < kernel.high)]
    _, below, way, _ = kernel._place(energy)
    count = torch.zeros(len(kernel.log_density), dtype=torch.float64)
    count.index_add_(0, below, 1 - way)
    count.index_add_(0, below + 1, way)
    count[[0, -1]] *= 2  # the ends have one side only
    return count / total


def contour_weights(kernel: Contour, samples: Samples, *, energy_noise: float = 0.0) -> Tensor:
    """Return the weights of draws for the target, ``exp(V(U))`` over their sum, (chain, draw).

    Takes one evaluation of the target over all data per draw. A stopped chain counts up to where it
    stopped.

    Args:
        kernel: the kernel of the run, from `learn_contour`.
        samples: the run, of positions, with its target (see `Samples.with_target` after
            `load_samples`).
        energy_noise: standard deviation of the chains' energy estimates, if they were noisy.
    """
    who = "contour_weights"
    if not isinstance(kernel, Contour):
        raise needs(who, "kernel", "what learn_contour returned", kernel, TypeError)
    if not isinstance(samples, Samples) or samples.kept != "positions" or samples.target is None:
        raise needs(who, "samples", "positions with their target", samples, TypeError)
    draws = samples.draws
    exact = full(samples.target, samples.data or None)
    energy = torch.stack([exact(part, 0).energy for part in draws.transpose(0, 1)], 1).double()
    log = kernel.log_weights(energy, energy_noise=energy_noise)
    return log.masked_fill(log.isnan(), -torch.inf).flatten().softmax(0).reshape(log.shape)
