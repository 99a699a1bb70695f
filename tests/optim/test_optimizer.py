"""What every optimizer promises to a training loop, in the manner of torch's own optimizer tests."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from catalogue import BAD, ENTRIES, GAUSSIAN, MEMORY, NUM_DATA, OPTIMIZERS, build, data, network, train
from stepping import step as step_by_hand
from torch import nn
from torch.optim import lr_scheduler

import langevin as lv

SPIKE_SLAB = lv.priors.spike_slab(slab_weight=0.1, slab_std=0.3, spike_std=0.05)


@pytest.fixture(params=OPTIMIZERS)
def name(request):
    return request.param


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_fail_at_once_with_name_and_value(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", [None, GAUSSIAN, lv.priors.flat()])
def test_the_optimizer_takes_the_path_of_the_functional_sampler_bit_for_bit(name, dtype, prior):
    model = network(dtype)
    optimizer = build(name, model.parameters(), prior=prior, temperature=0.4)
    kind, settings = OPTIMIZERS[name]
    settings = {**settings, "num_data": NUM_DATA} if "num_data" in kind.settings else settings
    kernel = kind.builder(0.02 / NUM_DATA, temperature=0.4, **settings)
    state = kernel.init(nn.utils.parameters_to_vector(model.parameters()).detach())
    x, y = data(dtype)
    for step in range(25):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        gradient = NUM_DATA * torch.cat([p.grad.flatten() for p in model.parameters()])
        if prior is not None:
            gradient = gradient + prior.gradient(state.position)
        noises = [
            lv.random.KINDS[kernel.traits.noise_kind](5, lv.random.stream(purpose), step, state.position.numel(), dtype=dtype)
            for purpose in (lv.random.Purpose.POSITION, lv.random.Purpose.SECOND)[: kernel.traits.num_noises]
        ]
        state = step_by_hand(kernel, state, gradient, torch.stack(noises))
        optimizer.step()
        assert torch.equal(nn.utils.parameters_to_vector(model.parameters()).detach(), state.position), f"step {step}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", [None, GAUSSIAN, lv.priors.flat()])
def test_the_fused_engine_equals_the_torch_engine_bit_for_bit(name, dtype, prior):
    fused, plain = network(dtype), network(dtype)
    a = train(fused, build(name, fused.parameters(), prior=prior), 20, dtype)
    b = train(plain, build(name, plain.parameters(), prior=prior, fused=False), 20, dtype)
    assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_a_spike_and_slab_prior_the_engines_agree_to_rounding(name, dtype):
    """Their exponentials differ in the last place; 10 steps may blow that up by a factor of a thousand."""
    fused, plain = network(dtype), network(dtype)
    a = train(fused, build(name, fused.parameters(), prior=SPIKE_SLAB), 10, dtype)
    b = train(plain, build(name, plain.parameters(), prior=SPIKE_SLAB, fused=False), 10, dtype)
    torch.testing.assert_close(a, b, rtol=1e3 * torch.finfo(dtype).eps, atol=1e3 * torch.finfo(dtype).eps)


def test_the_result_does_not_depend_on_the_number_of_threads(name):
    threads, results = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            parameter = nn.Parameter(torch.linspace(-1, 1, 300_001))
            optimizer = build(name, [parameter])
            for _ in range(3):
                parameter.grad = parameter.detach().sin()
                optimizer.step()
            results.append(parameter.detach().clone())
        finally:
            torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_state_is_what_the_algorithm_names_and_nothing_else(name):
    model = network()
    optimizer = build(name, model.parameters())
    train(model, optimizer, 2)
    for parameter in model.parameters():
        state = dict(optimizer.state[parameter])
        assert state.pop("steps", 2) == 2
        assert set(state) == MEMORY[name]
        assert all(value.shape == parameter.shape for value in state.values())


def test_gradients_are_read_not_changed(name):
    model = network()
    optimizer = build(name, model.parameters())
    x, y = data()
    (model(x) - y).square().mean().backward()
    before = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned(name):
    model = network()
    optimizer = build(name, model.parameters())
    x, y = data()

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    other = network()
    expected = train(other, build(name, other.parameters()), 1)
    loss = optimizer.step(closure)
    assert loss.item() > 0
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()).detach(), expected)


def test_parameters_without_gradient_stay_and_keep_their_addresses(name):
    """The second layer moves alike whether or not the first one has gradients: its noise is at its own address."""
    whole, part = network(), network()
    for parameter in part[0].parameters():
        parameter.requires_grad_(False)
    frozen = part[0].weight.clone()
    one, two = build(name, whole.parameters()), build(name, part.parameters())
    x, y = data()
    for model, optimizer in ((whole, one), (part, two)):
        (model(x) - y).square().mean().backward()
        optimizer.step()
    assert torch.equal(part[0].weight, frozen)
    assert torch.equal(whole[2].weight, part[2].weight)
    assert not torch.equal(whole[0].weight, frozen)


def test_groups_have_settings_of_their_own(name):
    model = network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": model[2].parameters(), "temperature": 0.0, "prior": None},
    ]
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build(name, groups)
    train(model, optimizer, 1)
    after = [p.detach() for p in model.parameters()]
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[2], before[2])
    other = network()
    again = build(
        name, [{"params": other[0].parameters(), "lr": 0.0}, {"params": other[2].parameters(), "temperature": 0.0}], seed=99
    )
    again.param_groups[1]["prior"] = None
    train(other, again, 1)
    assert torch.equal(other[2].weight, model[2].weight)  # temperature 0: the seed does not matter


def test_a_group_added_later_gets_addresses_after_the_others(name):
    model, other = network(), network()
    whole = build(name, list(model[0].parameters()) + list(model[2].parameters()))
    grown = build(name, list(other[0].parameters()))
    grown.add_param_group({"params": list(other[2].parameters())})
    assert torch.equal(train(model, whole, 3), train(other, grown, 3))


def test_a_bad_group_leaves_the_optimizer_as_it_was(name):
    model = network()
    optimizer = build(name, model[0].parameters())
    with pytest.raises(ValueError, match="temperature"):
        optimizer.add_param_group({"params": model[2].parameters(), "temperature": -1.0})
    assert len(optimizer.param_groups) == 1


def test_shared_parameters_move_once(name):
    layer = nn.utils.skip_init(nn.Linear, 4, 4, bias=False)
    optimizer = build(name, nn.Sequential(layer, nn.Tanh(), layer).parameters())
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == 16


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_of_torch_sets_epsilon(name, scheduler):
    """After the schedule has changed lr, the step is that of a fresh optimizer with this lr, the same state and step count."""
    model = network()
    optimizer = build(name, model.parameters())
    schedule = SCHEDULERS[scheduler](optimizer)
    rates = set()
    for _ in range(5):
        rates.add(float(optimizer.param_groups[0]["lr"]))
        train(model, optimizer, 1)
        schedule.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
    assert len(rates) > 1
    twin = copy.deepcopy(model)
    other = build(name, twin.parameters(), lr=float(optimizer.param_groups[0]["lr"]))
    saved = optimizer.state_dict()
    other.load_state_dict(saved)
    assert torch.equal(train(model, optimizer, 1), train(twin, other, 1))


def test_a_tensor_as_learning_rate_works(name):
    model, other = network(), network()
    a = train(model, build(name, model.parameters(), lr=torch.tensor(0.02, dtype=torch.float64)), 3)
    assert torch.equal(a, train(other, build(name, other.parameters()), 3))


def test_gradients_accumulate_and_clip_as_usual(name):
    """Two halves of a batch, accumulated with weight 1/2 each, are the whole batch."""
    whole, halves = network(torch.float64), network(torch.float64)
    one, two = build(name, whole.parameters()), build(name, halves.parameters())
    x, y = data(torch.float64, rows=12)
    (whole(x) - y).square().mean().backward()
    for part in (slice(0, 6), slice(6, 12)):
        ((halves(x[part]) - y[part]).square().mean() / 2).backward()
    for model, optimizer in ((whole, one), (halves, two)):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_gradient_scaler_unscales_first_and_skips_bad_steps(name):
    model, other = network(), network()
    optimizer = build(name, model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = data()
    scaler.scale((model(x) - y).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    expected = train(other, build(name, other.parameters()), 1)
    torch.testing.assert_close(nn.utils.parameters_to_vector(model.parameters()).detach(), expected)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer.zero_grad()
    scaler.scale((model(x) * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, nn.utils.parameters_to_vector(model.parameters()).detach())
    assert optimizer.param_groups[0]["step"] == 1


def test_bfloat16_parameters_have_float32_averages_that_survive_a_reload(name):
    model = network(torch.bfloat16)
    optimizer = build(name, model.parameters())
    train(model, optimizer, 5, torch.bfloat16)
    assert {v.dtype for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)} <= {
        torch.float32
    }
    twin = copy.deepcopy(model)
    other = build(name, twin.parameters())
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(train(model, optimizer, 5, torch.bfloat16), train(twin, other, 5, torch.bfloat16))


def test_other_memory_layouts_move_like_the_plain_one(name):
    """A channels-last weight goes through the torch engine; addresses follow the logical index, so the path is the same."""
    plain = nn.utils.skip_init(nn.Conv2d, 3, 4, 3)
    nn.utils.vector_to_parameters(torch.linspace(-1, 1, 112), plain.parameters())
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    assert not last.weight.is_contiguous()
    for model in (plain, last):
        optimizer = build(name, model.parameters())
        for _ in range(3):
            model.weight.grad = model.weight.detach().cos()
            model.bias.grad = model.bias.detach().cos()
            optimizer.step()
    assert torch.equal(plain.weight, last.weight)


def test_sparse_gradients_are_refused_in_words(name):
    layer = nn.Embedding(10, 3, sparse=True, _weight=torch.ones(10, 3))
    optimizer = build(name, layer.parameters())
    layer(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match=r"dense gradients.*sparse_coo"):
        optimizer.step()


def test_compiled_models_train_like_plain_ones(name):
    """Only the wrapper: the parameters are the module's own."""
    model, other = network(), network()
    compiled = torch.compile(model, backend="eager")
    a, b = build(name, compiled.parameters()), build(name, other.parameters())
    assert torch.equal(train(compiled, a, 3), train(other, b, 3))


