"""AMAGOLD is exact: on targets that are no Gaussians, under noise of the gradient, at large steps; against quadrature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.kernels import Amagold
from langevin.random import Purpose, integers, normal, stream, streams
from langevin.targets.gradients import full, minibatch, noisy, with_energy

GRID = np.linspace(-4, 4, 20_001)
CHAINS = range(20_000)


def wells(theta):
    return (theta**4 / 4 - theta**2 / 2 + 0.3 * theta).sum(-1)


def tilted(theta):
    return (theta.exp() - 1.5 * theta).sum(-1)


TARGETS = {"two wells": (wells, 1.0), "exp(x) - 1.5 x at temperature .5": (tilted, 0.5)}
STATISTICS = {"mean": lambda x: x, "square": lambda x: x**2, "right half": lambda x: (x > 0) * 1.0, "fourth": lambda x: x**4}


@dataclass(frozen=True)
class Untested(Amagold):
    """The same without the test: the end is always taken."""

    def _is_taken(self, gain, temperature, normal):
        return torch.ones_like(gain, dtype=torch.bool)


def density(energy, tau):
    weights = np.exp(-energy(torch.tensor(GRID)[:, None]).numpy() / tau)
    return weights / weights.sum()


def run(kernel, energy, tau, gradient_fn, trajectories=6, seed=1):
    """Start at draws of the target, by its inverse distribution function, and return where the chains are, and the acceptance."""
    uniform = integers(seed, stream(Purpose.DATA), 0, len(CHAINS), (2**31 - 1,))[:, 0].double() / (2**31 - 1)
    start = torch.tensor(np.interp(uniform.numpy(), np.cumsum(density(energy, tau)), GRID))[:, None]
    state, taken = kernel.init(start), []
    for step in range(trajectories * (kernel.length + 1)):
        noise = normal(seed, streams(Purpose.POSITION, CHAINS), step, 1, dtype=torch.float64)
        before = state
        state = kernel.step(state, gradient_fn(state.position, step), noise[None])
        if not kernel.explores(step):
            taken.append((state.position == before.position).double().mean())
    return state.position[:, 0].numpy(), float(torch.stack(taken).mean())


def scores(found, energy, tau):
    """Return the deviation of each statistic from quadrature, in standard errors of independent chains."""
    share = density(energy, tau)
    exact = {name: (share * f(GRID)).sum() for name, f in STATISTICS.items()}
    spread = {name: np.sqrt((share * (f(GRID) - exact[name]) ** 2).sum() / len(found)) for name, f in STATISTICS.items()}
    return np.array([(f(found).mean() - exact[name]) / spread[name] for name, f in STATISTICS.items()])


@pytest.mark.parametrize("beta", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", TARGETS)
def test_it_samples_the_target_with_noisy_gradients_at_a_large_step_and_without_its_test_does_not(name, beta):
    """4.5 standard errors; noise of variance 4 at eps .15: each statistic of the twin is dozens of them off."""
    energy, tau = TARGETS[name]
    exact, like = full(lv.targets.energy(lambda theta: energy(theta))), torch.zeros(len(CHAINS), 1, dtype=torch.float64)
    gradient_fn = noisy(exact, 2.0, seed=3, chains=CHAINS, like=like)
    kernel = lv.amagold(0.15, beta=beta, length=4, temperature=tau)
    found, accepted = run(kernel, energy, tau, gradient_fn)
    assert np.abs(scores(found, energy, tau)).max() < 4.5
    assert 0.2 < accepted < 0.95
    twin, _ = run(Untested("untested", kernel.step_size, tau, beta, 4), energy, tau, gradient_fn)
    twin = np.clip(twin[np.isfinite(twin)], -4, 4)  # some run away, without the test
    assert len(twin) > 0.99 * len(found)
    assert np.abs(scores(twin, energy, tau)).max() > 10


def test_without_noise_and_friction_it_accepts_nearly_always_as_hmc_does():
    exact = full(lv.targets.energy(lambda theta: wells(theta)))
    found, accepted = run(lv.amagold(0.01, beta=1.0, length=10), wells, 1.0, exact)
    assert np.abs(scores(found, wells, 1.0)).max() < 4.5
    assert accepted > 0.995
    _, rough = run(lv.amagold(0.01, beta=0.9, length=10), wells, 1.0, exact)
    assert accepted > rough > 0.95  # the noise that friction injects is paid for too


def test_it_samples_a_posterior_from_minibatches_through_sample():
    """12 data, batches of two rows: the posterior of a mean under Laplace errors, by quadrature."""
    x = 1.5 * normal(5, stream(Purpose.DATA), 0, 12, dtype=torch.float64)
    target = lv.targets.likelihood(lambda theta, x: -((x - theta[0]) ** 2 + 0.1).sqrt(), prior=lv.priors.gaussian(std=2.0))

    def energy(theta):
        return ((x - theta) ** 2 + 0.1).sqrt().sum(-1) + theta[..., 0] ** 2 / 8

    init = torch.zeros(800, 1, dtype=torch.float64)
    settings = {"num_steps": 5 * 40, "warmup": 5 * 15, "data": x, "batch_size": 2, "compile": False}
    samples = lv.sample(target, sampler=lv.amagold(0.02, length=4), init=init, **settings)
    assert samples.draws.shape == (800, 25, 1)  # the ends of trajectories, and nothing else
    rate = lv.diagnostics.acceptance_rate(samples.draws)
    assert 0.3 < rate.mean() < 0.95
    share = density(energy, 1.0)
    for f in STATISTICS.values():
        means = f(samples.draws[..., 0].numpy()).mean(1)
        assert abs(means.mean() - (share * f(GRID)).sum()) < 4.5 * means.std() / np.sqrt(800)
    with pytest.raises(ValueError, match=r"batches=.*amagold.*independent minibatches.*reshuffled"):
        lv.sample(target, sampler=lv.amagold(0.05), init=init, batches="reshuffled", **settings)


def test_the_energy_is_that_of_all_data_and_the_gradient_that_of_the_rows():
    x = normal(5, stream(Purpose.DATA), 0, 12, dtype=torch.float64)
    target = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2, prior=lv.priors.flat())
    rough = minibatch(target, x, 2, seed=0, chains=range(3))
    position = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    both, exact = with_energy(rough, full(target, x))(position, 4), full(target, x)(position, 4)
    assert torch.equal(both.energy, exact.energy)
    assert torch.equal(both.gradient, rough(position, 4).gradient)
    assert not torch.allclose(both.gradient, exact.gradient)


def test_a_step_size_that_changes_changes_between_trajectories():
    kernel = lv.amagold(lv.schedules.step_decay(0.1, factor=0.5, every=2), length=4)
    assert [kernel.inputs(step).step_size for step in (0, 4, 5, 9)] == [0.1, 0.1, 0.025, 0.025]
    for setting, value in (("length", 0), ("beta", 1.1)):
        with pytest.raises(ValueError, match=rf"amagold\({setting}="):
            lv.amagold(0.1, **{setting: value})


def test_an_end_of_infinite_energy_is_not_taken():
    kernel = lv.amagold(0.1, length=1)
    state = kernel.init(torch.zeros(1, 1, dtype=torch.float64))
    flat = torch.zeros(1, 1, dtype=torch.float64)
    state = kernel.step(state, lv.targets.Evaluation(torch.zeros(1), flat), torch.ones(1, 1, 1).double())
    assert state.position != 0
    state = kernel.step(state, lv.targets.Evaluation(torch.full((1,), torch.inf), flat), -torch.ones(1, 1, 1).double())
    assert state.position == 0
