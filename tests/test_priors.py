"""The spike-and-slab prior's threshold: where the slab becomes the likelier of the two."""

from __future__ import annotations

import pytest
import torch

from langevin.targets import priors


def log_ratio(prior, theta):
    """Return log of the slab's share over the spike's at theta."""
    slab = torch.distributions.Normal(0.0, prior.slab_std).log_prob(theta) + torch.tensor(prior.slab_weight).log()
    spike = torch.distributions.Normal(0.0, prior.spike_std).log_prob(theta) + torch.tensor(1 - prior.slab_weight).log()
    return slab - spike


@pytest.mark.parametrize("slab_weight", [1e-7, 0.01, 0.3, 0.5, 0.66])
def test_at_the_threshold_both_are_as_likely(slab_weight):
    prior = priors.spike_slab(slab_weight=slab_weight, slab_std=1.0, spike_std=0.5)
    assert prior.log_odds > 0
    assert prior.threshold > 0
    assert log_ratio(prior, torch.tensor(prior.threshold)).item() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("slab_weight", [0.67, 0.9, 0.999])
def test_where_the_slab_is_always_the_likelier_every_weight_counts(slab_weight):
    prior = priors.spike_slab(slab_weight=slab_weight, slab_std=1.0, spike_std=0.5)
    assert prior.log_odds < 0
    assert log_ratio(prior, torch.zeros(())) > 0
    assert prior.threshold == 0.0
