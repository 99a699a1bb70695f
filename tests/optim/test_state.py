"""What an optimizer keeps: from the first step on, through every kind of checkpoint, and checked before it is taken."""

from __future__ import annotations

import copy
import dataclasses
import io
import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from catalogue import OPTIMIZERS, build, data, network, train
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import langevin as lv


@pytest.fixture(params=OPTIMIZERS)
def name(request):
    return request.param


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def gradients(model):
    x, y = data()
    (model(x) - y).square().mean().backward()


# ---- a step at lr 0


def test_a_step_at_lr_zero_makes_the_state_and_nothing_else(name):
    model, other = network(), network()
    optimizer = build(name, model.parameters(), lr=0.0)
    train(model, optimizer, 3)
    assert torch.equal(vector(model), vector(other))
    assert optimizer.param_groups[0]["step"] == 0
    kernel = optimizer._kernel(optimizer.param_groups[0])
    if kernel.state_names:
        assert all(set(optimizer.state[p]) == {*kernel.state_names, "steps"} for p in model.parameters())
        assert {optimizer.state[p]["steps"] for p in model.parameters()} == {0}
    optimizer.param_groups[0]["lr"] = 0.02
    assert torch.equal(train(model, optimizer, 5), train(other, build(name, other.parameters()), 5))


# ---- torch.distributed.checkpoint, in one process


def fresh(name):
    model = network()
    return model, build(name, model.parameters(), seed=99, lr=0.5)  # settings come with the state


