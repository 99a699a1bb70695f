"""ESS, R-hat and MCSE are ArviZ's, and the sentences say what is wrong and what to do."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch

import langevin as lv
from langevin import diagnostics as dg
from langevin.diagnostics.convergence import CHAINS_FOR_SPREAD, MIN_ESS_PER_CHAIN, standard_error
from langevin.storage.arviz_data import import_arviz

GAUSSIAN = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])


def autoregression(chains, draws, dim=2, rho=0.9, seed=0):
    """Stationary AR(1) chains with variance 1: autocorrelation rho**t, n (1 - rho) / (1 + rho) independent draws."""
    noise = lv.random.normal(seed, range(chains), range(draws), dim, dtype=torch.float64)
    path = [noise[0]]
    for row in noise[1:]:
        path.append(rho * path[-1] + (1 - rho**2) ** 0.5 * row)
    return torch.stack(path, 1)


def with_draws(samples, draws):
    return dataclasses.replace(samples, arrays={**samples.arrays, "draws": draws}, event_shape=tuple(draws.shape[2:]))


def good_samples(chains=4, steps=1500):
    init = lv.random.normal(5, range(chains), 0, 2, dtype=torch.float64)
    return lv.sample(GAUSSIAN, sampler=lv.msgld(0.3, invariant=True), init=init, num_steps=steps)  # exact on Gaussians


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        *((dg.ess, "ess", {"method": method}) for method in ("bulk", "tail", "mean", "sd")),
        (dg.rhat, "rhat", {}),
        (dg.mcse, "mcse", {}),
    ],
    ids=["ess", "tail ess", "mean ess", "sd ess", "rhat", "mcse"],
)
def test_the_numbers_are_arviz_s_own(ours, theirs, settings):
    arviz, draws = import_arviz(), autoregression(4, 200)
    if "InferenceData" not in vars(arviz):
        pytest.skip("the defaults of ArviZ 1 are others")
    for k in range(2):
        data = arviz.from_dict(posterior={"one": draws[..., k].numpy()})
        expected = float(getattr(arviz, theirs)(data, **settings)["one"])
        assert ours(draws, **settings)[k].item() == pytest.approx(expected, rel=1e-8)


def test_ess_and_mcse_find_what_an_autoregression_has():
    draws = autoregression(4, 20_000, dim=1)
    exact = 80_000 * (1 - 0.9) / (1 + 0.9)
    assert dg.ess(draws, method="mean").item() == pytest.approx(exact, rel=0.1)
    assert dg.mcse(draws).item() == pytest.approx(exact**-0.5, rel=0.1)


def test_autocorrelation_is_the_plain_sum():
    draws = autoregression(2, 300)
    centred = draws - draws.mean(1, keepdim=True)
    plain = torch.stack([(centred[:, : 300 - t] * centred[:, t:]).sum(1) for t in range(51)], 1) / (centred**2).sum(1, keepdim=True)
    found = dg.autocorrelation(draws, max_lag=50)
    assert found.shape == (2, 51, 2)
    torch.testing.assert_close(found, plain)
    assert dg.autocorrelation(draws[:, :20], max_lag=100).shape == (2, 20, 2)


def test_too_few_draws_one_chain_or_no_movement_give_nan_and_not_a_number_that_misleads(capfd):
    draws = autoregression(4, 200)
    for statistic in (dg.ess, dg.rhat, dg.mcse):
        assert statistic(draws[:, :3]).isnan().all()
    assert dg.rhat(draws[:1]).isnan().all()
    assert not dg.ess(draws[:1]).isnan().any()
    stuck = draws.clone()
    stuck[..., 1] = torch.arange(4.0)[:, None]  # each chain stays where it began
    for statistic in (dg.ess, dg.rhat, dg.mcse):
        assert statistic(stuck).isnan().tolist() == [False, True]
    assert dg.autocorrelation(stuck)[..., 1].isnan().all()
    assert capfd.readouterr() == ("", "")  # ArviZ logs nothing


def test_more_chains_than_draws_are_nothing_to_warn_of():
    draws = autoregression(20, 10, rho=0.0)
    for statistic in (dg.ess, dg.rhat, dg.mcse):
        assert statistic(draws).isfinite().all()


def test_the_standard_error_covers_the_mean_for_many_chains_and_for_few():
    """The mean of n AR(1) chains of T draws has standard error sqrt((1 + rho) / (1 - rho) / (n T)), up to O(1 / T)."""
    for chains, draws in [(400, 100), (4, 10_000)]:
        assert (chains >= CHAINS_FOR_SPREAD) == (chains == 400)
        exact = (19 / (chains * draws)) ** 0.5
        assert standard_error(autoregression(chains, draws, dim=1)).item() == pytest.approx(exact, rel=0.2)
    assert standard_error(torch.tensor([[[1.0]], [[3.0]]])).item() == pytest.approx(1.0)  # two chains of one draw
    assert standard_error(torch.zeros(1, 3, 1)).isnan().all()


def test_good_chains_earn_no_words():
    assert good_samples().trust.warnings == []


def test_one_chain_is_told_to_run_more():
    (sentence,) = good_samples(chains=1).trust.warnings
    assert sentence.startswith("one chain: R-hat is NaN")
    assert "init of shape (4, dim)" in sentence


def test_few_draws_are_told_to_be_more():
    (sentence,) = good_samples(steps=3).trust.warnings
    assert sentence.startswith("too few draws: 3 per chain")
    assert "Increase num_steps" in sentence


def test_slow_chains_are_told_by_how_much_to_grow():
    samples = with_draws(good_samples(), autoregression(4, 1500, rho=0.99))
    found = {sentence.split(":")[0]: sentence for sentence in samples.trust.warnings}
    worst = torch.minimum(dg.ess(samples.draws), dg.ess(samples.draws, method="tail")).min().item()
    assert f"worst {worst:.0f} at element" in found["low effective sample size"]
    assert f"about {4 * MIN_ESS_PER_CHAIN / worst:.0f} times as many steps" in found["low effective sample size"]


def test_chains_in_different_places_are_named_with_the_worst_element():
    samples = good_samples()
    apart = samples.draws.clone()
    apart[0, :, 1] += 3
    found = with_draws(samples, apart).trust.warnings
    (sentence,) = [sentence for sentence in found if sentence.startswith("chains disagree")]
    assert "for 1 of 2 elements" in sentence
    assert f"worst {dg.rhat(apart)[1]:.3f} at element 1" in sentence


def test_an_element_that_never_moves_is_named():
    samples = good_samples()
    stuck = samples.draws.clone()
    stuck[..., 1] = 0.0
    (sentence,) = with_draws(samples, stuck).trust.warnings
    assert sentence.startswith("no movement: 1 of 2 elements never changed (first: element 1)")


def test_of_many_elements_some_are_looked_at():
    samples = with_draws(good_samples(), autoregression(4, 100, dim=500, rho=0.0))
    (sentence,) = [s for s in samples.trust.warnings if s.startswith("low")]
    assert "of the 200 elements checked" in sentence


def said(samples):
    """Return what each sentence is about."""
    return {sentence.split(":")[0] for sentence in samples.trust.warnings}


def bisect(function, level, low, high, gap):
    """Return two arguments, `gap` apart, at which the function is below and above the level."""
    assert function(low) < level < function(high)
    while high - low > gap:
        middle = (low + high) / 2 if isinstance(low, float) else (low + high) // 2
        low, high = (middle, high) if function(middle) < level else (low, middle)
    return low, high


def test_r_hat_is_warned_of_above_1_point_01_and_not_below():
    draws = autoregression(4, 1000, dim=1, rho=0.0)

    def shifted(by):
        return draws + torch.tensor([by, 0.0, 0.0, 0.0], dtype=torch.float64).view(4, 1, 1)

    below, above = bisect(lambda by: dg.rhat(shifted(by)).item(), 1.01, 0.0, 1.0, 1e-4)
    assert dg.rhat(shifted(above)).item() == pytest.approx(1.01, abs=1e-4)
    samples = good_samples(steps=4)
    assert said(with_draws(samples, shifted(below))) == set()
    assert said(with_draws(samples, shifted(above))) == {"chains disagree"}


@pytest.mark.parametrize("chains", [2, 4])
@pytest.mark.parametrize("which", ["bulk", "tail"])
def test_fewer_than_100_independent_draws_a_chain_are_warned_of(chains, which):
    """Bulk: an autoregression. Tail: normals whose size changes slowly, so that the centre is quick and the tails are not."""
    slow = autoregression(chains, 3000, dim=1, rho=0.98, seed=7)
    draws = (
        autoregression(chains, 3000, dim=1, rho=0.7) if which == "bulk" else slow.exp() * autoregression(chains, 3000, dim=1, rho=0)
    )
    enough, other = 100 * chains, "tail" if which == "bulk" else "bulk"
    below, above = bisect(lambda n: dg.ess(draws[:, :n], method=which).item(), enough, 100, 3000, 1)
    assert dg.ess(draws[:, :below], method=which).item() == pytest.approx(enough, rel=0.1)
    assert dg.ess(draws[:, :below], method=other).item() > enough  # one of the two alone is at its threshold
    samples = good_samples(chains, steps=4)
    assert "low effective sample size" in said(with_draws(samples, draws[:, :below]))
    assert "low effective sample size" not in said(with_draws(samples, draws[:, :above]))


def test_three_draws_are_too_few_and_four_are_not():
    draws = autoregression(4, 4)
    samples = good_samples(steps=4)
    assert said(with_draws(samples, draws[:, :3])) == {"too few draws"}
    assert "too few draws" not in said(with_draws(samples, draws))


def test_one_chain_is_too_few_and_two_are_not():
    draws = autoregression(2, 1500, rho=0.0)
    assert said(with_draws(good_samples(chains=1, steps=4), draws[:1])) == {"one chain"}
    assert said(with_draws(good_samples(chains=2, steps=4), draws)) == set()


KEEPS = {
    "positions": "positions",
    "moments": "moments",
    "a vector": lambda theta: theta.exp(),
    "a number": lambda theta: theta.sum(),
    "a matrix": lambda theta: theta[:, None] * theta,
    "NaN": lambda theta: theta.log(),
    "a constant": lambda theta: 0 * theta,
    "nothing": lambda theta: theta[:0],
}


@pytest.mark.parametrize("keep", KEEPS)
def test_the_words_never_fail_whatever_was_kept_and_however_chains_ended(keep):
    for chains in (1, 2, 5):
        for steps in (1, 3, 4, 5, 20):
            samples = lv.sample(
                GAUSSIAN, sampler=lv.sgld(0.1), init=torch.zeros(chains, 2), num_steps=steps, keep=KEEPS[keep], compile=False
            )
            for stopped in range(chains + 1):
                ends = [entry._replace(reason="x") if k < stopped else entry for k, entry in enumerate(samples.status)]
                found = said(dataclasses.replace(samples, status=tuple(ends)))
                assert ("stopped chains" in found) == (stopped > 0)
                assert found or keep == "moments"  # so few draws always earn a word


def test_what_was_kept_is_named_where_it_is_the_trouble():
    def kept(keep):
        return said(lv.sample(GAUSSIAN, sampler=lv.sgld(0.1), init=torch.zeros(4, 2), num_steps=50, keep=keep))

    assert kept("moments") == set()  # a choice, not a fault
    assert kept(lambda theta: theta.log()) == {"non-finite draws"}
    assert kept(lambda theta: torch.stack([theta[0].log(), 0 * theta[1]])) == {"non-finite draws", "no movement"}


def steep(theta):
    """A quartic: explicit steps from far out overshoot and blow up."""
    return 0.25 * (theta**4).sum()


def test_stopped_chains_are_counted_and_left_out():
    init = torch.tensor([[0.5], [30.0], [-0.5], [0.1], [0.2]], dtype=torch.float64)
    with pytest.warns(UserWarning, match="chain 1 stopped"):
        samples = lv.sample(lv.targets.energy(steep), sampler=lv.sgld(0.1), init=init, num_steps=1500)
    (sentence,) = samples.trust.warnings
    assert sentence.startswith("stopped chains: 1 of 5 chains did not finish (chain 1 stopped at step ")
    assert "Reduce step_size" in sentence
    with pytest.warns(UserWarning, match="stopped"):
        none = lv.sample(lv.targets.energy(steep), sampler=lv.sgld(0.1), init=init[1:2], num_steps=60)
    assert len(none.trust.warnings) == 1


def test_importing_diagnostics_imports_neither_arviz_nor_pyplot():
    code = "import sys, langevin.diagnostics; print({'arviz', 'matplotlib.pyplot', 'scipy.stats'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
