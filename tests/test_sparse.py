"""Sparse networks: shares and inclusion probabilities against closed forms, removal of dead units against the network itself."""

from __future__ import annotations

import itertools
import math
import re
import signal
from dataclasses import replace
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

import langevin as lv
from langevin.nn.sparse.pruning import chain_of
from langevin.nn.sparse.weights import masks_of

matplotlib.use("Agg")
PRIOR = lv.priors.spike_slab(slab_weight=0.05, slab_std=1.0, spike_std=0.05)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(*sizes, seed=0, bias=True, activation=nn.ReLU):
    """Build a chain of linear layers with normal weights, without torch's global generator."""
    modules = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        modules += [nn.utils.skip_init(nn.Linear, fan_in, fan_out, bias=bias), activation()]
    model = nn.Sequential(*modules[:-1]).requires_grad_(False)
    source = generator(seed)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=source))
    return model


# ---- shares and probabilities


def test_the_slab_share_is_that_of_the_two_densities():
    for prior in (PRIOR, lv.priors.spike_slab(slab_weight=1e-7, slab_std=0.02**0.5, spike_std=1e-5**0.5)):
        w = torch.linspace(-2, 2, 401, dtype=torch.float64) * 2 * prior.threshold
        slab = math.log(prior.slab_weight) + Normal(0.0, prior.slab_std).log_prob(w)
        spike = math.log1p(-prior.slab_weight) + Normal(0.0, prior.spike_std).log_prob(w)
        torch.testing.assert_close(lv.sparse.slab_share(prior, w), (slab - torch.logaddexp(slab, spike)).exp())
        assert lv.sparse.slab_share(prior, torch.tensor(prior.threshold, dtype=torch.float64)).item() == pytest.approx(0.5)


def posterior_of_one(y, noise):
    """Return the slab's probability, and means and deviations of w in slab and spike, given y ~ N(w, noise^2)."""
    stds = torch.tensor([PRIOR.slab_std, PRIOR.spike_std], dtype=torch.float64)
    weights = torch.tensor([PRIOR.slab_weight, 1 - PRIOR.slab_weight], dtype=torch.float64)
    evidence = weights * Normal(0.0, (stds**2 + noise**2).sqrt()).log_prob(torch.tensor(y)).exp()
    variance = 1 / (1 / stds**2 + 1 / noise**2)
    return evidence[0] / evidence.sum(), y * variance / noise**2, variance.sqrt()


@pytest.mark.parametrize("y", [0.05, 0.25, 0.5])
def test_inclusion_probabilities_are_the_exact_ones_of_a_normal_mean(y):
    share, means, stds = posterior_of_one(y, noise=0.1)
    source, n = generator(1), 40_000
    in_slab = torch.rand(n, generator=source, dtype=torch.float64) < share
    which = torch.where(in_slab, 0, 1)
    w = means[which] + stds[which] * torch.randn(n, generator=source, dtype=torch.float64)
    found = lv.sparse.inclusion(_samples(w), PRIOR, names=["w"])
    t = PRIOR.threshold
    inside = Normal(means, stds).cdf(torch.tensor(t)) - Normal(means, stds).cdf(torch.tensor(-t))
    above = 1 - (share * inside[0] + (1 - share) * inside[1])
    assert found.num_draws == n
    # 5 standard errors; slab shares vary less than choices of slab and spike, of variance p (1 - p)
    for estimate, exact in ((found.slab["w"], share), (found.above["w"], above)):
        assert abs(estimate.item() - exact.item()) < 5 * math.sqrt(exact * (1 - exact) / n)


def _samples(w):
    """Return draws as `sample` does, of a model with one number, put in place of its own."""
    model = lv.Model(lambda p, y: Normal(p["w"], 1.0).log_prob(y), parameters={"w": lv.real()})
    data = (torch.zeros(3, dtype=torch.float64),)
    samples = lv.sample(
        model, sampler=lv.sgld(0.1), init=torch.zeros(2, 1, dtype=torch.float64), data=data, num_steps=3, compile=False
    )
    return replace(samples, arrays={"draws": w.reshape(2, -1, 1)})


