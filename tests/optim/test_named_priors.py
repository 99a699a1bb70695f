"""Priors by name and shape in the optimizers: the steps of each parameter are those with its own prior."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from catalogue import GAUSSIAN, NUM_DATA, build, network, train
from test_state import Sech, saved
from torch import nn

import langevin as lv
from langevin.targets import priors

BY_NAME = priors.by_name({"2.weight": priors.horseshoe(0.3), "*.bias": priors.student_t(3.0, 0.5), "0.*": priors.fan_in(2**0.5)})
LAPLACE = priors.laplace(0.4)


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("name", ["SGLD", "MSGLD", "ASGLD, invariant"])
@pytest.mark.parametrize("fused", [None, False])
def test_a_step_by_name_is_that_of_groups_with_their_own_priors(name, fused):
    """Groups of one parameter each, in the same order, have the same addresses."""
    model, other = network(), network()
    optimizer = build(name, model.named_parameters(), prior=BY_NAME, fused=fused)
    groups = [
        {"params": [parameter], "prior": BY_NAME.prior_for(key, parameter.shape)} for key, parameter in other.named_parameters()
    ]
    assert len(optimizer.param_groups) == 1
    assert len({str(group["prior"]) for group in groups}) == 3  # of four
    assert torch.equal(train(model, optimizer, 5), train(other, build(name, groups, fused=fused), 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prior", [LAPLACE, priors.student_t(3.0, 0.5), priors.horseshoe(0.5)], ids=lambda p: type(p).__name__)
def test_the_fused_engine_takes_every_prior_and_agrees_with_torch(prior, dtype):
    """Bit for bit; the horseshoe, whose logarithm is another, to rounding."""
    moved = []
    for fused in (True, False):
        p = nn.Parameter(torch.linspace(-3, 3, 1001).to(dtype))  # 0 is among them
        optimizer = lv.optim.MSGLD([p], lr=0.01, num_data=10, prior=prior, fused=fused)
        for _ in range(5):
            p.grad = torch.zeros_like(p)
            optimizer.step()
        moved.append(p.detach())
    if isinstance(prior, priors.Horseshoe):
        torch.testing.assert_close(*moved)
    else:
        assert torch.equal(*moved)


def test_without_names_a_prior_by_shape_works_and_one_by_name_says_what_to_write():
    model, other = network(), network()
    a = train(model, build("SGLD", model.parameters(), prior=priors.fan_in()), 3)
    b = train(other, build("SGLD", other.named_parameters(), prior=priors.fan_in()), 3)
    assert torch.equal(a, b)
    with pytest.raises(ValueError, match=r"SGLD\(prior=.*SGLD\(model\.named_parameters\(\), \.\.\.\).*got ByName"):
        build("SGLD", network().parameters(), prior=BY_NAME)


def test_patterns_are_looked_for_in_all_groups_that_share_them():
    model = network()
    groups = [{"params": list(model[0].named_parameters("0"))}, {"params": list(model[2].named_parameters("2"))}]
    build("SGLD", groups, prior=BY_NAME)
    with pytest.raises(ValueError, match=r"by_name.*got \['2\.weight'\]"):
        build("SGLD", groups[:1], prior=BY_NAME)
    with pytest.raises(ValueError, match=r"by_name.*for the parameter '2\.weight'"):
        build("SGLD", network().named_parameters(), prior=priors.by_name({"*.bias": GAUSSIAN, "0.*": GAUSSIAN}))


def test_a_prior_by_name_may_be_changed_in_mid_run_and_is_checked():
    model = network()
    optimizer = build("MSGLD", model.named_parameters())
    train(model, optimizer, 2)
    optimizer.param_groups[0]["prior"] = BY_NAME
    train(model, optimizer, 2)
    assert "prior: ByName" in optimizer.description
    optimizer.param_groups[0]["prior"] = priors.by_name({"*": GAUSSIAN, "typo": GAUSSIAN})
    before = flat(model)
    for _ in range(2):  # the second time too
        with pytest.raises(ValueError, match="typo"):
            train(model, optimizer, 1)
    assert torch.equal(before, flat(model))


def test_the_state_loads_without_executing_code_and_the_path_goes_on():
    model, other = network(), network()
    optimizer = build("MSGLD", model.named_parameters(), prior=BY_NAME)
    train(model, optimizer, 3)
    state = torch.load(saved(optimizer), weights_only=True)
    twin = build("MSGLD", other.named_parameters())
    twin.load_state_dict(state)
    assert twin.param_groups[0]["prior"] == BY_NAME
    other.load_state_dict(model.state_dict())
    assert torch.equal(train(model, optimizer, 3), train(other, twin, 3))


def test_a_users_prior_among_the_patterns_must_be_there_when_the_state_is_loaded(monkeypatch):
    from langevin.optim import update

    def own(scale):
        return priors.by_name({"*.bias": GAUSSIAN, "*": Sech(scale)})

    model, other = network(), network()
    monkeypatch.setattr(update, "_warned", {"Sech"})
    optimizer = build("SGLD", model.named_parameters(), prior=own(0.3))
    train(model, optimizer, 2)
    state = torch.load(saved(optimizer), weights_only=True)
    with pytest.raises(ValueError, match=r"load_state_dict\(prior=.*Sech \{'scale': 0\.3\}"):
        build("SGLD", other.named_parameters(), prior=own(0.4)).load_state_dict(state)
    twin = build("SGLD", other.named_parameters(), prior=own(0.3))
    twin.load_state_dict(state)
    other.load_state_dict(model.state_dict())
    assert torch.equal(train(model, optimizer, 2), train(other, twin, 2))


@dataclasses.dataclass  # not frozen, so without a hash
class Changeable(priors.PlacedPrior):
    std: float = 1.0

    def prior_for(self, name, shape):
        return priors.gaussian(self.std)


@dataclasses.dataclass(frozen=True)
class Deep(priors.PlacedPrior):
    """A user's own: the narrower the deeper."""

    needs_names = True

    def prior_for(self, name, shape):
        return priors.gaussian(1 / (1 + int(name.partition(".")[0])))


