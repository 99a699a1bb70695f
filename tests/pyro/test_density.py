"""The density of a Pyro model is Pyro's own: energies, gradients, rows of a subsampled plate, what depends on what."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from pyro.nn import PyroModule, PyroSample
from pyro_models import EFFECTS, ERRORS, MODELS, eight_schools, logistic, normals

import langevin as lv
from langevin.targets.base import Batch
from langevin.targets.gradients import compiled, full


@pytest.fixture(autouse=True)
def _double():
    """Pyro's own potential takes its dtype from the default one."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def potential_of(model, args):
    """Return Pyro's potential of a dict of values, with the Jacobian of its own transforms."""
    with torch.random.fork_rng():
        _, potential, transforms, _ = initialize_model(model, args)
    return lambda values: potential({name: transforms[name](values[name]) for name in transforms})


def at_random(target, rows=3):
    return 0.7 * normals(rows, target.dim, shift=0.37)


def compare(target, potential, position):
    """Compare energy and gradient with a potential of the values, to 1e-10 of their size."""
    found = target.evaluate(position, Batch(target.data, len(target.data[0]), False) if target.needs_data else None)
    for k, theta in enumerate(position):
        leaf = theta.clone().requires_grad_()
        exact = potential(target.space.constrain(leaf)[0])
        (gradient,) = torch.autograd.grad(exact, leaf)
        torch.testing.assert_close(found.energy[k], exact.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.gradient[k], gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "bounds"])
def test_energy_and_gradient_are_those_of_pyros_potential(name):
    model, args = MODELS[name]
    target = lv.from_pyro(model, *args)
    compare(target, potential_of(model, args), at_random(target))


def test_supports_that_depend_on_sites_have_the_right_jacobian():
    """Pyro's MCMC takes such bounds from its first trace, so the oracle is the trace's density and a numerical Jacobian."""
    model, args = MODELS["bounds"]
    target = lv.from_pyro(model, *args)
    index = [*range(7), 7]  # of the free values: all but the observed elements of y_unobserved, of which the first is missing

    def flat(theta):
        values = target.space.constrain(theta)[0]
        return torch.cat([value.reshape(-1) for value in values.values()])[index]

    for theta in at_random(target):
        values = target.space.constrain(theta)[0]
        trace = poutine.trace(poutine.condition(model, data=values)).get_trace(*args)
        jacobian = torch.autograd.functional.jacobian(flat, theta)
        exact = trace.log_prob_sum() + torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(-target.evaluate(theta[None]).energy[0], exact, rtol=1e-10, atol=1e-10)


def batches_of_factors():
    """Supports without a constraint of ours: stacked Cholesky factors, positive ordered values, correlation matrices."""
    pyro.sample("factors", dist.LKJCholesky(3, 2.0).expand([2]).to_event(1))
    pyro.sample("matrix", dist.LKJ(3, 1.5))
    pyro.sample("softplus", dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.SoftplusTransform()))


def test_other_bijections_have_pyros_jacobian():
    target = lv.from_pyro(batches_of_factors)
    compare(target, potential_of(batches_of_factors, ()), at_random(target))


