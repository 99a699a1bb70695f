"""Which prior the weights have: N(0, 1), or scales that are drawn with them, by what short chains predict of unseen rows.

The scales of a layer with a thousand weights, drawn given the weights, move a few percent at a time. So they stay for long where
the ensemble's training left them, at a few tenths. Where targets are noisy that predicts better than N(0, 1), where they are clean
it does worse: these ask for larger weights, which N(0, 1) allows from the beginning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

from torch import Tensor

from langevin.estimators.explore import Settings, explore
from langevin.estimators.scales import FoundScales
from langevin.estimators.walk import BLOCK, Data
from langevin.estimators.workers import run_groups
from langevin.noise import Purpose, permutation, stream
from langevin.predictive import log_likelihood
from langevin.targets import Posterior

__all__ = ["scales_predict_better"]

_FEWEST = 50  # rows for a trial; with fewer the scales are drawn
_UNSEEN, _MOST = 0.2, 2000  # share of the rows that the trial's chains do not see, and how many it takes at most
_PART = 8  # of which burn-in and steps of the trial are one
_CHAINS = range(2**31, 2**31 + 5)  # of the trial, numbers that no other chains have


def scales_predict_better(
    make: Callable[..., Posterior], data: Data, settings: Settings, *, seed: int, jobs: int | None, progress: bool
) -> bool:
    """Say whether chains whose prior scales are drawn predict unseen rows better than chains under N(0, 1).

    Args:
        make: the posterior under N(0, 1), a function of num_data that can be pickled.
        data: inputs and targets.
        settings: of the chains that will be run.
        seed: of them.
        jobs: processes.
        progress: whether to show a bar.
    """
    if len(data[0]) < _FEWEST:
        return True
    order = permutation(seed, stream(Purpose.DATA), 0, len(data[0]))[:_MOST]
    cut = round(_UNSEEN * len(order))
    unseen, seen = ((data[0][rows], data[1][rows]) for rows in (order[:cut], order[cut:]))
    burn_in, num_steps = (max(1, steps // _PART) for steps in (settings.burn_in, settings.num_steps))
    num_draws = max(1, min(settings.num_draws, num_steps // BLOCK))
    short = dataclasses.replace(settings, burn_in=burn_in, num_steps=num_steps, num_draws=num_draws, batch_size=None)
    plain, found = run_groups(partial(_score, make, seen, unseen, short, seed), [range(1), range(1, 2)], jobs, progress)
    return bool(found > plain)


def _score(
    make: Callable[..., Posterior],
    seen: Data,
    unseen: Data,
    settings: Settings,
    seed: int,
    which: range,
    progress: Callable[[float], None],
) -> float:
    """Return the log-likelihood of unseen rows, under N(0, 1) for `which` 0 and with drawn scales for 1."""
    posterior = make(num_data=len(seen[0]))
    if which.start == 1:
        posterior.prior = FoundScales.first(posterior.space)
    found = explore(posterior, seen, settings, chains=_CHAINS, seed=seed, progress=progress)
    logs: Tensor = log_likelihood(posterior, found.draws.flatten(0, 1), *unseen).double()
    return float((logs.logsumexp(0) - math.log(len(logs))).sum())
