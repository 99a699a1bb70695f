"""The sparse networks in the runner: a cell trains, prunes, refines and samples; its record has what the page asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from langevin_paper.experiments.lenet import LENET, Batches, stages_of
from langevin_paper.figures import FIGURES, View
from langevin_paper.record import Record, read_records

SETTINGS = {
    "data": "landsat", "sizes": (36, 12, 8, 6), "batch_size": 50, "rows": (3_400, 500), "held_out": 1000, "epochs": (3, 6, 3, 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    scale, shares = replace(LENET.scale("quick"), settings=SETTINGS), []
    found = LENET.run(LENET.method("msgld"), scale, range(2), tmp_path_factory.mktemp("cell"), shares.append)
    assert shares == pytest.approx([k / 14 for k in range(1, 15)] * 2)
    return found


def test_a_cell_gives_what_the_page_asks_for(results):
    keys = [column.key for table in LENET.tables for column in table.columns]
    keys += [key for listing in LENET.listings for key in listing.keys]
    for found in results.values():
        assert all(key in found for key in keys)
        assert len(found["error_curve"]) == len(found["kept_curve"]) == 14
        assert found["kept"] == sum((found[f"weight_{k}"] != 0).sum() for k in range(3)) <= found["kept_curve"][-1]
        assert found["compression"] == pytest.approx((36 * 12 + 12 * 8 + 8 * 6) / found["kept"])
        assert (found["kept_curve"][9:] <= found["kept_curve"][9]).all()  # what is pruned stays zero
        assert found["test_error"] == pytest.approx(found["error_curve"][11])  # the network after stage 3, as it stands
        assert found["test_error"] < 60  # better than a guess
    assert results[0]["test_nll"] != results[1]["test_nll"]


def test_figures_are_drawn_from_the_record(results):
    scale = LENET.scale("quick")
    method = LENET.method("msgld")
    record = Record("sparse", "quick", "msgld", 0, "done", LENET.settings_of(method, scale), {})
    arrays = {name: value for name, value in results[0].items() if isinstance(value, np.ndarray)}
    for figure in FIGURES["sparse"]:
        assert figure.draw(View(LENET, (record,), {record.key: arrays})) is not None
        assert figure.draw(View(LENET, (), {})) is None


def test_every_row_is_read_once_in_an_epoch_in_an_order_of_its_own():
    x = np.arange(20)
    batches = Batches(torch.from_numpy(x), torch.from_numpy(-x), 5, seed=0)
    first, second = (torch.cat([rows for rows, _ in batches]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == x.tolist()
    assert first != second


def test_the_rows_differ_in_the_width_of_the_last_spike_alone():
    ends = []
    for method in LENET.methods:
        _, second, third, fourth = stages_of(dict(method.settings), (1, 2, 3, 4))
        assert third.prune == second.prior.end
        assert fourth.prune == 0.0
        ends.append(second.prior.end.spike_std)
    assert ends == sorted(set(ends))


def test_the_committed_records_have_the_settings_of_this_version():
    folder = Path(__file__).parents[2] / "docs" / "sparse" / "records"
    found = read_records(folder)
    assert not found.problems
    assert found.records
    for record in found.records:
        settings = LENET.settings_of(LENET.method(record.method), LENET.scale(record.scale))
        assert json.dumps(record.settings, sort_keys=True) == json.dumps(settings, sort_keys=True)


def test_the_page_prints_the_numbers_of_the_records():
    docs = Path(__file__).parents[2] / "docs"
    table = (docs / "sparse" / "report.md").read_text().split("Units alive")[0].splitlines()
    rows = [line for line in table if line.startswith("| MSGLD")]
    assert rows
    assert [line for line in (docs / "sparse.md").read_text().splitlines() if line.startswith("| MSGLD")] == rows
