"""R-hat and ESS of predictions: against ArviZ, and sentences where chains disagree on functions, not on weights."""

from __future__ import annotations

import pytest
import torch
from predict_models import Regression, bank_of, randn, seeded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv
from langevin.nn.predictive.functions import rhat_limit

EXACT = Regression()
X = randn(6, 3, seed=9, dtype=torch.float64)
CHAINS = torch.stack([EXACT.draws(100, seed=seed) for seed in (21, 22, 23)])


def predictions(draws, x=X):
    return draws @ torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1).T


def test_the_numbers_are_those_of_arviz_on_the_predictions():
    found = lv.function_diagnostics(EXACT.posterior, CHAINS, X)
    torch.testing.assert_close(found.values, predictions(CHAINS))
    values = found.values  # to the last bit: the two draws around a median are ranked by it
    torch.testing.assert_close(found.rhat, lv.diagnostics.rhat(values), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.bulk_ess, lv.diagnostics.ess(values), rtol=1e-8, atol=1e-8)
    assert found.warnings == ()
    assert str(found).startswith("6 predictions of 3 chains x 100 draws")


def modules(draws):
    return [EXACT.posterior.module(position) for position in draws]


def test_banks_are_chains_and_one_bank_is_one(tmp_path):
    banks = [bank_of(tmp_path / str(k), modules(chain[: 9 - k])) for k, chain in enumerate(CHAINS)]
    likelihood = EXACT.posterior.likelihood
    found = lv.function_diagnostics(EXACT.model, banks, X, likelihood=likelihood)
    expected = torch.stack([predictions(chain[: 9 - k])[-7:] for k, chain in enumerate(CHAINS)])
    torch.testing.assert_close(found.values, expected)
    one = lv.function_diagnostics(EXACT.model, banks[0], X, likelihood=likelihood)
    assert one.values.shape == (1, 9, 6)
    assert torch.isnan(one.rhat).all()
    assert (one.bulk_ess > 0).all()
    listed = lv.function_diagnostics(None, modules(CHAINS[0, :9]), X, likelihood=likelihood)
    torch.testing.assert_close(listed.values, one.values)


def test_samples_of_several_runs_are_chains_of_one():
    short = lv.sample(
        EXACT.posterior,
        sampler=lv.sgld(1e-3),
        init=EXACT.draws(2),
        data=(torch.zeros(40, 3).double(), torch.zeros(40).double()),
        num_steps=6,
        compile=False,
        progress=False,
    )  # fmt: skip
    found = lv.function_diagnostics(EXACT.posterior, [short, short], X)
    assert found.values.shape == (4, 6, 6)
    torch.testing.assert_close(found.values[2:], predictions(short.draws))


def test_many_rows_are_thinned_evenly_from_tensors_and_loaders_alike():
    x = randn(1000, 3, seed=1, dtype=torch.float64)
    whole = lv.function_diagnostics(EXACT.posterior, CHAINS[:, :5], x)
    assert whole.values.shape == (3, 5, 200)
    loader = DataLoader(TensorDataset(x, torch.zeros(1000)), batch_size=64, generator=torch.Generator())
    torch.testing.assert_close(lv.function_diagnostics(EXACT.posterior, CHAINS[:, :5], loader).values, whole.values)
    torch.testing.assert_close(whole.values[..., -1], predictions(CHAINS[:, :5], x[-1:])[..., 0])


def test_chains_that_disagree_on_weights_alone_are_not_named():
    """A hidden layer whose units are swapped is another theta and the same function."""
    net = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1), nn.Flatten(0)).double())
    posterior = lv.Posterior(net, EXACT.posterior.likelihood, prior=lv.priors.gaussian(std=1.0), num_data=9)
    theta = posterior.space.flatten(net)
    swapped = theta[torch.tensor([3, 4, 5, 0, 1, 2, 7, 6, 9, 8, 10])]
    noise = 0.1 * randn(2, 200, 11, seed=2, dtype=torch.float64)
    chains = torch.stack([theta, swapped])[:, None] + noise
    assert float(lv.diagnostics.rhat(chains).max()) > 1.5
    assert lv.function_diagnostics(posterior, chains, X).warnings == ()


def test_chains_that_disagree_on_predictions_are_named():
    apart = CHAINS + 0.2 * torch.arange(3).double()[:, None, None]
    found = lv.function_diagnostics(EXACT.posterior, apart, X)
    (sentence,) = found.warnings
    assert sentence.startswith("the chains disagree on predictions: worst R-hat ")
    assert sentence in str(found)
    with pytest.warns(lv.TrustWarning, match="function_diagnostics: the chains disagree"):
        lv.function_diagnostics(EXACT.posterior, apart, X)


@pytest.mark.parametrize(("chains", "num"), [(2, 10), (4, 25), (4, 200), (10, 50)])
def test_short_chains_that_agree_are_not_named(chains, num):
    for seed in range(20):
        draws = EXACT.draws(chains * num, seed=300 + seed).reshape(chains, num, 4)
        assert lv.function_diagnostics(EXACT.posterior, draws, X).warnings == ()


def test_the_limit_of_rhat_falls_to_the_usual_one():
    assert rhat_limit(4, 10) > rhat_limit(4, 100) > rhat_limit(4, 100_000) == 1.01


def test_a_chain_that_crawls_is_named():
    walk = EXACT.mean + 1e-3 * randn(1, 200, 4, seed=6, dtype=torch.float64).cumsum(1)
    assert lv.function_diagnostics(EXACT.posterior, walk, X).warnings[0].startswith("draws that hardly differ")
