"""torch's own suite for optimizers, `TestOptimRenewed` of its test/test_optim.py, by the names of its tests.

The wheel of torch lacks that file, so its tests are written again here, with the fields of torch's `OptimizerInfo`;
importing that class disables torch's global flags for the whole process. `EXCEPTIONS` lists the tests that do not
apply to a sampler, with the reason.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from catalogue import OPTIMIZERS
from torch import nn
from torch.nn import Parameter
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

EXCEPTIONS = {
    "test_complex": "a density of complex parameters is not defined; they are rejected by name",
    "test_complex_2d": "as test_complex",
    "test_rosenbrock_sparse": "noise moves every element, so sparse gradients are rejected by name",
    "test_step_is_noop_for_zero_grads": "a sampler moves by noise without a gradient; here at temperature 0",
    "test_forloop_goes_right_direction": "downhill only at temperature 0; here at temperature 0",
    "test_param_group_with_lrscheduler_goes_right_direction": "as test_forloop_goes_right_direction",
    "test_foreach_matches_forloop": "foreach is no argument; test_fused_matches_plain compares our two implementations",
    "test_foreach_large_tensor": "as test_foreach_matches_forloop",
    "test_fused_matches_forloop": "as test_foreach_matches_forloop",
    "test_fused_large_tensor": "needs a GPU",
    "test_fused_does_not_step_if_foundinf": "GradScaler skips the step itself: test_optimizer.py",
    "test_capturable": "CUDA graphs: needs a GPU",
    "test_peak_memory_foreach": "needs a GPU",
    "test_mixed_device_dtype": "needs a GPU",
    "test_state_dict_with_cuda_params": "needs a GPU",
    "test_defaults_changed_to_foreach": "foreach is no argument",
    "test_second_order_optims_return_consistent_types": "for optimizers that need a closure",
    "test_grads_are_never_inplaced_into": "test_gradients_are_read_not_changed of test_optimizer.py",
}


@dataclass
class OptimizerInput:
    """Settings of an optimizer, and parameters where these are the error."""

    params: Any
    kwargs: dict[str, Any]
    desc: str = ""


@dataclass
class ErrorOptimizerInput:
    """Arguments that must raise an error."""

    optimizer_error_input: OptimizerInput
    error_type: type[Exception]
    error_regex: str


@dataclass
class OptimizerInfo:
    """What torch's suite knows of an optimizer."""

    optim_cls: type[torch.optim.Optimizer]
    optim_inputs_func: Callable[[], list[OptimizerInput]]
    optim_error_inputs_func: Callable[[], list[ErrorOptimizerInput]]


SCHEDULERS = (
    (),
    (lambda optimizer: StepLR(optimizer, gamma=0.9, step_size=10),),
    (lambda optimizer: StepLR(optimizer, gamma=0.99, step_size=10), lambda optimizer: LinearLR(optimizer, 0.4, total_iters=4)),
    (lambda optimizer: StepLR(optimizer, gamma=0.9, step_size=10), ReduceLROnPlateau),
)


def inputs(name):
    """Return a function that gives the settings torch's tests iterate over."""
    settings = {"lr": 1e-3, "num_data": 10, "seed": 3, **OPTIMIZERS[name][1]}

    def given():
        return [
            OptimizerInput(params=None, kwargs={**settings, "temperature": 0.0}, desc="an optimizer"),
            OptimizerInput(params=None, kwargs={**settings}, desc="default"),
            OptimizerInput(params=None, kwargs={**settings, "fused": False}, desc="plain torch"),
            OptimizerInput(params=None, kwargs={**settings, "weight_decay": 0.1}, desc="weight decay"),
        ]

    return given


