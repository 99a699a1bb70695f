"""Compiled code is kept where only its owner can write, or nowhere: whoever writes there runs code."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from langevin.compiler import cache as code_cache


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Let the cache folder be below `tmp_path`, and ask anew."""

    def ask(base=tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(base))
        code_cache.private_folder.cache_clear()
        try:
            return code_cache.private_folder()
        finally:
            code_cache.private_folder.cache_clear()

    tmp_path.chmod(0o755)
    return ask


def test_the_folder_is_private_whatever_the_umask(at, tmp_path):
    before = os.umask(0)
    try:
        folder = at()
    finally:
        os.umask(before)
    assert folder == tmp_path / "langevin"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_older_folder_that_others_could_only_read_is_closed(at, tmp_path):
    (tmp_path / "langevin").mkdir(mode=0o755)
    assert stat.S_IMODE(at().stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(at, tmp_path):
    (tmp_path / "langevin").mkdir()
    (tmp_path / "langevin").chmod(0o777)
    with pytest.warns(UserWarning, match=r"not kept: .*langevin can be written to by others"):
        assert at() is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_owner_is_not_used(at, tmp_path):
    (tmp_path / "langevin").mkdir(mode=0o700)
    os.chown(tmp_path / "langevin", 12345, 12345)
    with pytest.warns(UserWarning, match=r"belongs to another user \(12345\)"):
        assert at() is None


def test_a_link_is_not_followed(at, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "langevin").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="not a folder of its own"):
        assert at() is None


def test_a_parent_where_others_could_swap_the_folder_is_not_used(at, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.warns(UserWarning, match="which others can write to"):
        assert at() is None
    tmp_path.chmod(0o1777)  # sticky, as /tmp: nobody can swap another's folder
    assert at() is not None


def test_without_a_place_nothing_is_kept_and_nothing_said(at, tmp_path):
    (tmp_path / "file").write_text("")
    assert at(tmp_path / "file") is None


def test_the_library_runs_without_a_place_to_write_to(tmp_path):
    """Neither a home nor a package that can be written to: sampling and optimizing work all the same."""
    (tmp_path / "file").write_text("")
    script = """
    import torch, warnings
    import langevin as lv
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    lv.optim.SGLD([p], lr=0.1, num_data=1, fused=True).step()
    warnings.simplefilter("ignore", lv.TrustWarning)  # five steps are few
    lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.1), init=torch.zeros(2, 1), num_steps=5)
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": str(tmp_path / "file")}
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script)], check=True, timeout=300, env=environment)


def test_what_only_posix_has_is_not_needed_at_import():
    """Windows has none of these."""
    script = """
    import os, sys, torch
    del os.register_at_fork, os.RTLD_NOLOAD, os.getuid
    sys.modules["fcntl"] = None
    import langevin, langevin.execution.fused
    [getattr(langevin, name) for name in langevin.__all__]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=300)


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert files("langevin").joinpath("py.typed").is_file()
