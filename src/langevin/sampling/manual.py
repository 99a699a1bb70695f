"""Tune the settings that a sampler leaves open: metric, step size, bias factor, noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from langevin.adaptation import (
    AFTER_WARMUP,
    FIRST_STEP,
    NoiseEstimate,
    WarmupResult,
    descend,
    describe_weights,
    describe_work,
    find_step_size,
    inertial_factor,
    limit_step,
    suitable_factor,
)
from langevin.checks import needs
from langevin.kernels import Kernel, Scaled
from langevin.kernels.gradient_noise import is_open as noise_is_open
from langevin.kernels.schedules import AUTO
from langevin.sampling.arguments import check_evaluation
from langevin.sampling.auto import draw_starts, run_warmup
from langevin.sampling.config import Adaptation, MetricSetting, RunConfig
from langevin.sampling.noise_correction import (
    correct_noise,
    inner_of,
    metric_of,
    run_noise,
    signal_in_metric,
)
from langevin.targets.gradients import GradientFn, full, in_metric, tolerant
from langevin.targets.metric import as_metric

__all__ = ["tune_sampler"]


def tune_sampler(config: RunConfig, adaptation: Adaptation) -> tuple[RunConfig, Tensor]:
    """Tune the settings that a sampler leaves open; return initial positions, too."""
    target, columns, metric = adaptation.target, adaptation.columns, adaptation.metric
    exact = full(target, columns or None)
    position = adaptation.position
    if adaptation.starts is None:
        position = draw_starts(tolerant(exact), config, adaptation)
    plain = dataclasses.replace(config, centre=None).gradient(target, columns, position)
    check_evaluation(target, plain, position, columns, config.chains)
    kernel, reports = config.kernel, []
    if config.coordinates is not None:
        theta = config.theta(position)
        reports.append(describe_weights(config.coordinates.conditionals, config.coordinates, theta))
    if kernel.has_open_bias and kernel.step_size != AUTO:
        what = 'step_size="auto" with bias_factor="auto": they are found together'
        raise needs("sample", "sampler", what, kernel.step_size)
    gradient_fn = config.gradient(target, columns, position)
    is_exact = config.batch_size is None and not target.gradient_noise
    is_open = noise_is_open(kernel.gradient_noise)
    if is_exact:
        kernel, is_open = kernel.with_gradient_noise(None), False
    _check_known(kernel, metric, is_exact)
    if metric is None and kernel.step_size != AUTO and not is_open:
        return _reported(config, kernel, reports), position
    found = None
    if isinstance(metric, str) or is_open:
        kind = metric if isinstance(metric, str) else "auto"
        found = run_warmup(exact, position, config, adaptation, kind)
        position = found.position
    if isinstance(metric, str):
        assert found is not None
        kernel = Scaled.of(kernel, found.metric)
        cost = f"{found.cost:.0f} gradients per chain"
        reports.append(f"metric: {found.metric.describe()}, from {cost}")
    elif metric is not None:
        kernel = Scaled.of(kernel, as_metric("sample", metric, position))
    if is_open:
        assert found is not None
        noise = run_noise(kernel, found, config, target, columns)
        if kernel.step_size == AUTO:
            kernel, report = _sized(kernel, found, noise)
            reports.append(report)
        kernel, report = correct_noise(kernel, found, noise)
        reports.append(report)
    elif kernel.step_size == AUTO:
        if is_exact and not isinstance(metric, str):  # the search starts near a mode
            position = descend(exact, position, tolerance=0.01 * kernel.temperature).position
        epoch = config.steps_per_epoch(target)
        kernel, position, report = _with_step_size(config, kernel, gradient_fn, position, epoch)
        reports.append(report)
        if is_exact:
            limited = limit_step(
                kernel, gradient_fn, position, chains=config.chains, seed=config.seed
            )
            reports.append(f"{describe_work(limited.work)}, at step_size {limited.step_size:.4g}")
            kernel, position = kernel.with_step_size(limited.step_size), limited.position
    return _reported(config, kernel, reports), position


def _reported(config: RunConfig, kernel: Kernel, reports: Sequence[str]) -> RunConfig:
    """Print and keep the report, if there is one; return the configuration with the sampler."""
    report = "\n  ".join(reports)
    if report:
        print(report)
    return dataclasses.replace(config, kernel=kernel, tuning=report)


def _check_known(kernel: Kernel, metric: MetricSetting, is_exact: bool) -> None:
    """Fail where a known noise contradicts another argument."""
    noise = kernel.gradient_noise
    if noise is None or noise.variances is None:
        return
    if metric is not None:
        what = (
            'None or "corrected" beside a metric: a known noise is given in the coordinates of '
            "theta"
        )
    elif is_exact:
        what = "None for exact gradients: a correction would lower the temperature"
    elif kernel.step_size == AUTO:
        what = '"corrected" beside step_size="auto", or a number as step_size'
    else:
        return
    raise needs("sample", "noise", what, type(noise).__name__)


def _sized(kernel: Kernel, found: WarmupResult, noise: NoiseEstimate) -> tuple[Kernel, str]:
    """Set the step size of a noise-corrected sampler from the warm-up, or below for large noise."""
    inner, metric = inner_of(kernel), metric_of(kernel, found.position[0])
    if inner.average.scale_names:
        what = (
            'a number beside noise="corrected", for a sampler with a metric of its own; msgld and '
            "nasgld find one"
        )
        raise needs("sample", "step_size", what, "auto")
    beta = inner.average.smoothing
    factor = inertial_factor(beta)
    if not inner.has_open_bias:
        factor = inner.average.bias_factor * float(inner.inputs(0).annealing)
    per_size = 1 / (2 * (1 + factor * (1 - beta) / (1 + beta)))  # ε over 2 ε + h^2
    size = min(found.size, 1.0)
    if metric is found.metric:  # as `adaptation.noisy_size`, for this β
        ratio = max(noise.ratio, 1e-300)
        size = min(size, 2 * noise.excess / (ratio * (1 + factor) * per_size))
    else:  # directions of small curvature are slow enough
        signal = signal_in_metric(found, metric) / found.temperature
        largest = torch.linalg.eigvalsh(signal)[-1] if signal.ndim == 2 else signal.max()
        size = size / float(largest)
    step_size = per_size * size
    text = f"bias_factor {factor:.3g}; step_size {step_size:.4g}: {describe_work(found.work)}"
    return kernel.with_bias_factor(factor).with_step_size(step_size), text


def _with_step_size(
    config: RunConfig,
    kernel: Kernel,
    gradient_fn: GradientFn,
    position: Tensor,
    epoch: float | None,
) -> tuple[Kernel, Tensor, str]:
    """Find the step size that is accurate on Gaussians and under gradient noise."""
    inner, start, metric, first, text = kernel, position, None, FIRST_STEP, ""
    if isinstance(kernel, Scaled):
        inner, start, metric = kernel.inner, torch.zeros_like(position), kernel.scale
        gradient_fn, first = in_metric(gradient_fn, metric, position), AFTER_WARMUP
    find = partial(
        find_step_size, gradient_fn=gradient_fn, position=start, chains=config.chains,
        seed=config.seed, steps_per_epoch=epoch, first_step=first,
    )  # fmt: skip
    if inner.has_open_bias:
        factor = suitable_factor(inner, find(inner.with_bias_factor(1.0)).squares)
        kernel, inner = kernel.with_bias_factor(factor), inner.with_bias_factor(factor)
        text = f"bias_factor {factor:.3g}; "
    found = find(inner)
    end = found.position if metric is None else position + metric.push(found.position)
    return kernel.with_step_size(found.step_size), end, text + found.text
