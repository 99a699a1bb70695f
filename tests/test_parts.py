"""A part of a module: by name, by mask, the last layer, adapters; inputs of any form; priors by name on theta."""

from __future__ import annotations

import copy
import math
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

import langevin as lv
from langevin.random import Purpose, batch_indices, normal, stream, streams
from langevin.targets import Batch, likelihoods, priors
from langevin.targets.posterior import Posterior

NUM_DATA = 40
AT = stream(Purpose.DATA)
PRIOR = priors.gaussian(std=0.8)
F64 = torch.float64


def built(make):
    """Build a module in float64; torch's own initialisation draws from the global generator, which tests leave alone."""
    with torch.random.fork_rng():
        return make().double()


def draw(number, *shape):
    return normal(3, AT, number, math.prod(shape), dtype=F64).reshape(shape)


class Net(nn.Module):
    """Features and a head."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        return self.head(self.features(x))


X, LABELS = draw(0, NUM_DATA, 5), (torch.arange(NUM_DATA) * 7) % 3
BY_NAME = priors.by_name({"head.weight": priors.laplace(0.3), "*.bias": priors.student_t(3.0, 0.5), "*": priors.fan_in(2**0.5)})


def posterior_of(model, likelihood="categorical", prior=PRIOR, **settings):
    return Posterior(model, likelihood, prior=prior, num_data=NUM_DATA, **settings)


def evaluated(posterior, position, *columns):
    return posterior.evaluate(position, Batch(columns, NUM_DATA, per_chain=False))


# Priors by name


def test_a_prior_by_name_on_theta_is_the_sum_over_the_parameters():
    model = built(Net)
    posterior = posterior_of(model, prior=BY_NAME)
    position = draw(1, 4, posterior.dim)
    by_hand = torch.zeros(4, dtype=F64)
    gradients = []
    for name, place in posterior.space.slices.items():
        prior = BY_NAME.prior_for(name, model.get_parameter(name).shape)
        by_hand = by_hand + prior.energy(position[:, place])
        gradients.append(prior.gradient(position[:, place]))
    torch.testing.assert_close(posterior.prior.energy(position), by_hand)
    assert torch.equal(posterior.prior.gradient(position), torch.cat(gradients, -1))
    assert "ByName" in repr(posterior)
    assert torch.equal(pickle.loads(pickle.dumps(posterior)).prior.gradient(position), torch.cat(gradients, -1))


def test_gaussians_side_by_side_are_one_vector_of_precisions():
    posterior = posterior_of(built(Net), prior=priors.fan_in(2.0, bias_std=0.5))
    assert isinstance(posterior.prior, priors.Gaussians)
    stds = torch.cat([torch.full((n,), s) for n, s in ((35, 2 / 5**0.5), (7, 0.5), (21, 2 / 7**0.5), (3, 0.5))]).double()
    position = draw(1, 4, posterior.dim)
    energy = -torch.distributions.Normal(0, stds).log_prob(position).sum(-1)
    torch.testing.assert_close(posterior.prior.energy(position), energy, rtol=1e-6, atol=0)
    torch.testing.assert_close(posterior.prior.gradient(position), position / stds**2, rtol=1e-6, atol=0)
    assert posterior_of(built(Net), prior=priors.by_name({"*": PRIOR})).prior is PRIOR


@pytest.mark.parametrize("prior", [BY_NAME, priors.fan_in()], ids=["by_name", "fan_in"])
def test_chains_take_the_steps_of_the_optimizer_on_the_module(prior):
    model = built(Net)
    posterior = posterior_of(model, prior=prior)
    steps, batch_size, lr, seed = 8, 8, 0.05, 11
    start = posterior.init(2, seed=seed)
    kernel = lv.msgld(step_size=lr / NUM_DATA, bias_factor=0.5)
    samples = lv.sample(
        posterior, sampler=kernel, init=start, data=(X, LABELS), batch_size=batch_size, num_steps=steps, seed=seed, compile=False
    )
    posterior.space.assign(model, start[0])
    optimizer = lv.optim.MSGLD(model.named_parameters(), lr=lr, num_data=NUM_DATA, prior=prior, seed=seed, bias_factor=0.5)
    for step in range(steps):
        rows = batch_indices(seed, streams(Purpose.BATCH, range(1)), step, batch_size, NUM_DATA)[0]
        optimizer.zero_grad()
        F.cross_entropy(model(X[rows]), LABELS[rows]).backward()
        optimizer.step()
        torch.testing.assert_close(samples.draws[0, step], parameters_to_vector(model.parameters()).detach())
    assert (samples.draws[0, -1] - start[0]).abs().max() > 0.1


def test_a_prior_by_name_and_a_mask_and_inputs_by_name_may_be_compiled():
    posterior = posterior_of(built(Two), prior=BY_NAME, mask={"head.weight": torch.arange(9).reshape(3, 3) % 2 == 0})
    batch = Batch(posterior.as_columns("sample", ({"x": X, "kind": KIND}, LABELS)), NUM_DATA, per_chain=False)
    position = draw(1, 2, posterior.dim)
    compiled = torch.compile(lambda at: posterior.evaluate(at, batch), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(tuple(compiled(position)), tuple(posterior.evaluate(position, batch)))


STDS = {"weight": 0.3, "bias": 2.0}


def regression():
    """A linear module with Gaussian errors and a prior by name; mean and precision of its posterior."""
    x, std = draw(8, NUM_DATA, 3), 0.5
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=F64) + 0.7 + std * draw(9, NUM_DATA, 1)
    prior = priors.by_name({name: priors.gaussian(scale) for name, scale in STDS.items()})
    posterior = posterior_of(built(lambda: nn.Linear(3, 1)), likelihoods.gaussian(std=std), prior)
    design = torch.cat([x, torch.ones(NUM_DATA, 1, dtype=F64)], 1)
    precision = design.T @ design / std**2 + torch.diag(torch.tensor([STDS["weight"]] * 3 + [STDS["bias"]], dtype=F64) ** -2)
    return posterior, (x, y), torch.linalg.solve(precision, design.T @ y / std**2)[:, 0], precision


def test_the_law_of_a_linear_module_with_priors_by_name_is_the_conjugate_one():
    """The gradient in closed form; one draw from each of 1000 chains, tolerances of 5 standard errors.

    The step is 0.03 of the largest precision, so that SGLD's own bias, at most 1.5% of a variance, is below half an error (4.5%).
    """
    posterior, data, mean, precision = regression()
    position = draw(10, 6, 4)
    torch.testing.assert_close(evaluated(posterior, position, *data).gradient, (position - mean) @ precision)
    chains, eigenvalues = 1000, torch.linalg.eigvalsh(precision)
    step_size = 0.03 / eigenvalues[-1].item()
    num_steps = math.ceil(7 / (step_size * eigenvalues[0].item()))
    draws = lv.sample(
        posterior,
        sampler=lv.sgld(step_size),
        init=posterior.init(chains, seed=4),
        data=data,
        num_steps=num_steps,
        thin=num_steps,
        seed=4,
    ).draws[:, 0]
    covariance = torch.linalg.inv(precision)
    variances = covariance.diagonal()
    assert ((draws.mean(0) - mean).abs() < 5 * (variances / chains).sqrt()).all()
    error = (torch.outer(variances, variances) + covariance**2).div(chains).sqrt()
    assert ((draws.T.cov() - covariance).abs() < 5 * error).all()


def test_patterns_are_of_the_users_names_where_the_likelihood_adds_a_parameter():
    prior = priors.by_name({"head.*": priors.laplace(0.3), "log_scale": priors.gaussian(3.0), "features.*": PRIOR})
    posterior = posterior_of(built(Net), "gaussian", prior, parameters=["head.*", "features.0.bias"])
    assert posterior.space.names == ("log_scale", "model.features.0.bias", "model.head.weight", "model.head.bias")
    position = draw(1, 2, posterior.dim)
    expected = (
        priors.gaussian(3.0).energy(position[:, :1]) + PRIOR.energy(position[:, 1:8]) + priors.laplace(0.3).energy(position[:, 8:])
    )
    torch.testing.assert_close(posterior.prior.energy(position), expected)


# A part of the parameters


@pytest.mark.parametrize("parameters", ["head.*", ["head.weight", "*d.bias"], lambda name: name.startswith("head")])
def test_a_part_by_name_is_the_model_with_the_rest_frozen(parameters):
    model = built(Net)
    before = copy.deepcopy(model.state_dict())
    posterior = posterior_of(model.requires_grad_(False), parameters=parameters)
    assert posterior.space.names == ("head.weight", "head.bias")
    position = draw(1, 2, posterior.dim)
    head = posterior_of(copy.deepcopy(model.head).requires_grad_())
    with torch.no_grad():
        features = model.features(X)
    for found, expected in zip(evaluated(posterior, position, X, LABELS), evaluated(head, position, features, LABELS), strict=True):
        torch.testing.assert_close(found, expected)
    made = posterior.module(position[0])
    assert torch.equal(made.features[0].weight, before["features.0.weight"])
    assert torch.equal(made.head.bias, position[0, 21:])
    assert not any(parameter.requires_grad for parameter in model.parameters())  # the user's own is as it was
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_mask_leaves_elements_out_of_theta():
    model = built(Net)
    kept = torch.arange(21).reshape(3, 7) % 3 == 0
    mask = {
        "head.weight": kept,
        "head.bias": torch.zeros(3, dtype=torch.bool),
        "features.0.weight": torch.ones(7, 5, dtype=torch.bool),
    }
    whole, part = posterior_of(model, prior=priors.fan_in()), posterior_of(model, prior=priors.fan_in(), mask=mask)
    assert part.space.names == ("features.0.weight", "features.0.bias", "head.weight")
    assert part.dim == 35 + 7 + 7
    full = whole.space.flatten(model)
    among = torch.cat([torch.ones(42, dtype=torch.bool), kept.reshape(-1), torch.zeros(3, dtype=torch.bool)])
    assert torch.equal(part.space.flatten(model), full[among])
    position = draw(1, 2, part.dim)
    there = full.repeat(2, 1)
    there[:, among] = position
    found, expected = evaluated(part, position, X, LABELS), evaluated(whole, there, X, LABELS)
    torch.testing.assert_close(found.gradient, expected.gradient[:, among])
    # The prior of what is fixed is no part of the energy: the same constant at both positions.
    torch.testing.assert_close(found.energy.diff(), expected.energy.diff())
    made = part.module(position[0])
    assert torch.equal(parameters_to_vector(made.parameters()).detach(), there[0])
    assert part.space.element(42) == "head.weight[0, 0]"
    assert part.space.element(43) == "head.weight[0, 3]"
    starts = part.init(3)
    assert starts.shape == (3, 49)
    assert torch.equal(starts, whole.init(3)[:, among])


def test_draws_of_a_masked_parameter_have_its_shape_and_its_fixed_values():
    model = built(lambda: nn.Linear(3, 1))
    mask = {"weight": torch.tensor([[True, False, True]])}
    posterior = posterior_of(model, likelihoods.gaussian(1.0), mask=mask)
    y = draw(5, NUM_DATA, 1)
    samples = lv.sample(posterior, sampler=lv.sgld(1e-3), init=posterior.init(2), data=(X[:, :3], y), num_steps=5, compile=False)
    assert samples["weight"].shape == (2, 5, 1, 3)
    assert (samples["weight"][..., 0, 1] == model.weight[0, 1]).all()
    assert torch.equal(samples["weight"][..., 0, 0], samples.draws[..., 0])


class LoRA(nn.Module):
    """A frozen layer and a correction of low rank."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.base = layer.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.ones(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def test_adapters_are_sampled_by_requires_grad_alone():
    model = built(lambda: nn.Sequential(LoRA(nn.Linear(5, 4)), nn.Tanh(), LoRA(nn.Linear(4, 3))))
    posterior = posterior_of(model)
    assert posterior.space.names == ("0.down", "0.up", "2.down", "2.up")
    start = posterior.init(2)
    assert torch.equal(start[0], start[1])  # values of the user's own module: nothing says how to draw others
    samples = lv.sample(posterior, sampler=lv.sgld(1e-3), init=start, data=(X, LABELS), num_steps=20, seed=1, compile=False)
    made = posterior.module(samples.draws[0, -1])
    assert torch.equal(made[0].base.weight, model[0].base.weight)
    assert (made[0].up != 0).all()
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = lv.optim.SGLD(adapters, lr=1e-3 * NUM_DATA, num_data=NUM_DATA, prior=PRIOR, seed=1)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(X), LABELS).backward()
        optimizer.step()
    torch.testing.assert_close(posterior.space.flatten(model), samples.draws[0, -1])


