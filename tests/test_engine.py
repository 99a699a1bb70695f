"""The compiled engine agrees with the eager one to rounding, falls back in words, and is kept between calls."""

from __future__ import annotations

import gc
import time
import warnings
import weakref

import pytest
import torch
from torch.nn.functional import softplus

import langevin as lv
from langevin.compiler import program
from langevin.compiler.build import CompilerError
from langevin.execution import compiled

GAUSSIAN = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]], gradient_noise=1.0)
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
X = lv.random.normal(1, 0, 0, 300 * 2, dtype=torch.float64).reshape(300, 2)
Y = (X @ torch.tensor([1.0, -2.0], dtype=torch.float64) > 0).double()
LOGISTIC = lv.targets.likelihood(lambda theta, x, y: y * (x @ theta) - softplus(x @ theta), prior=lv.priors.gaussian(std=1.0))


def both(kernel, target, steps=300, **rest):
    """Run eagerly and compiled, over a whole block and a part of one."""
    runs = [lv.sample(target, sampler=kernel, init=START, num_steps=steps, compile=compile, **rest) for compile in (False, True)]
    assert not runs[0].compiled
    return runs


@pytest.mark.parametrize("name", sorted(lv.SAMPLERS))
def test_compiled_steps_equal_eager_ones_to_rounding(name):
    metric = {"metric": GAUSSIAN.metric, "correction": False}
    extra = {"sgrld": metric, "sgrhmc": metric, "adaptive_sghmc": {"adapt_steps": 100}}.get(name, {})
    kernel = lv.SAMPLERS[name](lv.schedules.step_decay(0.02, factor=0.5, every=100), **extra)
    eager, compiled = both(kernel, GAUSSIAN)
    assert compiled.compiled
    for field in ("draws", "energy", "gradient_norm", "step_size"):
        torch.testing.assert_close(getattr(compiled, field), getattr(eager, field), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recipe", [lv.msgld, lv.asgld, lv.adamax_sgld, lv.asgld_full])
def test_the_invariant_forms_compile_with_their_two_noises_and_their_freezing(recipe):
    kernel = recipe(0.02, invariant=True, bias_factor=lv.schedules.polynomial(3.0))
    eager, compiled = both(kernel, GAUSSIAN, warmup=100)
    assert compiled.compiled
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_likelihoods_with_minibatches_compile():
    eager, compiled = both(lv.msgld(0.001), LOGISTIC, data=(X, Y), batch_size=20)
    assert compiled.compiled
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_modules_compile_with_minibatches_of_each_chain():
    with torch.random.fork_rng():
        model = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()
    posterior = lv.Posterior(model, "categorical", prior=lv.priors.gaussian(std=1.0), num_data=300)
    settings = {"data": (X, Y.long()), "batch_size": 20, "num_steps": 60}
    init = posterior.init(3, seed=1)
    eager, compiled = (
        lv.sample(posterior, sampler=lv.msgld(1e-4), init=init, compile=compile, **settings) for compile in (False, True)
    )
    assert compiled.compiled
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)


def test_energies_and_the_ravine_compile():
    eager, compiled = both(lv.sgld(0.01), lv.targets.energy(lambda theta: 0.5 * theta @ theta + theta[0].cos()))
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-9, atol=1e-9)
    data = lv.targets.ravine_data(100)
    eager, compiled = both(lv.sghmc(1e-6), lv.targets.ravine(), data=data, batch_size=10)
    assert compiled.compiled
    torch.testing.assert_close(compiled.draws, eager.draws, rtol=1e-8, atol=1e-8)


def test_what_cannot_be_compiled_goes_on_eagerly_with_one_line_of_explanation():
    class Stubborn(lv.targets.Target):
        def evaluate(self, position, batch=None):
            factor = 1.0 if float(position.sum()) < 1e9 else 2.0
            return lv.targets.Evaluation(0.5 * factor * position.square().sum(-1), factor * position)

    with pytest.warns(UserWarning, match="continuing with eager execution: .*reads values") as caught:
        samples = lv.sample(Stubborn(), sampler=lv.sgld(0.01), init=START, num_steps=20, compile=True)
    (said,) = [warning for warning in caught if not issubclass(warning.category, lv.TrustWarning)]
    assert len(str(said.message).splitlines()) == 1
    assert not samples.compiled
    expected = lv.sample(Stubborn(), sampler=lv.sgld(0.01), init=START, num_steps=20, compile=False)
    assert torch.equal(samples.draws, expected.draws)


def test_without_a_compiler_the_recording_is_replayed_with_one_warning(monkeypatch):
    def missing(*arguments):
        raise CompilerError("no C compiler here")

    monkeypatch.setattr(program, "load", missing)
    monkeypatch.setattr(program, "_warned", set())
    program._library.cache_clear()
    with pytest.warns(UserWarning, match="operation by operation.*no C compiler here") as caught:
        runs = [
            lv.sample(GAUSSIAN, sampler=lv.msgld(0.01), init=START, num_steps=45, thin=5, compile=way)
            for way in (True, True, False)
        ]
    assert len([each for each in caught if "operation by operation" in str(each.message)]) == 1
    torch.testing.assert_close(runs[0].draws, runs[2].draws, rtol=1e-9, atol=1e-9)
    assert torch.equal(runs[0].draws, runs[1].draws)


