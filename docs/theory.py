"""Prints every number of docs/theory.md: `python docs/theory.py`, some seconds. All are exact solutions, no sampling."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import solve_discrete_lyapunov

import langevin as lv
from langevin.tuning.law import Law

CURVATURES = 1 / np.linalg.eigvalsh([[1.0, 0.9], [0.9, 1.0]])[::-1]  # of the paper's Gaussian: 0.526 and 10


def law(kernel, eps, curvature=1.0, noise=0.0):
    """Return the stationary variance and the spectral radius of a sampler's own update on U = curvature theta^2 / 2."""
    one = torch.ones(1, 1, dtype=torch.float64)
    steps = Law.of(kernel, eps, one, one)
    transition = steps.transition(curvature)[0].numpy()
    gradient, noises = steps.gradient[0].numpy(), steps.noises[0].numpy()
    radius = np.abs(np.linalg.eigvals(transition)).max()
    if radius >= 1:
        return np.inf, radius
    return solve_discrete_lyapunov(transition, noises @ noises.T + noise * gradient @ gradient.T)[0, 0], radius


def simple_form(eps, a, beta, curvature=1.0):
    """Return the variance of the first-order form: noise on m, then theta moves by the new m."""
    momentum = np.array([(1 - beta) * curvature, beta])
    transition = np.vstack([np.array([1 - eps * curvature, 0]) - eps * a * momentum, momentum])
    own = (1 - beta) * np.sqrt(2 / (a * eps)) * np.array([[-eps * a], [1.0]])
    return solve_discrete_lyapunov(transition, own @ own.T + np.diag([2 * eps, 0]))[0, 0]


def covariance_error(variances):
    """Return the mean absolute error of the covariance on the paper's Gaussian, from the variances along its two axes."""
    slow, fast = variances[0] - 1 / CURVATURES[0], variances[1] - 1 / CURVATURES[1]
    return (abs(slow + fast) / 2 + abs(slow - fast) / 2) / 2


def table(title, header, rows):
    print(f"\n{title}")
    print("  ".join(f"{name:>12}" for name in header))
    for row in rows:
        print("  ".join(f"{value:>12}" if isinstance(value, str) else f"{value:12.4g}" for value in row))


def published():
    rows = []
    for a in (1.0, 10.0):
        for curvature in CURVATURES:
            gamma = 0.1 / 0.01
            formula = (gamma + (1 + a) * curvature) / ((1 + a) * (gamma + curvature))
            rows.append((a, curvature, formula, curvature * law(lv.msgld(0.01, bias_factor=a), 0.01, curvature)[0], 1 / (1 + a)))
    table(
        "1. Published MSGLD, eps .01, beta .9: its temperature along a direction of curvature k",
        ("a", "k", "formula (2)", "recursion", "1 / (1 + a)"),
        rows,
    )


def forms():
    rows = []
    for eps in (0.01, 0.05, 0.1):
        for a in (1.0, 10.0):
            kernels = (lv.sgld(eps), lv.msgld(eps, bias_factor=a), lv.msgld(eps, bias_factor=a, temperature=1 + a))
            errors = [covariance_error([law(kernel, eps, k)[0] for k in CURVATURES]) for kernel in kernels]
            simple = covariance_error([simple_form(eps, a, 0.9, k) for k in CURVATURES])
            ours = covariance_error([law(lv.msgld(eps, bias_factor=a, invariant=True), eps, k)[0] for k in CURVATURES])
            rows.append((eps, a, *errors, simple, 0.0 if ours < 1e-12 else ours))
    table(
        "2. Mean absolute error of the covariance on the paper's Gaussian, beta .9, exact gradients",
        ("eps", "a", "SGLD", "published", "(1+a) noise", "first order", "invariant"),
        rows,
    )


def minibatches():
    rows = []
    for a in (1.0, 10.0):
        for eps in (0.002, 0.001):
            kernel, longer = (lv.msgld(eps, bias_factor=factor, invariant=True) for factor in (a, 0.0))
            found = law(kernel, eps, noise=1.0)[0] - 1
            rows.append((a, eps, (1 + a) * eps / 2, found, law(longer, (1 + a) * eps, noise=1.0)[0] - 1))
    table(
        "3. Heat of a gradient noise of variance 1 on N(0, 1), beta .9: relative error of the variance",
        ("a", "eps", "(1+a) eps/2", "invariant", "a=0, (1+a)eps"),
        rows,
    )


def speed(condition=100.0):
    """Compare how fast the softest direction forgets, at the fastest step that the stiffest bears with a variance off by 5 %."""
    rows = []

    def best(name, build, settings):
        found = (0.0, 0.0, "")
        for text, values in settings:
            for eps in np.geomspace(0.02, 2.0, 60):
                stiff, radius = law(build(1.0, **values), eps)
                if radius < 1 and abs(stiff - 1) <= 0.05:
                    soft = law(build(1.0, **values), eps, 1 / condition)[1]
                    found = max(found, (-np.log(soft), eps, text))
        rows.append((name, found[2], found[1], 1 / found[0]))

    betas = (0.5, 0.8, 0.9, 0.95)
    best("SGLD", lv.sgld, [("", {})])
    best("SGHMC", lv.sghmc, [(f"beta {beta}", {"beta": beta}) for beta in betas])
    best("LM (a = 0)", lv.msgld, [("", {"bias_factor": 0.0, "invariant": True})])
    grid = [(a, beta) for a in (1.0, 3.0, 10.0, 30.0, 100.0) for beta in betas]
    settings = [(f"{a:g}, {beta}", {"bias_factor": a, "beta": beta, "invariant": True}) for a, beta in grid]
    best("invariant", lv.msgld, settings)
    table(
        f"4. Steps in which the softest of two directions (curvatures 1 and 1/{condition:g}) forgets, best step and settings",
        ("sampler", "settings", "eps", "steps"),
        rows,
    )


if __name__ == "__main__":
    published()
    forms()
    minibatches()
    speed()
