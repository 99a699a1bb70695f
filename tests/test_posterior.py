"""The posterior of a module: each number against plain PyTorch on the module itself, and against a closed form."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import langevin as lv
from langevin.random import Purpose, batch_indices, normal, philox, stream, streams
from langevin.targets import Batch, Target, likelihoods
from langevin.targets.posterior import Posterior
from langevin.targets.space import Space

NUM_DATA = 40
PRIOR = lv.priors.gaussian(std=0.8)
AT = stream(Purpose.DATA)


def built(make):
    """Build a module; torch's own initialisation draws from the global generator, which tests leave alone."""
    with torch.random.fork_rng():
        return make()


def draw(number, *shape, dtype=torch.float64):
    return normal(3, AT, number, math.prod(shape), dtype=dtype).reshape(shape)


class Tied(nn.Module):
    """Two layers with the same weight, a bias of its own, a frozen scale and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 3)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(1.5), requires_grad=False)
        self.register_buffer("shift", torch.tensor(0.3))

    def forward(self, x):
        return self.head((self.second(self.first(x).tanh()) * self.scale + self.shift).tanh())


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3),
        nn.BatchNorm2d(3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).eval()


LABELS = (torch.arange(NUM_DATA) * 7) % 3
CASES = {  # model, likelihood, x, y, the mean loss of plain PyTorch
    "mlp, classes": (mlp, "categorical", draw(0, NUM_DATA, 5), LABELS, F.cross_entropy),
    "mlp, measurements": (
        mlp,
        likelihoods.gaussian(std=0.4),
        draw(0, NUM_DATA, 5),
        draw(1, NUM_DATA, 3),
        lambda output, y: F.gaussian_nll_loss(output, y, torch.full_like(y, 0.16), full=True, reduction="none").sum(-1).mean(),
    ),
    "one measurement": (
        lambda: nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)),
        likelihoods.gaussian(std=2.0),
        draw(0, NUM_DATA, 5),
        draw(1, NUM_DATA),
        lambda output, y: -torch.distributions.Normal(output, 2.0).log_prob(y).mean(),
    ),
    "tied and frozen": (Tied, "categorical", draw(0, NUM_DATA, 5), LABELS, F.cross_entropy),
    "convolutional": (convolutional, "categorical", draw(2, NUM_DATA, 36), LABELS, F.cross_entropy),
}


def case(name, dtype=torch.float64, **changes):
    make, likelihood, x, y, loss = CASES[name]
    model = built(make).to(dtype)
    posterior = Posterior(model, likelihood, **{"prior": PRIOR, "num_data": NUM_DATA, **changes})
    return model, posterior, x.to(dtype), y if y.dtype == torch.int64 else y.to(dtype), loss


def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def by_backward(model, theta, x, y, loss_fn):
    """Return U and its gradient by loss.backward() on the module itself."""
    model = copy.deepcopy(model)
    model.zero_grad()
    vector_to_parameters(theta, trainable(model))
    energy = NUM_DATA * loss_fn(model(x), y)
    for parameter in trainable(model):
        energy = energy - torch.distributions.Normal(0.0, torch.tensor(PRIOR.std, dtype=theta.dtype)).log_prob(parameter).sum()
    energy.backward()
    return energy.detach(), parameters_to_vector([parameter.grad for parameter in trainable(model)])


# The flat vector


@pytest.mark.parametrize("name", CASES)
def test_the_flat_order_is_that_of_the_parameters(name):
    model, posterior, *_ = case(name)
    vector = parameters_to_vector(trainable(model)).detach()
    assert torch.equal(posterior.space.flatten(model), vector)
    assert posterior.dim == len(vector)
    for parameter, view in zip(trainable(model), posterior.space.unflatten(vector).values(), strict=True):
        assert torch.equal(parameter, view)
        assert view.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
    for key, where in posterior.space.slices.items():
        assert torch.equal(vector[where], model.get_parameter(key).detach().reshape(-1))


def test_tied_parameters_count_once_and_frozen_ones_and_buffers_not_at_all():
    space = Space.of(built(Tied))
    assert space.names == ("first.weight", "first.bias", "head.weight", "head.bias")
    assert space.dim == 25 + 5 + 15 + 3


def test_assign_is_the_inverse_of_flatten_and_changes_that_module_only():
    model, other = built(mlp), built(mlp)
    space, before = Space.of(model), parameters_to_vector(model.parameters()).detach()
    parameters = list(other.parameters())
    space.assign(other, before + 1)
    assert torch.equal(space.flatten(other), before + 1)
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    assert torch.equal(parameters_to_vector(model.parameters()).detach(), before)


# The energy


@pytest.mark.parametrize("per_chain", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_energy_and_gradient_are_those_of_plain_autograd_on_the_module(name, per_chain):
    model, posterior, x, y, loss_fn = case(name)
    position = 0.5 * draw(5, 3, posterior.dim)
    rows = torch.stack([torch.arange(10), torch.arange(10) * 3, 39 - torch.arange(10)])
    columns = (x[rows], y[rows]) if per_chain else (x[:10], y[:10])
    found = posterior.evaluate(position, Batch(columns, NUM_DATA, per_chain))
    for k, theta in enumerate(position):
        mine = (x[rows[k]], y[rows[k]]) if per_chain else columns
        energy, gradient = by_backward(model, theta, *mine, loss_fn)
        torch.testing.assert_close(found.energy[k], energy)
        torch.testing.assert_close(found.gradient[k], gradient)


def test_the_log_likelihood_of_one_position_and_the_energy_may_be_compiled():
    _, posterior, x, y, _ = case("mlp, classes")
    position = 0.5 * draw(5, 3, posterior.dim)

    def gradient(theta, x, y):
        return torch.func.grad(lambda leaf: -posterior.log_likelihood_fn(leaf, x, y).sum())(theta)

    batch = Batch((x, y), NUM_DATA, per_chain=False)
    expected = posterior.evaluate(position, batch)
    compiled = torch.compile(torch.func.vmap(gradient, in_dims=(0, None, None)), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(position, x, y) + PRIOR.gradient(position), expected.gradient)
    compiled = torch.compile(lambda at: posterior.evaluate(at, batch), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(position), expected)


def test_the_model_is_never_changed_and_later_changes_of_it_do_not_count():
    model, posterior, x, y, _ = case("convolutional")
    before = copy.deepcopy(model.state_dict())
    batch = Batch((x, y), NUM_DATA, per_chain=False)
    position = posterior.init(2)
    first = posterior.evaluate(position, batch)
    lv.predict(posterior, position, x)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.train()
    with torch.no_grad():
        model[6].running_mean.add_(1.0)
    assert torch.equal(posterior.evaluate(position, batch).gradient, first.gradient)


def test_drawing_starts_and_making_modules_leave_the_buffers_alone():
    model, _, x, y, _ = case("convolutional")
    with torch.no_grad():
        model[6].running_mean.add_(1.0)  # reset_parameters of BatchNorm would set it back to 0
    posterior = Posterior(model, "categorical", prior=PRIOR, num_data=NUM_DATA)
    position, batch = 0.5 * draw(5, 2, posterior.dim), Batch((x, y), NUM_DATA, per_chain=False)
    before = posterior.evaluate(position, batch)
    posterior.init(2)
    assert posterior.module(position[0])[6].running_mean.tolist() == [1.0] * 3
    assert torch.equal(posterior.evaluate(position, batch).gradient, before.gradient)


def test_a_posterior_is_a_target_that_can_be_sent_to_another_process():
    _, posterior, x, y, _ = case("tied and frozen")
    assert isinstance(posterior, Target)
    position, batch = posterior.init(2), Batch((x, y), NUM_DATA, per_chain=False)
    other = pickle.loads(pickle.dumps(posterior))
    assert torch.equal(other.evaluate(position, batch).gradient, posterior.evaluate(position, batch).gradient)
    assert "dim=48" in repr(posterior)


# Starting positions


@pytest.mark.parametrize("name", ["mlp, classes", "convolutional"])
def test_init_is_what_the_layers_own_reset_parameters_draws(name):
    model, posterior, *_ = case(name)
    seed = 2**63 + 9
    for chain in (0, 3):
        word, *_ = philox((0, 0, 0, int(Purpose.INIT)), (seed % 2**32, seed // 2**32))
        with torch.random.fork_rng():
            torch.manual_seed((word + chain) % 2**32)
            for layer in model:
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
        expected = parameters_to_vector(model.parameters()).detach()
        assert torch.equal(posterior.init(1, seed, first_chain=chain)[0], expected)


def test_init_has_the_law_of_pytorch_layers():
    """Uniform within 1 / sqrt(fan_in), so variance bound**2 / 3; the tolerance is 5 standard errors of 400 chains' elements."""
    _, posterior, *_ = case("mlp, classes", torch.float32)
    starts = posterior.init(400, seed=1)
    assert starts.dtype == torch.float32
    for key, where in posterior.space.slices.items():
        bound = 1 / math.sqrt(5 if key.startswith("0") else 7)
        values = starts[:, where].double()
        assert values.abs().max() <= bound
        assert values.abs().max() > 0.99 * bound
        count = values.numel()
        assert abs(values.mean().item()) < 5 * bound / math.sqrt(3 * count)
        assert abs(values.square().mean().item() - bound**2 / 3) < 5 * bound**2 * math.sqrt(4 / 45 / count)


