"""Posteriors of posteriordb: models against a second implementation in JAX, moments of exact draws, what the check says of them.

`posteriordb/oracle.npz` holds places, log densities and reported quantities by `benchmarks/nuts.py --points`, whose densities are
written from the Stan models and not from ours.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from langevin_paper.check import database
from langevin_paper.check.database import available, data_folder, read_reference
from langevin_paper.check.posteriors import POSTERIORS
from langevin_paper.check.posteriors.differential import log_populations
from langevin_paper.check.posteriors.mixtures import log_product
from langevin_paper.check.posteriors.time_series import recursion
from langevin_paper.check.reference import check_reference, compare, markdown

from langevin.targets import Batch

SHIPPED = Path(__file__).parent / "posteriordb"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.json"))
ORACLE = np.load(SHIPPED / "oracle.npz")
# Largest difference of differences of log densities that rounding makes: 1e-8, and for the Poisson process, whose covariance matrix
# has condition numbers of 1e10, 1e-4; for the differential equation the promise of its fixed steps, 1e-3, near the mode.
TOLERANCE = {"gp_pois_regr-gp_pois_regr": 1e-4, "hudson_lynx_hare-lotka_volterra": 1e-3}
NEAR = 5  # points that are as far from the mode as draws are; the others are three times as far


@pytest.fixture(autouse=True)
def shipped_data(monkeypatch):
    monkeypatch.delenv("LANGEVIN_DATA", raising=False)


def evaluate(reference, positions):
    model, data = reference.posterior.model, reference.posterior.data
    if data is None:
        return model.evaluate(positions)
    columns = model.as_columns("test", data)
    return model.evaluate(positions, Batch(columns, len(columns[0]), per_chain=False))


def disagreement(reference):
    """Return how much differences of log densities between the oracle's places differ from the oracle's."""
    points = torch.tensor(ORACLE[f"{reference.name}/points"])
    ours = -evaluate(reference, points).energy.numpy() - ORACLE[f"{reference.name}/log_density"]
    kept = slice(NEAR) if reference.name.startswith("hudson") else slice(None)
    return np.ptp(ours[kept])


def test_all_but_the_largest_are_shipped():
    assert len(POSTERIORS) == 24
    assert sorted(POSTERIORS.keys() - NAMES) == ["diamonds-diamonds"]
    assert available() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_model_agrees_with_the_oracle(name):
    reference = read_reference(name)
    assert disagreement(reference) < TOLERANCE.get(name, 1e-8)
    points = torch.tensor(ORACLE[f"{name}/points"])
    np.testing.assert_allclose(reference.report(points).numpy(), ORACLE[f"{name}/reported"], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_that_of_the_energy(name):
    """Central differences along a random direction, in units of the places' own spread; many places at once."""
    reference = read_reference(name)
    points = torch.tensor(ORACLE[f"{name}/points"])[:NEAR]
    direction = points.std(0) * torch.tensor(np.random.default_rng(0).standard_normal(points.shape[-1]))
    found = (evaluate(reference, points).gradient * direction).sum(-1)
    step = 1e-4
    above, below = (evaluate(reference, points + sign * step * direction).energy for sign in (1, -1))
    torch.testing.assert_close(found, (above - below) / (2 * step), rtol=1e-4, atol=1e-4)


def test_a_density_that_is_wrong_is_seen():
    """The Jacobian of a scale left out, a prior of half the width, a lag taken one too late."""
    eight = "eight_schools-eight_schools_noncentered"
    reference = read_reference(eight)
    points = torch.tensor(ORACLE[f"{eight}/points"])
    without = -evaluate(reference, points).energy - points[:, -1] - torch.tensor(ORACLE[f"{eight}/log_density"])
    assert np.ptp(without.numpy()) > 0.1
    narrow = read_reference(eight)
    narrow.posterior.model.prior["mu"] = torch.distributions.Normal(torch.tensor(0.0).double(), 2.5, validate_args=False)
    assert disagreement(narrow) > 0.01
    content = json.loads((SHIPPED / "arma-arma11.json").read_text())
    content["data"]["y"] = content["data"]["y"][1:] + content["data"]["y"][:1]
    late = read_reference("arma-arma11")._replace(posterior=POSTERIORS["arma-arma11"](content["data"]))
    assert disagreement(late) > 0.01


def test_products_by_halves_are_loops():
    rng = np.random.default_rng(0)
    for length in (1, 2, 7, 32, 33):
        inputs, value, expected = rng.standard_normal(length), 0.0, []
        for entry in inputs:
            value = -0.7 * value + entry
            expected.append(value)
        np.testing.assert_allclose(recursion(torch.tensor(-0.7, dtype=torch.float64), torch.tensor(inputs)), expected, rtol=1e-12)
        matrices = rng.uniform(0.1, 1.0, (length, 3, 3))
        product = np.linalg.multi_dot([np.eye(3), np.eye(3), *matrices])
        np.testing.assert_allclose(log_product(torch.tensor(matrices).log()).exp(), product, rtol=1e-12)


