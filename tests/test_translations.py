"""docs/concepts/scale.md: each row of its table is the other library's update, written from its source, beside ours.

Both are fed the same gradients of a mean loss and the same normals, and the parameters must come out equal. The formulas were read
in posteriors 0.1.3, blackjax 1.7.1, SGMCMCJax 0.2.13, torch-sgld 0.1.0, devinterp 2.0.1, TFP 0.25.0 and torch 2.13.0.
"""

from __future__ import annotations

import re
from math import sqrt
from pathlib import Path

import pytest
import torch

import langevin as lv
from langevin.random import Purpose, normal, stream

PAGE = (Path(__file__).parents[1] / "docs" / "concepts" / "scale.md").read_text()
N, DIM, STEPS, SEED = 200, 7, 5, 3
START = normal(SEED, stream(Purpose.INIT), 0, DIM, dtype=torch.float64)
CURVATURE = torch.linspace(0.2, 2.0, DIM, dtype=torch.float64)


def mean_loss_gradient(theta):
    """Return the gradient of the mean NLL: not linear, so that a wrong place for it shows."""
    return CURVATURE * theta + 0.1 * theta**3


def noise(step):
    """Return the normals that our optimizers draw at this step for a first parameter."""
    return normal(SEED, stream(Purpose.POSITION), step, DIM, dtype=torch.float64)


ROWS = {}


def row(name, optimizer, **theirs):
    def add(function):
        ROWS[name] = function, optimizer, theirs
        return function

    return add


# Each function takes theta and their settings, and yields theta after each of their steps; its first lines are their formula.


@row("torch.optim.SGD", lv.optim.SGHMC, lr=0.1, momentum=0.8, weight_decay=0.01)
def sgd(theta, lr, momentum, weight_decay):
    parameter = torch.nn.Parameter(theta.clone())
    opt = torch.optim.SGD([parameter], lr=lr, momentum=momentum, weight_decay=weight_decay)
    for _ in range(STEPS):
        parameter.grad = mean_loss_gradient(parameter.detach())
        opt.step()
        yield parameter.detach().clone()


@row("posteriors SGLD", lv.optim.SGLD, lr=0.1, temperature=0.5 / N, prior_sd=0.7)
def posteriors_sgld(theta, lr, temperature, prior_sd):
    for step in range(STEPS):
        g = -(mean_loss_gradient(theta) + theta / prior_sd**2 / N)  # of the mean log posterior: the prior is divided by N
        theta = theta + lr * g + (temperature * lr * 2) ** 0.5 * noise(step)
        yield theta


@row("blackjax SGLD", lv.optim.SGLD, step_size=0.1 / N, temperature=0.5, prior_sd=0.7)
def blackjax_sgld(theta, step_size, temperature, prior_sd):
    for step in range(STEPS):
        g = -(N * mean_loss_gradient(theta) + theta / prior_sd**2)
        theta = theta + step_size * g + sqrt(2 * temperature * step_size) * noise(step)
        yield theta


@row("SGMCMCJax SGLD", lv.optim.SGLD, dt=0.1 / N, prior_sd=0.7)
def sgmcmcjax_sgld(theta, dt, prior_sd):
    for step in range(STEPS):
        g = -(N * mean_loss_gradient(theta) + theta / prior_sd**2)
        theta = theta + dt * g + sqrt(2 * dt) * noise(step)
        yield theta


@row("torch-sgld, momentum 0", lv.optim.SGLD, lr=0.1 / N, temperature=0.5, weight_decay=2.0)
def torch_sgld(theta, lr, temperature, weight_decay):
    for step in range(STEPS):
        d_p = N * mean_loss_gradient(theta) + weight_decay * theta  # the loss is the whole energy: N times the mean
        theta = theta - lr * d_p + sqrt(2 * lr * temperature) * noise(step)
        yield theta


