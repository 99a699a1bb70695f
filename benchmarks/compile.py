"""How long compiling takes, and what it gains: record, write, cc, then a gradient eager, replayed and compiled.

    LANGEVIN_DATA=../shared/data python benchmarks/compile.py | tee docs/benchmarks/compile.txt

The posteriors of posteriordb that the data folder has, each with 8 chains in float64 on one thread. `cc` is the compiler's
time with an empty cache. Gradients are the least of several timings in turns.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import torch

import langevin as lv

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # compiling is what is measured

from langevin_paper.check.database import available, read_reference

from langevin.compiler import source
from langevin.compiler.program import Program, replay
from langevin.compiler.record import record
from langevin.targets.gradients import full


def best(call: Callable[[], object], count: int) -> float:
    """Return the least seconds of a call in several rounds."""
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - begin) / count)
    return min(rounds)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(
        f"{datetime.date.today()}, langevin {lv.__version__}, torch {torch.__version__}, Python {platform.python_version()}; "
        "8 chains, one thread"
    )
    heads = ("dim", 4), ("ops", 6), ("record", 9), ("write", 9), ("cc", 7), ("eager", 9), ("replay", 9), ("compiled", 9)
    print(f"{'posterior':44s}", *(f"{head:>{width}s}" for head, width in heads), "   error")
    compiles, gains = [], []
    for name in available():
        reference = read_reference(name)
        model, data = reference.posterior.model, reference.posterior.data
        columns = tuple(torch.as_tensor(v) for v in data.values()) if isinstance(data, dict) else data
        gradient_fn = full(model, columns)
        position = lv.random.normal(0, range(8), 0, model.dim, dtype=torch.float64) * 0.1

        def call(x: torch.Tensor = position, evaluate: Callable[..., object] = gradient_fn.evaluate) -> list[torch.Tensor]:
            return [*evaluate(x, ())][:2]  # type: ignore[misc]

        begin = time.perf_counter()
        with torch.no_grad():
            tape = record(call, [position])
        recorded = time.perf_counter()
        source.write(tape)
        wrote = time.perf_counter()
        program = Program(tape)
        built = time.perf_counter()
        again, expected = replay(tape), gradient_fn.evaluate(position, ())
        energy, gradient = program([position])
        error = max(
            float(((energy - expected.energy) / expected.energy.abs().clamp(min=1)).abs().max()),
            float((gradient - expected.gradient).abs().max() / expected.gradient.abs().max()),
        )
        few = 3 if len(tape.operations) > 2000 else 20
        eager, replayed = best(call, few), best(lambda again=again, x=position: again([x]), few)
        fast = best(lambda program=program, x=position: program([x]), 200)
        compiles.append(built - wrote)
        gains.append(eager / fast)
        times = f"{1e3 * (recorded - begin):6.0f} ms {1e3 * (wrote - recorded):6.0f} ms {built - wrote:5.2f} s"
        gradients = f"{1e6 * eager:6.0f} us {1e6 * replayed:6.0f} us {1e6 * fast:6.1f} us"
        print(f"{name:44s} {model.dim:4d} {len(tape.operations):6d} {times} {gradients} {error:8.1e}", flush=True)
    print(f"median: cc {statistics.median(compiles):.2f} s (most {max(compiles):.2f})")
    print(f"median: eager over compiled {statistics.median(gains):.0f}")


if __name__ == "__main__":
    main()
