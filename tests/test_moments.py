"""Running moments: merged groups of draws against all draws at once."""

from __future__ import annotations

import pytest
import torch

from langevin.diagnostics.running import add_moments, merge, no_moments, read_moments
from langevin.random import normal

DRAWS = 1e6 + normal(5, 0, 0, 60, dtype=torch.float64).reshape(20, 3)  # far from zero, where a sum of squares would cancel


def group(values, outer):
    centred = values - values.mean(0)
    return torch.tensor(len(values)), values.mean(0), centred.mT @ centred if outer else (centred**2).sum(0)


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("first", [1, 7, 19])
def test_two_groups_merged_are_one(first, outer):
    count, mean, spread = merge(*group(DRAWS[:first], outer), *group(DRAWS[first:], outer), outer=outer)
    assert count == 20
    torch.testing.assert_close(mean, DRAWS.mean(0), rtol=1e-15, atol=0)
    expected = DRAWS.T.cov() if outer else DRAWS.var(0)
    torch.testing.assert_close(spread / 19, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("outer", [False, True])
def test_a_group_without_draws_changes_nothing(outer):
    some = group(DRAWS, outer)
    nothing = torch.tensor(0), torch.full((3,), torch.nan, dtype=torch.float64), torch.zeros_like(some[2])
    for before, after in zip(some, merge(*some, *nothing, outer=outer), strict=True):
        assert torch.equal(before, after)


def test_draws_of_each_chain_count_until_it_stops():
    positions = torch.stack([DRAWS, DRAWS.flip(0), DRAWS], 1)
    counts = torch.ones(20, 3, dtype=torch.bool)
    counts[8:, 1], counts[:, 2] = False, False
    moments = no_moments(positions[0])
    for rows in (slice(0, 3), slice(3, 12), slice(12, 20)):
        moments = add_moments(moments, positions[rows], counts[rows])
    found = read_moments(moments)
    assert found.num.tolist() == [20, 8, 0]
    for chain, draws in ((0, DRAWS), (1, DRAWS.flip(0)[:8])):
        torch.testing.assert_close(found.mean[chain], draws.mean(0), rtol=1e-15, atol=0)
        torch.testing.assert_close(found.covariance[chain], draws.T.cov(), rtol=1e-9, atol=1e-9)
    assert found.mean[2].isnan().all()
