"""Inject faults of every kind, print the outcomes and write the page: `make reliability`."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked: the parent has no threads to lose
os.environ.setdefault("MPLBACKEND", "agg")

import torch

from tools.reliability import damage, fuzz, kills, memory, page

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
KINDS = ("memory", "fuzz", "damage", "kills")


def main() -> int:
    """Run the selected kinds of faults; the exit code is 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.reliability", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of each, in seconds")
    parser.add_argument("--only", choices=KINDS, action="append", help="one kind of fault; may be repeated")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page to write")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, sections = time.perf_counter(), []

    def add(found: page.Section, module: object) -> None:
        about = (inspect.getdoc(module) or "").replace("\n\n", "\n").replace("\n", " ")
        sections.append((found, about))
        print(f"{found.title}: {dict(found.counts)}, {len(found.failures)} distinct failures, {found.seconds:.0f} s", flush=True)
        if found.failures:
            print(found.text(), flush=True)

    for kind in given.only or KINDS:
        if kind == "memory":
            add(memory.run(given.quick, given.seed), memory)
        elif kind == "fuzz":
            add(fuzz.run(150 if given.quick else 2500, given.seed), fuzz)
        elif kind == "damage":
            for found in damage.run(24 if given.quick else 600, given.seed):
                add(found, damage)
        else:
            for found in kills.run(*((2, 0) if given.quick else (30, 10)), given.seed):
                add(found, kills)
    command = "make reliability" if len(sys.argv) == 1 else f"python -m tools.reliability {' '.join(sys.argv[1:])}"
    page.write(given.out, sections, command, time.perf_counter() - start)
    return int(any(found.failures for found, _ in sections))


if __name__ == "__main__":
    sys.exit(main())
