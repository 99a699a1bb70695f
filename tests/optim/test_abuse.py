"""Abuses of memory between steps that are alike: after each, a step is right by an independent formula, or a clear error.

An optimizer remembers what its last step was like (`langevin.optim.cached_step`), so every abuse comes after three plain steps, and
plain steps follow it. tools/reliability/memory.py has more of them, one process each, from the first step on.
"""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import langevin as lv

SHAPE, LR, NUM_DATA, SEED, FACTOR, BETA = (6, 4), 0.05, 20, 9, 2.0, 0.9


def values(at, dtype=torch.float32):
    return lv.random.normal(3, lv.random.stream(lv.random.Purpose.DATA), at, 24, dtype=dtype).reshape(SHAPE).clone()


class Run:
    """A published MSGLD of two parameters, and the same steps by hand."""

    def __init__(self, fused):
        self.params = [nn.Parameter(values(0)), nn.Parameter(values(1))]
        self.optimizer = lv.optim.MSGLD(
            self.params, lr=LR, num_data=NUM_DATA, seed=SEED, bias_factor=FACTOR, beta=BETA, fused=fused
        )
        self.count = 0

    @property
    def first(self):
        return self.params[0]

    def state(self, number=0):
        return self.optimizer.state[self.params[number]]

    def gradients(self):
        """Give both parameters new gradients."""
        for number, parameter in enumerate(self.params):
            parameter.grad = values(2 + number + 2 * self.count).to(parameter.dtype)

    def step(self):
        """Step, and compare with the formula for what the tensors held just before."""
        epsilon = LR / NUM_DATA
        expected = []
        for number, parameter in enumerate(self.params):
            theta, average = (x.detach().clone() for x in (parameter, self.state(number).get("average", torch.zeros(SHAPE))))
            if parameter.grad is not None:
                step = self.optimizer.param_groups[0]["step"]
                at, dtype = lv.random.stream(lv.random.Purpose.POSITION), parameter.dtype
                noise = lv.random.normal(SEED, at, step, 24, offset=24 * number, dtype=dtype)
                gradient = NUM_DATA * parameter.grad.detach().clone()
                kick = (2 * epsilon) ** 0.5 * noise.reshape(SHAPE)
                theta = theta - epsilon * (gradient + FACTOR * average) + kick
                average = BETA * average + (1 - BETA) * gradient
            expected.append((theta, average))
        self.optimizer.step()
        self.count += 1
        for number, (theta, average) in enumerate(expected):
            torch.testing.assert_close(self.params[number].detach(), theta, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(self.state(number)["average"], average, rtol=1e-5, atol=1e-6)


ABUSES = {}


def abuse(function):
    ABUSES[function.__name__.replace("_", " ")] = function
    return function


@abuse
def the_storage_of_the_parameter_is_replaced(run):
    run.first.set_(values(50).reshape(-1).untyped_storage(), 0, SHAPE)


@abuse
def the_parameter_moves_into_the_middle_of_a_buffer(run):
    buffer = torch.zeros(100)
    run.first.data = buffer[30:54].view(SHAPE).copy_(run.first.detach())


@abuse
def the_parameter_is_transposed_in_memory(run):
    run.first.data = values(50).reshape(4, 6).T


@abuse
def the_two_parameters_swap_their_memory(run):
    one, two = run.params
    one.data, two.data = two.data, one.data


@abuse
def the_two_parameters_swap_their_objects(run):
    for parameter in run.params:
        parameter.grad = None
    gc.collect()
    torch.utils.swap_tensors(*run.params)
    run.gradients()


@abuse
def the_gradient_is_missing_for_a_step(run):
    run.first.grad = None
    run.step()
    run.gradients()


@abuse
def all_gradients_are_missing_for_a_step(run):
    for parameter in run.params:
        parameter.grad = None
    run.step()
    run.gradients()


@abuse
def the_gradient_is_one_number_expanded(run):
    run.first.grad = torch.full((1, 1), 0.3).expand(SHAPE)


@abuse
def the_gradient_is_a_row_repeated(run):
    run.first.grad = torch.arange(4.0).expand(SHAPE)


@abuse
def both_gradients_are_one_tensor(run):
    run.params[1].grad = run.first.grad


@abuse
def the_gradients_are_halves_of_one_buffer_that_overlap(run):
    buffer = values(60).reshape(-1)
    long = torch.cat([buffer, buffer])
    run.first.grad, run.params[1].grad = long[:24].view(SHAPE), long[12:36].view(SHAPE)


@abuse
def the_gradient_is_the_parameter(run):
    run.first.grad = run.first.detach()


@abuse
def the_gradient_is_the_other_parameter(run):
    run.first.grad = run.params[1].detach()
    run.params[1].grad = None  # else it moves too, and which of them moves first is anyone's guess


@abuse
def the_gradient_is_the_average(run):
    run.first.grad = run.state()["average"]


@abuse
def the_gradient_has_a_negative_bit(run):
    run.first.grad = torch.complex(values(61), values(62)).conj().imag


@abuse
def the_gradient_is_zero_without_memory(run):
    run.first.grad = torch._efficientzerotensor(SHAPE)


@abuse
def the_average_is_replaced_by_one_with_other_strides(run):
    run.state()["average"] = values(63).reshape(4, 6).T


@abuse
def the_averages_are_views_of_one_buffer(run):
    buffer = torch.cat([run.state(k)["average"].reshape(-1) for k in (0, 1)])
    for k in (0, 1):
        run.state(k)["average"] = buffer[24 * k : 24 * k + 24].view(SHAPE)


@abuse
def a_hook_replaces_the_gradient_before_the_step(run):
    handle = run.optimizer.register_step_pre_hook(lambda *_: setattr(run.first, "grad", run.first.grad.mul(1.0)))
    run.step()
    run.gradients()
    run.step()
    handle.remove()
    run.gradients()


@abuse
def a_hook_replaces_the_memory_of_the_parameter_before_the_step(run):
    handle = run.optimizer.register_step_pre_hook(lambda *_: setattr(run.first, "data", run.first.data.clone()))
    run.step()
    handle.remove()
    run.gradients()


@abuse
def a_backward_hook_returns_a_strided_gradient(run):
    run.first.grad = None
    run.first.register_hook(lambda gradient: gradient.T.contiguous().T * 2)
    (run.first * values(64)).sum().backward()


@abuse
def the_run_is_pickled(run):
    gradients = [parameter.grad for parameter in run.params]
    run.params, run.optimizer = pickle.loads(pickle.dumps((run.params, run.optimizer)))
    for parameter, gradient in zip(run.params, gradients, strict=True):
        parameter.grad = gradient


@abuse
def the_run_is_copied_and_the_first_one_deleted(run):
    gradients = [parameter.grad for parameter in run.params]
    run.params, run.optimizer = copy.deepcopy((run.params, run.optimizer))
    gc.collect()
    for parameter, gradient in zip(run.params, gradients, strict=True):
        parameter.grad = gradient


@abuse
def the_parameter_wants_no_gradient_any_more(run):
    run.first.requires_grad_(False)


@abuse
def the_parameter_goes_to_shared_memory(run):
    run.first.share_memory_()


@abuse
def everything_becomes_double(run):
    for parameter in run.params:
        gradient = parameter.grad
        parameter.grad = None
        parameter.data = parameter.data.double()
        parameter.grad = gradient.double()
        run.optimizer.state[parameter]["average"] = run.optimizer.state[parameter]["average"].double()


REFUSED = {}


def refused(match):
    def keep(function):
        REFUSED[function.__name__.replace("_", " ")] = function, match
        return function

    return keep


@refused(r"memory for 24 elements.*got '0 bytes'")
def the_memory_of_the_parameter_is_freed(run):
    run.first.untyped_storage().resize_(0)


@refused(r"memory for 24 elements.*got '40 bytes'")
def the_memory_of_the_gradient_is_cut(run):
    run.first.grad.untyped_storage().resize_(40)


@refused(r"memory for 24 elements.*got '0 bytes'")
def the_memory_of_the_average_is_freed(run):
    run.state()["average"].untyped_storage().resize_(0)


@refused(r"gradients of the parameter's shape \(3, 4\).*got \(6, 4\)")
def the_parameter_is_resized(run):
    run.first.data = run.first.data[:3].clone()


@refused(r"gradients of the parameter's shape \(6, 4\).*got \(4, 6\)")
def the_gradient_changes_its_shape(run):
    run.first.grad.data = run.first.grad.data.reshape(4, 6)


@refused(r"memory for every element of a parameter.*\(0, 0\)")
def the_parameter_is_one_number_expanded(run):
    run.first.data = torch.zeros(1, 1).expand(SHAPE)


@refused(r"memory for every element of a parameter and its state.*\(0, 1\)")
def the_average_is_a_row_repeated(run):
    run.state()["average"] = torch.zeros(4).expand(SHAPE)


@refused(r"'average' of the parameter's shape \(6, 4\).*\(24,\)")
def the_average_changes_its_shape(run):
    run.state()["average"] = torch.zeros(24)


@refused(r"'average' as a dense floating-point tensor.*int64")
def the_average_becomes_integers(run):
    run.state()["average"] = torch.zeros(SHAPE, dtype=torch.int64)


@refused("dense gradients")
def the_gradient_becomes_sparse(run):
    run.first.grad = values(65).to_sparse()


@refused(r"the entries \['average', 'steps'\]")
def the_average_is_deleted(run):
    del run.state()["average"]


def started(fused):
    run = Run(fused)
    for _ in range(3):
        run.gradients()
        run.step()
    run.gradients()
    return run


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("name", ABUSES)
def test_after_an_abuse_steps_are_right(name, fused):
    run = started(fused)
    with torch.no_grad() if "backward" not in name else torch.enable_grad():
        ABUSES[name](run)
    run.step()
    for _ in range(2):
        run.gradients()
        run.step()


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("name", REFUSED)
def test_an_abuse_without_a_right_result_is_an_error_and_nothing_moves(name, fused):
    run = started(fused)
    spoil, match = REFUSED[name]
    with torch.no_grad():
        spoil(run)
    before = run.params[1].detach().clone()
    with pytest.raises((ValueError, TypeError), match=match):
        run.optimizer.step()
    assert torch.equal(run.params[1], before)
    assert run.optimizer.param_groups[0]["step"] == 3
