"""Run diagnostics: the checks behind `samples.trust`, and `TrustWarning`.

The checks raised no warning in 400 correct runs (`langevin_paper.check.right`): 25 of each of
twelve settings, and of the default call on four targets (``tools/false_alarms.py 1 7``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.diagnostics.convergence import (
    MAX_RHAT,
    MIN_CHAINS,
    MIN_DRAWS,
    MIN_ESS_PER_CHAIN,
    mixing,
    moves,
    sd_error,
)
from langevin.diagnostics.running import MIN_GROUPS, Heat, Measured, batch_ratio

__all__ = ["SIGN_HINT", "Check", "Evidence", "Trust", "TrustWarning", "judge", "ran_off"]

SIGN_HINT = "Did you pass a log density? The energy is U = -log p."

LEVEL = 1e-3
"""Probability of a false alarm, for each check of temperature, energy or cycles."""

TOLERANCE, ELEMENT_TOLERANCE = 0.05, 0.2
"""Relative error allowed in the temperature: averaged over elements, and of one element.

A temperature that is off by 5 % means a variance off by 5 %, and a standard deviation by 2.5 %.
"""

FLAT = 0.02
"""An element with a relative temperature below this feels no force."""

MAX_DRIFT = 0.5
"""Limit for the change of the mean energy from the first to the last third of the draws, in
standard deviations of the energy."""

MAX_EXCESS = 0.1
"""Limit for the excess energy of draws taken at large steps, as a share of dim tau / 2."""

MAX_RESIDUAL = 0.4
"""Limit for the RMS energy error per step after a warm-up, in units of tau; it aims at 0.1."""

MAX_LIMITED = 1e-3
"""Limit for the share of steps in which the force is clipped."""

MAX_SD_ERROR = 0.1
"""Limit for the relative Monte Carlo error of a standard deviation; 0.025 at an ESS of 800."""

MIN_SWAPS = 0.02
"""Smallest swap rate between neighbouring temperatures of replica exchange."""

EXCURSION = 30.0, 3.0
"""A draw is an excursion if its energy exceeds the median by more than (30 + 3 dim) tau."""

# A temperature must exceed the tolerance by this many standard errors: no warning at the tolerance.
_BEYOND = 2.0
_FAR, _LOW = 1e8, -1e10  # a chain beyond these follows an energy that is unbounded below
_AWAY = 10.0  # temperatures below minus this, relative to the target's, mean that chains diverge
_SHOWN = 3  # stopped chains that are named


class TrustWarning(UserWarning):
    """Lists failed diagnostics of a run; `samples.trust` has every check with its number.

    Example:
        >>> import warnings
        >>> import langevin as lv
        >>> import torch
        >>> target, start = lv.targets.gaussian([[1.0]]), torch.ones(4, 1)
        >>> kernel, settings = lv.sgld(1e-4), {"num_steps": 200, "progress": False}
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", lv.TrustWarning)  # "error" raises an exception
        ...     samples = lv.sample(target, sampler=kernel, init=start, **settings)
        >>> caught[0].category.__name__, samples.trust.is_clean
        ('TrustWarning', False)
    """


class Check(NamedTuple):
    """The result of one check."""

    name: str
    value: float | None = None
    error: float | None = None  # standard error of `value`, if it has one
    is_fine: bool | None = None  # None if unknown, or if the value is for information only
    sentence: str = ""  # the problem and its remedy; without a problem, what the value means
    is_listed: bool = True  # False if another check's sentence covers the same problem

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        return {True: "ok", False: "WARNING", None: "-"}[self.is_fine]


@dataclass(frozen=True, repr=False)
class Trust:
    """The diagnostics of a run: `samples.trust`.

    Passing every check is no proof: chains that agree may share a bias that leaves the temperature
    unchanged, or have all missed a mode.

    Args:
        checks: the results.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> kernel = lv.msgld(0.1, bias_factor=10.0, invariant=True)
        >>> target, start = lv.targets.gaussian([[1.0]]), torch.zeros(4, 1)
        >>> settings = {"num_steps": 2000, "warmup": 200, "progress": False}
        >>> samples = lv.sample(target, sampler=kernel, init=start, **settings)
        >>> samples.trust.is_clean, samples.trust.warnings
        (True, [])
        >>> round(samples.trust["temperature"].value, 1)
        1.0
    """

    checks: tuple[Check, ...]

    def __getitem__(self, name: str) -> Check:
        """Return a check by its name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"{name!r} is none of {', '.join(check.name for check in self.checks)}")

    @property
    def warnings(self) -> list[str]:
        """One sentence per failed check, with its remedy."""
        return [each.sentence for each in self.checks if each.is_fine is False and each.is_listed]

    @property
    def is_clean(self) -> bool:
        """Whether no check failed."""
        return not self.warnings

    def __str__(self) -> str:
        """Return a table of the checks, followed by the warnings."""
        rows = [("check", "value", "error", "")]
        for check in self.checks:
            numbers = (check.value, check.error)
            value, error = ("" if number is None else f"{number:.4g}" for number in numbers)
            rows.append((check.name, value, error, check.verdict))
        a, b, c = (max(len(row[k]) for row in rows) for k in range(3))
        lines = [f"{row[0]:<{a}}  {row[1]:>{b}}  {row[2]:>{c}}  {row[3]}".rstrip() for row in rows]
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.warnings)])

    __repr__ = __str__


