"""Damaged bytes: run folders and banks with a file changed, then opened, resumed, read, continued.

Allowed are exactly the right draws, or an error that says which path is damaged. Wrong draws, other errors, more than five seconds
and more than 200 MB are failures. A bank's manifest that ends early looks as after a kill: the draws before its end are right.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import langevin as lv
from tools.reliability import isolate
from tools.reliability.kills import frequent_checkpoints
from tools.reliability.page import Section

__all__ = ["run"]

TIMEOUT, MEGABYTES = 5.0, 200.0
SPEAKING = (ValueError, RuntimeError, FileNotFoundError)  # CorruptDrawError is a ValueError
VALUES = (0, 1, -1, 7, 10**9, 10**30, -(10**18), 1.5, 1e300, True, None, "", "text", [], [1, 2], {}, {"a": 1})

# ---- the undamaged folders

_nap = 0.0  # seconds that one evaluation sleeps, so that a run can be killed in the middle


def log_likelihood(theta: Tensor, x: Tensor) -> Tensor:
    """Return that of a normal mean with a second, idle parameter."""
    if _nap:
        time.sleep(_nap)
    return -0.5 * (x - theta[0]) ** 2 - 0.01 * theta[1] ** 2


def _target() -> Any:
    return lv.targets.likelihood(log_likelihood, prior=lv.priors.gaussian(std=1.0))


def _data() -> Tensor:
    return lv.random.normal(1, 0, 0, 40)


def _sample(path: Path | None) -> Any:
    init = lv.random.normal(2, 0, 0, 6).reshape(3, 2)
    settings = {"num_steps": 600, "warmup": 30, "thin": 3, "data": _data(), "batch_size": 8, "seed": 4}
    return lv.sample(_target(), sampler=lv.msgld(1e-3), init=init, **settings, out=path, compile=False, progress=False)


def _resume(path: Path) -> Any:
    return lv.resume(path, _target(), sampler=lv.msgld(1e-3), data=_data(), progress=False)


def make_runs(folder: Path) -> None:
    """Create a finished run, and one killed after its first checkpoint."""
    global _nap
    finished = isolate.run([lambda: len(_sample(folder / "finished").draws)], timeout=60)
    next(iter(finished))
    pid = os.fork()
    if pid == 0:
        try:
            quiet = os.open(os.devnull, os.O_RDWR)
            os.dup2(quiet, 1), os.dup2(quiet, 2)
            _nap = 0.002
            frequent_checkpoints()
            _sample(folder / "killed")
        finally:
            os._exit(0)
    try:
        _wait_for_a_checkpoint(folder / "killed")
        time.sleep(0.05)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _wait_for_a_checkpoint(path: Path, seconds: float = 60.0) -> None:
    """Wait until the file that holds the checkpoint has been replaced."""
    end, first = time.monotonic() + seconds, None
    while time.monotonic() < end:
        found = {file.name: file.stat().st_mtime_ns for file in path.glob("*.safetensors")} if path.exists() else {}
        if first and found and found != first:
            return
        first = first or found
        time.sleep(0.02)
    raise RuntimeError(f"no checkpoint in {path} after {seconds:g} s")


def _model(at: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    size = sum(parameter.numel() for parameter in model.parameters())
    nn.utils.vector_to_parameters(lv.random.normal(3, 0, at, size), model.parameters())
    return model.eval()


def make_bank(path: Path) -> None:
    """Make a bank with drops and a rewind in its manifest; three draws are left."""

    def make() -> None:
        with lv.SampleBank(path, thin=2, max_draws=5) as bank:
            for step in range(16):
                bank.add(_model(step), step=step, loss=0.5)
            bank.rewind(12)
            bank.add(_model(90), step=12)

    next(iter(isolate.run([make], timeout=60)))


# ---- one change


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock" and not path.name.endswith(".lock"))


def flip_a_bit(chance: random.Random, path: Path, folder: Path) -> str:
    data = bytearray(path.read_bytes())
    place = chance.randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
    return f"bit {place}"


def truncate(chance: random.Random, path: Path, folder: Path) -> str:
    size = chance.choice([0, chance.randrange(path.stat().st_size)])
    os.truncate(path, size)
    return f"to {size} bytes"


def delete(chance: random.Random, path: Path, folder: Path) -> str:
    path.unlink()
    return ""


def duplicate(chance: random.Random, path: Path, folder: Path) -> str:
    other = path.with_name(chance.choice([f"{path.stem}.copy{path.suffix}", f".{path.name}.1.new", "9"]))
    shutil.copy(path, other)
    return f"as {other.name}"


def swap(chance: random.Random, path: Path, folder: Path) -> str:
    other = chance.choice([file for file in _files(folder) if file != path])
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"with {other.relative_to(folder)}"


def replace_by_random_bytes(chance: random.Random, path: Path, folder: Path) -> str:
    path.write_bytes(chance.randbytes(chance.choice([1, path.stat().st_size, 5000])))
    return ""


def append_garbage(chance: random.Random, path: Path, folder: Path) -> str:
    garbage = chance.choice([b"\n", b"\0" * 8, b"{}\n", chance.randbytes(100)])
    path.write_bytes(path.read_bytes() + garbage)
    return f"{garbage[:8]!r}"


def edit_json(chance: random.Random, path: Path, folder: Path) -> str:
    """Change, remove or add one value in a JSON file, in a line of JSON lines, or in the JSON at the head of a safetensors file."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        content = json.loads(data[8 : 8 + size])
        words = content.get("__metadata__", {}).get("langevin")
        if words is None or chance.random() < 0.3:
            said = _edit(chance, content)
        else:
            inner = json.loads(words)
            said = _edit(chance, inner)
            content["__metadata__"]["langevin"] = json.dumps(inner)
        head = json.dumps(content).encode()
        path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + size :])
        return said
    lines = data.splitlines() if path.suffix == ".jsonl" else [data]
    number = chance.randrange(len(lines))
    content = json.loads(lines[number])
    said = _edit(chance, content)
    lines[number] = json.dumps(content).encode()
    path.write_bytes(b"\n".join(lines) + (b"\n" if path.suffix == ".jsonl" else b""))
    return f"line {number + 1}, {said}"


