"""What every sampler promises; a new one is tested by being listed in `sampler_table.py`, and must be."""

from __future__ import annotations

import inspect

import pytest
import torch
from sampler_table import TABLE, Entry, build, gaps
from stepping import step as step_by_hand

import langevin as lv
from langevin.kernels import StepInputs
from langevin.kernels.preconditioners import Identity
from langevin.targets import Evaluation

TARGET = lv.targets.gaussian([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 2.0]])


def noises(kernel, shape, step=0, dtype=torch.float64):
    count = kernel.traits.num_noises * torch.Size(shape).numel()
    noise = lv.random.KINDS[kernel.traits.noise_kind](11, 0, step, count, dtype=dtype)
    return noise.reshape(kernel.traits.num_noises, *shape)


def gradient(position):
    """Return the gradient, and the energy with it for samplers that look."""
    return TARGET.evaluate(position)


@pytest.fixture(params=TABLE)
def name(request):
    return request.param


def run(kernel, position, steps=5):
    state = kernel.init(position)
    for step in range(steps):
        state = step_by_hand(kernel, state, gradient(state.position), noises(kernel, position.shape, step, position.dtype))
    return state


def test_every_sampler_is_in_the_table_with_an_oracle_or_a_law():
    assert gaps(lv.SAMPLERS, TABLE) == set()


def test_gaps_in_the_table_are_seen():
    entry = Entry({}, (), oracle=print)
    assert gaps({"one": lv.sgld, "two": lv.sgld}, {"one": entry, "one, invariant": entry}) == {"two"}
    assert gaps({"one": lv.sgld}, {"one": entry, "two": entry}) == {"two"}
    assert gaps({"one": lv.sgld}, {"one": entry, "one, invariant": Entry({}, ())}) == {"one, invariant"}


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
def test_shapes_with_zero_to_two_chain_axes(name, shape):
    kernel = build(name)
    state = run(kernel, torch.ones(shape, dtype=torch.float64))
    assert kernel.state_names == TABLE[name].memory
    assert state.position.shape == shape
    assert [tensor.shape for tensor in state.tensors] == [tensor.shape for tensor in kernel.start(torch.ones(shape))]
    if kernel.traits.elementwise:
        assert {tensor.shape for tensor in state.tensors} <= {torch.Size(shape)}
    assert state.step == 5
    assert torch.isfinite(state.position).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept(name, dtype):
    state = run(build(name), torch.ones(2, 3, dtype=dtype))
    assert {tensor.dtype for tensor in (state.position, *state.tensors)} == {dtype}


def test_a_step_is_pure(name):
    kernel = build(name)
    state = run(kernel, torch.ones(2, 3, dtype=torch.float64))
    evaluation, noise = gradient(state.position), noises(kernel, (2, 3))
    inputs = (state.position, *state.tensors, *evaluation, noise)
    before = [tensor.clone() for tensor in inputs]
    first = step_by_hand(kernel, state, evaluation, noise)
    second = step_by_hand(kernel, state, evaluation, noise)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    assert torch.equal(first.position, second.position)
    assert all(torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))


def test_chains_do_not_see_each_other(name):
    kernel = build(name)
    position = torch.arange(12.0, dtype=torch.float64).reshape(4, 3) / 10
    together = kernel.init(position)
    for step in range(5):
        together = step_by_hand(kernel, together, gradient(together.position), noises(kernel, (4, 3), step))
    alone = kernel.init(position[2])
    for step in range(5):
        alone = step_by_hand(kernel, alone, gradient(alone.position), noises(kernel, (4, 3), step)[..., 2, :])
    torch.testing.assert_close(alone.position, together.position[2], rtol=1e-13, atol=1e-13)


def test_temperature_zero_ignores_the_noise_and_goes_downhill(name):
    kernel = build(name, temperature=0.0)
    position = torch.ones(2, 3, dtype=torch.float64)
    state = kernel.init(position)
    quiet = step_by_hand(kernel, state, gradient(position), 0 * noises(kernel, (2, 3)))
    loud = step_by_hand(kernel, state, gradient(position), noises(kernel, (2, 3)))
    assert torch.equal(quiet.position, loud.position)
    assert (TARGET.evaluate(quiet.position).energy < TARGET.evaluate(position).energy).all()


