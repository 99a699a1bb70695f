"""The gradient by hand is that of any module's posterior."""

from __future__ import annotations

import pickle

import pytest
import torch

import langevin as lv
from langevin.tabular import model as network_module
from langevin.tabular.model import NetworkPosterior, network
from langevin.targets.gradients import full, minibatch

ROWS, CHAINS = 50, 3
LIKELIHOODS = {
    "gaussian": (lv.likelihoods.gaussian("predicted", within=(1e-3, 3.0)), 2, torch.float64),
    "learned": (lv.likelihoods.gaussian("learned"), 1, torch.float64),
    "categorical": (lv.likelihoods.categorical(), 3, torch.int64),
}


@pytest.fixture(params=LIKELIHOODS)
def both(request):
    """Both posteriors of one network, their data and positions."""
    likelihood, outputs, dtype = LIKELIHOODS[request.param]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)
    y = (3 * torch.rand(ROWS, generator=generator, dtype=torch.float64)).to(dtype)
    with torch.random.fork_rng():
        model = network(4, (6, 5), outputs).double()
    made = [kind(model, likelihood, prior=lv.priors.gaussian(std=0.7), num_data=ROWS) for kind in (lv.Posterior, NetworkPosterior)]
    return *made, (x, y), made[0].init(CHAINS, 3)


@pytest.mark.parametrize("tile", [8192, 30])
def test_all_rows(both, tile, monkeypatch):
    monkeypatch.setattr(network_module, "_TILE", tile)
    plain, fast, data, position = both
    for _ in range(2):  # the second time in memory that was used
        torch.testing.assert_close(full(fast, data)(position, 0), full(plain, data)(position, 0))


def test_minibatches_of_each_chain(both):
    plain, fast, data, position = both
    one, other = (minibatch(kind, data, 7, seed=1, chains=range(CHAINS), batches="white") for kind in (fast, plain))
    torch.testing.assert_close(one(position, 5), other(position, 5))


def test_results_are_not_overwritten_by_the_next_call(both):
    _, fast, data, position = both
    before = full(fast, data)(position, 0)
    kept = before.gradient.clone()
    full(fast, data)(position + 1, 0)
    assert torch.equal(before.gradient, kept)


def test_memory_is_not_pickled(both):
    _, fast, data, position = both
    size = len(pickle.dumps(fast))
    full(fast, data)(position, 0)
    assert len(pickle.dumps(fast)) == size
