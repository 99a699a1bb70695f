"""The compiled engine agrees with the eager one to rounding, falls back in words, and is kept between calls."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import softplus

import langevin as lv
from langevin import engine

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], gradient_noise=1.0)
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
X = lv.noise.normal(1, 0, 0, 300 * 2, dtype=torch.float64).reshape(300, 2)
Y = (X @ torch.tensor([1.0, -2.0], dtype=torch.float64) > 0).double()
LOGISTIC = lv.targets.likelihood(lambda theta, x, y: y * (x @ theta) - softplus(x @ theta), prior=lv.priors.gaussian(std=1.0))


def both(kernel, target, steps=300, **rest):
    """Run eagerly and compiled, over a whole block and a part of one."""
    runs = [lv.sample(kernel, target, START, num_steps=steps, compile=compile, **rest) for compile in (False, True)]
    assert runs[0].compiled_from is None
    return runs


@pytest.mark.parametrize("name", sorted(lv.RECIPES))
def test_compiled_steps_equal_eager_ones_to_rounding(name):
    extra = {"sgrld": {"metric": GAUSSIAN.metric, "correction": False}}.get(name, {})
    kernel = lv.RECIPES[name](lv.schedules.step_decay(0.02, factor=0.5, every=100), **extra)
    eager, compiled = both(kernel, GAUSSIAN)
    assert compiled.compiled_from == 0
    for field in ("draws", "energy", "gradient_norm", "step_size"):
        torch.testing.assert_close(getattr(compiled, field), getattr(eager, field), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recipe", [lv.msgld, lv.asgld, lv.adamax_sgld, lv.asgld_full])
def test_the_invariant_forms_compile_with_their_two_noises_and_their_freezing(recipe):
    kernel = recipe(0.02, invariant=True, bias_factor=lv.schedules.polynomial(3.0))
    eager, compiled = both(kernel, GAUSSIAN, warmup=100)
    assert compiled.compiled_from == 0
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_likelihoods_with_minibatches_compile():
    eager, compiled = both(lv.msgld(0.001), LOGISTIC, data=(X, Y), batch_size=20)
    assert compiled.compiled_from == 0
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_modules_compile_with_minibatches_of_each_chain():
    with torch.random.fork_rng():
        model = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()
    posterior = lv.Posterior(model, "categorical", prior=lv.priors.gaussian(std=1.0), num_data=300)
    settings = {"data": (X, Y.long()), "batch_size": 20, "num_steps": 60}
    init = posterior.init(3, seed=1)
    eager, compiled = (lv.sample(lv.msgld(1e-4), posterior, init, compile=compile, **settings) for compile in (False, True))
    assert compiled.compiled_from == 0
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_energies_and_the_ravine_compile():
    eager, compiled = both(lv.sgld(0.01), lv.targets.energy(lambda theta: 0.5 * theta @ theta + theta[0].cos()))
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)
    data = lv.targets.ravine_data(100)
    eager, compiled = both(lv.sghmc(1e-6), lv.targets.ravine(), data=data, batch_size=10)
    assert compiled.compiled_from == 0
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-8, atol=1e-8)


def test_what_cannot_be_compiled_goes_on_eagerly_with_one_line_of_explanation():
    def stubborn(theta):
        if torch.compiler.is_compiling():
            raise RuntimeError("no compiler likes me")
        return 0.5 * theta @ theta

    with pytest.warns(UserWarning, match="goes on uncompiled, since compiling failed") as caught:
        samples = lv.sample(lv.sgld(0.01), lv.targets.energy(stubborn), START, num_steps=20, compile=True)
    assert len(caught) == 1
    assert len(str(caught[0].message).splitlines()) == 1
    assert samples.compiled_from is None
    expected = lv.sample(lv.sgld(0.01), lv.targets.energy(stubborn), START, num_steps=20, compile=False)
    assert torch.equal(samples.draws, expected.draws)


def test_a_missing_scan_is_no_disaster(monkeypatch):
    monkeypatch.setattr(engine, "compiled_block", lambda *arguments: (_ for _ in ()).throw(ImportError("no scan here")))
    with pytest.warns(UserWarning, match="no scan here"):
        assert lv.sample(lv.sgld(0.01), GAUSSIAN, START, num_steps=5, compile=True).draws.isfinite().all()


def test_auto_compiles_when_the_rest_of_the_run_pays_for_it(monkeypatch):
    monkeypatch.setattr(engine, "_COMPILE_SECONDS", 0.0)
    kernel = lv.RECIPES["msgld"](lv.schedules.step_decay(0.02, factor=0.5, every=100))
    samples = lv.sample(kernel, GAUSSIAN, START, num_steps=600)
    assert samples.compiled_from == 256  # the first block is the measurement
    monkeypatch.setattr(engine, "_COMPILE_SECONDS", 1e9)
    assert lv.sample(kernel, GAUSSIAN, START, num_steps=600).compiled_from is None


def test_the_compiled_function_is_kept_between_calls():
    lv.sample(lv.msgld(0.02), GAUSSIAN, START, num_steps=10, compile=True)
    misses = engine.compiled_block.cache_info().misses
    torch._dynamo.utils.counters.clear()
    lv.sample(lv.msgld(0.01), GAUSSIAN, START, num_steps=10, compile=True, seed=3)
    assert engine.compiled_block.cache_info().misses == misses
    assert not torch._dynamo.utils.counters["stats"]
    lv.sample(lv.msgld(0.01, beta=0.5), GAUSSIAN, START, num_steps=10, compile=True)
    assert engine.compiled_block.cache_info().misses == misses + 1
    assert torch._dynamo.utils.counters["stats"]  # so the counter does count


def test_a_compiled_chain_that_blows_up_names_its_step():
    init = torch.tensor([[0.5], [30.0], [-0.5]], dtype=torch.float64)
    target = lv.targets.energy(lambda theta: 0.25 * (theta**4).sum())
    found = []
    for compile in (False, True):
        with pytest.warns(UserWarning, match="chain 1 stopped at step"):
            found.append(lv.sample(lv.sgld(0.01), target, init, num_steps=60, compile=compile))
    assert found[0].status == found[1].status
    torch.testing.assert_close(found[0].draws, found[1].draws, equal_nan=True)
