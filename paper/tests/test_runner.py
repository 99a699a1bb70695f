"""The runner: nothing that is done is lost or done again, whatever fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from langevin_paper.record import Records
from langevin_paper.runner import Monitor, missing_cells, run_cells
from toys import DEADLY, ENVIRONMENT, TOY

SCRIPT = """
import sys
from toys import TOY
from langevin_paper.record import Records
from langevin_paper.runner import missing_cells, run_cells
if __name__ == "__main__":
    records = Records(sys.argv[1])
    run_cells(missing_cells([TOY], "paper", records, methods=["good", "slow"]), records)
"""


def starts(folder):
    """Return how often each method was started."""
    lines = (folder / "starts.txt").read_text().splitlines()
    return {name: sum(line.startswith(name) for line in lines) for name in ("good", "slow", "bad")}


def test_a_failed_cell_is_recorded_with_its_error_and_the_rest_goes_on(tmp_path):
    records = Records(tmp_path)
    told = []

    class Told(Monitor):
        def finished(self, cell, outcome):
            told.append((cell.method.name, outcome.error is None))

    made = run_cells(missing_cells([TOY], "quick", records, methods=["bad", "good"]), records, jobs=2, monitor=Told())
    assert sorted(told) == [("bad", False), ("good", True)]
    failed = [record for record in made if not record.is_done]
    assert {record.method for record in failed} == {"bad"}
    assert "ZeroDivisionError: on purpose" in failed[0].error
    good = [record for record in records.all() if record.method == "good"]
    assert [record.results["value"] for record in good] == [10.0, 11.0]
    assert good[0].seconds > 0
    assert good[0].origin["versions"]["torch"]
    assert good[0].settings == TOY.settings_of(TOY.method("good"), TOY.scale("quick"))
    assert not list((tmp_path / "work").glob("toy-quick-good*"))

    again = missing_cells([TOY], "quick", records, methods=["bad", "good"])
    assert [cell.method.name for cell in again] == ["bad"]


def test_other_settings_and_missing_seeds_make_new_cells(tmp_path):
    records = Records(tmp_path)
    run_cells(missing_cells([TOY], "quick", records, methods=["good"], seeds=[1]), records)
    missing = missing_cells([TOY], "quick", records, methods=["good"], seeds=[0, 1, 2, 3, 5])
    assert [cell.seeds for cell in missing] == [range(0, 1), range(2, 4), range(5, 6)]
    changed = replace(TOY, methods=(replace(TOY.methods[0], settings={"step_size": 0.2}),))
    assert [cell.seeds for cell in missing_cells([changed], "quick", records)] == [range(0, 2)]
    apart = missing_cells([replace(TOY, seeds_together=False)], "paper", records, methods=["good"])
    assert [cell.seeds for cell in apart] == [range(k, k + 1) for k in range(3)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_goes_on_where_it_stopped(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "records"
    command = [sys.executable, str(script), str(folder)]
    first = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not any(len(path.read_text().split()) >= 2 for path in folder.glob("work/toy-paper-slow*/counter")):
        assert first.poll() is None, first.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.send_signal(how)
    first.wait(timeout=30)
    first.stderr.close()
    time.sleep(0.5)  # the process that it had started follows it
    counted = len(next(folder.glob("work/toy-paper-slow*/counter")).read_text().split())
    assert counted < 8

    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert starts(folder) == {"good": 1, "slow": 2, "bad": 0}
    records = Records(folder)
    slow = [record for record in records.all() if record.method == "slow"]
    assert [record.results["processes"] for record in slow] == [2, 2, 2]
    assert not missing_cells([TOY], "paper", records, methods=["good", "slow"])


def test_a_process_that_dies_is_a_failed_cell(tmp_path):
    records = Records(tmp_path)
    made = run_cells(missing_cells([DEADLY], "quick", records, methods=["slow", "good"]), records)
    assert [(record.method, record.is_done) for record in made] == [("slow", False)] * 2 + [("good", True)] * 2
    assert "exit code 9" in made[0].error


def test_unknown_names_are_answered_with_the_choices(tmp_path):
    with pytest.raises(ValueError, match="one of good, slow, bad, got 'better'"):
        missing_cells([TOY], "quick", Records(tmp_path), methods=["better"])
    with pytest.raises(ValueError, match="one of quick, paper, got 'huge'"):
        missing_cells([TOY], "huge", Records(tmp_path / "other"))
