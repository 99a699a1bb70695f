"""Optimizer steps by memory layout and dtype: nanoseconds per element, and the ratio to contiguous float32 of the same run.

    python benchmarks/layouts.py | tee docs/benchmarks/layouts.txt

Six convolution weights of a ResNet's shapes, 3.5 million elements. Layouts take turns, round after round; medians.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import time

import torch
from torch import nn

import langevin as lv

SHAPES = [(64, 3, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3), (128, 128, 3, 3), (256, 128, 3, 3), (256, 256, 3, 3), (512, 512, 3, 3)]
LAYOUTS = {
    "float32": (torch.float32, torch.contiguous_format, None),
    "float32, channels-last": (torch.float32, torch.channels_last, None),
    "bfloat16": (torch.bfloat16, torch.contiguous_format, None),
    "bfloat16, channels-last": (torch.bfloat16, torch.channels_last, None),
    "float64": (torch.float64, torch.contiguous_format, None),
    "float32, plain torch": (torch.float32, torch.contiguous_format, False),
}


def stepper(optimizer_class, dtype, layout, fused, chain, **settings):
    params = [nn.Parameter(torch.zeros(shape, dtype=dtype).contiguous(memory_format=layout)) for shape in SHAPES]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = optimizer_class(
        params, lr=1e-3, num_data=1000, prior=lv.priors.gaussian(std=1.0), fused=fused, chain=chain, **settings
    )
    optimizer.step()
    return optimizer.step, sum(p.numel() for p in params)


def main():
    print(f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print("nanoseconds per element, median of 15 rounds (ratio to contiguous float32)")
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        for optimizer_class, settings in ((lv.optim.SGLD, {}), (lv.optim.MSGLD, {}), (lv.optim.ASGLD, {"invariant": True})):
            steps = {}
            for chain, (name, layout) in enumerate(LAYOUTS.items()):
                steps[name], size = stepper(optimizer_class, *layout, chain, **settings)
            seconds = {name: [] for name in steps}
            for _ in range(15):
                for name, step in steps.items():
                    start = time.perf_counter()
                    step()
                    seconds[name].append(time.perf_counter() - start)
            base = statistics.median(seconds["float32"])
            label = optimizer_class.__name__ + (", invariant" if settings else "")
            print(f"\n{label}, {threads} thread(s), {size:,} elements")
            for name, values in seconds.items():
                middle = statistics.median(values)
                print(f"  {name:26s} {1e9 * middle / size:7.2f}  {middle / base:5.2f}")


if __name__ == "__main__":
    main()
