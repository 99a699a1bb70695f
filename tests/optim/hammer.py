"""Run as a process: one thread steps an optimizer while others replace the tensors that it reads and writes."""

from __future__ import annotations

import sys
import threading
import time
import warnings

import torch
from torch import nn

import langevin as lv

SIZE = 200_000  # large enough that freed memory goes back to the system, and that a step takes a while


def replace_values(parameter):
    parameter.data = torch.zeros(SIZE)


def replace_gradients(parameter):
    gradient = parameter.grad
    if gradient is not None:
        gradient.data = torch.zeros(SIZE)


def replace_state(optimizer, parameter):
    for value in list(optimizer.state[parameter].values()):
        if isinstance(value, torch.Tensor):
            value.data = torch.zeros(SIZE)


def hammer(work, step, seconds):
    """Call `step` in this thread and `work` in two others, and return how many steps there were."""
    end, steps = time.monotonic() + seconds, 0

    def repeat():
        while time.monotonic() < end:
            work()

    threads = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        step()
        steps += 1
    for thread in threads:
        thread.join()
    return steps


def main(engine, seconds):
    warnings.simplefilter("ignore")
    parameter = nn.Parameter(torch.zeros(SIZE))
    optimizer = lv.optim.MSGLD([parameter], lr=1e-3, num_data=100, fused={"fused": None, "torch": False}[engine])
    parameter.grad = torch.zeros(SIZE)
    optimizer.step()
    for name, work in (
        ("values", lambda: replace_values(parameter)),
        ("gradients", lambda: replace_gradients(parameter)),
        ("state", lambda: replace_state(optimizer, parameter)),
    ):
        print(name, flush=True)
        print(hammer(work, optimizer.step, seconds), "steps", flush=True)
    print("survived")


if __name__ == "__main__":
    sys.setswitchinterval(1e-5)
    main(sys.argv[1], float(sys.argv[2]))
