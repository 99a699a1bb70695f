"""Predictions: closed forms, sums written out by hand, and the same answer for draws of every kind."""

from __future__ import annotations

import math

import pytest
import torch
from predict_models import Regression, bank_of, randn, seeded, small, stacked
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import langevin as lv
from langevin.nn.predictive import draws as draws_module

EXACT = Regression()
NEW = 2 * randn(6, 3, seed=9, dtype=torch.float64)
CLASSES = [seeded(lambda: nn.Linear(3, 4).double(), seed) for seed in range(7)]
DEEP = randn(8, 3, seed=4, dtype=torch.float64)


def test_a_linear_model_has_the_closed_form_mean_and_variances():
    """4000 exact draws: 5 standard errors of a mean, and of a variance of Gaussian draws."""
    num = 4000
    found = lv.predict(EXACT.posterior, EXACT.draws(num), NEW, y=torch.zeros(6, dtype=torch.float64), interval=0.9)
    mean, spread = EXACT.law(NEW)
    assert ((found.mean - mean).abs() < 5 * (spread / num).sqrt()).all()
    assert ((found.epistemic / spread - 1).abs() < 5 * math.sqrt(2 / num)).all()
    torch.testing.assert_close(found.aleatoric, torch.full((6,), EXACT.std**2, dtype=torch.float64))
    torch.testing.assert_close(found.variance, found.aleatoric + found.epistemic)
    torch.testing.assert_close(found.std**2, found.total)
    assert found.warnings == ()
    # y itself is Gaussian; the error of a quantile is that of the draws' distribution functions there, over the density
    law = torch.distributions.Normal(mean, (spread + EXACT.std**2).sqrt())
    for probability, end in ((0.05, found.lower), (0.95, found.upper)):
        exact = law.icdf(torch.tensor(probability, dtype=torch.float64))
        each = torch.distributions.Normal(stacked_means(EXACT.draws(num)), EXACT.std).cdf(exact)
        error = each.std(0) / math.sqrt(num) / law.log_prob(exact).exp()
        assert ((end - exact).abs() < 5 * error).all()
    density = found.log_density.exp()
    each = torch.distributions.Normal(stacked_means(EXACT.draws(num)), EXACT.std).log_prob(torch.zeros(6)).exp()
    assert ((density - law.log_prob(torch.zeros(6, dtype=torch.float64)).exp()).abs() < 5 * each.std(0) / math.sqrt(num)).all()


def stacked_means(draws):
    return draws @ torch.cat([NEW, torch.ones(6, 1, dtype=torch.float64)], 1).T


def entropy(p):
    return -sum(q * math.log(q) for q in p)


def test_the_parts_of_an_entropy_are_those_written_out_by_hand():
    found = lv.predict(None, CLASSES, DEEP, likelihood="categorical")
    each = stacked(CLASSES, DEEP).softmax(-1)
    average = each.mean(0)
    torch.testing.assert_close(found.probabilities, average)
    assert found.labels.tolist() == average.argmax(-1).tolist()
    for row in range(len(DEEP)):
        total, expected = entropy(average[row].tolist()), sum(entropy(p) for p in each[:, row].tolist()) / len(CLASSES)
        assert found.total[row].item() == pytest.approx(total)
        assert found.aleatoric[row].item() == pytest.approx(expected)
        assert found.epistemic[row].item() == pytest.approx(total - expected)
        mutual = sum((p * (p / average[row]).log()).sum().item() for p in each[:, row]) / len(CLASSES)
        assert found.epistemic[row].item() == pytest.approx(mutual)  # as a mean divergence: another formula
    assert (found.epistemic > 0).all()


