"""The doctor: what is fine is said to be, and what was broken on purpose is found, with what to do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from typer.testing import CliRunner

from langevin import cli, doctor
from langevin.doctor import caches, examine, finding, installation, trials
from langevin.doctor.finding import BROKEN, OK, SLOW, Finding


def by_name(findings):
    return {finding.name: finding for finding in findings}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache folder of one's own, for the library and for torch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    (tmp_path / "cache").mkdir()
    return tmp_path


def test_here_nothing_is_broken_and_every_part_speaks(home):
    lines = []
    assert examine(say=lines.append) == []
    text = "\n".join(lines)
    for word in (
        "langevin", "torch", "numba", "python", "C++ compiler", "CUDA", "threads", "caches", "engines agree", "µs per eager step",
        "µs fused",
    ):  # fmt: skip
        assert word in text


@pytest.mark.parametrize(("broken", "code"), [([], 0), ([Finding("law", "wrong", BROKEN)], 1)])
def test_the_exit_code_is_1_when_something_is_broken(monkeypatch, broken, code):
    monkeypatch.setattr(doctor, "examine", lambda **options: broken)
    assert CliRunner().invoke(cli.app, ["doctor"]).exit_code == code


def test_the_last_line_names_what_is_broken_or_else_what_is_slow(monkeypatch):
    module = sys.modules["langevin.doctor.examine"]
    found = []
    for name in ("versions", "engines", "threads", "trials"):
        monkeypatch.setattr(module, name, list)
    monkeypatch.setattr(module, "caches", lambda: found)
    lines = []
    examine(say=lines.append)
    found.append(Finding("cache", "x", SLOW, "make one"))
    examine(say=lines.append)
    found.append(Finding("engine", "x", BROKEN, "report it"))
    assert examine(say=lines.append) == found[1:]
    last = [line for line in lines if not line.startswith(("  ", "versions", "engines", "threads", "caches", "trials"))]
    assert last == ["all is well", "slower than it could be: cache", "broken: engine"]
    assert "-> report it" in str(found[1])


def test_no_numba_is_broken_and_the_rest_still_runs(home):
    script = """
    import sys
    sys.modules["numba"] = None
    from langevin.doctor import examine
    broken = examine()
    assert [finding.name for finding in broken] == ["numba"], broken
    assert "pip install numba" in broken[0].advice
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there is only torch" in done.stdout
    assert "µs torch, per step" in done.stdout


def test_no_compiler_is_slow_and_says_what_to_do(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    found = installation.compiler()
    assert found.state == SLOW
    assert "compile=False" in found.advice
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert "CXX=/no/such/compiler is not there" in installation.compiler().value


def test_a_paper_of_another_version_is_broken(monkeypatch):
    monkeypatch.setattr("langevin_paper.__version__", "0.0.1")
    found = by_name(installation.versions())["langevin-paper"]
    assert found.state == BROKEN
    assert "pip install langevin-paper==" in found.advice


def test_an_extra_that_is_not_there_is_said_with_what_needs_it_and_is_fine(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    found = by_name(installation.versions())
    assert found["ray"].state == OK
    assert found["ray"].value.endswith("pip install 'langevin[ray]'")
    assert found["scikit-learn"].value[0].isdigit()


def test_more_threads_than_cores_is_slow(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    (found,) = installation.threads()
    assert found.state == SLOW


def test_a_cache_of_ones_own_is_fine_with_owner_mode_and_size(home):
    folder = home / "cache" / "langevin"
    assert "not made yet" in by_name(caches.caches())["langevin"].value
    folder.mkdir(mode=0o700)
    (folder / "code").write_bytes(bytes(2_500_000))
    found = by_name(caches.caches())["langevin"]
    assert found.state == OK
    assert found.value.startswith(f"{folder}, ")
    assert found.value.endswith(", mode 0700, 2.5 MB")


def test_a_cache_that_others_can_write_to_is_broken(home):
    (home / "inductor").mkdir()
    (home / "inductor").chmod(0o777)
    found = by_name(caches.caches())["torch.compile"]
    assert found.state == BROKEN
    assert "others can write to it" in found.value
    assert "chmod go-w" in found.advice


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_cache_of_another_owner_is_broken(home):
    (home / "cache" / "langevin").mkdir(mode=0o700)
    os.chown(home / "cache" / "langevin", 12345, 12345)
    found = by_name(caches.caches())["langevin"]
    assert found.state == BROKEN
    assert "user 12345" in found.value
    assert "XDG_CACHE_HOME" in found.advice


def test_a_cache_that_cannot_be_written_to_is_slow(home, monkeypatch):
    (home / "cache" / "langevin").mkdir(mode=0o700)
    monkeypatch.setattr(caches.os, "access", lambda path, mode: False)  # root may write anywhere
    found = by_name(caches.caches())
    assert found["langevin"].state == found["torch.compile"].state == SLOW
    assert "cannot be written to" in found["langevin"].value
    assert "cannot be made" in found["torch.compile"].value


def test_a_file_or_a_link_where_the_cache_should_be_is_broken(home, monkeypatch):
    (home / "cache" / "langevin").write_text("")
    (home / "numba").symlink_to(home)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(home / "numba"))
    found = by_name(caches.caches())
    assert found["langevin"].state == found["numba"].state == BROKEN


def test_a_wrong_law_is_broken(monkeypatch):
    real = trials.msgld
    monkeypatch.setattr(trials, "msgld", lambda step_size, **settings: real(step_size, temperature=1.3, **settings))
    found = by_name(trials.trials())["law"]
    assert found.state == BROKEN
    assert "do not trust" in found.advice


def test_engines_that_disagree_are_broken(monkeypatch):
    real = trials._optimizer

    def other(fused):
        parameter, optimizer = real(fused)
        if fused:
            parameter.grad[7] += 1e-3
        return parameter, optimizer

    monkeypatch.setattr(trials, "_optimizer", other)
    found = by_name(trials.trials())["engines agree"]
    assert found.state == BROKEN
    assert found.value == "1 of 100000 elements differ"


def test_a_trial_that_raises_is_broken_and_the_others_go_on(monkeypatch):
    def fail():
        raise ValueError("no\nlaw")

    monkeypatch.setattr(trials, "law", fail)
    found = by_name(trials.trials())
    assert found["law"] == Finding("law", "ValueError: no law", BROKEN, "report it, with this page")
    assert found["optimizer"].state == OK


def test_fill_compiles_ahead_into_the_cache(home):
    """In a process of its own: here everything is compiled already."""
    script = """
    import langevin.optim.caches as caches
    works = list(caches._works())
    caches._works = lambda: works[:2]
    from langevin.cli import main
    import sys
    sys.argv = ["langevin", "doctor", "--fill"]
    main()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 pieces" in done.stdout  # the two, and a compiled loop
    assert list((home / "cache" / "langevin" / "loops").glob("*.so"))
    assert list((home / "cache" / "langevin").rglob("*.nbc"))


def test_a_finding_is_a_line_and_what_to_do_a_second():
    assert str(finding.Finding("a", "b")) == f"  {'a':<16}  b"
    assert len(str(finding.Finding("a", "b", SLOW, "c")).splitlines()) == 2
