"""The step size finder against closed forms and the exact laws of tests/law/exact.py."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from exact import hamiltonian_covariance, langevin_covariance, momentum_covariance
from sampler_table import TABLE, build

import langevin as lv
from langevin.adaptation import find_step_size, stationary_error
from langevin.adaptation.probe import FIRST_STEP
from langevin.adaptation.work import find_jumps
from langevin.execution import run_blocks
from langevin.random import Purpose, normal, streams
from langevin.targets import Evaluation
from langevin.targets.gradients import full, minibatch, noisy

COVARIANCE = [[1.0, 0.9], [0.9, 1.0]]  # curvatures 10 and 1 / 1.9


pytestmark = pytest.mark.usefixtures("one_thread")


def find(kernel, target, *, start=None, chains=range(2), share=0.05, seed=0, dtype=torch.float64):
    dim = len(target.covariance) if start is None else start.shape[-1]
    position = torch.ones(len(chains), dim, dtype=dtype) if start is None else start
    gradient_fn = full(target)
    if target.gradient_noise:
        gradient_fn = noisy(gradient_fn, target.gradient_noise, seed=seed, chains=chains, like=position)
    return find_step_size(kernel, gradient_fn, position, chains=chains, seed=seed, share=share)


def logistic(num=1000, dim=3):
    x = normal(0, streams(Purpose.DATA, range(1)), 0, num * dim, dtype=torch.float64).reshape(num, dim)
    y = (normal(0, streams(Purpose.DATA, range(1)), 1, num, dtype=torch.float64)[0] < x[:, 0]).double()
    target = lv.targets.likelihood(
        lambda theta, x, y: y * (x @ theta) - torch.nn.functional.softplus(x @ theta), prior=lv.priors.gaussian(std=1.0)
    )
    return target, (x, y)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_sgld_has_the_closed_form(share, temperature):
    found = find(lv.sgld(1.0, temperature=temperature), lv.targets.gaussian(COVARIANCE), share=share)
    assert found.curvature == pytest.approx(10.0, rel=1e-4)
    assert found.noise == 0
    assert found.step_size == pytest.approx(2 * share / ((1 + share) * 10), rel=1e-3)


def test_sgld_with_gradient_noise_has_the_closed_form():
    found = find(lv.sgld(1.0), lv.targets.gaussian(COVARIANCE, gradient_noise=3.0), chains=range(8))
    assert found.noise == pytest.approx(9.0, rel=5 * (2 / (128 * 8)) ** 0.5)  # 5 standard errors of 128 gaps in 8 chains
    assert found.step_size == pytest.approx(2 * 0.05 / (1.05 * found.curvature + found.noise), rel=1e-3)


@pytest.mark.parametrize("s", [0.0, 2.0])
@pytest.mark.parametrize(
    ("kernel", "covariance"),
    [
        (lv.sgld(1.0), lambda p, eps, s: langevin_covariance(p, eps=eps, s=s)),
        (lv.msgld(1.0), lambda p, eps, s: 2 * momentum_covariance(p, eps=eps, a=1.0, beta=0.9, s=s)),
        (lv.msgld(1.0, bias_factor=10.0), lambda p, eps, s: 11 * momentum_covariance(p, eps=eps, a=10.0, beta=0.9, s=s)),
        (lv.sghmc(1.0), lambda p, eps, s: hamiltonian_covariance(p, eps=eps, beta=0.9, s=s)),
        (lv.sghmc(1.0, beta=0.0), lambda p, eps, s: hamiltonian_covariance(p, eps=eps, beta=0.0, s=s)),
    ],
    ids=["sgld", "msgld", "msgld-10", "sghmc", "sghmc-0"],
)
def test_the_exact_law_at_the_found_step_is_off_by_share(kernel, covariance, s):
    target = lv.targets.gaussian(COVARIANCE, gradient_noise=s)
    found = find(kernel, target, chains=range(8))
    precision = np.linalg.inv(np.array(COVARIANCE))
    stiff = np.array([1.0, -1.0]) / math.sqrt(2)
    error = stiff @ covariance(precision, eps=found.step_size, s=math.sqrt(found.noise)) @ stiff / 0.1 - 1
    assert abs(error) == pytest.approx(0.05, rel=0.02)
    assert found.error == pytest.approx(error, rel=0.02)
    if s:  # the noise is measured, to 5 standard errors of 22 percent in all
        error = stiff @ covariance(precision, eps=found.step_size, s=s) @ stiff / 0.1 - 1
        assert abs(error) == pytest.approx(0.05, rel=0.25)


def test_the_bias_comes_from_the_kernels_own_update():
    for step_size in (0.001, 0.01, 0.1):
        exact = momentum_covariance(np.array([[3.0]]), eps=step_size, a=1.0, beta=0.9, s=0.7)[0, 0] / (0.5 / 3) - 1
        assert stationary_error(lv.msgld(1.0), step_size, curvature=3.0, noise=0.49) == pytest.approx(exact, rel=1e-6)
    assert stationary_error(lv.sgld(1.0), 0.7, curvature=3.0) == math.inf  # unstable from 2 / 3 on


def test_asgld_is_treated_as_linear_with_its_square_average_frozen():
    """E g^2 is 10 tau_eff in one dimension of curvature 10; the law is that of MSGLD with the bias divided by its root."""
    kernel = lv.asgld(1.0, bias_factor=5.0)
    found = find(kernel, lv.targets.gaussian([[0.1]]), chains=range(16))
    scale = 5.0 / math.sqrt(10.0)  # V = 10: the walk that measures it is at temperature 1
    law = momentum_covariance(np.array([[10.0]]), eps=found.step_size, a=1.0, beta=0.9, scale=np.array([[scale]]))[0, 0]
    assert law / (0.1 / (1 + scale)) - 1 == pytest.approx(0.05, rel=0.25)


def test_metrics_make_badly_scaled_targets_alike():
    covariance = torch.diag(torch.tensor([1.0, 1e-4], dtype=torch.float64))
    target = lv.targets.gaussian(covariance)
    riemannian = find(lv.sgrld(1.0, metric=target.metric), target)
    assert riemannian.curvature == pytest.approx(1.0, rel=1e-3)
    assert riemannian.step_size == pytest.approx(2 * 0.05 / 1.05, rel=1e-2)
    start = torch.ones(16, 2, dtype=torch.float64)
    preconditioned = find(lv.psgld(1.0), target, chains=range(16), start=start)
    assert preconditioned.curvature == pytest.approx(100.0, rel=0.3)  # lam / sqrt(E g^2) = sqrt(lam)
    assert find(lv.sgld(1.0), target).curvature == pytest.approx(1e4, rel=1e-3)


def test_a_full_metric_turns_the_direction_too():
    target = lv.targets.gaussian(COVARIANCE)
    found = find(lv.sgrld(1.0, metric=lambda theta: torch.diag(torch.tensor([1.0, 4.0], dtype=theta.dtype))), target)
    precision = np.linalg.inv(np.array(COVARIANCE))
    expected = np.linalg.eigvals(np.diag([1.0, 0.25]) @ precision).max()
    assert found.curvature == pytest.approx(expected, rel=1e-4)


def test_the_same_seed_gives_the_same_number():
    target = lv.targets.gaussian(COVARIANCE, gradient_noise=1.0)
    first, again, other = (find(lv.msgld(1.0), target, seed=seed) for seed in (3, 3, 4))
    assert first.text == again.text
    assert torch.equal(first.position, again.position)
    assert first.step_size != other.step_size


def test_chains_run_together_or_apart_give_the_same_number():
    target = lv.targets.gaussian(COVARIANCE)
    alone = [find(lv.sghmc(1.0), target, chains=range(k, k + 1)).step_size for k in range(3)]
    assert find(lv.sghmc(1.0), target, chains=range(3)).step_size == pytest.approx(min(alone), rel=1e-9)


def test_the_worst_chain_counts():
    """Two basins of curvature 1 and 25, far apart; a chain in each."""
    target = lv.targets.energy(lambda t: torch.where(t[0] < 0, 0.5 * (t[0] + 50) ** 2, 12.5 * (t[0] - 50) ** 2))
    start = torch.tensor([[-51.0], [-49.0], [49.5]])
    assert find(lv.sgld(1.0), target, start=start[:2]).curvature == pytest.approx(1.0, rel=1e-3)
    assert find(lv.sgld(1.0), target, start=start, chains=range(3)).curvature == pytest.approx(25.0, rel=1e-3)


IDENTITY = torch.eye(2, dtype=torch.float64)
AUTO = {  # by the names of the sampler table, without the comma
    name.replace(",", ""): functools.partial(lv.SAMPLERS[name.partition(",")[0]], **entry.auto)
    for name, entry in TABLE.items()
    if isinstance(entry.auto, dict)
}
REFUSED = {name: entry.auto for name, entry in TABLE.items() if isinstance(entry.auto, str)}


def test_every_sampler_takes_auto_or_says_that_it_does_not():
    assert {name.split()[0] for name in AUTO} | {name.partition(",")[0] for name in REFUSED} == set(lv.SAMPLERS)
    for name, reason in REFUSED.items():
        with pytest.raises(TypeError, match=f"{reason}.*; give step_size as a number, got '{name.partition(',')[0]}'"):
            find(build(name, "auto"), lv.targets.gaussian(IDENTITY))


@pytest.mark.parametrize("variances", [(1.0, 1.0), (1.0, 0.01)], ids=["round", "badly scaled"])
@pytest.mark.parametrize("name", AUTO)
def test_auto_keeps_its_promise(name, variances, capsys):
    """200 chains on N(0, diag): each variance is off by 5 percent, plus 4 standard errors over the chains.

    Against the target where that is the law; else against the law of small steps, temperature 1 / (1 + a G), G the scale that the
    run itself had. There a soft direction is left out: it changes so slowly that the scale follows it and does not stand still.
    """
    kernel, variances = AUTO[name]("auto"), torch.tensor(variances, dtype=torch.float64)
    spread = variances.sqrt() * (kernel.effective_temperature or 1.0) ** 0.5
    init = spread * normal(1, range(200), 0, 2, dtype=torch.float64)
    target = lv.targets.gaussian(torch.diag(variances))
    samples = lv.sample(target, sampler=kernel, init=init, num_steps=4000, warmup=2000, compile=False)
    assert "step_size" in capsys.readouterr().out
    squares = (samples.draws**2 / variances).mean(1)
    expected, looked_at = torch.ones(2, dtype=torch.float64), [0, 1]
    if kernel.effective_temperature is not None:
        expected *= kernel.effective_temperature
    else:
        expected, looked_at = 1 / (1 + _mean_scale(kernel.drift, samples.draws / variances)), [1]
    error, chance = squares.mean(0) / expected - 1, squares.std(0) / expected / 200**0.5
    assert (error.abs() < 0.05 + 4 * chance)[looked_at].all(), (error, chance)
    assert chance[1] < 0.04  # else it would say nothing


def _mean_scale(drift, gradients):
    """Return the mean of G over a path of gradients, (chain, draw, dim); a first passage brings the memory to where it stays."""
    memory, scales = drift.start(gradients[:, 0]), []
    for gradient in [*gradients.unbind(1), *gradients.unbind(1)]:
        memory = drift.update(memory, gradient)
        scales.append(drift.scale(memory[1:], torch.ones_like(gradient)))
    return torch.stack(scales[len(scales) // 2 :]).mean((0, 1))


def test_a_schedule_of_the_bias_factor_counts_as_it_starts():
    target = lv.targets.gaussian(COVARIANCE)
    for invariant in (False, True):
        plain, scheduled = (
            find(lv.msgld("auto", bias_factor=a, invariant=invariant), target) for a in (10.0, lv.schedules.constant(10.0))
        )
        assert scheduled.step_size == pytest.approx(plain.step_size, rel=1e-4)
        assert scheduled.step_size < 0.9 * find(lv.msgld("auto", invariant=invariant), target).step_size


@pytest.mark.parametrize("start", [1e2, 1e4])
def test_starting_far_away_works(start):
    """A quartic is a thousand times stiffer far out; its law has curvature 12 E theta^2 near zero."""
    target = lv.targets.energy(lambda t: (t**4).sum())
    found = find(lv.sgld(1.0), target, start=torch.full((4, 2), start, dtype=torch.float64), chains=range(4))
    near = find(lv.sgld(1.0), target, start=torch.full((4, 2), 0.5, dtype=torch.float64), chains=range(4))
    assert found.step_size == pytest.approx(near.step_size, rel=0.5)
    linear_far_out = lv.targets.energy(lambda t: (1 + t @ t) ** 0.5)
    assert find(lv.sgld(1.0), linear_far_out, start=torch.full((1, 2), 100.0), chains=range(1)).curvature < 1.01


def test_float32_agrees_with_float64():
    covariance = torch.diag(torch.logspace(-4, 0, 10, dtype=torch.float64))
    mean = torch.full((10,), 100.0)
    target = lv.targets.gaussian(covariance, mean=mean)
    wide, narrow = (find(lv.sgld(1.0), target, dtype=dtype).step_size for dtype in (torch.float64, torch.float32))
    assert narrow == pytest.approx(wide, rel=0.03)


def test_minibatch_heating_is_accounted_for():
    target, data = logistic()
    start, chains = torch.zeros(4, 3, dtype=torch.float64), range(4)
    exact = find_step_size(lv.sgld(1.0), full(target, data), start, chains=chains, seed=0)
    batches = minibatch(target, data, 10, seed=0, chains=chains)
    independent = find_step_size(lv.sgld(1.0), batches, start, chains=chains, seed=0)
    epochs = find_step_size(lv.sgld(1.0), batches, start, chains=chains, seed=0, steps_per_epoch=100.0)
    assert independent.curvature == pytest.approx(exact.curvature, rel=0.1)
    assert exact.noise == 0
    # The noise of a batch is about (N / n) times the information.
    assert independent.noise == pytest.approx(100 * exact.curvature, rel=0.3)
    assert independent.step_size < 0.03 * exact.step_size
    assert 3 * independent.step_size < epochs.step_size < exact.step_size
    for tuning in (independent, epochs):
        assert tuning.error == pytest.approx(0.05, rel=1e-3)


def test_noise_without_replacement_has_the_law_of_a_direct_sum():
    """The stationary variance under c_k = -(1 - k / T) / (T - 1), summed term by term over the impulse response of SGLD."""
    eps, lam, s2, period = 0.05, 1.0, 20.0, 10
    response = eps * (1 - eps * lam) ** np.arange(2000)
    lags = np.arange(1, period)
    correlation = -(1 - lags / period) / (period - 1)
    heat = response @ response + 2 * sum(c * (response[:-k] @ response[k:]) for k, c in zip(lags, correlation, strict=True))
    expected = 1 / (1 - eps * lam / 2) + s2 * heat * lam - 1
    found = stationary_error(lv.sgld(1.0), eps, curvature=lam, noise=s2, steps_per_epoch=period)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found < stationary_error(lv.sgld(1.0), eps, curvature=lam, noise=s2)


def test_a_noisy_soft_direction_counts():
    """Gradient noise of variance 400 along a direction of curvature 1, beside a quiet one of curvature 10."""

    def draw(steps):
        return (20 * normal(0, streams(Purpose.GRADIENT, range(4)), steps, 1, dtype=torch.float64),)

    def evaluate(position, drawn):
        gradient = torch.stack([10 * position[:, 0], position[:, 1] + drawn[0][:, 0]], -1)
        return Evaluation((position * gradient).sum(-1) / 2, gradient)

    start = torch.ones(4, 2, dtype=torch.float64)
    given = dataclasses.replace(full(GOOD), draw=draw, evaluate=evaluate)
    found = find_step_size(lv.sgld(1.0), given, start, chains=range(4), seed=0)
    assert found.noise < 1
    assert found.noisiest == pytest.approx((1.0, 400.0), rel=0.6)
    assert found.step_size == pytest.approx(2 * 0.05 / (1.05 + found.noisiest[1]), rel=0.01)


def test_the_step_is_stable_with_a_margin():
    for kernel in (lv.sgld(1.0), lv.sghmc(1.0), lv.msgld(1.0)):
        found = find(kernel, lv.targets.gaussian([[1.0]]), share=0.99)
        assert stationary_error(kernel, 1.9 * found.step_size, curvature=1.0) < math.inf


def test_addresses_are_beyond_those_of_any_run():
    seen = []
    target = lv.targets.gaussian(COVARIANCE)

    def draw(steps):
        seen.append(steps)
        return ()

    spy = dataclasses.replace(full(target), draw=draw)
    find_step_size(lv.sgld(1.0), spy, torch.ones(1, 2), chains=range(1), seed=0)
    assert seen
    assert min(steps.start for steps in seen) >= FIRST_STEP == 2**40


def test_the_text_says_what_and_why():
    found = find(lv.sgld(1.0), lv.targets.gaussian(COVARIANCE))
    assert found.text == (
        "sgld: step_size 0.009524, for the largest curvature 10 (the worst of 2 chains) and gradient noise of variance 0 "
        "along it;\n"
        "  predicted error of the variance there +5% (+5% with exact gradients), limit 5%"
    )


FLAT = lv.targets.energy(lambda t: (3 * t).sum())
HILL = lv.targets.energy(lambda t: -0.5 * t @ t)
HOLE = lv.targets.energy(lambda t: torch.log(t).sum())
GOOD = lv.targets.gaussian(COVARIANCE)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: find(lv.sgld(1.0), FLAT, start=torch.ones(2, 2)), ValueError, "no positive curvature.*give step_size as a number"),
        (lambda: find(lv.sgld(1.0), HILL, start=torch.ones(2, 2)), ValueError, "no positive curvature"),
        (lambda: find(lv.sgld(1.0), HOLE, start=torch.tensor([[1.0], [-1.0]])), ValueError, "non-finite.*chain 1 starts"),
        (lambda: find(lv.sgld(1.0), GOOD, share=0.0), ValueError, "share=...\\) needs 0 < share < 1, got 0.0"),
        (lambda: find(lv.sgld(1.0), GOOD, share="much"), TypeError, "share"),
        (lambda: find(lv.sgld(1.0), GOOD, seed=2**64), ValueError, r"find_step_size\(seed=...\) needs an int in \[0, 2\*\*64\)"),
        (lambda: find(lv.sgld(1.0, temperature=0.0), GOOD), ValueError, "temperature > 0"),
        (lambda: find(lv.sgld(1.0), GOOD, start=torch.ones(3, 2)), ValueError, "shape \\(2, dim\\)"),
        (lambda: find(lv.complete_recipe(1.0, diffusion=lambda xi: torch.eye(2)), GOOD), TypeError, "give step_size as a number"),
        (
            lambda: find(lv.sgld(1.0), lv.targets.gaussian(COVARIANCE, gradient_noise=1e6), share=1e-3),
            ValueError,
            "too much for any step size",
        ),
    ],
    ids=["linear", "concave", "non-finite", "share-0", "share-text", "seed", "cold", "rows", "recipe", "noise"],
)
def test_errors_say_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("sampler", ["msgld", "asgld", "adamax_sgld"])
def test_a_bias_factor_that_is_found_suits_the_scale_of_the_gradients(sampler, tmp_path):
    """At curvature 1e6 Adam's G is about 1e-3: a bias factor of 1 does nothing, one in units of 1 / G does as for msgld."""
    target = lv.targets.gaussian(1e-6 * IDENTITY)
    start = 1e-3 * normal(2, range(20), 0, 2, dtype=torch.float64)
    kernel = lv.SAMPLERS[sampler]("auto", bias_factor="auto", invariant=True)
    samples = lv.sample(target, sampler=kernel, init=start, num_steps=1200, warmup=400, compile=False, out=tmp_path / "run")
    found = float(samples.description.split("bias_factor ")[-1].split(";")[0])
    expected = 9 * 1.9 / 0.1 * (1.0 if sampler == "msgld" else 1e3)  # adamax: its G follows the largest of recent gradients
    assert found == pytest.approx(expected, rel=0.25 if sampler != "adamax_sgld" else 2.0)
    ratio, size = samples.draws.flatten(0, 1).var(0) * 1e6, samples.trust["bulk ESS"].value
    assert ((ratio - 1).abs() < 5 * (2 / size) ** 0.5).all()
    assert torch.equal(lv.resume(tmp_path / "run", target, sampler=kernel).draws, samples.draws)
    with pytest.raises(ValueError, match=r"bias_factor=.*invariant=True"):
        lv.SAMPLERS[sampler]("auto", bias_factor="auto")
    with pytest.raises(ValueError, match="found together"):
        lv.sample(
            target, sampler=lv.SAMPLERS[sampler](0.1, bias_factor="auto", invariant=True), init=start, num_steps=50, warmup=10
        )


