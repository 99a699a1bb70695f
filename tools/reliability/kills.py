"""Kills: processes that sample or train, killed by SIGKILL at random moments and started again until they are done.

Three kinds: `sample(out=...)` then `resume`, eagerly (forked children) and compiled (a new interpreter each time), and a training
loop with an optimizer and a `SampleBank`. What is on disk in the end must equal an uninterrupted run's, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

import langevin as lv
from tools.reliability import isolate
from tools.reliability.page import Section

__all__ = ["frequent_checkpoints", "run"]

CHECKPOINT_SECONDS = 0.02  # instead of seconds, so that runs of a second have checkpoints, and kills fall into their writing
MOST_KILLS = 5  # of one run; then it is left alone, so that many runs are killed
REPOSITORY = Path(__file__).parents[2]
Wait = Callable[[int], float]

# ---- what is run


def frequent_checkpoints() -> None:
    """Shorten the time between checkpoints (not a setting); runs that never resume reveal a failure."""
    for name, module in list(sys.modules.items()):
        if name.startswith("langevin") and hasattr(module, "_CHECKPOINT_SECONDS"):
            module._CHECKPOINT_SECONDS = CHECKPOINT_SECONDS


def _start(chains: int, dim: int) -> Tensor:
    return lv.random.normal(2, 0, 0, chains * dim).reshape(chains, dim)


def _logistic() -> tuple[Any, tuple[Tensor, Tensor]]:
    x = lv.random.normal(1, 0, 0, 600).reshape(200, 3)
    target = lv.targets.likelihood(
        lambda theta, x, y: y * (x @ theta) - nn.functional.softplus(x @ theta), prior=lv.priors.gaussian(std=1.0)
    )
    return target, (x, (x.sum(-1) > 0).float())


def sampler(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of both `sample` and `resume`, and those of `sample` alone."""
    gaussian = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], gradient_noise=1.0)
    if name == "sgld, Gaussian":
        return {"sampler": lv.sgld(0.05), "target": gaussian}, {"init": _start(8, 2), "num_steps": 6000, "warmup": 500, "thin": 2}
    if name == "asgld invariant, Gaussian":
        kernel = lv.asgld(0.05, invariant=True, bias_factor=2.0)
        return {"sampler": kernel, "target": gaussian}, {"init": _start(8, 2), "num_steps": 3000, "warmup": 500}
    if name == "msgld, minibatches":
        target, data = _logistic()
        return {"sampler": lv.msgld(1e-3), "target": target, "data": data}, {
            "init": _start(4, 3),
            "num_steps": 1500,
            "batch_size": 20,
        }
    if name == "sghmc, a function kept":
        keep = lambda theta: theta.square().sum()  # noqa: E731
        return {"sampler": lv.sghmc(0.05), "target": gaussian, "keep": keep}, {"init": _start(8, 2), "num_steps": 4000}
    if name == "psgld, moments":
        return {"sampler": lv.psgld(0.05), "target": gaussian}, {"init": _start(8, 2), "num_steps": 4000, "keep": "moments"}
    if name == "msgld, compiled":
        return {"sampler": lv.msgld(0.01), "target": gaussian}, {
            "init": _start(64, 2),
            "num_steps": 60_000,
            "thin": 20,
            "compile": True,
        }
    raise ValueError(f"sampler(name=...) needs a name of the table, got {name!r}")


EAGER = ("sgld, Gaussian", "asgld invariant, Gaussian", "msgld, minibatches", "sghmc, a function kept", "psgld, moments")


def start_or_resume(name: str, path: Path) -> None:
    """Start the run, or resume it if its folder exists."""
    frequent_checkpoints()
    both, alone = sampler(name)
    if path.exists():
        _note_start(path, lv.load_samples(path).status[0].steps)
        lv.resume(path, **both, progress=False)
    else:
        lv.sample(**both, **{"seed": 3, "compile": False, **alone}, out=path, progress=False)


