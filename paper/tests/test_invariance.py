"""The study of the invariant forms: its command, its record, its page, and that its numbers are the samplers'."""

from __future__ import annotations

import json
import math

import pytest
import torch
from langevin_paper.invariance import efficiency, integrator, law
from langevin_paper.invariance.__main__ import main
from langevin_paper.invariance.page import write_page
from langevin_paper.invariance.parts import PARTS, units
from langevin_paper.invariance.problems import PROBLEMS, problem
from langevin_paper.invariance.walk import errors, walk

import langevin as lv


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A quick run of everything, by the command."""
    folder = tmp_path_factory.mktemp("study")
    main(["--quick", "--out", str(folder), "--workers", "1"])
    return folder


def read(folder):
    return json.loads((folder / "results.json").read_text())


def test_the_results_have_all_parts_and_their_circumstances(study):
    parts = read(study)["parts"]
    assert {part: list(found) for part, found in parts.items()} == {part: units(part, quick=True) for part in PARTS}
    for found in (unit for part in parts.values() for unit in part.values()):
        assert {"seed", "seconds", "commit", "versions", "machine", "date", "load"} <= set(found["run"])
    assert {path.name for path in study.glob("*.png")} == {"law_factor.png", "law_step.png", "integrator.png", "efficiency.png"}


def test_the_invariant_form_is_within_chance_where_the_published_one_is_far_off(study):
    points = {form: read(study)["parts"]["law"][f"gaussian/{form}"]["points"] for form in law.FORMS}
    for invariant, published in zip(points["MSGLD invariant"], points["MSGLD published"], strict=True):
        assert invariant["error"] < 3 * invariant["chance"]
        assert published["error"] > 0.2
        assert published["error"] > 6 * published["chance"]


def test_a_second_call_keeps_what_is_finished_and_runs_what_is_missing(study, capsys):
    before = read(study)
    gone = before["parts"]["integrator"].pop("a 1, beta 0.9")
    (study / "results.json").write_text(json.dumps(before))
    main(["--quick", "--out", str(study), "--workers", "1"])
    assert "1 runs done now" in capsys.readouterr().out
    after = read(study)["parts"]
    assert after["integrator"]["a 1, beta 0.9"]["points"] == gone["points"]  # every number has an address
    assert after["law"] == before["parts"]["law"]


def test_settings_of_the_search_are_spread_evenly():
    numbers = torch.tensor(efficiency._even_numbers(7, 16))
    assert (numbers * 16).floor().sort(0).values.T.tolist() == [list(map(float, range(16)))] * 3


def test_a_full_run_is_not_mixed_with_a_quick_one(study):
    with pytest.raises(ValueError, match="holds a quick run, this is a full one"):
        main(["--out", str(study)])


def test_the_page_is_made_from_the_results_and_from_nothing_else(study):
    page = write_page(study).read_text()
    assert write_page(study).read_text() == page
    found = read(study)
    value = found["parts"]["integrator"]["a 1, beta 0.5"]["points"][0]["value"]
    assert f"{value:.4f}" in page
    found["parts"]["integrator"]["a 1, beta 0.5"]["points"][0]["value"] = 0.7654
    found["parts"]["efficiency"]["gaussian/SGLD"]["chosen"] = None
    (study / "results.json").write_text(json.dumps(found))
    changed = write_page(study).read_text()
    assert "0.7654" in changed
    assert "none near enough" in changed
    assert changed != page


@pytest.mark.parametrize("name", PROBLEMS[:-1])
def test_starts_are_draws_of_the_target(name):
    """20,000 draws, within 5 standard errors of the moments that errors are taken against; the mean gradient is zero."""
    case = problem(name)
    draws = case.draw(20_000, 5)
    assert errors(draws[:, None], case).excess < 3 * errors(draws[:, None], case).chance * (math.pi / 2) ** 0.5 + 0.03
    gradient = lv.gradients.full(case.target)(draws, 0).gradient
    assert ((gradient.mean(0) / gradient.std(0)).abs() < 5 / 20_000**0.5).all()


def test_settings_side_by_side_are_those_of_sample():
    """The first chains of a walk are the chains of `sample` with the same seed and start."""
    case = problem("banana")
    for make in (lambda eps, a: lv.msgld(eps, bias_factor=a), lambda eps, a: lv.asgld(eps, bias_factor=a, invariant=True)):
        both = walk(make(1.0, 1.0), case, torch.tensor([0.01, 0.02]), factors=torch.tensor([2.0, 5.0]), num_chains=4, num_steps=30,
                    warmup=10, seed=3)  # fmt: skip
        alone = lv.sample(make(0.01, 2.0), case.target, case.draw(8, 3)[:4], num_steps=30, warmup=10, seed=3, compile=False).draws
        torch.testing.assert_close(both[0], alone, rtol=1e-4, atol=1e-5)


def test_warmth_multiplies_the_temperature():
    case = problem("gaussian")
    warm = walk(lv.sgld(1.0), case, torch.tensor([0.01]), warmth=torch.tensor([4.0]), num_chains=3, num_steps=20, warmup=0, seed=1)
    hot = lv.sample(lv.sgld(0.01, temperature=4.0), case.target, case.draw(3, 1), num_steps=20, seed=1, compile=False).draws
    torch.testing.assert_close(warm[0], hot, rtol=1e-4, atol=1e-5)


def test_the_exact_variance_is_that_of_the_known_laws():
    """SGLD on curvature k: 1 / (1 - eps k / 2); BAOAB: exact."""
    steps = integrator.steppers(0.05, 1.0, 0.9)
    assert integrator.exact_variance(*steps["SGLD"], 4.0) == pytest.approx(0.25 / (1 - 0.1))
    assert integrator.exact_variance(*steps["BAOAB"], 4.0) == pytest.approx(0.25, rel=1e-9)
    assert integrator.exact_variance(*steps["simple"], 4.0) > 0.27
    assert integrator.exact_variance(*integrator.steppers(0.6, 1.0, 0.9)["SGLD"], 4.0) is None


@pytest.mark.parametrize("name", [name for name, method in efficiency.METHODS.items() if method.scale is None])
def test_the_range_of_step_sizes_ends_at_instability(name):
    """On the Gaussian: finite at 90 percent of the largest step, and unstable at 120.

    The others learn a scale that is near the one that their range assumes, not equal to it.
    """
    case, method = problem("gaussian"), efficiency.METHODS[name]
    setting = method.setting(case, [1.0, 0.4, 0.6])
    steps = torch.tensor([0.9, 1.2]) * setting["step_size"]
    draws = walk(method.make(1.0, 1.0, setting["beta"]), case, steps, factors=torch.full((2,), setting["factor"]), num_chains=8,
                 num_steps=3000, warmup=100, seed=1)  # fmt: skip
    assert draws[0].abs().max() < 100
    assert errors(draws[1], case) is None or draws[1].abs().max() > 1e6
