"""Chains of the estimators: the law of their draws, their starts, and what happens to chains that diverge."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.tabular import explore as explore_module
from langevin.tabular import segments as segments_module
from langevin.tabular.base import Columns, Standard
from langevin.tabular.explore import Settings, explore, run_groups
from langevin.tabular.segments import FullSegments, MinibatchSegments

N, DIM, STD = 60, 4, 0.5
SHORT = Settings(adam_steps=200, burn_in=960, num_steps=2560, num_draws=40)


def linear_posterior(rows=N):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, DIM - 1, generator=generator) * torch.tensor([1.0, 3.0, 0.3])
    y = x @ torch.tensor([1.0, -0.2, 2.0]) + STD * torch.randn(rows, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(DIM - 1, 1), nn.Flatten(0))
    posterior = lv.Posterior(model, lv.likelihoods.gaussian(STD), prior=lv.priors.gaussian(std=1.0), num_data=rows)
    design = torch.cat([x, torch.ones(rows, 1)], 1).double()
    covariance = torch.linalg.inv(design.T @ design / STD**2 + torch.eye(DIM, dtype=torch.float64))
    return posterior, (x, y), covariance @ design.T @ y.double() / STD**2, covariance


def test_draws_have_the_closed_form_law_of_a_linear_model():
    """A hundred chains, whose forty draws are 64 steps apart; the error is that of the chains' means."""
    posterior, data, mean, covariance = linear_posterior()
    found = explore(posterior, data, SHORT, chains=range(100), seed=0)
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
    found = explore(posterior, data, settings, chains=range(30), seed=0)
    assert not found.rejected.any()
    deviation = (found.draws.double() - mean) / covariance.diagonal().sqrt()
    for values, expected, heat in ((deviation, 0.0, 0.0), (deviation.square(), 1.0, 0.1)):
        means = values.mean(1)
        error = means.std(0) / len(means) ** 0.5
        assert ((means.mean(0) - expected).abs() < heat + 4.5 * error).all(), (expected, means.mean(0), error)
        assert error.max() < 0.1


def test_what_is_known_of_the_noise_keeps_its_units_when_the_scale_changes():
    posterior, data, mean, _ = linear_posterior(rows=1000)
    run = MinibatchSegments(posterior, data, 100, mean.float().repeat(2, 1), torch.full((2, DIM), 1e5), range(2), 0)

    def in_units_of_theta():
        _, _, variance, square, last = run.state.tensors
        return variance / run.scale**2, square / run.scale**2, last / run.scale

    trace, scale = run.advance(), run.scale
    before = in_units_of_theta()
    run.adapt(trace, 0)
    assert (run.scale / scale - 1).abs().max() > 0.1
    torch.testing.assert_close(in_units_of_theta(), before)


def test_a_chain_does_not_depend_on_those_beside_it():
    posterior, data, *_ = linear_posterior()
    short = dataclasses.replace(SHORT, burn_in=640, num_steps=640, num_draws=5)
    together = explore(posterior, data, short, chains=range(3), seed=5).draws
    alone = explore(posterior, data, short, chains=range(1, 2), seed=5).draws
    torch.testing.assert_close(together[1:2], alone, rtol=1e-3, atol=1e-3)
    assert (together[0] - together[1]).abs().max() > 1e-2


def test_a_segment_that_leaves_the_posterior_is_rejected(monkeypatch):
    """Steps far beyond the limit of stability: every segment diverges, and every chain stays where it was."""
    posterior, data, *_ = linear_posterior()
    monkeypatch.setattr(FullSegments, "first_step", 300.0)
    monkeypatch.setattr(segments_module, "_MOST", 300.0)
    short = dataclasses.replace(SHORT, burn_in=1, num_steps=640, num_draws=10)
    found = explore(posterior, data, short, chains=range(2), seed=0)
    assert (found.rejected == 10).all()
    assert torch.equal(found.draws, found.draws[:, :1].expand_as(found.draws))
    longer = explore(posterior, data, dataclasses.replace(short, num_steps=6400), chains=range(2), seed=0)
    assert (longer.rejected < 50).all()  # steps become smaller until they are stable
    assert (longer.energies[:, -1] - longer.energies[:, 0]).abs().max() < 100


def test_the_first_curvature_is_that_of_the_rows():
    posterior, data, *_ = linear_posterior()
    position = torch.zeros(1, DIM)
    x = torch.cat([data[0], torch.ones(N, 1)], 1)
    expected = ((x * (data[1] / STD**2)[:, None]) ** 2).sum(0) + 1.0  # of -log p of each row at zero, and the prior's
    torch.testing.assert_close(explore_module._fisher_information(posterior, data, position)[0], expected, rtol=1e-3, atol=1e-3)


def test_columns_are_standardised_and_ranked():
    x = torch.tensor([[0.0, 1.0, 5.0], [1.0, 10.0, 5.0], [0.0, 100.0, 5.0], [1.0, 1000.0, 5.0]]).double().numpy()
    inputs = Columns.of(x)(x)
    assert inputs.shape == (4, 4)  # only the middle column has more than two values
    assert inputs[:, :2].mean(0).abs().max() < 1e-6
    assert inputs[:, 2].tolist() == [0.0] * 4
    torch.testing.assert_close(inputs[:, 3], torch.tensor([-0.375, -0.125, 0.125, 0.375]) * 12**0.5)
    far = Columns.of(x)(10 * x + 1e6)
    assert far[:, 3].tolist() == pytest.approx([0.375 * 12**0.5] * 4)  # beyond all values


def test_weights_count_rows_again():
    x = torch.tensor([[0.0], [1.0], [5.0]]).double().numpy()
    twice = Standard.of(x[[0, 1, 2, 2]], None)
    weighted = Standard.of(x, torch.tensor([1.0, 1.0, 2.0]).numpy())
    assert weighted.mean.item() == pytest.approx(twice.mean.item())
    assert weighted.std.item() == pytest.approx(twice.std.item())


def square(group, progress):
    progress(0.5)
    return [number**2 for number in group]


@pytest.mark.parametrize("jobs", [1, 2])
def test_groups_come_back_in_their_order_from_any_number_of_processes(jobs):
    assert run_groups(square, [range(2), range(2, 5)], jobs, False) == [[0, 1], [4, 9, 16]]
