"""Targets that do something to the process that evaluates them; importable by workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

import langevin as lv

SAMPLER = lv.msgld(step_size=0.05, invariant=True)
INIT = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(10, 2)  # ten chains: blocks of 4, 4 and 2
SETTINGS = {"num_steps": 600, "warmup": 99, "thin": 1, "seed": 3, "compile": False, "progress": False}
BLOCKS = {**SETTINGS, "block_size": 4}


def half_square(theta):
    return (theta * theta).sum() / 2


def in_a_worker(driver):
    return os.getpid() != driver


class Acting:
    """A Gaussian energy that acts where it is evaluated in another process than the driver's.

    Args:
        act: "mark" leaves a file named after the process; "die" kills the process while `folder/armed` exists; "starve" asks for
            more memory than there is, likewise.
        folder: of these files.
    """

    def __init__(self, act, folder):
        self.act, self.folder, self.driver = act, Path(folder), os.getpid()

    def __call__(self, theta):
        if in_a_worker(self.driver):
            if self.act == "mark":
                (self.folder / f"{os.getpid()}.pid").touch()
                time.sleep(0.0002)
            elif (self.folder / "armed").exists():
                if self.act == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif self.act == "starve":
                    torch.empty(2**50)
        return half_square(theta)


def arming(folder):
    """Return a progress function that arms when each of the three blocks of `folder/run` has taken some steps.

    The last of them has just begun then, whatever the others have done: a worker that starts late holds its first block up.
    """

    def progress(done, total):
        if len(list(folder.glob("run/blocks/*/state.safetensors"))) == 3:
            (folder / "armed").touch()

    return progress


def acting(act, folder):
    return lv.targets.energy(Acting(act, folder), dim=2)
