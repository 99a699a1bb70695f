from __future__ import annotations

import itertools
import math

import langevin as lv


def test_step_decay_is_equation_4():
    schedule = lv.schedules.step_decay(0.1, factor=0.5, every=300)
    assert [schedule(k) for k in (0, 299, 300, 899)] == [0.1, 0.1, 0.05, 0.025]


def test_polynomial_starts_at_its_initial_value_and_meets_robbins_monro():
    schedule = lv.schedules.polynomial(0.1, power=0.55, offset=10.0)
    assert schedule(0) == 0.1
    assert math.isclose(schedule(90), 0.1 * 10**-0.55)


def test_cyclical_restarts_and_never_reaches_zero():
    schedule = lv.schedules.cyclical(0.2, cycle_length=8)
    values = [schedule(k) for k in range(24)]
    assert values[0] == values[8] == values[16] == 0.2
    assert all(later < earlier for earlier, later in itertools.pairwise(values[:8]))
    assert min(values) > 0
    # Zhang et al. (2020), equation 1, with M cycles over K steps.
    cycles, steps = 3, 24
    paper = [
        0.2 / 2 * (math.cos(math.pi * ((k - 1) % math.ceil(steps / cycles)) / math.ceil(steps / cycles)) + 1) for k in range(1, 25)
    ]
    assert all(math.isclose(a, b) for a, b in zip(values, paper, strict=True))


def test_the_floor_holds():
    schedule = lv.schedules.cyclical(0.2, cycle_length=8, floor=0.25)
    assert min(schedule(k) for k in range(8)) == 0.05


def test_schedules_print_and_compare_by_their_formula():
    assert str(lv.schedules.constant(0.1)) == "0.1"
    assert lv.schedules.constant(0.1) == lv.schedules.constant(0.1) != lv.schedules.constant(0.2)
    assert "0.5^floor(step/300)" in lv.sgld(lv.schedules.step_decay(0.1, factor=0.5, every=300)).description
