"""Fuzzed arguments: valid calls with one or two arguments replaced by values that no call should have.

A call may succeed with a finite result if the argument allows the value, or fail with an error that names what was wrong. A
signal, a hang, NaN without a warning, nonsense taken without a word and an obscure error are failures.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import random
import re
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin import TrustWarning
from tools.reliability import isolate
from tools.reliability.calls import CALLS, Call
from tools.reliability.page import Section
from tools.reliability.values import NASTY

__all__ = ["Trial", "judge", "run", "trials"]

TIMEOUT = 10.0
SPEAKING = (ValueError, TypeError, RuntimeError, OSError, IndexError, NotImplementedError)
"""Errors that a check may raise; the others (KeyError, AttributeError, OverflowError, ...) escaped from inside."""
SKIPPED = {("compile", "True")}
"""Valid, and slower than a trial may be."""
FINE = {
    "accepted": "the argument allows the value",
    "accepted with a warning": "it ran and warned",
    "overflow": "a number such as 1e308 was allowed, and the result is infinite",
    "refused": "an error that names the call, the argument or the path",
    "refused under another name": "an error in the library's own shape, that names an inner function",
    "the caller's own error": "raised inside a function or module that the caller gave",
}


class Trial(NamedTuple):
    """A call and its replaced values."""

    call: str
    changes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """Show the call as it would be written."""
        return f"{self.call}({', '.join(f'{argument}={label}' for argument, label in self.changes)})"


class Verdict(NamedTuple):
    """The outcome of a trial: one of `FINE`, or a description of a failure."""

    kind: str
    text: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether this may not happen."""
        return self.kind not in FINE


def sweep(only: str = "") -> list[Trial]:
    """Return every argument of every call, or of those whose names match a pattern, with every value."""
    return [
        Trial(name, ((argument, label),))
        for name, call in CALLS.items()
        if re.match(only, name)
        for argument in call.arguments
        for label in NASTY
        if (argument, label) not in SKIPPED
    ]


def trials(count: int, seed: int, second: float = 0.3) -> list[Trial]:
    """Return random trials, each with one or two changed arguments, none twice."""
    chance, found = random.Random(seed), {}
    places = [(name, argument) for name, call in CALLS.items() for argument in call.arguments]
    while len(found) < count:
        name, argument = chance.choice(places)
        chosen = {argument, *chance.sample(list(CALLS[name].arguments), chance.random() < second)}
        changes = tuple((each, chance.choice(list(NASTY))) for each in sorted(chosen))
        if SKIPPED.intersection(changes):
            continue
        found[Trial(name, changes)] = None
    return list(found)


def attempt(trial: Trial) -> Verdict:
    """Make the call and classify the outcome."""
    call = CALLS[trial.call]
    arguments = {name: argument.make() for name, argument in call.arguments.items()}
    bad = {name: NASTY[label]() for name, label in trial.changes}
    os.chdir(tempfile.mkdtemp(prefix="langevin-fuzz-"))  # relative paths are new ones in every trial
    allowed = all(_accepts(call, name, value) for name, value in bad.items())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        # Every run here is too short to be trusted, which says nothing of its arguments; that a chain stopped may.
        warnings.filterwarnings("ignore", r"failed diagnostics:\n(?!stopped chains)", TrustWarning)
        try:
            result = call.function(**arguments | bad)
        except Exception as error:
            return judge(error, call.words, [name for name, _ in trial.changes], [value for value in bad.values()])
    if said:
        return Verdict("accepted with a warning", str(said[-1].message))
    if not allowed:
        return Verdict("nonsense taken", "was taken without a word")
    if not _is_finite(result):
        if any(_is_extreme(value) for value in bad.values()):
            return Verdict("overflow")
        return Verdict("not finite", "gave NaN or infinity without a warning")
    return Verdict("accepted")


def _accepts(call: Call, name: str, value: Any) -> bool:
    try:
        return bool(call.arguments[name].accepts(value))
    except Exception:  # a comparison that the value does not have: then it is none of those allowed
        return False


def judge(error: Exception, words: Sequence[str], arguments: Sequence[str], given: Sequence[Any] = ()) -> Verdict:
    """Classify an error as clear or obscure: a clear one names the call or the argument."""
    text, message, place = f"{type(error).__name__}: {error}".strip(), str(error), _place(error)
    if _is_callers(error):
        return Verdict("the caller's own error", text)
    if not isinstance(error, SPEAKING):
        return Verdict("obscure error", f"{text} (at {place})")
    shaped = any(f"({argument}=" in message or f"({argument}[" in message for argument in arguments)
    paths = [value for value in given if isinstance(value, (str, Path)) and str(value)]
    of_a_path = any(repr(str(value)) in message or str(value) in message for value in paths) or "/langevin-fuzz-" in message
    of_a_path = of_a_path or (isinstance(error, OSError) and error.filename is not None)
    if shaped or of_a_path:
        return Verdict("refused", text)
    if "torch/optim" in place and re.search(r"optimizer|param", message):  # torch's own words on torch's own contract
        return Verdict("refused", text)
    argued = any(re.search(rf"\b{re.escape(argument)}\b", message) for argument in arguments)
    quoted = any(re.search(rf"[`'\"]{re.escape(argument)}[`'\"]|\b{re.escape(argument)}=", message) for argument in arguments)
    named = any(re.search(rf"\b{re.escape(word)}\b", message) for word in words)
    if (named and argued) or ((named or quoted) and "site-packages" not in place):
        return Verdict("refused", text)
    if re.match(r"[\w.]+\(\w+=\.\.\.\) needs ", message):  # a check of ours, but not in the caller's words
        return Verdict("refused under another name", text)
    return Verdict("obscure error", f"{text} (at {place})")


