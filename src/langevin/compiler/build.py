"""Find a C compiler, run it, load the shared library, and keep it in the private cache.

Every compiler rounds as the source does (`-ffp-contract=off`), so results have the same bits with
every compiler. Write `fma(a, b, c)` in the source to fuse explicitly.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from langevin.compiler import cache

Command: TypeAlias = tuple[str, ...]

FLAGS = (
    "-fno-fast-math",
    *("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
    "-fwrapv",  # integers wrap around, as in torch
    "-fno-sanitize=all",  # zig adds checks of undefined behaviour below -O2
    *("-shared", "-fPIC", "-w"),
)
INCLUDE = Path(__file__).parent / "include"
SUFFIX = ".dll" if os.name == "nt" else ".so"

_X86 = {"x86_64", "amd64", "i386", "i686"}
_NATIVE = "-march=native" if platform.machine().lower() in _X86 else "-mcpu=native"
_TIMEOUT_SECONDS = 600.0
_REMEDY = "install gcc or clang, set CC to a C compiler, or run `pip install 'langevin[cc]'`"

# The compiler gets these variables and no others. Those in the second group decide which headers
# and libraries it uses, so they are part of the fingerprint.
_SYSTEM = ("PATH", "HOME", "SYSTEMROOT", "SYSTEMDRIVE", "USERPROFILE", "LOCALAPPDATA", "APPDATA")
_TOOLCHAIN = (
    *("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("LD_LIBRARY_PATH", "SDKROOT", "DEVELOPER_DIR", "MACOSX_DEPLOYMENT_TARGET"),
)
_PREFIXES = ("CCACHE_", "SCCACHE_", "NIX_")


_loaded: dict[str, ctypes.CDLL] = {}
_locks: dict[str, threading.RLock] = {}
_warned: list[str] = []


class CompilerError(RuntimeError):
    """No C compiler was found, or it failed."""


def load(source: str, flags: tuple[str, ...] = (), *, keep: bool = True) -> ctypes.CDLL:
    """Compile C source, unless the cache has it, and load the library.

    Loading the same program again returns the same library. Threads that load one program at the
    same time wait for a single build.

    Args:
        source: a whole C program; `#include "name.h"` finds the headers in
            `langevin/compiler/include`.
        flags: more flags of the compiler, such as "-O1".
        keep: False neither reads nor writes the cache.

    Raises:
        CompilerError: there is no compiler, it rejects the source, or no folder is writable.

    Example:
        >>> load("int twice(int x) { return 2 * x; }").twice(21)
        42
    """
    command = compiler()
    if command is None:
        raise CompilerError(missing())
    if not keep:
        return _build(command, source, flags, None, "")
    key = _key(command, source, flags)
    with _locks.setdefault(key, threading.RLock()):
        if key not in _loaded:
            folder = cache.folder()
            kept = None if folder is None else _load_kept(folder, key)
            _loaded[key] = kept or _build(command, source, flags, folder, key)
        return _loaded[key]


def _key(command: Command, source: str, flags: tuple[str, ...]) -> str:
    """Return a digest of everything that the machine code depends on."""
    headers = [(path.name, path.read_bytes()) for path in sorted(INCLUDE.glob("*.h"))]
    parts = FLAGS, flags, command, fingerprint(command), machine(), headers
    return hashlib.sha256(repr(parts).encode() + source.encode()).hexdigest()[:32]


def _load_kept(folder: Path, key: str) -> ctypes.CDLL | None:
    path = cache.find(folder, key)
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:  # another process removed it, or programs may not run from there
        return None


def _build(
    command: Command, source: str, flags: tuple[str, ...], folder: Path | None, key: str
) -> ctypes.CDLL:
    """Compile and load in the cache folder, or else in the folder for temporary files."""
    problems = []
    for root in (None,) if folder is None else (folder, None):
        try:
            with cache.work_folder(root or Path(tempfile.gettempdir())) as work:
                made = compile_source(command, source, flags, work)
                library = ctypes.CDLL(str(made))
                if root is not None:
                    cache.keep(root, key, made)
                return library
        except OSError as error:
            problems.append(str(error))
    raise CompilerError(
        f"a program of {name_of(command)} cannot be stored or loaded: "
        f"{'; '.join(problems)}. "
        "Set XDG_CACHE_HOME or TMPDIR to a folder with free space that is not mounted noexec"
    )


@functools.cache
def load_or_none(source: str) -> ctypes.CDLL | None:
    """Return `load(source)`, or None without a working C compiler; the first failure warns."""
    try:
        return load(source)
    except (CompilerError, OSError) as error:
        _warn(str(error))
        return None


def has_compiler() -> bool:
    """Return whether there is a C compiler; warn once if not."""
    if compiler() is None:
        _warn(missing())
        return False
    return True


def _warn(reason: str) -> None:
    if not _warned:
        _warned.append(reason)
        text = f"noise and optimizers run on plain torch, which is slower: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


# The compiler.


def compiler() -> Command | None:
    """Return the command of a C compiler, or None if there is none.

    Takes `CC`, which may contain arguments; else cc, gcc or clang on the PATH; else the compiler of
    the package `ziglang`. A `CC` that does not exist gives None.

    Example:
        >>> command = compiler()
        >>> command is None or os.path.isabs(command[0])
        True
    """
    given = os.environ.get("CC", "").strip()
    if given:
        return _parse(given)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (os.path.abspath(found),)
    zig = _zig()
    return None if zig is None else (zig, "cc")


def _parse(command: str) -> Command | None:
    """Split a command into words and resolve its first one; a path may contain spaces."""
    if found := shutil.which(command):
        return (os.path.abspath(found),)
    try:
        first, *rest = shlex.split(command, posix=os.name != "nt")
    except ValueError:  # unbalanced quotes
        return None
    found = shutil.which(first.strip('"'))
    return None if found is None else (os.path.abspath(found), *rest)


def _zig() -> str | None:
    """Return the program in the package `ziglang`, without importing the package."""
    try:
        found = importlib.util.find_spec("ziglang")
    except (ImportError, ValueError):
        return None
    folders = found.submodule_search_locations if found is not None else None
    return shutil.which("zig", path=os.pathsep.join(map(os.path.abspath, folders or [os.devnull])))


def missing() -> str:
    """Return the message for `compiler() is None`.

    Example:
        >>> "install gcc or clang" in missing()
        True
    """
    given = os.environ.get("CC", "").strip()
    if given:
        return f"CC needs an executable C compiler, got {given!r}: correct it or unset it"
    return f"no C compiler: {_REMEDY}"


def version(command: Command) -> str:
    """Return the first line of what a compiler prints for `--version`.

    Raises:
        CompilerError: the compiler cannot be run.

    Example:
        >>> version(("/bin/echo", "some compiler"))
        'some compiler --version'
    """
    status, text = _run(command, ("--version",), Path(tempfile.gettempdir()))
    if status:
        raise CompilerError(f"{name_of(command)} failed: exit status {status}: {text[:2000]}")
    return next(iter(text.splitlines()), "")


def fingerprint(command: Command) -> str:
    """Return an identifier of a compiler: its files with size and time, and its environment.

    Unlike `--version`, this needs no process.

    Example:
        >>> fingerprint(("/no/such/compiler",)) == fingerprint(("/no/such/compiler", "-m64"))
        True
    """
    files = []
    for word in command:
        with contextlib.suppress(OSError):
            if found := shutil.which(word):
                path = os.path.realpath(found)
                about = os.stat(path)
                files.append((path, about.st_size, about.st_mtime_ns))
    return repr((files, [os.environ.get(name) for name in _TOOLCHAIN]))


@functools.cache
def machine() -> str:
    """Return an identifier of the processor and platform that code is compiled for.

    Example:
        >>> sys.platform in machine()
        True
    """
    libc = ""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return repr((sys.platform, platform.machine(), sys.maxsize, libc, _processor()))


def _processor() -> object:
    if sys.platform == "darwin":
        names = ("brand_string", "features", "leaf7_features")
        return [_sysctl(f"machdep.cpu.{name}") for name in names]
    # Frequencies and numbers of cores differ between two reads or between equal machines.
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ", "cpu\t")
    lines = []
    with (
        contextlib.suppress(OSError),
        open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            if not line.strip():  # the first core is enough
                break
            if line.startswith(wanted):
                lines.append(line)
    return lines or platform.processor()


def _sysctl(name: str) -> bytes:
    """Return a setting of the macOS kernel, without a process."""
    text, size = ctypes.create_string_buffer(4096), ctypes.c_size_t(4096)
    nothing = ctypes.c_size_t(0)
    ctypes.CDLL(None).sysctlbyname(name.encode(), text, ctypes.byref(size), None, nothing)
    return text.value


def compile_source(command: Command, source: str, flags: tuple[str, ...], work: Path) -> Path:
    """Compile C source in an empty folder, and return the shared library.

    Compiles for this processor if the compiler supports it, else for its architecture.

    Raises:
        CompilerError: the compiler rejects the source, cannot be run, or does not finish.
        OSError: the folder cannot hold the files.
    """
    (work / "program.c").write_bytes(source.encode())
    made = work / f"program{SUFFIX}"
    rest = (*FLAGS, *flags, f"-I{INCLUDE}", "-o", made.name, "program.c", "-lm")
    status, text = 0, ""
    for native in ((_NATIVE,), ()):
        status, text = _run(command, (*native, *rest), work)
        if status == 0 and made.is_file():
            return made
    if _is_full(work, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work))
    reason = f"exit status {status}" if status else "it made no library"
    raise CompilerError(f"{name_of(command)} failed: {reason}: {text[:2000]}")


def name_of(command: Command) -> str:
    """Return a compiler's command for messages, with `CC=` if it comes from there."""
    given = os.environ.get("CC", "").strip()
    return f"the C compiler CC={given!r}" if given else f"the C compiler {shlex.join(command)}"