def errors(name):
    """Return a function that gives bad arguments, as torch's own optimizers have them."""
    settings = {"lr": 1e-3, "num_data": 10, **OPTIMIZERS[name][1]}

    def given():
        one = [Parameter(torch.randn(1))]

        def bad(params, error, pattern, **changes):
            wrong = OptimizerInput(params=params, kwargs={**settings, **changes})
            return ErrorOptimizerInput(wrong, error, pattern)

        return [
            bad(one, ValueError, r"lr=.*-0.5", lr=-0.5),
            bad(one, ValueError, r"temperature=.*-1", temperature=-1.0),
            bad(one, ValueError, r"num_data=.*0", num_data=0),
            bad(torch.randn(2), TypeError, "params"),
            bad([0, []], TypeError, "optimizer can only optimize Tensors"),
            bad([], ValueError, "empty parameter list"),
            bad([{"params": one}, {"params": one}], ValueError, "appear in more than one parameter group"),
        ]

    return given


INFOS = {name: OptimizerInfo(cls, inputs(name), errors(name)) for name, (cls, _) in OPTIMIZERS.items()}
OPTIMIZER = 0  # number of the input without noise


@pytest.fixture(autouse=True)
def _generator():
    with torch.random.fork_rng():  # tests leave the global generator alone
        yield


@pytest.fixture(params=INFOS)
def info(request):
    return INFOS[request.param]


def made(info, params):
    """Yield an optimizer for each input."""
    for given in info.optim_inputs_func():
        yield info.optim_cls(params, **given.kwargs)


def parameters():
    torch.manual_seed(0)
    return Parameter(torch.randn(10, 5)), Parameter(torch.randn(10)), torch.randn(5)


def loss_of(optimizer, weight, bias, x):
    def closure():
        optimizer.zero_grad()
        loss = (weight.mv(x) + bias).pow(2).sum()
        loss.backward()
        return loss.detach()

    return closure


def test_errors(info):
    for bad in info.optim_error_inputs_func():
        given = bad.optimizer_error_input
        with pytest.raises(bad.error_type, match=bad.error_regex):
            info.optim_cls(given.params, **given.kwargs)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("schedulers", SCHEDULERS, ids=len)
def test_forloop_goes_right_direction(info, contiguous, schedulers):
    weight, bias, x = parameters()
    if not contiguous:
        weight = Parameter(torch.randn(10, 5, 2)[..., 0])
        bias = Parameter(torch.randn(10, 2)[..., 0])
    optimizer = info.optim_cls([weight, bias], **info.optim_inputs_func()[OPTIMIZER].kwargs)
    running = [make(optimizer) for make in schedulers]
    closure = loss_of(optimizer, weight, bias, x)
    first = closure().item()
    for _ in range(20):
        loss = closure()
        optimizer.step()
        for scheduler in running:
            scheduler.step(*([loss] if isinstance(scheduler, ReduceLROnPlateau) else []))
    assert closure().item() < first


@pytest.mark.parametrize("schedulers", SCHEDULERS, ids=len)
def test_param_group_with_lrscheduler_goes_right_direction(info, schedulers):
    weight, bias, x = parameters()
    groups = [{"params": [weight]}, {"params": [bias], "lr": 0.01}]
    optimizer = info.optim_cls(groups, **info.optim_inputs_func()[OPTIMIZER].kwargs)
    running = [make(optimizer) for make in schedulers]
    closure = loss_of(optimizer, weight, bias, x)
    first = closure().item()
    for _ in range(20):
        loss = optimizer.step(closure)
        for scheduler in running:
            scheduler.step(*([loss] if isinstance(scheduler, ReduceLROnPlateau) else []))
    assert closure().item() < first


def test_tensor_lr(info):
    for given in info.optim_inputs_func():
        paths = []
        for lr in (1e-3, torch.tensor(1e-3, dtype=torch.float64)):
            weight, bias, x = parameters()
            optimizer = info.optim_cls([weight, bias], **{**given.kwargs, "lr": lr})
            for _ in range(5):
                optimizer.step(loss_of(optimizer, weight, bias, x))
            paths.append(weight.detach())
        assert torch.equal(*paths)


def test_fused_matches_plain(info):
    paths = []
    for fused in (None, False):
        weight, bias, x = parameters()
        settings = info.optim_inputs_func()[1].kwargs
        optimizer = info.optim_cls([weight, bias], **{**settings, "fused": fused})
        for _ in range(7):
            optimizer.step(loss_of(optimizer, weight, bias, x))
        paths.append(torch.cat([weight.detach().flatten(), bias.detach()]))
    assert torch.equal(*paths)


