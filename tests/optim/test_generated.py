"""The update as one generated kernel: on the CPU backend of the compiler, against the same formula on tensors.

Most tests run the generated functions as they are, without compiling: their bits are those of plain torch. What the compiler makes
of them is tested on three samplers; it rounds logarithm, sine and cosine in its own way, so that normals differ in the last places.
"""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from catalogue import GAUSSIAN, OPTIMIZERS, build, network, train
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import metrics

import langevin as lv
from langevin.execution.generated import DEVICES, compiled, generate, layout
from langevin.execution.shards import Runs
from langevin.optim import update
from langevin.random import KINDS, normal_reference, philox, uniform_reference
from langevin.random.reference import counter_words, key_words, normal_at

FLOATS = [torch.float32, torch.float64]
SHARED = {}  # what is compiled is compiled once for all tests here


@pytest.fixture(autouse=True)
def no_optimizer_of_another_test():
    """One that waits for the garbage collector would be reported as sharing its noise."""
    gc.collect()


@pytest.fixture(autouse=True)
def generated_code_serves_the_cpu(monkeypatch):
    """Take the generated engine instead of the fused one; noise of the plain path is that of other devices."""
    monkeypatch.setattr(layout, "DEVICES", {"cpu"})
    monkeypatch.setattr(update, "has_fused_engine", lambda: False)
    monkeypatch.setitem(KINDS, "normal", normal_reference)
    monkeypatch.setitem(KINDS, "uniform", uniform_reference)
    monkeypatch.setattr(layout, "SMALL", 10)  # of the four tensors of `network` two are moved alone, two together
    monkeypatch.setattr(compiled, "_written", SHARED)
    compiled._generate.cache_clear()
    yield
    compiled._generate.cache_clear()


@pytest.fixture
def uncompiled(monkeypatch):
    calls = []

    def as_it_is(step):
        def call(*tensors):
            calls.append(step.__name__)
            step(*tensors)

        return call

    monkeypatch.setattr(compiled, "compiler", as_it_is)
    monkeypatch.setattr(compiled, "_written", {})
    return calls


def plain(name, steps, dtype=torch.float32, **settings):
    model = network(dtype)
    return train(model, build(name, model.parameters(), fused=False, **settings), steps, dtype)


def run(name, steps, dtype=torch.float32, **settings):
    model = network(dtype)
    return train(model, build(name, model.parameters(), **settings), steps, dtype)


def moved(params, gradients, fused=None, **settings):
    params = [nn.Parameter(p.detach().clone(memory_format=torch.preserve_format)) for p in params]
    optimizer = build("MSGLD", params, **{"fused": fused, **settings})
    for _ in range(3):
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        optimizer.step()
    return params


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_moves_as_on_plain_torch_bit_for_bit(name, dtype, uncompiled):
    optimizer = build(name, network().parameters())
    is_elementwise = optimizer._kernel(build(name, network().parameters()).param_groups[0]).traits.elementwise
    with warnings.catch_warnings():
        warnings.simplefilter("error" if is_elementwise else "ignore")
        assert torch.equal(run(name, 4, dtype), plain(name, 4, dtype))
    assert set(uncompiled) == ({"in_order", "anywhere"} if is_elementwise else set())


@pytest.mark.parametrize("prior", [None, lv.priors.laplace(scale=0.3), lv.priors.horseshoe(scale=0.1)])
def test_every_kind_of_line_means_the_same_on_tensors(prior, uncompiled):
    assert torch.equal(run("ASGLD", 4, prior=prior), plain("ASGLD", 4, prior=prior))
    assert uncompiled


@pytest.mark.parametrize("place", [{"seed": 2**64 - 1, "chain": 2**32 - 1, "first_address": 2**34 - 400}, {"seed": 2**40}])
def test_addresses_beyond_32_bits_stay_right(place, uncompiled):
    results = []
    for fused in (None, False):
        model = network()
        optimizer = build("MSGLD, invariant", model.parameters(), fused=fused, **place)
        optimizer.param_groups[0]["step"] = 2**56 - 9
        results.append(train(model, optimizer, 3))
    assert torch.equal(*results)
    assert uncompiled


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_moves_as_on_plain_torch(dtype, master, uncompiled):
    settings = {"master": master, "lr": 1e-3}
    assert torch.equal(run("MSGLD", 3, dtype, **settings), plain("MSGLD", 3, dtype, **settings))
    assert uncompiled