def test_multinomial_counts_have_torchs_density():
    counts = torch.tensor([[3.0, 0.0, 4.0], [1.0, 1.0, 0.0]])

    def model():
        share = pyro.sample("share", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("group", 2):
            pyro.sample("counts", dist.Multinomial(7, share, validate_args=False), obs=counts)

    target = lv.from_pyro(model)
    compare(target, potential_of(model, ()), at_random(target))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_compiled_without_replay(name):
    """An operation without C code would be replayed with a warning, which is an error here."""
    model, args = MODELS[name]
    target = lv.from_pyro(model, *args)
    position = at_random(target, 2)
    fast, slow = compiled(full(target, target.data), 2)(position, 0), full(target, target.data)(position, 0)
    torch.testing.assert_close(fast.energy, slow.energy, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fast.gradient, slow.gradient, rtol=1e-9, atol=1e-9)


def test_a_subsampled_plate_has_a_log_likelihood_of_each_row():
    _, (x, y) = MODELS["logistic"]
    whole, target = lv.from_pyro(logistic, x, y), lv.from_pyro(logistic, x, y, 7)
    position = at_random(target)
    (rows,) = target.data
    assert rows.tolist() == list(range(60))
    everything = target.evaluate(position, Batch((rows,), 60, per_chain=False))
    torch.testing.assert_close(everything.energy, whole.evaluate(position).energy)
    logs = target.log_likelihood_fn(position[0], rows)
    torch.testing.assert_close(logs, dist.Bernoulli(logits=x @ position[0]).log_prob(y))
    few = torch.tensor([[3, 5, 5], [59, 0, 1], [7, 8, 9]])
    for k, energy in enumerate(target.evaluate(position, Batch((few,), 60, per_chain=True)).energy):
        prior = dist.Normal(0.0, 2.0).log_prob(position[k]).sum()
        likelihood = dist.Bernoulli(logits=x[few[k]] @ position[k]).log_prob(y[few[k]])
        torch.testing.assert_close(energy, -(prior + 60 / 3 * likelihood.sum()))


def test_sites_outside_the_subsampled_plate_are_not_scaled():
    def model(y, subsample_size):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        pyro.factor("penalty", -(mu**4))
        pyro.sample("calibration", dist.Normal(mu, 2.0), obs=torch.tensor(0.5))
        with pyro.plate("group", 2, dim=-2), pyro.plate("data", 6, dim=-1, subsample_size=subsample_size):
            part = pyro.subsample(y, event_dim=0)
            pyro.sample("y", dist.Normal(mu, 1.0), obs=part)

    y = normals(2, 6)
    target, position = lv.from_pyro(model, y, 2), torch.tensor([[0.3]])
    outside = dist.Normal(0.0, 1.0).log_prob(position) - position**4 + dist.Normal(position, 2.0).log_prob(torch.tensor(0.5))
    rows = torch.tensor([[1, 4]])
    energy = target.evaluate(position, Batch((rows,), 6, per_chain=True)).energy
    inside = dist.Normal(0.3, 1.0).log_prob(y[:, rows[0]]).sum()
    torch.testing.assert_close(energy, -(outside[0] + 3 * inside))
    compare(target, potential_of(model, (y, 6)), torch.tensor([[0.3], [-1.1]]))


def test_conditioned_reparameterised_and_scaled_models_are_those_of_pyro():
    conditioned = poutine.condition(eight_schools, data={"tau": torch.tensor(3.0)})
    tempered = poutine.scale(eight_schools, scale=0.3)
    for model in (conditioned, tempered):
        target = lv.from_pyro(model, EFFECTS, ERRORS)
        compare(target, potential_of(model, (EFFECTS, ERRORS)), at_random(target))
    assert lv.from_pyro(conditioned, EFFECTS, ERRORS).space.names == ("mu", "theta")


def test_a_pyro_module_is_copied_and_runs_in_float64():
    torch.set_default_dtype(torch.float32)

    class Network(PyroModule):
        def __init__(self):
            super().__init__()
            self.first = PyroModule[torch.nn.Linear](2, 3)
            self.first.weight = PyroSample(dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
            self.first.bias = PyroSample(dist.Normal(0.0, 1.0).expand([3]).to_event(1))
            self.second = PyroModule[torch.nn.Linear](3, 1)

        def forward(self, x, y):
            mean = self.second(torch.tanh(self.first(x)))[:, 0]
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    with torch.random.fork_rng():
        network = Network()
    x, y = normals(10, 2).float(), normals(10, shift=0.2).float()
    with pytest.warns(UserWarning, match=r"keeps the pyro.param sites \['second.weight', 'second.bias'\] at their current"):
        target = lv.from_pyro(network, x, y)
    assert target.space.names == ("first.weight", "first.bias")
    assert network.second.weight.dtype == torch.float32
    at = at_random(target, 1)
    values = {name: value[0] for name, value in target.constrain(at).items()}
    hidden = torch.tanh(x.double() @ values["first.weight"].mT + values["first.bias"])
    mean = (hidden @ network.second.weight.double().mT + network.second.bias.double())[:, 0]
    prior = sum(dist.Normal(0.0, 1.0).log_prob(value).sum() for value in values.values())
    exact = prior + dist.Normal(mean, 0.5).log_prob(y.double()).sum()
    torch.testing.assert_close(target.evaluate(at).energy[0], -exact.detach(), rtol=1e-6, atol=1e-6)


def test_param_sites_keep_the_value_they_had():
    pyro.clear_param_store()

    def model(y):
        scale = pyro.param("scale", torch.tensor(2.0), constraint=dist.constraints.positive)
        mu = pyro.sample("mu", dist.Normal(0.0, scale))
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    y, at = torch.tensor(0.3), torch.tensor([[0.7]])
    with pytest.warns(UserWarning, match=r"keeps the pyro.param sites \['scale'\] at their current values"):
        target = lv.from_pyro(model, y)
    before = target.evaluate(at).energy
    torch.testing.assert_close(-before[0], (dist.Normal(0.0, 2.0).log_prob(at) + dist.Normal(at, 1.0).log_prob(y))[0, 0])
    pyro.get_param_store()["scale"] = torch.tensor(5.0)
    assert torch.equal(target.evaluate(at).energy, before)
    pyro.clear_param_store()


def test_each_site_depends_on_the_sites_that_its_distribution_reads():
    def parents(name):
        model, args = MODELS[name]
        return {site: set(found) for site, found in lv.from_pyro(model, *args)._parents.items()}

    assert parents("eight schools") == {"mu": set(), "tau": set(), "theta": {"mu", "tau"}}
    assert parents("nested")["c"] == {"a", "b"}
    assert parents("random walk")["level_3"] == {"step", "level_2"}
    assert parents("bounds")["inside"] == {"low", "width"}


def test_the_prior_of_a_site_is_its_distribution_given_the_sites_before_it():
    target = lv.from_pyro(eight_schools, EFFECTS, ERRORS)
    given = {"mu": torch.tensor(1.5), "tau": torch.tensor(0.2)}
    found = target.prior["theta"](given)
    assert found.mean.tolist() == [1.5] * 8
    torch.testing.assert_close(found.stddev, torch.full((8,), 0.2))


def test_threads_evaluate_one_after_the_other():
    """Pyro's handlers are global; unguarded threads would mix their sites."""
    targets = [lv.from_pyro(logistic, *MODELS["logistic"][1], 5), lv.from_pyro(eight_schools, EFFECTS, ERRORS)]
    batches = [Batch(targets[0].data, 60, per_chain=False), None]
    positions = [at_random(target) for target in targets]

    def energy(k):
        return targets[k % 2].evaluate(positions[k % 2], batches[k % 2]).energy

    expected = [energy(0), energy(1)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(energy, range(40)))
    assert all(torch.equal(each, expected[k % 2]) for k, each in enumerate(found))
    assert torch.get_default_dtype() == torch.float64


def test_threads_evaluate_one_model_at_a_time():
    running, most = [], []

    def model():
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        pyro.sample("x", dist.Normal(0.0, 1.0))
        running.pop()

    target = lv.from_pyro(model)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: target.evaluate(torch.zeros(1, 1, dtype=torch.float64)), range(8)))
    assert set(most) == {1}


def test_an_evaluation_leaves_pyro_and_torch_as_they_were():
    from pyro.poutine.subsample_messenger import SubsampleMessenger

    before = SubsampleMessenger._subsample, torch.get_default_dtype(), torch.get_rng_state()
    pyro.enable_validation(True)
    target = lv.from_pyro(logistic, *MODELS["logistic"][1], 5)
    target.evaluate(at_random(target), Batch(target.data, 60, per_chain=False))
    assert SubsampleMessenger._subsample is before[0]
    assert torch.get_default_dtype() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert pyro.settings.get("validate_poutine")
    assert torch.distributions.Distribution._validate_args