def _note_start(path: Path, step: int) -> None:
    """Record, next to the folder, the step from which a killed run resumes."""
    with open(path.with_name(f"{path.name} starts"), "a") as file:
        file.write(f"{step}\n")


def _starts_in_the_middle(path: Path) -> int:
    notes = path.with_name(f"{path.name} starts")
    return sum(int(line) > 0 for line in notes.read_text().split()) if notes.exists() else 0


def read_run(path: Path) -> dict[str, Tensor]:
    """Return all arrays of a finished run."""
    samples = lv.load_samples(path)
    found = {name: samples.arrays[name].clone().contiguous() for name in samples.arrays}
    if samples.moments is not None:
        found |= {"mean": samples.moments.mean.contiguous(), "covariance": samples.moments.covariance.contiguous()}
    return found | {"status": torch.tensor([[entry.chain, entry.steps, entry.draws] for entry in samples.status])}


TRAINERS: dict[str, Callable[[Any], Any]] = {
    "MSGLD": lambda params: lv.optim.MSGLD(params, lr=0.01, num_data=200, bias_factor=1.0, seed=3),
    "ASGLD invariant": lambda params: lv.optim.ASGLD(params, lr=0.01, num_data=200, invariant=True, adapt_steps=40, seed=3),
    "SGHMC, spike and slab": lambda params: lv.optim.SGHMC(
        params, lr=0.01, num_data=200, seed=3, prior=lv.priors.spike_slab(slab_weight=0.1, slab_std=1.0, spike_std=0.1)
    ),
}


def train(name: str, folder: Path, steps: int = 120) -> None:
    """Train, or resume from the last checkpoint with the bank rewound to it."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    size = sum(parameter.numel() for parameter in model.parameters())
    nn.utils.vector_to_parameters(lv.random.normal(5, 0, 0, size), model.parameters())
    opt = TRAINERS[name](model.parameters())
    _, (x, y) = _logistic()
    folder.mkdir(exist_ok=True)
    checkpoint, first, calls = folder / "checkpoint.pt", 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        first, calls = saved["step"], saved["calls"]
    _note_start(folder, first)
    with lv.SampleBank(folder / "bank", thin=3, max_draws=30, resume=True) as bank:
        bank.rewind(calls)
        for step in range(first, steps):
            opt.zero_grad()
            rows = lv.random.batch_indices(7, 0, step, 20, 200)
            nn.functional.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows]).backward()
            opt.step()
            bank.add(model, step=step)
            if step % 7 == 6:
                state = {"model": model.state_dict(), "opt": opt.state_dict(), "step": step + 1, "calls": bank.calls}
                torch.save(state, folder / "checkpoint.new")
                os.replace(folder / "checkpoint.new", checkpoint)
        torch.save({"model": model.state_dict()}, folder / "final.pt")


def read_training(folder: Path) -> dict[str, Tensor]:
    """Return the bank's draws, their steps, and the final model."""
    bank = lv.SampleBank.open(folder / "bank")
    found = {f"{k} {name}": value for k in range(len(bank)) for name, value in bank.state_dict(k).items()}
    found |= {f"final {name}": value for name, value in torch.load(folder / "final.pt", weights_only=True)["model"].items()}
    return found | {"steps": torch.tensor([draw.step for draw in bank.draws]), "calls": torch.tensor(bank.calls)}


# ---- killing


