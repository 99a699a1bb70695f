"""Many settings of one sampler as chains of one run."""

from __future__ import annotations

import pytest
import torch

import langevin as lv
from langevin.execution import run_blocks

TARGET = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
INIT = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
KERNELS = {
    "sgld": [lv.sgld(0.01), lv.sgld(0.05, temperature=0.3), lv.sgld(lv.schedules.polynomial(0.1))],
    "msgld": [
        lv.msgld(0.01, bias_factor=3.0),
        lv.msgld(0.03, beta=0.5, temperature=0.0),
        lv.msgld(0.02, bias_factor=lv.schedules.polynomial(2.0)),
    ],
    "asgld, invariant": [
        lv.asgld(0.01, betas=(0.5, 0.9), invariant=True, adapt_steps=20),
        lv.asgld(0.02, bias_factor=4.0, invariant=True, temperature=0.5, adapt_steps=30),
        lv.asgld(0.03, eps_root=1e-2, invariant=True, adapt_steps=7),
    ],
    "psgld": [lv.psgld(0.01), lv.psgld(0.02, beta=0.5), lv.psgld(0.01, eps=1e-2, num_data=3)],
    "sghmc": [lv.sghmc(0.01), lv.sghmc(0.02, beta=0.5), lv.sghmc(0.02, temperature=2.0)],
    "sgnht": [
        lv.sgnht(0.01, elementwise=True),
        lv.sgnht(0.02, beta=0.5, thermal_mass=30.0, elementwise=True, temperature=2.0),
        lv.sgnht(0.02, elementwise=True, temperature=0.0),
    ],
}
SETTINGS = {"num_steps": 60, "warmup": 20, "seed": 2, "progress": False}