def test_buffers_stay_what_they_are():
    model = built(lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    model(X)  # in training mode: moves the running statistics
    model.eval()
    posterior = posterior_of(model)
    samples = lv.sample(posterior, sampler=lv.sgld(1e-4), init=posterior.init(2), data=(X, LABELS), num_steps=3, compile=False)
    made = posterior.module(samples.draws[0, -1])
    assert torch.equal(made[1].running_mean, model[1].running_mean)
    assert made[1].running_mean.abs().min() > 0
    assert not torch.equal(made[1].weight, model[1].weight)


# The last layer


class Two(nn.Module):
    """Two inputs, by place or by name."""

    def __init__(self):
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(4, 3), nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x, kind):
        return self.head((self.body(x) + self.table(kind)).tanh())


KIND = torch.arange(NUM_DATA) % 4


@pytest.mark.parametrize("batch_size", [7, 1000])
def test_the_last_layer_of_the_features_is_the_model_in_evaluation_mode(batch_size):
    net, two = (
        built(lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.5), nn.ReLU(), nn.Linear(7, 3))),
        built(Two),
    )
    for model, x, call in (
        (net, X, lambda m: m(X)),
        (two, (X, KIND), lambda m: m(X, KIND)),
        (two, {"kind": KIND, "x": X}, lambda m: m(X, KIND)),
    ):
        model.requires_grad_(False)
        head, features = lv.last_layer(model, x, batch_size=batch_size)
        assert torch.equal(head(features).detach(), call(copy.deepcopy(model).eval()))
        assert model.training  # the user's own is as it was
        assert not any(layer._forward_hooks for layer in (*model.modules(), *head.modules()))
        assert head.weight.requires_grad
        assert not features.requires_grad
        assert head.weight is not list(model.parameters())[-2]


