"""Error messages that name the mistake and its remedy: argument names, data, log-likelihoods, priors, parameters."""

from __future__ import annotations

import dataclasses
import re
import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from torch import distributions as dist
from torch import nn

import langevin as lv
from langevin.storage.summary import Summary

X = torch.linspace(-1, 1, 20, dtype=torch.float64)
Y = X.sin()
SLOPE = {"a": lv.real()}


def rows(p, x, y):
    return dist.Normal(p["a"] * x, 1.0).log_prob(y)


MODEL = lv.Model(rows, SLOPE, prior={"a": lv.priors.gaussian(std=1.0)})


def seeded(make):
    """Build a module with the global generator put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


NETWORK = seeded(lambda: nn.Linear(2, 3))


def check(log_likelihood, data=(X, Y), parameters=SLOPE, prior=None):
    model = lv.Model(log_likelihood, parameters, prior)
    model.check_data(model.as_columns("sample", data))


# ---- names of arguments


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        *((name, "num_draws") for name in ("num_samples", "draws", "samples", "n_draws", "n_samples", "num_draw", "ndraws")),
        *((name, "seed") for name in ("random_seed", "random_state", "rng_seed", "rng", "sed")),
        *((name, "warmup") for name in ("tune", "num_warmup", "burn_in", "burnin", "n_warmup", "warm_up", "num_burn_in")),
        *((name, "chains") for name in ("n_chains", "num_chains", "nchains", "chain")),
        *((name, "thin") for name in ("thinning", "num_thin")),
        *((name, "init") for name in ("initvals", "init_values", "inits", "initial_positions")),
        *((name, "progress") for name in ("progressbar", "progress_bar", "verbose")),
        *((name, "metric") for name in ("dense_mass", "mass_matrix")),
        *((name, "engine") for name in ("cores", "n_jobs", "chain_method")),
        *((name, "sampler") for name in ("kernel", "nuts_sampler")),
    ],
)
def test_a_name_of_other_libraries_leads_to_ours(wrong, right):
    message = rf"^sample\({wrong}=\.\.\.\) needs a known argument \(did you mean {right}=( or \w+=)?\?\), got 3$"
    with pytest.raises(TypeError, match=message):
        lv.sample(MODEL, data=(X, Y), **{wrong: 3})


CALLS = {
    "sample": (lambda **k: lv.sample(MODEL, data=(X, Y), **k), "batchsize", "batch_size"),
    "resume": (lambda **k: lv.resume("run", MODEL, **k), "progres", "progress"),
    "predict": (lambda **k: lv.predict(None, [NETWORK], torch.ones(4, 2), likelihood="categorical", **k), "intervals", "interval"),
    "log_likelihood": (lambda **k: lv.log_likelihood(None, [NETWORK], X, Y, **k), "likelihod", "likelihood"),
    "function_diagnostics": (lambda **k: lv.function_diagnostics(None, [NETWORK], X, **k), "transfrom", "transform"),
    "lint": (lambda **k: lv.lint(NETWORK, nn.CrossEntropyLoss(), None, (X, Y), **k), "loader", "data"),
    "Model": (lambda **k: lv.Model(rows, SLOPE, **k), "priors", "prior"),
    "Model.log_density": (lambda **k: lv.Model.log_density(lambda p: p["a"], SLOPE, **k), "coord", "coords"),
    "Posterior": (lambda **k: lv.Posterior(NETWORK, "categorical", prior=lv.priors.gaussian(std=1.0), **k), "n_data", "num_data"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_misspelt_argument_leads_to_the_closest_one(name):
    call, wrong, right = CALLS[name]
    with pytest.raises(
        TypeError, match=rf"^{re.escape(name)}\({wrong}=\.\.\.\) needs a known argument \(did you mean {right}=( or \w+=)?\?\)"
    ):
        call(**{wrong: 3})


def test_an_argument_like_no_other_is_rejected_with_the_list_of_them():
    with pytest.raises(TypeError, match=r"^sample\(zzz=\.\.\.\) needs a known argument, one of .*num_draws.*seed.*, got 3$"):
        lv.sample(MODEL, data=(X, Y), zzz=3)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        *((name, "no accept step: .*step_size") for name in ("target_accept", "target_accept_prob", "adapt_delta")),
        *((name, "no trajectories") for name in ("max_treedepth", "max_tree_depth", "num_integration_steps")),
        ("return_inferencedata", r"samples\.to_arviz\(\)"),
    ],
)
def test_an_argument_of_other_libraries_without_a_counterpart_is_explained(wrong, hint):
    with pytest.raises(TypeError, match=rf"^sample\({wrong}=\.\.\.\) needs a known argument \(.*{hint}.*\), got 3$"):
        lv.sample(MODEL, data=(X, Y), **{wrong: 3})


def test_a_step_size_leads_to_the_sampler():
    with pytest.raises(TypeError, match=r"^sample\(step_size=\.\.\.\) needs a known argument \(.*lv\.msgld\(step_size="):
        lv.sample(MODEL, data=(X, Y), step_size=0.1)


# ---- data


def test_a_boolean_column_in_arithmetic_is_named_with_the_remedy():
    functions = (
        lambda p, x, outcome: dist.Bernoulli(logits=p["a"] * x).log_prob(outcome),
        lambda p, x, outcome: dist.Normal(p["a"] * x, 1.0).log_prob(outcome),
        lambda p, x, outcome: -nn.functional.binary_cross_entropy_with_logits(p["a"] * x, outcome, reduction="none"),
    )
    for function in functions:
        with pytest.raises(ValueError, match=r"'outcome' is boolean.*write outcome\.double\(\)"):
            check(function, (X, Y > 0))
    check(lambda p, x, outcome: dist.Bernoulli(logits=p["a"] * x).log_prob(outcome.double()), (X, Y > 0))
    check(lambda p, x, outcome: nn.functional.logsigmoid(torch.where(outcome, p["a"] * x, -p["a"] * x)), (X, Y > 0))  # a mask


def test_a_boolean_column_of_a_likelihood_is_named_with_the_remedy():
    target = lv.targets.likelihood(lambda theta, x, y: -((theta * x - y) ** 2), prior=lv.priors.gaussian(std=1.0), dim=1)
    with pytest.raises(ValueError, match=r"likelihood\(log_likelihood_fn=.*column 1 is boolean.*\.double\(\)"):
        target.evaluate(torch.zeros(2, 1).double(), lv.targets.Batch((X, Y > 0), num_data=20, per_chain=False))


def test_boolean_outcomes_of_a_posterior_are_taken_or_named():
    x, outcome = X.float()[:, None], Y > 0
    net = seeded(lambda: nn.Sequential(nn.Linear(1, 1), nn.Flatten(0)))
    make = lambda likelihood: lv.Posterior(net, likelihood, prior=lv.priors.gaussian(std=1.0), num_data=20)  # noqa: E731
    for likelihood in ("bernoulli", "poisson"):
        make(likelihood).check_data((x, outcome))
    with pytest.raises(TypeError, match=r"gaussian\(y=\.\.\.\) needs .*float32 \(y\.to\(torch\.float32\)\), got torch\.bool"):
        make(lv.likelihoods.gaussian(std=1.0)).check_data((x, outcome))


TEXTS = ["red", "blue"] * 10


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (TEXTS, "'red'"),
        (np.array(TEXTS), "'red'"),
        (pd.Series(TEXTS), "'red'"),
        (pd.Series(TEXTS, dtype="category"), "'red'"),
        (pd.Series([1.0, "x"] * 10), "'x'"),
    ],
    ids=["list", "array", "series", "category", "mixed"],
)
def test_a_column_of_texts_is_named_with_the_remedy_and_one_text(column, shown):
    with pytest.raises(TypeError, match=r"needs numbers in 'colour'.*pandas\.factorize") as caught:
        check(lambda p, colour, y: rows(p, colour, y), {"colour": column, "y": Y})
    assert str(caught.value).endswith(f"got {shown}")
    assert len(str(caught.value).splitlines()) == 1


def test_a_column_of_dates_is_named_with_the_remedy():
    with pytest.raises(TypeError, match=r"numbers in 'day'.*dates.*got .*datetime64"):
        check(lambda p, day, y: rows(p, day, y), {"day": pd.date_range("2020", "2021", 20), "y": Y})


# ---- log-likelihoods


@pytest.mark.parametrize("reduce", [torch.mean, torch.sum])
def test_a_log_likelihood_that_is_reduced_to_one_number_is_rejected_with_the_reason(reduce):
    with pytest.raises(
        ValueError, match=r"one number per row.*leave out \.mean\(\) and \.sum\(\).*got 'a single number'"
    ) as caught:
        check(lambda p, x, y: reduce(rows(p, x, y)))
    assert "log_density" not in str(caught.value)


def test_a_mean_in_other_targets_is_rejected_with_the_reason():
    target = lv.targets.likelihood(lambda theta, x, y: -((theta * x - y) ** 2).mean(), prior=lv.priors.gaussian(std=1.0), dim=1)
    with pytest.raises(ValueError, match=r"one number per datum, \(20,\).*leave out \.mean\(\) and \.sum\(\)"):
        target.evaluate(torch.zeros(2, 1).double(), lv.targets.Batch((X, Y), num_data=20, per_chain=False))
    net = seeded(lambda: nn.Linear(1, 1).double())
    mean = lambda out, y: -((out[:, 0] - y) ** 2).mean()  # noqa: E731
    own = lv.Posterior(net, mean, prior=lv.priors.gaussian(std=1.0), num_data=20)
    with pytest.raises(ValueError, match=r"one log-likelihood per row, shape \(20,\).*leave out \.mean\(\) and \.sum\(\)"):
        own.check_data((X[:, None], Y))


def test_rows_that_broadcast_to_a_square_are_named():
    with pytest.raises(ValueError, match=r"one number per row.*\(20,\) and \(20, 1\) broadcast.*shape \(20, 20\)"):
        check(rows, (X, Y[:, None]))


# ---- priors and parameters


@pytest.mark.parametrize("prior", [dist.Normal(0.0, 1.0), dist.Cauchy(0.0, 1.0), lv.priors.gaussian(std=1.0), dist.HalfNormal(1.0)])
def test_a_prior_of_single_elements_on_a_simplex_is_rejected_by_name(prior):
    parameters = {"share": lv.simplex(3)}
    with pytest.raises(ValueError, match=r"Model\(prior=\.\.\.\) needs .*'share'.*sum to 1.*Dirichlet"):
        lv.Model(lambda p, x, y: p["share"][0] * x * y, parameters, {"share": prior})
    lv.Model(lambda p, x, y: p["share"][0] * x * y, parameters, {"share": dist.Dirichlet(torch.ones(3))})
    lv.Model(lambda p, x, y: p["share"][0] * x * y, parameters, {"share": lambda p: dist.Normal(0.3, 0.1).log_prob(p["share"])})
    lv.Model(lambda p, x, y: p["share"][0] * x * y, parameters, {"share": lv.priors.flat()})


def scaled(p, x, y):
    return dist.Normal(p["a"] * x, p["sigma"]).log_prob(y)


def by_hand(p, x, y):
    return -0.5 * ((y - p["a"] * x) / p["sigma"]) ** 2 - p["sigma"].log()


@pytest.mark.parametrize("function", [scaled, by_hand])
@pytest.mark.parametrize("prior", [None, {"sigma": dist.Normal(0.0, 1.0)}])
def test_a_scale_that_may_be_negative_is_rejected_by_name(function, prior):
    with pytest.raises(ValueError, match=r"Model\(parameters=\.\.\.\) needs positive\(\) for 'sigma'.*negative"):
        check(function, parameters={"a": lv.real(), "sigma": lv.real()}, prior=prior)
    check(function, parameters={"a": lv.real(), "sigma": lv.positive()})


def test_a_scale_in_a_hierarchical_prior_that_may_be_negative_is_rejected_by_name():
    parameters = {"a": lv.real(), "tau": lv.real()}
    with pytest.raises(ValueError, match=r"needs positive\(\) for 'tau'"):
        check(rows, parameters=parameters, prior={"a": lambda p: dist.Normal(0.0, p["tau"])})


def test_each_of_several_scales_is_found_and_shapes_are_kept():
    parameters = {"a": lv.real(), "s": lv.real(20), "t": lv.real()}
    function = lambda p, x, y: dist.Normal(p["a"] * x, p["s"] + 0.0 * p["t"]).log_prob(y)  # noqa: E731
    with pytest.raises(ValueError, match=r"needs positive\(20\) for 's'"):
        check(function, parameters=parameters)


@pytest.mark.parametrize(
    "function",
    [
        lambda p, x, y: dist.Normal(p["a"] * x, p["sigma"].abs() + 0.1).log_prob(y),
        lambda p, x, y: dist.Normal(p["a"] * x, p["sigma"].exp()).log_prob(y),
        lambda p, x, y: dist.Normal(p["a"] * x, (1 + p["sigma"] ** 2).sqrt()).log_prob(y),
        lambda p, x, y: dist.Normal(p["a"] * x, nn.functional.softplus(p["sigma"] + x)).log_prob(y),
        lambda p, x, y: dist.Poisson(5 + 0.01 * p["a"] + 0.01 * p["sigma"] * x).log_prob(y.abs().round()),
    ],
)
def test_a_real_parameter_that_is_no_scale_is_left_alone(function):
    check(function, parameters={"a": lv.real(), "sigma": lv.real()})


def test_a_parameter_that_is_never_read_and_one_without_a_gradient_are_told_apart():
    two = {"a": lv.real(), "c": lv.real()}
    with pytest.raises(ValueError, match=r"unused: \['c'\]"):
        check(rows, parameters=two)
    with pytest.raises(ValueError, match=r"unused: \['c'\]"):
        check(lambda p, x, y: rows(p, x, y) + 0.0 * p["c"].detach(), parameters=two)
    for change in (lambda x, c: (x > c).double(), lambda x, c: c.detach()):
        with pytest.raises(ValueError, match=r"a gradient for .*'c'.*comparison.*detach"):
            check(lambda p, x, y: rows(p, x, y) - change(x, p["c"]), parameters=two)  # noqa: B023


# ---- the table


@cache
def table():
    """Return the summary of draws with large, small and negative values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.TrustWarning)
        return made_table()