class Evidence(NamedTuple):
    """What `judge` knows about a run."""

    chains: int
    stopped: Sequence[str]  # why each chain that did not finish stopped
    kept: str  # "positions", "function" or "moments"
    num_draws: int
    size: int  # elements of a draw
    draws: Tensor  # (chain, draw, element) of finished chains: some draws, some elements
    elements: Tensor  # which elements these are
    energy: Tensor  # of these draws, (chain, draw)
    step_size: Tensor  # of these draws, (draw,) or (chain, draw)
    numbers: Sequence[int]  # of the finished chains
    dim: int  # elements of theta
    heat: Heat
    temperature: float | None  # of the target; None if chains differ
    has_found_step: bool = False  # whether a warm-up chose the step size by the energy residual
    name_of: Callable[[int], str] = lambda index: f"element {index}"
    swaps: Tensor | None = None  # swap rates of neighbouring temperatures, (temperatures - 1,)


def judge(run: Evidence) -> Trust:
    """Run all checks."""
    checks = [_stopped(run), _sign(run), *_mixing(run), *_temperature(run)]
    if run.kept != "moments" and len(run.draws):
        checks += [_drift(run), _excursions(run), _cycles(run)]
    if run.swaps is not None:
        checks.append(_swaps(run.swaps))
    return Trust((*checks, _residual(run), _limited(run)))


def ran_off(position: Tensor, energy: Tensor) -> Tensor:
    """Return which chains follow an energy that is unbounded below, (chains,)."""
    return (position.abs().amax(-1) > _FAR) & (energy < _LOW)


def _residual(run: Evidence) -> Check:
    """Check the RMS energy error per step.

    The warm-up bounds it when it chooses the step size, but hardly visits the tails.
    """
    name, value = "energy residual", run.heat.residual
    if math.isnan(value):
        return Check(name, value, None, None, "unknown: gradients are noisy, or too few steps")
    limit = MAX_RESIDUAL * (run.temperature or math.inf)
    if run.has_found_step and value > limit:
        text = (
            f"step size too large in the tails: the RMS energy error per step is {value:.2g} "
            f"(limit {limit:.2g}), mostly from rare steps where the energy is steep. Spreads and "
            "tails may be biased. Reparameterise the model, or use a sampler with a smaller "
            "step_size."
        )
        return Check(name, value, None, False, text)
    text = (
        "RMS of U1 - U0 - (theta1 - theta0) . (g0 + g1) / 2 over a step; zero on quadratic energies"
    )
    return Check(name, value, None, True if run.has_found_step else None, text)


def _limited(run: Evidence) -> Check:
    """Check how often the default sampler clipped the force (`kernels.Scaled`)."""
    name, share = "limited forces", run.heat.limited
    if share <= MAX_LIMITED:
        return Check(name, share, None, True, "share of steps in which the force was clipped")
    text = (
        f"forces were clipped in {share:.2%} of the steps (limit {MAX_LIMITED:.2%}): the posterior "
        "has regions, such as the neck of a funnel, that need much smaller steps and are "
        "undersampled. Reparameterise the model."
    )
    return Check(name, share, None, False, text)


