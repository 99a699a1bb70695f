"""The chain driver."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch
from stepping import step as step_by_hand

import langevin as lv

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], gradient_noise=1.0)
QUIET = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
START = torch.tensor([[0.5, -0.5], [1.0, 1.0], [-2.0, 0.0], [0.0, 0.3]], dtype=torch.float64)
KERNEL = lv.msgld(0.02, bias_factor=1.0)


def run(**changes):
    settings = {"sampler": KERNEL, "target": GAUSSIAN, "init": START, "num_steps": 40}
    return lv.sample(**{**settings, **changes})


def test_draws_are_the_positions_after_warm_up_thinned():
    every = run().draws
    assert every.shape == (4, 40, 2)
    assert torch.equal(run(warmup=10, thin=3).draws, every[:, 12::3])


def test_draws_are_the_path_of_the_kernel_driven_by_hand():
    state = KERNEL.init(START)
    chains = range(4)
    for step in range(5):
        e = lv.random.normal(0, lv.random.streams(lv.random.Purpose.GRADIENT, chains), step, 2, dtype=torch.float64)
        noise = lv.random.normal(0, lv.random.streams(lv.random.Purpose.POSITION, chains), step, 2, dtype=torch.float64)
        state = step_by_hand(KERNEL, state, GAUSSIAN.evaluate(state.position).gradient + e, noise)
        assert torch.equal(run(num_steps=5).draws[:, step], state.position)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    assert torch.equal(run(seed=3).draws, run(seed=3).draws)
    assert not torch.equal(run(seed=3).draws, run(seed=4).draws)


def test_chains_run_apart_give_what_they_give_together():
    together = run().draws
    assert torch.equal(run(init=START[2:], first_chain=2).draws, together[2:])


def test_one_position_is_one_chain():
    assert torch.equal(run(init=START[0]).draws, run(init=START[:1]).draws)


def test_init_is_not_changed():
    init = START.clone()
    run(init=init)
    assert torch.equal(init, START)


def test_minibatches_of_each_chain_are_its_own_and_the_posterior_is_found():
    """Mean of a normal with known variance: posterior N(sum x / (N + 1), 1 / (N + 1)); 5 standard errors over 400 chains."""
    x = 2 + lv.random.normal(9, 0, 0, 100, dtype=torch.float64)
    target = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.gaussian(std=1.0))
    samples = lv.sample(
        target,
        sampler=lv.sgld(1e-4),
        init=torch.full((400, 1), 2.0, dtype=torch.float64),
        data=x,
        batch_size=50,
        num_steps=600,
        warmup=599,
    )
    last = samples.draws[:, -1, 0]
    # A batch of half the data without replacement: gradient variance N^2/n (1 - n/N) s^2, eps times it over 2 tau adds heat.
    heat = 1e-4 / 2 * 100**2 / 50 * 0.5 * x.var().item()
    variance = (1 + heat) / 101 / (1 - 1e-4 * 101 / 2)
    assert abs(last.mean().item() - x.sum().item() / 101) < 5 * (variance / 400) ** 0.5
    assert abs(last.var().item() / variance - 1) < 5 * (2 / 400) ** 0.5
    assert len(set(last.tolist())) == 400


def steep(theta):
    """A quartic: explicit steps from far out overshoot and blow up."""
    return 0.25 * (theta**4).sum()


def test_a_chain_that_blows_up_stops_keeps_its_draws_and_leaves_the_others_alone():
    init = torch.tensor([[0.5], [30.0], [-0.5]], dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"chain 1 stopped at step \d+: the energy became inf: outside.*; \d+ draws kept"):
        samples = lv.sample(lv.targets.energy(steep), sampler=lv.sgld(0.01), init=init, num_steps=60)
    bad = samples.status[1]
    assert (bad.chain, bad.is_healthy, samples.status[0].is_healthy) == (1, False, True)
    assert 0 < bad.draws == bad.steps < 60
    assert torch.isfinite(samples.draws[1, : bad.draws]).all()
    assert torch.isnan(samples.draws[1, bad.draws :]).all()
    for index in (0, 2):
        alone = lv.sample(lv.targets.energy(steep), sampler=lv.sgld(0.01), init=init[index], num_steps=60, first_chain=index)
        assert torch.equal(samples.draws[index], alone.draws[0])
    assert samples.healthy.shape == (2, 60, 1)
    assert samples.to_arviz().posterior.sizes["chain"] == 2


def test_when_every_chain_blows_up_the_draws_before_are_returned():
    with pytest.warns(UserWarning, match="stopped at step"):
        samples = lv.sample(lv.targets.energy(steep), sampler=lv.sgld(0.01), init=torch.full((2, 1), 30.0), num_steps=1000)
    assert not any(status.is_healthy for status in samples.status)
    with pytest.raises(ValueError, match="chain 0 stopped at step"):
        samples.to_arviz()


def test_control_c_returns_what_was_drawn():
    class Interrupting(lv.targets.Target):
        needs_data, gradient_noise, calls = False, 0.0, 0

        def evaluate(self, position, batch=None):
            self.calls += 1
            if self.calls == 8:  # the first call is the check before the run; the step that is being taken is finished
                signal.raise_signal(signal.SIGINT)
            return lv.targets.Evaluation((position**2).sum(-1) / 2, position)

    with pytest.warns(UserWarning, match="interrupted at step 7; it returns 7 draws"):
        samples = run(target=Interrupting())
    assert samples.draws.shape == (4, 7, 2)
    assert torch.isfinite(samples.draws).all()


def test_summary_and_arviz_agree_with_the_draws():
    samples = run(num_steps=300, warmup=100)
    table = samples.summary()
    np.testing.assert_allclose(list(table["mean"].values()), samples.draws.mean((0, 1)).numpy())
    assert {"sd", "mcse_mean", "ess_bulk", "r_hat"} <= set(table.columns)
    data = samples.to_arviz()
    assert data.posterior["theta"].shape == (4, 200, 2)
    assert data.sample_stats["energy"].shape == (4, 200)


def test_more_chains_than_draws_are_no_reason_to_warn():
    assert run(num_steps=3).to_arviz().posterior["theta"].shape == (4, 3, 2)


def test_the_recipe_of_ma_et_al_runs_with_its_two_noises():
    def matrix(*rows):
        return lambda xi: torch.tensor(rows, dtype=xi.dtype)

    kernel = lv.complete_recipe(
        0.1, diffusion=matrix([0.0, 0.0], [0.0, 1.0]), curl=matrix([0.0, -1.0], [1.0, 0.0]), num_auxiliary=1
    )
    target = lv.targets.gaussian([[2.0]])
    samples = lv.sample(target, sampler=kernel, init=torch.zeros(2000, 1, dtype=torch.float64), num_steps=300, warmup=299)
    # h = 0.1, symplectic: variance 2 up to O(h); 5 standard errors plus 5 percent.
    assert abs(samples.draws.var().item() / 2 - 1) < 5 * (2 / 2000) ** 0.5 + 0.05


@pytest.mark.parametrize("kinetic", [lambda v: v, lambda v: 0.5])
def test_a_kinetic_energy_that_is_no_number_is_named(kinetic):
    kernel = lv.complete_recipe(0.1, diffusion=lambda xi: torch.eye(2), num_auxiliary=1, kinetic=kinetic)
    with pytest.raises(TypeError, match=r"complete_recipe\(kinetic=\.\.\.\) needs a function of a vector that returns a number"):
        lv.sample(lv.targets.gaussian([[2.0]]), sampler=kernel, init=torch.zeros(2, 1), num_steps=3, compile=False)


def test_progress_shows_the_sampler_and_its_steps(capsys):
    run(progress=True)
    assert "msgld: 100%" in capsys.readouterr().err
    run(progress=False)
    assert capsys.readouterr().err == ""


def test_cycles_explore_without_noise_and_keep_draws_of_the_sampling_phase_only():
    schedule = lv.schedules.cyclical(0.02, cycle_length=20, exploration=0.4)
    kept = {}
    for seed in (0, 1):
        run = lv.sample(QUIET, sampler=lv.msgld(schedule), init=START, num_steps=60, seed=seed, compile=False)
        whole = lv.sample(
            QUIET,
            sampler=lv.msgld(lv.schedules.cyclical(0.02, cycle_length=20)),
            init=START,
            num_steps=60,
            seed=seed,
            compile=False,
        )
        kept[seed] = run.draws
        assert run.draws.shape[1] == 3 * 12
        assert whole.draws.shape[1] == 60
        assert torch.equal(
            run.step_size, torch.tensor([schedule(step) for step in range(60) if step % 20 >= 8], dtype=torch.float64)
        )
    # Without noise both seeds go the same way: from the end of the exploration on they differ.
    path = START
    state = lv.msgld(schedule).init(START)
    for _ in range(8):
        state = step_by_hand(lv.msgld(schedule), state, QUIET.evaluate(state.position).gradient, torch.zeros_like(path))
    noise = {
        seed: lv.random.normal(seed, lv.random.streams(lv.random.Purpose.POSITION, range(len(START))), 8, 2, dtype=START.dtype)
        for seed in (0, 1)
    }
    for seed in (0, 1):
        first = step_by_hand(lv.msgld(schedule), state, QUIET.evaluate(state.position).gradient, noise[seed])
        torch.testing.assert_close(kept[seed][:, 0], first.position)


def test_cycles_thin_and_resume_on_disk(tmp_path):
    kernel = lv.sghmc(lv.schedules.cyclical(0.02, cycle_length=300, exploration=0.5))
    settings = {"num_steps": 1_000, "warmup": 100, "thin": 7, "compile": False}
    memory = lv.sample(QUIET, sampler=kernel, init=START, **settings)
    disk = lv.sample(QUIET, sampler=kernel, init=START, out=tmp_path / "run", **settings)
    steps = [step for step in range(106, 1_000, 7) if step % 300 >= 150]
    assert memory.draws.shape[1] == len(steps)
    assert torch.equal(memory.draws, disk.draws)
    assert torch.equal(lv.resume(tmp_path / "run", QUIET, sampler=kernel).draws, memory.draws)


def test_progress_may_be_a_function():
    told = []
    samples = run(num_steps=600, progress=lambda done, total: told.append((done, total)))
    assert told == [(256, 600), (512, 600), (600, 600)]
    assert torch.equal(samples.draws, run(num_steps=600).draws)


@pytest.mark.parametrize("progress", ["yes", 1, print.__class__, lambda: None], ids=["text", "number", "class", "no arguments"])
def test_progress_that_is_neither_is_refused(progress):
    with pytest.raises(TypeError, match=r"progress=.*True, False, None or a function"):
        run(progress=progress)