def test_auto_decides_by_sizes_alone():
    """Half a second of compiling against 0.12 ms or 0.8 ms a step, 30 ns an element, 10 ns a number of the data."""
    pays, start = compiled.compile_pays, torch.zeros(1, 2)
    for closed, seconds in ((True, 1.2e-4 + 6e-8), (False, 8e-4 + 6e-8)):
        edge = 0.5 / seconds
        assert pays(int(edge) + 1, start, (), None, closed)
        assert not pays(int(edge), start, (), None, closed)
    many, columns = torch.zeros(1000, 10), (torch.zeros(500, 20), torch.zeros(500))
    for batch_size, rows in ((30, 30), (None, 500)):
        edge = 0.5 / (8e-4 + 3e-8 * 10_000 + 1e-8 * 1000 * rows * 21)
        assert pays(int(edge) + 1, many, columns, batch_size, False)
        assert not pays(int(edge), many, columns, batch_size, False)


@pytest.fixture
def compiling_is_free(monkeypatch):
    monkeypatch.setattr(compiled, "_COMPILE_SECONDS", 0.0)


@pytest.mark.usefixtures("compiling_is_free")
def test_auto_takes_that_decision_for_the_whole_run(monkeypatch):
    samples = lv.sample(GAUSSIAN, sampler=lv.msgld(0.02), init=START, num_steps=300)
    assert samples.compiled
    assert torch.equal(samples.draws, lv.sample(GAUSSIAN, sampler=lv.msgld(0.02), init=START, num_steps=300, compile=True).draws)
    monkeypatch.setattr(compiled, "_COMPILE_SECONDS", 1e9)
    samples = lv.sample(GAUSSIAN, sampler=lv.msgld(0.02), init=START, num_steps=300)
    assert not samples.compiled
    assert torch.equal(samples.draws, lv.sample(GAUSSIAN, sampler=lv.msgld(0.02), init=START, num_steps=300, compile=False).draws)


def test_the_default_call_does_not_ask_the_clock(monkeypatch):
    """A clock that runs a million times as fast changes nothing."""
    expected = lv.sample(GAUSSIAN, sampler=lv.sgld(0.02), init=START, num_steps=600)
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 1e6 * clock())
    samples = lv.sample(GAUSSIAN, sampler=lv.sgld(0.02), init=START, num_steps=600)
    assert torch.equal(samples.draws, expected.draws)
    assert samples.compiled == expected.compiled


@pytest.fixture
def compilations(monkeypatch):
    """Return a function that calls another, and returns its result and how many programs it had compiled."""
    texts = set()

    def noted(text, *rest):
        if "int lv_run(" in text:  # linear algebra is compiled once for all programs
            texts.add(text)
        return load(text, *rest)

    load = program.load
    monkeypatch.setattr(program, "load", noted)
    program._library.cache_clear()

    def count(call):
        before = set(texts)
        return call(), len(texts - before)

    return count


def quadratic(weight, matrix):
    return lv.targets.energy(lambda theta: weight * theta @ matrix @ theta)


def test_a_call_of_equal_structure_compiles_nothing_and_a_changed_number_is_seen(compilations):
    def call(weight=1.0, scale=1.0, step_size=0.02, beta=0.9, **rest):
        given, kernel = {"num_steps": 20, "compile": True, **rest}, lv.msgld(step_size, beta=beta)
        return lv.sample(quadratic(weight, scale * torch.eye(2, dtype=START.dtype)), sampler=kernel, init=START.clone(), **given)

    first, made = compilations(call)
    assert made == 1
    assert torch.equal(compilations(call)[0].draws, first.draws)
    others = {"num_steps": 30}, {"scale": 3.0}, {"first_chain": 7}, {"weight": 2.0}, {"step_size": 0.01}, {"beta": 0.5}
    for changes in ({}, {"seed": 3}, *others):
        found, made = compilations(lambda changes=changes: call(**changes))
        assert made == 0, changes
        torch.testing.assert_close(found.draws, call(**changes | {"compile": False}).draws, rtol=1e-9, atol=1e-9)


def test_a_tensor_changed_in_place_between_two_calls_is_never_stale(compilations):
    matrix = torch.eye(2, dtype=START.dtype)
    target = lv.targets.energy(lambda theta: theta @ matrix @ theta)

    def call(target, compile=True):
        return lv.sample(target, sampler=lv.sgld(0.02), init=START, num_steps=20, compile=compile).draws

    compilations(lambda: call(target))
    matrix *= 5.0
    found, made = compilations(lambda: call(target))
    assert made == 0
    torch.testing.assert_close(found, call(target, compile=False), rtol=1e-9, atol=1e-9)


