"""The study of the invariant forms: it runs in seconds, its page comes from records, and its numbers are the samplers'."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from langevin_paper.experiments.invariant import efficiency
from langevin_paper.experiments.invariant.draws import errors, run_settings
from langevin_paper.experiments.invariant.efficiency import EFFICIENCY, even_numbers, setting_of
from langevin_paper.experiments.invariant.integrator import Simple, exact_variance
from langevin_paper.experiments.invariant.law import LAW, kernel_of
from langevin_paper.experiments.invariant.problems import DEFINITIONS, problem
from langevin_paper.experiments.invariant.ravine import INVARIANT_RAVINE, Cycles, Falling
from langevin_paper.experiments.reheating import Reheating
from langevin_paper.figures import View
from langevin_paper.findings import FINDINGS
from langevin_paper.record import Record, Records, read_records
from langevin_paper.registry import EXPERIMENTS
from langevin_paper.report import write_report
from langevin_paper.worker import Cell, execute

import langevin as lv

STUDY = ("invariant-law", "invariant-integrator", "invariant-efficiency", "invariant-ravine")
DOCS = Path(__file__).parents[2] / "docs" / "study"


def case_of(name):
    return problem(name, DEFINITIONS[name])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A quick run of everything."""
    folder = tmp_path_factory.mktemp("study")
    records = Records(folder)
    for name in STUDY:
        experiment = EXPERIMENTS[name]
        scale = experiment.scale("quick")
        for method in experiment.methods:
            cell = Cell(experiment, scale, method, range(scale.num_seeds))
            done = execute(cell, records.work_folder(f"{name}-{method.name}"), lambda share: None)
            assert done.error is None, done.error
            shared = {"settings": cell.settings, "seeds": tuple(cell.seeds)}
            records.add(
                Record(name, "quick", method.name, seed, "done", results=done.results[seed], **shared) for seed in cell.seeds
            )
    records.close()
    return folder


def found(folder, experiment, method, seed=0):
    (record,) = (r for r in read_records(folder).records if r.key == (experiment, "quick", method, seed))
    return record.results


def test_a_quick_run_gives_a_page_with_all_tables_figures_and_findings(study, tmp_path):
    path, page = write_report(study, tmp_path)
    assert not page.problems
    assert [section.experiment.name for section in page.sections] == list(STUDY)
    assert all(section.tables and section.findings for section in page.sections)
    assert {file.stem for file in tmp_path.glob("*.png")} == {"law_factor", "law_step", "integrator", "efficiency"}
    assert "not comparable" not in path.read_text()


def test_the_invariant_form_is_within_chance_where_the_published_one_is_far_off(study):
    invariant, published = (
        found(study, "invariant-law", f"msgld-{form}")["gaussian"]["factors"] for form in ("invariant", "published")
    )
    for factor in ("1", "10"):
        assert invariant[factor]["error"] < 3 * invariant[factor]["chance"]
        assert published[factor]["error"] > max(20, 6 * published[factor]["chance"])


def test_the_simple_form_is_hotter_than_the_splitting(study):
    simple, split = (found(study, "invariant-integrator", f"{form}-1-0.9")["steps"]["0.12"] for form in ("simple", "baoab"))
    assert simple["error"] - 3 * simple["spread"] > 40 > split["error"] + 3 * split["spread"]
    assert simple["gaussian"] == pytest.approx(150.0)
    assert split["gaussian"] == pytest.approx(0.0, abs=1e-9)


def test_fresh_seeds_are_reported_apart_and_what_they_share_once(study):
    first, second = (found(study, "invariant-efficiency", "msgld-invariant", seed)["gaussian"] for seed in (0, 1))
    assert first["per_1000"] != second["per_1000"]
    assert len(first["tried"]) == 3
    assert first["chosen"]["per_1000"] == max(trial["per_1000"] for trial in first["tried"] if trial["excess"] <= 10)
    assert "chosen" not in second


def test_a_problem_that_is_done_is_not_run_again(tmp_path, monkeypatch):
    scale, method = EFFICIENCY.scale("quick"), EFFICIENCY.method("sgld")
    before = EFFICIENCY.run(method, scale, range(2), tmp_path, lambda share: None)
    monkeypatch.setattr(efficiency, "_tune", lambda *given: pytest.fail("it was run again"))
    assert EFFICIENCY.run(method, scale, range(2), tmp_path, lambda share: None) == before


def test_settings_of_the_search_are_spread_evenly():
    numbers = torch.tensor(even_numbers(7, 16))
    assert (numbers * 16).floor().sort(0).values.T.tolist() == [list(map(float, range(16)))] * 3


