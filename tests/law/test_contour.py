"""A contour changes the law as it says, and weights give the target back, with exact and with noisy energies: by quadrature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_replica import EPS, NOISE, NOISY, QUANTILES, wells

import langevin as lv
from langevin.kernels import Contour

double = torch.float64
TARGET = lv.targets.energy(lambda theta: wells(theta).sum())
V = (0.0, -0.3, -1.5, -2.2, -3.8, -4.5, -5.5)
GRID = np.linspace(-2.6, 2.6, 4001)

pytestmark = pytest.mark.filterwarnings("ignore::langevin.TrustWarning")  # many short chains


def contour(inner=None, zeta=1.0):
    inner = inner or lv.sgld(EPS / 2)
    return Contour("contour", inner.step_size, inner=inner, low=-0.3, high=6.0, log_density=V, zeta=zeta)


def moments(bias):
    """Return P(x < 0) and E[x^2] of exp(-U - bias(U)), by sums over a grid."""
    law = np.exp(-wells(GRID) - bias(wells(GRID)))
    law /= law.sum()
    return np.array([law[GRID < 0].sum(), law @ GRID**2])


def flattened(energy):
    return np.interp(energy, np.linspace(-0.3, 6.0, len(V)), V)


def smoothed(energy):
    """Return what chains see of V where their energies are noisy."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    return (flattened(energy[:, None] + NOISE * nodes) * weights).sum(1) / weights.sum()


def run(kernel, target=TARGET, num_steps=2500, **settings):
    init = torch.cat([torch.full((1000, 1), side, dtype=double) for side in (1.0, -1.0)])
    return lv.sample(
        target, sampler=kernel, init=init, num_steps=num_steps, warmup=1300, thin=60, compile=False, seed=6, **settings
    )


def means(samples, weights):
    """Return both moments with the errors that independent chains have."""
    values = torch.stack([(samples.draws[..., 0] < 0).double(), samples.draws[..., 0] ** 2])
    total = (values * weights).sum((1, 2)) / weights.sum()
    per_chain = ((values - total[:, None, None]) * weights).sum(2) * len(weights) / weights.sum()
    return total.numpy(), per_chain.std(1).numpy() / len(weights) ** 0.5


@pytest.mark.parametrize("inner", [lv.sgld(EPS / 2), lv.msgld(EPS / 2, bias_factor=2.0, invariant=True)], ids=["sgld", "msgld"])
def test_a_contour_has_the_law_that_it_says_and_weights_give_the_target_back(inner):
    """4.5 standard errors, and 1 % of step size; the two laws are far apart."""
    samples, kernel = run(contour(inner)), contour(inner)
    bare, error = means(samples, torch.ones_like(samples.draws[..., 0]))
    assert np.all(np.abs(bare - moments(flattened)) < 4.5 * error + 0.01)
    weighted, error = means(samples, lv.contour_weights(kernel, samples))
    assert np.all(np.abs(weighted - moments(lambda u: 0 * u)) < 4.5 * error + 0.01)
    assert np.abs(moments(flattened) - moments(lambda u: 0 * u)).max() > 0.1


def test_noisy_energies_are_weighted_by_what_chains_see_of_the_contour():
    samples = run(contour(), NOISY, data=QUANTILES, batch_size=1, batches="white")
    bare, error = means(samples, torch.ones_like(samples.draws[..., 0]))
    assert np.all(np.abs(bare - moments(smoothed)) < 4.5 * error + 0.01)
    weighted, error = means(samples, lv.contour_weights(contour(), samples, energy_noise=NOISE))
    assert np.all(np.abs(weighted - moments(lambda u: 0 * u)) < 4.5 * error + 0.01)
    found = contour().log_weights(torch.from_numpy(wells(GRID)), energy_noise=NOISE).numpy()
    assert np.abs(found - smoothed(wells(GRID)))[wells(GRID) < 6].max() < 0.05


def test_a_contour_that_is_learnt_spreads_the_energies_and_is_the_same_each_time():
    settings = {"energies": (-0.3, 6.0), "num_steps": 4000, "bins": 15}
    kernel, again = (lv.learn_contour(lv.sgld(EPS / 2), TARGET, torch.ones(100, 1, dtype=double), **settings) for _ in range(2))
    assert kernel == again
    samples = run(kernel, num_steps=4000)
    counts = torch.histc(TARGET.evaluate(samples.draws.reshape(-1, 1)).energy, 8, 0.0, 5.6)
    assert counts.max() / counts.min() < 2.5  # the target's own are 100 apart
    weighted, error = means(samples, lv.contour_weights(kernel, samples))
    assert np.all(np.abs(weighted - moments(lambda u: 0 * u)) < 4.5 * error + 0.02)  # kinks of V cost accuracy


def test_no_contour_is_the_sampler_itself():
    inner, init = lv.msgld(EPS, invariant=True), torch.ones(4, 1, dtype=double)
    settings = {"num_steps": 20, "compile": False}
    assert torch.equal(
        lv.sample(TARGET, sampler=contour(inner, zeta=0.0), init=init, **settings).draws,
        lv.sample(TARGET, sampler=inner, init=init, **settings).draws,
    )


def test_bad_contours_are_refused():
    init, good = torch.ones(4, 1, dtype=double), {"energies": (-0.3, 6.0), "num_steps": 100}
    for changes, words in [
        ({"energies": (3.0, 2.0)}, r"high=.*> low = 3, got 2"),
        ({"energies": 3.0}, r"energies=.*two numbers.*got 3"),
        ({"num_steps": 5}, r"num_steps=.*got 5"),
        ({"energies": (-50.0, 60.0)}, r"energies=.*hardly visited"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            lv.learn_contour(lv.sgld(EPS), TARGET, init, **{**good, **changes})
    with pytest.raises(TypeError, match=r"kernel=.*learn_contour"):
        lv.contour_weights(lv.sgld(0.1), run(lv.sgld(EPS), num_steps=1400))