def _edit(chance: random.Random, content: Any) -> str:
    places: list[tuple[Any, Any, str]] = []

    def collect(node: Any, name: str) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            places.append((node, key, f"{name}.{key}"))
            collect(value, f"{name}.{key}")

    collect(content, "")
    node, key, name = chance.choice(places)
    old = node[key]
    if chance.random() < 0.25:
        del node[key]
        return f"{name} removed"
    number = isinstance(old, (int, float)) and not isinstance(old, bool) and chance.random() < 0.5
    node[key] = old + chance.choice([-1, 1, 1000]) if number else chance.choice(VALUES)
    return f"{name}: {old!r} became {node[key]!r}"[:160]


DAMAGES: dict[str, Callable[[random.Random, Path, Path], str]] = {
    function.__name__.replace("_", " "): function
    for function in (flip_a_bit, truncate, delete, duplicate, swap, replace_by_random_bytes, append_garbage, edit_json)
}


def damage(chance: random.Random, folder: Path) -> tuple[str, Path, str]:
    """Damage one file of the folder; return the kind of damage, the file and details."""
    kind = chance.choice([*DAMAGES, "edit json", "edit json", "flip a bit"])
    files = [path for path in _files(folder) if path.stat().st_size]
    if kind == "edit json":
        files = [path for path in files if path.suffix in (".json", ".jsonl", ".safetensors")]
    path = chance.choice(files)
    return kind, path, DAMAGES[kind](chance, path, folder)


# ---- what is read


def _arrays(samples: Any) -> dict[str, Tensor]:
    status = torch.tensor([[entry.chain, entry.steps, entry.draws, entry.is_healthy] for entry in samples.status])
    return {**{name: samples.arrays[name].clone() for name in samples.arrays}, "status": status}


def _states(bank: Any) -> dict[str, Tensor]:
    return {f"{k} {name}": value for k in range(len(bank)) for name, value in bank.state_dict(k).items()}


def open_run(path: Path) -> dict[str, Tensor]:
    return _arrays(lv.load_samples(path))


def resume_run(path: Path) -> dict[str, Tensor]:
    return _arrays(_resume(path))


def read_bank(path: Path) -> dict[str, Tensor]:
    return _states(lv.SampleBank.open(path))


def predict_with_bank(path: Path) -> dict[str, Tensor]:
    bank = lv.SampleBank.open(path)
    return _states(bank) | {"prediction": lv.predict(_model(0), bank, torch.ones(4, 3), transform=lambda output: output).mean}


def add_to_bank(path: Path) -> dict[str, Tensor]:
    with lv.SampleBank(path, thin=2, max_draws=5, resume=True) as bank:
        bank.add(_model(91))
        bank.add(_model(92))
        return _states(bank)