@pytest.mark.parametrize("questions", [None, 3])
def test_zeros_and_ones_have_the_parts_of_their_own_entropy(questions):
    models = [seeded(lambda: nn.Linear(3, questions or 1).double(), seed) for seed in range(5)]
    models = models if questions else [nn.Sequential(model, nn.Flatten(0)) for model in models]
    found = lv.predict(None, models, DEEP, likelihood="bernoulli")
    each = stacked(models, DEEP).sigmoid()
    pairs = torch.stack([each, 1 - each], -1)
    entropies = lambda p: -(p * p.log()).sum(-1).reshape(*p.shape[:-2], -1) if questions is None else -(p * p.log()).sum((-1, -2))  # noqa: E731
    torch.testing.assert_close(found.probabilities, each.mean(0))
    torch.testing.assert_close(found.total, entropies(pairs.mean(0)))
    torch.testing.assert_close(found.aleatoric, entropies(pairs).mean(0))
    assert torch.equal(found.labels, (each.mean(0) > 0.5).long())


def test_a_network_that_predicts_its_noise_has_both_parts():
    models = [seeded(lambda: nn.Linear(3, 2).double(), seed) for seed in range(9)]
    found = lv.predict(None, models, DEEP, likelihood=lv.likelihoods.gaussian("predicted"))
    mean, log_variance = stacked(models, DEEP).unbind(-1)
    torch.testing.assert_close(found.mean, mean.mean(0))
    torch.testing.assert_close(found.aleatoric, log_variance.exp().mean(0))
    torch.testing.assert_close(found.epistemic, mean.var(0, correction=0))
    # the law of total variance, with draws of y: 5 standard errors
    noise = randn(40_000, 9, 8, seed=1, dtype=torch.float64)
    y = (mean + (0.5 * log_variance).exp() * noise).flatten(0, 1)
    error = ((y - y.mean(0)) ** 2).std(0) / len(y) ** 0.5
    assert ((y.var(0) - found.variance).abs() < 5 * error).all()


def test_an_infinite_variance_stays_infinite():
    models = [seeded(lambda: nn.Linear(3, 1).double(), seed) for seed in range(3)]
    found = lv.predict(None, models, DEEP, likelihood=lv.likelihoods.student_t(df=2.0, scale=1.0))
    assert torch.isinf(found.variance).all()
    assert torch.isfinite(found.epistemic).all()


SHORT_DATA = (NEW[:0].new_zeros(40, 3), torch.zeros(40).double())
SHORT = lv.sample(
    EXACT.posterior, sampler=lv.sgld(1e-3), init=EXACT.draws(4), data=SHORT_DATA, num_steps=5, compile=False, progress=False
)


def modules_of(draws):
    return [EXACT.posterior.module(position) for position in draws.reshape(-1, 4)]


SOURCES = {
    "samples": lambda path: (EXACT.posterior, SHORT, {}),
    "positions (chain, draw, dim)": lambda path: (EXACT.posterior, SHORT.draws, {}),
    "positions (draw, dim)": lambda path: (EXACT.posterior, SHORT.draws.reshape(-1, 4), {}),
    "a module and samples, whose target is known": lambda path: (EXACT.model, SHORT.with_target(EXACT.posterior), {}),
    "a module and positions": lambda path: (EXACT.model, SHORT.draws, {"likelihood": EXACT.posterior.likelihood}),
    "a list of samples": lambda path: (EXACT.posterior, [SHORT], {}),
    "modules": lambda path: (None, modules_of(SHORT.draws), {"likelihood": EXACT.posterior.likelihood}),
    "modules, read once": lambda path: (None, iter(modules_of(SHORT.draws)), {"likelihood": EXACT.posterior.likelihood}),
    "modules and their posterior": lambda path: (EXACT.posterior, modules_of(SHORT.draws), {}),
    "a bank": lambda path: (EXACT.model, bank_of(path, modules_of(SHORT.draws)), {"likelihood": EXACT.posterior.likelihood}),
    "banks": lambda path: (
        EXACT.model,
        [bank_of(path / "a", modules_of(SHORT.draws[:1])), bank_of(path / "b", modules_of(SHORT.draws[1:]))],
        {"likelihood": EXACT.posterior.likelihood},
    ),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_draws_of_every_kind_give_the_same(tmp_path, source):
    model, draws, options = source(tmp_path)
    y = torch.arange(6).double()
    found = lv.predict(model, draws, NEW, y=y, interval=[0.5, 0.9], per_draw=True, batch_size=4, **options)
    outputs = stacked_means(SHORT.draws.reshape(-1, 4))
    torch.testing.assert_close(found.draws_mean, outputs)
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.epistemic, outputs.var(0, correction=0))
    densities = torch.distributions.Normal(outputs, EXACT.std).log_prob(y)
    torch.testing.assert_close(found.log_density, densities.exp().mean(0).log())
    assert found.lower.shape == found.upper.shape == (2, 6)
    assert found.num_draws == 20
    if source is not SOURCES["modules, read once"]:
        logs = lv.log_likelihood(*source(tmp_path / "again")[:2], NEW, y, batch_size=4, **options)
        torch.testing.assert_close(logs.reshape(20, 6), densities)


