"""C source becomes a loaded library: which compiler, what is kept, and what can go wrong."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from langevin.compiler import build
from langevin.compiler import cache as code_cache
from langevin.compiler.build import CompilerError, load

pytestmark = pytest.mark.skipif(os.name != "posix", reason="fake compilers are shell scripts")
SEVEN = "int seven(void) { return 7; }"


@pytest.fixture
def fresh(monkeypatch):
    """Forget what this process has loaded, and where its cache is."""

    def forget():
        code_cache.private_folder.cache_clear()
        monkeypatch.setattr(build, "_loaded", {})

    forget()
    yield forget
    code_cache.private_folder.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch, fresh):
    """Give an empty cache, and an empty folder for temporary files; return the programs' folder."""
    for name, variable in {"cache": "XDG_CACHE_HOME", "tmp": "TMPDIR"}.items():
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "cache" / "langevin" / "programs"


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Make a shell script the compiler; `$real` is the real one, a line per call goes to `calls`."""
    real = build.compiler()

    def make(script='exec $real "$@"', *, name="fakecc", choose=True):
        path = tmp_path / name
        begin = f"#!/bin/sh\nreal={shlex.quote(shlex.join(real))}\necho $$ >> '{tmp_path}/calls'\n"
        path.write_text(begin + textwrap.dedent(script))
        path.chmod(0o700)
        if choose:
            monkeypatch.setenv("CC", shlex.quote(str(path)))
        return path

    return make


@pytest.fixture
def calls(tmp_path):
    """Return the process numbers of the fake compilers that were run."""
    return lambda: (tmp_path / "calls").read_text().split() if (tmp_path / "calls").exists() else []


def run(script, *arguments, **options):
    """Run a script in another process."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for(condition):
    """Wait until something is true, for as long as a busy machine may take."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(number):
    """Is there a process of this number that has not ended?"""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kept(folder):
    return sorted(path.name for path in folder.iterdir())


# The compiler.


def test_cc_may_contain_arguments(cache, fake, monkeypatch):
    path = fake()
    monkeypatch.setenv("CC", f"{path} -DANSWER=42 '-DWORDS=\"a b\"'")
    library = load("int answer(void) { return ANSWER; } char *words(void) { return WORDS; }")
    library.words.restype = ctypes.c_char_p
    assert (library.answer(), library.words()) == (42, b"a b")


def test_cc_may_be_a_path_with_spaces_and_quotes(cache, fake, monkeypatch):
    path = fake(name="my compiler's cc", choose=False)
    monkeypatch.setenv("CC", str(path))
    assert build.compiler() == (str(path),)
    monkeypatch.setenv("CC", f'"{path}" -DX=1')
    assert build.compiler() == (str(path), "-DX=1")
    assert load(SEVEN).seven() == 7


@pytest.mark.parametrize("given", ["/no/such/compiler -O3", "no-such-compiler", "'unbalanced", "."])
def test_a_missing_cc_is_an_error_that_names_it_and_nothing_replaces_it(cache, monkeypatch, given):
    monkeypatch.setenv("CC", given)
    assert build.compiler() is None
    with pytest.raises(CompilerError, match="CC needs an executable C compiler") as caught:
        load(SEVEN)
    assert repr(given) in str(caught.value)


def test_an_empty_cc_is_no_cc(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    expected = build.compiler()
    monkeypatch.setenv("CC", "  ")
    assert build.compiler() == expected


def test_without_cc_the_first_of_cc_gcc_clang_zig_is_taken(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    package = tmp_path / "packages" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    for path in (package / "zig", tmp_path / "clang", tmp_path / "gcc", tmp_path / "cc"):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o700)
        assert build.compiler() == ((str(path), "cc") if path.name == "zig" else (str(path),))


def test_without_any_compiler_the_error_names_the_remedies(cache, tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "_zig", lambda: None)
    with pytest.raises(CompilerError, match=r"install gcc or clang, set CC .*langevin.cc."):
        load(SEVEN)


ZIG = os.environ.get("ZIGLANG", "")  # a folder of packages with `ziglang`


@pytest.mark.slow
@pytest.mark.skipif(not ZIG and not importlib.util.find_spec("ziglang"), reason="no ziglang")
def test_ziglang_compiles(cache, tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if ZIG:
        monkeypatch.syspath_prepend(ZIG)
    library = load("#include <math.h>\ndouble f(double x) { return fma(x, x, lgamma(x)); }", ("-O1",))
    library.f.restype, library.f.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.f(2.5) == pytest.approx(6.25 + math.lgamma(2.5), rel=1e-15)
    assert len(kept(cache)) == 1
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo out of coffee; exit 3", "exit status 3: out of coffee"),
        ("exit 0", "it made no library"),
        ("kill -9 $$", "exit status -9"),
        ("mkdir program.so program.dll 2>/dev/null; exit 0", "it made no library"),
        ("for f; do :; done; echo garbage > program.so", "cannot be stored or loaded"),
    ],
)
def test_a_cc_that_does_not_work_is_an_error_that_names_it(cache, fake, script, reason):
    path = fake(script)
    with pytest.raises(CompilerError) as caught:
        load(SEVEN)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert kept(cache) == []


def test_a_cc_that_the_system_cannot_run_is_an_error_that_names_it(cache, fake):
    path = fake()
    path.write_bytes(b"\x7fELF no program")
    with pytest.raises(CompilerError, match=r"fakecc.* cannot be run"):
        load(SEVEN)


def test_an_error_in_the_source_is_reported_with_its_line(cache):
    with pytest.raises(CompilerError, match=r"program\.c:2:.*error"):
        load("int a;\nint f(void) { return undeclared; }")
    assert kept(cache) == []


def test_a_symbol_that_nobody_defines_is_an_error(cache):
    with pytest.raises(CompilerError, match="no_such_function"):
        load("void no_such_function(void); void f(void) { no_such_function(); }")
    assert kept(cache) == []


def test_a_compiler_that_does_not_know_this_processor_compiles_all_the_same(cache, fake):
    fake('case "$*" in *=native*) exit 1;; esac; exec $real "$@"')
    assert load(SEVEN).seven() == 7
    assert len(kept(cache)) == 1


def test_the_compiler_gets_no_environment_but_what_it_needs(cache, fake, tmp_path, monkeypatch):
    for name in ("PYTHONPATH", "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "CFLAGS", "GCC_COLORS"):
        monkeypatch.setenv(name, "" if name == "LD_PRELOAD" else "secret")
    monkeypatch.setenv("CPATH", "/headers")
    monkeypatch.setenv("CCACHE_DIR", "/kept")
    monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
    fake(f"env > '{tmp_path}/seen'; exec $real \"$@\"")
    load(SEVEN)
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert {"CPATH": "/headers", "CCACHE_DIR": "/kept", "LC_ALL": "C"}.items() <= seen.items()
    assert seen["TMPDIR"].startswith(str(cache))
    assert not {"PYTHONPATH", "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "CFLAGS", "GCC_COLORS"} & set(seen)


@pytest.mark.parametrize("extra", ["", " -ffast-math -ffp-contract=fast", " -Ofast"])
def test_code_rounds_where_the_source_says_whatever_cc_says(cache, fake, monkeypatch, extra):
    monkeypatch.setenv("CC", f"{fake()}{extra}")
    library = load("""
        #include <math.h>
        double separate(double a, double b, double c) { return a * b + c; }
        double fused(double a, double b, double c) { return fma(a, b, c); }
        double sum(double a, double b, double c) { return (a + b) - a - b + c; }
        double is_nan(double a, double b, double c) { return isnan(a) + isnan(b - b) + isinf(c); }
    """)
    for function in (library.separate, library.fused, library.sum, library.is_nan):
        function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    a = 1 + 2**-30
    assert library.separate(a, a, -1 - 2**-29) == 0
    assert library.fused(a, a, -1 - 2**-29) == 2**-60
    assert library.sum(1.0, 1e-20, 0.0) == (1.0 + 1e-20) - 1.0 - 1e-20
    assert library.is_nan(math.nan, math.inf, math.inf) == 3


def test_flags_of_the_caller_come_last(cache):
    assert load("int f(void) {\n#ifdef __OPTIMIZE__\nreturn 1;\n#endif\nreturn 0; }", ("-O0",)).f() == 0


# What is kept.


def test_a_program_is_compiled_once_and_loaded_once(cache, fake, calls, fresh):
    fake()
    library = load(SEVEN)
    assert load(SEVEN) is library
    fresh()
    assert load(SEVEN).seven() == 7
    assert len(calls()) == 1


def test_a_later_process_starts_no_process(cache):
    load(SEVEN)
    script = """
    import subprocess, sys
    def refuse(*args, **options):
        raise AssertionError("a process was started")
    subprocess.Popen.__init__ = refuse
    from langevin.compiler.build import load
    print(load(sys.argv[1]).seven(), *{"numba", "torch", "scipy"} & set(sys.modules))
    """
    assert run(script, SEVEN).split() == ["7"]


def test_what_the_code_depends_on_decides_what_is_loaded(cache, fake, calls, tmp_path, fresh, monkeypatch):
    compiler, include = fake(), tmp_path / "include"
    include.mkdir()
    monkeypatch.setattr(build, "INCLUDE", include)

    def number_of_calls(source=SEVEN, flags=()):
        before = len(calls())
        load(source, flags)
        return len(calls()) - before

    def once(source=SEVEN, flags=()):
        assert number_of_calls(source, flags) == 1
        assert number_of_calls(source, flags) == 0

    once()
    once(SEVEN + " ")
    once(flags=("-O1",))
    once(flags=("-O1", "-g"))
    (include / "lv_a.h").write_text("#define A 1\n")
    once()
    once('#include "lv_a.h"\nint a(void) { return A; }')
    (include / "lv_a.h").write_text("#define A 2\n")
    once('#include "lv_a.h"\nint a(void) { return A; }')
    os.utime(compiler, (1, 1))
    once()
    monkeypatch.setenv("CC", f"{compiler} -DX=1")
    once()
    monkeypatch.setenv("CPATH", str(tmp_path))
    once()
    monkeypatch.setattr(build, "machine", lambda: "another processor")
    once()
    assert load('#include "lv_a.h"\nint a(void) { return A; }').a() == 2


def test_the_machine_names_the_processor_and_not_its_frequency():
    text = build.machine()
    assert "MHz" not in text
    assert "bogomips" not in text.lower()
    if Path("/proc/cpuinfo").exists():
        assert "flags" in text or "Features" in text or "CPU" in text


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "sparse and huge": lambda path: os.truncate(path, 1 << 40),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a broken link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "unreadable": lambda path: path.chmod(0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_program_is_never_loaded(cache, fake, calls, fresh, damage):
    fake()
    load(SEVEN)
    (path,) = cache.iterdir()
    kept = path.read_bytes()
    path.unlink()  # this process runs the file's destructors when it ends: damage a copy
    path.write_bytes(kept)
    DAMAGE[damage](path)
    fresh()
    assert load(SEVEN).seven() == 7
    if damage != "unreadable" or os.getuid() != 0:
        assert len(calls()) == 2
    if damage != "a folder":
        fresh()
        assert load(SEVEN).seven() == 7
        assert len(calls()) <= 2


def test_a_link_to_a_program_is_not_followed(cache, fake, calls, fresh, tmp_path):
    fake()
    load(SEVEN)
    (path,) = cache.iterdir()
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    fresh()
    assert load(SEVEN).seven() == 7
    assert len(calls()) == 2
    assert not path.is_symlink()
    assert (tmp_path / "elsewhere.so").exists()


def exchange_for_link(folder, elsewhere):
    elsewhere.mkdir()
    folder.rmdir()
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("spoil", [lambda folder, _: folder.chmod(0o777), exchange_for_link])
def test_a_folder_that_is_not_private_is_not_used(cache, tmp_path, spoil):
    cache.mkdir(parents=True, mode=0o700)
    spoil(cache, tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="compiled code is not kept: .*programs"):
        assert load(SEVEN).seven() == 7
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(cache):
    cache.mkdir(parents=True, mode=0o700)
    os.chown(cache, 12345, 12345)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert load(SEVEN).seven() == 7
    assert list(cache.iterdir()) == []


def test_programs_are_private_whatever_the_umask(cache):
    before = os.umask(0)
    try:
        load(SEVEN)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()] == [0o600]


def test_the_least_recently_used_programs_are_removed(cache, fresh, monkeypatch):
    sources = [f"int number(void) {{ return {k}; }}" for k in range(5)]
    monkeypatch.setattr(code_cache, "_MOST_PROGRAMS", 3)
    files = []
    for k, source in enumerate(sources[:3]):
        load(source)
        files += [name for name in kept(cache) if name not in files]
        os.utime(cache / files[-1], (k + 1, k + 1))
    fresh()
    first = load(sources[0])  # used again
    libraries = [load(source) for source in sources[3:]]
    assert files[0] in kept(cache)
    assert not set(files[1:]) & set(kept(cache))
    assert len(kept(cache)) == 3
    monkeypatch.setattr(code_cache, "_MOST_BYTES", 1)
    load(SEVEN)
    assert len(kept(cache)) == 1
    assert [first.number(), *(library.number() for library in libraries)] == [0, 3, 4]


def test_without_keep_nothing_is_read_or_written(cache, fake, calls):
    fake()
    load(SEVEN)
    before = kept(cache)
    library = load(SEVEN, keep=False)
    assert library.seven() == 7
    assert library is not load(SEVEN)
    assert (len(calls()), kept(cache)) == (2, before)
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


# Threads and processes.


def test_threads_that_want_one_program_wait_for_one_build(cache, fake, calls):
    fake('sleep 0.3; exec $real "$@"')
    found = []
    threads = [threading.Thread(target=lambda: found.append(load(SEVEN))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len(set(map(id, found))), len(calls())) == (8, 1, 1)


def test_threads_that_want_two_programs_do_not_wait_for_each_other(cache, fake, tmp_path):
    fake(f"""
        touch "{tmp_path}/started $(cksum < program.c)"
        n=0
        until [ $(ls '{tmp_path}' | grep -c started) -eq 2 ]; do
            n=$((n+1)); [ $n -lt 200 ] || exit 9; sleep 0.1
        done
        exec $real "$@"
    """)
    found = []
    sources = [f"int number(void) {{ return {k}; }}" for k in range(2)]
    threads = [threading.Thread(target=lambda source=source: found.append(load(source).number())) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1]


def test_a_thread_whose_predecessor_failed_builds_itself(cache, fake, tmp_path):
    fake(f"""
        [ $(wc -l < '{tmp_path}/calls') -gt 2 ] || {{ sleep 0.2; exit 1; }}
        exec $real "$@"
    """)
    found = []

    def work():
        try:
            found.append(load(SEVEN).seven())
        except CompilerError:
            found.append(None)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == ["7", "7", "None"]


def test_processes_that_build_one_program_at_once_leave_one_intact_file(cache, fake):
    fake('sleep 0.3; exec $real "$@"')
    script = "import sys; from langevin.compiler.build import load; print(load(sys.argv[1]).seven())"
    command = [sys.executable, "-c", script, SEVEN]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0].split() for process in processes] == [["7"]] * 3
    (name,) = kept(cache)
    assert code_cache.find(cache, name.partition("-")[0]) == cache / name


HANG = """
    if [ -e '{flag}' ]; then
        echo half > program.so
        sleep 120 & echo $! >> '{flag}'
        echo $$ >> '{flag}'
        wait
    fi
    exec $real "$@"