def test_a_zero_gradient_leaves_only_noise_of_the_stated_size(name):
    """sqrt(2 eps tau) per step for a metric of one, times the root of the share that the table says."""
    kernel = build(name, temperature=0.3)
    scale = (2 * 0.01 * 0.3 * TABLE[name].noise_share) ** 0.5
    assert kernel.noise_scale(kernel.inputs(0)) == pytest.approx(scale, rel=1e-12)
    if kernel.without_metric()[1] != Identity() or kernel.traits.num_noises > 1:
        return  # the metric, or a second noise, scales the noise; the plain loops and exact laws in law/ see them
    state = kernel.init(torch.zeros(2, 3, dtype=torch.float64))
    noise = noises(kernel, (2, 3))
    state = step_by_hand(kernel, state, Evaluation(torch.zeros(2).double(), torch.zeros(2, 3).double()), noise)
    torch.testing.assert_close(state.position, scale * (noise[0].sign() if kernel.traits.noise_kind == "uniform" else noise[0]))


def test_a_schedule_is_read_at_every_step(name):
    kernel = build(name, lv.schedules.step_decay(0.01, factor=0.5, every=2))
    if kernel.traits.needs_full_energy:
        pytest.skip("a trajectory has one step size: tests/law/test_amagold.py")
    assert [kernel.inputs(step).step_size for step in range(5)] == [0.01, 0.01, 0.005, 0.005, 0.0025]


def test_describe_prints_the_sde_the_target_and_the_law(name, capsys):
    kernel = build(name, temperature=0.25)
    kernel.describe()
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name.split(',')[0]}: dθ = ")
    assert "target: exp(-U / 0.25)" in printed
    assert "effective temperature" in printed
    assert "step size ε = 0.01" in printed


def test_kernels_are_values(name):
    assert build(name) == build(name)
    assert hash(build(name)) == hash(build(name))
    assert build(name) != build(name, temperature=0.5)


def test_a_gradient_or_noise_of_another_shape_is_refused(name):
    kernel = build(name)
    state = kernel.init(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"evaluation=.*\(2, 3\).*got \(3,\)"):
        step_by_hand(kernel, state, torch.ones(3), noises(kernel, (2, 3)))
    with pytest.raises(ValueError, match=r"noise=.*2, 3\).*got \(1, 3\)"):
        kernel.step(state, TARGET.evaluate(state.position), torch.ones(1, 3))


def test_inputs_may_differ_by_chain(name):
    """Chains with different inputs walk as they would with these inputs for all."""
    kernel = build(name)
    if not kernel.traits.elementwise:
        pytest.skip("a matrix per chain takes one number for all")
    position, noise = torch.ones(2, 3, dtype=torch.float64), noises(kernel, (2, 3))
    each = [kernel.inputs(1)._replace(step_size=ε, temperature=τ) for ε, τ in ((0.01, 1.0), (0.03, 0.2))]
    together = StepInputs(*(torch.tensor(values, dtype=torch.float64)[:, None] for values in zip(*each, strict=True)))
    evaluation = TARGET.evaluate(position)
    both = kernel.step(kernel.init(position), evaluation, noise, together)
    for chain, inputs in enumerate(each):
        alone = kernel.step(kernel.init(position), evaluation, noise, inputs)
        torch.testing.assert_close(both.position[chain], alone.position[chain], rtol=1e-13, atol=0)
        for tensor, other in zip(both.tensors, alone.tensors, strict=True):
            torch.testing.assert_close(tensor[chain], other[chain], rtol=1e-13, atol=0)


def test_the_docstring_has_the_equation_an_example_and_the_section(name):
    text = inspect.getdoc(lv.SAMPLERS[name.split(",")[0]])
    assert "θ'" in text
    assert "Example:" in text
    assert "section" in text or "Algorithm" in text