def _is_callers(error: Exception) -> bool:
    """Whether an error was raised inside a function or a module of the caller."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = max((number for number, file in enumerate(files) if "/langevin/" in file), default=0)
    return files[-1].endswith("reliability/values.py") or any("torch/nn/modules/" in file for file in files[ours:])


def _is_extreme(value: Any) -> bool:
    return isinstance(value, (int, float)) and (abs(value) >= 1e18 or 0 < abs(value) < 1e-300)


def _place(error: Exception) -> str:
    """Return file and line of the last frame, without the folders before the package."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "?"
    frame = frames[-1]
    name = re.sub(
        r".*/(site-packages|src|lib/python[\d.]+|wt/\w+)/", lambda match: match[1].replace("src", "") + "/", frame.filename
    )
    return f"{name.lstrip('/')}:{frame.lineno}"


def _is_finite(value: Any, depth: int = 0) -> bool:
    """Look for NaN and infinity in what a call returned."""
    if isinstance(value, Tensor):
        return value.is_meta or not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())
    if isinstance(value, float):
        return math.isfinite(value)
    if depth > 3:
        return True
    if isinstance(value, dict):
        return all(_is_finite(entry, depth + 1) for entry in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_finite(entry, depth + 1) for entry in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(_is_finite(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value))
    return True


def _defect(trial: Trial, verdict: Verdict) -> tuple[str, ...]:
    """Return a key that identifies equal failures: the line of an error, or the argument."""
    place = re.search(r"\(at [^()]*\)$", verdict.text)
    if place and "site-packages" not in place[0]:
        return verdict.text.partition(":")[0], place[0]
    return trial.call, *(argument for argument, _ in trial.changes), verdict.text.partition(":")[0]


def check_calls() -> list[str]:
    """Return the valid calls of the table that fail."""
    wrong = []

    def valid(name: str) -> str | None:
        call = CALLS[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = call.function(**{key: argument.make() for key, argument in call.arguments.items()})
            except Exception as error:
                return f"{name}: {type(error).__name__}: {error}"
        return None if _is_finite(result) else f"{name}: the valid call gives NaN"

    cases = [lambda name=name: valid(name) for name in CALLS]
    for _, outcome in isolate.run(cases, timeout=60):
        if outcome.fate or outcome.value:
            wrong.append(outcome.fate or outcome.value)
    return wrong


def run(count: int | None, seed: int, only: str = "") -> Section:
    """Make `count` random calls (None: all arguments of calls that match `only`, with all values)."""
    section = Section("Nonsensical arguments", seed)
    with tempfile.TemporaryDirectory(prefix="langevin-fuzz-") as folder:
        here = os.getcwd()
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.chdir(folder)
        try:
            for problem in check_calls():
                section.fail("a valid call of the table fails", problem)
            renamed: dict[Any, str] = {}
            made = sweep(only) if count is None else trials(count, seed)
            outcomes = isolate.run([lambda trial=trial: attempt(trial) for trial in made], timeout=TIMEOUT)
            for index, outcome in outcomes:
                trial = made[index]
                verdict = outcome.value
                if outcome.fate:
                    verdict = Verdict("crash" if "died" in outcome.fate else "hang", outcome.fate)
                section.count(verdict.kind)
                if verdict.is_failure:
                    section.fail(verdict.kind, f"{trial}: {verdict.text.splitlines()[0][:300]}", key=_defect(trial, verdict))
                elif verdict.kind == "refused under another name":
                    renamed.setdefault(_defect(trial, verdict), f"{trial}: {verdict.text[:200]}")
        finally:
            os.chdir(here)
            tempfile.tempdir = None
            os.environ.pop("TMPDIR", None)
    section.notes += [f"under another name: {text}" for text in renamed.values()]
    section.notes.append(
        f"{len(CALLS)} calls with {sum(len(call.arguments) for call in CALLS.values())} arguments, {len(NASTY)} values"
    )
    return section


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.reliability.fuzz", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", help="so many random calls; without it every argument with every value")
    parser.add_argument("--only", default="", help="a pattern: the calls whose names start so, when every value is tried")
    parser.add_argument("--out", type=Path, help="a file for what was found; it is printed otherwise")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = run(given.count, given.seed, given.only)
    text = "\n".join([found.text(), *found.notes, str(dict(found.counts))])
    if given.out:
        given.out.write_text(text + "\n")
    print(f"{dict(found.counts)}, {len(found.failures)} distinct failures" if given.out else text)
