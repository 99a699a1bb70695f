"""Run the parts of the tour one after the other; what is done is on the page, whatever happens to the rest."""

from __future__ import annotations

import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from langevin.compiler.runtime import one_thread
from langevin_paper.demo.page import Entry, write_page
from langevin_paper.demo.shown import LeftOut, Part

__all__ = ["Outcome", "tour"]


@dataclass
class Outcome:
    """What became of a tour.

    Args:
        page: where it is.
        failed: names of the parts that failed.
        left_out: names of the parts that cannot be shown here.
        interrupted: whether Ctrl-C ended it.
        seconds: in all.
    """

    page: Path
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0


def tour(
    parts: Sequence[Part], out: Path, *, quick: bool = False, say: Callable[[str], None] = print, debug: bool = False
) -> Outcome:
    """Show the parts, and write the page anew after each.

    Args:
        parts: what to show.
        out: the folder of the page.
        quick: tiny sizes, for tests; the numbers then say little, and the page says so.
        say: takes each line of progress.
        debug: say the whole traceback of a part that fails.
    """
    begin = time.perf_counter()
    entries: list[Entry] = []
    outcome = Outcome(write_page(out, entries, len(parts), quick=quick))
    with warnings.catch_warnings(), _CtrlC() as ctrl_c, one_thread():
        for number, part in enumerate(parts, 1):
            entry, lines = _show(part, quick, debug, ctrl_c)
            if ctrl_c.came:
                outcome.interrupted = True
                say(f"{number}/{len(parts)} {part.name}: interrupted; the page has what was done before")
                break
            entries.append(entry)
            if entry.shown is None:
                (outcome.left_out if entry.is_left_out else outcome.failed).append(part.name)
            for line in lines:
                say(f"{number}/{len(parts)} {line}")
            write_page(out, entries, len(parts), quick=quick)
    outcome.seconds = time.perf_counter() - begin
    return outcome


def _show(part: Part, quick: bool, debug: bool, ctrl_c: _CtrlC) -> tuple[Entry, list[str]]:
    """Run a part; return its place on the page, and what to say of it."""
    begin = time.perf_counter()
    entry = Entry(part.title)
    try:
        entry.shown = part.run(quick)
    except KeyboardInterrupt:
        ctrl_c.came = True
    except LeftOut as error:
        entry.trouble, entry.is_left_out = str(error), True
        return entry, [f"{part.name}: left out: {error}"]
    except Exception as error:  # whatever it is, the other parts go on
        entry.trouble = " ".join(f"{type(error).__name__}: {error}".split())
        details = traceback.format_exc().splitlines() if debug else []
        return entry, [f"{part.name}: FAILED: {entry.trouble}", *details]
    entry.seconds = time.perf_counter() - begin
    return entry, [f"{part.name}: {entry.seconds:.1f} s"]


class _CtrlC:
    """Remembers that Ctrl-C came: `sample` returns what it has when it comes, with a warning, and the part would go on."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> _CtrlC:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        warnings.filterwarnings("error", message=r"sample\(\) was interrupted")  # raised in `sample`, it ends the part
        raise KeyboardInterrupt
