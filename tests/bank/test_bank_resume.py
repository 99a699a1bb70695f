"""A bank in a folder that has draws is continued with `resume=True` only, and read by `SampleBank.open`."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from bank_models import filled, small, whole
from torch import nn

import langevin as lv
from langevin.nn.bank import SampleBank

README = Path(__file__).parents[2] / "README.md"


def test_a_second_run_on_a_folder_with_draws_is_refused_with_the_ways_out(tmp_path, monkeypatch):
    filled(tmp_path / "draws")[0].close()
    monkeypatch.chdir(tmp_path)
    before = {path.name: path.read_bytes() for path in Path("draws").iterdir()}
    with pytest.raises(FileExistsError) as caught:
        SampleBank("draws")
    text = str(caught.value)
    for part in ("got 'draws'", "holds 3 draws", "SampleBank('draws', resume=True)", "SampleBank.open('draws')", "delete"):
        assert part in text
    assert {path.name: path.read_bytes() for path in Path("draws").iterdir()} == before


def test_a_folder_whose_calls_were_counted_but_gave_no_draw_yet_is_refused_too(tmp_path):
    with SampleBank(tmp_path, thin=10) as bank:
        bank.add(small())
    with pytest.raises(FileExistsError, match="0 draws of 1 calls"):
        SampleBank(tmp_path, thin=10)


def test_resume_appends_and_starts_a_bank_where_there_is_none(tmp_path):
    for first in (0, 2):
        with SampleBank(tmp_path, resume=True) as bank:
            for step in range(first, first + 2):
                bank.add(small(step), step=step)
    assert [step for step, _ in whole(SampleBank.open(tmp_path))] == [0, 1, 2, 3]


def test_a_bank_that_was_rewound_to_its_start_counts_as_empty(tmp_path):
    with SampleBank(tmp_path) as bank:
        bank.add(small())
        bank.rewind(0)
    with SampleBank(tmp_path) as bank:
        bank.add(small(1), step=1)
    assert [step for step, _ in whole(SampleBank.open(tmp_path))] == [1]


def test_a_bank_object_goes_on_with_its_own_draws_after_close(tmp_path):
    bank, _ = filled(tmp_path, 2)
    bank.close()
    bank.add(small(2), step=2)
    assert len(bank) == 3


def test_a_run_that_started_beside_another_one_is_refused_at_its_first_draw(tmp_path):
    late = SampleBank(tmp_path)  # there are no draws yet
    filled(tmp_path, 2)[0].close()
    with pytest.raises(FileExistsError, match="holds 2 draws"):
        late.add(small(9))
    assert len(SampleBank.open(tmp_path)) == 2
    with SampleBank(tmp_path, resume=True) as other:  # the refused one does not keep the lock
        other.add(small(3))


@pytest.mark.parametrize(
    "write",
    [
        lambda bank: bank.add(small()),
        lambda bank: bank.rewind(1),
        lambda bank: bank.update_bn(small(), [torch.ones(4, 3)]),
    ],
    ids=["add", "rewind", "update_bn"],
)
def test_a_bank_that_was_opened_to_be_read_is_not_written(tmp_path, write):
    filled(tmp_path)[0].close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with SampleBank.open(tmp_path) as bank, pytest.raises(RuntimeError, match=r"to be read: SampleBank\('.*', resume=True\)"):
        write(bank)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["none", "empty"])
def test_opening_what_is_no_bank_is_an_error_that_names_it_and_makes_nothing(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"SampleBank\.open\(path=\.\.\.\) needs a folder with a bank, got '.*{name}'"):
        SampleBank.open(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("resume", [1, None, "yes"])
def test_resume_is_true_or_false_and_nothing_else(tmp_path, resume):
    with pytest.raises(TypeError, match=r"SampleBank\(resume=\.\.\.\) needs True or False"):
        SampleBank(tmp_path, resume=resume)


def test_a_bank_of_a_relative_path_stays_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bank = SampleBank("draws")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    bank.add(small())
    assert len(SampleBank.open(tmp_path / "draws")) == 1


def test_the_loop_of_the_readme_run_twice_says_so_before_it_trains_and_keeps_the_first_draws(tmp_path, monkeypatch):
    (code,) = [part for part in re.findall(r"^```python\n(.*?)^```", README.read_text(), re.S | re.M) if "SampleBank(" in part]
    script = tmp_path / "script.py"
    script.write_text(code)
    monkeypatch.chdir(tmp_path)
    x = lv.random.normal(0, 0, 0, 600).reshape(200, 3)
    labels, steps = (x[:, 0] > 0).long(), []

    def loss_fn(output, y):
        steps.append(len(y))
        return nn.functional.cross_entropy(output, y)

    for runs in range(2):
        with torch.random.fork_rng():
            net = nn.Linear(3, 2)
        loader = [(x, labels)] * 200
        names = {"lv": lv, "net": net, "loss_fn": loss_fn, "batch": (x, labels), "loader": loader, "x_new": x[:5]}
        if runs == 0:
            runpy.run_path(str(script), names)
            first, count = [path.read_bytes() for path in sorted(Path("draws").iterdir())], len(steps)
            steps.clear()
        else:
            with pytest.raises(FileExistsError, match="holds 2 draws"):
                runpy.run_path(str(script), names)
    assert [path.read_bytes() for path in sorted(Path("draws").iterdir())] == first
    assert len(steps) < count - 100  # a call or two of lint, none of the loop
