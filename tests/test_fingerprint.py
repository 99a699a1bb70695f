"""A run is resumed with what it was run with: whatever else is given is refused, in words."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import pytest
import torch

import langevin as lv
from langevin.storage.fingerprint import check_fingerprints, fingerprints
from langevin.targets.gradients import full

TARGET = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
START = torch.tensor([[0.5, -1.0], [2.0, 3.0]], dtype=torch.float64)


def of(kernel, data=None, keep=None, target=TARGET):
    """Return fingerprints after a walk through JSON, as a folder has them."""
    return json.loads(json.dumps(fingerprints(kernel, full(target, None), START, data, keep)))


def check(saved, kernel, data=None, keep=None, target=TARGET):
    check_fingerprints("run.zarr", saved, kernel, full(target, None), data, START, keep)


def test_the_same_ones_pass():
    schedules = [0.1, lv.schedules.polynomial(0.1), lv.schedules.cyclical(0.1, cycle_length=10), lambda step: 0.1 / (step + 1)]
    for kernel in [lv.sgld(schedule) for schedule in schedules] + [lv.asgld(0.1), lv.sghmc(0.1), lv.psgld(0.01)]:
        check(of(kernel, (START, START)), kernel, (START, START))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lv.schedules.constant(0.12345678), lv.schedules.constant(0.12345679)),  # the same text to six digits
        (lv.schedules.step_decay(0.1, factor=0.51234567, every=9), lv.schedules.step_decay(0.1, factor=0.51234568, every=9)),
        (lv.schedules.polynomial(0.1, power=0.55000001), lv.schedules.polynomial(0.1, power=0.55)),
    ],
)
def test_schedules_with_the_same_text_are_told_apart(a, b):
    assert str(a) == str(b)
    with pytest.raises(ValueError, match=r"run\.zarr was run with another (sampler|step sizes)"):
        check(of(lv.sgld(a)), lv.sgld(b))


@pytest.mark.parametrize("differs_from", [0, 1, 10, 100, 1000, 10_000, 100_000])
def test_functions_are_told_apart_by_their_step_sizes(differs_from):
    with pytest.raises(ValueError, match=r"run\.zarr was run with another step size"):
        check(of(lv.sgld(lambda step: 0.1)), lv.sgld(lambda step: 0.1 if step < differs_from else 0.1000001))


def test_a_run_with_another_function_as_step_size_is_not_resumed(tmp_path):
    path = tmp_path / "run.zarr"
    lv.sample(TARGET, sampler=lv.sgld(lambda step: 0.1), init=START, num_steps=20, out=path)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} was run with another step size"):
        lv.resume(path, TARGET, sampler=lv.sgld(lambda step: 0.2))
    assert lv.resume(path, TARGET, sampler=lv.sgld(lambda step: 0.1 + 0 * step)).draws.shape == (2, 20, 2)


@dataclasses.dataclass(frozen=True)
class Clocks:
    """A kernel of which only settings and the numbers of a step are looked at: some are one per chain."""

    values: tuple

    def inputs(self, step):
        return (0.1, *self.values)


def test_settings_that_differ_by_chain_are_compared_with_all_their_digits():
    steps = torch.tensor([0.1, 0.2, 0.3])
    right = of(Clocks((steps,)))
    assert right["inputs"] == 7 * [0.1, *steps.double().tolist()]
    for other in ((steps + torch.tensor([0, 0, 1e-7]),), (steps[:2],), (0.1,), (steps.flip(0),)):
        found = of(Clocks(other))
        assert found["inputs"] != right["inputs"]
        assert found["sampler"] != right["sampler"]
    assert of(Clocks(tuple(steps.double().tolist())))["inputs"] == right["inputs"]


BYTES = torch.arange(48, dtype=torch.uint8)
SETS = [
    BYTES,
    BYTES.view(torch.float64),
    BYTES.view(torch.int64),
    BYTES.view(torch.float32),
    BYTES.reshape(6, 8),
    BYTES.reshape(8, 6),
    BYTES.view(torch.float64).reshape(2, 3),
    (BYTES[:24], BYTES[24:]),
    (BYTES[:8], BYTES[8:]),
    BYTES.flip(0),
    None,
]


def test_data_sets_of_the_same_bytes_are_told_apart():
    digests = [of(lv.sgld(0.1), data)["data"] for data in SETS]
    for a, b in itertools.combinations(digests, 2):
        assert a != b
    with pytest.raises(ValueError, match="another data set"):
        check(of(lv.sgld(0.1), SETS[1]), lv.sgld(0.1), SETS[2])


def test_another_layout_of_the_same_data_is_the_same_data():
    table = BYTES.view(torch.float64).reshape(2, 3)
    check(of(lv.sgld(0.1), table), lv.sgld(0.1), table.mT.contiguous().mT)


def test_another_energy_or_keep_is_refused():
    kernel = lv.sgld(0.1)
    with pytest.raises(ValueError, match=r"another energy: \[.*\] at its first position, now"):
        check(of(kernel), kernel, target=lv.targets.gaussian([[1.0, 0.6], [0.6, 1.0]]))
    with pytest.raises(ValueError, match="another keep"):
        check(of(kernel, keep=torch.exp), kernel, keep=torch.sin)
    with pytest.raises(ValueError, match="another keep"):
        check(of(kernel, keep=torch.exp), kernel, keep=lambda theta: theta[0].exp())
    check(of(kernel, keep=lambda theta: theta.sum().log() - theta), kernel, keep=lambda theta: theta.sum().log() - theta)  # NaN


@pytest.mark.parametrize("probe", [None, [], [[1.0]], [["x"]], {"a": 1}])
def test_damaged_fingerprints_are_refused_with_the_path(probe):
    with pytest.raises(ValueError, match=r"run\.zarr"):
        check({**of(lv.sgld(0.1)), "probe": probe}, lv.sgld(0.1))
    for name in ("sampler", "inputs", "energy", "keep", "probe"):
        with pytest.raises(ValueError, match=r"run\.zarr"):
            check({key: value for key, value in of(lv.sgld(0.1)).items() if key != name}, lv.sgld(0.1))
        with pytest.raises(ValueError, match=r"run\.zarr"):
            check({**of(lv.sgld(0.1)), name: ["x"]}, lv.sgld(0.1))