PARAMETERS = {"intercept": lv.real(), "slope": lv.real(2), "sigma": lv.positive()}


def made_table():
    """Return the summary of a short run with large, small and negative values."""
    target = lv.Model.log_density(
        lambda p: (
            dist.Normal(12345.678, 100.0).log_prob(p["intercept"])
            + dist.Normal(-0.00123, 0.0004).log_prob(p["slope"]).sum()
            + dist.HalfNormal(1.0).log_prob(p["sigma"])
        ),
        PARAMETERS,
    )
    draws = lv.random.normal(0, 0, range(4), 100 * 4, dtype=torch.float64).reshape(4, 100, 4)
    draws = draws * torch.tensor([100.0, 0.0004, 0.0004, 0.5]) + torch.tensor([12345.678, -0.00123, -0.00123, 0.0])
    samples = lv.sample(
        lv.targets.gaussian(torch.eye(4).double()),
        sampler=lv.sgld(1e-9),
        init=torch.zeros(4, 4).double(),
        num_steps=100,
        compile=False,
        progress=False,
    )  # fmt: skip
    return dataclasses.replace(samples, arrays={**samples.arrays, "draws": draws}, target=target).summary()


def test_the_summary_shows_all_columns_within_a_hundred_characters():
    found = table()
    shown = [line for line in str(found).splitlines() if not line.startswith("!")]
    assert shown[0].split() == list(found.columns)
    assert max(map(len, shown)) <= 100
    assert len({len(line) for line in shown}) == 1