def test_a_bank_a_list_and_a_formula_agree_on_inclusion(tmp_path):
    models = [network(3, 4, 2, seed=seed) for seed in range(5)]
    with lv.SampleBank(tmp_path / "bank") as bank:
        for model in models:
            bank.add(model)
    found, other = lv.sparse.inclusion(models, PRIOR), lv.sparse.inclusion(bank, PRIOR)
    stack = torch.stack([model[0].weight for model in models]).double()
    torch.testing.assert_close(found.above["0.weight"], (stack.abs() >= PRIOR.threshold).double().mean(0))
    torch.testing.assert_close(found.slab["0.weight"], lv.sparse.slab_share(PRIOR, stack).mean(0))
    assert set(found.above) == {"0.weight", "2.weight"}
    for name in found.above:
        torch.testing.assert_close(found.slab[name], other.slab[name], rtol=0, atol=0)
    assert found.expected == pytest.approx(sum(share.sum().item() for share in found.slab.values()))
    masks = found.masks(0.9)
    assert lv.sparse.sparsify(models[0], masks).sparsity.kept <= sum(int(mask.sum()) for mask in masks.values())


# ---- counting, pruning, dead units


def test_counts_are_those_of_the_paper_and_zeros_never_count():
    model = network(20, 30, 5)
    model[0].weight[:3] = 0
    table = lv.sparse.sparsity(model, PRIOR)
    expected = [int((model[k].weight.abs() >= PRIOR.threshold).sum()) for k in (0, 2)]
    assert [layer.kept for layer in table.layers] == expected
    assert lv.sparse.sparsity(model, 0).layers[0].kept == 27 * 20
    assert int(masks_of("", model, 0)["0.weight"].sum()) == 27 * 20
    assert table.weights == 20 * 30 + 30 * 5
    assert table.ratio == sum(expected) / table.weights
    assert "0.weight  30 x 20" in str(table)


def test_masks_and_thresholds_prune_alike_and_leave_the_model_alone():
    model = network(6, 8, 8, 3)
    before = [parameter.clone() for parameter in model.parameters()]
    masks = {name: p.abs() >= 1.0 for name, p in model.named_parameters() if p.ndim == 2}
    a, b = lv.sparse.sparsify(model, masks), lv.sparse.sparsify(model, 1.0, evaluate=lambda m: float(m(torch.ones(6)).sum()))
    assert all(map(torch.equal, a.model.parameters(), b.model.parameters()))
    assert all(map(torch.equal, before, model.parameters()))
    assert b.before == float(model(torch.ones(6)).sum())
    assert b.after == float(b.model(torch.ones(6)).sum()) != b.before
    assert str(b.after) in str(b)
    modes = []
    model.train()[1].eval()
    lv.sparse.sparsify(model, 1.0, evaluate=lambda m: modes.append([module.training for module in m.modules()]))
    assert not any(map(any, modes))
    assert [module.training for module in model] == [True, False, True, True, True]


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 1.0])
def test_without_dead_units_the_outputs_are_the_same(activation, bias, share):
    for seed in range(10):
        model = network(12, 15, 9, 7, 4, seed=seed, bias=bias, activation=activation).double()
        source = generator(seed + 100)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(torch.rand(parameter.shape, generator=source) < share)
        pruned = lv.sparse.sparsify(model, 0.0)
        x = torch.randn(50, 12, generator=source, dtype=torch.float64)
        for other in (pruned.model, pruned.shrink()):
            torch.testing.assert_close(other(x), model(x), rtol=1e-12, atol=1e-12)
        single = model.float()
        torch.testing.assert_close(lv.sparse.shrink(single)(x.float()), single(x.float()), rtol=1e-6, atol=1e-6)


def reachable(model):
    """Count, by walks from inputs to outputs, the units of each layer that lie on one: another way to find the living."""
    layers = [module.weight != 0 for module in model if isinstance(module, nn.Linear)]
    forward, backward = [torch.ones(layers[0].shape[1], dtype=torch.bool)], [torch.ones(len(layers[-1]), dtype=torch.bool)]
    for layer in layers:
        forward.append((layer & forward[-1]).any(1))
    for layer in reversed(layers):
        backward.insert(0, (layer & backward[0][:, None]).any(0))
    return [int((a & b).sum()) for a, b in zip(forward, backward, strict=True)]


def test_the_living_units_are_those_on_a_path_from_input_to_output():
    for seed in range(20):
        model = network(12, 15, 9, 7, 4, seed=seed)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(torch.rand(parameter.shape, generator=generator(seed)) < 0.12)
        pruned, expected = lv.sparse.sparsify(model, 0.0), reachable(model)
        assert pruned.units.sizes[:-1] == tuple(expected[:-1])
        assert pruned.units.sizes[-1] == 4
        linear = [module for module in pruned.shrink() if isinstance(module, nn.Linear)]
        assert [layer.in_features for layer in linear] == [max(1, size) for size in expected[:-1]]
        again = lv.sparse.sparsify(pruned.model, 0.0)
        assert all(map(torch.equal, again.model.parameters(), pruned.model.parameters()))


