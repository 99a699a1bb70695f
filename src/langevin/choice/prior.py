"""`choose_prior`: the prior's scale and the temperature, by the marginal likelihood of a Laplace fit or by validation."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from torch import Tensor, nn

from langevin.chains.meter import Progress, meter
from langevin.checks import check_columns, check_integer, check_number, needs, takes
from langevin.choice.laplace import laplace_fit
from langevin.choice.scores import Measured, PriorScore, as_good, choose, describe, end_of_ladder, scores, verdict
from langevin.choice.validation import WARMUP, held_out_nll, split
from langevin.noise.address import check_seed
from langevin.targets import Posterior, priors
from langevin.targets.likelihoods import Likelihood
from langevin.targets.priors import Prior
from langevin.trust import TrustWarning

__all__ = ["PriorChoice", "choose_prior"]

EVIDENCE, VALIDATION = "marginal likelihood", "validation"
SCALES = (0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The ladder when none is given."""
_WHO = "choose_prior"
_DESCENT, _RUN = 1000, 500  # steps of a descent at most; of a run after its warm-up
_SHARE = 0.2  # of the rows, held out
_NATS = 1.0  # of the log evidence, which say nothing: odds of 2.7
_ROUGH = 2.0  # energy of draws from the fit, in units of a Gaussian's, from which on the posterior is another


@dataclass(frozen=True)
class PriorChoice:
    """What `choose_prior` found."""

    prior: Prior  # for `Posterior` and the optimizers
    temperature: float  # for samplers and optimizers
    scale: float  # of which the prior was made
    by: str
    table: tuple[PriorScore, ...]  # every setting with its score
    why: str  # what was printed
    warnings: tuple[str, ...]  # what speaks against the choice
    seconds: float = field(compare=False)