"""
LOAD = "import sys; from langevin.compiler.build import load; print(load(sys.argv[1]).seven())"


@pytest.fixture
def hung(cache, fake, tmp_path):
    """Start a process whose compiler hangs; return it, and the processes of its compiler."""
    flag, started = tmp_path / "flag", []
    flag.write_text("")
    fake(HANG.format(flag=flag))

    def start():
        command = [sys.executable, "-c", LOAD, SEVEN]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        wait_for(lambda: len(flag.read_text().split()) == 2)
        numbers = [int(number) for number in flag.read_text().split()]
        started.extend(numbers)
        flag.unlink()
        return process, numbers

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.kill() if isinstance(each, subprocess.Popen) else os.kill(each, signal.SIGKILL)
        if isinstance(each, subprocess.Popen):
            each.communicate()


def test_a_killed_build_leaves_nothing_that_is_loaded_and_is_tidied_up_later(hung, cache):
    process, _ = hung()
    process.kill()
    process.wait()
    (left,) = cache.iterdir()
    assert load(SEVEN).seven() == 7
    assert left.exists()  # it might belong to a build that goes on
    os.utime(left, (1, 1))
    load(SEVEN + "\n")
    assert not left.exists()
    assert len(kept(cache)) == 2


def test_ctrl_c_ends_the_compiler_at_once_and_leaves_nothing(hung, cache):
    process, numbers = hung()
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]  # the compiler sleeps for 120
    wait_for(lambda: not any(map(is_alive, numbers)))
    assert kept(cache) == []


def test_ctrl_c_while_the_compiler_starts_ends_it(cache, fake, calls):
    fake("kill -INT $PPID; exec sleep 60")
    script = """
    import sys
    from langevin.compiler.build import load
    for _ in range(10):
        try:
            load(sys.argv[1])
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert run(script, SEVEN).split() == ["interrupted"] * 10
    assert not any(map(is_alive, calls()))
    assert kept(cache) == []


