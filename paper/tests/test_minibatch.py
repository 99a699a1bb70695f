"""The bias atlas under minibatches: it runs in seconds, its page comes from records, and its numbers are the samplers'."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from langevin_paper.atlas_findings import atlas_findings
from langevin_paper.experiments.minibatch import atlas
from langevin_paper.experiments.minibatch.atlas import MINIBATCH
from langevin_paper.experiments.minibatch.ladders import kernel_of, law_at, noise_of, rungs_of
from langevin_paper.experiments.minibatch.laws import law_of
from langevin_paper.experiments.minibatch.measures import measured
from langevin_paper.experiments.minibatch.network import Network
from langevin_paper.experiments.minibatch.problems import DEFINITIONS, TITLES, problem
from langevin_paper.experiments.minibatch.regressions import Regression
from langevin_paper.figures import View
from langevin_paper.record import Record, Records, read_records
from langevin_paper.report import plain_tables, write_report
from langevin_paper.worker import Cell, execute

import langevin as lv
from langevin.adaptation.stationary import stationary_error
from langevin.targets import Batch

DOCS = Path(__file__).parents[2] / "docs" / "minibatch"
SMALL = {"num_data": 400, "dim": 3, "reference_draws": 200, "noise_rows": 400}
BATCHES = {"batches": {"20": {"chains": 4, "epochs": 3.0}}}
TINY = {
    "gaussian": BATCHES, "logistic": {**SMALL, "batches": {"10": {"chains": 4, "epochs": 2.0}}},
    "network": {
        "num_data": 100, "inputs": 1, "hidden": 2, "noise_rows": 100, "noise_places": 2, "test_points": 3,
        "reference": {"chains": 4, "num_draws": 50, "seed": 1}, **BATCHES,
    },
}  # fmt: skip


def tiny(*names):
    quick = MINIBATCH.scale("quick")
    problems = {name: {**quick.settings["problems"][name], **TINY[name]} for name in names or TINY}
    return replace(quick, settings={**quick.settings, "halvings": 8, "warmup": 40, "problems": problems})


pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_tiny_run_gives_a_page_with_tables_figures_and_findings(tmp_path):
    records, scale = Records(tmp_path), tiny()
    for method in MINIBATCH.methods:
        shares = []
        outcome = execute(Cell(MINIBATCH, scale, method, range(1)), records.work_folder(method.name), shares.append)
        assert outcome.error is None, outcome.error
        assert shares[-1] == 1.0
        settings = MINIBATCH.settings_of(method, MINIBATCH.scale("quick"))  # the page shows no others
        records.add([Record("minibatch", "quick", method.name, 0, "done", settings, outcome.results[0], seeds=(0,))])
    records.close()
    _, page = write_report(tmp_path, tmp_path / "report")
    (section,) = page.sections
    assert not page.problems
    assert [picture.name for picture in section.pictures] == ["race", "atlas"]
    assert all(method.label in plain_tables(page.sections) for method in MINIBATCH.methods)
    text = " ".join(section.findings)
    assert "aim 0.7 draws per epoch" in text
    assert "aim 20 times" in text
    assert "aim a mean variance error of 2 %" in text
    assert "errors of the variances of predictions" in text


def test_what_is_done_is_not_run_again(tmp_path, monkeypatch):
    scale, method = tiny("gaussian"), MINIBATCH.method("full")
    before = MINIBATCH.run(method, scale, range(1), tmp_path, lambda share: None)
    monkeypatch.setattr(atlas, "_measure", lambda *given: pytest.fail("it was run again"))
    assert MINIBATCH.run(method, scale, range(1), tmp_path, lambda share: None) == before


@pytest.mark.parametrize("period", [None, 50])
def test_a_law_in_many_dimensions_is_that_of_each_axis(period):
    """Against `adaptation.stationary`, which solves one direction; the spectrum against SGLD's (2 / (eps k)) - 1 steps a draw."""
    curvature, noise = torch.tensor([1.0, 7.0], dtype=torch.float64), torch.tensor([30.0, 5.0], dtype=torch.float64)
    turn = torch.tensor([[math.cos(0.4), -math.sin(0.4)], [math.sin(0.4), math.cos(0.4)]], dtype=torch.float64)
    for kernel in (lv.sgld(0.02), lv.sghmc(0.02), lv.msgld(0.02, bias_factor=3.0, invariant=True)):
        law = law_of(kernel, (turn * curvature) @ turn.mT, (turn * noise) @ turn.mT, period=period)
        for axis in range(2):
            given = {"curvature": float(curvature[axis]), "noise": float(noise[axis]), "steps_per_epoch": period}
            assert float(law.errors(turn, 1 / curvature)[axis]) == pytest.approx(stationary_error(kernel, 0.02, **given), rel=1e-6)
    plain = law_of(lv.sgld(0.02), curvature.diag(), noise.diag())
    assert plain.steps_per_draw(torch.eye(2, dtype=torch.float64)).tolist() == pytest.approx([99.0, 2 / 0.14 - 1])
    assert law_of(lv.sgld(0.3), curvature.diag(), noise.diag()) is None


