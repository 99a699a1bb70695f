"""The checks of a run: numbers in, sentences out.

Of 400 runs whose law is right to 5 percent, none was warned of: 25 of each of twelve settings, and of the call without settings on
four targets (``tools/false_alarms.py 1 7``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.trust.heat import MIN_GROUPS, Heat, Measured, batch_ratio
from langevin.trust.mixing import MAX_RHAT, MIN_CHAINS, MIN_DRAWS, MIN_ESS_PER_CHAIN, mixing, moves
from langevin.trust.report import Check, Trust

__all__ = ["SIGN_HINT", "Evidence", "judge", "ran_off"]

SIGN_HINT = "A log density given as an energy runs off: U = -log p, with a minus sign."
LEVEL = 1e-3
"""How often chance may raise each check of a temperature, an energy or a cycle, at the most."""

TOLERANCE, ELEMENT_TOLERANCE = 0.05, 0.2
"""How far the temperature may be off, as a share of the target's: of all elements, and of a single one."""

FLAT = 0.02
"""Below this share of the target's temperature an element feels no force."""

MAX_DRIFT = 0.5
"""How far the energy may move from the first to the last third of the draws, in standard deviations of the energy."""

MAX_EXCESS = 0.1
"""How much more energy the draws of large steps may have than those of small ones, as a share of dim tau / 2."""

MIN_SWAPS = 0.02
"""How often neighbours of several temperatures must swap, where they have a round."""

_BEYOND = 2.0  # standard errors by which a temperature must be beyond the tolerance: a law at the tolerance is not warned of
EXCURSION = 30.0, 3.0
"""A draw is an excursion whose energy is above the median by more than 30 + 3 dim times tau."""

_FAR, _LOW = 1e8, -1e10  # a chain out there, with an energy down there, is on its way down a hill without a bottom
_AWAY = 10.0  # temperatures below zero by so many of the target's, in every chain: the energy falls where they go
_SHOWN = 3  # stopped chains that are named


class Evidence(NamedTuple):
    """What is known of a run."""

    chains: int  # how many ran
    stopped: Sequence[str]  # what happened to each that did not run to its end
    kept: str  # "positions", "function" or "moments"
    num_draws: int
    size: int  # elements of a draw
    draws: Tensor  # of the chains that ran to their end, (chain, draw, element): some draws, some elements
    elements: Tensor  # which elements these are
    energy: Tensor  # of these draws, (chain, draw)
    step_size: Tensor  # of these draws, (draw,) or (chain, draw)
    numbers: Sequence[int]  # of the chains that ran to their end
    dim: int  # elements of theta
    heat: Heat
    temperature: float | None  # that of the target; None where chains differ
    name_of: Callable[[int], str] = lambda index: f"element {index}"
    swaps: Tensor | None = None  # how often neighbours of several temperatures swap, (temperatures - 1,)


def judge(run: Evidence) -> Trust:
    """Look at everything that is known of a run."""
    checks = [_stopped(run), _sign(run), *_mixing(run), *_temperature(run)]
    if run.kept != "moments" and len(run.draws):
        checks += [_drift(run), _excursions(run), _cycles(run)]
    if run.swaps is not None:
        checks.append(_swaps(run.swaps))
    noisy = "not known: gradients are noisy, or of too few steps" if math.isnan(run.heat.residual) else ""
    text = noisy or "root mean square of U1 - U0 - (theta1 - theta0) . (g0 + g1) / 2 over a step: zero on quadratic energies"
    checks.append(Check("energy residual", run.heat.residual, None, None, text))
    return Trust(tuple(checks))


def ran_off(position: Tensor, energy: Tensor) -> Tensor:
    """Say which chains, (chains,), are far out at an energy far down."""
    return (position.abs().amax(-1) > _FAR) & (energy < _LOW)


def _stopped(run: Evidence) -> Check:
    if not run.stopped:
        return Check("stopped chains", 0, None, True, "every chain ran to its end, with finite positions, energies and gradients")
    shown = "; ".join(run.stopped[:_SHOWN]) + (f"; and {len(run.stopped) - _SHOWN} more" if len(run.stopped) > _SHOWN else "")
    sentence = (
        f"stopped chains: {len(run.stopped)} of {run.chains} did not run to their end ({shown}). They are left out here and in "
        f"summary(), and leaving out chains is itself a bias; use a smaller step_size or another init."
    )
    return Check("stopped chains", len(run.stopped), None, False, sentence)


