"""A run with a sampler: what it leaves open, scale or step size, is found first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from langevin.chains.absorb import absorb, cheaper_gradient, inner_of, learn_noise_of, scale_of, signal_in
from langevin.chains.arguments import check_arguments, check_evaluation, check_parts, resolved_batches
from langevin.chains.launch import launch
from langevin.chains.meter import Progress
from langevin.chains.plan import Keep, Plan
from langevin.chains.tune import ScaleSetting, check_scale, epoch_of, warm_up, work_in_words
from langevin.checks import needs
from langevin.gradient_noise import is_open as noise_is_open
from langevin.gradients import GradientFn, full, in_scale
from langevin.kernels import Kernel, Scaled
from langevin.scale import Engine
from langevin.scales import as_scale
from langevin.schedules import AUTO
from langevin.store import Samples
from langevin.targets import Target
from langevin.tuning import (
    AFTER_WARMUP,
    FIRST_STEP,
    Found,
    Learnt,
    descend,
    find_step_size,
    inertial_factor,
    limit_step,
    suitable_factor,
)

__all__ = ["run_given"]


def run_given(
    kernel: Any,
    target: Any,
    init: Any,
    *,
    num_steps: Any = None,
    warmup: int = 0,
    thin: int = 1,
    data: Any = None,
    scale: ScaleSetting = None,
    batch_size: int | None = None,
    batches: str = "auto",
    seed: int = 0,
    first_chain: int = 0,
    control_variate: Tensor | None = None,
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: Progress = None,
    engine: Engine | None = None,
    block_size: int | None = None,
) -> Samples:
    """Run `kernel`; everything as in `sample`."""
    columns = check_parts("sample", kernel, target, data, progress)
    position = check_arguments(
        kernel, init, num_steps, warmup, thin, columns, batch_size, seed, first_chain, control_variate, keep, compile
    )
    check_scale(scale, kernel, position)
    if batches == "reshuffled" and kernel.needs_full_energy:
        what = f'"white" or "auto" for {kernel.name}: only rows drawn anew come as often in the opposite order'
        raise needs("sample", "batches", what, batches)
    plan = Plan(
        kernel.for_run(warmup, position), num_steps, warmup, thin, seed, range(first_chain, first_chain + len(position)), keep,
        batch_size, control_variate, num_data=len(columns[0]) if columns else None,
        batches=resolved_batches(batches, batch_size, kernel.gradient_noise is not None or kernel.needs_full_energy),
    )  # fmt: skip
    tune = partial(_tune, target=target, columns=columns, scale=scale, progress=progress)
    return launch(
        plan, position, target, columns, tune, out=out, compile=compile, progress=progress, engine=engine, block_size=block_size
    )


def _tune(
    plan: Plan, position: Tensor, *, target: Target, columns: Sequence[Tensor], scale: ScaleSetting, progress: Progress
) -> tuple[Plan, Tensor]:
    """Find the scale and the step size that a sampler leaves open; return the plan with them, and where the chains are then."""
    check_evaluation(
        target, dataclasses.replace(plan, mode=None).gradient(target, columns, position), position, columns, plan.chains
    )
    kernel, texts = plan.kernel, []
    if kernel.has_open_bias and kernel.step_size != AUTO:
        raise needs("sample", "kernel", 'step_size="auto" with bias_factor="auto": they are found together', kernel.step_size)
    gradient_fn, exact = plan.gradient(target, columns, position), full(target, columns or None)
    is_exact = plan.batch_size is None and not target.gradient_noise
    is_open = noise_is_open(kernel.gradient_noise)
    if is_exact:
        kernel, is_open = kernel.with_gradient_noise(None), False
    _check_known(kernel, scale, is_exact)
    if scale is None and kernel.step_size != AUTO and not is_open:
        return dataclasses.replace(plan, kernel=kernel), position
    found = None
    if isinstance(scale, str) or is_open:
        kind = scale if isinstance(scale, str) else "auto"
        found = warm_up(exact, position, plan, kind, False, progress, cheaper_gradient(plan, target, columns))
        position = found.position
    if isinstance(scale, str):
        assert found is not None
        kernel = Scaled.of(kernel, found.scale)
        texts.append(f"scale: {found.scale.describe()}, learnt from {found.cost:.0f} gradients of each chain")
    elif scale is not None:
        kernel = Scaled.of(kernel, as_scale("sample", scale, position))
    if is_open:
        assert found is not None
        learnt = learn_noise_of(kernel, found, plan, target, columns)
        if kernel.step_size == AUTO:
            kernel, text = _sized(kernel, found, learnt)
            texts.append(text)
        kernel, text = absorb(kernel, found, learnt)
        texts.append(text)
    elif kernel.step_size == AUTO:
        if is_exact and not isinstance(scale, str):  # the search walks from near a mode: further out it would not arrive
            position = descend(exact, position, tolerance=0.01 * kernel.temperature).position
        kernel, position, text = _with_step_size(plan, kernel, gradient_fn, position, epoch_of(plan, target, columns))
        texts.append(text)
        if is_exact:
            limited = limit_step(kernel, gradient_fn, position, chains=plan.chains, seed=plan.seed)
            texts.append(f"{work_in_words(limited.work)}, at step_size {limited.step_size:.4g}")
            kernel, position = kernel.with_step_size(limited.step_size), limited.position
    text = "\n  ".join(texts)
    if text:
        print(text)
    return dataclasses.replace(plan, kernel=kernel, found=text), position


def _check_known(kernel: Kernel, scale: ScaleSetting, is_exact: bool) -> None:
    """Fail where a noise that is known goes with nothing else that was given."""
    noise = kernel.gradient_noise
    if noise is None or noise.variances is None:
        return
    if scale is not None:
        what = 'None or "corrected", which is learnt in the scale: one that is given stands in the coordinates of theta'
    elif is_exact:
        what = "None for gradients without noise: its friction would cool them"
    elif kernel.step_size == AUTO:
        what = '"corrected" beside step_size="auto", or a number as step_size'
    else:
        return
    raise needs("sample", "noise", what, type(noise).__name__)


def _sized(kernel: Kernel, found: Found, learnt: Learnt) -> tuple[Kernel, str]:
    """Give a sampler that absorbs its noise the size that a warm-up found for exact gradients, or less where noise is large."""
    inner, scale = inner_of(kernel), scale_of(kernel, found)
    if inner.average.scale_memory:
        what = 'a number beside noise="corrected", for a sampler with a metric of its own; msgld and nasgld find one'
        raise needs("sample", "step_size", what, "auto")
    beta = inner.average.smoothing
    factor = inertial_factor(beta) if inner.has_open_bias else inner.average.bias_factor * float(inner.inputs(0).annealing)
    per_size = 1 / (2 * (1 + factor * (1 - beta) / (1 + beta)))  # ε over 2 ε + h^2
    if scale is found.scale:  # as `tuning.noisy_size`, for this β
        size = min(found.size, 1.0, 2 * learnt.heat / (max(learnt.ratio, 1e-300) * (1 + factor) * per_size))
    else:  # soft directions are slow enough
        signal = signal_in(found, scale) / found.temperature
        size = min(found.size, 1.0) / float(torch.linalg.eigvalsh(signal)[-1] if signal.ndim == 2 else signal.max())
    step_size = per_size * size
    text = f"bias_factor {factor:.3g}; step_size {step_size:.4g}: {work_in_words(found.work)}"
    return kernel.with_bias_factor(factor).with_step_size(step_size), text


def _with_step_size(
    plan: Plan, kernel: Kernel, gradient_fn: GradientFn, position: Tensor, epoch: float | None
) -> tuple[Kernel, Tensor, str]:
    """Find the step size that the law on Gaussians and the gradient's noise allow, in the kernel's scale."""
    first = AFTER_WARMUP if isinstance(kernel, Scaled) else FIRST_STEP
    find = partial(find_step_size, chains=plan.chains, seed=plan.seed, steps_per_epoch=epoch, first_step=first)
    inner, start, scale = kernel, position, None
    if isinstance(kernel, Scaled):
        inner, start, scale = kernel.inner, torch.zeros_like(position), kernel.scale
        gradient_fn = in_scale(gradient_fn, scale, position)
    text = ""
    if inner.has_open_bias:
        factor = suitable_factor(inner, find(inner.with_bias_factor(1.0), gradient_fn, start).squares)
        kernel, inner, text = kernel.with_bias_factor(factor), inner.with_bias_factor(factor), f"bias_factor {factor:.3g}; "
    found = find(inner, gradient_fn, start)
    end = found.position if scale is None else position + scale.push(found.position)
    return kernel.with_step_size(found.step_size), end, text + found.text