def test_data_centres_and_analytic_targets_of_equal_shape_share_their_code(compilations):
    def call(shift, compile=True):
        target = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0] * theta[1]) ** 2, prior=lv.priors.gaussian(std=1.0))
        mode = torch.tensor([0.1, shift], dtype=START.dtype)
        settings = {"data": X[:, 0] + shift, "batch_size": 7, "num_steps": 20, "control_variate": mode, "seed": int(10 * shift)}
        return lv.sample(target, sampler=lv.sgld(1e-3), init=START, compile=compile, **settings).draws

    def analytic(scale, compile=True):
        target = lv.targets.gaussian([[scale, 0.0], [0.0, 1.0]], gradient_noise=0.5)
        return lv.sample(target, sampler=lv.sgld(0.01), init=START, compile=compile, num_steps=20, seed=int(10 * scale)).draws

    for function in (call, analytic):
        assert compilations(lambda function=function: function(0.5))[1] == 1
        found, made = compilations(lambda function=function: function(0.8))
        assert made == 0
        torch.testing.assert_close(found, function(0.8, compile=False), rtol=1e-9, atol=1e-9)


def test_modules_that_are_built_anew_share_their_code_frozen_values_included(compilations):
    def call(frozen, compile=True):
        with torch.random.fork_rng():
            model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
        with torch.no_grad():
            model[0].bias.fill_(frozen).requires_grad_(False)
        posterior = lv.Posterior(model, "categorical", prior=lv.priors.gaussian(std=1.0), num_data=300)
        init = torch.linspace(-1, 1, 3 * posterior.dim, dtype=torch.float64).reshape(3, -1)
        settings = {"data": (X, Y.long()), "batch_size": 20, "num_steps": 20}
        return lv.sample(posterior, sampler=lv.sgld(1e-3), init=init, compile=compile, **settings).draws

    assert compilations(lambda: call(0.5))[1] == 1
    found, made = compilations(lambda: call(2.0))
    assert made == 0
    torch.testing.assert_close(found, call(2.0, compile=False), rtol=1e-9, atol=1e-9)


def test_samplers_that_are_built_anew_share_their_code_also_with_functions_in_them(compilations):
    def call(beta, compile=True):
        kernel = lv.sgrld(0.01, metric=lambda theta: beta * torch.eye(2, dtype=theta.dtype), correction=False)
        return lv.sample(GAUSSIAN, sampler=kernel, init=START, num_steps=20, compile=compile).draws

    assert compilations(lambda: call(1.0))[1] == 1
    found, made = compilations(lambda: call(4.0))
    assert made == 0
    torch.testing.assert_close(found, call(4.0, compile=False), rtol=1e-9, atol=1e-9)


def test_compiled_code_keeps_no_data_alive():
    def call():
        matrix, x = torch.eye(2, dtype=START.dtype), X[:, 0].clone()
        target = lv.targets.likelihood(lambda theta, x: -(theta @ matrix @ theta) * x**2, prior=lv.priors.gaussian(std=1.0))
        assert lv.sample(target, sampler=lv.sgld(1e-3), init=START, num_steps=20, data=x, batch_size=7, compile=True).compiled
        return weakref.ref(matrix), weakref.ref(x)

    gone = call()
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_a_compiled_chain_that_blows_up_names_its_step():
    init = torch.tensor([[0.5], [30.0], [-0.5]], dtype=torch.float64)
    target = lv.targets.energy(lambda theta: 0.25 * (theta**4).sum())
    found = []
    for compile in (False, True):
        with pytest.warns(UserWarning, match="chain 1 stopped at step"):
            found.append(lv.sample(target, sampler=lv.sgld(0.01), init=init, num_steps=60, compile=compile))
    assert found[0].status == found[1].status
    torch.testing.assert_close(found[0].draws, found[1].draws, equal_nan=True)


@pytest.mark.parametrize("is_rebound", [True, False])
def test_a_target_that_changes_during_a_run_is_reported_at_its_end(is_rebound):
    held = {"factor": 1.0, "matrix": torch.eye(2, dtype=START.dtype)}
    target = lv.targets.energy(lambda theta: held["factor"] * theta @ held["matrix"] @ theta)

    def change(done, total):
        if is_rebound:
            held["factor"] = 2.0
        else:
            held["matrix"].mul_(2.0)

    with pytest.warns(lv.TrustWarning, match="the target changed during the run"):
        lv.sample(target, sampler=lv.sgld(0.02), init=START, num_steps=50, compile=True, progress=change)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the target changed")
        lv.sample(target, sampler=lv.sgld(0.02), init=START, num_steps=50, compile=True)


def test_lazy_negative_bits_of_constants_are_resolved():
    """FINDINGS W1: memory does not hold the sign."""
    mu = torch.tensor([1.0 + 2.0j, -3.0 + 0.5j], dtype=torch.complex128).conj().imag
    assert mu.is_neg()
    target = lv.targets.energy(lambda theta: (theta - mu).square().sum())
    eager, fast = (lv.sample(target, sampler=lv.sgld(0.05), init=START, num_steps=50, compile=way) for way in (False, True))
    assert fast.compiled
    torch.testing.assert_close(fast.draws, eager.draws, rtol=1e-12, atol=1e-12)
