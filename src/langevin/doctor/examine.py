"""Look at everything, say it line by line, and count what is broken."""

from __future__ import annotations

from collections.abc import Callable

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
    done = fill_caches(lambda what, seconds: say(f"  {what:<34}  {seconds:.1f} s"))
    say(
        f"  {len(done)} pieces, {sum(seconds for _, seconds in done):.0f} s"
        if done
        else "  without numba there is nothing to compile"
    )


def _verdict(word: str, found: list[Finding]) -> str:
    return f"{word}: {', '.join(finding.name for finding in found)}" if found else ""