@functools.cache
def _right(action: Callable[[Path], dict[str, Tensor]], base: Path) -> dict[str, Tensor]:
    """Return the result of the action on an undamaged copy."""
    with tempfile.TemporaryDirectory(prefix="langevin-damage-") as folder:
        shutil.copytree(base, Path(folder) / "copy")
        return action(Path(folder) / "copy")


def attempt(seed: str, base: Path, action: Callable[[Path], dict[str, Tensor]]) -> tuple[str, str]:
    """Copy, damage and use a folder; return the verdict and a text."""
    chance = random.Random(seed)
    right = _right(action, base)
    with tempfile.TemporaryDirectory(prefix="langevin-damage-") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(base, copy)
        kind, path, details = damage(chance, copy)
        what = f"{kind}, {path.relative_to(copy)} {details}; {action.__name__} of {base.name}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = action(copy)
        except Exception as error:
            if isinstance(error, SPEAKING) and str(copy) in str(error):
                return "a clear error", what
            lost = "" if str(copy) in str(error) else ", and the path is not in it"
            text = str(error).replace("\n", " ")[:200]
            return "an obscure error", f"{what}: {type(error).__name__}: {text}{lost}"
        if _equal(found, right):
            return "the right draws", what
        if path.name == "manifest.jsonl" and kind in ("truncate", "delete") and _is_earlier(found, right, action):
            return "the draws before the manifest's end", what
        return "wrong draws", f"{what}: {_difference(found, right)}"


def _equal(found: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return found.keys() == right.keys() and all(_same(found[name], right[name]) for name in right)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.nan_to_num(1e30), other.nan_to_num(1e30))


def _is_earlier(found: dict[str, Tensor], right: dict[str, Tensor], action: Any) -> bool:
    """Say whether a bank's draws are some that were written before: every tensor is one that `_model` makes."""
    known = {tuple(_model(at).state_dict()["0.weight"].flatten().tolist()) for at in (*range(16), 90, 91, 92)}
    return all(tuple(value.flatten().tolist()) in known for name, value in found.items() if name.endswith(" 0.weight"))


def _difference(found: dict[str, Tensor], right: dict[str, Tensor]) -> str:
    if found.keys() != right.keys():
        return f"{len(found)} tensors instead of {len(right)}"
    for name, value in right.items():
        if found[name].shape != value.shape:
            return f"{name} has shape {tuple(found[name].shape)} instead of {tuple(value.shape)}"
        if found[name].isnan().sum() != value.isnan().sum():
            return f"{name} has {int(found[name].isnan().sum())} NaN"
        if not _same(found[name], value):
            return f"{name} differs in {int((found[name] != value).sum())} of {value.numel()} elements"
    return "?"


def run(count: int, seed: int) -> list[Section]:
    """Damage `count` run folders and as many banks."""
    sections = []
    with tempfile.TemporaryDirectory(prefix="langevin-damage-") as name:
        folder = Path(name)
        make_runs(folder)
        make_bank(folder / "bank")
        runs = [
            (folder / "finished", open_run),
            (folder / "finished", resume_run),
            (folder / "killed", open_run),
            (folder / "killed", resume_run),
        ]
        banks = [(folder / "bank", action) for action in (read_bank, predict_with_bank, add_to_bank)]
        for title, actions in (("Damaged run folders", runs), ("Damaged banks", banks)):
            sections.append(_run(title, actions, count, seed))
    return sections


def _run(title: str, actions: list[tuple[Path, Any]], count: int, seed: int) -> Section:
    section = Section(title, seed)
    cases = [(f"{seed} {title} {number}", *actions[number % len(actions)]) for number in range(count)]

    def prepare() -> None:
        for base, action in actions:
            _right(action, base)

    for index, outcome in isolate.run([lambda case=case: attempt(*case) for case in cases], timeout=TIMEOUT, prepare=prepare):
        verdict, text = outcome.value or ("", f"trial {index}, {cases[index][2].__name__} of {cases[index][1].name}")
        if outcome.fate:
            verdict, text = "a crash" if "died" in outcome.fate else "a hang", f"{text}: {outcome.fate}"
        elif outcome.megabytes > MEGABYTES:
            verdict, text = "greedy", f"{text}: {outcome.megabytes:.0f} MB more"
        section.count(verdict)
        if verdict not in ("the right draws", "a clear error", "the draws before the manifest's end"):
            section.fail(verdict, text)
    return section


if __name__ == "__main__":
    import sys

    for found in run(int(sys.argv[1]), 0):
        print(found.title, dict(found.counts))
        print(found.text())