def test_the_full_noise_is_absorbed_exactly_and_the_diagonal_is_not():
    case = problem("gaussian", DEFINITIONS["gaussian"])
    given = {**MINIBATCH.scale("quick").settings}
    for size in (10, 100):
        full, diagonal, free = (
            law_at(method := MINIBATCH.method(name), rungs_of(method, case, size, {**given, "tuned": False})[0], case, size)
            for name in ("full", "diagonal", "msgld-white")
        )
        assert full[0] < 1e-9
        assert 0.95 < full[1] <= 1.001  # the limit: one draw per epoch
        assert diagonal[0] > 0.5
        assert free[0] > 50


@pytest.mark.parametrize("name", ["sgld", "sghmc", "msgld", "msgld-white"])
def test_the_tuned_setting_is_at_the_bound(name):
    case, method = problem("linear", {**DEFINITIONS["linear"], **SMALL}), MINIBATCH.method(name)
    rung = rungs_of(method, case, 10, MINIBATCH.scale("quick").settings)[-1]
    assert rung.name == "tuned"
    worst, draws, _ = law_at(method, rung, case, 10)
    assert 0.08 < worst <= 0.1001
    assert draws > 0


@pytest.mark.filterwarnings("ignore::langevin.TrustWarning")
def test_a_run_has_its_law():
    """SGLD with much heat, on a linear regression: variances within 4 standard errors of what the law says."""
    case, method = problem("linear", {**DEFINITIONS["linear"], **SMALL}), MINIBATCH.method("sgld-white")
    rung = rungs_of(method, case, 20, {**MINIBATCH.scale("quick").settings, "tuned": False})[1]
    law = law_at(method, rung, case, 20)[2]
    curvatures, axes = torch.linalg.eigh(case.hessian)
    kernel = kernel_of(method, rung, case, 20, torch.float32, 1)
    run = lv.sample(
        case.target,
        sampler=kernel,
        init=case.draw(64, 1),
        num_steps=1000,
        warmup=300,
        data=case.data,
        batch_size=20,
        batches="white",
        compile=False,
        progress=False,
    )  # fmt: skip
    found = case.coordinates(run.draws).double().pow(2).mean((0, 1))
    expected, steps = 1 + law.errors(axes, 1 / curvatures), law.steps_per_draw(axes)
    error = expected * (2 * steps / (64 * 700)) ** 0.5
    assert ((found - expected).abs() < 4 * error + 0.03 * expected).all()  # the law is that of additive noise
    assert expected.max() > 1.5


def test_rows_say_what_the_noise_is():
    """Sigma of a minibatch against the covariance of 4,000 gradients, within 5 standard errors."""
    case = problem("logistic", {**DEFINITIONS["logistic"], **SMALL})
    estimate = lv.gradients.minibatch(case.target, case.data, 20, seed=3, chains=range(4000), batches="white")
    gradients = estimate(case.mode.repeat(4000, 1), 0).gradient.double()
    expected = noise_of(MINIBATCH.method("full"), case, 20).diagonal()
    assert ((gradients.var(0) / expected - 1).abs() < 5 * (2 / 4000) ** 0.5 + 0.05).all()  # it differs over the posterior's draws