def test_the_committed_page_is_made_from_the_committed_records(tmp_path):
    write_report(DOCS / "records", tmp_path)
    assert (tmp_path / "report.md").read_text() == (DOCS / "report.md").read_text()


def test_the_committed_records_have_the_settings_of_this_version():
    records = read_records(DOCS / "records")
    assert not records.problems
    assert len(records.records) == 9 + 7 + 6 * 5 + 8 * 20
    for record in records.records:
        experiment = EXPERIMENTS[record.experiment]
        settings = experiment.settings_of(experiment.method(record.method), experiment.scale(record.scale))
        assert json.dumps(record.settings, sort_keys=True) == json.dumps(settings, sort_keys=True)
        assert "Converted" in record.amended
        assert record.origin["commit"][:7] in ("9cce881", "6bc5a83")


def findings(records):
    views = [View(EXPERIMENTS[name], tuple(r for r in records if r.experiment == name), {}) for name in STUDY]
    return [FINDINGS[view.experiment.name](view) for view in views]


def test_the_findings_are_those_of_the_records():
    """One changed record changes its sentence: the ravine's count, and who wins on the Gaussian."""
    records, changed = read_records(DOCS / "records").records, []
    for record in records:
        results = json.loads(json.dumps(record.results))
        if record.experiment == "invariant-ravine" and record.method == "sgld":
            results["near"] = 1.0
        if record.experiment == "invariant-efficiency" and record.method == "sghmc":
            results["gaussian"]["per_1000"] = 500.0 + record.seed
        if record.experiment == "invariant-efficiency" and record.method == "psgld":
            results["gaussian"]["per_1000"] = None
        changed.append(replace(record, results=results))
    before, after = findings(records), findings(changed)
    assert before[:2] == after[:2]
    assert "SGLD 0 of 5 (1 of 20)" in before[3][0]
    assert "SGLD 5 of 5 (20 of 20)" in after[3][0]
    assert "AdaMax invariant wins: 2.5 times the draws of SGHMC" in before[2][0]
    assert "AdaMax invariant loses: SGHMC has 3.62 times its draws" in after[2][0]
    assert "No setting of pSGLD was near enough" in after[2][0]
    assert "SGHMC blew up on 1 of 5 fresh seeds" in before[2][2]
    assert "ties with pSGLD" in before[2][4]
    assert "within three times chance" in before[0][0]
    assert "more than chance" in before[0][2]
    assert "SGLD 55.1 %, simple 60.4 to 121.8 %, BAOAB 0.3 to 9.2 %" in before[1][0]


@pytest.mark.parametrize("name", [name for name in DEFINITIONS if name != "logistic"])
def test_starts_are_draws_of_the_target(name):
    """20,000 draws, within 5 standard errors of the moments that errors are taken against; the mean gradient is zero."""
    case = case_of(name)
    draws = case.draw(20_000, 5)
    assert errors(draws[:, None], case).excess < 3 * errors(draws[:, None], case).chance * (math.pi / 2) ** 0.5 + 3
    gradient = lv.gradients.full(case.target)(draws, 0).gradient
    assert ((gradient.mean(0) / gradient.std(0)).abs() < 5 / 20_000**0.5).all()


def test_the_error_is_that_of_the_second_moment():
    """Along each axis half of the draws at plus, half at minus the root of the variance: exact; then 10 percent further out."""
    case = case_of("gaussian")
    variances, axes = torch.linalg.eigh(case.covariance)
    corners = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64) * variances**0.5
    draws = (corners @ axes.T).expand(3, 4, 2)
    assert errors(draws, case) == pytest.approx((0.0, 0.0, 0.0, 0.0), abs=1e-9)
    assert errors(0.9 * draws, case) == pytest.approx((19.0, -19.0, 0.0, 19.0), abs=1e-9)
    apart = torch.stack([draws[0], 1.1 * draws[0]])  # moments of 100 and 121 percent: 10.5 off, standard error 10.5
    assert errors(apart, case) == pytest.approx((10.5, 10.5, 10.5 * (2 / math.pi) ** 0.5, -10.5))
    assert errors(draws * math.inf, case) is None


def test_the_forms_are_what_they_say():
    def made(form):
        return kernel_of(LAW.method(form), 3.0, 0.1)

    assert [made(form).temperature for form in ("sgld", "msgld-published", "msgld-corrected", "msgld-invariant")] == [1, 1, 4, 1]
    assert made("msgld-corrected").effective_temperature == 1
    assert made("msgld-published").effective_temperature == 0.25
    assert made("asgld-invariant").effective_temperature == 1
    assert [made("msgld-annealed").inputs(step).annealing for step in (0, 10)] == pytest.approx([3.0, 3 * 2**-0.75])


