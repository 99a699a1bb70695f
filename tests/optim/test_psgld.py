"""PSGLD freezes its preconditioner: then its stationary variance is exact, before it is not, and `describe` says which."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import nn

import langevin as lv

COPIES, ROWS, LR, EPS, ADAPT = 600, 40, 0.05, 0.02, 400


def regression():
    """Return the precision matrix of a linear model with unit noise and a N(0, 1) prior: three correlated columns."""
    x = lv.random.normal(4, lv.random.stream(lv.random.Purpose.DATA), 0, 3 * ROWS, dtype=torch.float64).reshape(ROWS, 3)
    x[:, 2] += x[:, 1]
    return (x.T @ x + torch.eye(3, dtype=torch.float64)) / 10


def relative_energy(adapt_steps, steps=2500, first=500):
    """Run copies of PSGLD on the full batch; return the mean of θ^T A θ over that of the target, and its standard error."""
    precision = regression()
    noise = lv.random.normal(5, lv.random.stream(lv.random.Purpose.DATA), 1, 3 * COPIES, dtype=torch.float64).reshape(COPIES, 3)
    parameter = nn.Parameter(noise @ torch.linalg.cholesky(precision.inverse()).mT)
    optimizer = lv.optim.PSGLD(
        [parameter], lr=LR, num_data=ROWS, beta=0.8, eps=EPS, adapt_steps=adapt_steps, seed=6, chain=adapt_steps or 0
    )
    total = torch.zeros(COPIES, dtype=torch.float64)
    for step in range(steps):
        parameter.grad = parameter.detach() @ precision / ROWS  # of the mean loss, prior included
        optimizer.step()
        if step >= first:
            total += ((parameter.detach() @ precision) * parameter.detach()).sum(1) / (steps - first)
    return total, optimizer, parameter


def exact_energy(precision, metric, epsilon):
    """Return tr(A C) for the stationary covariance C of ``θ' = (I - ε G A) θ + sqrt(2 ε G) η``, for each diagonal G."""
    scale = metric[:, :, None]
    contraction = torch.eye(3, dtype=torch.float64) - epsilon * scale * precision
    covariance, power = 2 * epsilon * torch.diag_embed(metric), contraction
    for _ in range(40):  # C = sum of B^k Q B^kT, doubled in length each time
        covariance = covariance + power @ covariance @ power.mT
        power = power @ power
    return (precision @ covariance).diagonal(dim1=1, dim2=2).sum(1)


def test_frozen_the_variance_is_exact_and_never_frozen_it_is_not():
    """Found: frozen 1.002 ± .003 of the exact one, which is 5 % above the target's (a finite step); never frozen +45 %."""
    frozen, optimizer, parameter = relative_energy(ADAPT)
    metric = 1 / (EPS + optimizer.state[parameter]["metric_average"].sqrt())
    exact = exact_energy(regression(), metric, LR / ROWS)
    ratio = frozen / exact
    error = float(ratio.std()) / COPIES**0.5
    assert abs(float(ratio.mean()) - 1) < 4 * error < 0.02
    assert float(exact.mean()) / 3 < 1.06

    moving, *_ = relative_energy(None)
    assert float((moving / 3).mean()) - 1.3 > 4 * float((moving / 3).std()) / COPIES**0.5


def test_the_average_follows_for_adapt_steps_gradients_and_then_stands_still():
    parameter = nn.Parameter(torch.zeros(5))
    optimizer = lv.optim.PSGLD([parameter], lr=0.01, num_data=10, adapt_steps=4, beta=0.5)
    seen = []
    for step in range(8):
        parameter.grad = torch.full((5,), 1.0 + step)
        optimizer.step()
        seen.append(optimizer.state[parameter]["metric_average"].clone())
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen[:4]))
    assert all(torch.equal(seen[3], later) for later in seen[4:])


def test_until_it_freezes_the_path_is_that_of_the_published_form():
    paths = []
    for adapt_steps in (30, None):
        parameter = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = lv.optim.PSGLD([parameter], lr=0.01, num_data=10, adapt_steps=adapt_steps)
        for _ in range(30):
            parameter.grad = parameter.detach().sin()
            optimizer.step()
        paths.append(parameter.detach().clone())
    assert torch.equal(*paths)


def test_it_freezes_by_itself():
    assert lv.optim.PSGLD([nn.Parameter(torch.zeros(2))], lr=0.1, num_data=10).param_groups[0]["adapt_steps"] == 10_000


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError), ("auto", TypeError)])
def test_adapt_steps_that_are_no_count_are_refused(value, error):
    with pytest.raises(error, match=r"adapt_steps="):
        lv.optim.PSGLD([nn.Parameter(torch.zeros(2))], lr=0.1, num_data=10, adapt_steps=value)


def test_describe_claims_the_target_only_for_a_frozen_average():
    parameter = [nn.Parameter(torch.zeros(2))]
    frozen = lv.optim.PSGLD(parameter, lr=0.1, num_data=10, adapt_steps=50).description
    moving = lv.optim.PSGLD(parameter, lr=0.1, num_data=10, adapt_steps=None).description
    assert "law: the target, effective temperature 1, up to O(ε)" in frozen
    assert "guaranteed from step 50 on, where V is frozen" in frozen
    assert "law: the target while V stands still" in moving
    assert "the stationary distribution is not the target" in moving
    assert "guaranteed" not in moving


def test_a_state_of_version_0_2_continues_without_ever_freezing():
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = lv.optim.PSGLD([parameter], lr=0.1, num_data=10)
    parameter.grad = torch.ones(2)
    optimizer.step()
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["adapt_steps"]  # it had none
    other = lv.optim.PSGLD([nn.Parameter(torch.zeros(2))], lr=0.1, num_data=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state)
    assert other.param_groups[0]["adapt_steps"] is None
    other = lv.optim.ASGLD([nn.Parameter(torch.zeros(2))], lr=0.1, num_data=10, invariant=True)
    state = other.state_dict()
    del state["param_groups"][0]["adapt_steps"]
    with pytest.raises(ValueError, match="adapt_steps"):  # it always had one
        other.load_state_dict(state)
