"""Sample the posterior of a network: Adam, burn-in, draws, in several processes."""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import joblib  # type: ignore[import-untyped] # scikit-learn brings it
import numpy as np
import torch
from torch import Tensor

from langevin.compiler.runtime import one_thread
from langevin.nn.predictive import log_likelihood
from langevin.random import Purpose, permutation, stream
from langevin.sampling.progress import progress_bar
from langevin.tabular.model import LayerScales
from langevin.tabular.segments import BLOCK, Data, FullSegments, MinibatchSegments
from langevin.targets import Posterior
from langevin.targets.gradients import full, minibatch, of_each_row

__all__ = ["ChainDraws", "Settings", "explore", "run_groups", "scales_predict_better"]


_ROWS = 1000  # at most, for the first estimate of the curvature


@dataclass(frozen=True)
class Settings:
    """The length of each part, and the accuracy of the steps."""

    adam_steps: int = 2000
    adam_rate: float = 5e-3
    burn_in: int = 20_000
    num_steps: int = 10_000
    num_draws: int = 50
    batch_size: int | None = None  # rows of a minibatch; None uses all rows at every step
    work: float = 2e-4  # target of the mean squared energy error per step, over dim
    careful_work: float = 2e-5  # the same in the last third of the burn-in


class ChainDraws(NamedTuple):
    """The draws of some chains."""

    draws: Tensor  # (chains, draws, dim)
    energies: Tensor  # (chains, draws)
    scales: Tensor | None  # of a `LayerScales` prior, (chains, draws, layers)
    rejected: Tensor  # number of rejected segments, (chains,)
    segments: int  # number of segments