def test_psgld_with_a_step_that_is_found_freezes_its_scale():
    """With V that follows the gradients the variance on N(0, I) was 1.10; frozen after the warm-up the law is the target's."""
    start = normal(3, range(200), 0, 2, dtype=torch.float64)
    samples = lv.sample(
        lv.targets.gaussian(IDENTITY), sampler=lv.psgld("auto"), init=start, num_steps=4000, warmup=2000, compile=False
    )
    squares = (samples.draws**2).mean(1)
    error, chance = squares.mean(0) - 1, squares.std(0) / 200**0.5
    assert (error.abs() < 0.05 + 4 * chance).all(), (error, chance)
    assert (chance < 0.02).all()
    given = lv.psgld(0.1).for_run(100, start)
    assert given.adapt_steps is None  # as published


def residues(energy, step_size, dim=1, start=1.0):
    """Return the exact gradient of an energy of one chain, and what 300 steps of four chains leave."""
    gradient_fn = full(lv.targets.energy(energy))
    position = start * torch.linspace(-1, 1, 4, dtype=torch.float64)[:, None].expand(4, dim).contiguous()
    kernel = lv.msgld(step_size, bias_factor=10.0, invariant=True)
    return gradient_fn, list(run_blocks(kernel, gradient_fn, position, seed=0, chains=range(4), num_steps=300))


