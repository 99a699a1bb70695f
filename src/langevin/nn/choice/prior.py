"""`choose_prior`: the prior's scale and the temperature, by marginal likelihood or validation."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from torch import Tensor, nn

from langevin.checks import check_columns, check_integer, check_number, needs, takes
from langevin.diagnostics.trust import TrustWarning
from langevin.nn.choice.laplace import laplace_fit
from langevin.nn.choice.scores import (
    Measured,
    PriorScore,
    as_good,
    choose,
    describe,
    end_of_ladder,
    scores,
    verdict,
)
from langevin.nn.choice.validation import WARMUP, held_out_nll, split
from langevin.random.address import check_seed
from langevin.sampling.progress import Progress, progress_bar
from langevin.targets import Posterior, priors
from langevin.targets.likelihoods import Likelihood
from langevin.targets.priors import Prior

__all__ = ["PriorChoice", "choose_prior"]

EVIDENCE, VALIDATION = "marginal likelihood", "validation"
SCALES = (0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The scales that are tried by default."""
_WHO = "choose_prior"
_DESCENT, _RUN = 1000, 500  # maximum of steps of a descent; steps of a run after its warm-up
_SHARE = 0.2  # of the rows, held out
_NATS = 1.0  # difference of log evidences that is not significant: odds of 2.7
_ROUGH = 2.0  # factor between the energy of the fit's draws and a Gaussian's: a poor fit


@dataclass(frozen=True)
class PriorChoice:
    """The result of `choose_prior`."""

    prior: Prior  # for `Posterior` and the optimizers
    temperature: float  # for samplers and optimizers
    scale: float  # of the prior
    by: str
    table: tuple[PriorScore, ...]  # every setting with its score
    why: str  # the printed lines
    warnings: tuple[str, ...]  # reasons to doubt the choice
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
    """Choose the scale of a prior, and the temperature, from the data; print the reasons.

    By the marginal likelihood: for every scale, L-BFGS finds a mode, and ``p(y | x, scale)`` is
    that of the Gaussian fitted there, with the generalised Gauss-Newton curvature. This is exact
    for linear models with Gaussian errors. Up to 1,500 parameters the log determinant is exact;
    above, it is estimated from 16 random vectors, the same for all scales. No rows are held out.

    By validation: for every scale and temperature, the default sampler of `langevin.sample` runs on
    a part of the rows, and the likelihood of the rest is averaged over its draws. Standard errors
    are those over the held-out rows, paired; they do not include the error of short runs. Of the
    settings within one standard error of the best one, the temperature nearest 1 is chosen, and
    there the best scale.

    Args:
        model: as for `Posterior`.
        likelihood: as for `Posterior`.
        data: the columns (x, y); every step uses all rows.
        family: returns the prior of a scale; any function of one number, such as
            `langevin.priors.gaussian`, whose scale is the std.
        scales: at least two positive numbers; None for eight from 0.03 to 10.
        temperatures: temperatures to compare, by validation only: the evidence of a cold posterior
            does not measure how well it predicts.
        by: "marginal likelihood" or "validation".
        holdout: share of the rows that validation holds out, or columns (x, y) of other rows; None
            for 0.2.
        chains: chains of each run; for the marginal likelihood, starts of the search for the lowest
            mode.
        num_steps: gradients of all data for each setting and chain: the maximum of a descent (None
            for 1,000), or of a run after its warm-up of about 1,200 (None for 500).
        seed: an int in [0, 2**64); the same call gives the same bits.
        progress: as in `langevin.sample`.

    Returns:
        A `PriorChoice`. Reasons to doubt it, such as a best scale at an end of the ladder, are in
        its `warnings` and in a `langevin.TrustWarning`. Ctrl-C returns the choice among the
        settings so far, with a warning, if there are at least two; otherwise it is raised.

    Example:
        >>> import torch
        >>> import langevin as lv
        >>> x = lv.random.normal(0, 0, 0, 400).reshape(100, 4)
        >>> y = x @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + 0.1 * lv.random.normal(0, 0, 1, 100)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
        >>> likelihood = lv.likelihoods.gaussian(std=0.1)
        >>> choice = lv.choose_prior(model, likelihood, data=(x, y), scales=(0.01, 0.1, 1, 10))
        ... # doctest: +ELLIPSIS
        choose_prior: 4 scales by marginal likelihood, 5 parameters, 100 rows...
        >>> choice.prior
        GaussianPrior(std=1.0)
        >>> posterior = lv.Posterior(model, likelihood, prior=choice.prior, num_data=100)
    """
    ladder = _ladder("scales", SCALES if scales is None else scales, 2)
    taus = _ladder("temperatures", temperatures, 1)
    if by not in (EVIDENCE, VALIDATION):
        raise needs(_WHO, "by", f'"{EVIDENCE}" or "{VALIDATION}"', by)
    if not callable(family) or not takes(family, 1):
        what = "a function of one scale that returns a prior"
        raise needs(_WHO, "family", what, family, TypeError)
    check_integer(_WHO, "chains", chains, 1)
    if num_steps is not None:
        check_integer(_WHO, "num_steps", num_steps, 1)
    check_seed(_WHO, seed)
    columns, unseen = _split(check_columns(_WHO, data), taus, by, holdout, seed)
    made = {scale: family(scale) for scale in ladder}

    def posterior(scale: float) -> Posterior:
        return Posterior(model, likelihood, prior=made[scale], num_data=len(columns[0]))

    first = posterior(ladder[0])
    first.check_data(columns)
    if unseen:
        first.check_rows(*unseen)
    steps = num_steps or (_RUN if unseen else _DESCENT)
    each, settings = steps + WARMUP if unseen else steps, list(product(ladder, taus))
    start = time.perf_counter()
    measured: list[Measured] = []
    with progress_bar(progress, _WHO, 0, each * len(settings)) as report:

        def report_within(done: int) -> None:
            report(each * len(measured) + min(done, each))

        for scale, tau in settings:
            try:
                run = posterior(scale), columns, unseen, scale, tau, chains, steps, seed
                measured.append(_measure(*run, report_within))
                report_within(0)
            except KeyboardInterrupt:
                if len(measured) < 2:
                    raise
                break
    seconds = time.perf_counter() - start
    what = f"{len(ladder)} scales" + (f" x {len(taus)} temperatures" if len(taus) > 1 else "")
    rows = f"{len(columns[0])} rows" + (f" and {len(unseen[0])} held out" if unseen else "")
    head = f"{_WHO}: {what} by {by}, {first.dim} parameters, {rows}"
    found = _choose(measured, made, by, head, len(settings), seconds)
    print(f"{found.why}\n  {seconds:.1f} s")
    if found.warnings:
        warnings.warn(f"{_WHO}: " + "; ".join(found.warnings), TrustWarning, stacklevel=2)
    return found


