"""The doctor passes a working installation, and reports deliberate damage with advice."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from langevin.cli import doctor
from langevin.cli import main as cli
from langevin.cli.doctor import BROKEN, OK, SLOW, Finding, c_compiler, examine


def by_name(findings):
    return {finding.name: finding for finding in findings}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache folder of one's own, for the library and for torch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def test_here_nothing_is_broken_and_every_part_reports(home):
    lines = []
    assert examine(echo=lines.append) == []
    text = "\n".join(lines)
    for word in (
        "langevin", "torch", "C compiler", "python", "C++ compiler", "CUDA", "threads", "caches", "engines agree",
        "µs per eager step", "µs fused",
    ):  # fmt: skip
        assert word in text


@pytest.mark.parametrize(("broken", "code"), [([], 0), ([Finding("variances", "wrong", BROKEN)], 1)])
def test_the_exit_code_is_1_when_something_is_broken(monkeypatch, broken, code):
    monkeypatch.setattr(doctor, "examine", lambda **options: broken)
    monkeypatch.setattr(sys, "argv", ["langevin", "doctor"])
    with contextlib.suppress(SystemExit) if code == 0 else pytest.raises(SystemExit, match=str(code)):
        cli.main()


def test_the_last_line_names_what_is_broken_or_else_what_is_slow(monkeypatch):
    module = sys.modules["langevin.cli.doctor"]
    found = []
    for name in ("versions", "engines", "threads", "trials"):
        monkeypatch.setattr(module, name, list)
    monkeypatch.setattr(module, "caches", lambda: found)
    lines = []
    examine(echo=lines.append)
    found.append(Finding("cache", "x", SLOW, "make one"))
    examine(echo=lines.append)
    found.append(Finding("engine", "x", BROKEN, "report it"))
    assert examine(echo=lines.append) == found[1:]
    last = [line for line in lines if not line.startswith(("  ", "versions", "engines", "threads", "caches", "trials"))]
    assert last == ["no problems found", "slower than necessary: cache", "broken: engine"]
    assert "-> report it" in str(found[1])


def test_a_c_compiler_that_is_not_there_is_broken_and_the_rest_still_runs(home):
    script = """
    import os, warnings
    os.environ["CC"] = "no-such-compiler"
    warnings.filterwarnings("ignore", message="noise and optimizers run on plain torch")
    from langevin.cli.doctor import examine
    from langevin.cli.doctor import engines
    assert [each.name for each in examine()] == ["C compiler"]
    (found,) = [finding for finding in engines() if finding.name == "C compiler"]
    assert found.state == "BROKEN", found
    assert "correct it or unset it" in found.advice
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "only the torch engine is available" in done.stdout
    assert "µs torch, per step" in done.stdout