@pytest.mark.parametrize("flatten", [False, True])
def test_get_and_set_state_dict_go_on_bit_for_bit(name, flatten):
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    model, optimizer = network(), None
    optimizer = build(name, model.parameters())
    train(model, optimizer, 5)
    weights, state = copy.deepcopy(get_state_dict(model, optimizer, options=options))
    expected = train(model, optimizer, 5)
    twin, other = fresh(name)
    set_state_dict(twin, other, model_state_dict=weights, optim_state_dict=state, options=options)
    assert torch.equal(train(twin, other, 5), expected)


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")
def test_a_dcp_checkpoint_goes_on_bit_for_bit(name, tmp_path):
    model = network()
    optimizer = build(name, model.parameters())
    train(model, optimizer, 5)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path / "checkpoint")
    expected = train(model, optimizer, 5)
    twin, other = fresh(name)
    weights, state = get_state_dict(twin, other)  # steps at lr 0 to make the state
    assert other.param_groups[0]["step"] == 0
    loaded = {"model": weights, "optimizer": state}
    dcp.load(loaded, checkpoint_id=tmp_path / "checkpoint")
    set_state_dict(twin, other, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert torch.equal(train(twin, other, 5), expected)


def test_state_before_the_first_step_round_trips_too(name):
    model = network()
    state = copy.deepcopy(get_optimizer_state_dict(model, build(name, model.parameters())))
    twin, other = fresh(name)
    set_optimizer_state_dict(twin, other, state)
    assert torch.equal(train(twin, other, 3), train(model, build(name, model.parameters()), 3))


# ---- adaptation by parameter


@pytest.mark.parametrize("name", ["ASGLD, invariant", "AdaMaxSGLD, invariant", "PSGLD"], indirect=True)
@pytest.mark.parametrize("fused", [None, False])
def test_a_first_gradient_after_the_adaptation_of_others_is_learnt_from(name, fused):
    early, late = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = build(name, [early, late], prior=None, fused=fused)
    for step in range(20):  # adapt_steps is 5
        early.grad = torch.full((3,), 2.0)
        late.grad = torch.full((3,), 2.0) if step >= 10 else None
        optimizer.step()
        if step == 10:
            assert torch.equal(late.isfinite(), torch.ones(3, dtype=torch.bool))
    assert optimizer.state[early]["steps"] == 20
    assert optimizer.state[late]["steps"] == 10
    key = {"ASGLD, invariant": "square_average", "AdaMaxSGLD, invariant": "largest", "PSGLD": "metric_average"}[name]
    torch.testing.assert_close(optimizer.state[late][key], optimizer.state[early][key])  # the gradients were all the same


@pytest.mark.parametrize("fused", [None, False])
def test_a_scale_is_frozen_for_each_parameter_after_its_own_steps(fused):
    early, late = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = build("ASGLD, invariant", [early, late], fused=fused)
    seen = []
    for step in range(12):
        early.grad = torch.full((3,), 1.0 + step)
        late.grad = torch.full((3,), 1.0 + step) if step >= 4 else None
        optimizer.step()
        seen.append([optimizer.state[p]["square_average"].clone() if p in optimizer.state else None for p in (early, late)])
    assert not torch.equal(seen[3][0], seen[4][0])
    assert torch.equal(seen[4][0], seen[11][0])  # five steps: 0 to 4
    assert not torch.equal(seen[7][1], seen[8][1])
    assert torch.equal(seen[8][1], seen[11][1])  # five steps: 4 to 8


def test_memory_starts_as_the_kernel_says():
    """Neither zero nor the same for all: half the position."""
    from langevin.kernels import Hamiltonian

    @dataclasses.dataclass(frozen=True)
    class Moving(Hamiltonian):
        def start(self, position):
            return (0.5 * position,)

    class MovingSGHMC(lv.optim.SGHMC):
        builder = staticmethod(lambda step_size, beta=0.9, temperature=1.0: Moving("moving", step_size, temperature, beta))

    for dtype in (torch.float32, torch.bfloat16):
        p = nn.Parameter(torch.tensor([1.0, 2.0], dtype=dtype))
        optimizer = MovingSGHMC([p], lr=0.1, num_data=10, temperature=0.0, beta=0.5)
        p.grad = torch.zeros_like(p)
        optimizer.step()
        assert torch.equal(optimizer.state[p]["velocity"], torch.tensor([0.25, 0.5]))
        assert torch.equal(p.float(), torch.tensor([1.25, 2.5]))


# ---- what is loaded is checked first


def snapshot(optimizer):
    return copy.deepcopy(optimizer.state_dict())


def same(a, b):
    return repr(a) == repr(b)


def damage(kind):
    """Return a state that does not belong to ``MSGLD`` of `network()`, and a word of the complaint."""
    model = network()
    optimizer = build("MSGLD", model.parameters())
    train(model, optimizer, 2)
    state = snapshot(optimizer)
    if kind == "Adam":
        other = torch.optim.Adam(model.parameters())
        gradients(model)
        other.step()
        return other.state_dict(), "state of a MSGLD.*no sampling optimizer"
    if kind == "SGHMC":
        other = build("SGHMC", model.parameters())
        train(model, other, 2)
        return other.state_dict(), "state of a MSGLD.*'SGHMC'"
    if kind == "another architecture":
        larger = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        other = build("MSGLD", larger.parameters())
        train(larger, other, 2)
        return other.state_dict(), r"'average' of the parameter's shape \(7, 5\), got \(8, 5\)"
    if kind == "fewer parameters":
        other = build("MSGLD", model[0].parameters())
        return other.state_dict(), "4 parameters in group 0, got 2"
    if kind == "more groups":
        other = build("MSGLD", [{"params": model[0].parameters()}, {"params": model[2].parameters()}])
        return other.state_dict(), "1 parameter groups, got 2"
    if kind == "a parameter twice":
        state["param_groups"][0]["params"] = [0, 0, 2, 3]
        return state, "each parameter once"
    if kind == "no groups":
        return {"state": {}}, "what state_dict"
    if kind == "memory missing":
        del state["state"][1]["average"]
        return state, "the entries"
    if kind == "memory as a list":
        state["state"][1]["average"] = [0.0] * 7
        return state, "of the parameter's shape"
    if kind == "steps as text":
        state["state"][1]["steps"] = "2"
        return state, "steps"
    if kind == "setting missing":
        del state["param_groups"][0]["beta"]
        return state, "settings.*beta"
    if kind == "setting out of range":
        state["param_groups"][0]["beta"] = 1.5
        return state, "beta=.*1.5"
    if kind == "negative seed":
        state["param_groups"][0]["seed"] = -1
        return state, "seed=.*-1"
    if kind == "prior of no kind":
        state["param_groups"][0]["prior"] = {"kind": "os.system", "std": 1}
        return state, "kind is one of"
    assert kind == "prior with a wrong argument"
    state["param_groups"][0]["prior"] = {"kind": "GaussianPrior", "variance": 1.0}
    return state, "arguments"


KINDS = [
    "Adam", "SGHMC", "another architecture", "fewer parameters", "more groups", "a parameter twice", "no groups", "memory missing",
    "memory as a list",
    "steps as text", "setting missing", "setting out of range", "negative seed", "prior of no kind", "prior with a wrong argument",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_does_not_fit_is_refused_in_words_and_nothing_has_changed(kind):
    with torch.random.fork_rng():
        state, complaint = damage(kind)
    model, other = network(), network()
    optimizer, twin = build("MSGLD", model.parameters()), build("MSGLD", other.parameters())
    train(model, optimizer, 3)
    train(other, twin, 3)
    before = snapshot(optimizer)
    with pytest.raises((ValueError, TypeError), match=complaint):
        optimizer.load_state_dict(state)
    assert same(before, snapshot(optimizer))
    assert torch.equal(train(model, optimizer, 3), train(other, twin, 3))


def test_names_of_parameters_are_compared_and_a_pre_hook_may_rename():
    model, other = network(), network()
    source = build("MSGLD", model.named_parameters())
    train(model, source, 3)
    state = source.state_dict()
    renamed = copy.deepcopy(state)
    renamed["param_groups"][0]["param_names"] = ["old." + n for n in renamed["param_groups"][0]["param_names"]]
    target = build("MSGLD", other.named_parameters())
    with pytest.raises(ValueError, match=r"'0.weight'.*pre-hook.*'old.0.weight'"):
        target.load_state_dict(renamed)

    def rename(optimizer, loaded):
        for group in loaded["param_groups"]:
            group["param_names"] = [n.removeprefix("old.") for n in group["param_names"]]

    target.register_load_state_dict_pre_hook(rename)
    target.load_state_dict(renamed)
    other.load_state_dict(model.state_dict())
    assert torch.equal(train(model, source, 3), train(other, target, 3))


def test_hooks_see_what_they_see_in_torch():
    model = network()
    optimizer = build("MSGLD", model.parameters())
    train(model, optimizer, 3)
    seen = []
    optimizer.register_load_state_dict_pre_hook(lambda o, s: seen.append("pre"))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append(o.state[model[0].weight]["average"].dtype))
    optimizer.load_state_dict(snapshot(optimizer))
    assert seen == ["pre", torch.float32]
    assert len(optimizer._optimizer_load_state_dict_pre_hooks) == len(optimizer._optimizer_load_state_dict_post_hooks) == 1


def test_a_state_of_another_precision_is_taken_in_the_parameters_own():
    model, wide = network(), network(torch.float64)
    source, target = build("ASGLD", model.parameters()), build("ASGLD", wide.parameters())
    train(model, source, 3)
    target.load_state_dict(source.state_dict())
    assert {v.dtype for p in wide.parameters() for v in target.state[p].values() if isinstance(v, torch.Tensor)} == {torch.float64}


def test_betas_from_json_are_a_list_and_that_is_fine():
    model, other = network(), network()
    optimizer = build("ASGLD", model.parameters())
    train(model, optimizer, 2)
    state = snapshot(optimizer)
    state["param_groups"] = json.loads(json.dumps(state["param_groups"]))
    assert state["param_groups"][0]["betas"] == [0.8, 0.95]
    twin = build("ASGLD", other.parameters())
    twin.load_state_dict(state)
    other.load_state_dict(model.state_dict())
    assert torch.equal(train(model, optimizer, 3), train(other, twin, 3))
    optimizer.param_groups[0]["betas"] = [0.8, 0.95]
    assert torch.equal(train(model, optimizer, 3), train(other, twin, 3))


# ---- schedules and priors of the user's own


@pytest.mark.parametrize("name", ["MSGLD", "ASGLD, invariant"], indirect=True)
def test_a_schedule_as_bias_factor_is_saved_and_goes_on(name):
    model, other = network(), network()
    optimizer = build(name, model.parameters(), bias_factor=lv.schedules.polynomial(3.0, power=0.9, offset=20.0))
    train(model, optimizer, 5)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twin = build(name, other.parameters())
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert twin.param_groups[0]["bias_factor"] == lv.schedules.polynomial(3.0, power=0.9, offset=20.0)
    other.load_state_dict(model.state_dict())
    assert torch.equal(train(model, optimizer, 5), train(other, twin, 5))


def test_a_users_function_as_bias_factor_must_be_there_when_the_state_is_loaded():
    def factor(step):
        return 2.0 / (1 + step)

    model, other = network(), network()
    optimizer = build("MSGLD", model.parameters(), bias_factor=factor)
    train(model, optimizer, 3)
    state = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"bias_factor=.*built with the saved builtins.function"):
        build("MSGLD", other.parameters()).load_state_dict(state)
    twin = build("MSGLD", other.parameters(), bias_factor=factor)
    twin.load_state_dict(state)
    other.load_state_dict(model.state_dict())
    assert torch.equal(train(model, optimizer, 3), train(other, twin, 3))


