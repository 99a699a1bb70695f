"""The study's command: run what is missing, keep each result as soon as it is there, and make the page from what was kept."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from langevin_paper.invariance.page import write_page
from langevin_paper.invariance.parts import PARTS, run_unit, units
from langevin_paper.invariance.record import Record


def results(wanted: list[tuple[str, str]], quick: bool, workers: int) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Run units, on several processes where that is asked for, and yield each when it is done."""
    if workers == 1:
        yield from ((part, unit, run_unit(part, unit, quick)) for part, unit in wanted)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_unit, part, unit, quick): (part, unit) for part, unit in wanted}
        for done in as_completed(running):
            yield (*running[done], done.result())


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m langevin_paper.invariance", description=__doc__)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="which part to run")
    parser.add_argument("--out", type=Path, default=Path("docs/study"), help="folder of results, figures and page")
    parser.add_argument("--quick", action="store_true", help="tiny runs that show that everything works, and nothing else")
    parser.add_argument("--again", action="store_true", help="run the chosen parts again instead of keeping what is finished")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    options = parser.parse_args(arguments)
    record = Record(options.out, options.quick)
    chosen = PARTS if options.part == "all" else (options.part,)
    if options.again:
        record.forget(chosen)
    wanted = [(part, unit) for part in chosen for unit in units(part, options.quick) if not record.has(part, unit)]
    bar = tqdm(total=len(wanted), unit="run", desc="study")
    for part, unit, found in results(wanted, options.quick, options.workers):
        record.add(part, unit, found)
        bar.set_postfix_str(f"{part}: {unit}")
        bar.update()
    bar.close()
    print(f"{write_page(options.out)}: {len(wanted)} runs done now, the rest kept")


if __name__ == "__main__":
    main()