def _stopped(run: Evidence) -> Check:
    name, number = "stopped chains", len(run.stopped)
    if not number:
        text = "all chains finished with finite positions, energies and gradients"
        return Check(name, 0, None, True, text)
    shown = "; ".join(run.stopped[:_SHOWN])
    shown += f"; and {number - _SHOWN} more" if number > _SHOWN else ""
    text = (
        f"stopped chains: {number} of {run.chains} chains did not finish ({shown}). They are "
        "excluded here and in summary(), which biases the results. Reduce step_size or change init."
    )
    return Check(name, number, None, False, text)


def _sign(run: Evidence) -> Check:
    down = [text for text in run.stopped if "-inf" in text]
    if down:
        text = f"the energy fell to minus infinity in {len(down)} chains. {SIGN_HINT}"
        return Check("sign", len(down), None, False, text)
    if run.kept == "positions" and run.draws.numel():
        lost = ran_off(run.draws[:, -1], run.energy[:, -1]).nonzero().flatten().tolist()
        if lost:
            numbers = [run.numbers[k] for k in lost]
            text = f"chains {numbers} diverged: the energy appears unbounded below. {SIGN_HINT}"
            return Check("sign", len(lost), None, False, text)
    by_chain = run.heat.by_chain
    if run.temperature and len(by_chain) and bool((by_chain < -_AWAY * run.temperature).all()):
        text = f"all chains diverge: the energy decreases outwards. {SIGN_HINT}"
        return Check("sign", len(by_chain), None, False, text)
    return Check("sign", 0, None, True, "no chain diverged")


def _mixing(run: Evidence) -> list[Check]:
    """Check the number of chains and draws, movement, R-hat and ESS."""
    if run.kept == "moments":
        text = (
            "no draws: the run kept only moments, which give neither ESS nor R-hat. Pass "
            'keep="positions" to compute them.'
        )
        return [Check("draws", 0, None, None, text)]
    chains, length, _ = run.draws.shape
    if chains == 0:
        return [Check("chains", 0, None, False, "no chain finished.", is_listed=False)]
    if run.size == 0:
        return [Check("draws", 0, None, False, "no elements: `keep` returns an empty tensor.")]
    text = "chains that finished"
    if chains == 1:
        text = (
            "one chain: R-hat is NaN, and modes that this chain missed go unnoticed. Run "
            f"{MIN_CHAINS} chains or more from dispersed starting points: init of shape "
            f"({MIN_CHAINS}, dim)."
        )
    checks = [Check("chains", chains, None, chains > 1, text)]
    is_enough, text = run.num_draws >= MIN_DRAWS, "draws per chain"
    if not is_enough:
        text = (
            f"too few draws: {run.num_draws} per chain, but ESS and R-hat need {MIN_DRAWS}. "
            "Increase num_steps, or reduce warmup or thin."
        )
    checks.append(Check("draws", run.num_draws, None, is_enough, text))
    if length < MIN_DRAWS:
        return checks
    among, draws, elements = f"of {run.size} elements", run.draws, run.elements
    if len(elements) < run.size:
        among = f"of the {len(elements)} elements checked"
    finite = torch.isfinite(draws).all(1).all(0)
    if not finite.all():
        first, number = run.name_of(int(elements[~finite][0])), int((~finite).sum())
        text = (
            f"non-finite draws: {number} {among} are NaN or infinite in chains that finished "
            f"(first: {first}). Check what `keep` returns there; ESS and R-hat are unknown."
        )
        checks.append(Check("finite draws", number, None, False, text))
        draws, elements = draws[..., finite], elements[finite]
    if not finite.any():
        return checks
    still = ~moves(draws)
    if still.any():
        first, number = run.name_of(int(elements[still][0])), int(still.sum())
        text = (
            f"no movement: {number} {among} never changed (first: {first}). The step size is too "
            "small for the dtype, or the sampler does not update them; ESS and R-hat are NaN there."
        )
        checks.append(Check("movement", number, None, False, text))
    return [*checks, *_convergence(run, draws, elements, among)]