def _measure(
    posterior: Posterior,
    columns: Sequence[Tensor],
    unseen: Sequence[Tensor],
    scale: float,
    temperature: float,
    chains: int,
    steps: int,
    seed: int,
    report: Callable[[int], object],
) -> Measured:
    """Measure a setting by validation if there are unseen rows, else by the evidence."""
    if unseen:
        try:
            losses = held_out_nll(
                posterior, columns, unseen, chains=chains, temperature=temperature,
                num_steps=steps, seed=seed, report=report,
            )  # fmt: skip
            note = "no run: all chains diverged" if losses is None else ""
        except ValueError as error:  # the warm-up failed; data and model were checked before
            losses, note = None, f"no run: {error}"
        return Measured(scale, temperature, losses, note)
    x, y = columns
    fit = laplace_fit(posterior, x, y, posterior.init(chains, seed), steps, seed)
    if fit is None:
        note = f'no Laplace fit: the prior is not curved at the mode; use by="{VALIDATION}"'
        return Measured(scale, temperature, None, note)
    doubts = []
    if fit.left > _NATS:
        doubts.append(
            f"the mode was not reached in {fit.evaluations} steps: the energy may still decrease "
            f"by {fit.left:.2g} (num_steps)"
        )
    if not 1 / _ROUGH < fit.excess < _ROUGH:
        doubts.append(
            f"the Laplace fit is poor: its draws have {fit.excess:.2g} times the energy of a "
            f'Gaussian\'s draws, so the evidence is approximate; compare by="{VALIDATION}"'
        )
    note = f"{fit.effective:.1f} parameters determined by the data"
    return Measured(scale, temperature, -fit.log_evidences, note, tuple(doubts))


def _choose(
    measured: Sequence[Measured],
    made: dict[float, Prior],
    by: str,
    head: str,
    total: int,
    seconds: float,
) -> PriorChoice:
    """Choose a setting, and explain the choice."""
    sign, name, digits, tolerance = 1, "held-out NLL", 4, 0.0
    if by == EVIDENCE:
        sign, name, digits, tolerance = -1, "log evidence", 1, _NATS
    if all(setting.loss == math.inf for setting in measured):
        what = "priors of which at least one can be scored"
        raise needs(_WHO, "family", what, measured[0].note)
    chosen = choose(measured, tolerance)
    table = scores(measured, chosen, sign)
    doubts = [*end_of_ladder(measured, chosen), *chosen.doubts]
    if len(measured) < total:
        doubts.append(f"interrupted: {len(measured)} of {total} settings were measured")
    reasons = verdict(table, as_good(measured, tolerance), chosen, digits)
    why = "\n".join([head, *describe(table, name, digits), *reasons])
    scale, tau = chosen.scale, chosen.temperature
    return PriorChoice(made[scale], tau, scale, by, table, why, tuple(doubts), seconds)


def _ladder(name: str, values: object, least: int) -> tuple[float, ...]:
    """Return positive numbers in order, each once."""
    condition = f"at least {least} different positive numbers" if least > 1 else "positive numbers"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise needs(_WHO, name, condition, values, TypeError)
    given = list(values)
    found = {check_number(_WHO, name, value, condition, lambda v: v > 0) for value in given}
    if len(found) < least:
        raise needs(_WHO, name, condition, given)
    return tuple(sorted(found))


def _split(
    columns: tuple[Tensor, ...],
    taus: tuple[float, ...],
    by: str,
    holdout: float | Sequence[Tensor] | None,
    seed: int,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the rows to fit, and those held out: none for the marginal likelihood."""
    if by == EVIDENCE:
        if taus != (1.0,):
            what = f'(1.0,) with by="{EVIDENCE}"; by="{VALIDATION}" compares temperatures'
            raise needs(_WHO, "temperatures", what, taus)
        if holdout is not None:
            what = f'None with by="{EVIDENCE}", which holds no rows out'
            raise needs(_WHO, "holdout", what, holdout)
        return columns, ()
    if holdout is not None and not isinstance(holdout, int | float):
        return columns, check_columns(_WHO, holdout)
    share = _SHARE if holdout is None else holdout
    check_number(_WHO, "holdout", share, "0 < holdout < 1", lambda v: 0 < v < 1)
    seen, unseen = split(columns, share, seed)
    if len(seen[0]) < 1 or len(unseen[0]) < 2:
        what = f"two of the {len(columns[0])} rows held out at least, and one kept"
        raise needs(_WHO, "holdout", what, share)
    return seen, unseen