@pytest.mark.parametrize("target", [Regression("identity", 2.0, 3), Regression("logit", 2.0, 3), Network(2, 3, 0.5, 2.0)])
@pytest.mark.parametrize("per_chain", [True, False])
def test_gradients_written_by_hand_are_those_of_autograd(target, per_chain):
    generator = torch.Generator().manual_seed(0)
    position = torch.randn(4, target.dim, generator=generator, dtype=torch.float64).requires_grad_()
    inputs = target.inputs if isinstance(target, Network) else 3
    shape = (4, 6) if per_chain else (6,)
    x = torch.randn(*shape, inputs, generator=generator, dtype=torch.float64)
    y = torch.rand(*shape, generator=generator, dtype=torch.float64).round()
    batch = Batch((x, y), 30, per_chain)
    found = target.evaluate(position, batch)
    (expected,) = torch.autograd.grad(found.energy.sum(), position)
    torch.testing.assert_close(found.gradient, expected)


def test_the_reference_of_a_logistic_regression_is_that_of_a_long_run():
    case = problem("logistic", {**DEFINITIONS["logistic"], **SMALL, "reference_draws": 4000})
    run = lv.sample(case.target, data=tuple(c.double() for c in case.data), num_draws=1500, compile=False, progress=False)
    found = measured(run.draws, case)
    assert found["ess"] > 1500
    assert found["worst"] < 3 * found["worst_chance"] + 3
    assert found["shift"] < 3 * found["shift_chance"] + 0.03


def test_errors_are_those_of_the_draws():
    """Independent draws that are 10 percent too wide: 21 percent, within chance."""
    case = problem("linear", {**DEFINITIONS["linear"], **SMALL})
    centre, wide = case.mode, case.draw(8000, 5)
    found = measured((centre + 1.1 * (wide - centre)).reshape(8, 1000, 3), case)
    assert found["signed"] == pytest.approx(21.0, abs=4 * found["mean_chance"])
    assert found["worst_chance"] == pytest.approx(1.21 * 100 * (2 / 8000) ** 0.5 * 1.27, rel=0.2)  # of three |normals|
    assert found["ess"] == pytest.approx(8000, rel=0.15)
    assert measured(torch.full((2, 10, 3), math.nan), case)["worst"] is None


def test_every_problem_has_a_title_and_every_scale_knows_its_problems():
    assert set(TITLES) == set(DEFINITIONS)
    for scale in MINIBATCH.scales:
        assert set(scale.settings["problems"]) <= set(TITLES)
        json.dumps(dict(scale.settings))


def test_the_committed_page_is_made_from_the_committed_records(tmp_path):
    write_report(DOCS / "records", tmp_path)
    assert (tmp_path / "report.md").read_text() == (DOCS / "report.md").read_text()


def test_the_committed_records_have_the_settings_of_this_version():
    found = read_records(DOCS / "records")
    assert not found.problems
    assert {record.method for record in found.records} == {method.name for method in MINIBATCH.methods}
    for record in found.records:
        settings = MINIBATCH.settings_of(MINIBATCH.method(record.method), MINIBATCH.scale(record.scale))
        assert json.dumps(record.settings, sort_keys=True) == json.dumps(settings, sort_keys=True)


def test_the_findings_are_those_of_the_records():
    """A changed record changes its sentence."""
    records = read_records(DOCS / "records").records

    def said(change):
        changed = []
        for record in records:
            results = json.loads(json.dumps(record.results))
            if record.method == "full":
                change(results["logistic"]["100"]["best"])
            changed.append(replace(record, results=results))
        return next(text for text in atlas_findings(View(MINIBATCH, tuple(changed), {})) if "d = 10, n = 100: aim 0.7" in text)

    assert "corrected, full Σ 0.123 draws per epoch" in said(lambda best: best.update(draws=0.123))
    assert "worst variance off by 1.5 %" in said(lambda best: best.update(draws=0.9, worst=1.5))
    assert "reached. " in said(lambda best: best.update(draws=0.9, worst=1.5))