def test_without_a_cpp_compiler_only_gpus_lack_something(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    found = doctor.cpp_compiler()
    assert found.state == OK
    assert "GPU" in found.value
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert "CXX=/no/such/compiler not found" in doctor.cpp_compiler().value


@pytest.fixture
def fake_cc(tmp_path, monkeypatch):
    """Make a shell script the C compiler."""

    def make(script):
        path = tmp_path / "fakecc"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setenv("CC", str(path))
        return path

    return make


def test_a_c_compiler_that_works_is_fine_with_its_version_and_time(home, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    found = c_compiler()
    assert found.state == OK
    assert re.search(r"cc, .*\d+\.\d+.*: compiled and ran a program in \d+ ms", found.value)
    assert not (home / "cache" / "langevin" / "programs").exists()


def test_without_a_c_compiler_runs_are_slow_and_the_remedies_are_named(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("langevin.compiler.build._zig", lambda: None)
    found = c_compiler()
    assert (found.value, found.state) == ("no C compiler", SLOW)
    for word in ("gcc", "clang", "CC", "pip install 'langevin[cc]'"):
        assert word in found.advice


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo out of coffee; exit 3", "exit status 3: out of coffee"),
        ('[ $1 != --version ] || exit 4\nexec cc "$@"', "exit status 4"),
        ("exec cc '-Dreturn=return 7; return' \"$@\"", "a program returned 7, not 42"),
    ],
)
def test_a_c_compiler_that_does_not_work_is_broken_and_named(home, fake_cc, script, words):
    path = fake_cc(script)
    found = c_compiler()
    assert found.state == BROKEN
    assert str(path) in found.value
    assert words in found.value
    assert "set CC" in found.advice


def test_a_cc_that_is_not_there_is_broken(monkeypatch):
    monkeypatch.setenv("CC", "/no/such/compiler")
    found = c_compiler()
    assert found.state == BROKEN
    assert "/no/such/compiler" in found.value + found.advice


def test_compiled_programs_are_counted_with_their_folder_and_size(home):
    folder = home / "cache" / "langevin" / "programs"
    assert "not created yet" in doctor.compiled_programs().value
    folder.mkdir(mode=0o700, parents=True)
    for k in range(2):
        (folder / f"{k}.so").write_bytes(bytes(1_000_000))
    found = doctor.compiled_programs()
    assert found.state == OK
    assert found.value.startswith(f"{folder}, ")
    assert found.value.endswith(", mode 0700, 2.0 MB, 2 programs")
    folder.chmod(0o777)
    assert doctor.compiled_programs().state == BROKEN


def test_a_folder_of_programs_where_nothing_may_run_is_slow(home, monkeypatch):
    (home / "cache" / "langevin" / "programs").mkdir(mode=0o700, parents=True)
    monkeypatch.setattr(doctor.os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    found = doctor.compiled_programs()
    assert found.state == SLOW
    assert "noexec" in found.value


def test_a_paper_of_another_version_is_broken(monkeypatch):
    monkeypatch.setattr("langevin_paper.__version__", "0.0.1")
    found = by_name(doctor.versions())["langevin-paper"]
    assert found.state == BROKEN
    assert "pip install langevin-paper==" in found.advice


def test_a_missing_extra_is_reported_with_what_needs_it_and_is_fine(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    found = by_name(doctor.versions())
    assert found["ray"].state == OK
    assert found["ray"].value.endswith("pip install 'langevin[ray]'")
    assert found["scikit-learn"].value[0].isdigit()


def test_more_threads_than_cores_is_slow(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    (found,) = doctor.threads()
    assert found.state == SLOW


def test_a_cache_of_ones_own_is_fine_with_owner_mode_and_size(home):
    folder = home / "cache" / "langevin" / "programs"
    assert "not created yet" in by_name(doctor.caches())["programs"].value
    folder.mkdir(mode=0o700, parents=True)
    (folder / "code").write_bytes(bytes(2_500_000))
    found = by_name(doctor.caches())["programs"]
    assert found.state == OK
    assert found.value.startswith(f"{folder}, ")
    assert ", mode 0700, 2.5 MB" in found.value


def test_a_cache_that_others_can_write_to_is_broken(home):
    (home / "inductor").mkdir()
    (home / "inductor").chmod(0o777)
    found = by_name(doctor.caches())["torch.compile"]
    assert found.state == BROKEN
    assert "writable by other users" in found.value
    assert "chmod go-w" in found.advice


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_another_owner_is_broken(home):
    folder = home / "cache" / "langevin" / "programs"
    folder.mkdir(mode=0o700, parents=True)
    os.chown(folder, 12345, 12345)
    found = by_name(doctor.caches())["programs"]
    assert found.state == BROKEN
    assert "user 12345" in found.value
    assert "XDG_CACHE_HOME" in found.advice


def test_a_cache_that_cannot_be_written_to_is_slow(home, monkeypatch):
    (home / "cache" / "langevin" / "programs").mkdir(mode=0o700, parents=True)
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)  # root may write anywhere
    found = by_name(doctor.caches())
    assert found["programs"].state == found["torch.compile"].state == SLOW
    assert "not writable" in found["programs"].value
    assert "cannot create" in found["torch.compile"].value


def test_a_file_or_a_link_where_the_cache_should_be_is_broken(home, monkeypatch):
    (home / "cache" / "langevin").mkdir()
    (home / "cache" / "langevin" / "programs").write_text("")
    (home / "inductor").symlink_to(home)
    found = by_name(doctor.caches())
    assert found["programs"].state == found["torch.compile"].state == BROKEN


def test_wrong_variances_are_broken(monkeypatch):
    real = doctor.msgld
    monkeypatch.setattr(doctor, "msgld", lambda step_size, **settings: real(step_size, temperature=1.3, **settings))
    found = by_name(doctor.trials())["variances"]
    assert found.state == BROKEN
    assert "do not trust" in found.advice


def test_engines_that_disagree_are_broken(monkeypatch):
    real = doctor._optimizer

    def other(fused):
        parameter, optimizer = real(fused)
        if fused:
            parameter.grad[7] += 1e-3
        return parameter, optimizer

    monkeypatch.setattr(doctor, "_optimizer", other)
    found = by_name(doctor.trials())["engines agree"]
    assert found.state == BROKEN
    assert found.value == "1 of 100000 elements differ"


def test_a_trial_that_raises_is_broken_and_the_others_go_on(monkeypatch):
    def fail():
        raise ValueError("no\nsamples")

    monkeypatch.setattr(doctor, "check_variances", fail)
    found = by_name(doctor.trials())
    assert found["variances"] == Finding("variances", "ValueError: no samples", BROKEN, doctor.REPORT)
    assert found["optimizer"].state == OK


def test_fill_compiles_ahead_into_the_cache(home):
    """In a process of its own: here everything is compiled already."""
    script = """
    import langevin.optim.caches as caches
    works = list(caches._works())
    caches._works = lambda: works[:2]
    from langevin.cli.main import main
    import sys
    sys.argv = ["langevin", "doctor", "--fill"]
    main()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 programs" in done.stdout  # the two, and a compiled loop
    assert len(list((home / "cache" / "langevin" / "programs").glob("*.so"))) >= 3


def test_a_finding_is_a_line_and_what_to_do_a_second():
    assert str(Finding("a", "b")) == f"  {'a':<16}  b"
    assert len(str(Finding("a", "b", SLOW, "c")).splitlines()) == 2