def test_a_network_of_zeros_is_a_constant():
    model = network(5, 6, 3)
    pruned = lv.sparse.sparsify(model, 100.0)
    assert pruned.sparsity.kept == 0
    assert pruned.sparsity.compression == math.inf
    x = torch.randn(4, 5, generator=generator())
    torch.testing.assert_close(pruned.shrink()(x), model[2].bias.expand(4, 3))


def test_what_is_no_chain_is_only_set_to_zero():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network(4, 4, 4)

        def forward(self, x):
            return x + self.inner(x)

    shared, tied = network(4, 4), network(4, 4, 4)
    tied[2].weight = tied[0].weight
    for model in (Residual(), tied, nn.Sequential(shared, nn.ReLU(), shared), nn.Sequential(shared, nn.Softmax(-1), network(4, 2))):
        assert chain_of(model) is None
        assert lv.sparse.sparsify(model, 0.5).units is None
        with pytest.raises(TypeError, match="needs a Sequential"):
            lv.sparse.shrink(model)
    for tail in (nn.Softmax(-1), nn.LogSoftmax(-1)):  # behind the last layer anything goes
        model = nn.Sequential(nn.Flatten(), nn.Sequential(network(4, 6), nn.ReLU(inplace=True)), network(6, 2), tail)
        x = torch.randn(3, 2, 2, generator=generator())
        torch.testing.assert_close(lv.sparse.sparsify(model, 1.0).shrink()(x), lv.sparse.sparsify(model, 1.0).model(x))


# ---- files


def test_a_file_brings_the_network_back_and_is_small(tmp_path):
    model = nn.Sequential(network(100, 50, 10), nn.BatchNorm1d(10))
    pruned = lv.sparse.sparsify(model, 2.5)
    size = pruned.save(tmp_path / "net")
    assert size == (tmp_path / "net").stat().st_size < 0.2 * 4 * 5500
    other = lv.sparse.load(tmp_path / "net", nn.Sequential(network(100, 50, 10, seed=5), nn.BatchNorm1d(10)))
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), pruned.model.state_dict().values(), strict=True))
    wrong = network(100, 40, 10)
    before = wrong[0].weight.clone()
    with pytest.raises(ValueError, match=r"load\(path=...\) needs"):
        lv.sparse.load(tmp_path / "net", wrong)
    assert torch.equal(wrong[0].weight, before)
    with pytest.raises(ValueError, match=r"a file of a Sequential like this one.*1.running_mean"):
        lv.sparse.load(tmp_path / "net", nn.Sequential(network(100, 50, 10), nn.BatchNorm1d(10, track_running_stats=False)))
    (tmp_path / "net").write_bytes(b"nonsense of some length")
    with pytest.raises(ValueError, match="needs a file that save"):
        lv.sparse.load(tmp_path / "net", model)


# ---- training


def regression(n=200):
    source = generator(3)
    x = torch.randn(n, 10, generator=source)
    y = 2 * x[:, :1] - x[:, 1:2] + 0.1 * torch.randn(n, 1, generator=source)
    return [(x[k : k + 20], y[k : k + 20]) for k in range(0, n, 20)]


def half_square(output, target):
    return 0.5 * (output - target).square().mean() / 0.1**2


def sparse_stages(**more):
    prior = lv.priors.spike_slab(slab_weight=1e-3, slab_std=2.0, spike_std=0.03)
    return [
        lv.sparse.Stage(epochs=3, prior=lv.priors.gaussian(std=1.0), lr=1e-3),
        lv.sparse.Stage(epochs=6, prior=prior, lr=1e-3, **more),
        lv.sparse.Stage(epochs=3, prior=lv.priors.gaussian(std=1.0), lr=1e-3, end_lr=1e-4, prune=prior),
    ]


def test_stages_find_the_two_inputs_that_count():
    model, told = network(10, 1).requires_grad_(), []
    history = lv.sparse.train(
        model, regression(), sparse_stages(), num_data=200, loss_fn=half_square, progress=lambda *done: told.append(done)
    )
    assert (model[0].weight != 0).tolist() == [[True, True, *[False] * 8]]
    torch.testing.assert_close(model[0].weight[0, :2], torch.tensor([2.0, -1.0]), atol=0.03, rtol=0)
    assert told == [(k, 12) for k in range(1, 13)]
    assert [epoch.stage for epoch in history.epochs] == [0] * 3 + [1] * 6 + [2] * 3
    assert history.epochs[-1].kept == 2
    assert history.epochs[-1].lr == pytest.approx(1e-4)
    assert history.epochs[0].kept is None
    assert "stage 3: 3 epochs" in str(history)