@dataclasses.dataclass(frozen=True)
class Sech:
    """Uses `tanh`, which has no fused code: it runs on torch."""

    scale: float

    def energy(self, position):
        return (position / self.scale).cosh().log().sum(-1)

    def gradient(self, position):
        return (position / self.scale).tanh() / self.scale


@dataclasses.dataclass(frozen=True)
class Quartic:
    """Operators only: it is fused."""

    weight: float

    def energy(self, position):
        return (self.weight * position**4).sum(-1)

    def gradient(self, position):
        return 4 * self.weight * (position * position * position)


class Loose:
    """No dataclass, so its numbers may change at any time: it runs on torch."""

    def __init__(self, precision):
        self.precision = precision

    def energy(self, position):
        return 0.5 * self.precision * (position * position).sum(-1)

    def gradient(self, position):
        return self.precision * position


@pytest.fixture
def unsaid(monkeypatch):
    from langevin.optim import update

    monkeypatch.setattr(update, "_warned", set())


@pytest.mark.parametrize(("prior", "reason"), [(Sech(0.3), "tanh"), (Loose(4.0), "Loose"), (Quartic(0.5), None)])
def test_a_users_prior_runs_saves_and_says_once_when_it_is_slow(name, prior, reason, unsaid, recwarn):
    model, other, third = network(), network(), network()
    optimizer = build(name, model.parameters(), prior=prior)
    a = train(model, optimizer, 5)
    said = [str(w.message) for w in recwarn if "plain torch" in str(w.message) and w.filename.endswith("catalogue.py")]
    assert len(said) == (reason is not None)
    if reason:
        assert type(prior).__name__ in said[0]
        assert reason in said[0]
    b = train(other, build(name, other.parameters(), prior=prior, fused=False), 5)
    assert torch.equal(a, b)
    state = torch.load(saved(optimizer), weights_only=True)
    twin = build(name, third.parameters(), prior=prior)
    twin.load_state_dict(state)
    third.load_state_dict(model.state_dict())
    assert torch.equal(train(model, optimizer, 3), train(third, twin, 3))
    if isinstance(prior, Sech):
        with pytest.raises(ValueError, match=r"prior=.*Sech.*0\.3"):
            build(name, third.parameters(), prior=Sech(0.4)).load_state_dict(state)