def choose_prior(
    model: nn.Module,
    likelihood: str | Likelihood,
    *,
    data: Sequence[Tensor],
    family: Callable[[float], Prior] = priors.gaussian,
    scales: Iterable[float] | None = None,
    temperatures: Iterable[float] = (1.0,),
    by: str = EVIDENCE,
    holdout: float | Sequence[Tensor] | None = None,
    chains: int = 2,
    num_steps: int | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> PriorChoice:
    """Choose the scale of a prior, and the temperature, from the data; a few lines say why.

    By the marginal likelihood: for every scale a mode is found by L-BFGS, and ``p(y | x, scale)`` is that of the Gaussian fitted
    there, with the generalised Gauss-Newton curvature: exact for linear models with Gaussian errors. Up to 1,500 parameters the log
    determinant is exact; beyond, it is estimated from 16 random vectors, the same for all scales. All rows count, none is held out.

    By validation: for every scale and temperature the sampler of `langevin.sample` without settings runs on a part of the rows,
    and the likelihood of the rest is averaged over its draws. Errors are those over the rows held out, paired; they do not know of
    the chance in short runs. Of the settings within one standard error of the best one, the temperature nearest 1 is taken, and
    there the best scale.

    Args:
        model: as for `Posterior`.
        likelihood: as for `Posterior`.
        data: the columns (x, y), looked at as a whole at every step.
        family: makes a prior of a scale; any function of one number, such as `langevin.priors.gaussian`, whose scale is the std.
        scales: the ladder, at least two positive numbers; None for eight from 0.03 to 10.
        temperatures: to try, by validation only: the evidence of a cold posterior says nothing of how well it predicts.
        by: "marginal likelihood" or "validation".
        holdout: share of the rows that validation holds out, or columns (x, y) of other rows; None for 0.2.
        chains: of each run; for the marginal likelihood, starts of which the lowest mode counts.
        num_steps: gradients of all data for each setting and chain: of a descent at most (None for 1,000), or of a run after its
            warm-up, which takes about 1,200 (None for 500).
        seed: an int in [0, 2**64); the same call gives the same bits.
        progress: as in `langevin.sample`.

    Returns:
        A `PriorChoice`. What speaks against it, such as a best scale at an end of the ladder, is said in a `langevin.TrustWarning`.
        Ctrl-C returns the choice among the settings measured so far, with a warning, where there are two; else it is raised.

    Example:
        >>> import torch
        >>> import langevin as lv
        >>> x = lv.noise.normal(0, 0, 0, 400).reshape(100, 4)
        >>> y = x @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + 0.1 * lv.noise.normal(0, 0, 1, 100)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
        >>> choice = lv.choose_prior(model, lv.likelihoods.gaussian(std=0.1), data=(x, y), scales=(0.01, 0.1, 1, 10))
        ... # doctest: +ELLIPSIS
        choose_prior: 4 scales by marginal likelihood, 5 parameters, 100 rows...
        >>> choice.prior
        GaussianPrior(std=1.0)
        >>> posterior = lv.Posterior(model, lv.likelihoods.gaussian(std=0.1), prior=choice.prior, num_data=100)
    """
    ladder = _ladder("scales", SCALES if scales is None else scales, 2)
    heats = _ladder("temperatures", temperatures, 1)
    if by not in (EVIDENCE, VALIDATION):
        raise needs(_WHO, "by", f'"{EVIDENCE}" or "{VALIDATION}"', by)
    if not callable(family) or not takes(family, 1):
        raise needs(_WHO, "family", "a function of one scale that returns a prior", family, TypeError)
    check_integer(_WHO, "chains", chains, 1)
    if num_steps is not None:
        check_integer(_WHO, "num_steps", num_steps, 1)
    check_seed(_WHO, seed)
    columns = check_columns(_WHO, data)
    columns, unseen = _parts(columns, heats, by, holdout, seed)
    made = {scale: family(scale) for scale in ladder}

    def posterior(scale: float) -> Posterior:
        return Posterior(model, likelihood, prior=made[scale], num_data=len(columns[0]))

    first = posterior(ladder[0])
    first.check_data(columns)
    if unseen:
        first.check_rows(*unseen)
    steps = num_steps or (_RUN if unseen else _DESCENT)

    def measure(scale: float, temperature: float, tell: Callable[[int], object]) -> Measured:
        if unseen:
            return _by_validation(posterior(scale), columns, unseen, scale, temperature, chains, steps, seed, tell)
        return _by_evidence(posterior(scale), columns, scale, chains, steps, seed)

    start = time.perf_counter()
    settings = list(product(ladder, heats))
    measured = _measure_all(measure, settings, steps + WARMUP if unseen else steps, progress)
    seconds = time.perf_counter() - start
    what = f"{len(ladder)} scales" + (f" x {len(heats)} temperatures" if len(heats) > 1 else "")
    rows = f"{len(columns[0])} rows" + (f" and {len(unseen[0])} held out" if unseen else "")
    head = f"choose_prior: {what} by {by}, {first.dim} parameters, {rows}"
    found = _chosen(measured, made, by, head, len(settings), seconds)
    print(f"{found.why}\n  {seconds:.1f} s")
    if found.warnings:
        warnings.warn(f"{_WHO}: " + "; ".join(found.warnings), TrustWarning, stacklevel=2)
    return found


def _measure_all(
    measure: Callable[[float, float, Callable[[int], object]], Measured],
    settings: Sequence[tuple[float, float]],
    each: int,
    progress: Progress,
) -> list[Measured]:
    """Measure every setting; Ctrl-C ends it early, where there is something to choose from."""
    measured: list[Measured] = []
    with meter(progress, _WHO, 0, each * len(settings)) as tell:

        def tell_within(done: int) -> None:
            tell(each * len(measured) + min(done, each))

        for scale, temperature in settings:
            try:
                measured.append(measure(scale, temperature, tell_within))
                tell_within(0)
            except KeyboardInterrupt:
                if len(measured) < 2:
                    raise
                break
    return measured


def _by_evidence(posterior: Posterior, columns: Sequence[Tensor], scale: float, chains: int, steps: int, seed: int) -> Measured:
    fit = laplace_fit(posterior, columns[0], columns[1], posterior.init(chains, seed), steps, seed)
    if fit is None:
        return Measured(scale, 1.0, None, f'no Laplace fit: the prior is not curved at the mode; by="{VALIDATION}" needs no fit')
    doubts = []
    if fit.left > _NATS:
        doubts.append(
            f"the mode was not reached in {fit.evaluations} steps: the energy may still fall by {fit.left:.2g} (num_steps)"
        )
    if not 1 / _ROUGH < fit.excess < _ROUGH:
        times = f"{fit.excess:.2g} times the energy above the mode that a Gaussian's draws have"
        doubts.append(f'the Laplace fit is poor: draws from it have {times}, so the evidence is rough; compare by="{VALIDATION}"')
    note = f"{fit.effective:.1f} parameters determined by the data"
    return Measured(scale, 1.0, -fit.log_evidences, note, tuple(doubts))


def _by_validation(
    posterior: Posterior,
    columns: Sequence[Tensor],
    unseen: Sequence[Tensor],
    scale: float,
    temperature: float,
    chains: int,
    steps: int,
    seed: int,
    tell: Callable[[int], object],
) -> Measured:
    try:
        losses = held_out_nll(
            posterior, columns, unseen, chains=chains, temperature=temperature, num_steps=steps, seed=seed, tell=tell
        )
    except ValueError as error:  # the warm-up found nothing; data and model were checked before
        return Measured(scale, temperature, None, f"no run: {error}")
    return Measured(scale, temperature, losses, "" if losses is not None else "no run: all chains went off to infinity")


def _chosen(measured: Sequence[Measured], made: dict[float, Prior], by: str, head: str, asked: int, seconds: float) -> PriorChoice:
    """Choose, and put it into words."""
    sign, name, digits, tolerance = (-1, "log evidence", 1, _NATS) if by == EVIDENCE else (1, "held-out NLL", 4, 0.0)
    if all(setting.loss == math.inf for setting in measured):
        raise needs(_WHO, "family", "priors of which at least one can be scored", measured[0].note)
    chosen = choose(measured, tolerance)
    table = scores(measured, chosen, sign)
    complaints = [*end_of_ladder(measured, chosen), *chosen.doubts]
    if len(measured) < asked:
        complaints.append(f"interrupted: {len(measured)} of {asked} settings were measured")
    lines = [head, *describe(table, name, digits), *verdict(table, as_good(measured, tolerance), chosen, digits)]
    return PriorChoice(
        made[chosen.scale], chosen.temperature, chosen.scale, by, table, "\n".join(lines), tuple(complaints), seconds
    )


def _ladder(name: str, values: Any, least: int) -> tuple[float, ...]:
    """Return positive numbers in order, each once."""
    condition = f"at least {least} different positive numbers" if least > 1 else "positive numbers"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise needs(_WHO, name, condition, values, TypeError)
    given = list(values)
    found = sorted({check_number(_WHO, name, value, condition, lambda number: number > 0) for value in given})
    if len(found) < least:
        raise needs(_WHO, name, condition, given)
    return tuple(found)


def _parts(
    columns: tuple[Tensor, ...], heats: tuple[float, ...], by: str, holdout: Any, seed: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the rows to learn from, and those held out: none for the marginal likelihood."""
    if by == EVIDENCE:
        if heats != (1.0,):
            raise needs(_WHO, "temperatures", f'(1.0,) with by="{EVIDENCE}"; by="{VALIDATION}" compares temperatures', heats)
        if holdout is not None:
            raise needs(_WHO, "holdout", f'None with by="{EVIDENCE}", which holds no rows out', holdout)
        return columns, ()
    if holdout is not None and not isinstance(holdout, int | float):
        return columns, check_columns(_WHO, holdout)
    share = check_number(_WHO, "holdout", _SHARE if holdout is None else holdout, "0 < holdout < 1", lambda v: 0 < v < 1)
    seen, unseen = split(columns, share, seed)
    if len(seen[0]) < 1 or len(unseen[0]) < 2:
        raise needs(_WHO, "holdout", f"two of the {len(columns[0])} rows held out at least, and one kept", share)
    return seen, unseen