def test_the_summary_shows_digits_that_its_errors_leave():
    found = table()
    row = next(line for line in str(found).splitlines() if line.startswith("intercept")).split()
    shown = dict(zip(found.columns, row[1:], strict=True))
    assert abs(float(shown["mean"]) - found["mean"]["intercept"]) < found["mcse_mean"]["intercept"] / 5
    assert len(shown["mean"].replace(".", "")) <= 7
    assert shown["ess_bulk"].isdigit()
    assert re.fullmatch(r"\d\.\d{2,3}", shown["r_hat"])
    row = next(line for line in str(found).splitlines() if line.startswith("slope[0]")).split()
    shown = dict(zip(found.columns, row[1:], strict=True))
    assert float(shown["mean"]) == pytest.approx(found["mean"]["slope[0]"], rel=0.05)
    assert float(shown["sd"]) == pytest.approx(found["sd"]["slope[0]"], rel=0.05)


def test_a_long_summary_is_cut_in_its_rows_only():
    index = tuple(f"theta[{k}]" for k in range(1000))
    found = Summary(index, {"mean": range(1000), "r_hat": [1.0] * 1000}, ("stopped chains",))
    lines = str(found).splitlines()
    assert len(lines) < 70
    assert lines[0] == "! stopped chains"
    assert [line.split()[0] for line in (lines[2], lines[-1])] == ["theta[0]", "theta[999]"]
    assert found.to_pandas().loc["theta[7]", "mean"] == 7
    assert found.to_pandas().attrs["warnings"] == ["stopped chains"]


