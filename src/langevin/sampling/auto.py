"""Choose the sampler and its settings: `sample` without a sampler."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from langevin.adaptation import (
    AFTER_WARMUP,
    MOST,
    Coordinates,
    WarmupResult,
    describe_weights,
    describe_work,
    find_step_size,
    noisy_size,
    sampler_at,
    spread_starts,
    stationary_error,
    warm_up,
)
from langevin.adaptation.metric import kind_for
from langevin.adaptation.modes import STARTS, allocate, describe_rare, rarely_crossed, wide_starts
from langevin.adaptation.tails import describe_tails, tail_indices
from langevin.checks import level_of_caller, needs
from langevin.diagnostics.trust import TrustWarning
from langevin.kernels import Kernel, Scaled
from langevin.kernels.gradient_noise import OPEN
from langevin.sampling.arguments import check_evaluation
from langevin.sampling.config import Adaptation, RunConfig
from langevin.sampling.noise_correction import cheaper_gradient, correct_noise, run_noise
from langevin.sampling.progress import progress_bar
from langevin.targets import Evaluation, Target
from langevin.targets.gradients import GradientFn, compiled, full, in_metric, tolerant
from langevin.targets.metric import Metric, as_metric
from langevin.targets.parameterisation import Reparameterised

__all__ = ["choose_sampler", "draw_starts", "run_warmup"]

_GRADIENTS = 1000  # expected per chain in a warm-up, for the progress bar
_NEAR = 20.0  # largest noise over signal at which control variates are used: chains are near
_DRAW_STEPS = 3.0  # kept draws per effective sample that thinning aims at
_MOST_THIN = 100
_EXCESS = 0.03  # excess temperature from gradient noise; `trust` warns above 0.05
_JUMPS = (
    "the energy has discontinuities: its change over a step stays non-smooth however short the "
    "step. Gradient-based samplers do not see discontinuities, so the draws do not follow the "
    "target."
)
_TOO_LONG = (
    "no step size keeps the energy error small: its RMS is {rms:.2g} per step (limit 0.1). The "
    "draws may be wrong. Reparameterise the model so that the energy has no walls."
)


def choose_sampler(config: RunConfig, adaptation: Adaptation) -> tuple[RunConfig, Tensor]:
    """Choose the sampler, its settings and the number of steps; return initial positions, too.

    The noise of white minibatches is estimated and corrected; that of reshuffled ones limits the
    step size.
    """
    target, columns, metric = adaptation.target, adaptation.columns, adaptation.metric
    exact = _exact_gradient(target, config, adaptation)
    starts = adaptation.starts
    if starts is None:
        starts = draw_starts(exact, config, adaptation)
    check_evaluation(target, exact, starts, columns, config.chains)
    if not isinstance(metric, str):
        metric = as_metric("sample", metric, starts)
    found = run_warmup(exact, starts, config, adaptation, metric)
    if found.coordinates is not None:
        config = dataclasses.replace(config, coordinates=found.coordinates)
        adaptation = dataclasses.replace(adaptation, target=found.coordinates)
    target = adaptation.target
    reports = _parameterisation(target, config, found)
    if config.batch_size is None and not target.gradient_noise:
        kernel = found.kernel
    elif config.batch_size is None or config.batches == "white":
        config, found, kernel, report = _with_correction(found, config, adaptation)
        reports.append(report)
    else:
        gradient_fn = config.gradient(target, columns, found.position)
        found = _with_less_noise(found, config, gradient_fn, config.steps_per_epoch(target))
        kernel = found.kernel
    thin = min(_MOST_THIN, max(1, round(found.steps_per_draw / _DRAW_STEPS)))
    warmup = 10 + 2 * math.ceil(found.steps_per_draw)  # the velocities start at rest
    report = _report(found, config, reports, thin)
    print(report)
    if found.has_jumps:
        warnings.warn(_JUMPS, TrustWarning, stacklevel=level_of_caller())
    elif found.work > MOST:
        message = _TOO_LONG.format(rms=found.work**0.5)
        warnings.warn(message, TrustWarning, stacklevel=level_of_caller())
    if len(found.modes.modes) > 1:
        _warn_of_modes(found, config, adaptation, config.num_steps * thin)
    if found.cheap == 0 and not target.gradient_noise:
        _warn_of_tails(exact, found, config, adaptation)
    config = dataclasses.replace(
        config, kernel=kernel, num_steps=warmup + config.num_steps * thin, warmup=warmup,
        thin=thin, tuning=report, recipe=(found.size, found.smallest_curvature),
        warmup_gradients=math.ceil(found.cost),
    )  # fmt: skip
    return config, found.position


def _exact_gradient(target: Target, config: RunConfig, adaptation: Adaptation) -> GradientFn:
    """Return the gradient over all data of the warm-up."""
    exact = full(target, adaptation.columns or None)
    return tolerant(compiled(exact, len(config.chains)) if adaptation.is_compiled else exact)


def _parameterisation(target: Target, config: RunConfig, found: WarmupResult) -> list[str]:
    """Return the report of the parameters whose priors depend on others, or nothing."""
    if target.conditionals is None:
        return []
    report = describe_weights(target.conditionals, config.coordinates, config.theta(found.draws))
    return [report] if report else []


def run_warmup(
    exact: GradientFn,
    starts: Tensor,
    config: RunConfig,
    adaptation: Adaptation,
    metric: str | Metric,
) -> WarmupResult:
    """Run the warm-up with a progress bar."""
    temperature, progress = config.kernel.temperature, adaptation.progress
    if temperature == 0:
        what = "temperature > 0: at 0 there is no distribution to adapt to"
        raise needs("sample", "sampler", what, temperature)

    def cheaper(
        coordinates: Reparameterised | None, centre: Tensor, positions: Tensor, metric: Metric
    ) -> tuple[GradientFn, float, float] | None:
        seen = adaptation.target if coordinates is None else coordinates
        found = cheaper_gradient(config, seen, adaptation.columns, centre, positions, metric)
        if found is None or not adaptation.is_compiled:
            return found
        return compiled(found[0], len(config.chains)), *found[1:]

    def exact_gradient(seen: Reparameterised) -> GradientFn:
        return _exact_gradient(seen, config, adaptation)

    coordinates = None
    if config.coordinates is not None:
        coordinates = Coordinates(config.coordinates, adaptation.names, exact_gradient)
    show = None if callable(progress) else progress
    with progress_bar(show, "warm-up", 0, _GRADIENTS) as report:
        return warm_up(
            exact, starts, chains=config.chains, seed=config.seed, metric=metric,
            gather=adaptation.moves_chains, further=_further_starts(config, adaptation),
            name_of=_name_of(adaptation), temperature=temperature, report=report,
            cheaper=cheaper, is_compiled=adaptation.is_compiled, coordinates=coordinates,
        )  # fmt: skip


def _further_starts(config: RunConfig, adaptation: Adaptation) -> Tensor | None:
    """Return more positions to search for modes from, if chains may move and data are few."""
    like, count = adaptation.position[0], STARTS - len(config.chains)
    if not adaptation.moves_chains or config.batch_size is not None or count < 1:
        return None
    if kind_for(len(like), "auto") != "dense":  # the mass of a mode takes its Hessian
        return None
    own = adaptation.target.explore(count, config.seed)
    return wide_starts(count, config.seed, like) if own is None else own


def _name_of(adaptation: Adaptation) -> Callable[[int], str]:
    space = adaptation.target.space
    return "theta[{}]".format if space is None else space.element


def _warn_of_modes(
    found: WarmupResult, config: RunConfig, adaptation: Adaptation, num_steps: int
) -> None:
    """Warn if the run will be too short for chains to visit the modes by their weights."""
    total = num_steps * len(config.chains)
    rare = rarely_crossed(found.modes, found.mode_path, total, found.temperature)
    if rare:
        message = describe_rare(
            found.modes, rare, found.mode_path, allocate(found.modes.weights, len(config.chains)),
            _name_of(adaptation), found.temperature,
        )  # fmt: skip
        warnings.warn(message, TrustWarning, stacklevel=level_of_caller())


def _warn_of_tails(
    exact: GradientFn, found: WarmupResult, config: RunConfig, adaptation: Adaptation
) -> None:
    """Warn if a density falls so slowly that standard deviations are infinite or unreliable."""
    draws = config.theta(found.draws)
    if found.coordinates is not None:  # what is reported are the target's own parameters
        exact = _exact_gradient(found.coordinates.target, config, adaptation)
    middle, width = draws.median(0).values, draws.std(0)
    chains = len(config.chains)
    indices, elements, _ = tail_indices(exact, middle, width, chains, found.temperature)
    message = describe_tails(indices, elements.tolist(), _name_of(adaptation))
    if message is not None:
        warnings.warn(message, TrustWarning, stacklevel=level_of_caller())


def draw_starts(exact: GradientFn, config: RunConfig, adaptation: Adaptation) -> Tensor:
    """Draw initial positions from the target's own distribution if it has one, else uniformly."""
    like, chains = adaptation.position[0], config.chains
    own = adaptation.target.init(len(chains), config.seed, first_chain=chains.start)
    try:
        return spread_starts(exact, chains, config.seed, like, own)
    except (RuntimeError, TypeError) as error:
        if "dtype" in str(error) or "scalar type" in str(error):
            what = "positions of the dtype of the target's own tensors"
            raise needs("sample", "init", what, like.dtype, TypeError) from error
        raise


