"""The chain driver: a function that runs a kernel on a target, many chains at once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from langevin.checks import check_integer, check_position, needs
from langevin.gradients import GradientFn, full, minibatch, noisy
from langevin.kernels import Kernel
from langevin.noise import Purpose, normal, streams
from langevin.store import ChainStatus, Samples
from langevin.targets import Target

__all__ = ["sample"]

_NOISE_PURPOSES = (Purpose.POSITION, Purpose.SECOND)


def sample(
    kernel: Kernel,
    target: Target,
    init: Tensor,
    *,
    num_steps: int,
    warmup: int = 0,
    thin: int = 1,
    data: Sequence[Tensor] | Tensor | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    first_chain: int = 0,
    progress: bool | None = None,
) -> Samples:
    """Run chains of `kernel` on `target`.

    Every random number is a function of (seed, chain, step): the same call gives the same bits, and chains run apart
    (with `first_chain`) give what they give together.

    Args:
        kernel: a recipe such as ``langevin.sgld(step_size=0.01)``.
        target: an energy of `langevin.targets`.
        init: starting positions, (chains, dim), or (dim,) for one chain.
        num_steps: steps in all, warm-up included.
        warmup: first steps whose draws are thrown away.
        thin: keep every `thin`-th position after the warm-up.
        data: the data set's columns, for targets that need one.
        batch_size: rows per step and chain; None takes all data each time.
        seed: an int in [0, 2**64).
        first_chain: number of the first chain.
        progress: show a progress bar; None shows one on a terminal only.

    Returns:
        Samples, whose `draws` have axes (chain, draw, dim). A chain that goes non-finite stops, keeps its draws and says when
        and why in `status`; the others go on. Ctrl-C returns what was drawn so far.

    Example:
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> lv.sample(lv.sgld(step_size=0.05), target, torch.zeros(4, 2), num_steps=300, warmup=100).draws.shape
        torch.Size([4, 200, 2])
    """
    position = _check_arguments(kernel, target, init, num_steps, warmup, thin, data, batch_size)
    chains = range(first_chain, first_chain + len(position))
    gradient_fn = _gradient(target, data, batch_size, seed, first_chain)
    _check_evaluation(gradient_fn, position)

    num_draws = (num_steps - warmup) // thin
    draws = position.new_full((len(position), num_draws, position.shape[-1]), torch.nan)
    energies = position.new_full((len(position), num_draws), torch.nan)
    stopped: dict[int, int] = {}  # index of the chain -> step at which it went non-finite
    alive = torch.ones(len(position), dtype=torch.bool, device=position.device)
    state, kept, start = kernel.init(position), 0, time.perf_counter()

    # tqdm takes disable=None as "only on a terminal".
    bar = tqdm(total=num_steps, desc=kernel.name, unit="step", disable=None if progress is None else not progress)
    try:
        for step in range(num_steps):
            energy, gradient = gradient_fn(state.position, step)
            state, _ = kernel.step(state, gradient, _noise(kernel, state.position, seed, chains, step))
            finite = torch.isfinite(state.position).all(-1)
            if not torch.equal(finite & alive, alive):
                stopped.update({int(index): step for index in (alive & ~finite).nonzero()})
                alive &= finite
                if not alive.any():
                    break
            if step >= warmup and (step - warmup + 1) % thin == 0:
                draws[alive, kept] = state.position[alive]
                energies[alive, kept] = energy[alive]
                kept += 1
            bar.update()
    except KeyboardInterrupt:
        warnings.warn(f"sample() was interrupted at step {state.step}: {kept} draws are returned", stacklevel=2)
        draws, energies = draws[:, :kept], energies[:, :kept]
    finally:
        bar.close()

    status = tuple(_status(k, index, state.step, stopped, draws) for index, k in enumerate(chains))
    for bad in [entry for entry in status if not entry.is_healthy]:
        warnings.warn(f"{bad}. A smaller step_size may help.", stacklevel=2)
    return Samples(draws, status, energies, kernel.description, time.perf_counter() - start)


def _gradient(
    target: Target, data: Sequence[Tensor] | Tensor | None, batch_size: int | None, seed: int, first_chain: int
) -> GradientFn:
    gradient_fn = (
        full(target, data)
        if data is None or batch_size is None
        else minibatch(target, data, batch_size, seed=seed, first_chain=first_chain)
    )
    return noisy(gradient_fn, target.gradient_noise, seed=seed, first_chain=first_chain) if target.gradient_noise else gradient_fn


def _noise(kernel: Kernel, position: Tensor, seed: int, chains: range, step: int) -> Tensor:
    """Draw the step's standard normals: one stream per chain and per noise of the kernel."""
    draws = [
        normal(seed, streams(purpose, chains), step, position.shape[-1], dtype=position.dtype, device=position.device)
        for purpose in _NOISE_PURPOSES[: kernel.num_noises]
    ]
    return draws[0] if kernel.num_noises == 1 else torch.stack(draws)


