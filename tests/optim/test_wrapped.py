"""Optimizers inside the wrappers of accelerate and Lightning are found; other objects are left alone."""

from __future__ import annotations

import pytest
import torch
from catalogue import OPTIMIZERS, build, network
from torch import nn

import langevin as lv
from langevin.optim.wrapped import unwrap_optimizer


class Accelerated(torch.optim.Optimizer):
    """What `accelerate.optimizer.AcceleratedOptimizer` is like: a subclass that never calls `super().__init__`."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        self.optimizer.step(closure)


class Lightning:
    """What `LightningOptimizer` is like: its class becomes a subclass of the wrapped one at run time."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Lightning" + type(optimizer).__name__, (Lightning, type(optimizer)), {})

    @property
    def optimizer(self):
        return self._optimizer

    def step(self, closure=None):
        return self._optimizer.step(closure)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


class Fabric:
    """An older wrapper, which only has the private attribute and copies the rest."""

    def __init__(self, optimizer):
        self.__dict__ = dict(vars(optimizer))
        self._optimizer = optimizer

    def step(self, closure=None):
        return self._optimizer.step(closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("wrap", [Accelerated, Lightning, Fabric, lambda inner: Lightning(Accelerated(inner))])
def test_the_optimizer_inside_is_found(name, wrap):
    inner = build(name, network().parameters())
    assert unwrap_optimizer(wrap(inner)) is inner


def test_what_wraps_no_optimizer_is_returned_as_it_is():
    parameter = nn.Parameter(torch.ones(2))
    plain = lv.optim.SGLD([parameter], lr=0.1, num_data=10)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 3)
    for value in (plain, torch.optim.SGD([parameter], lr=0.1), scheduler, None, 3, "optimizer", lv.optim.SGLD):
        assert unwrap_optimizer(value) is value


def test_a_wrapper_of_itself_ends():
    class Loop:
        param_groups = ()

        def step(self):
            """Do nothing."""

    loop = Loop()
    loop.optimizer = loop
    assert unwrap_optimizer(loop) is loop
    one, two = Loop(), Loop()
    one.optimizer, two.optimizer = two, one
    assert unwrap_optimizer(one) is two


def test_ranks_are_compared_for_a_wrapped_optimizer(monkeypatch):
    optimizer = lv.optim.SGLD(network().parameters(), lr=0.1, num_data=10)
    seen = []

    def gather(everyone, own, group=None):
        seen.append(own[1]["sampler"])
        everyone[:] = [own]

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 1)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    for wrapped in (Accelerated(optimizer), Lightning(optimizer)):
        lv.optim.check_ranks(wrapped)
    assert seen == ["SGLD", "SGLD"]
