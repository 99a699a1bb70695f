"""Chains that meet: a kernel that needs all chains of a group at once. Replica exchange stands for them."""

from __future__ import annotations

import pytest
import torch

import langevin as lv

double = torch.float64


def wells(x):
    return 5 * (x * x - 1) ** 2 + 0.4 * x


TARGET = lv.targets.energy(lambda theta: wells(theta).sum())
KERNEL = lv.replica_exchange(lv.sgld(0.004), temperatures=(1.0, 8.0), swap_every=1)


def run(kernel=KERNEL, target=TARGET, chains=6, start=1.0, **settings):
    init = torch.full((chains, 1), start, dtype=double)
    return lv.sample(
        target, sampler=kernel, init=init, **{"num_steps": 40, "seed": 3, "compile": False, "progress": False, **settings}
    )


def test_groups_run_apart_as_they_run_together():
    together = run(chains=6).draws
    apart = run(chains=2, first_chain=4).draws
    assert torch.equal(together[2:], apart)


def test_a_group_stops_together_and_disturbs_no_other():
    class Edge(lv.targets.Target):
        def evaluate(self, position, batch=None):
            energy, gradient = TARGET.evaluate(position)
            return lv.targets.Evaluation(torch.where(position[:, 0] > 3, torch.nan, energy), gradient)

    init = torch.tensor([[1.0], [1.0], [1.0], [2.99], [1.0], [1.0]], dtype=double)
    kernel = lv.replica_exchange(lv.sgld(0.02), temperatures=(1.0, 8.0), swap_every=1)
    quiet = lv.sample(
        TARGET, sampler=kernel, init=torch.ones(6, 1, dtype=double), num_steps=40, compile=False, seed=3, progress=False
    )
    with pytest.warns(UserWarning, match="chain 2 stopped|chain 3 stopped"):
        samples = lv.sample(Edge(), sampler=kernel, init=init, num_steps=40, compile=False, seed=3, progress=False)
    first, second = samples.replicas.status[2:4]
    assert [status.is_healthy for status in samples.status] == [True, False, True]
    assert [status.is_healthy for status in samples.replicas.status] == [True, True, False, False, True, True]
    assert first.steps == second.steps < 40
    assert {first.reason, second.reason} & {"the energy became nan"}
    assert "in the same group, stopped" in first.reason + second.reason
    assert torch.equal(samples.replicas.draws[[0, 1, 4, 5]], quiet.replicas.draws[[0, 1, 4, 5]])


def test_a_target_that_raises_for_one_chain_costs_its_group_only():
    class Raising(lv.targets.Target):
        def evaluate(self, position, batch=None):
            if (position > 3).any():
                raise RuntimeError("beyond 3")
            return lv.targets.Evaluation(0 * position[:, 0], 0 * position)

    init = torch.tensor([[-50.0], [-50.0], [2.9], [-50.0], [-50.0], [-50.0]], dtype=double)
    kernel = lv.replica_exchange(lv.sgld(0.02, temperature=8.0), temperatures=(1.0, 1.001), swap_every=1)
    with pytest.warns(UserWarning, match="beyond 3"):
        samples = lv.sample(Raising(), sampler=kernel, init=init, num_steps=60, compile=False, seed=5, progress=False)
    assert [status.is_healthy for status in samples.replicas.status] == [True, True, False, False, True, True]


@pytest.mark.parametrize(("chains", "first"), [(5, 0), (4, 1)])
def test_half_a_group_is_refused(chains, first):
    with pytest.raises(ValueError, match=r"init=.*whole groups of 2 chains.*got '\d chains from number \d on"):
        run(chains=chains, first_chain=first)


def test_chains_meet_in_compiled_blocks_too():
    torch.testing.assert_close(run(compile=True).draws, run().draws, rtol=1e-9, atol=1e-9)


def test_an_optimizer_refuses_a_kernel_that_needs_energies_or_other_chains():
    class Exchanging(lv.optim.LangevinOptimizer):
        builder = staticmethod(lambda step_size, temperature=1.0: lv.replica_exchange(lv.sgld(step_size, temperature=temperature)))

        def __init__(self, params, lr, **common):
            super().__init__(params, lr, {}, **common)

    with pytest.raises(ValueError, match="replica_exchange, which needs the energy or other chains"):
        Exchanging([torch.nn.Parameter(torch.zeros(2))], 0.1, num_data=10)


INNER = lv.sghmc(0.004)
AROUND = {
    "replica": lv.replica_exchange(INNER, temperatures=(1.0, 3.0), swap_every=3, energy_noise="auto"),
    "cycles": lv.cyclical_annealing(INNER, cycle_length=20),
    "contour": lv.kernels.Contour("contour", INNER.step_size, inner=INNER, low=0.0, high=6.0, log_density=(0.0, -2.0, -5.0)),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the interrupt
def test_a_run_that_is_cut_goes_on_with_the_same_bits(name, tmp_path):
    def stop(done, total):
        if done >= 300:
            raise KeyboardInterrupt

    settings = {"num_steps": 700, "warmup": 5}
    whole = run(AROUND[name], chains=4, **settings)
    cut = run(AROUND[name], chains=4, out=tmp_path / "run", **{**settings, "progress": stop})
    assert cut.draws.shape[1] < whole.draws.shape[1]
    resumed = lv.resume(tmp_path / "run", TARGET, sampler=AROUND[name], progress=False)
    assert torch.equal(resumed.draws, whole.draws)
    if name == "replica":
        assert torch.equal(resumed.replicas.draws, whole.replicas.draws)
        assert resumed.replicas.temperatures == (1.0, 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cycles", "contour"])
def test_samplers_around_others_are_compiled_too(name):
    torch.testing.assert_close(
        run(AROUND[name], chains=4, compile=True).draws, run(AROUND[name], chains=4).draws, rtol=1e-9, atol=1e-9
    )