def test_a_users_own_placed_prior_is_asked_for_names_and_shapes():
    model, other = network(), network()
    groups = [{"params": model[0].parameters(), "prior": priors.gaussian(1.0)}, {"params": model[2].parameters()}]
    a = train(model, build("SGLD", groups, prior=priors.gaussian(1 / 3)), 3)
    optimizer = build("SGLD", other.named_parameters(), prior=Deep())
    assert torch.equal(a, train(other, optimizer, 3))
    twin = build("SGLD", network().named_parameters(), prior=Deep())
    twin.load_state_dict(torch.load(saved(optimizer), weights_only=True))
    with pytest.raises(ValueError, match=r"the saved test_named_priors\.Deep"):
        build("SGLD", network().named_parameters()).load_state_dict(optimizer.state_dict())
    with pytest.raises(TypeError, match=r"SGLD\(prior=.*a frozen dataclass"):
        build("SGLD", network().parameters(), prior=Changeable())


def test_a_placed_prior_costs_one_call_of_the_engine_per_prior(monkeypatch):
    from langevin.optim import update

    calls, engine = [], update.fused
    fuse = engine.fuse

    def counted(kernel, prior, dtype):
        fused = fuse(kernel, prior, dtype)

        def run(table, **settings):
            calls.append((prior, len(table)))
            fused(table, **settings)

        return run

    monkeypatch.setattr(engine, "fuse", counted)
    with torch.random.fork_rng():
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    optimizer = lv.optim.SGLD(model.named_parameters(), lr=0.01, num_data=NUM_DATA, prior=priors.fan_in(2.0))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert calls == [(priors.gaussian(1.0), 10)]  # 2 / sqrt(4), which is bias_std too