@pytest.mark.parametrize("chains", [1, 4])
def test_the_summary_has_the_numbers_of_arviz(chains):
    arviz = pytest.importorskip("arviz")
    noise = lv.random.normal(3, range(chains), range(201), 3, dtype=torch.float64).transpose(0, 1)
    draws = noise.cumsum(1) / 10 + noise
    draws[..., 2] = draws[..., 2].exp()
    found = Summary.of(["x[0]", "x[1]", "x[2]"], draws)
    is_old, groups = "InferenceData" in vars(arviz), {"posterior": {"x": draws.numpy()}}
    settings = {"round_to": "none"} | ({} if is_old else {"ci_prob": 0.94, "ci_kind": "hdi"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = arviz.summary(arviz.from_dict(**groups) if is_old else arviz.from_dict(groups), **settings)
    rename = {"hdi94_lb": "hdi_3%", "hdi94_ub": "hdi_97%"}
    names = {rename.get(name, name): name for name in expected.columns}
    assert set(found) <= set(names)
    for name in found:
        theirs = expected[names[name]].astype(float)
        if name == "ess_tail" and not is_old:
            continue  # that of ArviZ 1 depends on ci_prob
        if name == "r_hat" and chains == 1:
            assert all(np.isnan(list(found[name].values())))
        else:
            np.testing.assert_allclose(list(found[name].values()), theirs, rtol=1e-6, err_msg=name)