def explore(
    posterior: Posterior,
    data: Data,
    settings: Settings,
    chains: range,
    progress: Callable[[float], None] = lambda share: None,
    *,
    seed: int,
    start: Tensor | None = None,
) -> ChainDraws:
    """Draw from the posterior of a network.

    Args:
        posterior: of the network; it is not changed. A `LayerScales` prior holds initial scales.
        data: inputs and targets.
        settings: the length of each part.
        chains: numbers of the chains; a chain is a function of (seed, number).
        progress: called with the completed share of the work.
        seed: of all random numbers.
        start: initial positions by number of the chain; None for the network's initialisation.
    """
    posterior = copy.copy(posterior)  # its prior may change with these chains' scales
    if start is None:
        start = posterior.init(len(chains), seed, first_chain=chains.start)
    else:
        start = start[chains.start : chains.stop]
    count = max(settings.num_draws, settings.num_steps // BLOCK)
    total = settings.adam_steps + settings.burn_in + count * BLOCK
    position = _descend(
        posterior, data, start, settings, chains, seed, lambda done: progress(done / total)
    )
    squares, size = _fisher_information(posterior, data, position), settings.batch_size
    run: FullSegments | MinibatchSegments
    if size is None:
        gradient_fn = full(posterior, data)
        run = FullSegments(posterior, gradient_fn, position, squares, chains, seed)
    else:
        run = MinibatchSegments(posterior, data, size, position, squares, chains, seed)
    for done in range(0, settings.burn_in, BLOCK):
        run.adapt(run.advance(), done)
        if isinstance(run, FullSegments):
            is_early = done < 2 * settings.burn_in / 3
            run.adapt_step(settings.work if is_early else settings.careful_work, done)
        progress((settings.adam_steps + done) / total)
    run.begin_sampling()
    draws, energies, scales = [], [], []
    kept = {count * (k + 1) // settings.num_draws - 1 for k in range(settings.num_draws)}
    for done in range(count):
        run.advance()
        if done in kept:
            draws.append(run.state.position)
            energies.append(run.energy)
            if isinstance(posterior.prior, LayerScales):
                scales.append(posterior.prior.std)
        progress((settings.adam_steps + settings.burn_in + done * BLOCK) / total)
    found = torch.stack(scales, 1) if scales else None
    return ChainDraws(torch.stack(draws, 1), torch.stack(energies, 1), found, run.rejected, count)


def _descend(
    posterior: Posterior,
    data: Data,
    position: Tensor,
    settings: Settings,
    chains: range,
    seed: int,
    progress: Callable[[int], None],
) -> Tensor:
    """Minimise the energy by Adam, all chains at once, with cosine annealing."""
    size = settings.batch_size
    if size is None:
        gradient_fn = full(posterior, data)
    else:
        gradient_fn = minibatch(posterior, data, size, seed=seed, chains=chains)
    position = position.clone().requires_grad_()
    optimizer = torch.optim.Adam([position], lr=settings.adam_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, settings.adam_steps))
    for step in range(settings.adam_steps):
        position.grad = gradient_fn(position.detach(), step).gradient / posterior.num_data
        optimizer.step()
        schedule.step()
        if step % BLOCK == 0:
            progress(step)
    return position.detach()


def _fisher_information(posterior: Posterior, data: Data, position: Tensor) -> Tensor:
    """Return the curvature along each axis, from the squared gradients of single rows."""
    size = min(len(data[0]), _ROWS)
    rows = torch.arange(size) * len(data[0]) // size
    squares = [
        of_each_row(posterior, data, rows, at[None]).square().sum(-2).reshape(1, -1)
        for at in position
    ]
    prior = posterior.prior.gradient(torch.ones_like(position[:1]))
    return torch.cat(squares) / (len(data[0]) * size) + prior


Task = Callable[[range, Callable[[float], None]], Any]
"""A function of the numbers of a group's chains, and of a callback for the completed share."""

_PERIOD = 0.2  # seconds between two updates of the progress bar
_PARTS = 1000  # of a group's work, as units of the progress bar


def run_groups(
    task: Task, groups: Sequence[range], jobs: int | None, progress: bool | None
) -> list[Any]:
    """Run a task for each group; the results do not depend on the number of processes.

    Args:
        task: what to run for a group.
        groups: numbers of their chains.
        jobs: processes, as in joblib: -1 for one per core.
        progress: whether to show a bar; None on a terminal only.
    """
    count, total = min(joblib.effective_n_jobs(jobs), len(groups)), _PARTS * len(groups)
    with (
        tempfile.TemporaryDirectory() as folder,
        progress_bar(progress, "chains", 0, total, unit="part") as show,
    ):
        path = Path(folder) / "shares"
        shares: Any = np.memmap(path, np.float64, "w+", shape=(len(groups),))
        if count == 1:
            return [_run(task, group, shares, number, show) for number, group in enumerate(groups)]
        with _watching(shares, show):
            calls = (
                joblib.delayed(_run)(task, group, shares, number, None)
                for number, group in enumerate(groups)
            )
            return list(joblib.Parallel(n_jobs=count, mmap_mode="r+")(calls))


def _run(
    task: Task, group: range, shares: Any, number: int, show: Callable[[int], object] | None
) -> Any:
    def progress(share: float) -> None:
        shares[number] = share
        if show is not None:
            show(int(_PARTS * shares.sum()))

    with one_thread():
        result = task(group, progress)
    progress(1.0)
    return result


@contextmanager
def _watching(shares: Any, show: Callable[[int], object]) -> Iterator[None]:
    """Show the progress of other processes until the end of the block."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_PERIOD):
            show(int(_PARTS * shares.sum()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        show(int(_PARTS * shares.sum()))


_FEWEST = 50  # rows for a comparison; with fewer, scales are drawn
_HELD_OUT, _MOST = 0.2, 2000  # share of the rows that are held out, and rows at most
_PART = 8  # burn-in and steps of the comparison are this part of those of the run
_CHAINS = range(2**31, 2**31 + 5)  # chains of the comparison, with numbers that no run uses


def scales_predict_better(
    make: Callable[..., Posterior],
    data: Data,
    settings: Settings,
    *,
    seed: int,
    jobs: int | None,
    progress: bool,
) -> bool:
    """Return whether drawing the prior's scales predicts held-out rows better than N(0, 1).

    Args:
        make: the posterior under N(0, 1), a function of num_data that can be pickled.
        data: inputs and targets.
        settings: of the run.
        seed: of the run.
        jobs: processes.
        progress: whether to show a bar.
    """
    if len(data[0]) < _FEWEST:
        return True
    order = permutation(seed, stream(Purpose.DATA), 0, len(data[0]))[:_MOST]
    cut = round(_HELD_OUT * len(order))
    unseen, seen = ((data[0][rows], data[1][rows]) for rows in (order[:cut], order[cut:]))
    burn_in, num_steps = (
        max(1, steps // _PART) for steps in (settings.burn_in, settings.num_steps)
    )
    num_draws = max(1, min(settings.num_draws, num_steps // BLOCK))
    short = dataclasses.replace(
        settings, burn_in=burn_in, num_steps=num_steps, num_draws=num_draws, batch_size=None
    )
    score = partial(_score, make, seen, unseen, short, seed)
    fixed, drawn = run_groups(score, [range(1), range(1, 2)], jobs, progress)
    return bool(drawn > fixed)


def _score(
    make: Callable[..., Posterior],
    seen: Data,
    unseen: Data,
    settings: Settings,
    seed: int,
    which: range,
    progress: Callable[[float], None],
) -> float:
    """Return the log-likelihood of held-out rows: under N(0, 1) for 0, with drawn scales for 1."""
    posterior = make(num_data=len(seen[0]))
    if which.start == 1:
        posterior.prior = LayerScales.first(posterior.space)
    found = explore(posterior, seen, settings, _CHAINS, progress, seed=seed)
    logs: Tensor = log_likelihood(posterior, found.draws.flatten(0, 1), *unseen).double()
    return float((logs.logsumexp(0) - math.log(len(logs))).sum())