@pytest.mark.parametrize("name", KERNELS)
def test_each_chain_walks_as_it_does_with_its_settings_for_all(name):
    together = lv.sample(TARGET, sampler=lv.side_by_side(KERNELS[name], 2), init=INIT, compile=False, **SETTINGS)
    for k, kernel in enumerate(KERNELS[name]):
        alone = lv.sample(TARGET, sampler=kernel, init=INIT[2 * k : 2 * k + 2], first_chain=2 * k, compile=False, **SETTINGS)
        torch.testing.assert_close(together.draws[2 * k : 2 * k + 2], alone.draws, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(together.step_size[2 * k], alone.step_size, rtol=1e-15, atol=0)


def test_it_is_compiled_like_any_kernel():
    kernel = lv.side_by_side(KERNELS["msgld"], 2)
    found = lv.sample(TARGET, sampler=kernel, init=INIT, compile=True, **SETTINGS)
    assert found.compiled
    torch.testing.assert_close(
        found.draws, lv.sample(TARGET, sampler=kernel, init=INIT, compile=False, **SETTINGS).draws, rtol=1e-9, atol=1e-12
    )


def test_a_killed_run_goes_on_from_its_folder(tmp_path):
    kernel = lv.side_by_side(KERNELS["sgld"], 2)
    whole = lv.sample(TARGET, sampler=kernel, init=INIT, out=tmp_path / "run", compile=False, **SETTINGS)
    again = lv.resume(tmp_path / "run", TARGET, sampler=kernel)
    assert torch.equal(again.draws, whole.draws)
    assert again.step_size.shape == (6, 40)
    other = lv.side_by_side([lv.sgld(0.011), *KERNELS["sgld"][1:]], 2)
    with pytest.raises(ValueError, match="another sampler"):
        lv.resume(tmp_path / "run", TARGET, sampler=other)


def test_float32_positions_stay_float32():
    found = lv.sample(TARGET, sampler=lv.side_by_side(KERNELS["psgld"], 2), init=INIT.float(), compile=False, **SETTINGS)
    assert found.draws.dtype == torch.float32


def test_chains_of_one_number_share_their_noise():
    kernel = lv.side_by_side([lv.sgld(0.01), lv.sgld(0.01)], 2)
    position = INIT[:1].repeat(4, 1)
    traces = list(run_blocks(kernel, lv.gradients.full(TARGET), position, seed=1, chains=(7, 8, 7, 8), num_steps=300))
    assert sum(trace.done for trace in traces) == 300
    assert torch.equal(traces[-1].positions[:, :2], traces[-1].positions[:, 2:])
    assert not torch.equal(traces[-1].positions[:, 0], traces[-1].positions[:, 1])
    alone = lv.sample(
        TARGET, sampler=lv.sgld(0.01), init=INIT[:1], num_steps=300, seed=1, first_chain=8, compile=False, progress=False
    )
    torch.testing.assert_close(traces[-1].positions[-1, 1], alone.draws[0, -1], rtol=1e-12, atol=1e-12)


def test_run_blocks_says_which_chains_raise():
    class Raising(lv.targets.Target):
        def evaluate(self, position, batch=None):
            if (position > 1).any():
                raise RuntimeError("beyond 1")
            return lv.targets.Evaluation(0 * position[:, 0], 0 * position)

    with pytest.raises(RuntimeError, match="beyond 1"):
        list(run_blocks(lv.sgld(0.1), lv.gradients.full(Raising()), INIT - 0.1, seed=0, chains=range(6), num_steps=30))


BAD = {
    "none": (lambda: lv.side_by_side([]), TypeError, "at least one kernel"),
    "no kernel": (lambda: lv.side_by_side([1.0]), TypeError, "at least one kernel"),
    "a matrix": (lambda: lv.side_by_side([lv.asgld_full(0.1)]), ValueError, "elementwise.*asgld_full"),
    "auto": (lambda: lv.side_by_side([lv.sgld("auto")]), ValueError, "step size auto"),
    "chains": (lambda: lv.side_by_side([lv.sgld(0.1)], 0), ValueError, "chains_each=.*got 0"),
    "forms": (lambda: lv.side_by_side([lv.msgld(0.1), lv.msgld(0.1, invariant=True)]), TypeError, "values of one type"),
    "samplers": (lambda: lv.side_by_side([lv.sgld(0.1), lv.psgld(0.1)]), ValueError, "the same value in all kernels"),
    "start": (
        lambda: lv.sample(TARGET, sampler=lv.side_by_side([lv.sgld(0.1)] * 2), init=INIT, num_steps=2),
        ValueError,
        "2 settings x 1",
    ),
    "phases": (
        lambda: lv.sample(
            TARGET,
            sampler=lv.side_by_side([lv.sgld(0.1), lv.sgld(lv.schedules.cyclical(0.1, cycle_length=4, exploration=0.5))], 3),
            init=INIT,
            num_steps=8,
        ),
        ValueError, "explore in the same steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case):
    call, error, words = BAD[case]
    with pytest.raises(error, match=words):
        call()


def test_a_chain_that_is_out_takes_no_other_with_it_whatever_its_settings():
    """A stopped chain follows another, with its own step size: it runs off again, and is put back."""

    class Table(lv.targets.Target):
        def evaluate(self, position, batch=None):
            if (position.abs() > 1e6).any():
                raise ValueError("out of table")
            return TARGET.evaluate(position)

    kernel, init = lv.side_by_side([lv.sgld(0.05), lv.sgld(100.0)]), INIT[:2]
    with pytest.warns(UserWarning, match="out of table"):
        samples = lv.sample(Table(), sampler=kernel, init=init, compile=False, **SETTINGS)
    assert [status.is_healthy for status in samples.status] == [True, False]
    alone = lv.sample(TARGET, sampler=lv.sgld(0.05), init=init[:1], compile=False, **SETTINGS)
    torch.testing.assert_close(samples.draws[:1], alone.draws, rtol=1e-12, atol=1e-12)


def test_one_chain_in_all():
    found = lv.sample(TARGET, sampler=lv.side_by_side([lv.sgld(0.1)]), init=INIT[:1], compile=False, **SETTINGS)
    assert found.step_size.shape == (1, 40)
    alone = lv.sample(TARGET, sampler=lv.sgld(0.1), init=INIT[:1], compile=False, **SETTINGS)
    torch.testing.assert_close(found.draws, alone.draws, rtol=1e-12, atol=1e-12)


def test_whole_numbers_stand_beside_others():
    lv.side_by_side([lv.asgld(0.1, betas=(0, 0.9)), lv.asgld(0.1, betas=(0.5, 0.9))])


def test_another_step_size_is_that_of_all():
    kernel = lv.side_by_side([lv.sgld(0.1), lv.sgld(0.2)]).with_step_size(0.5)
    assert kernel.inputs(0).step_size == 0.5


def test_positions_of_another_dtype_are_refused_outside_of_a_run():
    with pytest.raises(TypeError, match=r"float64.*for_run.*got .*float32"):
        lv.side_by_side([lv.sgld(0.1), lv.sgld(0.2)]).init(torch.ones(2, 1))