def _sign(run: Evidence) -> Check:
    down = [text for text in run.stopped if "-inf" in text]
    if down:
        return Check("sign", len(down), None, False, f"the energy fell to minus infinity in {len(down)} chains. {SIGN_HINT}")
    if run.kept == "positions" and run.draws.numel():
        lost = [run.numbers[k] for k in ran_off(run.draws[:, -1], run.energy[:, -1]).nonzero().flatten().tolist()]
        if lost:
            return Check("sign", len(lost), None, False, f"chains {lost} ran off to where the energy has no bottom. {SIGN_HINT}")
    if run.temperature and len(run.heat.by_chain) and bool((run.heat.by_chain < -_AWAY * run.temperature).all()):
        text = f"all chains are driven apart: the gradient points to where they come from. {SIGN_HINT}"
        return Check("sign", len(run.heat.by_chain), None, False, text)
    return Check("sign", 0, None, True, "no chain ran off to where the energy has no bottom")


def _mixing(run: Evidence) -> list[Check]:
    """Look at chains, movement, R-hat and ESS."""
    if run.kept == "moments":
        return [Check("draws", 0, None, None, "no draws: the run kept moments, which show neither ESS nor R-hat. Run with "
                      'keep="positions" to judge it.')]  # fmt: skip
    chains, _, _ = draws = run.draws.shape
    if chains == 0:
        return [Check("chains", 0, None, False, "no chain ran to its end.", is_said=False)]
    if run.size == 0:
        return [Check("draws", 0, None, False, "no elements: `keep` returns an empty tensor.")]
    alone = (
        f"one chain: R-hat is NaN, and nothing can show a mode that this chain never saw. Run {MIN_CHAINS} chains or more, "
        f"from starting points that lie wide apart: init of shape ({MIN_CHAINS}, dim)."
    )
    checks = [Check("chains", chains, None, chains > 1, alone if chains == 1 else "chains that ran to their end")]
    few = (
        f"too few draws: {run.num_draws} for each chain, and ESS and R-hat (NaN) need {MIN_DRAWS}. Raise num_steps, or "
        f"lower warmup or thin."
    )
    enough = run.num_draws >= MIN_DRAWS
    checks.append(Check("draws", run.num_draws, None, enough, "draws of each chain" if enough else few))
    if draws[1] < MIN_DRAWS:
        return checks
    among = f"of {run.size} elements" if len(run.elements) == run.size else f"of the {len(run.elements)} elements looked at"
    looked, elements = run.draws, run.elements
    finite = torch.isfinite(looked).all(1).all(0)
    if not finite.all():
        first, number = run.name_of(int(elements[~finite][0])), int((~finite).sum())
        checks.append(Check("finite draws", number, None, False, (
            f"non-finite draws: {number} {among} are NaN or infinite in chains that ran to their end (the first is {first}). See "
            f"what `keep` returns there; ESS and R-hat are not known."
        )))  # fmt: skip
        looked, elements = looked[..., finite], elements[finite]
    if not finite.any():
        return checks
    still = ~moves(looked)
    if still.any():
        first, number = run.name_of(int(elements[still][0])), int(still.sum())
        checks.append(Check("movement", number, None, False, (
            f"no movement: {number} {among} never changed (the first is {first}). The step size is too small for the dtype, or the "
            f"sampler does not move them; ESS and R-hat are NaN there."
        )))  # fmt: skip
    return [*checks, *_convergence(run, looked, elements, among)]


def _convergence(run: Evidence, draws: Tensor, elements: Tensor, among: str) -> list[Check]:
    chains, found = len(draws), mixing(draws)
    worst = int(found.rhat.nan_to_num(-torch.inf).argmax())
    bad = found.rhat > MAX_RHAT  # NaN is not
    value, where = float(found.rhat[worst]), run.name_of(int(elements[worst]))
    sentence = (
        f"chains disagree: R-hat is above {MAX_RHAT} for {int(bad.sum())} {among}, worst {value:.3f} at {where}. Do not pool the "
        f"chains yet: take more steps, a longer warmup, or a sampler that crosses between modes."
    )
    is_known = not math.isnan(value)
    checks = [Check("R-hat", value, None, not bad.any() if is_known else None, sentence if bad.any() else f"worst at {where}")]
    enough, both = MIN_ESS_PER_CHAIN * chains, torch.minimum(found.bulk, found.tail)
    is_tail = bool(found.tail.nan_to_num(torch.inf).amin() < found.bulk.nan_to_num(torch.inf).amin())  # one sentence, of the worse
    for name, values in (("bulk ESS", found.bulk), ("tail ESS", found.tail)):
        worst = int(values.nan_to_num(torch.inf).argmin())
        value, where = float(values[worst]), run.name_of(int(elements[worst]))
        sentence = (
            f"few independent draws: the {chains * run.num_draws} draws are worth fewer than {enough} ({MIN_ESS_PER_CHAIN} a "
            f"chain) for {int((both < enough).sum())} {among}, worst {value:.0f} at {where}. Take about {enough / value:.0f} times "
            f"as many steps after the warmup, or a larger step_size if its bias allows."
        )
        is_fine = value >= enough if not math.isnan(value) else None
        text = f"worst at {where}" if is_fine is not False else sentence
        checks.append(Check(name, value, None, is_fine, text, is_said=is_tail == (name == "tail ESS")))
    return checks