def test_a_run_of_ones_own_is_train_and_noise_is_that_of_the_seed():
    def trained(seed, own=False):
        model, data = network(10, 1).requires_grad_(), regression()
        stages = [lv.sparse.Stage(epochs=2, prior=PRIOR, lr=1e-4, temperature=0.5, settings={"bias_factor": 0.5}) for _ in range(2)]
        if own:
            run = lv.sparse.Run(model, stages, num_data=200, seed=seed)
            for _ in run:
                for x, y in data:
                    run.step(half_square(model(x), y))
        else:
            lv.sparse.train(model, data, stages, num_data=200, seed=seed, loss_fn=half_square)
        return model[0].weight.detach()

    assert torch.equal(trained(1), trained(1, own=True))
    assert not torch.equal(trained(1), trained(2))


def test_a_second_stage_goes_on_in_the_noise_of_the_first():
    """Without a loss or a prior two stages of pure noise are one of twice the length."""

    def walked(*epochs):
        model = network(10, 1).requires_grad_()
        stages = [lv.sparse.Stage(epochs=n, prior=None, lr=1.0, temperature=1.0, settings={"bias_factor": 0.0}) for n in epochs]
        run = lv.sparse.Run(model, stages, num_data=1)
        for _ in run:
            run.step(0 * sum(parameter.sum() for parameter in model.parameters()))
        return model[0].weight.detach()

    assert torch.equal(walked(4), walked(1, 3))


def test_an_epoch_runs_with_its_own_settings_and_says_its_mean_loss():
    prior = lv.sparse.anneal(PRIOR, lv.priors.spike_slab(slab_weight=0.5, slab_std=0.5, spike_std=0.01))
    stage = lv.sparse.Stage(epochs=3, prior=prior, lr=1e-3, end_lr=1e-5, temperature=1e-3, end_temperature=0.0)
    model = network(10, 1).requires_grad_()
    run = lv.sparse.Run(model, [stage], num_data=200)
    for k, epoch in enumerate(run):
        (group,) = run.optimizer.param_groups
        assert (group["lr"], group["temperature"], group["prior"]) == (epoch.lr, epoch.temperature, epoch.prior)
        assert (epoch.lr, epoch.temperature, epoch.prior) == (stage.lr_at(k), stage.temperature_at(k), prior(k, 3))
        losses = [run.step(half_square(model(x), y)) for x, y in regression()]
        assert epoch.loss == pytest.approx(sum(losses) / 10)
        assert run.kept == lv.sparse.sparsity(model, epoch.prior).kept
    assert [stage.lr_at(k) for k in (0, 2)] == pytest.approx([1e-3, 1e-5])
    assert [stage.temperature_at(k) for k in (0, 2)] == pytest.approx([1e-3, 0.0])


def test_pruned_weights_are_zero_from_the_first_step_on():
    model = network(10, 1).requires_grad_()
    run = lv.sparse.Run(model, [lv.sparse.Stage(epochs=1, prior=None, lr=0.1, prune=1.0)], num_data=200)
    before = model[0].weight.detach().clone()
    next(iter(run))
    assert torch.equal(model[0].weight.detach(), before * (before.abs() >= 1.0))
    assert 0 < run.kept < 10


def test_ctrl_c_keeps_the_model_so_far():
    model, steps = network(10, 1).requires_grad_(), []

    def loss_fn(output, target):
        steps.append([parameter.detach().clone() for parameter in model.parameters()])
        if len(steps) == 25:
            signal.raise_signal(signal.SIGINT)
        return half_square(output, target)

    history = lv.sparse.train(model, regression(), sparse_stages(), num_data=200, loss_fn=loss_fn)
    assert history.was_interrupted
    assert len(steps) == 25
    assert len(history.epochs) == 3
    assert history.epochs[-1].steps == 5  # the step that Ctrl-C came in was finished
    assert not torch.equal(model[0].weight, steps[-1][0])


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where():
    model = network(10, 1).requires_grad_()
    with pytest.raises(FloatingPointError, match="epoch 0, step 0"):
        lv.sparse.train(model, regression(), sparse_stages(), num_data=200, loss_fn=lambda a, b: (a * math.nan).mean())
    assert torch.equal(model[0].weight, network(10, 1)[0].weight)