def test_samples_of_stopped_chains_do_not_count():
    stopped = SHORT.status[1]._replace(reason="it blew up")
    broken = torch.where(torch.tensor([False, True, False, False])[:, None, None], torch.nan, SHORT.draws)
    from dataclasses import replace

    samples = replace(SHORT, arrays={"draws": broken}, status=(SHORT.status[0], stopped, *SHORT.status[2:]))
    found = lv.predict(EXACT.posterior, samples, NEW)
    torch.testing.assert_close(found.mean, stacked_means(SHORT.draws[[0, 2, 3]].reshape(-1, 4)).mean(0))


@pytest.mark.parametrize("at_once", [1, 3, 16, 100])
def test_a_few_draws_at_a_time_give_what_all_at_once_do(monkeypatch, at_once):
    monkeypatch.setattr(draws_module, "_DRAWS_AT_ONCE", at_once)
    draws, y = EXACT.draws(37), torch.arange(6).double()
    found = lv.predict(EXACT.posterior, draws, NEW, y=y, batch_size=2)
    outputs = stacked_means(draws)
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.epistemic, outputs.var(0, correction=0))
    torch.testing.assert_close(found.log_density, torch.distributions.Normal(outputs, EXACT.std).log_prob(y).exp().mean(0).log())


def test_the_log_density_of_classes_is_that_of_the_average_and_survives_where_it_underflows():
    y = torch.arange(8) % 4
    found = lv.predict(None, CLASSES, DEEP, y=y, likelihood="categorical")
    torch.testing.assert_close(found.log_density, found.probabilities.gather(1, y[:, None])[:, 0].log())
    sure = seeded(lambda: nn.Linear(1, 2))
    sure.load_state_dict({"weight": torch.tensor([[0.0], [300.0]]), "bias": torch.zeros(2)})
    found = lv.predict(None, [sure] * 3, torch.ones(1, 1), y=torch.zeros(1, dtype=torch.int64), likelihood="categorical")
    assert found.probabilities[0, 0] == 0
    assert found.log_density.item() == pytest.approx(-300.0)


def test_a_learned_scale_is_one_more_element_of_theta():
    posterior = lv.Posterior(seeded(lambda: nn.Linear(3, 1)), "gaussian", prior=lv.priors.gaussian(std=1.0), num_data=10)
    draws, x = randn(6, 5), randn(5, 3)
    draws[:, posterior.space.slices["log_scale"]] = 0.3
    by_posterior = lv.predict(posterior, draws, x)
    by_module = lv.predict(seeded(lambda: nn.Linear(3, 1)), draws, x, likelihood="gaussian")
    torch.testing.assert_close(by_posterior.mean, by_module.mean)
    torch.testing.assert_close(by_posterior.aleatoric, torch.full((5,), math.exp(0.3)))
    torch.testing.assert_close(by_module.aleatoric, torch.full((5,), math.exp(0.3)))