def test_a_chain_alone_starts_as_it_does_among_many_and_seeds_differ():
    _, posterior, *_ = case("mlp, classes")
    together = posterior.init(4, seed=7)
    assert torch.equal(together, posterior.init(4, 7))
    for k in range(4):
        assert torch.equal(together[k : k + 1], posterior.init(1, seed=7, first_chain=k))
    everything = torch.cat([together, posterior.init(4, seed=8)])
    assert len(everything.unique(dim=0)) == 8


def test_parameters_that_no_layer_resets_keep_the_models_values():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.offset, self.layer = nn.Parameter(torch.tensor([4.0])), nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x) + self.offset

    posterior = Posterior(built(Own), likelihoods.gaussian(1.0), prior=PRIOR, num_data=5)
    assert posterior.init(3)[:, 0].tolist() == [4.0] * 3
    assert len(posterior.init(3)[:, 1].unique()) == 3


def test_attention_layers_are_reset_too():
    posterior = Posterior(built(lambda: nn.MultiheadAttention(4, 2)), "categorical", prior=PRIOR, num_data=5)
    assert all(len(column.unique()) == 2 for column in posterior.init(2)[:, posterior.space.slices["in_proj_weight"]].T)


# Predictions


def modules(posterior, draws):
    return [posterior.module(theta) for theta in draws.reshape(-1, posterior.dim)]