def critical(tests: int = 1) -> float:
    """Return how many standard errors chance stays below, but for a share `LEVEL` of runs in which it does any of some tests.

    A quantile of Student's t with `MIN_GROUPS` - 1 degrees of freedom, the fewest that an error comes from, by its expansion around
    the normal one (Abramowitz and Stegun 26.7.5, two terms).
    """
    normal, freedom = -float(torch.special.ndtri(torch.tensor(LEVEL / 2 / max(1, tests), dtype=torch.float64))), MIN_GROUPS - 1
    return normal + (normal**3 + normal) / (4 * freedom) + (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * freedom**2)


def _is_off(found: Measured, expected: float, tolerance: float) -> Tensor:
    """Say which temperatures are off: beyond chance, and by more than the tolerance, beyond chance again.

    Where one came out low, so did its error, which is in proportion to it: it is taken back to what it would be at `expected`, at
    the most twice.
    """
    error = found.error * (expected / found.value.clamp(min=expected / 2)).clamp(min=1.0)
    gap = (found.value - expected).abs()
    return (gap > critical(found.value.numel()) * error) & (gap - tolerance * expected > _BEYOND * error)


def _temperature(run: Evidence) -> list[Check]:
    """Look at the temperature of all elements, and at that of the worst one."""
    tau = run.temperature
    if not tau:
        text = "the sampler is an optimizer, of temperature 0" if tau == 0 else "the chains have different temperatures, or none"
        return [Check("temperature", None, None, None, text)]
    value, error = (float(number) for number in run.heat.temperature)
    if math.isnan(value):
        return [Check("temperature", None, None, None, "too few steps after the warm-up to measure it")]
    is_fine = not _is_off(run.heat.temperature, tau, TOLERANCE)
    text = f"E[(theta - c) . grad U] / dim, {tau:g} for the target"
    checks = [Check("temperature", value, error, is_fine, text if is_fine else _heat_in_words(run, "the draws have", value, error))]

    each = run.heat.by_element
    off, gaps = _is_off(each, tau, ELEMENT_TOLERANCE), (each.value - tau).abs()
    worst = int((gaps if off.any() else gaps / each.error).masked_fill(off.any() & ~off, -1.0).nan_to_num(0.0).argmax())
    value, error = float(each.value[worst]), float(each.error[worst])
    where = run.name_of(int(run.heat.elements[worst])) if run.kept == "positions" else f"element {int(run.heat.elements[worst])}"
    one_is_fine = not bool(off.any())
    text = f"the worst is {where}" if one_is_fine else _heat_in_words(run, f"{where} has", value, error)
    checks.append(Check("worst temperature", value, error, one_is_fine, text, is_said=is_fine))
    flat = (each.value.abs() < FLAT * tau) & (each.error < FLAT * tau)
    if flat.any():
        first = run.name_of(int(run.heat.elements[flat][0])) if run.kept == "positions" else "some"
        sentence = (
            f"no force: the energy is flat along {int(flat.sum())} elements ({first}), so chains wander off. Give it a prior."
        )
        checks.append(Check("flat elements", int(flat.sum()), None, False, sentence))
    return checks


def _heat_in_words(run: Evidence, what: str, value: float, error: float) -> str:
    found = f"{what} temperature {value:.3g} ± {error:.1g}, and the target has {run.temperature:g}"
    if value < 0:
        return f"no temperature: {found}: the density does not decay where the chains are. {SIGN_HINT}"
    if value < run.temperature:  # type: ignore[operator]
        return (
            f"too cold: {found}, so spreads are too small. The published form of a sampler with a bias factor is cold: "
            f"invariant=True is not. Else chains have not spread yet: take more steps, or a larger step_size."
        )
    noise = (
        "" if not math.isnan(run.heat.residual) else ", or a larger batch_size or control_variate against the heat of minibatches"
    )
    return f"too hot: {found}, so spreads are too large. Take a smaller step_size{noise}."


def _drift(run: Evidence) -> Check:
    """Compare the energy of the first and the last third of the draws."""
    third = run.energy.shape[1] // 3
    if third < MIN_GROUPS or not torch.isfinite(run.energy).all():
        return Check("energy drift", None, None, None, "too few draws to see one")
    parts = [_in_batches(run.energy[:, :third]), _in_batches(run.energy[:, -third:])]
    means = [batch_ratio(part, torch.ones_like(part[..., 0])) for part in parts]
    drift, error = float(means[1].value - means[0].value), math.hypot(*(float(mean.error) for mean in means))
    spread = float(run.energy.std())
    is_fine = abs(drift) <= MAX_DRIFT * spread or abs(drift) <= critical() * error
    text = "of the mean energy, from the first third of the draws to the last"
    if not is_fine:
        text = (
            f"the energy drifts: it moves by {drift:+.3g} ± {error:.1g} from the first to the last third of the draws, "
            f"{drift / spread:+.1f} of its standard deviations. The chains have not arrived: take a longer warmup, or start "
            f"nearer to the mode."
        )
    return Check("energy drift", drift, error, is_fine, text)