def test_two_stages_change_the_prior_in_mid_run_and_keep_the_state(name):
    model, other = network(), network()
    optimizer = build(name, model.parameters())
    train(model, optimizer, 5)
    memory = {key: value.clone() for key, value in optimizer.state[model[0].weight].items() if key != "steps"}
    for group in optimizer.param_groups:
        group["prior"] = SPIKE_SLAB
    assert all(torch.equal(value, optimizer.state[model[0].weight][key]) for key, value in memory.items())
    changed = train(model, optimizer, 3)
    kept = train(other, build(name, other.parameters()), 8)
    assert not torch.equal(changed, kept)
    assert "SpikeSlab" in optimizer.description


@pytest.mark.parametrize("prior", [None, GAUSSIAN, SPIKE_SLAB])
def test_the_state_loads_without_executing_code_and_the_path_goes_on(name, prior):
    model = network()
    optimizer = build(name, model.parameters(), prior=prior)
    train(model, optimizer, 7)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    twin = network()
    twin.load_state_dict(loaded["model"])
    other = build(name, twin.parameters(), lr=1.0, seed=123, prior=GAUSSIAN)  # all of it is overwritten
    other.load_state_dict(loaded["optimizer"])
    assert other.param_groups[0]["prior"] == prior
    assert torch.equal(train(model, optimizer, 20), train(twin, other, 20))