def test_settings_side_by_side_are_those_of_sample():
    """The first chains are the chains of `sample` with the same seed and start."""
    case = case_of("banana")
    for make in (lambda eps, a: lv.msgld(eps, bias_factor=a), lambda eps, a: lv.asgld(eps, bias_factor=a, invariant=True)):
        both = run_settings([make(0.01, 2.0), make(0.02, 5.0)], case, num_chains=4, num_steps=30, warmup=10, seed=3)
        alone = lv.sample(
            case.target, sampler=make(0.01, 2.0), init=case.draw(8, 3)[:4], num_steps=30, warmup=10, seed=3, compile=False
        ).draws
        torch.testing.assert_close(both[0], alone, rtol=1e-4, atol=1e-5)


def test_the_exact_variance_is_that_of_the_known_laws():
    """SGLD on curvature k: 1 / (1 - eps k / 2); BAOAB: exact."""
    assert exact_variance(lv.sgld(1.0), 0.05, 4.0) == pytest.approx(0.25 / (1 - 0.1))
    assert exact_variance(lv.msgld(1.0, invariant=True), 0.05, 4.0) == pytest.approx(0.25, rel=1e-9)
    assert exact_variance(Simple("simple", 1.0), 0.05, 4.0) > 0.27
    assert exact_variance(lv.sgld(1.0), 0.6, 4.0) is None


def test_the_simple_form_is_its_formula():
    kernel = Simple("simple", 0.1, bias_factor=2.0, beta=0.8)
    at, average, gradient, eta, xi = 1.0, 0.5, 3.0, 0.3, -0.7
    one = torch.ones(1, 1, dtype=torch.float64)
    evaluation = lv.targets.Evaluation(one[0], gradient * one)
    moved, (after,) = kernel.update(at * one, evaluation, torch.stack([eta * one, xi * one]), (average * one,), kernel.inputs(1))
    expected = 0.8 * average + 0.2 * (gradient + math.sqrt(2 / (2.0 * 0.1)) * xi)
    assert float(after) == pytest.approx(expected)
    assert float(moved) == pytest.approx(at - 0.1 * (gradient + 2.0 * expected) + math.sqrt(0.2) * eta)


@pytest.mark.parametrize("name", ["sgld", "sghmc", "msgld-invariant"])
def test_the_range_of_step_sizes_ends_at_instability(name):
    """On the Gaussian: finite at 90 percent of the largest step, and unstable at 120.

    The others learn a scale that is near the one that their range assumes, not equal to it.
    """
    case, method, scale = case_of("gaussian"), EFFICIENCY.method(name), EFFICIENCY.scale("paper")
    setting = setting_of(method, case, {**scale.settings, **scale.settings["problems"]["gaussian"]}, [1.0, 0.4, 0.6])
    kernels = [efficiency.kernel_of(method, {**setting, "step_size": share * setting["step_size"]}) for share in (0.9, 1.2)]
    draws = run_settings(kernels, case, num_chains=8, num_steps=3000, warmup=100, seed=1)
    assert draws[0].abs().max() < 100
    assert errors(draws[1], case) is None or draws[1].abs().max() > 1e6


def test_the_ravines_schedules():
    falling = Falling(2.0, 0.25, 100)
    assert [falling(step) for step in (0, 50, 100, 500)] == pytest.approx([2.0, 1.0, 0.5, 0.5])
    shape = {"cycle_length": 100, "flat": 0.8, "fall": 0.1, "floor": 0.01, "decay": 0.7}
    cycles, silent = Cycles(1.0, **shape), Reheating(1.0, **shape)
    assert [cycles(step) for step in range(250)] == [silent(step) for step in range(250)]
    assert not any(cycles.explores(step) for step in range(250))


def test_a_seed_of_the_ravine_is_its_data_set(tmp_path):
    """Alone and together, a seed has the same chain on the same data set."""
    scale, method = INVARIANT_RAVINE.scale("quick"), INVARIANT_RAVINE.method("sghmc")
    both, last = (INVARIANT_RAVINE.run(method, scale, seeds, tmp_path, lambda share: None) for seeds in (range(3), range(2, 3)))
    assert last[2]["theta_1"] == pytest.approx(both[2]["theta_1"])
    assert last[2]["theta_1"] != both[1]["theta_1"]