def saved(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return file


def test_two_priors_of_one_class_do_not_share_their_numbers(unsaid):
    """Code is kept by structure: what is baked into it must be part of that."""
    moved = []
    for prior in (Quartic(0.5), Quartic(5.0), Loose(1.0), Loose(9.0)):
        p = nn.Parameter(torch.full((4,), 0.5))
        p.grad = torch.zeros(4)
        lv.optim.SGLD(
            [p], lr=0.1, num_data=1, prior=prior, temperature=0.0, fused=None if isinstance(prior, Quartic) else False
        ).step()
        moved.append(round(p[0].item(), 6))
    assert moved == [round(0.5 - 0.1 * force, 6) for force in (4 * 0.5 * 0.125, 4 * 5.0 * 0.125, 0.5, 4.5)]


# ---- torch.compile around the training step


def test_a_compiled_training_step_contains_the_optimizer(name):
    model, other = network(), network()
    optimizer = build(name, model.parameters())
    x, y = data()

    @torch.compile(backend="eager")
    def step():
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    assert torch.equal(vector(model), train(other, build(name, other.parameters()), 3))


# ---- settings that are changed in mid-run


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_data", -1), ("num_data", True), ("lr", -0.1), ("lr", "0.1"), ("lr", float("nan")), ("temperature", True),
        ("seed", -1), ("seed", [1]), ("chain", 2**32), ("prior", 0.5), ("prior", []), ("fused", "yes"), ("beta", 1.5),
        ("bias_factor", [1.0, 2.0]),
    ],
)  # fmt: skip
def test_a_bad_setting_in_mid_run_is_refused_before_anything_moves(setting, value):
    model = network()
    optimizer = build("MSGLD", model.parameters())
    train(model, optimizer, 2)
    before = vector(model).clone()
    optimizer.param_groups[0][setting] = value
    gradients(model)
    with pytest.raises((ValueError, TypeError), match=rf"\({setting}=\.\.\.\) needs"):
        optimizer.step()
    assert torch.equal(vector(model), before)
    assert optimizer.param_groups[0]["step"] == 2
