from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle

import pytest

import langevin as lv


def test_step_decay_is_equation_3():
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


ALL = [
    lv.schedules.constant(0.1),
    lv.schedules.step_decay(0.1, factor=0.5, every=300),
    lv.schedules.polynomial(0.1, power=0.5, offset=3.0),
    lv.schedules.cyclical(0.1, cycle_length=10, floor=0.1, exploration=0.3),
]


def test_schedules_print_their_formula():
    assert str(lv.schedules.constant(0.1)) == "0.1"
    assert "0.5^floor(step/300)" in lv.sgld(ALL[1]).description


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
def test_schedules_are_values_with_all_their_digits(schedule):
    first = dataclasses.fields(schedule)[0].name
    twin = dataclasses.replace(schedule)
    near = dataclasses.replace(schedule, **{first: getattr(schedule, first) * (1 + 1e-12)})
    assert schedule == twin != near
    assert hash(schedule) == hash(twin)
    assert str(schedule) == str(near)  # six digits do not tell them apart
    assert lv.sgld(schedule) == lv.sgld(twin) != lv.sgld(near)


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: type(schedule).__name__)
def test_schedules_are_pickled_and_written_as_json(schedule):
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert lv.schedules.from_plain(json.loads(json.dumps(lv.schedules.to_plain(schedule)))) == schedule
    for factor in (schedule, 2.0):
        kernel = lv.msgld(schedule, bias_factor=factor)
        assert pickle.loads(pickle.dumps(kernel)) == kernel


def test_a_file_cannot_name_another_class_or_other_arguments():
    with pytest.raises(ValueError, match="kind is one of"):
        lv.schedules.from_plain({"kind": "Popen", "args": "ls"})
    with pytest.raises(ValueError, match="arguments"):
        lv.schedules.from_plain({"kind": "Constant", "value": 1.0, "text": "1"})
    with pytest.raises(ValueError, match=r"constant\(value=.*-1"):
        lv.schedules.from_plain({"kind": "Constant", "value": -1.0})


@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan, math.inf, "0.1", None])
def test_a_users_function_that_gives_no_step_size_is_refused_with_the_step(value):
    kernel = lv.sgld(lambda step: 0.1 if step < 3 else value)
    assert kernel.inputs(2).step_size == 0.1
    with pytest.raises((ValueError, TypeError), match=r"sgld\(step_size=.*step 3"):
        kernel.inputs(3)
