"""The runner of `make mutants`, on a project of two files; and its list, which must fit the source as it is."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
mutants = importlib.util.module_from_spec(spec)
sys.modules["mutants"] = mutants
spec.loader.exec_module(mutants)

SOURCE = "def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n"
TESTS = "from toy import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
SEEN = {"what": "double", "old": "2 * x", "new": "2 + x + 1"}
UNSEEN = {"what": "triple", "old": "3 * x", "new": "4 * x"}


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "toy.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_toy.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    def run(*entries, arguments=(), tests="tests/test_toy.py"):
        text = ""
        for entry in entries:
            lines = {"file": "src/toy.py", **entry}
            text += "[[mutant]]\n" + "".join(f"{name} = {value!r}\n" for name, value in lines.items()) + f"tests = [{tests!r}]\n"
        (tmp_path / "list.toml").write_text(text)
        code = mutants.main(["--list", str(tmp_path / "list.toml"), *arguments], root=tmp_path)
        assert (tmp_path / "src" / "toy.py").read_text() == SOURCE  # only copies are broken
        return code

    return run


def test_a_mutant_that_a_test_sees_is_red_and_the_run_succeeds(toy, capsys):
    assert toy(SEEN) == 0
    assert "1 of 1 were seen" in capsys.readouterr().out


def test_a_mutant_that_no_test_sees_is_green_and_fails_the_run(toy, capsys):
    assert toy(SEEN, UNSEEN) == 1
    out = capsys.readouterr().out
    assert "  1 double  red " in out
    assert "  2 triple  GREEN " in out
    assert "1 of 2 were seen; not: [2]" in out
    assert toy(SEEN, UNSEEN, arguments=["--only", "1"]) == 0


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({**SEEN, "old": "5 * x"}, "MISSING"),
        ({**SEEN, "old": "x"}, "MISSING"),  # more than once
        ({**SEEN, "file": "src/other.py"}, "MISSING"),
        ({**SEEN, "new": "2 * ("}, "MISSING"),  # no Python
        ({**SEEN, "old": "def double", "new": "def twice"}, "BROKEN"),  # the import fails: no test has spoken
        ({**SEEN, "keyword": "double", "new": "next(x for _ in iter(int, 1) if False)"}, "TIMEOUT"),
    ],
    ids=["gone", "twice", "no file", "no Python", "import", "for ever"],
)
def test_what_proves_nothing_fails_the_run(toy, capsys, entry, word):
    assert toy(entry, arguments=["--timeout", "10" if word == "TIMEOUT" else "100"]) == 1
    assert word in capsys.readouterr().out


def test_tests_that_fail_by_themselves_stop_it(toy, capsys):
    assert toy(SEEN, tests="tests/test_absent.py") == 1
    assert "without a mutant" in capsys.readouterr().out


def test_every_mutant_of_the_list_still_applies():
    listed = mutants.read_list(ROOT / "tools" / "mutants.toml")
    assert len({mutant.what for mutant in listed}) == len(listed) >= 40
    for mutant in listed:
        assert mutant.apply(ROOT) != (ROOT / mutant.file).read_text()
        for test in mutant.tests:
            assert (ROOT / test.split("::")[0]).exists(), test
