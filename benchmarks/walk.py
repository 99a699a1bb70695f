"""How many files one walks through to follow a step: counted by `sys.setprofile`, not by hand.

    python benchmarks/walk.py | tee docs/benchmarks/walk.txt

Files *run*: those of the package in which Python code ran; what numba, torch or `<string>` ran is left out. A step of `sample` is
all that runs from one evaluation of the target to the next within a block; of two calls, and of three optimizer steps, the last
is taken, when everything that is made once is made. Files *to understand*: those run, and those that define the class and the base
classes of every object whose method ran. Files *that name a sampler*: the Python files of src and tests with the word adadelta, the
sampler that has nothing but what every sampler must have. posteriors and blackjax are measured where `benchmarks/optim.py` and
`benchmarks/sample.py` have made their environments. With PYTHONPATH at the src of a checkout of 0.1.0 that version is measured.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

ROWS = {  # 0.1.0 counted by hand; 0.1.0 counted by this script; what is wanted
    "lv.sample, one step": (14, 11, 8),
    "lv.sample, whole call": (22, 24, ""),
    "MSGLD.step(), fused: run": (8, 13, ""),
    "MSGLD.step(), fused: to understand": (14, 15, 6),
    "MSGLD.step(), plain torch: run": ("", 16, ""),
    "MSGLD.step(), plain torch: to understand": ("", 17, ""),
    "torch.optim.SGD.step(): run": (2, 2, ""),
    "a cell of the Landsat experiment": ("", 38, ""),
    "a sampler, files that name it": (13, 10, 5),
    "posteriors, one SGLD step": (3, 3, ""),
    "blackjax, one SGLD step": (4, 4, ""),
}


class Walk:
    """A call, and what of some packages ran in it: (file, function, classes of the object whose method it is) for each event."""

    def __init__(self, packages, call, before=1):
        """Run it, `before` that as often as said: what is made once is made."""
        self.folders, self.events = [Path(importlib.import_module(name).__file__).parent for name in packages], []
        for _ in range(before):
            call()
        sys.setprofile(self._note)
        call()
        sys.setprofile(None)

    def name(self, path):
        """Return the name of a file of the packages, None for any other."""
        return next((str(Path(path).relative_to(f.parent)) for f in self.folders if path.startswith(f"{f}/")), None)

    def _note(self, frame, event, _):
        for running, what in ((frame, event), (frame.f_back, "calls"))[: 1 + (event == "call")]:  # a caller has run as well
            if running and (name := self.name(running.f_code.co_filename)):
                code = running.f_code
                owner = running.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
                kind = owner if isinstance(owner, type) else type(owner)
                self.events.append((name, f"{what} {code.co_name}", kind.__mro__ if hasattr(kind, code.co_name) else ()))

    def files(self, start=0, stop=None):
        """Return the files run between two events."""
        return sorted({name for name, _, _ in self.events[start:stop]})

    def to_understand(self):
        """Return the files run and those of the classes."""
        modules = {base.__module__ for _, _, bases in self.events for base in bases}
        defined = {self.name(getattr(sys.modules.get(module), "__file__", None) or "") for module in modules}
        return sorted({*self.files(), *defined} - {None})


def ours():
    """Yield the names of rows and their files."""
    import torch

    import langevin as lv

    def sample():
        return lv.sample(lv.msgld(0.01), target, torch.zeros(4, 2), num_steps=20, compile=False, progress=False)

    target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
    walk = Walk(["langevin"], sample)
    home = walk.name(sys.modules[type(target).__module__].__file__)
    starts = [at for at, (name, what, _) in enumerate(walk.events) if (name, what) == (home, "call evaluate")]
    between = [walk.files(*pair) for pair in itertools.pairwise(starts)]
    yield "lv.sample, one step", max(between, key=between.count)  # the first and the last hold more than a step
    yield "lv.sample, whole call", walk.files()

    def third_step(kind, package, **settings):
        model = torch.nn.Linear(3, 2)
        optimizer = kind(model.parameters(), lr=0.1, **settings)
        model(torch.ones(5, 3)).square().mean().backward()
        return Walk([package], optimizer.step, before=2)

    for name, fused in (("fused", True), ("plain torch", False)):
        walk = third_step(lv.optim.MSGLD, "langevin", num_data=5, fused=fused)
        yield f"MSGLD.step(), {name}: run", walk.files()
        yield f"MSGLD.step(), {name}: to understand", walk.to_understand()
    yield "torch.optim.SGD.step(): run", third_step(torch.optim.SGD, "torch.optim").files()

    home = "langevin.experiments.paper" if importlib.util.find_spec("langevin.experiments") else "langevin_paper.experiments"
    landsat = importlib.import_module(f"{home}.landsat").LANDSAT
    scale, method = landsat.scale("quick"), landsat.method("msgld")
    scale = dataclasses.replace(scale, settings={**scale.settings, "epochs": 1, "averaged_steps": 50, "compile": False})
    with TemporaryDirectory() as folder:
        walk = Walk(["langevin", home.split(".")[0]], lambda: landsat.run(method, scale, range(1), Path(mkdtemp(dir=folder)), abs))
    yield "a cell of the Landsat experiment", walk.files()

    root = Path(lv.__file__).parents[2]
    sources = (*root.glob("src/**/*.py"), *root.glob("tests/**/*.py"))
    yield "a sampler, files that name it", sorted(str(p.relative_to(root)) for p in sources if "adadelta" in p.read_text().lower())


def peer(name):
    """Return the files of a step of a peer, in whose environment this runs."""
    if name == "posteriors":
        import posteriors
        import torch

        sgld = posteriors.sgmcmc.sgld.build(lambda theta, batch: (-0.5 * theta @ theta, torch.tensor([])), lr=0.1)
        state = sgld.init(torch.zeros(2))
        return Walk([name], lambda: sgld.update(state, None)).files()
    import blackjax
    import jax

    gradient = blackjax.sgmcmc.gradients.grad_estimator(lambda t: -0.5 * t @ t, lambda t, x: -0.5 * (x - t) @ (x - t), 4)
    sgld, key, start, data = blackjax.sgld(gradient), jax.random.key(0), jax.numpy.zeros(2), jax.numpy.ones((4, 2))
    return Walk([name], lambda: sgld.step(key, start, data, 0.1)).files()


def main():
    found = dict(ours())
    for name, folder in (("posteriors", ".venv-peers"), ("blackjax", ".venv-jax")):
        if (python := Path(__file__).parents[1] / folder / "bin" / "python").exists():
            done = subprocess.run([python, __file__, name], capture_output=True, text=True, check=True)
            found[f"{name}, one SGLD step"] = json.loads(done.stdout)
    print(f"{'numbers of files':42s}{'now':>6s}{'0.1.0 by hand':>16s}{'0.1.0 measured':>16s}{'aim':>6s}")
    for what, files in found.items():
        print("{:42s}{:6d}{:>16}{:>16}{:>6}".format(what, len(files), *ROWS[what]).rstrip())
    for what, files in found.items():
        print(f"\n{what} ({len(files)}):\n  " + "\n  ".join(files))


if __name__ == "__main__":
    print(json.dumps(peer(sys.argv[1]))) if sys.argv[1:] else main()
