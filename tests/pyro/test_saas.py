"""The example's SAAS Gaussian process has the density of the Pyro model and the predictions of a joint Gaussian."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pyro_models import MODELS, normals, saas, uniforms

import langevin as lv

EXAMPLE = Path(__file__).parents[2] / "examples" / "saas_gp.py"
sys.path.insert(0, str(EXAMPLE.parent))
import saas_gp  # noqa: E402

X, Y = MODELS["saas"][1]


def test_the_example_has_the_density_of_the_pyro_model():
    model, target = saas_gp.saas(X, Y), lv.from_pyro(saas, X, Y)
    values = model.constrain(normals(3, model.dim))
    positions = [
        torch.stack([each.unconstrain({name: value[k] for name, value in values.items()}) for k in range(3)])
        for each in (model, target)
    ]
    found, exact = model.evaluate(positions[0]).energy, target.evaluate(positions[1]).energy
    # torch made the example's Gamma(0.9, 0.15) with float32 numbers.
    torch.testing.assert_close(found, exact, rtol=1e-7, atol=1e-7)


def test_predictions_are_those_of_the_joint_gaussian():
    new = uniforms(4, 2, shift=0.3)
    draws = {
        "outputscale": torch.tensor([1.5, 0.7]).double(),
        "noise": torch.tensor([0.02, 0.3]).double(),
        "tausq": torch.tensor([0.5, 2.0]).double(),
        "mean": torch.tensor([0.3, -1.0]).double(),
        "inv_length_sq": torch.tensor([[1.0, 4.0], [0.2, 9.0]]).double(),
    }
    means, sds = saas_gp.predict(draws, X, Y, new)
    both = torch.cat([X, new])
    for draw in range(2):
        p = {name: value[draw] for name, value in draws.items()}
        square = ((both[:, None] - both) ** 2 * p["tausq"] * p["inv_length_sq"]).sum(-1)
        root = (5 * square).sqrt()
        covariance = p["outputscale"] * (1 + root + root**2 / 3) * (-root).exp()
        covariance += (p["noise"] + 1e-4) * torch.eye(16)
        weights = covariance[12:, :12] @ torch.linalg.inv(covariance[:12, :12])
        torch.testing.assert_close(means[draw], p["mean"] + weights @ (Y - p["mean"]))
        conditional = covariance[12:, 12:] - weights @ covariance[:12, 12:]
        torch.testing.assert_close(sds[draw], conditional.diagonal().sqrt())
    densities = torch.distributions.Normal(means, sds).log_prob(Y[:4]).exp().mean(0)
    assert math.isclose(saas_gp.test_log_likelihood(means, sds, Y[:4]), float(densities.log().mean()), rel_tol=1e-9)


@pytest.mark.slow
def test_the_example_finds_the_dimensions_that_matter(tmp_path):
    done = subprocess.run([sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    first = done.stdout.split("dimensions by sensitivity: [")[1].split(",")[:2]
    assert {int(each) for each in first} == {0, 1}
    assert float(done.stdout.split("RMSE ")[1].split()[0]) < 0.35
