"""Chains of the estimators: the law of their draws, their starts, and what happens to chains that diverge."""

from __future__ import annotations

import dataclasses
import signal
import time

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.tabular import chains as chains_module
from langevin.tabular.chains import Settings, run_chains
from langevin.tabular.threads import run_tasks

N, DIM, STD = 60, 4, 0.5
SHORT = Settings(adam_steps=200, burn_in=960, num_steps=2560, num_draws=40)


def linear_posterior(rows=N, prior=None):
    """A linear model, its data, and the closed form of its posterior under N(0, 1)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, DIM - 1, generator=generator) * torch.tensor([1.0, 3.0, 0.3])
    y = x @ torch.tensor([1.0, -0.2, 2.0]) + STD * torch.randn(rows, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(DIM - 1, 1), nn.Flatten(0))
    prior = prior or lv.priors.gaussian(std=1.0)
    posterior = lv.Posterior(model, lv.likelihoods.gaussian(STD), prior=prior, num_data=rows)
    design = torch.cat([x, torch.ones(rows, 1)], 1).double()
    covariance = torch.linalg.inv(design.T @ design / STD**2 + torch.eye(DIM, dtype=torch.float64))
    return posterior, (x, y), covariance @ design.T @ y.double() / STD**2, covariance


def run(posterior, data, settings, chains, seed=0, **more):
    return run_chains(posterior, posterior, data, settings, chains, seed, **more)


def test_draws_have_the_closed_form_law_of_a_linear_model():
    """A hundred chains, whose forty draws are 64 steps apart; the error is that of the chains' means."""
    posterior, data, mean, covariance = linear_posterior()
    found = run(posterior, data, SHORT, range(100))
    assert not found.rejected.any()
    deviation = (found.draws.double() - mean) / covariance.diagonal().sqrt()
    for values, expected in ((deviation, 0.0), (deviation.square(), 1.0)):
        means = values.mean(1)
        z = (means.mean(0) - expected) / (means.std(0) / len(means) ** 0.5)
        assert z.abs().max() < 4.5, (expected, z)
        assert (means.std(0) / len(means) ** 0.5).max() < 0.06


def test_minibatches_have_nearly_the_closed_form_law_of_a_linear_model():
    """20,000 rows by 500: the heat of 40 times the curvature, uncorrected ten percent, is corrected but for a few percent."""
    posterior, data, mean, covariance = linear_posterior(rows=20_000)
    settings = dataclasses.replace(SHORT, adam_steps=1000, burn_in=3200, num_steps=6400, num_draws=50, batch_size=500)
    found = run(posterior, data, settings, range(30))
    assert not found.rejected.any()
    deviation = (found.draws.double() - mean) / covariance.diagonal().sqrt()
    for values, expected, heat in ((deviation, 0.0, 0.0), (deviation.square(), 1.0, 0.1)):
        means = values.mean(1)
        error = means.std(0) / len(means) ** 0.5
        assert ((means.mean(0) - expected).abs() < heat + 4.5 * error).all(), (expected, means.mean(0), error)
        assert error.max() < 0.1


def test_what_is_known_of_the_noise_keeps_its_units_when_the_scale_changes():
    posterior, data, mean, _ = linear_posterior(rows=1000)
    segments = chains_module._Minibatch(posterior, data, 100, mean.float().repeat(2, 1), torch.full((2, DIM), 1e5), range(2), 0)

    def in_units_of_theta():
        _, _, variance, square, last = segments.state.tensors
        return variance / segments.scale**2, square / segments.scale**2, last / segments.scale

    trace, scale = segments.advance(), segments.scale
    before = in_units_of_theta()
    segments.adapt(trace, 0, True)
    assert (segments.scale / scale - 1).abs().max() > 0.1
    torch.testing.assert_close(in_units_of_theta(), before)


def test_a_chain_does_not_depend_on_those_beside_it():
    posterior, data, *_ = linear_posterior()
    short = dataclasses.replace(SHORT, burn_in=640, num_steps=640, num_draws=5)
    together = run(posterior, data, short, range(3), seed=5).draws
    alone = run(posterior, data, short, range(1, 2), seed=5).draws
    torch.testing.assert_close(together[1:2], alone, rtol=1e-3, atol=1e-3)
    assert (together[0] - together[1]).abs().max() > 1e-2


def test_a_segment_that_leaves_the_posterior_is_rejected(monkeypatch):
    """Steps far beyond the limit of stability: every segment diverges, and every chain stays where it was."""
    posterior, data, *_ = linear_posterior()
    monkeypatch.setattr(chains_module._Full, "first_step", 300.0)
    monkeypatch.setattr(chains_module, "_MOST", 300.0)
    short = dataclasses.replace(SHORT, burn_in=1, num_steps=640, num_draws=10)
    found = run(posterior, data, short, range(2))
    assert (found.rejected == 1).all()
    assert torch.equal(found.draws, found.draws[:, :1].expand_as(found.draws))
    longer = run(posterior, data, dataclasses.replace(short, num_steps=6400), range(2))
    assert (longer.rejected < 0.5).all()  # steps become smaller until they are stable


def test_the_first_curvature_is_that_of_the_rows():
    posterior, data, *_ = linear_posterior()
    x = torch.cat([data[0], torch.ones(N, 1)], 1)
    expected = ((x * (data[1] / STD**2)[:, None]) ** 2).sum(0) + 1.0  # of -log p of each row at zero, and the prior's
    found = chains_module._fisher_information(posterior, data, torch.zeros(1, DIM))
    torch.testing.assert_close(found[0], expected, rtol=1e-3, atol=1e-3)


def test_a_run_that_is_asked_to_stop_keeps_its_draws():
    posterior, data, *_ = linear_posterior()
    whole = run(posterior, data, SHORT, range(2)).draws
    total = SHORT.adam_steps + SHORT.burn_in
    half = run(posterior, data, SHORT, range(2), go_on=lambda steps: steps < total + SHORT.num_steps // 2).draws
    assert torch.equal(half, whole[:, : SHORT.num_draws // 2])
    assert run(posterior, data, SHORT, range(2), go_on=lambda steps: steps < 100).draws.shape == (2, 0, DIM)


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_come_back_in_their_order_from_any_number_of_threads(jobs):
    tasks = [lambda go_on, number=number: (number**2, go_on(1)) for number in range(4)]
    assert run_tasks(tasks, jobs, 1, False, "tasks") == [(0, True), (1, True), (4, True), (9, True)]


def test_ctrl_c_asks_all_tasks_to_stop():
    """The main thread gets the signal while two tasks run for ever."""

    def forever(go_on):
        while go_on(0):
            time.sleep(0.01)
        return "stopped"

    def interrupts(go_on):
        time.sleep(0.5)
        signal.raise_signal(signal.SIGINT)
        return forever(go_on)

    assert run_tasks([forever, interrupts], 2, 1, False, "tasks") == ["stopped", "stopped"]


def test_an_error_of_a_task_is_raised_and_the_others_stop():
    def forever(go_on):
        while go_on(0):
            time.sleep(0.01)

    def fails(go_on):
        raise ValueError("not here")

    with pytest.raises(ValueError, match="not here"):
        run_tasks([forever, fails], 2, 1, False, "tasks")