SMOOTH = {
    "modes at distance 6": (lambda t: -torch.logaddexp(-0.5 * (t[0] - 3) ** 2, -0.5 * (t[0] + 3) ** 2), 1),
    "a steep wall": (lambda t: 0.5 * t @ t + torch.nn.functional.softplus(100 * (t[0] - 0.5)), 1),
    "an exponential wall": (lambda t: (6 * t[0]).exp() - t[0], 1),
    "a banana": (lambda t: 0.5 * t[0] ** 2 + 0.5 * (t[1] - t[0] ** 2) ** 2 / 0.09, 2),
    "a kink": (lambda t: t.abs().sum(), 1),
    "a steep kink": (lambda t: 30 * t.abs().sum(), 1),
    "a kink in a root": (lambda t: (t @ t + 1e-12).sqrt(), 2),
    "rounding": (lambda t: (1e9 + 0.5 * t @ t) + 1e-6 * t.abs().sum(), 1),
}
JUMPY = {
    "floors": (lambda t: 0.5 * t @ t + torch.floor(t.abs().sum()), 1),
    "small floors": (lambda t: 0.5 * t @ t + 0.2 * torch.floor(3 * t[0]), 1),
    "one edge": (lambda t: 0.5 * t @ t + 1.0 * (t[0] > 0.3), 1),
    "an edge in one of two directions": (lambda t: t @ t + t[0] * t[1] - 0.5 * (t[1] > 0).double(), 2),
}


@pytest.mark.parametrize("step_size", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("name", [*SMOOTH, *JUMPY])
def test_jumps_are_found_where_there_are_some_and_nowhere_else(name, step_size):
    """Whatever the step: a steep but smooth energy and a kink are no jumps."""
    energy, dim = {**SMOOTH, **JUMPY}[name]
    assert find_jumps(*residues(energy, step_size, dim)) == (name in JUMPY, 14)


def test_jumps_are_in_units_of_the_temperature():
    gradient_fn, traces = residues(lambda t: 0.5 * t @ t + 1.0 * (t[0] > 0.3), 0.01)
    assert find_jumps(gradient_fn, traces, temperature=10.0)[0]
    assert not find_jumps(gradient_fn, traces, temperature=100.0)[0]