def _with_correction(
    found: WarmupResult, config: RunConfig, adaptation: Adaptation
) -> tuple[RunConfig, WarmupResult, Kernel, str]:
    """Correct for the gradient noise; use control variates if they pay for their second gradient.

    In the noisiest direction the steps per effective sample grow by the ratio of noise to signal
    (docs/theory.md, section 6).
    """
    target, columns = adaptation.target, adaptation.columns
    sampler = sampler_at(found.size, found.smallest_curvature, found.temperature, OPEN)
    sampler = Scaled.of(sampler, found.metric)
    noise = run_noise(sampler, found, config, target, columns)
    if config.batch_size is not None and adaptation.uses_control_variates:
        centred = run_noise(sampler, found, config, target, columns, found.centre)
        pays = 2 * (found.steps_per_draw + centred.ratio) < found.steps_per_draw + noise.ratio
        if pays and centred.ratio < _NEAR:
            config, noise = dataclasses.replace(config, centre=found.centre), centred
    found = _with_size(found, noisy_size(found.size, noise.ratio, noise.excess))
    found = dataclasses.replace(found, steps_per_draw=found.steps_per_draw + noise.ratio)
    sampler = sampler_at(found.size, found.smallest_curvature, found.temperature, OPEN)
    return config, found, *correct_noise(Scaled.of(sampler, found.metric), found, noise)


