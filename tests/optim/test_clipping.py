"""Clipped gradients are noticed while an optimizer runs, and gradients that are not clipped never are."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from catalogue import OPTIMIZERS, build
from torch import nn
from torch.nn import functional

import langevin as lv

STEPS = 288  # 18 looks


def normals(at, *shape, dtype=torch.float32):
    size = torch.Size(shape).numel()
    return lv.random.normal(8, lv.random.stream(lv.random.Purpose.DATA), at, size, dtype=dtype).reshape(shape)


def network(dtype=torch.float32):
    with torch.random.fork_rng():  # torch draws the initial weights, which are replaced
        model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(0.4 * normals(100 + number, *parameter.shape))
    return model


def batches(step, rows=20, dtype=torch.float32):
    return normals(2 * step, rows, 5).to(dtype), normals(2 * step + 1, rows, 3).to(dtype)


def said(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(warning.message) for warning in caught if "clipped" in str(warning.message)]


def train(
    after=lambda params: None,
    *,
    steps=STEPS,
    loss=lambda model, x, y: (model(x) - y).square().mean(),
    set_to_none=True,
    micro=1,
    full_batch=False,
    dtype=torch.float32,
    model=None,
    optimizer=None,
    **changes,
):
    """Train a network, with `after` between the backward pass and the step; return the warnings of clipping."""
    model = network(dtype) if model is None else model
    settings = {"lr": 0.005, "num_data": 100, **changes}
    optimizer = lv.optim.MSGLD(model.parameters(), **settings) if optimizer is None else optimizer

    def run():
        for step in range(steps):
            optimizer.zero_grad(set_to_none=set_to_none)
            for part in range(micro):
                x, y = batches(0 if full_batch else micro * step + part, dtype=dtype)
                loss(model, x, y).backward()
            after(list(model.parameters()))
            optimizer.step()

    return said(run)


def clip_norm(size):
    return lambda params: nn.utils.clip_grad_norm_(params, size)


CLIPPED = {
    "every gradient, as Hugging Face and Lightning do": ({"after": clip_norm(0.1)}, "norm was 0.1 in"),
    "half of the gradients": ({"after": clip_norm(1.3)}, "norm was 1.3 in"),
    "with gradients set to zero": ({"after": clip_norm(0.1), "set_to_none": False}, "norm was 0.1 in"),
    "of micro-batches": ({"after": clip_norm(0.3), "micro": 3}, "norm was 0.3 in"),
    "one tensor at a time": ({"after": lambda params: nn.utils.clip_grad_norm_(params, 0.1, foreach=False)}, "norm was 0.1 in"),
    "in double": ({"after": clip_norm(0.1), "dtype": torch.float64}, "norm was 0.1 in"),
    "in bfloat16": ({"after": clip_norm(0.1), "dtype": torch.bfloat16, "steps": 512}, "norm was 0.1"),
    "by the largest element": ({"after": lambda params: nn.utils.clip_grad_norm_(params, 0.02, norm_type=float("inf"))}, None),
    "element by element": ({"after": lambda params: nn.utils.clip_grad_value_(params, 0.02)}, "largest element was 0.02 in"),
    "element by element, set to zero": (
        {"after": lambda params: nn.utils.clip_grad_value_(params, 0.02), "set_to_none": False},
        "largest element was 0.02 in",
    ),
    "normalised to length one": (
        {"after": lambda params: [p.grad.div_(p.grad.norm()) for p in params]},
        "norm was 2 in",
    ),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_is_noticed_once(name):
    setup, what = CLIPPED[name]
    found = train(**setup)
    if what is None:  # one element at the ceiling may be anything
        assert found == []
        return
    assert len(found) == 1, found
    assert what in found[0]
    assert all(word in found[0] for word in ("MSGLD: ", "stationary distribution", "max_grad_norm=0", "gradient_clip_val=None"))


def centred(loss):
    """Return a loss of the weights alone, whatever the batch."""
    return lambda model, x, y: loss(torch.cat([p.flatten() for p in model.parameters()]))


def unscale(params):
    for parameter in params:
        parameter.grad.mul_(1.0)


IN_PLACE = {"set_to_none": False}
UNCLIPPED = {
    "a network": {},
    "a network with gradients set to zero": IN_PLACE,
    "micro-batches": {"micro": 4},
    "micro-batches with gradients set to zero": {"micro": 4, **IN_PLACE},
    "gradients unscaled in place": {"after": unscale},
    "a ceiling that is never reached": {"after": clip_norm(1e4)},
    "a value that is never reached": {"after": lambda params: nn.utils.clip_grad_value_(params, 1e4)},
    "the full batch": {"full_batch": True, **IN_PLACE},
    "the full batch at a tiny rate": {"full_batch": True, "lr": 1e-9, **IN_PLACE},
    "the full batch in double": {"full_batch": True, "dtype": torch.float64, **IN_PLACE},
    "bfloat16": {"dtype": torch.bfloat16, "steps": 512, **IN_PLACE},
    "a constant gradient": {"loss": centred(torch.sum), **IN_PLACE},
    "signs": {"loss": centred(lambda w: w.abs().sum()), **IN_PLACE},
    "the length of the weights": {"loss": centred(torch.linalg.vector_norm)},
    "a quadratic": {"loss": centred(lambda w: w.square().sum() / 2), **IN_PLACE},
    "a cosine": {"loss": lambda model, x, y: -functional.cosine_similarity(model(x), y).mean(), **IN_PLACE},
    "absolute errors": {"loss": lambda model, x, y: functional.l1_loss(model(x), y), **IN_PLACE},
    "absolute errors far away": {"loss": lambda model, x, y: functional.l1_loss(model(x), y + 1000), **IN_PLACE},
    "a saturated cross-entropy": {
        "loss": lambda model, x, y: functional.cross_entropy(100 * model(x), y.argmax(1)), "lr": 1e-6, **IN_PLACE
    },
    "an optimizer without temperature": {"after": clip_norm(0.1), "temperature": 0.0},
    "a rate of zero": {"after": clip_norm(0.1), "lr": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", UNCLIPPED)
def test_nothing_is_said_without_clipping(name):
    assert train(**UNCLIPPED[name]) == []


@pytest.mark.parametrize("set_to_none", [True, False])
def test_one_parameter_is_never_called_clipped(set_to_none):
    parameter = nn.Parameter(torch.tensor([3.0]))
    optimizer = lv.optim.SGLD([parameter], lr=0.5, num_data=10)

    def run():
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=set_to_none)
            parameter.abs().sum().backward()
            optimizer.step()

    assert said(run) == []


def test_white_noise_of_many_elements_is_not_called_clipped():
    """The norms of 100,000 normals differ by .2 %."""
    parameter = nn.Parameter(torch.zeros(100_000))
    parameter.grad = torch.zeros(100_000)
    optimizer = lv.optim.SGLD([parameter], lr=1e-3, num_data=10)

    def run():
        for step in range(STEPS):
            parameter.grad.copy_(normals(step, 100_000))
            optimizer.step()

    assert said(run) == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_looks(name):
    model = network()
    optimizer = build(name, model.parameters(), lr=1e-4)
    assert len(train(clip_norm(0.05), steps=200, model=model, optimizer=optimizer)) == 1


def test_a_closure_that_clips_is_noticed_and_a_copy_looks_again():
    model = network()
    optimizer = lv.optim.MSGLD(model.parameters(), lr=0.005, num_data=100)

    def run():
        for step in range(200):
            x, y = batches(step)

            def closure(x=x, y=y):  # what Lightning does
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)

            optimizer.step(closure)

    assert len(said(run)) == 1
    assert said(run) == []
    model, optimizer = copy.deepcopy((model, optimizer))
    assert len(said(run)) == 1


def test_parameters_without_elements_and_half_precision_do_not_disturb():
    parameters = [nn.Parameter(torch.zeros(size)) for size in (0, 50)]
    parameters.append(nn.Parameter(torch.zeros(20, dtype=torch.float16)))
    optimizer = lv.optim.SGLD(parameters, lr=1e-3, num_data=10)

    def run():
        for step in range(512):
            for number, parameter in enumerate(parameters):
                parameter.grad = normals(3 * step + number, *parameter.shape).to(parameter.dtype)
            nn.utils.clip_grad_norm_(parameters, 0.1)
            optimizer.step()

    assert len(said(run)) == 1


def test_gradients_that_come_and_go_are_looked_at():
    def after(params):
        nn.utils.clip_grad_norm_(params, 0.1)
        params[0].grad = None

    assert train(after) == []  # what is left of them has no constant norm


def test_few_steps_are_looked_at(monkeypatch):
    seen, total = [], torch.nn.utils.get_total_norm
    monkeypatch.setattr(torch.nn.utils, "get_total_norm", lambda *args: seen.append(args) or total(*args))
    train(steps=520, set_to_none=False)
    assert len(seen) == 2 * 32
    seen.clear()
    train(steps=600)  # gradients that nobody has touched are not read
    assert seen == []
