"""Experiments that take no time, for the runner and the report; importable by the runner's processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from langevin_paper.spec import Column, Experiment, Listing, Method, Published, Scale, Setting, Table

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # of processes that import what this one imports

SCALES = (Scale("quick", {"steps": 4}, num_seeds=2, seconds=1), Scale("paper", {"steps": 8}, num_seeds=3, seconds=1, is_paper=True))
METHODS = (
    Method("good", "Good", "sgld", {"step_size": 0.1}),
    Method("slow", "Slow", "msgld", {"step_size": 0.1}, ours=("step_size",)),
    Method("bad", "Bad", "asgld", ours=("*",), note="fails"),
)
PUBLISHED = {"good": Published(11.0, 0.5, 5), "slow": Published(50.0, 0.1, 5)}


def run(method, scale, seeds, folder, progress):
    """Count to `steps` in a file, so that a killed run goes on; note every start in another."""
    with (Path(folder).parents[1] / "starts.txt").open("a") as file:
        file.write(f"{method.name} {list(seeds)}\n")
    if method.name == "bad":
        raise ZeroDivisionError("on purpose")
    counter = Path(folder) / "counter"
    steps = [] if not counter.exists() else counter.read_text().split()
    while len(steps) < scale.settings["steps"]:
        if method.name == "slow":
            time.sleep(0.25)
        steps.append(str(os.getpid()))
        counter.write_text(" ".join(steps))
        progress(len(steps) / scale.settings["steps"])
    return {seed: {"value": 10.0 + seed, "processes": len(set(steps)), "curve": np.arange(3.0) + seed} for seed in seeds}


TOY = Experiment(
    name="toy",
    title="A toy",
    section="Section 0",
    about="Nothing.",
    methods=METHODS,
    scales=SCALES,
    run=run,
    tables=(
        Table("Values", (Column("value", "value", 2, {"good": Published(11.0, 0.5, 5), "slow": Published(50.0, 0.1, 5)}, "high"),)),
    ),
    listings=(Listing("All", {"value": "v"}, 1, {"good": {"value": (1.0, 2.0)}}),),
    settings=(Setting("steps", "8", "paper"), Setting("start", "0", "ours", "not given")),
)


def die(method, scale, seeds, folder, progress):
    """End the whole process, as a lack of memory would."""
    if method.name == "slow":
        os._exit(9)
    return {seed: {"value": 1.0} for seed in seeds}


DEADLY = Experiment("deadly", "Deadly", "Section 0", "Dies.", METHODS[:2], SCALES, die)
