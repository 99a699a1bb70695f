"""Chains that meet: a kernel that needs all chains of a group at once. Replica exchange stands for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import langevin as lv
from langevin.kernels import Kernel
from langevin.schedules import constant

double = torch.float64


@dataclass(frozen=True)
class Exchange(Kernel):
    """SGLD at a ladder of temperatures: two neighbours swap places with the probability of Metropolis, then both take a step."""

    ladder: tuple[float, float] = (1.0, 8.0)

    @property
    def memory(self):
        return ()

    @property
    def num_noises(self):
        return 2

    @property
    def is_elementwise(self):
        return False

    @property
    def needs_energy(self):
        return True

    @property
    def group_size(self):
        return 2

    def update(self, position, evaluation, noise, memory, inputs):
        def by_group(tensor):
            return tensor.unflatten(0, (-1, 2))

        theta, energy, gradient, eta = map(by_group, (position, evaluation.energy, evaluation.gradient, noise[0]))
        tau = inputs.temperature * torch.tensor(self.ladder, dtype=position.dtype)
        gain = (1 / tau[0] - 1 / tau[1]) * (energy[:, 0] - energy[:, 1])
        uniform = torch.special.ndtr(by_group(noise[1])[:, 0, 0])
        is_swapped = (uniform < gain.exp())[:, None, None]
        theta = torch.where(is_swapped, theta.flip(1), theta)
        gradient = torch.where(is_swapped, gradient.flip(1), gradient)
        moved = theta - inputs.step_size * gradient + (2 * inputs.step_size * tau)[:, None] ** 0.5 * eta
        return moved.flatten(0, 1), ()

    @property
    def effective_temperature(self):
        return None

    @property
    def description(self):
        return "exchange: two temperatures"


def wells(x):
    return 5 * (x * x - 1) ** 2 + 0.4 * x


TARGET = lv.targets.energy(lambda theta: wells(theta).sum())
KERNEL = Exchange("exchange", constant(0.004))


def run(kernel=KERNEL, target=TARGET, chains=6, start=1.0, **settings):
    init = torch.full((chains, 1), start, dtype=double)
    return lv.sample(kernel, target, init, **{"num_steps": 40, "seed": 3, "compile": False, "progress": False, **settings})


def test_replica_exchange_has_the_law_of_both_wells():
    """The cold chain alone stays in the well where it starts; 5 standard errors of 1,000 pairs, and 1.5 % of step size."""
    share = quad(lambda x: np.exp(-wells(x)), -4, 0)[0] / quad(lambda x: np.exp(-wells(x)), -4, 4)[0]
    last = run(chains=2_000, num_steps=2_000, warmup=1_999).draws[:, -1, 0]
    assert abs((last[::2] < 0).double().mean().item() - share) < 5 * (share * (1 - share) / 1_000) ** 0.5 + 0.015
    alone = run(lv.sgld(0.004), chains=1_000, num_steps=2_000, warmup=1_999).draws[:, -1, 0]
    assert (alone < 0).double().mean() < share - 0.2


def test_groups_run_apart_as_they_run_together():
    together = run(chains=6).draws
    apart = run(chains=2, first_chain=4).draws
    assert torch.equal(together[4:], apart)


def test_a_group_stops_together_and_disturbs_no_other():
    class Edge(lv.targets.Target):
        def evaluate(self, position, batch=None):
            energy, gradient = TARGET.evaluate(position)
            return lv.targets.Evaluation(torch.where(position[:, 0] > 3, torch.nan, energy), gradient)

    init = torch.tensor([[1.0], [1.0], [1.0], [2.99], [1.0], [1.0]], dtype=double)
    kernel = Exchange("exchange", constant(0.02), ladder=(1.0, 8.0))
    quiet = lv.sample(kernel, TARGET, torch.ones(6, 1, dtype=double), num_steps=40, compile=False, seed=3, progress=False)
    with pytest.warns(UserWarning, match="chain 2 stopped|chain 3 stopped"):
        samples = lv.sample(kernel, Edge(), init, num_steps=40, compile=False, seed=3, progress=False)
    first, second = samples.status[2:4]
    assert [status.is_healthy for status in samples.status] == [True, True, False, False, True, True]
    assert first.steps == second.steps < 40
    assert {first.reason, second.reason} & {"the energy became nan"}
    assert "which it meets, stopped" in first.reason + second.reason
    assert torch.equal(samples.draws[[0, 1, 4, 5]], quiet.draws[[0, 1, 4, 5]])


def test_a_target_that_raises_for_one_chain_costs_its_group_only():
    class Raising(lv.targets.Target):
        def evaluate(self, position, batch=None):
            if (position > 3).any():
                raise RuntimeError("beyond 3")
            return lv.targets.Evaluation(0 * position[:, 0], 0 * position)

    init = torch.tensor([[-50.0], [-50.0], [2.9], [-50.0], [-50.0], [-50.0]], dtype=double)
    kernel = Exchange("exchange", constant(0.02), ladder=(8.0, 8.0))
    with pytest.warns(UserWarning, match="beyond 3"):
        samples = lv.sample(kernel, Raising(), init, num_steps=60, compile=False, seed=5, progress=False)
    assert [status.is_healthy for status in samples.status] == [True, True, False, False, True, True]


@pytest.mark.parametrize(("chains", "first"), [(5, 0), (4, 1)])
def test_half_a_group_is_refused(chains, first):
    with pytest.raises(ValueError, match=r"init=.*whole groups of 2 chains.*got '\d chains from number \d on"):
        run(chains=chains, first_chain=first)


def test_chains_meet_in_compiled_blocks_too():
    torch.testing.assert_close(run(compile=True).draws, run().draws, rtol=1e-9, atol=1e-9)


def test_an_optimizer_refuses_a_kernel_that_needs_energies_or_other_chains():
    class Exchanging(lv.optim.LangevinOptimizer):
        builder = staticmethod(lambda step_size, temperature=1.0: Exchange("exchange", step_size, temperature))

        def __init__(self, params, lr, **common):
            super().__init__(params, lr, {}, **common)

    with pytest.raises(ValueError, match="exchange, which needs the energy or other chains"):
        Exchanging([torch.nn.Parameter(torch.zeros(2))], 0.1, num_data=10)
