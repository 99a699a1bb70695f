"""Look at everything, say it line by line, and count what is broken."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial

from langevin.doctor.caches import caches
from langevin.doctor.finding import BROKEN, SLOW, Finding
from langevin.doctor.installation import engines, threads, versions
from langevin.doctor.trials import trials

__all__ = ["examine"]


def examine(*, fill: bool = False, say: Callable[[str], None] = print) -> list[Finding]:
    """Look at the installation; return what is broken.

    Args:
        fill: compile what the first run would compile, so that the caches have it.
        say: takes each line.
    """
    found: list[Finding] = []
    for title, look in {"versions": versions, "engines": engines, "threads": threads, "caches": caches, "trials": trials}.items():
        if title == "trials" and fill:
            _fill(say)
        say(title)
        for finding in look():
            found.append(finding)
            say(str(finding))
    broken, slow = ([finding for finding in found if finding.state == state] for state in (BROKEN, SLOW))
    say(_verdict("broken", broken) or _verdict("slower than it could be", slow) or "all is well")
    return broken


def _fill(say: Callable[[str], None]) -> None:
    """Compile ahead, one line for each piece."""
    from langevin.optim.caches import fill_caches

    say("filling the caches")
    done = [*fill_caches(partial(_say_piece, say)), ("a compiled loop, and torch's headers", _seconds(_compile_a_loop))]
    _say_piece(say, *done[-1])
    say(
        f"  {len(done)} pieces, {sum(seconds for _, seconds in done):.0f} s"
        if len(done) > 1
        else "  without numba there is nothing else to compile"
    )


def _say_piece(say: Callable[[str], None], what: str, seconds: float) -> None:
    say(f"  {what:<36}  {seconds:.1f} s")


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _compile_a_loop() -> None:
    """Compile a run: torch's compiler keeps the headers that every later one needs."""
    import torch

    from langevin import targets
    from langevin.chains import sample
    from langevin.samplers import sgld

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its draws are of no interest
        target, start = targets.gaussian([[1.0]]), torch.zeros(4, 1)
        sample(sgld(0.1), target, start, num_steps=10_000, compile=True, progress=False)


def _verdict(word: str, found: list[Finding]) -> str:
    return f"{word}: {', '.join(finding.name for finding in found)}" if found else ""
