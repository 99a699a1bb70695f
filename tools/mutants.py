"""Break the library in one line, many times, and see that a test notices: `make mutants`.

`tools/mutants.toml` is the list. An entry is a sentence that the tests must defend, and a way to make it false:

    [[mutant]]
    what = "the bias is added, not subtracted"
    file = "src/langevin/kernels/langevin.py"
    old = "gradient + inputs.annealing * bias"         # stands exactly once in the file
    new = "gradient - inputs.annealing * bias"
    tests = ["tests/law/test_golden.py"]              # files or node ids, of which one must fail; seconds, not minutes
    keyword = "asgld"                                 # optional, pytest's -k

Every worker has a copy of the project's files (git's, and new ones that git does not ignore). The tests of the list must pass
there before anything is broken. Then each mutant is applied, its tests run, and the file is restored. Red is good. A mutant that
stays green needs a better test; one that takes too long, or breaks an import, proves nothing; one whose old text is gone needs a
new line.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WORDS = {0: "GREEN", 1: "red", None: "TIMEOUT"}  # by pytest's exit code; any other is no verdict of a test


@dataclass(frozen=True)
class Mutant:
    """One line of the library, broken."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    keyword: str = ""

    def apply(self, root: Path) -> str:
        """Return the broken text of the file; a ValueError says why there is none."""
        path = root / self.file
        if not path.exists():
            raise ValueError("no such file")
        text = path.read_text()
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"the old text stands there {text.count(self.old)} times")
        broken = text.replace(self.old, self.new)
        if path.suffix == ".py":
            compile(broken, str(path), "exec")  # a SyntaxError is a ValueError in all but name
        return broken


class Result(NamedTuple):
    """What the tests said."""

    word: str
    seconds: float
    output: str


def read_list(path: Path) -> list[Mutant]:
    """Return the mutants of a list."""
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def copy_project(root: Path, folder: Path) -> None:
    """Copy what git knows or would know, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in sorted(set(names) - {""}):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...], keyword: str, timeout: float, caches: Path) -> Result:
    """Run tests in a copy until the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--durations=0", "--durations-min=999", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTEST_"))}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder / "paper" / "src")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a .pyc is told from its source by seconds and size: too coarse for us
        "NUMBA_CACHE_DIR": str(caches),
    }
    start = time.monotonic()
    process = subprocess.Popen(
        [*command, *(["-k", keyword] if keyword else []), *tests],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    code: int | None
    try:
        output, _ = process.communicate(timeout=timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tests' own children too
        output, code = process.communicate()[0], None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    word = WORDS.get(code, "BROKEN")
    if word == "red" and "ERROR collecting" in output:  # no test has run; an error in a fixture is seen
        word = "BROKEN"
    return Result(word, time.monotonic() - start, output)


def try_mutant(mutant: Mutant, folder: Path, timeout: float) -> Result:
    """Break a copy, run the tests, restore it."""
    path = folder / mutant.file
    try:
        before, broken = path.read_text() if path.exists() else "", mutant.apply(folder)
    except (ValueError, SyntaxError) as error:
        return Result("MISSING", 0.0, f"{mutant.file}: {error}")
    caches = folder / "caches" / "whole"
    try:
        path.write_text(broken)
        return run_tests(folder, mutant.tests, mutant.keyword, timeout, caches)
    finally:
        path.write_text(before)


def check_whole(mutants: list[Mutant], folder: Path, timeout: float) -> Result:
    """Run the tests of all mutants in a copy that nothing has broken, together where they have the same keyword."""
    seconds = 0.0
    for keyword in sorted({mutant.keyword for mutant in mutants}):
        tests = tuple(sorted({test for mutant in mutants if mutant.keyword == keyword for test in mutant.tests}))
        result = run_tests(folder, tests, keyword, timeout * len(tests), folder / "caches" / "whole")
        seconds += result.seconds
        if result.word != "GREEN":
            return result._replace(seconds=seconds)
    return Result("GREEN", seconds, "")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Try the mutants; return 0 when the tests saw every one of them."""
    parser = argparse.ArgumentParser(description="Break the library in one line, many times, and see that a test notices.")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="numbers of mutants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one mutant")
    parser.add_argument("--list", type=Path, default=root / "tools" / "mutants.toml")
    options = parser.parse_args(arguments)
    numbered = [(n, mutant) for n, mutant in enumerate(read_list(options.list), 1) if not options.only or n in options.only]
    width = max((len(mutant.what) for _, mutant in numbered), default=0)
    bad = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        folders: queue.Queue[Path] = queue.Queue()
        for worker in range(max(1, min(options.jobs, len(numbered)))):
            copy_project(root, Path(place, str(worker)))
            folders.put(Path(place, str(worker)))
        whole = check_whole([mutant for _, mutant in numbered], Path(place, "0"), options.timeout)
        print(f"   without a mutant{'':{max(0, width - 15)}}  {whole.word:8} {whole.seconds:6.0f} s", flush=True)
        if whole.word != "GREEN":
            print(whole.output[-4000:])
            return 1
        printing = threading.Lock()

        def work(number: int, mutant: Mutant) -> None:
            folder = folders.get()
            try:
                result = try_mutant(mutant, folder, options.timeout)
            finally:
                folders.put(folder)
            with printing:
                print(f"{number:3} {mutant.what:{width}}  {result.word:8} {result.seconds:6.0f} s", flush=True)
                if result.word != "red":
                    bad.append(number)
                    print("      " + (result.output.strip().splitlines() or [""])[-1])

        with ThreadPoolExecutor(folders.qsize()) as pool:
            try:
                for done in [pool.submit(work, number, mutant) for number, mutant in numbered]:
                    done.result()
            except BaseException:  # Ctrl-C: what runs now ends, the rest does not start
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    print(f"{len(numbered) - len(bad)} of {len(numbered)} were seen" + (f"; not: {sorted(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