def test_any_layout_moves_as_on_plain_torch(uncompiled):
    at = lv.random.stream(lv.random.Purpose.INIT)
    w, g = (lv.random.normal(3, at, k, 6 * 5 * 3 * 3).view(6, 5, 3, 3) for k in range(2))
    params = [w.to(memory_format=torch.channels_last), w[0, :, :, 0].t(), w[:, 0, 0, 0].contiguous()]
    gradients = [g, g[0, :, :, 0].t().contiguous(), g[:1, 0, 0, 0].expand(6)]
    for got, want in zip(moved(params, gradients), moved(params, gradients, fused=False), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    assert "anywhere" in uncompiled


def test_parameters_that_overlap_are_moved_one_after_the_other(uncompiled):
    results = []
    for fused in (None, False):
        buffer = torch.linspace(-1, 1, 12)
        params = [nn.Parameter(buffer[:5]), nn.Parameter(buffer[3:8]), nn.Parameter(buffer[8:])]
        for p in params:
            p.grad = torch.ones_like(p)
        build("SGLD", params, fused=fused, prior=GAUSSIAN).step()
        results.append(buffer)
    assert torch.equal(*results)
    assert uncompiled == ["anywhere", "anywhere"]  # the trial, and the one that overlaps nothing


def test_a_single_element_is_left_to_plain_torch(uncompiled):
    one = [torch.ones(1)]
    assert torch.equal(moved(one, one)[0], moved(one, one, fused=False)[0])
    assert uncompiled == []


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_shard_draws_the_noise_of_its_own_elements(dtype, uncompiled):
    """Rows, one stretch and moved alone; columns, a stretch in each row and moved together."""
    kernel, whole = lv.msgld(1e-3, bias_factor=2.0), torch.linspace(-1, 1, 12 * 10, dtype=dtype).view(12, 10)
    places_of = torch.arange(120).view(12, 10)

    def step(part, runs):
        entry = update.Entry(part, part, part * 2, list(kernel.start(part)), 40, runs, kernel.inputs(3), GAUSSIAN, None)
        left = generate(kernel, GAUSSIAN, dtype)([entry], num_data=50, inputs=entry.inputs, seed=4, chain=1, step=3)
        assert left == []
        return part

    after = step(whole.clone(), None)
    rows = Runs(np.array([50]), np.array([30]))
    assert torch.equal(step(whole[5:8].clone(), rows), after[5:8])
    columns = Runs(places_of[:, 4].numpy(), np.full(12, 3))
    assert torch.equal(step(whole[:, 4:7].clone(), columns), after[:, 4:7])
    assert set(uncompiled) == {"in_order", "anywhere"}


def test_only_gpus_are_served_and_false_means_plain_torch(monkeypatch, uncompiled):
    assert sorted(DEVICES) == ["cuda", "mps", "xpu"]
    run("SGLD", 1, fused=False)
    monkeypatch.setattr(layout, "DEVICES", DEVICES)
    run("SGLD", 1)
    assert uncompiled == []


def test_a_compiler_that_fails_leaves_plain_torch_and_says_so_once(monkeypatch):
    def fails(step):
        def call(stored, *rest):
            stored.fill_(7.0)  # half an update
            raise RuntimeError("no C++ compiler\nand a long trace")

        return call

    monkeypatch.setattr(compiled, "compiler", fails)
    monkeypatch.setattr(compiled, "_written", {})
    monkeypatch.setattr(compiled, "_warned", set())
    with pytest.warns(UserWarning, match=r"failed for cpu.*plain torch.*\(no C\+\+ compiler\)$") as said:
        got = run("SGLD", 3)
    assert [Path(warning.filename).name for warning in said] == ["catalogue.py"]  # where step() was called
    assert torch.equal(got, plain("SGLD", 3))
    run("MSGLD", 1)  # not said again


class Own:
    """A prior that looks at values, which no compiler can know."""

    def energy(self, position):
        return position.square().sum(-1)

    def gradient(self, position):
        return position if float(position.sum()) > 0 else 2 * position


def test_a_prior_that_cannot_be_traced_runs_on_plain_torch_and_says_so_once(monkeypatch, uncompiled):
    monkeypatch.setattr(compiled, "_warned", set())
    with pytest.warns(UserWarning, match=r"sgld with prior Own runs on plain torch") as said:
        got = run("SGLD", 3, prior=Own())
    assert [Path(warning.filename).name for warning in said] == ["catalogue.py"]
    assert torch.equal(got, plain("SGLD", 3, prior=Own()))
    assert uncompiled == []


# From here on the compiler runs. It has warnings of its own, about parts of torch.
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@compiles
def test_compiled_words_are_those_of_integers():
    """Bit for bit, at addresses, steps, seeds and chains beyond 32 bits."""
    seed, stream, step, first = 2**64 - 12345, lv.random.stream(lv.random.Purpose.FOURTH, 2**32 - 2), 2**55 + 77, 2**34 - 99
    words = torch.tensor([*key_words(seed), *counter_words(stream, step), first])

    def draw(words, size):
        block = words[5] + torch.arange(size) >> 2
        return philox((block, words[2], words[3], words[4]), (words[0], words[1]))

    found = torch.stack(torch.compile(draw, fullgraph=True)(words, 99), -1).tolist()
    counter = counter_words(stream, step)
    assert found == [list(philox((first + k >> 2, *counter), key_words(seed))) for k in range(99)]


@compiles
@pytest.mark.parametrize("dtype", FLOATS)
def test_compiled_normals_agree_to_four_units_in_the_last_place(dtype):
    """Of a normal of size one: the compiler's logarithm, sine and cosine are not those of plain torch."""
    at = lv.random.stream(lv.random.Purpose.SECOND, 9)
    words = torch.tensor([*key_words(2**63 + 1), *counter_words(at, 2**40), 0])

    def draw(words, address):
        return normal_at(address, (words[0], words[1]), (words[2], words[3], words[4]), dtype)

    found = torch.compile(draw, fullgraph=True)(words, torch.arange(77, 20_077))
    wanted = normal_reference(2**63 + 1, at, 2**40, 20_000, offset=77, dtype=dtype)
    error = (found - wanted).abs() / wanted.abs().clamp(min=1)
    assert 0 < float(wanted.std()) < 1.02
    assert float(error.max()) <= 4 * torch.finfo(dtype).eps


def test_one_kernel_is_generated_for_each_function_and_none_for_later_steps():
    compiled_before, metrics.generated_kernel_count = counters["stats"]["unique_graphs"], 0
    model = network()
    optimizer = build("ASGLD, invariant", model.parameters())
    train(model, optimizer, 1)
    assert metrics.generated_kernel_count == 2  # `in_order` and `anywhere`: two noises, seven memories and all
    assert counters["stats"]["unique_graphs"] - compiled_before == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for change in (
            {},
            {"temperature": 0.3},
            {"seed": 2**60},
            {"chain": 77},
            {"num_data": 60},
            {"prior": lv.priors.gaussian(2.0)},
        ):
            optimizer.param_groups[0].update(change)
            train(model, optimizer, 1)
            scheduler.step()
        next(model.parameters()).requires_grad_(False)
        train(model, optimizer, 1)
        others = [nn.Parameter(torch.ones(50, 40)), nn.Parameter(torch.ones(6))]
        for p in others:
            p.grad = torch.ones_like(p)
        build("ASGLD, invariant", others).step()
    assert counters["stats"]["unique_graphs"] - compiled_before == 2


@pytest.mark.parametrize("name", ["ASGLD, invariant"])
def test_without_temperature_compiled_steps_equal_plain_torch_bit_for_bit(name):
    assert torch.equal(run(name, 5, temperature=0.0), plain(name, 5, temperature=0.0))


def test_compiled_steps_with_noise_agree_to_rounding():
    """Normals agree to 4 units in the last place; their part of a parameter of size one is small."""
    found, wanted = run("ASGLD, invariant", 5), plain("ASGLD, invariant", 5)
    assert float((found - wanted).abs().max()) <= 8 * torch.finfo(torch.float32).eps


def test_compiled_uniforms_and_signs_are_equal_bit_for_bit():
    assert torch.equal(run("SGLRW", 5, torch.float64), plain("SGLRW", 5, torch.float64))


def test_a_resumed_run_is_the_same_run():
    whole = run("ASGLD, invariant", 6)
    model = network()
    optimizer = build("ASGLD, invariant", model.parameters())
    train(model, optimizer, 3)
    state, again = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model)
    other = build("ASGLD, invariant", again.parameters(), seed=99)
    other.load_state_dict(state)
    assert torch.equal(train(again, other, 3), whole)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_compiled_optimizer_agrees_with_plain_torch(name, dtype):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "sgnht")
        cold = [step(name, 4, dtype, temperature=0.0) for step in (run, plain)]
        warm = [step(name, 4, dtype) for step in (run, plain)]
    assert torch.equal(*cold)
    assert float((warm[0] - warm[1]).abs().max()) <= 64 * torch.finfo(dtype).eps


@pytest.mark.slow
def test_the_triton_source_runs_in_its_interpreter_and_compiles_for_a_gpu(tmp_path):
    pytest.importorskip("triton", reason="the package triton is not installed")
    script = Path(__file__).parents[2] / "tools" / "triton_source.py"
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    for mode in ("interpret", "assemble"):
        done = subprocess.run(
            [sys.executable, str(script), mode, str(tmp_path)], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        print(done.stdout)