@row("torch-sgld, momentum", lv.optim.SGHMC, lr=0.1 / N, momentum=0.2, temperature=0.5, weight_decay=2.0)
def torch_sgld_momentum(theta, lr, momentum, temperature, weight_decay):
    buf = torch.zeros_like(theta)
    for step in range(STEPS):
        d_p = N * mean_loss_gradient(theta) + weight_decay * theta
        buf = (1 - momentum) * buf - lr * d_p + sqrt(2 * lr * momentum * temperature) * noise(step)
        theta = theta + buf
        yield theta


@row("devinterp SGLD", lv.optim.SGLD, lr=0.002, nbeta=40.0, weight_decay=3.0)
def devinterp_sgld(theta, lr, nbeta, weight_decay):
    for step in range(STEPS):
        d_p = nbeta * mean_loss_gradient(theta) + weight_decay * theta
        theta = theta - 0.5 * lr * d_p + lr**0.5 * noise(step)
        yield theta


@row("TFP pSGLD", lv.optim.PSGLD, learning_rate=0.001, preconditioner_decay_rate=0.95)
def tfp_psgld(theta, learning_rate, preconditioner_decay_rate):
    mom = torch.ones_like(theta)  # burnin=0, diagonal_bias=0, without the gradient of the preconditioner: the page says so
    for step in range(STEPS):
        grad = mean_loss_gradient(theta)
        mom = preconditioner_decay_rate * mom + (1 - preconditioner_decay_rate) * grad**2
        preconditioner = mom**-0.5
        mean, stddev = 0.5 * preconditioner * grad * N, learning_rate**-0.5 * preconditioner**0.5
        theta = theta - learning_rate * (mean - stddev * noise(step))
        yield theta


@row("SGMCMCJax pSGLD", lv.optim.PSGLD, dt=0.002, alpha=0.95, eps=1e-5)
def sgmcmcjax_psgld(theta, dt, alpha, eps):
    v = torch.zeros_like(theta)
    for step in range(STEPS):
        g = -N * mean_loss_gradient(theta)
        v = alpha * v + (1 - alpha) * g**2
        G = 1 / (v.sqrt() + eps)
        theta = theta + dt * 0.5 * G * g + (dt * G).sqrt() * noise(step)
        yield theta


def translated(name, theirs):
    """Return our settings for theirs, and theirs again for ours: the two directions that the page gives."""
    t = theirs
    match name:
        case "torch.optim.SGD":
            ours = {"lr": t["lr"], "beta": t["momentum"], "temperature": 0.0, "std": 1 / sqrt(t["weight_decay"] * N)}
            back = {"lr": ours["lr"], "momentum": ours["beta"], "weight_decay": 1 / (N * ours["std"] ** 2)}
        case "posteriors SGLD":
            ours = {"lr": t["lr"], "temperature": N * t["temperature"], "std": t["prior_sd"]}
            back = {"lr": ours["lr"], "temperature": ours["temperature"] / N, "prior_sd": ours["std"]}
        case "blackjax SGLD":
            ours = {"lr": N * t["step_size"], "temperature": t["temperature"], "std": t["prior_sd"]}
            back = {"step_size": ours["lr"] / N, "temperature": ours["temperature"], "prior_sd": ours["std"]}
        case "SGMCMCJax SGLD":
            ours = {"lr": N * t["dt"], "temperature": 1.0, "std": t["prior_sd"]}
            back = {"dt": ours["lr"] / N, "prior_sd": ours["std"]}
        case "torch-sgld, momentum 0":
            ours = {"lr": N * t["lr"], "temperature": t["temperature"], "std": t["weight_decay"] ** -0.5}
            back = {"lr": ours["lr"] / N, "temperature": ours["temperature"], "weight_decay": ours["std"] ** -2}
        case "torch-sgld, momentum":
            ours = {"lr": N * t["lr"], "temperature": t["temperature"], "std": t["weight_decay"] ** -0.5, "beta": 1 - t["momentum"]}
            back = {
                "lr": ours["lr"] / N,
                "temperature": ours["temperature"],
                "weight_decay": ours["std"] ** -2,
                "momentum": 1 - ours["beta"],
            }
        case "devinterp SGLD":
            tau = N / t["nbeta"]
            ours = {"lr": t["nbeta"] * t["lr"] / 2, "temperature": tau, "std": 1 / sqrt(t["weight_decay"] * tau)}
            nbeta = N / ours["temperature"]
            back = {"lr": 2 * ours["lr"] / nbeta, "nbeta": nbeta, "weight_decay": 1 / (ours["temperature"] * ours["std"] ** 2)}
        case "TFP pSGLD":
            ours = {"lr": N * t["learning_rate"] / 2, "beta": t["preconditioner_decay_rate"], "eps": 1e-12, "temperature": 1.0}
            back = {"learning_rate": 2 * ours["lr"] / N, "preconditioner_decay_rate": ours["beta"]}
        case "SGMCMCJax pSGLD":
            # V of ours is over gradients of the mean loss: N**2 smaller, so G is N times larger, and so is eps smaller.
            ours = {"lr": t["dt"] / 2, "beta": t["alpha"], "eps": t["eps"] / N, "temperature": 1.0}
            back = {"dt": 2 * ours["lr"], "alpha": ours["beta"], "eps": N * ours["eps"]}
    return ours, back