def test_sampling_the_last_layer_is_sampling_the_head_of_the_model():
    model = built(Net)
    head, features = lv.last_layer(model, X)
    whole, part = posterior_of(model, parameters="head.*"), posterior_of(head)
    settings = {"num_steps": 5, "batch_size": 8, "seed": 3, "compile": False}
    start = draw(1, 2, 24)
    a = lv.sample(whole, sampler=lv.sgld(1e-3), init=start, data=(X, LABELS), **settings).draws
    b = lv.sample(part, sampler=lv.sgld(1e-3), init=start, data=(features, LABELS), **settings).draws
    torch.testing.assert_close(a, b)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x):
        return self.layer(self.layer(x).tanh())


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.table.weight

    def forward(self, kind):
        return self.head(self.table(kind))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x.mean(0, keepdim=True))


NO_LAST_LAYER = {
    "no module": (lambda: lv.last_layer(lambda x: x, X), TypeError, r"last_layer\(model=.*an nn\.Module"),
    "no linear layer": (lambda: lv.last_layer(nn.Tanh(), X), ValueError, "Tanh, which calls none"),
    "softmax after it": (
        lambda: lv.last_layer(built(lambda: nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1))), X),
        ValueError,
        "calls last, '0', got .*differs",
    ),
    "reshaped": (
        lambda: lv.last_layer(built(lambda: nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))), X),
        ValueError,
        r"'0', got .*\(40,\)",
    ),
    "called twice": (lambda: lv.last_layer(built(Twice), X), ValueError, "'layer', called 2 times"),
    "tied": (lambda: lv.last_layer(built(TiedHead), KIND), ValueError, "'head', which is tied"),
    "rows that meet": (lambda: lv.last_layer(built(Pooled), X), ValueError, r"one row of features.*\(1, 5\)"),
    "no rows": (lambda: lv.last_layer(built(Net), X[:0]), ValueError, r"last_layer\(x=.*at least one row"),
    "ragged": (lambda: lv.last_layer(built(Two), (X, KIND[:3])), ValueError, r"same number of rows.*\[40, 3\]"),
    "no tensor": (lambda: lv.last_layer(built(Net), "x"), TypeError, r"last_layer\(x=.*'str'"),
    "batch size": (lambda: lv.last_layer(built(Net), X, batch_size=0), ValueError, r"batch_size=.*0"),
}