def _fork(work: Callable[[], None]) -> int:
    """Fork a child that does the work and exits with 0, or with 1 and an error in `error.txt`."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        work()
        status = 0
    except BaseException as error:
        Path(tempfile.gettempdir(), "error.txt").write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def _until_done(start: Callable[[], int], chance: random.Random, seconds: float, wait: Wait) -> int:
    """Start, kill after a random part of `seconds`, repeat until one finishes; return the kills."""
    kills = 0
    while True:
        pid = start()
        share = wait(pid) if kills < MOST_KILLS else 1.0
        end = time.monotonic() + (chance.uniform(0, share * seconds) if kills < MOST_KILLS else 300)
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                break
            time.sleep(0.002)
        if os.WIFSIGNALED(status):
            kills += 1
            if kills > MOST_KILLS:
                raise RuntimeError("it was not done after five minutes")
        elif os.WEXITSTATUS(status) == 0:
            return kills
        else:
            raise RuntimeError(f"after {kills} kills a run failed: {Path(tempfile.gettempdir(), 'error.txt').read_text()}")


def _in_a_child(work: Callable[[], Any]) -> Any:
    """Return the result of `work` in a forked child."""
    (_, outcome), *_ = isolate.run([work], timeout=300)
    if outcome.fate:
        raise RuntimeError(outcome.fate)
    return outcome.value


def _saved(read: Callable[[Path], dict[str, Tensor]], path: Path) -> Callable[[], bytes]:
    return lambda: safetensors.torch.save(read(path))


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    _, status = os.waitpid(_fork(work), 0)
    if status:
        raise RuntimeError(f"an uninterrupted run failed: {Path(tempfile.gettempdir(), 'error.txt').read_text()}")
    return time.perf_counter() - start


def _interpreter(name: str, path: Path) -> int:
    """Start a new Python process that resumes a run."""
    command = [sys.executable, "-m", "tools.reliability.kills", name, str(path)]
    with open(Path(tempfile.gettempdir()) / "interpreter.txt", "w") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log, env=_environment())
    process.returncode = 0  # this module waits for the process by its id, Popen shall not
    return process.pid


def _environment() -> dict[str, str]:
    source = Path(lv.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def _wait_until(happened: Callable[[], bool], pid: int, seconds: float = 120.0) -> None:
    """Wait for an event, the end of the process, or a timeout."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not happened() and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.005)


def _newest(path: Path) -> int:
    """Return the time of the last write at the top of the folder; 0 if it does not exist."""
    newest = 0
    for file in path.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, file.stat().st_mtime_ns if file.is_file() else 0)
    return newest


def _wait_for_a_checkpoint(path: Path, chance: random.Random) -> Wait:
    """Return a wait, at half of the times, until a process has written something after what it found or began with.

    It returns the share of a run's time after which the kill may come: soon after a checkpoint, or anywhere.
    """

    def wait(pid: int) -> float:
        if chance.random() < 0.5:
            return 0.5
        _wait_until(lambda: _newest(path) > 0, pid)
        before = _newest(path)
        _wait_until(lambda: _newest(path) > before, pid)
        return 0.05

    return wait


def _warm_up() -> None:
    """Load compiled code that children then need not load; no autograd, which a fork does not survive."""
    import zarr  # noqa: F401

    lv.sample(
        lv.targets.gaussian([[1.0]]), sampler=lv.msgld(0.1), init=torch.zeros(4, 1), num_steps=3, compile=False, progress=False
    )
    lv.random.batch_indices(0, range(2), range(2), 2, 4)
    for make in TRAINERS.values():
        parameter = nn.Parameter(torch.zeros(3))
        parameter.grad = torch.zeros(3)
        make([parameter]).step()


def run(kills: int, compiled: int, seed: int) -> list[Section]:
    """Kill at least `kills` eager runs, `kills` trainings and `compiled` compiled runs."""
    with tempfile.TemporaryDirectory(prefix="langevin-kills-") as name:
        before, tempfile.tempdir = tempfile.tempdir, name
        try:
            folder, sections = Path(name), []
            _warm_up()
            sections.append(_run_kind("Killed runs, eager", kills, EAGER, folder / "eager", start_or_resume, read_run, seed))
            sections.append(
                _run_kind("Killed training loops", kills, tuple(TRAINERS), folder / "training", train, read_training, seed)
            )
            if compiled:
                sections.append(_run_compiled(compiled, folder / "compiled", seed))
            return sections
        finally:
            tempfile.tempdir = before