def test_after_a_reload_in_a_new_process_the_next_100_steps_are_the_same_bits(tmp_path):
    script = f"""
import sys, torch
sys.path[:0] = {[str(Path(__file__).parents[1] / part) for part in ("optim", "law", "")]!r}
from catalogue import OPTIMIZERS, build, network, train
saved = torch.load({str(tmp_path / "saved.pt")!r}, weights_only=True)
after = {{}}
for name in OPTIMIZERS:
    model = network()
    model.load_state_dict(saved[name]["model"])
    optimizer = build(name, model.parameters())
    optimizer.load_state_dict(saved[name]["optimizer"])
    after[name] = train(model, optimizer, 100)
torch.save(after, {str(tmp_path / "after.pt")!r})
"""
    saved, expected = {}, {}
    for name in OPTIMIZERS:
        model = network()
        optimizer = build(name, model.parameters())
        train(model, optimizer, 10)
        saved[name] = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        expected[name] = train(model, optimizer, 100)
    torch.save(saved, tmp_path / "saved.pt")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    after = torch.load(tmp_path / "after.pt", weights_only=True)
    assert all(torch.equal(after[name], expected[name]) for name in OPTIMIZERS)


def test_copies_and_pickles_go_on_alike(name):
    model = network()
    optimizer = build(name, model.parameters())
    train(model, optimizer, 3)
    twin, other = copy.deepcopy((model, optimizer))
    assert torch.equal(train(model, optimizer, 3), train(twin, other, 3))


