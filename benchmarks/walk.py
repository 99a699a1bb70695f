"""How many files of a package run in one call, counted by `sys.setprofile`.

    python benchmarks/walk.py [--peers PYTHON] | tee docs/benchmarks/walk.txt

The calls are those of the README: `lv.sample(model, data=...)`, the second time, when everything that is made once is made; one
block of its compiled steps; and the fourth `opt.step()` of a training loop. Files of torch and of the standard library are left
out. Files *that name a sampler*: the Python files of src and tests that contain "adadelta", a sampler with nothing but what every
sampler must have. PYTHON is an interpreter with posteriors and blackjax.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

AIMS = {  # files of version 0.2.0 at e041657 (FINDINGS, by hand); what issue 30 asks for
    "lv.sample(model, data=...)": (57, 25),
    "a block of its compiled steps": ("", 10),
    "opt.step(), fused": ("", 6),
    "opt.step(), without a compiler": ("", ""),
    "torch.optim.SGD.step()": ("", ""),
    "a sampler, files that name it": ("", 4),
    "posteriors, one SGLD step": ("", ""),
    "blackjax, one SGLD step": ("", ""),
}


def events(package: str, call: Callable[[], object], before: int = 1) -> list[tuple[str, str]]:
    """Return (file, function) for each Python call within a package, after running `call` some times before."""
    folder = Path(importlib.import_module(package).__file__).parent
    found: list[tuple[str, str]] = []

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{folder}/"):
            found.append((str(Path(path).relative_to(folder.parent)), frame.f_code.co_name))

    for _ in range(before):
        call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def files(found: list[tuple[str, str]]) -> list[str]:
    """Return the files, each once."""
    return sorted({name for name, _ in found})


def ours():
    """Yield the names of rows and their files."""
    import torch

    import langevin as lv

    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(100, 3, generator=generator), torch.randn(100, generator=generator)
    y = x.sum(-1) + noise
    model = lv.Model(
        lambda p, x, y: torch.distributions.Normal(p["a"] + x @ p["b"], p["sigma"]).log_prob(y),
        parameters={"a": lv.real(), "b": lv.real(3), "sigma": lv.positive()},
        prior={"b": lv.priors.gaussian(std=1.0), "sigma": torch.distributions.HalfNormal(1.0)},
    )
    with contextlib.redirect_stdout(io.StringIO()):  # the report of the warm-up
        call = events("langevin", lambda: lv.sample(model, data=(x, y), progress=False, num_draws=20_000))
    yield "lv.sample(model, data=...)", files(call)
    starts = [at for at, event in enumerate(call) if event == ("langevin/sampling/loop.py", "_run_block")]
    blocks = [files(call[start:stop]) for start, stop in itertools.pairwise(starts)]
    yield "a block of its compiled steps", min(blocks[1:] or blocks, key=len)

    def step(kind, package, **settings):
        network = torch.nn.Linear(3, 2)
        optimizer = kind(network.parameters(), lr=0.1, **settings)
        network(torch.ones(5, 3)).square().mean().backward()
        return files(events(package, optimizer.step, before=3))

    yield "opt.step(), fused", step(lv.optim.MSGLD, "langevin", num_data=5, fused=True)
    yield "opt.step(), without a compiler", step(lv.optim.MSGLD, "langevin", num_data=5, fused=False)
    yield "torch.optim.SGD.step()", step(torch.optim.SGD, "torch.optim")
    root = Path(lv.__file__).parents[2]
    sources = (*root.glob("src/**/*.py"), *root.glob("tests/**/*.py"))
    naming = [path for path in sources if "adadelta" in path.read_text().lower()]
    yield "a sampler, files that name it", sorted(str(path.relative_to(root)) for path in naming)


def peer(name: str) -> list[str]:
    """Return the files of a step of a peer, in whose environment this runs."""
    if name == "posteriors":
        import posteriors
        import torch

        sgld = posteriors.sgmcmc.sgld.build(lambda theta, batch: (-0.5 * theta @ theta, torch.tensor([])), lr=0.1)
        state = sgld.init(torch.zeros(2))
        return files(events(name, lambda: sgld.update(state, None)))
    import blackjax
    import jax

    gradient = blackjax.sgmcmc.gradients.grad_estimator(lambda t: -0.5 * t @ t, lambda t, x: -0.5 * (x - t) @ (x - t), 4)
    sgld, key, start, data = blackjax.sgld(gradient), jax.random.key(0), jax.numpy.zeros(2), jax.numpy.ones((4, 2))
    return files(events(name, lambda: sgld.step(key, start, data, 0.1)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="python of an environment with posteriors and blackjax")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        print(json.dumps(peer(options.peer)))
        return
    found = dict(ours())
    for name in ("posteriors", "blackjax") if options.peers else ():
        command = [options.peers, __file__, "--peer", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[f"{name}, one SGLD step"] = json.loads(done.stdout.splitlines()[-1])
    print(f"{'numbers of files':34s}{'now':>6s}{'0.2.0':>8s}{'aim':>6s}")
    for what, names in found.items():
        print("{:34s}{:6d}{:>8}{:>6}".format(what, len(names), *AIMS[what]).rstrip())
    for what, names in found.items():
        print(f"\n{what} ({len(names)}):\n  " + "\n  ".join(names))


if __name__ == "__main__":
    main()
