"""The search on the ravine: many settings at once walk as each does alone, and fresh data sets stay out of the choice."""

from __future__ import annotations

import json

import pytest
import torch
from langevin_paper.batched import mean_positions
from langevin_paper.chains import normal_starts
from langevin_paper.experiments import ravine_search
from langevin_paper.experiments.ravine import Side, stacked_data
from langevin_paper.experiments.ravine_candidates import candidates
from langevin_paper.experiments.ravine_search import RAVINE_SEARCH
from langevin_paper.experiments.ravine_search_settings import FIRST, FURTHER, SHARED
from langevin_paper.experiments.reheating import Reheating
from langevin_paper.figures import FIGURES, View, png
from langevin_paper.record import Record, Records
from langevin_paper.report import write_report
from langevin_paper.spec import Scale
from langevin_paper.worker import Cell, execute

import langevin as lv
from langevin.kernels.drifts import Adam, Momentum
from langevin.targets import ravine

SEED = 0
SHORT = {"num_steps": 90, "warmup": 30, "num_settings": 6, "first_sets": 2, "further_sets": 2, "compile": False}
TINY = Scale("tiny", {**SHARED, **SHORT}, 3, 1.0)
SEARCHED = [method for method in RAVINE_SEARCH.methods if isinstance(method.settings["step_size"], tuple)]


pytestmark = pytest.mark.usefixtures("one_thread")


def reheating(initial, cycle_length):
    return Reheating(initial, cycle_length=cycle_length, flat=0.8, fall=0.1, floor=0.01, decay=0.7)


def tiny(method, folder, seeds=range(3), progress=lambda share: None):
    folder.mkdir(exist_ok=True)
    return execute(Cell(RAVINE_SEARCH, TINY, RAVINE_SEARCH.method(method), seeds), folder, progress)


@pytest.mark.parametrize("method", SEARCHED, ids=lambda method: method.name)
def test_many_settings_at_once_walk_as_sample_walks_with_each(method):
    sets, length = range(100, 102), {"num_steps": 120, "warmup": 40, "batch_size": 20}
    tried = candidates(method, {**SHARED, "num_settings": 8, "num_steps": length["num_steps"]})
    assert {str(candidate.step_size).count("flat-top") for candidate in tried} == {0, 1}, "some explore, some do not"
    kernels = [candidate.kernel(method) for candidate in tried]
    data, starts = stacked_data(sets), normal_starts(sets, 2, seed=SEED)
    together = mean_positions(kernels, ravine(), starts, data, chains=sets, seed=SEED, progress=lambda share: None, **length)
    for kernel, found in zip(kernels, together, strict=True):
        kept = lv.sample(
            Side(ravine()),
            sampler=kernel,
            init=starts,
            data=data,
            seed=SEED,
            first_chain=sets[0],
            compile=False,
            progress=False,
            **length,
        )
        # The ravine is chaotic: rounding, 1e-16, grows along the 120 steps.
        assert torch.allclose(found, kept.draws.mean(1), rtol=1e-6, atol=1e-6), kernel.name


def test_a_chain_that_goes_non_finite_disturbs_no_other():
    sets, options = range(100, 102), {"chains": range(100, 102), "num_steps": 60, "warmup": 20, "batch_size": 20, "seed": SEED}
    data, starts = stacked_data(sets), normal_starts(sets, 2, seed=SEED)
    good = lv.sgld(1e-6)
    alone = mean_positions([good], ravine(), starts, data, progress=lambda share: None, **options)
    both = mean_positions([lv.sgld(1e300), good], ravine(), starts, data, progress=lambda share: None, **options)
    assert not both[0].isfinite().any()
    assert torch.equal(both[1], alone[0])


def test_kernels_that_differ_in_more_than_numbers_are_refused():
    with pytest.raises(TypeError, match=r"side_by_side\(kernels\.drift=...\) needs values of one type"):
        lv.side_by_side([lv.compose(0.1, drift=Momentum()), lv.compose(0.1, drift=Adam())])
    with pytest.raises(ValueError, match=r"side_by_side\(kernels\.name=...\) needs the same value"):
        lv.side_by_side([lv.sgld(0.1), lv.psgld(0.1)])


def test_every_method_tries_the_same_points_within_its_ranges():
    tried = {method.name: candidates(method, {**SHARED, "num_settings": 60, "num_steps": 30_000}) for method in SEARCHED}
    kinds = {name: [str(candidate.step_size).split(" ", 1)[1:] for candidate in found] for name, found in tried.items()}
    assert all(found == kinds["sgld"] for found in kinds.values())
    assert all(sum(word in str(text) for text in kinds["sgld"]) >= 8 for word in ("flat-top", "floor(step", "(1 + step"))
    for method in SEARCHED:
        low, high = method.settings["step_size"]
        for candidate in tried[method.name]:
            assert low <= candidate.step_size(0) <= high * 1.001
            candidate.kernel(method)
            if "a * step_size" in method.settings:
                a, b = method.settings["a * step_size"]
                assert a * 0.999 <= candidate.settings["bias_factor"] * candidate.step_size(0) <= b * 1.001
    invariant, published = tried["asgld-invariant"], tried["asgld"]
    assert [{**c.settings, "invariant": True} for c in published] == [c.settings for c in invariant]