@pytest.mark.parametrize("name", ["mlp, classes", "tied and frozen", "convolutional"])
def test_predicted_probabilities_are_the_mean_over_draws(name):
    _, posterior, x, _, _ = case(name)
    draws = draw(6, 2, 20, posterior.dim)
    with torch.no_grad():
        expected = sum(F.softmax(module(x), -1) for module in modules(posterior, draws)) / 40
    for batch_size in (7, 1000):
        torch.testing.assert_close(lv.predict(posterior, draws, x, batch_size=batch_size).probabilities, expected)
    one = lv.predict(posterior, draws[0, 0], x).probabilities
    torch.testing.assert_close(one, F.softmax(posterior.module(draws[0, 0])(x), -1).detach())


def test_predicted_measurements_have_the_mean_and_the_total_variance():
    _, posterior, x, _, _ = case("mlp, measurements")
    draws = draw(6, 37, posterior.dim)
    with torch.no_grad():
        outputs = torch.stack([module(x) for module in modules(posterior, draws)])
    found = lv.predict(posterior, draws, x, batch_size=9)
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.variance, 0.4**2 + outputs.var(0, correction=0))


def test_the_variance_of_close_draws_does_not_cancel_in_float32():
    posterior = Posterior(built(lambda: nn.Linear(1, 1, bias=False)), likelihoods.gaussian(1e-6), prior=PRIOR, num_data=5)
    draws = 1000 + draw(7, 100, 1).float()
    found = lv.predict(posterior, draws, torch.ones(1, 1)).variance.item()
    assert found == pytest.approx(draws.double().var(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_log_likelihoods_of_all_draws_add_up_to_the_loss(name):
    _, posterior, x, y, loss_fn = case(name)
    draws = 0.5 * draw(6, 2, 9, posterior.dim)
    found = lv.log_likelihood(posterior, draws, x, y, batch_size=11)
    assert found.shape == (2, 9, NUM_DATA)
    with torch.no_grad():
        expected = [[loss_fn(module(x[k : k + 1]), y[k : k + 1]) for k in (0, 17, 39)] for module in modules(posterior, draws)]
    torch.testing.assert_close(found[..., [0, 17, 39]].reshape(18, 3), -torch.tensor(expected, dtype=torch.float64))


# Sampling


def test_chains_take_the_steps_of_the_optimizer_on_the_module():
    """Chain 0 draws the noise and the minibatches of address 0, which the optimizer and a loop over the same rows draw too."""
    model, posterior, x, y, loss_fn = case("tied and frozen")
    steps, batch_size, lr, seed = 12, 8, 0.05, 11
    start = posterior.init(2, seed=seed)
    kernel = lv.sgld(step_size=lr / NUM_DATA)
    samples = lv.sample(posterior, sampler=kernel, init=start, data=(x, y), batch_size=batch_size, num_steps=steps, seed=seed)

    vector_to_parameters(start[0].clone(), trainable(model))
    optimizer = lv.optim.SGLD(trainable(model), lr=lr, num_data=NUM_DATA, prior=PRIOR, seed=seed)
    for step in range(steps):
        rows = batch_indices(seed, streams(Purpose.BATCH, range(1)), step, batch_size, NUM_DATA)[0]
        optimizer.zero_grad()
        loss_fn(model(x[rows]), y[rows]).backward()
        optimizer.step()
        torch.testing.assert_close(samples.draws[0, step], parameters_to_vector(trainable(model)).detach())
    assert (samples.draws[0, -1] - start[0]).abs().max() > 0.1  # it moved
    assert lv.predict(posterior, samples, x).probabilities.sum(-1).tolist() == pytest.approx([1.0] * NUM_DATA)


def regression():
    """A linear module with Gaussian errors, and the mean and precision of its posterior."""
    x, std = draw(8, NUM_DATA, 3), 0.5
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.7 + std * draw(9, NUM_DATA, 1)
    model = built(lambda: nn.Linear(3, 1)).double()
    posterior = Posterior(model, likelihoods.gaussian(std=std), prior=PRIOR, num_data=NUM_DATA)
    design = torch.cat([x, torch.ones(NUM_DATA, 1, dtype=torch.float64)], 1)
    precision = design.T @ design / std**2 + torch.eye(4, dtype=torch.float64) / PRIOR.std**2
    return posterior, (x, y), torch.linalg.solve(precision, design.T @ y / std**2)[:, 0], precision


def test_the_gradient_of_a_linear_module_is_that_of_the_closed_form_posterior():
    posterior, data, mean, precision = regression()
    position = draw(10, 6, 4)
    found = posterior.evaluate(position, Batch(data, NUM_DATA, per_chain=False))
    torch.testing.assert_close(found.gradient, (position - mean) @ precision)
    # The energy is normalised: its difference to -log N(theta; mean, precision^-1) is -log p(y), the same at every position.
    log_density = torch.distributions.MultivariateNormal(mean, precision_matrix=precision).log_prob(position)
    std, design = posterior.likelihood.std, torch.cat([data[0], torch.ones(NUM_DATA, 1, dtype=torch.float64)], 1)
    covariance = std**2 * torch.eye(NUM_DATA, dtype=torch.float64) + PRIOR.std**2 * design @ design.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(NUM_DATA, dtype=torch.float64), covariance)
    torch.testing.assert_close(-found.energy, log_density + evidence.log_prob(data[1][:, 0]))


def test_chains_on_a_linear_module_have_the_closed_form_posteriors_law():
    """One draw from each of 2000 independent chains; tolerances are 5 standard errors of mean and covariance.

    The step is 0.03 of the largest precision, so that SGLD's own bias, at most 1.5% of a variance, is below half an error (3.2%).
    """
    posterior, data, mean, precision = regression()
    covariance = torch.linalg.inv(precision)
    chains, eigenvalues = 2000, torch.linalg.eigvalsh(precision)
    step_size = 0.03 / eigenvalues[-1].item()
    num_steps = math.ceil(7 / (step_size * eigenvalues[0].item()))
    start = posterior.init(chains, seed=4)
    samples = lv.sample(posterior, sampler=lv.sgld(step_size), init=start, data=data, num_steps=num_steps, thin=num_steps, seed=4)
    draws = samples.draws[:, 0]
    variances = covariance.diagonal()
    assert ((draws.mean(0) - mean).abs() < 5 * (variances / chains).sqrt()).all()
    error = (torch.outer(variances, variances) + covariance**2).div(chains).sqrt()
    assert ((draws.T.cov() - covariance).abs() < 5 * error).all()
    x = draw(11, 5, 3)
    found = lv.predict(posterior, samples, x)
    design = torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], 1)
    spread = (design @ covariance * design).sum(-1, keepdim=True)
    assert ((found.mean - design @ mean[:, None]).abs() < 5 * (spread / chains).sqrt()).all()
    assert ((found.variance - 0.5**2 - spread).abs() < 5 * spread * math.sqrt(2 / chains)).all()