@pytest.mark.parametrize("name", NO_LAST_LAYER)
def test_where_there_is_no_last_layer_it_says_why(name):
    call, error, message = NO_LAST_LAYER[name]
    with pytest.raises(error, match=message):
        call()


# Inputs of any form


def test_tuples_and_dicts_of_inputs_give_the_energies_of_the_module():
    model = built(Two)
    position = draw(1, 2, posterior_of(model).dim)
    results = []
    for data in ((X, KIND, LABELS), ((X, KIND), LABELS), ({"x": X, "kind": KIND}, LABELS), ({"kind": KIND, "x": X}, LABELS)):
        posterior = posterior_of(model)
        columns = posterior.as_columns("sample", data)
        posterior.check_data(columns)
        assert posterior.as_columns("full", columns) == columns  # columns pass through
        results.append((evaluated(posterior, position, *columns), lv.gradients.full(posterior, data)(position, 0)))
        made = posterior.module(position[0])
        with torch.no_grad():
            for x in (data[0] if len(data) == 2 else data[:-1], columns[:-1]):
                torch.testing.assert_close(posterior.output_fn(position[0], x), made(X, KIND))
            torch.testing.assert_close(posterior.output_fn(position[0], *columns[:-1]), made(X, KIND))
            loss = F.cross_entropy(made(X, KIND), LABELS) * NUM_DATA + PRIOR.energy(position[0])
        torch.testing.assert_close(results[-1][0].energy[0], loss)
    for first, second in results:
        assert torch.equal(first.gradient, results[0][0].gradient)
        assert torch.equal(second.gradient, results[0][0].gradient)


