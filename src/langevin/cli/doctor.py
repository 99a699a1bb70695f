"""`langevin doctor`: check versions, compilers, caches and threads, and run a few short trials."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import platform
import shlex
import shutil
import stat
import statistics
import tempfile
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch

import langevin as lv
from langevin.compiler import build
from langevin.compiler.build import CompilerError, compiler, load
from langevin.compiler.cache import listed, place
from langevin.kernels.samplers import msgld, sghmc, sgld
from langevin.optim import SharedNoiseWarning

__all__ = ["BROKEN", "OK", "SLOW", "Finding", "examine"]

OK, SLOW, BROKEN = "ok", "slow", "BROKEN"
"""States of a finding: works; works, but slowly; does not work."""

EXTRAS = {
    "arviz": ("arviz", "arviz", "samples.to_arviz()"),
    "matplotlib": ("matplotlib", "plots", "plots"),
    "pandas": ("pandas", "pandas", "summary().to_pandas()"),
    "sklearn": ("scikit-learn", "sklearn", "langevin.tabular"),
    "torchmetrics": ("torchmetrics", "metrics", "lv.metrics"),
    "ray": ("ray", "ray", 'engine="ray"'),
}
"""Optional modules: distribution, extra, and the part of the library that needs it."""

CHAINS, STEPS, STEP_SIZE = 4_000, 300, 0.1
LIMIT = 5.0  # standard errors; a correct sampler exceeds it once in a million runs
SIZE = 100_000  # elements of the optimizer's parameter
REPORT = "please report it with this output"


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    value: str
    state: str = OK
    advice: str = ""

    def __str__(self) -> str:
        """Return one line, and a second one with the advice."""
        mark = "" if self.state == OK else f"  [{self.state}]"
        advice = f"\n  {'':<16}  -> {self.advice}" if self.advice else ""
        return f"  {self.name:<16}  {self.value}{mark}{advice}"


def examine(*, fill: bool = False, echo: Callable[[str], None] = print) -> list[Finding]:
    """Check the installation and return the broken findings.

    Args:
        fill: compile ahead what the first run would compile.
        echo: receives each line of output.
    """
    found: list[Finding] = []
    sections = (versions, engines, threads, caches, trials)
    for title, check in zip(
        ("versions", "engines", "threads", "caches", "trials"), sections, strict=True
    ):
        if title == "trials" and fill:
            _fill(echo)
        echo(title)
        for finding in check():
            found.append(finding)
            echo(str(finding))
    broken, slow = ([each for each in found if each.state == state] for state in (BROKEN, SLOW))
    verdict = "no problems found"
    if broken or slow:
        names = ", ".join(each.name for each in broken or slow)
        verdict = f"{'broken' if broken else 'slower than necessary'}: {names}"
    echo(verdict)
    return broken


def _fill(echo: Callable[[str], None]) -> None:
    """Compile ahead and report the time of each program."""
    from langevin.optim.caches import fill_caches

    def tell(what: str, seconds: float) -> None:
        echo(f"  {what:<36}  {seconds:.1f} s")

    echo("filling the caches")
    times = [seconds for _, seconds in fill_caches(tell)]
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only the compiled program matters, not its draws
        target, start = lv.targets.gaussian([[1.0]]), torch.zeros(4, 1)
        lv.sample(
            target, sampler=sgld(0.1), init=start, num_steps=10_000, compile=True, progress=False
        )
    times.append(time.perf_counter() - begin)
    tell("a compiled sampling loop", times[-1])
    if len(times) == 1:
        echo("  no C compiler: nothing else to compile")
    else:
        echo(f"  {len(times)} programs, {sum(times):.0f} s")


def c_compiler() -> Finding:
    """Compile, load and run a small program.

    Example:
        >>> c_compiler().name
        'C compiler'
    """
    name = "C compiler"
    command = compiler()
    if command is None:
        state = BROKEN if os.environ.get("CC", "").strip() else SLOW
        problem, _, remedy = build.missing().partition(": ")
        return Finding(name, problem, state, f"{remedy}; without one, runs are not compiled")
    advice = "set CC to another C compiler; without one, runs are not compiled"
    begin = time.perf_counter()
    try:
        answer = load("int next(int x) { return x + 1; }", keep=False).next(41)
        milliseconds = 1e3 * (time.perf_counter() - begin)
        version = build.version(command)
    except CompilerError as error:
        return Finding(name, " ".join(str(error).split()), BROKEN, advice)
    text = f"{shlex.join(command)}, {version}"
    if answer != 42:
        return Finding(name, f"{text}: a program returned {answer}, not 42", BROKEN, advice)
    return Finding(name, f"{text}: compiled and ran a program in {milliseconds:.0f} ms")


def caches() -> Iterator[Finding]:
    """Check the caches of this library and of torch.compile."""
    yield compiled_programs()
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if given is None and importlib.util.find_spec("torch._inductor") is not None:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        given = default_cache_dir()
    folder = Path(given) if given else Path(tempfile.gettempdir()) / "torchinductor"
    yield check_folder(
        "torch.compile",
        folder,
        "set TORCHINDUCTOR_CACHE_DIR to a folder of your own; otherwise programs are not cached",
    )


def check_folder(name: str, folder: Path, advice: str) -> Finding:
    """Check that a cache folder is private and writable.

    Code is loaded from it, so anyone who can write to it can run code as this user.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return Finding(name, f"{folder} is not a folder", BROKEN, f"remove it, or {advice}")
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return Finding(name, f"{folder}, not created yet")
        return Finding(name, f"cannot create {folder}: {above} is not writable", SLOW, advice)
    about = folder.stat()
    text = (
        f"{folder}, {_owner(about.st_uid)}, mode {stat.S_IMODE(about.st_mode):04o}, {_size(folder)}"
    )
    if hasattr(os, "getuid") and about.st_uid != os.getuid():
        return Finding(name, f"{text}: owned by another user", BROKEN, f"remove it, or {advice}")
    if hasattr(os, "getuid") and about.st_mode & 0o022:
        return Finding(
            name,
            f"{text}: writable by other users",
            BROKEN,
            f"check its contents and run chmod go-w {folder}, or remove it",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(name, f"{text}: not writable", SLOW, advice)
    return Finding(name, text, OK)


def compiled_programs() -> Finding:
    """Check the folder of compiled C programs: owner, permissions, size, and whether code may run.

    Example:
        >>> compiled_programs().name
        'programs'
    """
    advice = "set XDG_CACHE_HOME to a folder of your own; otherwise each process compiles again"
    try:
        folder = place() / "programs"
    except RuntimeError:
        return Finding("programs", "no home folder", SLOW, advice)
    found = check_folder("programs", folder, advice)
    if not folder.is_dir() or found.state != OK:
        return found
    if hasattr(os, "ST_NOEXEC") and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return Finding("programs", f"{folder} is mounted noexec", SLOW, advice)
    number = len(listed(folder))
    return found._replace(value=f"{found.value}, {number} program{'s' * (number != 1)}")


def _owner(number: int) -> str:
    try:
        import pwd  # not on Windows

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"


def _size(folder: Path) -> str:
    """Return the total size of the files in a folder."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except OSError:  # removed in the meantime
                continue
    return f"{total / 1e6:.1f} MB"


def versions() -> Iterator[Finding]:
    """Report versions; those of langevin and langevin-paper must agree."""
    yield Finding("langevin", lv.__version__)
    # Not importlib.metadata: the metadata of an editable install may be out of date.
    if importlib.util.find_spec("langevin_paper") is not None:
        paper = importlib.import_module("langevin_paper").__version__
        finding = Finding("langevin-paper", paper)
        if paper != lv.__version__:
            advice = f"pip install langevin-paper=={lv.__version__}"
            finding = finding._replace(state=BROKEN, advice=advice)
        yield finding
    machine = f"{platform.system()} {platform.machine()}"
    yield Finding("python", f"{platform.python_version()}, {machine}")
    yield Finding("torch", torch.__version__)
    for name in ("numpy", "scipy"):
        yield Finding(name, metadata.version(name))
    for module, (name, extra, what) in EXTRAS.items():
        if importlib.util.find_spec(module) is not None:
            yield Finding(name, metadata.version(name))
        else:
            install = f"pip install 'langevin[{extra}]'"
            yield Finding(name, f"not installed (optional; {what} needs it): {install}")


def engines() -> Iterator[Finding]:
    """Report compilers and accelerators."""
    yield c_compiler()
    yield cpp_compiler()
    cuda = "not available; using the CPU"
    if torch.cuda.is_available():
        cuda = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    yield Finding("CUDA", cuda)
    yield Finding("MPS", "available" if torch.backends.mps.is_available() else "not available")


def cpp_compiler() -> Finding:
    """Find the C++ compiler that torch.compile calls."""
    chosen = os.environ.get("CXX")
    default = ["cl"] if platform.system() == "Windows" else ["g++", "clang++", "c++"]
    names = [chosen] if chosen else default
    found = next((path for path in map(shutil.which, names) if path), None)
    if found:
        return Finding("C++ compiler", f"{found} (torch.compile, for optimizers on a GPU)")
    missing = f"CXX={chosen} not found" if chosen else f"none of {', '.join(names)} found"
    return Finding("C++ compiler", f"{missing} (only optimizers on a GPU need it)")


def threads() -> Iterator[Finding]:
    """Compare the number of torch threads with the number of cores."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    number, setting = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    text = f"{number} torch threads, {cores} cores"
    finding = Finding("threads", text + (f", OMP_NUM_THREADS={setting}" if setting else ""))
    if number > cores:
        advice = f"more threads than cores; call torch.set_num_threads({cores})"
        finding = finding._replace(state=SLOW, advice=advice)
    yield finding


def trials() -> Iterator[Finding]:
    """Run the trials; one that raises is broken."""
    trials = (check_variances, compare_engines, time_chains, time_optimizer)
    for name, trial in zip(
        ("variances", "engines agree", "chains", "optimizer"), trials, strict=True
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lv.TrustWarning)
                # Both engines use the same noise on purpose.
                warnings.simplefilter("ignore", SharedNoiseWarning)
                yield trial()
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            yield Finding(name, text, BROKEN, REPORT)


def check_variances() -> Finding:
    """Compare the variances of invariant MSGLD on a Gaussian with the exact ones.

    The chains are independent, so the standard error of a variance is known.
    """
    kernel = msgld(STEP_SIZE, bias_factor=2.0, invariant=True)
    target, start = lv.targets.gaussian([[1.0, 0.0], [0.0, 4.0]]), torch.zeros(CHAINS, 2)
    samples = lv.sample(
        target,
        sampler=kernel,
        init=start,
        num_steps=STEPS,
        warmup=STEPS - 1,
        compile=False,
        progress=False,
    )
    last = samples.draws[:, -1].double()
    ratios = (last.square().mean(0) / torch.tensor([1.0, 4.0])).tolist()
    z = max(abs(ratio - 1) / math.sqrt(2 / CHAINS) for ratio in ratios)
    text = f"measured / exact: {ratios[0]:.3f} and {ratios[1]:.3f}, off by at most {z:.1f} SE"
    if z < LIMIT:
        return Finding("variances", text)
    advice = f"do not trust the draws of this installation; {REPORT}"
    return Finding("variances", text, BROKEN, advice)


def _optimizer(fused: bool) -> tuple[torch.nn.Parameter, lv.optim.MSGLD]:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, SIZE))
    parameter.grad = torch.linspace(1, -1, SIZE)
    prior = lv.priors.gaussian(std=1.0)
    optimizer = lv.optim.MSGLD([parameter], lr=0.1, num_data=100, prior=prior, seed=1, fused=fused)
    return parameter, optimizer