# Bad input


def made(make=mlp, likelihood="categorical", **changes):
    return Posterior(built(make), likelihood, **{"prior": PRIOR, "num_data": 6, **changes})


X, Y = draw(12, 6, 5, dtype=torch.float32), torch.tensor([0, 1, 2, 0, 1, 2])
ZERO = torch.zeros(2, 66)


def evaluated(x=X, y=Y, num_data=6, position=ZERO, **changes):
    return made(**changes).evaluate(position, Batch((x, y), num_data, per_chain=False))


def with_last(value):
    return torch.cat([Y[:5], torch.tensor([value])])


class FunctionalDropout(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5)


BAD = {
    "no module": (lambda: Posterior(lambda x: x, "categorical", prior=PRIOR, num_data=6), TypeError, "needs an nn.Module"),
    "class of a module": (lambda: Posterior(nn.Linear, "categorical", prior=PRIOR, num_data=6), TypeError, "needs an nn.Module"),
    "unknown likelihood": (lambda: made(likelihood="beta"), ValueError, r"\['bernoulli', .* an object such as.*'beta'"),
    "no likelihood": (lambda: made(likelihood=1.0), TypeError, r"Posterior\(likelihood=.*1\.0"),
    "a mean loss as likelihood": (lambda: evaluated(likelihood=F.cross_entropy), ValueError, r"one log-likelihood per row.*\(\)"),
    "zero std": (lambda: likelihoods.gaussian(0.0), ValueError, r"gaussian\(std=.*0\.0"),
    "no prior": (lambda: made(prior=1.0), TypeError, r"Posterior\(prior=.*1\.0"),
    "no data": (lambda: made(num_data=0), ValueError, r"num_data=.*0"),
    "training BatchNorm": (
        lambda: made(lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))),
        ValueError,
        r"Posterior\(model=.*model\.eval\(\).*GroupNorm or FRN.*BatchNorm1d '1' in training mode",
    ),
    "BatchNorm without statistics": (
        lambda: made(lambda: nn.BatchNorm1d(3, track_running_stats=False).eval()),
        ValueError,
        r"GroupNorm or FRN.*without running statistics",
    ),
    "training Dropout": (
        lambda: made(lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.2))),
        ValueError,
        r"without random layers: call model\.eval\(\).*Dropout '1' in training mode",
    ),
    "training attention": (
        lambda: made(lambda: nn.MultiheadAttention(4, 2, dropout=0.1)),
        ValueError,
        "MultiheadAttention in training mode",
    ),
    "hidden dropout": (
        lambda: evaluated(make=lambda: FunctionalDropout(5, 3), position=torch.zeros(2, 18)),
        ValueError,
        r"without random layers: call model\.eval\(\).*FunctionalDropout, which draws random numbers",
    ),
    "mixed dtypes": (
        lambda: made(lambda: nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3, bias=False).double())),
        TypeError,
        r"one dtype.*0\.weight: torch\.float32.*1\.weight: torch\.float64",
    ),
    "complex parameters": (lambda: made(lambda: nn.Linear(2, 2, dtype=torch.complex64)), TypeError, "'weight' of torch.complex64"),
    "all frozen": (lambda: made(lambda: nn.Linear(2, 2).requires_grad_(False)), ValueError, "requires_grad=True"),
    "no data columns": (lambda: made().evaluate(ZERO), ValueError, r"two columns \(x, y\)"),
    "one column": (lambda: made().evaluate(ZERO, Batch((X,), 6, per_chain=False)), ValueError, "1 columns"),
    "another size of the data": (lambda: evaluated(num_data=7), ValueError, "num_data=.*7 rows of the data, got 6"),
    "positions of another dim": (lambda: evaluated(position=torch.zeros(2, 65)), ValueError, r"66 elements.*\(2, 65\)"),
    "positions of another dtype": (lambda: evaluated(position=ZERO.double()), TypeError, r"float32, got torch\.float64"),
    "one position without an axis": (lambda: evaluated(position=ZERO[0]), ValueError, r"\(chains, dim\), got \(66,\)"),
    "x of another width": (lambda: evaluated(x=X[:, :4]), ValueError, r"Posterior\(x=.*Sequential takes.*\(6, 4\)"),
    "x of another dtype": (lambda: evaluated(x=X.double()), TypeError, r"Posterior\(x=.*float32, got torch\.float64"),
    "x of bytes": (lambda: evaluated(x=X.to(torch.uint8)), ValueError, r"Posterior\(x=.*torch\.uint8"),
    "labels of int32": (lambda: evaluated(y=Y.int()), TypeError, r"categorical\(y=.*y\.long\(\)\), got torch\.int32"),
    "labels as a column": (lambda: evaluated(y=Y[:, None]), ValueError, r"shape \(6,\), got \(6, 1\)"),
    "label too high": (lambda: evaluated(y=with_last(3)), ValueError, r"labels in \[0, 3\).*\[0, 3\]"),
    "label that cross_entropy ignores": (lambda: evaluated(y=with_last(-100)), ValueError, r"labels in \[0, 3\).*-100"),
    "measurements that would broadcast": (
        lambda: evaluated(
            make=lambda: nn.Linear(5, 1), likelihood=likelihoods.gaussian(1.0), y=Y.float(), position=torch.zeros(2, 6)
        ),
        ValueError,
        r"gaussian\(y=.*\(6, 1\), got \(6,\)",
    ),
    "measurements of another dtype": (
        lambda: evaluated(likelihood=likelihoods.gaussian(1.0), y=draw(1, 6, 3)),
        TypeError,
        r"float32 \(.*\), got torch\.float64",
    ),
    "check_data: size": (lambda: made().check_data((X[:5], Y[:5])), ValueError, "num_data=.*5 rows of the data, got 6"),
    "check_data: lengths": (lambda: made().check_data((X, Y[:5])), ValueError, r"shape \(6,\), got \(5,\)"),
    "check_data: columns": (lambda: made().check_data((X,)), ValueError, "1 columns"),
    "check_data: label": (lambda: made().check_data((X, with_last(3))), ValueError, r"labels in \[0, 3\)"),
    "check_data: width": (lambda: made().check_data((X[:, 1:], Y)), ValueError, r"\(6, 4\)"),
    "no chains": (lambda: made().init(0), ValueError, r"init\(chains=.*0"),
    "negative seed": (lambda: made().init(1, seed=-1), ValueError, r"init\(seed=.*-1"),
    "seed of 65 bits": (lambda: made().init(1, seed=2**64), ValueError, r"init\(seed="),
    "draws of another dim": (lambda: lv.predict(made(), torch.zeros(3, 65), X), ValueError, r"66 elements.*\(3, 65\)"),
    "a module to predict with": (
        lambda: lv.predict(built(mlp), ZERO, X),
        TypeError,
        r"predict\(likelihood=.*a module has no likelihood, got None",
    ),
    "a target without a module": (
        lambda: lv.log_likelihood(lv.targets.mixture(), ZERO, X, Y),
        TypeError,
        r"log_likelihood\(model=.*a Posterior, an nn.Module.*got Mixture",
    ),
    "draws of another dtype": (
        lambda: lv.log_likelihood(made(), ZERO.double(), X, Y),
        TypeError,
        r"log_likelihood\(draws=.*float32, got torch\.float64",
    ),
    "data that are one tensor": (lambda: made().check_data(X), TypeError, r"Posterior\(data=.*two columns \(x, y\)"),
    "no draws": (lambda: lv.predict(made(), torch.zeros(2, 0, 66), X), ValueError, r"at least one draw.*\(2, 0, 66\)"),
    "draws of a stopped chain": (lambda: lv.predict(made(), ZERO * math.nan, X), ValueError, r"predict\(draws=.*finite"),
    "no rows": (lambda: lv.predict(made(), ZERO, X[:0]), ValueError, r"at least one row.*\(0, 5\)"),
    "batch_size of zero": (lambda: lv.predict(made(), ZERO, X, batch_size=0), ValueError, r"predict\(batch_size=.*0"),
    "predict on another width": (lambda: lv.predict(made(), ZERO, X[:, :4]), ValueError, r"\(6, 4\)"),
    "module of many positions": (lambda: made().module(ZERO), ValueError, r"shape \(66,\).*\(2, 66\)"),
    "another module": (
        lambda: Space.of(built(mlp)).flatten(nn.Flatten()),
        ValueError,
        r"'0\.weight'.*no such parameter in Flatten",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_value(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_good_data_pass_the_check():
    made().check_data((X, Y))
    made(likelihood=likelihoods.gaussian(1.0)).check_data((X, draw(1, 6, 3).float()))