def _run_kind(
    title: str, kills: int, names: tuple[str, ...], folder: Path, work: Callable[[str, Path], None], read: Any, seed: int
) -> Section:
    section, chance = Section(title, seed), random.Random(f"{seed} {title}")
    folder.mkdir()
    references: dict[str, tuple[bytes, float]] = {}
    number = 0
    while section.counts["kills"] < kills:
        name = names[number % len(names)]
        number += 1
        if name not in references:
            path = folder / f"whole {len(references)}"
            seconds = _timed(lambda name=name, path=path: work(name, path))
            references[name] = _in_a_child(_saved(read, path)), seconds
        right, seconds = references[name]
        path = folder / f"killed {number}"
        try:
            start = lambda name=name, path=path: _fork(lambda: work(name, path))  # noqa: E731
            times = _until_done(start, chance, seconds, _wait_for_a_checkpoint(path, chance))
        except RuntimeError as error:
            section.fail("a run failed", f"{name}: {error}")
            section.count("runs that failed")
            section.count("kills")
            continue
        section.count("kills", times)
        section.count("starts in the middle", _starts_in_the_middle(path))
        section.count("runs")
        if _in_a_child(_saved(read, path)) == right:
            section.count("runs equal to an uninterrupted one, bit for bit")
        else:
            section.fail("another result", f"{name}, killed {times} times (run {number})")
    if not section.counts["starts in the middle"]:
        section.fail("no test", "no killed run went on from a checkpoint in its middle")
    return section


def _run_compiled(kills: int, folder: Path, seed: int) -> Section:
    title, name = "Killed runs, compiled", "msgld, compiled"
    section, chance = Section(title, seed), random.Random(f"{seed} {title}")
    folder.mkdir()
    mark = folder / "started"
    os.environ["LANGEVIN_KILLS_MARK"] = str(mark)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")

    def wait_for(path: Path) -> Wait:
        def wait(pid: int) -> float:
            """Wait for the imports, which write nothing."""
            _wait_until(mark.exists, pid)
            mark.unlink(missing_ok=True)
            return _wait_for_a_checkpoint(path, chance)(pid)

        return wait

    seconds = 0.0
    for path in (folder / "cold", folder / "whole"):  # the first fills the compiler's cache, the second is timed
        pid = _interpreter(name, path)
        _wait_until(mark.exists, pid)
        mark.unlink(missing_ok=True)
        start = time.perf_counter()
        _, status = os.waitpid(pid, 0)
        seconds = time.perf_counter() - start
        if status:
            section.fail("an uninterrupted run failed", (Path(tempfile.gettempdir()) / "interpreter.txt").read_text()[-500:])
            return section
    right = _in_a_child(_saved(read_run, folder / "whole"))
    if _in_a_child(lambda: lv.load_samples(folder / "whole").compiled) is not True:
        section.fail("no test", "the run was not compiled")
    number = 0
    while section.counts["kills"] < kills:
        number += 1
        path = folder / f"killed {number}"
        try:
            times = _until_done(lambda path=path: _interpreter(name, path), chance, seconds, wait_for(path))
        except (RuntimeError, FileNotFoundError) as error:
            section.fail("a run failed", f"{name}: {error}: {(Path(tempfile.gettempdir()) / 'interpreter.txt').read_text()[-300:]}")
            return section
        section.count("kills", times)
        section.count("starts in the middle", _starts_in_the_middle(path))
        section.count("runs")
        if _in_a_child(_saved(read_run, path)) == right:
            section.count("runs equal to an uninterrupted one, bit for bit")
        else:
            section.fail("another result", f"{name}, killed {times} times (run {number})")
    section.notes.append(f"an uninterrupted run takes {seconds:.1f} s after the imports")
    return section


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].isdigit():  # the process that is to be killed
        torch.set_num_threads(1)
        Path(os.environ["LANGEVIN_KILLS_MARK"]).touch()
        start_or_resume(sys.argv[1], Path(sys.argv[2]))
    else:
        for found in run(int(sys.argv[1]), int(sys.argv[2]), 0):
            print(found.title, dict(found.counts), found.notes, f"{time.perf_counter() - found.start:.0f} s")
            print(found.text())