def our_steps(optimizer, ours, metric=None):
    """Yield theta after each step of our optimizer; `metric` puts V where the others start it."""
    ours = dict(ours)
    std = ours.pop("std", None)
    parameter = torch.nn.Parameter(START.clone())
    prior = None if std is None else lv.priors.gaussian(std=std)
    opt = optimizer([parameter], num_data=N, prior=prior, seed=SEED, **ours)
    for step in range(STEPS):
        parameter.grad = mean_loss_gradient(parameter.detach())
        if step == 0 and metric is not None:  # ours would start V at the first squared gradient
            opt.state[parameter].update({"metric_average": metric.clone(), "steps": 1})
        opt.step()
        yield parameter.detach().clone()


@pytest.mark.parametrize("name", ROWS)
def test_the_steps_are_the_same_with_the_settings_of_the_page(name):
    function, optimizer, theirs = ROWS[name]
    ours, back = translated(name, theirs)
    assert back == pytest.approx(theirs)
    metric = {"TFP pSGLD": torch.ones_like(START), "SGMCMCJax pSGLD": torch.zeros_like(START)}.get(name)
    found = list(our_steps(optimizer, ours, metric))
    expected = list(function(START, **theirs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert (expected[-1] - START).abs().min() > 1e-6  # and they moved


# SGHMC of posteriors, blackjax and SGMCMCJax moves theta by the old velocity: the settings translate, the steps do not.
EULER = {
    "posteriors SGHMC": {"lr": 0.05, "alpha": 2.0, "sigma": 1.5, "temperature": 0.5 / N},
    "blackjax SGHMC": {"step_size": 0.01, "alpha": 20.0, "temperature": 0.5},
    "SGMCMCJax SGHMC": {"dt": 1e-4, "alpha": 0.2},
}


def euler_step(name, theta, v, step):
    """Return theta and the velocity, in units of theta per step, after one of their steps."""
    t, xi, grad = EULER[name], noise(step), mean_loss_gradient(theta)
    match name:
        case "posteriors SGHMC":
            lr, prec, m = t["lr"], t["sigma"] ** -2, v / (t["lr"] * t["sigma"] ** -2)
            moved = theta + lr * prec * m
            m = m - lr * grad - lr * prec * t["alpha"] * m + (t["temperature"] * lr * 2 * t["alpha"]) ** 0.5 * xi
            return moved, lr * prec * m
        case "blackjax SGHMC":
            eps, p = t["step_size"], v / t["step_size"]
            moved = theta + eps * p
            p = (1 - t["alpha"] * eps) * p - eps * N * grad + sqrt(eps * t["temperature"] * 2 * t["alpha"]) * xi
            return moved, eps * p
        case "SGMCMCJax SGHMC":
            return theta + v, v - t["dt"] * N * grad - t["alpha"] * v + sqrt(2 * t["alpha"] * t["dt"]) * xi


def euler_settings(name):
    t = EULER[name]
    match name:
        case "posteriors SGHMC":
            prec = t["sigma"] ** -2
            return {"lr": t["lr"] ** 2 * prec, "beta": 1 - t["lr"] * prec * t["alpha"], "temperature": N * t["temperature"]}
        case "blackjax SGHMC":
            beta = 1 - t["alpha"] * t["step_size"]
            return {"lr": N * t["step_size"] ** 2, "beta": beta, "temperature": t["temperature"]}
        case "SGMCMCJax SGHMC":
            return {"lr": N * t["dt"], "beta": 1 - t["alpha"], "temperature": 1.0}


@pytest.mark.parametrize("name", EULER)
def test_the_kick_is_the_same_and_the_move_is_by_the_old_velocity(name):
    parameter = torch.nn.Parameter(START.clone())
    opt = lv.optim.SGHMC([parameter], num_data=N, seed=SEED, **euler_settings(name))
    theta, v = START.clone(), torch.zeros_like(START)
    for step in range(STEPS):  # from the same place and velocity each time
        parameter.data.copy_(theta)
        parameter.grad = mean_loss_gradient(theta)
        if step:
            opt.state[parameter]["velocity"].copy_(v)
        before = v
        moved, v = euler_step(name, theta, v, step)
        opt.step()
        torch.testing.assert_close(opt.state[parameter]["velocity"], v, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(moved, theta + before, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(parameter.detach(), theta + v, rtol=1e-12, atol=1e-12)
        theta = moved


def test_the_limits_of_stability_are_those_of_the_page():
    """The largest eigenvalue of a step on U = k θ² / 2, just inside and just outside: theirs 1 - β, ours 2 (1 + β)."""
    for beta in (0.0, 0.5, 0.9):
        for limit, matrix in (
            (1 - beta, lambda c, beta=beta: [[1.0, 1.0], [-c, beta]]),
            (2 * (1 + beta), lambda c, beta=beta: [[1 - c, beta], [-c, beta]]),
        ):
            inside, outside = (torch.linalg.eigvals(torch.tensor(matrix(f * limit))).abs().max() for f in (0.99, 1.01))
            assert inside < 1 < outside


def test_the_page_has_exactly_these_rows():
    section = PAGE.partition("## Translations")[2].partition("\n## ")[0]
    names = [re.sub(r"[`*]", "", line.split("|")[1]).strip() for line in section.splitlines() if re.match(r"\| [`*\w]", line)]
    names = [name for name in names if name not in ("theirs", "their step")]
    assert sorted(names) == sorted([*ROWS, *EULER])


def test_a_learning_rate_that_changes_makes_sgd_and_the_sampler_differ():
    """SGD multiplies the whole momentum by the new learning rate, the sampler keeps the velocity that it has."""
    places = []
    for make in (
        lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.8),
        lambda p: lv.optim.SGHMC([p], lr=0.1, beta=0.8, num_data=N, temperature=0.0),
    ):
        parameter = torch.nn.Parameter(START.clone())
        opt, path = make(parameter), []
        for step in range(4):
            opt.param_groups[0]["lr"] = 0.1 if step < 2 else 0.01
            parameter.grad = mean_loss_gradient(parameter.detach())
            opt.step()
            path.append(parameter.detach().clone())
        places.append(path)
    torch.testing.assert_close(places[0][1], places[1][1])
    assert (places[0][2] - places[1][2]).abs().max() > 1e-3