def test_modules_are_in_evaluation_mode_and_left_as_they_were():
    models = [small(seed).train() for seed in range(3)]
    models[1][2].eval()
    before = [(part.training, {k: v.clone() for k, v in part.state_dict().items()}) for m in models for part in m.modules()]
    x = randn(5, 3)
    found = lv.predict(None, models, x, likelihood="categorical")
    for (training, state), part in zip(before, (part for m in models for part in m.modules()), strict=True):
        assert part.training is training
        assert all(torch.equal(value, part.state_dict()[name]) for name, value in state.items())
    torch.testing.assert_close(found.probabilities, stacked(models, x).softmax(-1).mean(0))
    assert not found.probabilities.requires_grad


def test_halves_are_averaged_in_float32():
    models = [seeded(lambda: nn.Linear(3, 1).bfloat16(), seed) for seed in range(50)]
    x = randn(5, 3).bfloat16()
    found = lv.predict(None, models, x, transform=lambda z: z)
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(found.mean, stacked(models, x).double().mean(0).float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.epistemic, stacked(models, x).double().var(0, correction=0).float(), rtol=1e-5, atol=1e-6)


def test_a_damaged_draw_is_left_out_when_asked(tmp_path):
    bank, x = bank_of(tmp_path, CLASSES), DEEP
    data = bytearray(bank.draws[0].path.read_bytes())
    data[-1] ^= 1
    bank.draws[0].path.write_bytes(data)
    with pytest.raises(lv.CorruptDrawError):
        lv.predict(CLASSES[0], bank, x, likelihood="categorical")
    with pytest.warns(UserWarning, match="skipped"):
        found = lv.predict(CLASSES[0], bank, x, likelihood="categorical", on_error="skip")
    torch.testing.assert_close(found.probabilities, stacked(CLASSES[1:], x).softmax(-1).mean(0))
    assert found.num_draws == 6


def test_it_says_in_words_what_it_is():
    text = repr(lv.predict(None, CLASSES, DEEP, likelihood="categorical"))
    assert text.startswith("Prediction of 8 rows x (4,) by 7 draws, Categorical()\n  mean entropy: total ")
    text = repr(lv.predict(EXACT.posterior, EXACT.draws(9), NEW, interval=[0.5, 0.95]))
    assert text.startswith("Prediction of 6 rows by 9 draws, GaussianLikelihood(std=0.5, within=None)\n  mean variance: total ")
    assert "intervals of 50 %, 95 %" in text


