"""The update that GPUs get, on the CPU backend of the compiler: beside plain torch, which it replaces there, and the fused engine.

    python benchmarks/generated.py > docs/benchmarks/generated.txt

Contenders take turns, and find cold caches, as they do after a backward pass: with warm ones the fused engine is faster than memory
allows. What counts on a GPU is the number of launches, which is printed; its seconds cannot be measured here.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
import warnings

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # compiling is part of what is measured

import torch
from torch._inductor import metrics
from torch.utils._python_dispatch import TorchDispatchMode

import langevin as lv
from langevin.execution.generated import compiled, layout
from langevin.optim import update
from langevin.random import KINDS, normal, normal_reference

MODELS = {
    "784-800-800-10": [(800, 784), (800,), (800, 800), (800,), (10, 800), (10,)],
    "200 tiny tensors": [(7, 3)] * 100 + [(5,)] * 100,
}
ROUNDS = 21
VIEWS = {"detach", "view", "t", "slice", "select", "unbind", "split", "split_with_sizes", "expand", "alias"}


class Operations(TorchDispatchMode):
    """Counts what would be a launch on a GPU: operations that are no views."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ not in VIEWS
        return func(*args, **(kwargs or {}))


def parameters(shapes):
    params = [torch.nn.Parameter(torch.full(shape, 0.1)) for shape in shapes]
    for p in params:
        p.grad = torch.full_like(p, 0.01)
    return params


def contenders(shapes):
    """Return name -> a step of MSGLD; the switch between engines costs nothing."""

    def step_of(engine, devices, noise, fused):
        optimizer = lv.optim.MSGLD(parameters(shapes), 1e-3, num_data=60_000, prior=lv.priors.gaussian(std=1.0), fused=fused)

        def step():
            update.has_fused_engine, layout.DEVICES, KINDS["normal"] = lambda: engine, devices, noise
            optimizer.step()

        return step

    return {
        "plain torch": step_of(True, set(), normal_reference, False),
        "generated": step_of(False, {"cpu"}, normal_reference, None),
        "fused (C)": step_of(True, set(), normal, None),
    }


def count(step):
    """Return the operations of a step, and the calls of generated kernels among them."""
    calls = []
    ready = [functions.ready for functions in compiled._written.values()]
    kept = [dict(entries) for entries in ready]
    for entries in ready:
        entries.update({key: lambda *_: calls.append(1) for key in entries})
    with Operations() as operations:
        step()
    for entries, before in zip(ready, kept, strict=True):
        entries.update(before)
    return operations.count + len(calls), len(calls)


def main():
    warnings.simplefilter("ignore", lv.optim.SharedNoiseWarning)  # contenders have the same noise
    versions = f"torch {torch.__version__}, langevin {lv.__version__}, Python {platform.python_version()}"
    print(f"{versions}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    print(f"MSGLD, float32, Gaussian prior; ms per step, median (min) of {ROUNDS} steps, in turns, cold caches; seed 0")
    other = torch.zeros(2**26)  # 256 MB: to write it takes the caches from whatever was there
    for name, shapes in MODELS.items():
        compiled._written.clear()
        compiled._generate.cache_clear()
        steps, metrics.generated_kernel_count = contenders(shapes), 0
        first = {}
        for contender, step in steps.items():
            start = time.perf_counter()
            step()
            first[contender] = time.perf_counter() - start
        kernels, seconds = metrics.generated_kernel_count, {contender: [] for contender in steps}
        for _ in range(ROUNDS):
            for contender, step in steps.items():
                other.add_(1.0)
                start = time.perf_counter()
                step()
                seconds[contender].append((time.perf_counter() - start) * 1e3)
        print(f"\n{name}: {len(shapes)} tensors, {sum(torch.Size(shape).numel() for shape in shapes):,} elements")
        for contender, values in seconds.items():
            line = f"  {contender:14} {statistics.median(values):8.2f} ({min(values):.2f})"
            ratio = statistics.median(seconds["plain torch"]) / statistics.median(values)
            line += f"   {ratio:5.1f} times as fast as plain torch"
            if contender != "fused (C)":
                total, generated = count(steps[contender])
                line += f"   {total:6} operations a step, {generated} of them generated"
            print(line)
        seconds_of_first = (
            f"the first step, with compiling (torch keeps what an earlier model needed), took {first['generated']:.1f} s"
        )
        print(f"  generated: kernels written: {kernels}; {seconds_of_first}")


if __name__ == "__main__":
    main()