def test_the_splitting_is_of_order_four():
    theta, start = torch.tensor([0.55, 0.028, 0.8, 0.024]).double(), torch.tensor([34.0, 5.9]).double()
    fine = log_populations(theta, start, 20, 48)
    errors = [(log_populations(theta, start, 20, steps) - fine).abs().max() for steps in (3, 6)]
    assert errors[0] < 5e-5
    assert 12 < errors[0] / errors[1] < 20


def exact_draws(reference, seed=0, chains=4, draws=1000):
    """Draw from a regression with flat priors on β and σ: ``RSS / σ² ~ χ²(N - k - 1)``, ``β | σ ~ N(fit, σ² (X^T X)^-1)``."""
    x, y = (reference.posterior.data[name].numpy() for name in ("x", "y"))
    rng, fit = np.random.default_rng(seed), np.linalg.lstsq(x, y)[0]
    sigma = np.sqrt(np.square(y - x @ fit).sum() / rng.chisquare(len(y) - x.shape[1] - 1, (chains, draws)))
    basis = np.linalg.inv(np.linalg.qr(x)[1])
    beta = fit + sigma[..., None] * (rng.standard_normal((chains, draws, x.shape[1])) @ basis.T)
    return torch.tensor(np.concatenate([beta, np.log(sigma)[..., None]], -1))


FLAT = ["earnings-earn_height", "earnings-logearn_interaction", "kidiq_with_mom_work-kidscore_interaction_c"]
FLAT += ["mesquite-mesquite", "nes2000-nes"]


@pytest.mark.parametrize("name", FLAT)
def test_exact_draws_are_right_and_others_are_not(name):
    reference = read_reference(name)
    draws = exact_draws(reference)
    verdict = compare(reference, draws)
    assert verdict.is_right
    assert 3000 < verdict.worst_ess < 5000
    centre = draws.mean((0, 1))
    assert not compare(reference, centre + 1.25 * (draws - centre)).is_right
    assert not compare(reference, draws + 0.3 * draws.flatten(0, 1).std(0)).is_right
    assert not compare(reference, torch.full_like(draws, torch.nan).where(torch.arange(4).view(4, 1, 1) == 0, draws)).is_right


def stand_in(shift=0.0, words=()):
    """Return a default call that draws exactly, off by `shift` sds, and says `words`."""

    def call(model, *, data, seed):
        draws = exact_draws(SimpleNamespace(posterior=SimpleNamespace(data=data)), seed)
        status = [SimpleNamespace(steps=2000)] * len(draws)
        trust = SimpleNamespace(warnings=list(words))
        healthy = draws + shift * draws.flatten(0, 1).std(0)
        return SimpleNamespace(healthy=healthy, status=status, trust=trust, warmup_gradients=500)

    return call


def test_check_says_what_is_right_wrong_and_loud():
    report = check_reference(names=FLAT[3:], call=stand_in())
    assert report.passed
    assert [row.must_fail for row in report.rows] == [False, False, True]
    assert "right: 2 of 2; wrong with a warning: 0; wrong without: 0; right but warned of: 0" in report.text
    assert 1.5 < report.rows[0].numbers["gradients per effective draw"] < 2.7
    silent = check_reference(names=FLAT[3:], call=stand_in(shift=1.0))
    assert not silent.passed
    assert "wrong without: 2 (mesquite-mesquite, nes2000-nes)" in silent.text
    loud = check_reference(names=FLAT[3:], call=stand_in(shift=1.0, words=["chains disagree"]))
    assert loud.passed
    assert "wrong with a warning: 2" in loud.text
    assert markdown(loud).splitlines()[2].startswith("| mesquite-mesquite | 8 | no |")


def test_damaged_files_are_named(tmp_path, monkeypatch):
    folder = tmp_path / "posteriordb"
    folder.mkdir()
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path))
    path = folder / "nes2000-nes.json"
    shutil.copy(SHIPPED / path.name, path)
    assert available() == ["nes2000-nes"]
    content = json.loads(path.read_text())
    damages = {
        "a JSON file": path.read_text()[:500],
        "an object": "[]",
        "missing keys": json.dumps({**{key: content[key] for key in content if key != "sd"}}),
        "10 numbers as mean": json.dumps({**content, "mean": content["mean"][:-1]}),
        "positive errors": json.dumps({**content, "mcse_sd": [0.0] * 10}),
        "finite numbers": json.dumps({**content, "sd": [None] * 10}),
        "10 parameters": json.dumps({**content, "parameters": ["beta[1]"]}),
        "dimensions": json.dumps({**content, "dimensions": {"beta": "nine"}}),
        "data of nes2000-nes": json.dumps({**content, "data": {"N": 3}}),
    }
    for words, text in damages.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"read_reference\(name=...\) needs .*{words}.*"):
            read_reference("nes2000-nes")
    with pytest.raises(FileNotFoundError, match="LANGEVIN_DATA"):
        read_reference("arK-arK")
    with pytest.raises(ValueError, match="one of"):
        read_reference("no-such")
    with pytest.raises(ValueError, match="some of"):
        check_reference(names=["arK-arK"])
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="LANGEVIN_DATA"):
        data_folder()


def test_without_a_checkout_the_variable_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_SHIPPED", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="LANGEVIN_DATA"):
        available()