POISSON = lv.Posterior(EXACT.model, "poisson", prior=lv.priors.gaussian(std=1.0), num_data=40)
BAD = {
    "no likelihood": (lambda: lv.predict(None, CLASSES, DEEP), TypeError, r"predict\(likelihood=.*has no likelihood, got None"),
    "an unknown likelihood": (lambda: lv.predict(None, CLASSES, DEEP, likelihood="x"), ValueError, r"likelihood=.*'x'"),
    "no draws": (lambda: lv.predict(None, [], DEEP, likelihood="poisson"), ValueError, r"predict\(draws=.*at least one readable"),
    "an empty bank": (
        lambda: lv.predict(CLASSES[0], lv.SampleBank("no-such-bank"), DEEP, likelihood="poisson"), ValueError, "readable draw"),
    "a bank without a module": (
        lambda: lv.predict(None, [lv.SampleBank("no-such-bank")], DEEP, likelihood="poisson"), TypeError, r"predict\(model=.*bank"),
    "positions without a model": (
        lambda: lv.predict(None, torch.zeros(2, 3), DEEP, likelihood="poisson"), TypeError, r"model=.*positions, got None"),
    "a module as draws": (lambda: lv.predict(None, CLASSES[0], DEEP, likelihood="poisson"), TypeError, r"predict\(draws=.*Linear"),
    "states as draws": (lambda: lv.predict(None, [{}], DEEP, likelihood="poisson"), TypeError, r"predict\(draws=.*dict"),
    "a model that is none": (lambda: lv.predict(3, CLASSES, DEEP, likelihood="poisson"), TypeError, r"predict\(model=.*got 3"),
    "draws of a function": (
        lambda: lv.predict(EXACT.posterior, SAMPLES_OF_A_FUNCTION, DEEP), ValueError, r"predict\(draws=.*positions.*function"),
    "an interval of classes": (
        lambda: lv.predict(None, CLASSES, DEEP, likelihood="categorical", interval=0.9), ValueError, r"interval=.*classes"),
    "an interval of one": (lambda: lv.predict(POISSON, EXACT.draws(2), NEW, interval=1.0), ValueError, r"0 < interval < 1, got 1"),
    "an interval that is a text": (lambda: lv.predict(POISSON, EXACT.draws(2), NEW, interval="90"), TypeError, r"interval=.*'90'"),
    "no levels": (lambda: lv.predict(POISSON, EXACT.draws(2), NEW, interval=[]), ValueError, r"interval=.*at least one"),
    "an interval of an own law": (
        lambda: lv.predict(None, CLASSES, DEEP, likelihood=lambda out, y: out.sum(-1), interval=0.9), ValueError, "interval=.*cdf"),
    "per_draw that is a number": (lambda: lv.predict(POISSON, EXACT.draws(2), NEW, per_draw=1), TypeError, r"per_draw=.*got 1"),
    "targets that are no counts": (
        lambda: lv.predict(POISSON, EXACT.draws(2), NEW, y=torch.full((6,), 0.5).double()), ValueError, r"poisson\(y=.*0\.5"),
    "targets of too many rows": (
        lambda: lv.predict(POISSON, EXACT.draws(2), NEW, y=torch.zeros(7).double()), ValueError, r"y=.*each of the 6 rows.*7"),
    "probabilities of numbers": (lambda: lv.predict(POISSON, EXACT.draws(2), NEW).probabilities, AttributeError, "needs.*classes"),
    "the std of classes": (
        lambda: lv.predict(None, CLASSES, DEEP, likelihood="categorical").std, AttributeError, "variance needs.*numbers"),
    "outputs that were not kept": (lambda: lv.predict(POISSON, EXACT.draws(2), NEW).draws_mean, AttributeError, "per_draw=True"),
    "rows that are merged": (
        lambda: lv.predict(None, [nn.Flatten(0)], DEEP, likelihood="poisson"), ValueError, r"predict\(model=.*8 rows.*\(24,\)"),
    "outputs that are no tensor": (
        lambda: lv.predict(None, [seeded(lambda: nn.LSTM(3, 2))], DEEP.float(), likelihood="poisson"), TypeError, r"model=.*tuple"),
}  # fmt: skip
SAMPLES_OF_A_FUNCTION = lv.sample(
    lv.targets.gaussian(torch.eye(4)),
    sampler=lv.sgld(0.1),
    init=torch.zeros(2, 4),
    num_steps=3,
    keep=torch.exp,
    compile=False,
    progress=False,
)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_with_its_value(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


class Counting(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations(num_draws):
    models = [seeded(lambda: nn.Linear(3, 4), seed) for seed in range(num_draws)]
    with Counting() as counting:
        lv.predict(None, models, randn(80, 3), likelihood="categorical", batch_size=10)
    return counting.count


def test_sums_are_taken_once_per_draw_where_batches_are_small():
    per_draw = (operations(30) - operations(20)) / 10
    forward = 8 * 5  # batches; slices, detach, transpose and addmm
    assert per_draw <= forward + 40


def test_gathered_batches_do_not_change_the_result():
    models = [seeded(lambda: nn.Linear(3, 40), seed) for seed in range(4)]
    x, y = randn(5000, 3), torch.arange(5000) % 40  # 200,000 outputs of a draw are gathered in several pieces
    found, whole = (
        lv.predict(None, models, x, y=y, likelihood="categorical", batch_size=size, per_draw=True) for size in (300, None)
    )
    expected = stacked(models, x)
    torch.testing.assert_close(found.outputs, expected)
    for name in ("probabilities", "aleatoric", "epistemic", "log_density"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name))
    torch.testing.assert_close(found.probabilities, expected.softmax(-1).mean(0))
