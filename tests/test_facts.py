"""`SAMPLERS` is a table of facts: each agrees with the sampler that it is of, and docs/samplers.md shows it as it is today."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import torch
from sampler_table import TABLE

import langevin as lv
from langevin.adaptation.stationary import stationary_error
from langevin.kernels import Hamiltonian, Traits
from langevin.kernels.facts import Facts, Samplers

ROOT = Path(__file__).parents[1]
FACTS = {facts.name: facts for facts in lv.SAMPLERS.facts()}
spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools" / "gallery.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)


def test_every_sampler_has_its_facts_form_by_form():
    assert {name.partition(",")[0] for name in FACTS} == set(lv.SAMPLERS)
    forms = {name for name, builder in lv.SAMPLERS.items() if "invariant" in inspect.signature(builder).parameters}
    assert {name.removesuffix(", invariant") for name in FACTS if name.endswith("invariant")} == forms
    assert set(FACTS) <= set(TABLE)


@pytest.mark.parametrize("name", FACTS)
def test_the_facts_are_those_of_the_table_of_the_tests(name):
    """The two are written apart: the table by hand, the facts by asking the kernel."""
    facts, entry = FACTS[name], TABLE[name]
    if facts.is_elementwise:
        assert facts.memory == str(len(entry.memory))
    assert facts.is_optimizer == (entry.optimizer is not None)
    traits = facts.kernel.traits
    words = {"energies": traits.needs_energy, "chains": traits.group_size > 1, "metric": "metric" in entry.settings}
    assert {word for word in words if word in facts.needs} == {word for word, is_needed in words.items() if is_needed}
    assert facts.cost.startswith(f"1 gradient, {facts.kernel.traits.num_noises} ")
    assert facts.law
    assert facts.error or "cold" in facts.law  # what samples the target says how well


def test_memory_counts_numbers_per_parameter():
    assert FACTS["sgnht"].memory == "1 + 1/d"  # a velocity for each, one friction for all
    assert FACTS["asgld_full"].memory == "1 + 1 d"  # an average, and a matrix
    assert FACTS["asgld_full, invariant"].memory == "2 + 1 d"
    assert FACTS["amagold"].memory == "2 + 3/d"
    assert FACTS["sgld"].memory == "0"


@pytest.mark.parametrize(("name", "order"), [("sgld", 1.0), ("sghmc", 0.5)])
def test_the_error_is_at_most_of_the_order_that_is_said(name, order):
    """On a Gaussian, by the exact law: a quarter of ε makes it smaller by 4**order at least. h is the root of ε."""
    said = {"O(ε)": 1.0, "O(h)": 0.5}[FACTS[name].error]
    assert said == order
    coarse, fine = (abs(stationary_error(FACTS[name].kernel, eps, curvature=1.0)) for eps in (4e-3, 1e-3))
    assert coarse / fine > 0.95 * 4**order


@pytest.mark.parametrize(
    ("says", "needs", "any_scale"),
    [
        ({"elementwise": False}, "", True),
        ({"needs_energy": True}, "energies", True),
        ({"group_size": 3}, "groups of 3 chains", False),
    ],
    ids=lambda value: str(value),
)
def test_what_is_asked_is_not_guessed(says, needs, any_scale):
    """Any one of them keeps a sampler from being an optimizer."""
    settings = "odd", lv.schedules.constant(0.1)
    assert Facts("sghmc", Hamiltonian(*settings)).is_optimizer
    facts = Facts("odd", type("Odd", (Hamiltonian,), {"traits": Traits(**says)})(*settings))
    assert not facts.is_optimizer
    assert facts.runs_in_any_scale == any_scale
    assert facts.needs == needs
    assert ("whole vectors" in facts.cost) == ("elementwise" in says)


def test_a_sampler_that_cannot_be_built_says_what_is_missing():
    def strange(step_size, *, ladder):
        return lv.sgld(step_size)

    with pytest.raises(ValueError, match=r"SAMPLERS\(strange=.*PARTS.*\['ladder'\]"):
        Samplers({"strange": strange}).facts()


def test_printed_it_is_a_table_with_a_line_for_each():
    header, *lines = repr(lv.SAMPLERS).splitlines()
    assert re.split(r"\s{2,}", header)[:4] == ["sampler", "law", "error", "memory per parameter"]
    assert [re.split(r"\s{2,}", line)[0] for line in lines] == list(FACTS)
    assert all(line[: header.index("law")].strip() == name for line, name in zip(lines, FACTS, strict=True))


def test_the_page_of_samplers_shows_the_table_of_today():
    assert (ROOT / "docs" / "samplers.md").read_text() == gallery.page(), "python tools/gallery.py --page writes docs/samplers.md"
    assert (ROOT / "docs" / "gallery.png").exists()


@pytest.mark.parametrize("case", gallery.CASES, ids=lambda case: case.name)
def test_the_gallery_knows_its_targets(case):
    """Its moments come from a grid: a finer one over a wider window gives the same, and gradients are finite where chains start."""
    coarse, fine = (gallery.density(case, spread=factor * case.spread)[2] for factor in (1.0, 1.15))
    torch.testing.assert_close(coarse, fine, atol=3e-3, rtol=3e-3)
    target = lv.targets.energy(lambda theta: case.energy(theta))
    assert target.evaluate(torch.zeros(1, 2, dtype=torch.float64)).gradient.isfinite().all()