def test_describe_prints_epsilon_the_noise_the_target_and_the_law(name, capsys):
    build(name, network().parameters(), temperature=0.25).describe()
    printed = capsys.readouterr().out
    assert "epsilon = lr / num_data = 0.02 / 50 = 0.0004" in printed
    scale = (2 * 0.0004 * 0.25 * ENTRIES[name].noise_share) ** 0.5
    assert f"noise: standard deviation {scale:g}" in printed
    assert "target: exp(-U / 0.25)" in printed
    assert "effective temperature" in printed
    assert "prior: GaussianPrior(std=0.7)" in printed


def test_weight_decay_is_the_gaussian_prior_that_gives_the_path_of_sgd(capsys):
    model, other = network(torch.float64), network(torch.float64)
    decay = 5e-2
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": decay}]  # as trainers do it
    optimizer = lv.optim.SGLD(groups, lr=0.02, num_data=NUM_DATA, temperature=0.0, weight_decay=decay)
    assert (
        capsys.readouterr().out.count("weight_decay=0.05 is the prior N(0, std**2) with std = 1 / sqrt(0.05 * num_data) = 0.632")
        == 2
    )
    assert "weight_decay" not in optimizer.param_groups[0]
    a = train(model, optimizer, 20, torch.float64)
    b = train(other, torch.optim.SGD(other.parameters(), lr=0.02, weight_decay=decay), 20, torch.float64)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_weight_decay_of_zero_says_and_changes_nothing(name, capsys):
    model, other = network(), network()
    groups = [{"params": list(model.parameters()), "weight_decay": 0.0}]
    a = train(model, build(name, groups, weight_decay=0.0), 3)
    assert torch.equal(a, train(other, build(name, other.parameters()), 3))
    assert capsys.readouterr().out == ""


def test_the_optimizer_samples_the_posterior_of_a_linear_model():
    """Bayesian linear regression with a closed-form posterior; 4,000 copies of the weight are 4,000 chains.

    Tolerance: 5 standard errors over the copies, plus SGLD's known O(eps) excess, here below 1 percent.
    """
    copies, rows = 4_000, 20
    x = lv.random.normal(8, 0, 0, rows, dtype=torch.float64)
    y = 0.5 * x + lv.random.normal(8, 0, 1, rows, dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(copies, dtype=torch.float64))
    optimizer = lv.optim.SGLD([weight], lr=0.02, num_data=rows, prior=lv.priors.gaussian(std=1.0), seed=3)
    for _ in range(500):
        optimizer.zero_grad()
        # The mean negative log-likelihood of each copy; copies are independent, so their sum gives each its own gradient.
        (0.5 * (y[:, None] - x[:, None] * weight).square()).mean(0).sum().backward()
        optimizer.step()
    precision = (x @ x + 1).item()
    mean = ((x @ y) / precision).item()
    draws = weight.detach()
    assert abs(draws.mean().item() - mean) < 5 * (1 / precision / copies) ** 0.5
    assert abs(draws.var().item() * precision - 1) < 5 * (2 / copies) ** 0.5 + 0.01