def test_a_run_with_a_dict_of_inputs_is_known_again(tmp_path):
    model, data = built(Two), ({"x": X, "kind": KIND}, LABELS)
    posterior = posterior_of(model)
    start, kernel = draw(1, 2, posterior.dim), lv.sgld(1e-3)
    whole = lv.sample(
        posterior, sampler=kernel, init=start, data=data, num_steps=4, batch_size=8, seed=3, compile=False, out=tmp_path / "run"
    )
    other = ({"kind": KIND, "x": X}, LABELS)  # in another order, with a posterior that is new
    assert torch.equal(lv.resume(tmp_path / "run", posterior_of(model), sampler=kernel, data=other).draws, whole.draws)
    with pytest.raises(ValueError, match="another data set"):
        lv.resume(tmp_path / "run", posterior_of(model), sampler=kernel, data=({"kind": KIND.flip(0), "x": X}, LABELS))


BAD = {
    "unknown parameter": (
        lambda: posterior_of(built(Net), parameters="hed.*"),
        ValueError,
        r"parameters=.*'head\.bias'\], got 'hed",
    ),
    "one of two unknown": (lambda: posterior_of(built(Net), parameters=["head.*", "x"]), ValueError, r"got 'x'"),
    "a function that takes none": (lambda: posterior_of(built(Net), parameters=lambda name: False), ValueError, "chooses one of"),
    "parameters as a number": (lambda: posterior_of(built(Net), parameters=3), TypeError, r"parameters=.*got 3"),
    "no parameters": (lambda: posterior_of(built(Net), parameters=[]), TypeError, r"parameters=.*got \[\]"),
    "mask of another shape": (
        lambda: posterior_of(built(Net), mask={"head.bias": torch.ones(4, dtype=torch.bool)}),
        TypeError,
        r"mask=.*\(3,\).*\(4,\)",
    ),
    "mask of numbers": (lambda: posterior_of(built(Net), mask={"head.bias": torch.ones(3)}), TypeError, "booleans.*float32"),
    "mask of another name": (
        lambda: posterior_of(built(Net), mask={"bias": torch.ones(3).bool()}),
        ValueError,
        "'head.bias'.*'bias'",
    ),
    "mask of a frozen one": (
        lambda: posterior_of(built(Net), parameters="features.*", mask={"head.bias": torch.ones(3).bool()}),
        ValueError,
        "trainable",
    ),
    "mask that is none": (lambda: posterior_of(built(Net), mask=torch.ones(3).bool()), TypeError, "mask=.*a dict"),
    "mask of everything": (
        lambda: posterior_of(built(lambda: nn.Linear(2, 1, bias=False)), mask={"weight": torch.zeros(1, 2).bool()}),
        ValueError,
        "at least one parameter",
    ),
    "by name, a typo": (
        lambda: posterior_of(built(Net), prior=priors.by_name({"*": PRIOR, "hed.*": PRIOR})),
        ValueError,
        r"got \['hed",
    ),
    "a missing input": (lambda: posterior_of(built(Two)).check_data((X, LABELS)), ValueError, r"inputs that Two takes.*kind"),
    "an input too many": (lambda: posterior_of(built(Net)).check_data((X, X, LABELS)), ValueError, r"inputs that Net takes"),
    "an unknown input": (
        lambda: posterior_of(built(Two)).check_inputs({"x": X, "sort": KIND}),
        ValueError,
        r"inputs that Two .*sort",
    ),
    "an input of another dtype": (
        lambda: posterior_of(built(Two)).check_inputs((X.float(), KIND)),
        TypeError,
        r"float64, got .*float32",
    ),
    "a dict of no tensors": (lambda: posterior_of(built(Two)).as_columns("sample", ({"x": [1.0]}, LABELS)), TypeError, r"'list'"),
    "a dict by numbers": (
        lambda: posterior_of(built(Two)).as_columns("sample", ({1: X}, LABELS)),
        TypeError,
        r"by the names.*\[1\]",
    ),
    "ragged": (lambda: posterior_of(built(Two)).as_columns("sample", ((X, KIND[:3]), LABELS)), ValueError, "same length"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_value(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_names_that_were_learnt_are_kept():
    posterior = posterior_of(built(Two))
    posterior.as_columns("sample", ({"x": X, "kind": KIND}, LABELS))
    with pytest.raises(ValueError, match=r"sample\(data=.*\['kind', 'x'\].*\['sort', 'x'\]"):
        posterior.as_columns("sample", ({"x": X, "sort": KIND}, LABELS))
    with pytest.raises(ValueError, match=r"\['kind', 'x'\].*1 columns"):
        posterior.as_columns("sample", (X, LABELS))


def test_the_page_on_networks_runs():
    page = (Path(__file__).parents[1] / "docs" / "networks.md").read_text()
    names = {}
    with torch.random.fork_rng():
        for block in re.findall(r"```python\n(.*?)```", page, re.S):
            exec(block, names)
    assert names["head_only"].space.names == ("2.weight", "2.bias")
    assert names["probabilities"].shape == (10, 3)
    assert names["samples"].draws.isfinite().all()
    for name in lv.priors.__all__:  # every builder has its row
        if name[0].islower() and name not in (
            "check_any_prior",
            "check_prior",
            "from_plain",
            "is_scale",
            "on_theta",
            "place",
            "to_plain",
        ):
            assert f"`{name}(" in page