def test_annealing_goes_from_prior_to_prior():
    start, end = PRIOR, lv.priors.spike_slab(slab_weight=0.5, slab_std=0.5, spike_std=0.01)
    path = lv.sparse.anneal(start, end, share=0.5)
    priors = [path(k, 11) for k in range(11)]
    for prior, expected in ((priors[0], start), *((prior, end) for prior in priors[5:])):
        for name in ("slab_weight", "slab_std", "spike_std"):
            assert getattr(prior, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    ratios = np.diff(np.log([prior.spike_std for prior in priors[:6]]))
    np.testing.assert_allclose(ratios, ratios[0])
    assert path(0, 1).spike_std == pytest.approx(start.spike_std)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lv.sparse.sparsity(network(2, 2), -1.0), r"sparsity\(kept=...\) needs >= 0, got -1.0"),
        (lambda: lv.sparse.sparsity(network(2, 2), lv.priors.gaussian(std=1.0)), "needs a spike-and-slab prior"),
        (lambda: lv.sparse.sparsity(network(2, 2), {"0.weight": torch.ones(2, 2)}), "needs booleans of shape"),
        (lambda: lv.sparse.sparsify(network(2, 2), {"weight": torch.ones(2, 2) > 0}), "needs masks for"),
        (lambda: lv.sparse.sparsity(nn.ReLU(), 0.1), "parameters of two axes"),
        (
            lambda: lv.sparse.sparsify(network(2, 2).apply(lambda m: [p.fill_(math.nan) for p in m.parameters()]), 0.1),
            "finite values",
        ),
        (lambda: lv.sparse.inclusion([], PRIOR), "needs at least one draw"),
        (lambda: lv.sparse.inclusion(network(2, 2), 0.1), "needs a spike-and-slab prior"),
        (lambda: lv.sparse.inclusion([3], PRIOR), "needs modules"),
        (lambda: lv.sparse.inclusion([network(2, 2)], PRIOR, names=["x"]), "names among"),
        (lambda: lv.sparse.Stage(epochs=1, prior=None, lr=0.1, optimizer="Adam"), "an optimizer of langevin.optim"),
        (lambda: lv.sparse.Stage(epochs=0, prior=None, lr=0.1), "epochs"),
        (lambda: lv.sparse.Run(network(2, 2), [], num_data=1), "at least one"),
        (lambda: lv.sparse.train(network(10, 1).requires_grad_(), [], sparse_stages(), num_data=1), "at least one batch"),
        (lambda: lv.sparse.Run(network(2, 2), sparse_stages(), num_data=1), "requires_grad=True"),
        (lambda: lv.sparse.connection_map(network(2, 2), "x"), "one of"),
        (lambda: lv.sparse.input_map(network(2, 2), (3, 3)), "rows and columns"),
    ],
)
def test_bad_arguments_are_said(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_the_page_runs_and_finds_the_inputs_that_count():
    page = (Path(__file__).parents[1] / "docs" / "sparse.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(first, names)
    pruned, x = names["pruned"], names["x"]
    assert pruned.units.alive[0].tolist() == [True, True, *[False] * 8]
    assert pruned.after > 0.97
    torch.testing.assert_close(names["small"](x), names["model"](x), rtol=1e-5, atol=1e-5)
    exec(second, names)
    assert [epoch.steps for epoch in names["run"].epochs] == [10] * 100


def test_pictures_show_what_is_there():
    model = lv.sparse.sparsify(network(1000, 6, 3), 2.5).model
    weight = model[0].weight
    panel = lv.sparse.input_map(model, (25, 40))
    counts = panel.images[0].get_array()
    assert counts.filled(0).reshape(-1).tolist() == (weight != 0).sum(0).tolist()
    bars = lv.sparse.layer_bars(model)
    assert [text.get_text() for text in bars.texts] == [
        f"{int((model[k].weight != 0).sum())} of {model[k].weight.numel():,}" for k in (0, 2)
    ]
    shown = lv.sparse.connection_map(network(1000, 6), "0.weight").images[0].get_array()
    assert shown.shape == (6, 400)
    np.testing.assert_allclose(abs(shown)[:, 0], network(1000, 6)[0].weight[:, :3].abs().amax(1))  # three columns in one
    plt.close("all")