def _convergence(run: Evidence, draws: Tensor, elements: Tensor, among: str) -> list[Check]:
    chains, found = len(draws), mixing(draws)
    worst = int(found.rhat.nan_to_num(-torch.inf).argmax())
    bad = found.rhat > MAX_RHAT  # False for NaN
    value, where = float(found.rhat[worst]), run.name_of(int(elements[worst]))
    text = f"worst at {where}"
    if bad.any():
        text = (
            f"chains disagree: R-hat exceeds {MAX_RHAT} for {int(bad.sum())} {among}, worst "
            f"{value:.3f} at {where}. Do not pool the chains yet: take more steps, a longer "
            "warmup, or a sampler that moves between modes."
        )
    is_fine = None if math.isnan(value) else not bad.any()
    checks = [Check("R-hat", value, None, is_fine, text)]
    enough, both = MIN_ESS_PER_CHAIN * chains, torch.minimum(found.bulk, found.tail)
    # Both failing gives one sentence, that of the smaller ESS.
    lowest = [float(values.nan_to_num(torch.inf).amin()) for values in (found.bulk, found.tail)]
    listed = "tail ESS" if lowest[1] < lowest[0] else "bulk ESS"
    for name, values in (("bulk ESS", found.bulk), ("tail ESS", found.tail)):
        worst = int(values.nan_to_num(torch.inf).argmin())
        value, where = float(values[worst]), run.name_of(int(elements[worst]))
        is_fine, text = None if math.isnan(value) else value >= enough, f"worst at {where}"
        if is_fine is False:
            text = (
                f"low effective sample size: the ESS of {chains * run.num_draws} draws is below "
                f"{enough} ({MIN_ESS_PER_CHAIN} per chain) for {int((both < enough).sum())} "
                f"{among}, worst {value:.0f} at {where}. Take about {enough / value:.0f} times as "
                "many steps after the warmup, or increase step_size if its bias allows."
            )
        checks.append(Check(name, value, None, is_fine, text, is_listed=name == listed))
    return [*checks, _spread(run, draws, elements, is_listed=all(c.is_fine for c in checks))]


def _spread(run: Evidence, draws: Tensor, elements: Tensor, *, is_listed: bool) -> Check:
    """Check the Monte Carlo error of standard deviations.

    R-hat and ESS are computed from ranks, so they miss a few draws far out, such as one visit of a
    remote mode, that decide the variance.
    """
    errors = sd_error(draws)
    worst = int(errors.nan_to_num(-1.0).argmax())
    value, where = float(errors[worst]), run.name_of(int(elements[worst]))
    is_fine = None if math.isnan(value) else value <= MAX_SD_ERROR
    text = f"Monte Carlo error of a standard deviation, relative; worst at {where}"
    if is_fine is False:
        text = (
            f"uncertain spread: the standard deviation of {where} is known to {value:.0%} only "
            f"(limit {MAX_SD_ERROR:.0%}), since few draws far from the mean decide it: heavy tails "
            "or a rarely visited mode. Look at the trace, and take more steps."
        )
    return Check("error of sd", value, None, is_fine, text, is_listed=is_listed)