def compare_engines() -> Finding:
    """Take three steps with the fused engine and with torch; the bits must be equal."""
    name = "engines agree"
    if compiler() is None:
        return Finding(name, "only the torch engine is available", SLOW, "see the C compiler above")
    ends = []
    for fused in (True, False):
        parameter, optimizer = _optimizer(fused)
        for _ in range(3):
            optimizer.step()
        ends.append(parameter.detach())
    wrong = int((ends[0] != ends[1]).sum())
    if wrong:
        advice = f"pass fused=False to optimizers; {REPORT}"
        return Finding(name, f"{wrong} of {SIZE} elements differ", BROKEN, advice)
    return Finding(name, f"fused and torch give equal bits: {SIZE:,} elements, 3 steps")


def time_chains() -> Finding:
    """Time an eager step of 100 chains in two dimensions."""
    target, start = lv.targets.gaussian([[1.0, 0.0], [0.0, 4.0]]), torch.zeros(100, 2)

    def run() -> None:
        lv.sample(
            target, sampler=sghmc(0.1), init=start, num_steps=300, compile=False, progress=False
        )

    step = _microseconds(run, 300)
    return Finding("chains", f"{step:.0f} µs per eager step of SGHMC, 100 chains in 2 dimensions")


def time_optimizer() -> Finding:
    """Time an optimizer step with torch and, if available, with the fused engine."""
    times = []
    for name, fused in (("torch", False), ("fused", True)):
        if fused and compiler() is None:
            continue
        _, optimizer = _optimizer(fused)

        def steps(optimizer: lv.optim.MSGLD = optimizer) -> None:
            for _ in range(20):
                optimizer.step()

        times.append(f"{_microseconds(steps, 20):.0f} µs {name}")
    return Finding("optimizer", f"{', '.join(times)}, per step of MSGLD, {SIZE:,} elements")


def _microseconds(work: Callable[[], None], steps: int) -> float:
    """Return the median time per step over five rounds, after one that may compile."""
    work()
    return 1e6 * statistics.median(timeit.repeat(work, number=1, repeat=5)) / steps