@pytest.mark.parametrize("what", ["complex", "sparse"])
def test_complex_and_sparse_are_rejected_by_name(info, what):
    if what == "complex":
        with pytest.raises((TypeError, ValueError), match="complex"):
            next(made(info, [Parameter(torch.randn(2, dtype=torch.complex64))]))
        return
    parameter = Parameter(torch.randn(5, 1))
    optimizer = next(made(info, [parameter]))
    parameter.grad = torch.eye(5)[:, :1].to_sparse()
    with pytest.raises((TypeError, ValueError), match="sparse"):
        optimizer.step()


def test_param_groups_lr(info):
    weight, bias, x = parameters()
    before = weight.detach().clone(), bias.detach().clone()
    for given in info.optim_inputs_func():
        optimizer = info.optim_cls([{"params": [weight]}, {"params": [bias], "lr": 0.0}], **given.kwargs)
        for _ in range(3):
            optimizer.step(loss_of(optimizer, weight, bias, x))
    assert not torch.equal(weight, before[0])
    assert torch.equal(bias, before[1])


def test_param_groups_weight_decay(info):
    weight, bias, _ = parameters()
    settings = {**info.optim_inputs_func()[OPTIMIZER].kwargs, "lr": 0.01}
    optimizer = info.optim_cls([{"params": [weight], "weight_decay": 0.5}, {"params": [bias]}], **settings)
    size = weight.detach().norm(), bias.detach().clone()
    for _ in range(3):
        weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
        optimizer.step()
    assert weight.norm() < size[0]
    assert torch.equal(bias, size[1])


def test_step_is_noop_when_params_have_no_grad(info):
    params = [torch.randn(2, 3) for _ in range(2)]
    before = [p.clone() for p in params]
    for optimizer in made(info, params):
        optimizer.step(lambda: torch.tensor([1.0]))
    assert all(torch.equal(*pair) for pair in zip(params, before, strict=True))


def test_step_is_noop_for_zero_grads(info):
    parameter = Parameter(torch.randn(5, 1))
    before = parameter.detach().clone()
    parameter.grad = torch.zeros_like(parameter)
    info.optim_cls([parameter], **info.optim_inputs_func()[OPTIMIZER].kwargs).step(lambda: torch.tensor([1.0]))
    assert torch.equal(parameter, before)


def test_optimizer_can_be_printed(info):
    for optimizer in made(info, [Parameter(torch.randn(2, 3))]):
        assert info.optim_cls.__name__ in repr(optimizer)


def named(params, is_named):
    return [(f"name{i}", p) for i, p in enumerate(params)] if is_named else params


def without_names(state):
    state = deepcopy(state)
    for group in state["param_groups"]:
        group.pop("param_names", None)
    return state