def _excursions(run: Evidence) -> Check:
    """Look for chains that were thrown out: at energies so far above the others' that no law puts a draw there.

    The energy of d dimensions is about d tau / 2 above its minimum, give or take sqrt(d / 2) tau, and its tail decays.
    """
    name, tau = "excursions", run.temperature
    if not tau or math.isnan(run.heat.residual) or run.energy.numel() == 0 or not torch.isfinite(run.energy).all():
        return Check(name, None, None, None, "not known: gradients are noisy, or there is no temperature")
    height = (run.energy - run.energy.median()) / tau
    out = (height > EXCURSION[0] + EXCURSION[1] * run.dim).sum(1)
    if not out.any():
        return Check(name, 0, None, True, "no chain was thrown out to energies that no law explains")
    worst = int(height.amax(1).argmax())
    share = float(out.sum()) / out.numel() / run.energy.shape[1]
    return Check(name, float(out.sum()), None, False, (
        f"thrown out: {int((out > 0).sum())} of {len(out)} chains spent {share:.1%} of the draws at energies that no law explains, "
        f"chain {run.numbers[worst]} at {float(height[worst].max()):.3g} tau above the median. A step was too large where the "
        f"energy is steep, as in a funnel: take a smaller step_size, or other parameters."
    ))  # fmt: skip


def _swaps(rates: Tensor) -> Check:
    """Look at how often chains of neighbouring temperatures swap."""
    worst, value = int(rates.argmin()), float(rates.min())
    text = "share of rounds in which the neighbours that swap least do (energies taken as exact)"
    if value < MIN_SWAPS:
        text = (
            f"hardly any swaps: the chains of temperatures {worst + 1} and {worst + 2} of the ladder swap in {value:.2%} of "
            f"the rounds, so what the hot chains find does not reach the cold ones. Put a temperature between them."
        )
    return Check("swaps", value, None, value >= MIN_SWAPS, text)


def _in_batches(values: Tensor) -> Tensor:
    """Return the means of `MIN_GROUPS` batches of each chain, (batches, chains, 1)."""
    length = values.shape[1] // MIN_GROUPS
    return values[:, -length * MIN_GROUPS :].double().reshape(len(values), MIN_GROUPS, length).mean(-1).mT[..., None]


def _cycles(run: Evidence) -> Check:
    """Compare, in every cycle of a schedule, the energy of the draws of large steps with that of small ones.

    On a Gaussian the mean energy is dim tau / 2 at temperature tau; what the draws of large steps have more is heat.
    """
    sizes = run.step_size if run.step_size.ndim == 1 else run.step_size[:1].flatten()
    ratio = float(sizes.max() / sizes.min()) if len(sizes) else 1.0
    name, tau = "draws of large steps", run.temperature
    if ratio < 2 or not tau:
        return Check(name, None, None, None if not tau else True, "all draws have about the same step size")
    starts = [0, *((sizes[1:] > 1.5 * sizes[:-1]).nonzero().flatten() + 1).tolist(), len(sizes)]
    gaps = []
    for begin, end in pairwise(starts):
        third = (end - begin) // 3
        if third >= 2:
            order = begin + sizes[begin:end].argsort(descending=True)
            gaps.append(run.energy[:, order[:third]].mean(1) - run.energy[:, order[-third:]].mean(1))
    if not gaps or len(gaps) * len(gaps[0]) < 4:
        return Check(
            name,
            None,
            None,
            None,
            f"step sizes of the draws differ by a factor of {ratio:.3g}; too few cycles and chains to say more",
        )
    found = torch.cat(gaps).double() / (run.dim * tau / 2)
    excess, error = float(found.mean()), float(found.std()) / len(found) ** 0.5
    is_fine = excess <= MAX_EXCESS or excess <= critical() * error
    text = f"their energy above that of the draws of small steps, as a share of dim tau / 2; step sizes differ by {ratio:.3g}"
    if not is_fine:
        text = (
            f"hot draws: those of the largest steps of a cycle have {excess:.0%} ± {error:.0%} more energy, in units of "
            f"dim tau / 2, than those of the smallest; step sizes of the draws differ by a factor of {ratio:.3g}. Keep "
            f"draws of the small steps only: a longer exploration phase, or a smaller first step size."
        )
    return Check(name, excess, error, is_fine, text)