def _with_less_noise(
    found: WarmupResult, config: RunConfig, gradient_fn: GradientFn, epoch: float | None
) -> WarmupResult:
    """Reduce the size until gradient noise raises the temperature by at most 3 percent."""
    inside = in_metric(gradient_fn, found.metric, found.position)
    taken = 0

    def counted(position: Tensor, drawn: tuple[Tensor, ...]) -> Evaluation:
        nonlocal taken
        taken += 1
        return inside.evaluate(position, drawn)

    seen = find_step_size(
        sampler_at(found.size, found.smallest_curvature), GradientFn(inside.draw, counted),
        torch.zeros_like(found.position), chains=config.chains, seed=config.seed,
        steps_per_epoch=epoch, first_step=AFTER_WARMUP,
    )  # fmt: skip
    size = found.size

    def excess(curvature: float, noise: float) -> float:
        kernel = sampler_at(size, found.smallest_curvature)
        return stationary_error(
            kernel, kernel.step_size(0), curvature=curvature, noise=noise, steps_per_epoch=epoch
        )

    while max(excess(seen.curvature, seen.noise), excess(*seen.noisiest)) > _EXCESS:
        size *= 0.9
    gradients, cost = found.gradients + taken, found.cost + taken
    return dataclasses.replace(_with_size(found, size), gradients=gradients, cost=cost)


def _with_size(found: WarmupResult, size: float) -> WarmupResult:
    """Return the result at another size, with the steps per draw and the work there."""
    steps = found.steps_per_draw * (found.size / size) ** 0.5
    work = found.work * (size / found.size) ** 3
    return dataclasses.replace(found, size=size, steps_per_draw=steps, work=work)


def _report(found: WarmupResult, config: RunConfig, reports: Sequence[str], thin: int) -> str:
    kernel = sampler_at(found.size, found.smallest_curvature)
    drift = getattr(kernel, "drift")  # noqa: B009 - the invariant MSGLD has one
    gradients = f"{found.gradients:,} gradients each"
    if found.cheap:
        gradients += f", and {found.cheap:,} of minibatches"
    if found.moved:
        gradients += f"; {found.moved} chains moved to the best mode from one far above it"
    lines = [
        f"Warm-up: {len(config.chains)} chains, {gradients}",
        f"sampler: {kernel.name}, invariant; step_size {kernel.step_size(0):.3g}, "
        f"bias_factor {drift.bias_factor:.3g}, beta {drift.smoothing:.2g}",
        f"metric: {found.metric.describe()}",
        describe_work(found.work),
    ]
    if config.centre is not None:
        lines.append("control variates: minibatch gradients minus those at the mode")
    steps = f"about {found.steps_per_draw:.2g} steps per effective sample"
    return "\n  ".join([*lines, *reports, f"{steps}; thinning {thin}"])
