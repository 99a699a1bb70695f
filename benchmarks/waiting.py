"""How long one waits: for the import, the first optimizer step, the first draw, and the compiler, with full and with empty caches.

    for part in import first compiled; do python benchmarks/waiting.py $part; done | tee docs/benchmarks/waiting.txt

Every row is the median and the least of fresh processes that take turns, in seconds since the process was started, so that Python's
own start is part of it; `import` rows are the import alone. Bytecode is kept, as pip leaves it. *Full*: machine code is in the
caches of this package (`fill_caches`) and of torch's compiler; *empty*: both folders are new. A compiled run of `sample` is asked
to tell its progress: the first word is the first draws. Its code is ready when the first compiled block has returned.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import langevin as lv

CLOCK = "import json, os, time\nbegin = time.perf_counter()\n"
IMPORT = "\nprint(json.dumps({'': time.perf_counter() - begin}))"
SINCE = "\nprint(json.dumps({'': time.time() - float(os.environ['STARTED'])}))"

STEP = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
{optimizer}
nn.functional.cross_entropy(model(torch.zeros(8, 784)), torch.zeros(8, dtype=torch.long)).backward()
optimizer.step()
"""
ADAM = STEP.format(optimizer="optimizer = torch.optim.Adam(model.parameters())")
MSGLD = STEP.format(
    optimizer="import langevin as lv\n"
    "optimizer = lv.optim.MSGLD(model.parameters(), lr=0.1, num_data=1000, prior=lv.priors.gaussian(std=1.0))"
)
EAGER = """
import torch, langevin as lv, warnings
warnings.simplefilter("ignore", lv.TrustWarning)  # 300 steps are few
lv.sample(lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]]), sampler=lv.sgld(.05), init=torch.zeros(4, 2), num_steps=300,
          progress=False)
"""
COMPILED = """
import torch, langevin as lv, warnings
from torch import nn
from langevin.execution.runner import Runner
warnings.simplefilter("ignore", lv.TrustWarning)
found = {{}}
def note(what):
    found.setdefault(what, time.time() - float(os.environ["STARTED"]))
run_compiled = Runner._run_compiled
def noted(*arguments):
    run_compiled(*arguments)
    note("code ready")
Runner._run_compiled = noted
{target}
lv.sample(target, sampler=kernel, init=init, compile=True, progress=lambda done, total: done and note("first draw"), **options)
print(json.dumps(found))
"""
GAUSSIAN = COMPILED.format(
    target="kernel, target, init, options = lv.sgld(.05), lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]]), torch.zeros(4, 2), {}"
)
MLP = COMPILED.format(
    target="""
x = lv.random.normal(0, 0, 0, 800).view(200, 4)
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
kernel = lv.sgld(1e-4)
target = lv.Posterior(net, "categorical", prior=lv.priors.gaussian(std=1.0), num_data=200)
init, options = target.init(4), {"data": (x, (x[:, 0] > 0).long()), "batch_size": 50}
"""
)
IMPORTS = {
    "import torch": CLOCK + "import torch" + IMPORT,
    "import langevin": CLOCK + "import langevin" + IMPORT,
    "import torch, langevin; lv.optim": CLOCK + "import torch, langevin as lv; lv.optim" + IMPORT,
    "import torch, langevin; lv.sample": CLOCK + "import torch, langevin as lv; lv.sample" + IMPORT,
    "import torch, langevin; all names": CLOCK + "import torch, langevin as lv; [getattr(lv, n) for n in lv.__all__]" + IMPORT,
}
FIRSTS = {
    "first step, torch.optim.Adam": CLOCK + ADAM + SINCE,
    "first step, lv.optim.MSGLD": CLOCK + MSGLD + SINCE,
    "300 eager steps of sample": CLOCK + EAGER + SINCE,
}
COMPILES = {"compiled, Gaussian": CLOCK + GAUSSIAN, "compiled, MLP": CLOCK + MLP}


class Caches:
    """Folders for bytecode, for this package's machine code and for that of torch's compiler."""

    def __init__(self, folder: str) -> None:
        """Take a folder for all of them."""
        self.folder, self.count = Path(folder), 0

    def environment(self, full: bool) -> dict[str, str]:
        """Return the environment of a process with the full caches, or with empty ones."""
        if full:
            code = self.folder / "full"
        else:
            shutil.rmtree(self.folder / f"empty{self.count}", ignore_errors=True)
            self.count += 1
            code = self.folder / f"empty{self.count}"
        code.mkdir(mode=0o700, exist_ok=True)
        own = {"XDG_CACHE_HOME": code, "TORCHINDUCTOR_CACHE_DIR": code / "torch"}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"), **{name: str(path) for name, path in own.items()}}


def run(script: str, environment: dict[str, str]) -> dict[str, float]:
    environment = {**environment, "STARTED": str(time.time())}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(rows: dict[str, tuple[str, bool]], runs: int, caches: Caches) -> dict[str, list[float]]:
    """Run each row's script once unmeasured, where its caches are to be full, and then all of them in turns."""
    for script, full in rows.values():
        if full:
            run(script, caches.environment(True))
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for name, (script, full) in rows.items():
            for what, seconds in run(script, caches.environment(full)).items():
                found.setdefault(f"{name}: {what}" if what else name, []).append(seconds)
    return found


def show(found: dict[str, list[float]], against: str | None = None) -> None:
    for name, seconds in found.items():
        middle = statistics.median(seconds)
        ratio = "" if against is None else f"   {middle / statistics.median(found[against]):5.3f} times {against}"
        print(f"{name:46s} median {middle:7.3f} s, least {min(seconds):7.3f} s, n {len(seconds)}{ratio}", flush=True)


def both(scripts: dict[str, str]) -> dict[str, tuple[str, bool]]:
    """Return the rows of scripts with full caches, then with empty ones."""
    words = {"full": True, "empty": False}
    return {f"{name}, {word}": (script, full) for name, script in scripts.items() for word, full in words.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=["import", "first", "compiled"])
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waiting") as folder:
        caches = Caches(folder)
        if given.part == "import":
            versions = f"torch {torch.__version__}, Python {platform.python_version()}, langevin {lv.__version__}"
            print(f"{datetime.date.today()}, {versions}, {os.cpu_count()} cores", flush=True)
            show(measure({name: (script, True) for name, script in IMPORTS.items()}, given.runs, caches), "import torch")
        else:
            show(measure(both(FIRSTS if given.part == "first" else COMPILES), given.runs, caches))


if __name__ == "__main__":
    main()