def test_a_compiler_that_hangs_is_stopped_and_named(cache, fake, tmp_path, monkeypatch):
    flag = tmp_path / "flag"
    flag.write_text("")
    fake(HANG.format(flag=flag))
    monkeypatch.setattr(build, "_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(CompilerError, match=r"fakecc.* did not finish in 0\.5 s"):
        load(SEVEN)
    wait_for(lambda: not any(is_alive(number) for number in flag.read_text().split()))
    assert kept(cache) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_link_among_stale_work_folders_is_not_followed(cache, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("")
    load(SEVEN)
    link = cache / "langevin-build-link"
    link.symlink_to(precious)
    os.utime(link, (1, 1), follow_symlinks=False)
    load(SEVEN + " ")
    assert (precious / "data").exists()


def test_a_forked_child_neither_waits_for_a_lost_thread_nor_removes_its_files(cache, fake):
    fake('sleep 1; exec $real "$@"')
    script = """
    import os, sys, threading, time, warnings
    from langevin.compiler.build import load
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
    found = []
    thread = threading.Thread(target=lambda: found.append(load(sys.argv[1])))
    thread.start()
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        sys.exit(load(sys.argv[1]).seven())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    thread.join()
    print(status, found[0].seven())
    """
    assert run(script, SEVEN, cache.parents[2] / "calls").split() == ["7", "7"]
    assert len(kept(cache)) == 1


def test_a_program_loaded_before_a_fork_serves_the_child(cache):
    script = """
    import os, sys
    from langevin.compiler.build import load
    library = load(sys.argv[1])
    child = os.fork()
    if child == 0:
        os._exit(10 + (load(sys.argv[1]) is library))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(script, SEVEN).split() == ["11"]


# Folders.


FULL = """
    case "$(pwd)" in
        */{where}/*) echo "ld: final link failed: No space left on device"; exit 1;;
    esac
    exec $real "$@"
"""


def test_with_a_full_cache_the_program_is_loaded_from_the_temporary_folder(cache, fake, tmp_path):
    fake(FULL.format(where="cache"))
    assert load(SEVEN).seven() == 7
    assert kept(cache) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_without_any_space_the_error_says_so(cache, fake):
    fake(FULL.format(where="*"))
    with pytest.raises(CompilerError, match=r"No space left on device.*Set XDG_CACHE_HOME or TMPDIR"):
        load(SEVEN)
    assert kept(cache) == []


@pytest.fixture
def mount(tmp_path):
    """Mount a file system in memory, where that is permitted."""
    mounted = []

    def make(path, options):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting is not permitted")
        mounted.append(path)

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


@pytest.mark.parametrize("size", ["4k", "12k", "24k", "nr_inodes=4"])
def test_a_disk_that_is_really_full_is_survived(cache, mount, fresh, tmp_path, size):
    options = size if "=" in size else f"size={size}"
    mount(tmp_path / "cache", f"{options},mode=0700")
    assert load(SEVEN).seven() == 7
    mount(tmp_path / "tmp", f"{options},mode=0700")
    with pytest.raises(CompilerError, match=r"Set XDG_CACHE_HOME or TMPDIR"):
        load(SEVEN + " ")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_folder_where_nothing_may_run_is_avoided_or_named(cache, mount, tmp_path):
    mount(tmp_path / "cache", "noexec,mode=0700")
    assert load(SEVEN).seven() == 7
    mount(tmp_path / "tmp", "noexec,mode=0700")
    with pytest.raises(CompilerError, match=r"mounted noexec"):
        load(SEVEN + " ")


def test_a_read_only_disk_is_survived(cache, mount, tmp_path):
    mount(tmp_path / "cache", "ro,mode=0700")
    assert load(SEVEN).seven() == 7
    assert list((tmp_path / "tmp").iterdir()) == []


def test_without_a_home_the_program_is_built_for_this_process(cache, monkeypatch, tmp_path):
    def nowhere():
        raise RuntimeError("no home")

    monkeypatch.setattr(code_cache, "place", nowhere)
    assert load(SEVEN).seven() == 7
    assert not cache.exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_cache_removed_meanwhile_is_made_again(cache):
    load(SEVEN)
    for path in [*cache.iterdir(), cache, cache.parent]:
        path.unlink() if path.is_file() else path.rmdir()
    load(SEVEN + " ")
    assert len(kept(cache)) == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_program_removed_while_it_is_looked_up_is_built_again(cache, fresh, monkeypatch):
    load(SEVEN)
    fresh()
    monkeypatch.setattr(code_cache, "find", lambda folder, key: folder / "gone.so")
    assert load(SEVEN).seven() == 7


def test_a_temporary_folder_that_others_could_exchange_is_refused(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(code_cache, "folder", lambda: None)
    (tmp_path / "tmp").chmod(0o777)
    with pytest.raises(CompilerError, match="which others can write to"):
        load(SEVEN)
    (tmp_path / "tmp").chmod(0o1777)
    assert load(SEVEN).seven() == 7


ODD = ["with space", "quote'\"`", "ünïcödé 統計", "$HOME $(touch x)", "-o", "a;b&c", "new\nline", "100%"]


@pytest.mark.parametrize("name", ODD)
def test_folders_may_have_any_name(cache, fresh, monkeypatch, tmp_path, name):
    for part, variable in {"cache": "XDG_CACHE_HOME", "tmp": "TMPDIR"}.items():
        (tmp_path / name / part).mkdir(parents=True, mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name / part))
    include = tmp_path / name / "include"
    include.mkdir()
    (include / "lv_a.h").write_text("#define A 7\n")
    monkeypatch.setattr(build, "INCLUDE", include)
    monkeypatch.setattr(tempfile, "tempdir", None)
    fresh()
    source = '#include "lv_a.h"\nint seven(void) { return A; }'
    assert load(source).seven() == load(source, keep=False).seven() == 7
    assert len(kept(tmp_path / name / "cache" / "langevin" / "programs")) == 1
    assert not Path("x").exists()


def test_a_folder_that_the_loader_would_expand_is_survived(cache, fresh, monkeypatch, tmp_path):
    (tmp_path / "$ORIGIN").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "$ORIGIN"))
    fresh()
    assert load(SEVEN).seven() == 7


# The process around it.


def test_the_source_may_be_large_and_in_any_script(cache):
    text = "統計 ü ??/ \\u00fc"
    source = f'/* {text} */\r\nchar *text(void) {{ return "統計"; }}\n' + "/* filler */\n" * 100_000
    library = load(source)
    library.text.restype = ctypes.c_char_p
    assert library.text().decode() == "統計"


def test_no_descriptor_is_left_open(cache):
    load(SEVEN)
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    for k in range(3):
        load(SEVEN + " " * (k + 1))
        with pytest.raises(CompilerError):
            load("error" + " " * k)
    after = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    assert len(before) == len(after)


AROUND = {
    "SIGCHLD is ignored": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "standard streams are closed": "os.close(0); os.close(2)",
    "the working folder is gone": "import tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "the environment is empty": "p = os.environ['PATH']; x = os.environ['XDG_CACHE_HOME']\n"
    "os.environ.clear(); os.environ.update(PATH=p, XDG_CACHE_HOME=x)",
    "an alarm rings": "import atexit, signal; signal.signal(signal.SIGALRM, lambda *_: None)\n"
    "atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
    "there is no POSIX": "import random, signal; del os.killpg, os.getuid, os.register_at_fork\n"
    "del os.confstr, signal.SIGKILL; sys.modules['fcntl'] = None",
    "memory is short": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))",
}


@pytest.mark.parametrize("around", AROUND)
def test_a_program_is_built_in_an_unusual_process(cache, around):
    script = "import os, sys\n" + AROUND[around] + "\n" + LOAD
    assert run(script, SEVEN).split() == ["7"]
    assert len(kept(cache)) == 1


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_FSIZE"])
def test_where_the_process_may_do_too_little_the_error_is_ours(cache, limit):
    script = f"""
    import resource, sys
    from langevin.compiler.build import CompilerError, load
    resource.setrlimit(resource.{limit}, (5, 5))
    try:
        load(sys.argv[1])
    except CompilerError as error:
        print("ours")
    """
    assert run(script, SEVEN).split() == ["ours"]
    assert kept(cache) == []