def _run(command: Command, arguments: Command, work: Path) -> tuple[int, str]:
    """Run a compiler in a folder, in a new session; return its status and output."""
    process = None
    try:
        with _interrupts_delayed():  # one inside Popen would lose the process
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=work,
                env=_environment(work),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
    except OSError as error:
        raise CompilerError(f"{name_of(command)} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        text = f"{name_of(command)} did not finish in {_TIMEOUT_SECONDS:g} s and was stopped"
        raise CompilerError(text) from None
    finally:
        if process is not None and process.returncode is None:  # timeout or Ctrl-C
            _kill(process)
    return process.returncode, output.decode(errors="replace").strip()


@contextlib.contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C until this context ends."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a compiler and its subprocesses."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold it for longer
        process.wait(timeout=5)
    if process.stdout is not None:
        process.stdout.close()


def _environment(work: Path) -> dict[str, str]:
    """Return the environment of a compiler, with temporary files in the work folder."""
    named = {*_SYSTEM, *_TOOLCHAIN}
    kept = {k: v for k, v in os.environ.items() if k in named or k.startswith(_PREFIXES)}
    temporary = dict.fromkeys(("TMPDIR", "TMP", "TEMP", "ZIG_LOCAL_CACHE_DIR"), str(work))
    zig = (cache.private_folder() or work) / "zig"  # start-up code takes seconds to compile
    return {**kept, **temporary, "ZIG_GLOBAL_CACHE_DIR": str(zig), "LC_ALL": "C"}


def _is_full(work: Path, text: str) -> bool:
    words = ("no space left", "nospaceleft", "quota")
    return any(word in text.casefold() for word in words) or shutil.disk_usage(work).free < 1 << 20


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.clear)  # the child lacks the threads that hold them