def critical(tests: int = 1) -> float:
    """Return the number of standard errors that chance exceeds with probability `LEVEL`.

    That is the probability that any of `tests` exceeds it: a quantile of Student's t with
    `MIN_GROUPS` - 1 degrees of freedom, the fewest behind any error.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return -float(stdtrit(MIN_GROUPS - 1, LEVEL / 2 / max(1, tests)))


def _is_off(found: Measured, expected: float, tolerance: float) -> Tensor:
    """Return which temperatures differ significantly, and significantly more than the tolerance.

    The standard error is proportional to the estimate, so one that is low by chance has a low
    error: the error is rescaled to `expected`, by at most 2.
    """
    error = found.error * (expected / found.value.clamp(min=expected / 2)).clamp(min=1.0)
    gap = (found.value - expected).abs()
    is_significant = gap > critical(found.value.numel()) * error
    return is_significant & (gap - tolerance * expected > _BEYOND * error)


def _temperature(run: Evidence) -> list[Check]:
    """Check the temperature averaged over elements, and that of the worst element."""
    tau = run.temperature
    if not tau:
        text = "the sampler is an optimizer: its temperature is 0"
        if tau is None:
            text = "the chains have different temperatures, or none"
        return [Check("temperature", None, None, None, text)]
    value, error = (float(number) for number in run.heat.temperature)
    if math.isnan(value):
        text = "too few steps after the warm-up to measure it"
        return [Check("temperature", None, None, None, text)]
    is_fine = not _is_off(run.heat.temperature, tau, TOLERANCE)
    text = f"E[(theta - c) . grad U] / dim; {tau:g} for the target"
    if not is_fine:
        text = _describe(run, "the draws have", value, error, tau)
    checks = [Check("temperature", value, error, is_fine, text)]

    def name_of(index: int) -> str:
        return run.name_of(index) if run.kept == "positions" else f"element {index}"

    each = run.heat.by_element
    off, gaps = _is_off(each, tau, ELEMENT_TOLERANCE), (each.value - tau).abs()
    score = (gaps if off.any() else gaps / each.error).masked_fill(off.any() & ~off, -1.0)
    worst = int(score.nan_to_num(0.0).argmax())
    value, error = float(each.value[worst]), float(each.error[worst])
    where, one_is_fine = name_of(int(run.heat.elements[worst])), not bool(off.any())
    text = f"worst at {where}"
    if not one_is_fine:
        text = _describe(run, f"{where} has", value, error, tau)
    checks.append(Check("worst temperature", value, error, one_is_fine, text, is_listed=is_fine))
    flat = (each.value.abs() < FLAT * tau) & (each.error < FLAT * tau)
    if flat.any():
        number, first = int(flat.sum()), name_of(int(run.heat.elements[flat][0]))
        text = (
            f"flat energy: the energy does not depend on {number} elements (first: {first}), so "
            "the chains drift away along them. Add a prior."
        )
        checks.append(Check("flat elements", number, None, False, text))
    return checks


def _describe(run: Evidence, what: str, value: float, error: float, target: float) -> str:
    found = f"{what} temperature {value:.3g} ± {error:.1g} (target {target:g})"
    if value < 0:
        return (
            f"negative temperature: {found}, so the density does not decay where the chains are. "
            + SIGN_HINT
        )
    if value < target:
        return (
            f"temperature too low: {found}, so spreads are too small. Samplers with a bias factor "
            "need invariant=True, since their published form runs cold. Otherwise the chains have "
            "not spread out yet: take more steps, or increase step_size."
        )
    noise = (
        ", or use a larger batch_size or control_variate" if math.isnan(run.heat.residual) else ""
    )
    return f"temperature too high: {found}, so spreads are too large. Reduce step_size{noise}."


def _drift(run: Evidence) -> Check:
    """Compare the energies of the first and the last third of the draws."""
    name, third = "energy drift", run.energy.shape[1] // 3
    if third < MIN_GROUPS or not torch.isfinite(run.energy).all():
        return Check(name, None, None, None, "too few draws to measure it")
    parts = [_in_batches(run.energy[:, :third]), _in_batches(run.energy[:, -third:])]
    means = [batch_ratio(part, torch.ones_like(part[..., 0])) for part in parts]
    drift = float(means[1].value - means[0].value)
    error = math.hypot(*(float(mean.error) for mean in means))
    spread = float(run.energy.std())
    is_fine = abs(drift) <= MAX_DRIFT * spread or abs(drift) <= critical() * error
    text = "change of the mean energy from the first to the last third of the draws"
    if not is_fine:
        text = (
            f"energy drift: the mean energy changes by {drift:+.3g} ± {error:.1g} from the first "
            f"to the last third of the draws ({drift / spread:+.1f} standard deviations), so the "
            "chains have not converged. Use a longer warmup, or start closer to the mode."
        )
    return Check(name, drift, error, is_fine, text)


def _excursions(run: Evidence) -> Check:
    """Check for energies that are implausibly far above those of the other draws.

    The energy of d dimensions is about d tau / 2 above its minimum, with a standard deviation of
    sqrt(d / 2) tau and a tail that decays.
    """
    name, tau = "excursions", run.temperature
    is_exact = not math.isnan(run.heat.residual) and run.energy.numel() > 0
    if not tau or not is_exact or not torch.isfinite(run.energy).all():
        text = "unknown: gradients are noisy, or the temperature is 0 or unknown"
        return Check(name, None, None, None, text)
    height = (run.energy - run.energy.median()) / tau
    out = (height > EXCURSION[0] + EXCURSION[1] * run.dim).sum(1)
    if not out.any():
        return Check(name, 0, None, True, "draws with implausibly high energies")
    worst = int(height.amax(1).argmax())
    share = float(out.sum()) / out.numel() / run.energy.shape[1]
    text = (
        f"energy excursions: {int((out > 0).sum())} of {len(out)} chains spent {share:.1%} of the "
        f"draws at implausibly high energies, chain {run.numbers[worst]} up to "
        f"{float(height[worst].max()):.3g} tau above the median. The step size is too large where "
        "the energy is steep, as in a funnel. Reduce step_size, or reparameterise the model."
    )
    return Check(name, float(out.sum()), None, False, text)


def _swaps(rates: Tensor) -> Check:
    """Check how often chains at neighbouring temperatures swap."""
    worst, value = int(rates.argmin()), float(rates.min())
    text = "lowest swap rate between neighbouring temperatures, if energies are exact"
    if value < MIN_SWAPS:
        text = (
            f"few swaps: chains at temperatures {worst + 1} and {worst + 2} of the ladder swap in "
            f"{value:.2%} of the rounds, so the cold chains do not benefit from the hot ones. "
            "Insert a temperature between them."
        )
    return Check("swaps", value, None, value >= MIN_SWAPS, text)


def _in_batches(values: Tensor) -> Tensor:
    """Return the means of `MIN_GROUPS` batches of each chain, (batches, chains, 1)."""
    length = values.shape[1] // MIN_GROUPS
    last = values[:, -length * MIN_GROUPS :].double()
    return last.reshape(len(values), MIN_GROUPS, length).mean(-1).mT[..., None]


def _cycles(run: Evidence) -> Check:
    """Compare, within each cycle, the energy at large steps with that at small steps.

    On a Gaussian the mean energy is dim tau / 2 at temperature tau; more than that at large steps
    is excess temperature.
    """
    sizes = run.step_size if run.step_size.ndim == 1 else run.step_size[:1].flatten()
    ratio = float(sizes.max() / sizes.min()) if len(sizes) else 1.0
    name, tau = "draws of large steps", run.temperature
    if ratio < 2 or not tau:
        text = "all draws have about the same step size"
        return Check(name, None, None, True if tau else None, text)
    starts = [0, *((sizes[1:] > 1.5 * sizes[:-1]).nonzero().flatten() + 1).tolist(), len(sizes)]
    gaps = []
    for begin, end in pairwise(starts):
        third = (end - begin) // 3
        if third >= 2:
            order = begin + sizes[begin:end].argsort(descending=True)
            large, small = (run.energy[:, part] for part in (order[:third], order[-third:]))
            gaps.append(large.mean(1) - small.mean(1))
    sizes_differ = f"step sizes of draws differ by a factor of {ratio:.3g}"
    if not gaps or len(gaps) * len(gaps[0]) < 4:
        return Check(name, None, None, None, f"too few cycles and chains; {sizes_differ}")
    found = torch.cat(gaps).double() / (run.dim * tau / 2)
    excess, error = float(found.mean()), float(found.std()) / len(found) ** 0.5
    is_fine = excess <= MAX_EXCESS or excess <= critical() * error
    text = f"excess energy over draws of small steps, relative to dim tau / 2; {sizes_differ}"
    if not is_fine:
        text = (
            f"excess energy at large steps: draws at the largest steps of a cycle have "
            f"{excess:.0%} ± {error:.0%} more energy than those at the smallest, relative to "
            f"dim tau / 2; {sizes_differ}. Keep draws at small steps only: use a longer "
            "exploration phase, or a smaller first step size."
        )
    return Check(name, excess, error, is_fine, text)
