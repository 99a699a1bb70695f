"""The checks of what `sample` and `resume` are given: each value fails up front, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import check_function, check_integer, check_position, needs
from langevin.gradients import BATCHES, GradientFn
from langevin.kernels import Kernel
from langevin.noise import UPDATE_NOISES
from langevin.noise.address import MAX_CHAIN, check_seed
from langevin.targets import Target
from langevin.targets.base import check_dim, check_target

__all__ = ["check_arguments", "check_evaluation", "check_parts", "resolved_batches"]


def check_parts(who: str, kernel: Any, target: Any, data: Any, progress: Any) -> tuple[Tensor, ...]:
    """Check what `sample` and `resume` share; return the data's columns."""
    if not isinstance(kernel, Kernel):
        raise needs(who, "kernel", "a sampler such as sgld(step_size=...)", kernel, TypeError)
    check_target(who, target, data)
    if kernel.num_noises > len(UPDATE_NOISES):
        raise needs(who, "kernel", f"at most {len(UPDATE_NOISES)} noises per element", kernel.num_noises)
    if progress is not None and not isinstance(progress, bool):
        check_function(who, "progress", progress, "True, False, None or a function of (steps done, steps in all)", count=2)
    columns = () if data is None else target.as_columns(who, data)
    target.check_data(columns)
    return columns


def check_arguments(
    kernel: Kernel,
    init: Any,
    num_steps: Any,
    warmup: Any,
    thin: Any,
    columns: Sequence[Tensor],
    batch_size: Any,
    seed: Any,
    first_chain: Any,
    control_variate: Any,
    keep: Any,
    compile: Any,
) -> Tensor:
    """Check the rest of what `sample` is given; return the starting positions with a chain axis."""
    if not callable(keep) and not (isinstance(keep, str) and keep in ("positions", "moments")):
        raise needs("sample", "keep", '"positions", "moments" or a function of one position', keep)
    if not isinstance(compile, bool) and not (isinstance(compile, str) and compile == "auto"):
        raise needs("sample", "compile", 'True, False or "auto"', compile)
    position = check_position("sample", "init", init)
    if position.ndim > 2:
        raise needs("sample", "init", "shape (chains, dim) or (dim,)", tuple(position.shape))
    position = position.detach().reshape(-1, position.shape[-1])
    check_integer("sample", "num_steps", num_steps, 1)
    check_integer("sample", "warmup", warmup, 0)
    check_integer("sample", "thin", thin, 1)
    if warmup >= num_steps:
        raise needs("sample", "warmup", f"less than num_steps = {num_steps}", warmup)
    if thin > num_steps - warmup:
        raise needs("sample", "thin", f"at most num_steps - warmup = {num_steps - warmup}", thin)
    check_seed("sample", seed)
    check_integer("sample", "first_chain", first_chain, 0)
    if len(position) % kernel.group_size or first_chain % kernel.group_size:
        whole = f"whole groups of {kernel.group_size} chains, which meet in {kernel.name}"
        raise needs("sample", "init", whole, f"{len(position)} chains from number {first_chain} on")
    if first_chain + len(position) > MAX_CHAIN:
        raise needs("sample", "first_chain", f"at most 2**32 - {len(position)}, for the chains of init", first_chain)
    if batch_size is not None:
        if not columns:
            raise needs("sample", "batch_size", "None when there is no data", batch_size)
        check_integer("sample", "batch_size", batch_size, 1)
        if kernel.needs_exact_energy:
            what = f'None for {kernel.name}, which takes energies as exact; energy_noise="auto" corrects for their noise'
            raise needs("sample", "batch_size", what, batch_size)
        if batch_size > len(columns[0]):
            raise needs("sample", "batch_size", f"at most the {len(columns[0])} rows of the data", batch_size)
    if control_variate is not None:
        _check_control_variate(control_variate, position, batch_size)
    return position


def _check_control_variate(mode: Any, position: Tensor, batch_size: Any) -> None:
    if batch_size is None:
        raise needs("sample", "control_variate", "data and a batch_size: there is no noise to take away", batch_size)
    check_position("sample", "control_variate", mode)
    if mode.shape != position.shape[1:]:
        raise needs("sample", "control_variate", f"shape ({position.shape[-1]},), that of one position", tuple(mode.shape))
    if mode.dtype != position.dtype:
        raise needs("sample", "control_variate", f"the dtype of init, {position.dtype}", mode.dtype, TypeError)


def check_evaluation(target: Target, gradient_fn: GradientFn, position: Tensor, columns: Sequence[Tensor], chains: range) -> None:
    """Try the target once where the chains start: its shapes must be theirs, and its values finite."""
    check_dim("sample", "init", target, position.shape[-1])
    try:
        energy, gradient = gradient_fn(position, 0)
    except (RuntimeError, TypeError) as error:
        others = {column.dtype for column in columns if column.is_floating_point()} - {position.dtype}
        if others and ("dtype" in str(error) or "scalar type" in str(error)):
            raise needs("sample", "init", f"the dtype of the data, {others.pop()}", position.dtype, TypeError) from error
        raise
    if energy.shape != position.shape[:1]:
        raise needs("sample", "target", f"one energy per chain, shape ({len(position)},)", tuple(energy.shape))
    if gradient.shape != position.shape:
        raise needs("sample", "target", f"gradients of shape {tuple(position.shape)}", tuple(gradient.shape))
    if gradient.dtype != position.dtype:
        raise needs("sample", "target", f"gradients of the dtype of init, {position.dtype}", gradient.dtype, TypeError)
    bad = ~(torch.isfinite(energy) & torch.isfinite(gradient).all(-1))
    if bad.any():
        index = int(bad.nonzero()[0])
        value = energy[index].item()
        shown = f"the gradient {gradient[index].tolist()}" if math.isfinite(value) else f"the energy {value}"
        raise needs("sample", "init", f"a finite energy and gradient where chain {chains[index]} starts", shown)


def resolved_batches(batches: Any, batch_size: int | None, absorbs: bool) -> str:
    """Return how minibatches are drawn: "auto" takes what the sampler needs; what it cannot have is refused."""
    if batches not in ("auto", *BATCHES):
        raise needs("sample", "batches", f"one of {', '.join(('auto', *BATCHES))}", batches)
    if batches != "auto" and batch_size is None:
        raise needs("sample", "batches", '"auto" without a batch_size: all data are looked at', batches)
    if batches == "reshuffled" and absorbs:
        what = (
            '"white" or "auto" for a sampler that absorbs noise: that of reshuffled epochs cancels by itself, and would be cooled'
        )
        raise needs("sample", "batches", what, batches)
    return ("white" if absorbs else "reshuffled") if batches == "auto" else str(batches)