def equal(a, b):
    """Compare nested containers of tensors and settings."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.mark.parametrize("names", [(False, False), (True, False), (False, True), (True, True)])
def test_state_dict_deterministic(info, names):
    for given in info.optim_inputs_func():
        weight, bias, x = parameters()
        optimizer = info.optim_cls(named([weight, bias], names[0]), **given.kwargs)
        for _ in range(10):
            optimizer.step(loss_of(optimizer, weight, bias, x))
        copies = Parameter(weight.detach().clone()), Parameter(bias.detach().clone())
        other = info.optim_cls(named(list(copies), names[1]), **given.kwargs)
        other.load_state_dict(deepcopy(optimizer.state_dict()))
        for _ in range(10):
            optimizer.step(loss_of(optimizer, weight, bias, x))
            other.step(loss_of(other, *copies, x))
        assert torch.equal(weight, copies[0])
        assert torch.equal(bias, copies[1])
        assert equal(without_names(optimizer.state_dict()), without_names(other.state_dict()))


def convolutions():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(4, 2, 1, stride=2), nn.BatchNorm2d(2))


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(1, 4, 16, 16)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("names", [(False, False), (True, False), (False, True), (True, True)])
def test_can_load_from_to_named_state_dict(info, names):
    for given in info.optim_inputs_func():
        models = convolutions(), convolutions()
        optimizers = [
            info.optim_cls(model.named_parameters() if is_named else model.parameters(), **given.kwargs)
            for model, is_named in zip(models, names, strict=True)
        ]
        train(models[0], optimizers[0], 3)
        optimizers[1].load_state_dict(deepcopy(optimizers[0].state_dict()))
        train(models[1], optimizers[1], 1)
        if any(names):
            group = optimizers[1].state_dict()["param_groups"][0]
            assert group["param_names"] == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("is_named", [True, False])
def test_save_load_equality_with_weights_only(info, is_named):
    weight, bias, x = parameters()
    for optimizer in made(info, named([weight, bias], is_named)):
        for _ in range(3):
            optimizer.step(loss_of(optimizer, weight, bias, x))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        assert equal(torch.load(file, weights_only=True), optimizer.state_dict())


def test_state_dict_pre_post_hook(info):
    for optimizer in made(info, [Parameter(torch.rand(2, 3))]):

        def mark(optimizer):
            optimizer.state["test"] = 1

        def unmark(optimizer, state):
            state["ran"] = state["state"].pop("test", None) == 1
            return state

        handle = optimizer.register_state_dict_pre_hook(mark)
        assert optimizer.state_dict()["state"]["test"] == 1
        optimizer.register_state_dict_post_hook(unmark)
        assert optimizer.state_dict()["ran"]
        handle.remove()


def test_load_state_dict_pre_hook_and_prepend(info):
    for optimizer in made(info, [Parameter(torch.rand(2, 3))]):
        state = optimizer.state_dict()

        def first(optimizer, state):
            state["param_groups"][0]["lr"] = 0.002

        def second(optimizer, state):
            state = deepcopy(state)
            state["param_groups"][0]["lr"] = 0.003
            return state

        optimizer.register_load_state_dict_pre_hook(first)
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == 0.002
        optimizer.register_load_state_dict_pre_hook(second, prepend=True)
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == 0.002


def test_load_state_dict_post_hook(info):
    for optimizer in made(info, [Parameter(torch.rand(2, 3))]):
        ran = []
        optimizer.register_load_state_dict_post_hook(lambda optimizer, ran=ran: ran.append(optimizer.param_groups[0]["lr"]))
        optimizer.load_state_dict(optimizer.state_dict())
        assert ran == [1e-3]


def test_step_all_hooks(info):
    params = [torch.tensor([1.0, 1.0])]
    for optimizer in made(info, params):
        other, seen = torch.optim.SGD(params), []
        handles = [
            register_optimizer_step_pre_hook(lambda *_, seen=seen: seen.append(0)),
            register_optimizer_step_post_hook(lambda *_, seen=seen: seen.append(5)),
        ]
        for one in (optimizer, other):
            handles.append(one.register_step_pre_hook(lambda *_, seen=seen: seen.append(1)))
            handles.append(one.register_step_post_hook(lambda *_, seen=seen: seen.append(2)))
        for one in (optimizer, other, optimizer):
            one.step()
        assert seen == 3 * [0, 1, 2, 5]
        for handle in handles:
            handle.remove()
        optimizer.step()
        assert len(seen) == 12


def test_deepcopy_copies_all_public_attrs(info):
    params = [Parameter(torch.randn(2, 3)) for _ in range(2)]
    for optimizer in made(info, params):
        for _ in range(3):
            for parameter in params:
                parameter.grad = torch.rand_like(parameter)
            optimizer.step()
        public = [{key for key in vars(one) if not key.startswith("_")} for one in (optimizer, deepcopy(optimizer))]
        assert public[0] == public[1]


def test_non_empty_state(info):
    model = nn.Linear(5, 5)
    for given in info.optim_inputs_func():
        optimizer = info.optim_cls(model.parameters(), **given.kwargs)
        optimizer.zero_grad()
        model(torch.rand(2, 5)).sum().backward()
        optimizer.step()
        assert all(len(state) > 0 for state in optimizer.state.values())


def test_every_exception_has_a_reason():
    assert all(EXCEPTIONS.values())
