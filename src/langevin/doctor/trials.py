"""A few seconds of work: is the law right, do the engines agree, how fast are they?"""

from __future__ import annotations

import importlib
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import torch

import langevin as lv
from langevin.doctor.finding import BROKEN, SLOW, Finding
from langevin.optim import SharedNoiseWarning
from langevin.samplers import msgld, sghmc

__all__ = ["trials"]

CHAINS, STEPS, STEP_SIZE = 4_000, 300, 0.1
LIMIT = 5.0  # standard errors: chance alone passes it once in a million
SIZE = 100_000  # elements of the optimizer's parameter


def trials() -> Iterator[Finding]:
    """Run each; one that raises is broken."""
    for name, trial in {"law": law, "engines agree": agreement, "chains": speed_of_chains, "optimizer": speed_of_optimizer}.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lv.TrustWarning)
                warnings.simplefilter("ignore", SharedNoiseWarning)  # the engines are given the same noise on purpose
                yield trial()
        except Exception as error:  # whatever it is, it is what the doctor is asked for
            yield Finding(name, " ".join(f"{type(error).__name__}: {error}".split()), BROKEN, "report it, with this page")


def law() -> Finding:
    """Compare the variance of the invariant MSGLD on a Gaussian with the exact one: chains are independent, its error is known."""
    draws = lv.sample(
        msgld(STEP_SIZE, bias_factor=2.0, invariant=True), lv.targets.gaussian([[1.0, 0.0], [0.0, 4.0]]), torch.zeros(CHAINS, 2),
        num_steps=STEPS, warmup=STEPS - 1, compile=False, progress=False,
    ).draws[:, -1].double()  # fmt: skip
    ratios = (draws.square().mean(0) / torch.tensor([1.0, 4.0])).tolist()
    z = max(abs(ratio - 1) / math.sqrt(2 / CHAINS) for ratio in ratios)
    text = f"variances {ratios[0]:.3f} and {ratios[1]:.3f} of the exact ones, {z:.1f} standard errors at most"
    return (
        Finding("law", text)
        if z < LIMIT
        else Finding("law", text, BROKEN, "do not trust draws of this installation; report it, with this page")
    )


def _optimizer(fused: bool | None) -> tuple[torch.nn.Parameter, lv.optim.MSGLD]:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, SIZE))
    parameter.grad = torch.linspace(1, -1, SIZE)
    return parameter, lv.optim.MSGLD([parameter], lr=0.1, num_data=100, prior=lv.priors.gaussian(std=1.0), seed=1, fused=fused)


def agreement() -> Finding:
    """Take three steps with the fused engine and with torch: the same bits."""
    if not _has_numba():
        return Finding("engines agree", "there is only torch", SLOW, "see numba above")
    ends = []
    for fused in (True, False):
        parameter, optimizer = _optimizer(fused)
        for _ in range(3):
            optimizer.step()
        ends.append(parameter.detach())
    wrong = int((ends[0] != ends[1]).sum())
    if wrong:
        return Finding(
            "engines agree",
            f"{wrong} of {SIZE} elements differ",
            BROKEN,
            "give fused=False to the optimizers; report it, with this page",
        )
    return Finding("engines agree", f"fused and torch give the same bits, {SIZE:,} elements, 3 steps")


def speed_of_chains() -> Finding:
    """Time an eager step of 100 chains in two dimensions."""

    def run() -> None:
        lv.sample(
            sghmc(0.1),
            lv.targets.gaussian([[1.0, 0.0], [0.0, 4.0]]),
            torch.zeros(100, 2),
            num_steps=300,
            compile=False,
            progress=False,
        )

    return Finding("chains", f"{_microseconds(run, 300):.0f} µs per eager step of SGHMC, 100 chains in two dimensions")


def speed_of_optimizer() -> Finding:
    """Time a step of the optimizer, by torch and by the fused engine where it is there."""
    times = {}
    for name, fused in {"torch": False, "fused": True}.items():
        if fused and not _has_numba():
            continue
        _, optimizer = _optimizer(fused)

        def steps(optimizer: lv.optim.MSGLD = optimizer) -> None:
            for _ in range(20):
                optimizer.step()

        times[name] = _microseconds(steps, 20)
    text = ", ".join(f"{value:.0f} µs {name}" for name, value in times.items())
    return Finding("optimizer", f"{text}, per step of MSGLD, {SIZE:,} elements")


def _has_numba() -> bool:
    try:
        importlib.import_module("langevin.engines.fused")
    except ImportError:
        return False
    return True


def _microseconds(work: Callable[[], None], steps: int) -> float:
    """Return the median over five rounds, after one that may compile."""
    work()
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        work()
        rounds.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(rounds) / steps