def test_reheating_is_its_formula():
    schedule = reheating(2.0, cycle_length=10_000)
    values = {0: 2.0, 8_000: 2.0, 8_500: 2 * 0.505, 9_000: 0.02, 9_999: 0.02, 10_000: 1.4, 18_500: 1.4 * 0.505, 29_999: 0.0098}
    assert {step: schedule(step) for step in values} == pytest.approx(values)
    assert [step for step in range(30_000) if not schedule.explores(step)] == [
        *range(9_000, 10_000), *range(19_000, 20_000), *range(29_000, 30_000)
    ]  # fmt: skip
    target = lv.targets.gaussian([[1.0]])
    samples = lv.sample(
        target, sampler=lv.sgld(reheating(0.1, cycle_length=100)), init=torch.zeros(1, 1), num_steps=300, warmup=100
    )
    assert samples.draws.shape == (1, 20, 1)
    with pytest.raises(ValueError, match=r"reheating\(cycle_length=...\) needs a step to fall"):
        reheating(0.1, cycle_length=2)


def test_a_search_gives_a_page_with_settings_estimates_and_figure(tmp_path):
    records = Records(tmp_path)
    scale = RAVINE_SEARCH.scales[0]
    for method in RAVINE_SEARCH.methods:
        shares = []
        outcome = tiny(method.name, tmp_path / method.name, range(7), shares.append)
        assert outcome.error is None, outcome.error
        assert 0 <= min(shares) <= max(shares) <= 1
        settings = RAVINE_SEARCH.settings_of(method, scale)
        records.add(
            Record(RAVINE_SEARCH.name, scale.name, method.name, seed, "done", settings, results, seeds=tuple(range(7)))
            for seed, results in outcome.results.items()
        )
    page, made = write_report(tmp_path, tmp_path / "report")
    (section,) = made.sections
    assert not made.problems
    assert set(TINY.settings) == set(scale.settings)
    assert [picture.name for picture in section.pictures] == ["ravine-search"]
    text = page.read_text()
    assert outcome.results[0]["chosen"] in text
    assert "run 5" in text
    assert "run 6" not in text
    assert all(row.entries[1].ours.n == 5 for row in section.tables[0].rows), "of data sets 0 to 4"
    assert [row.n for row in section.tables[0].rows] == [7] * len(RAVINE_SEARCH.methods)


def test_the_choice_never_sees_a_fresh_data_set(tmp_path, monkeypatch):
    asked = []

    def watched(seeds, given):
        asked.append(seeds)
        return stacked_data(seeds, given)

    monkeypatch.setattr(ravine_search, "stacked_data", watched)
    first = tiny("msgld-invariant", tmp_path / "first", range(3)).results
    assert asked == [FIRST[:2], FURTHER[:2], range(3)]
    other = tiny("msgld-invariant", tmp_path / "other", range(7, 9)).results
    assert asked[-3:] == [FIRST[:2], FURTHER[:2], range(7, 9)]
    assert other[7]["chosen"] == first[0]["chosen"]
    assert (tmp_path / "other" / "winner.json").read_text() == (tmp_path / "first" / "winner.json").read_text()
    assert {*FIRST, *FURTHER}.isdisjoint(range(RAVINE_SEARCH.scales[-1].num_seeds))
    assert "data sets below 100" in tiny("msgld", tmp_path / "bad", range(99, 101)).error


def test_the_choice_is_by_counts_then_by_distance(tmp_path):
    far = torch.tensor([[9.0, 9.0, 0.1], [0.1, 0.2, 9.0], [0.1, 0.1, 5.0], [torch.inf] * 3])
    assert ravine_search._ranked(far, 0.3) == [2, 1, 0, 3]


def test_a_killed_search_goes_on_with_the_stages_it_has(tmp_path):
    def stop(share):
        if share > 0.6:
            raise OSError("pulled the plug")

    whole = tiny("sghmc", tmp_path / "whole").results
    assert "pulled the plug" in tiny("sghmc", tmp_path / "cut", progress=stop).error
    assert len(json.loads((tmp_path / "cut" / "finalists.json").read_text())) == 6
    assert tiny("sghmc", tmp_path / "cut").results == whole


def test_the_figure_needs_records():
    (figure,) = FIGURES["ravine-search"]
    assert figure.draw(View(RAVINE_SEARCH, (), {})) is None
    record = Record("ravine-search", "quick", "sgld", 0, "done", {}, {"near": 1.0, "search_share": 0.5})
    assert len(png(figure.draw(View(RAVINE_SEARCH, (record,), {})))) > 1_000