def _status(chain: int, index: int, steps: int, stopped: dict[int, int], draws: Tensor) -> ChainStatus:
    if index not in stopped:
        return ChainStatus(chain, steps, draws.shape[1], None)
    kept = int((~torch.isnan(draws[index]).any(-1)).sum())
    return ChainStatus(chain, stopped[index], kept, "the position became non-finite")


def _check_arguments(
    kernel: Any, target: Any, init: Any, num_steps: Any, warmup: Any, thin: Any, data: Any, batch_size: Any
) -> Tensor:
    """Fail early on bad input; return the starting positions with a chain axis."""
    if not isinstance(kernel, Kernel):
        raise needs("sample", "kernel", "a recipe such as sgld(step_size=...)", kernel, TypeError)
    if not isinstance(target, Target):
        raise needs("sample", "target", "a target such as targets.energy(...)", target, TypeError)
    if kernel.num_noises > len(_NOISE_PURPOSES):
        raise needs("sample", "kernel", f"at most {len(_NOISE_PURPOSES)} noises per element", kernel.num_noises)
    position = check_position("sample", "init", init)
    if position.ndim > 2:
        raise needs("sample", "init", "shape (chains, dim) or (dim,)", tuple(position.shape))
    check_integer("sample", "num_steps", num_steps, 1)
    check_integer("sample", "warmup", warmup, 0)
    check_integer("sample", "thin", thin, 1)
    if warmup >= num_steps:
        raise needs("sample", "warmup", f"less than num_steps = {num_steps}", warmup)
    if thin > num_steps - warmup:
        raise needs("sample", "thin", f"at most num_steps - warmup = {num_steps - warmup}", thin)
    if target.needs_data and data is None:
        raise needs("sample", "data", "the columns that the target's likelihood takes", data)
    if not target.needs_data and data is not None:
        raise needs("sample", "data", "None: this target has no data", type(data).__name__)
    if batch_size is not None:
        if data is None:
            raise needs("sample", "batch_size", "None when there is no data", batch_size)
        check_integer("sample", "batch_size", batch_size, 1)
    return position.detach().reshape(-1, position.shape[-1])


def _check_evaluation(gradient_fn: GradientFn, position: Tensor) -> None:
    """Try the target once: its shapes must be those of the chains."""
    energy, gradient = gradient_fn(position, 0)
    if energy.shape != position.shape[:1]:
        raise needs("sample", "target", f"one energy per chain, shape ({len(position)},)", tuple(energy.shape))
    if gradient.shape != position.shape:
        raise needs("sample", "target", f"gradients of shape {tuple(position.shape)}", tuple(gradient.shape))
    if gradient.dtype != position.dtype:
        raise needs("sample", "target", f"gradients of the dtype of init, {position.dtype}", gradient.dtype, TypeError)
