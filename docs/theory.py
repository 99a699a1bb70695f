"""Prints every number of docs/theory.md: `python docs/theory.py`, some seconds. All are exact solutions, no sampling."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from scipy.linalg import hadamard, solve_discrete_lyapunov

import langevin as lv
from langevin.adaptation.stationary import Direction, LinearProcess

CURVATURES = 1 / np.linalg.eigvalsh([[1.0, 0.9], [0.9, 1.0]])[::-1]  # of the paper's Gaussian: 0.526 and 10


def law(kernel, eps, curvature=1.0, noise=0.0):
    """Return the stationary variance and the spectral radius of a sampler's own update on U = curvature theta^2 / 2."""
    one = torch.ones(1, 1, dtype=torch.float64)
    steps = LinearProcess.of(kernel, eps, one, one)
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


def absorbed(noise, curvature, size):
    """Return D of the corrected gradient g + D p: Sigma (2 + S (Sigma - K) / 2)^-1, matrices, tau = 1."""
    return noise @ np.linalg.inv(2 * np.eye(len(noise)) + size @ (noise - curvature) / 2)


def moves_of(eps, a, beta, scale):
    """Return E, what the two velocities move theta by; S = E E^T."""
    return np.hstack([np.diag((2 * a * eps * (1 - beta) / (1 + beta) * scale) ** 0.5), (2 * eps) ** 0.5 * np.eye(len(scale))])


def corrected_step(friction, eps, a, beta, scale):
    """Return what (theta, v, u), the gradient and the normals give to the next (theta, v, u), for the kick with g + D p."""
    return step_of(friction, moves_of(eps, a, beta, scale), np.repeat([beta, 0.0], len(scale)))


def step_of(friction, moves, kept):
    """Return the same for any velocities w: E, what they move theta by, and the share of each that is kept."""
    d, n = moves.shape[0], sum(moves.shape)
    move, refresh, stir = np.eye(n), np.append(np.ones(d), kept), np.zeros((n, n - d))
    move[:d, d:] = moves / 2
    stir[d:] = np.diag((1 - kept**2) ** 0.5)
    kick, pull = np.eye(n), np.zeros((n, d))
    kick[d:, d:] -= moves.T @ friction @ moves
    pull[d:] = -moves.T @ (np.eye(d) - friction @ moves @ moves.T / 2)
    after = move * refresh @ move
    return after @ kick, after @ pull, move @ stir


def subtracting_step(noise, eps, a, beta, limit=0.95):
    """Return the same for A (B O B) A in one dimension: noise is subtracted as far as it can be, friction balances the rest."""
    moves, own = moves_of(eps, a, beta, np.ones(1)), np.diag([(1 - beta) / (1 + beta), 1.0])
    outer, heat = noise / 4 * moves.T @ moves, (1 + a) * eps * noise / 2
    share = min(1.0, limit / heat) if heat else 1.0
    damping = own + (1 - share) * outer
    damping = (np.eye(2) - damping) @ np.linalg.inv(np.eye(2) + damping)
    move, kick, pull, stir = np.eye(3), np.eye(3), np.zeros((3, 1)), np.zeros((3, 2))
    move[:1, 1:] = moves / 2
    kick[1:, 1:], pull[1:] = damping, -(np.eye(2) + damping) @ moves.T / 2
    stir[1:] = np.linalg.cholesky((np.eye(2) + damping) @ (own - share * outer) @ (np.eye(2) + damping))
    # the gradient is taken after the first move, so what theta carries to it is not theta alone: see `settled`
    return move @ kick @ move, move @ pull, move @ stir, move[:1]


def settled(step, curvature, noise):
    """Return the transition and the stationary covariance of (theta, v, u)."""
    carried, gradient, noises, *place = step
    place = place[0] if place else np.eye(len(carried))[: len(curvature)]  # where the gradient is taken
    transition = carried + gradient @ curvature @ place
    if np.abs(np.linalg.eigvals(transition)).max() >= 1:
        return transition, np.full_like(transition, np.inf)
    return transition, solve_discrete_lyapunov(transition, noises @ noises.T + gradient @ noise @ gradient.T)


def in_one(form, eps, a, beta, curvature, noise, known_noise=None, known_curvature=None):
    """Return transition and covariance of a form in one dimension; what the step knows may differ from what is true."""
    one = np.ones((1, 1))
    known_noise = noise if known_noise is None else known_noise
    known_curvature = curvature if known_curvature is None else known_curvature
    if form == "subtract":
        return settled(subtracting_step(known_noise, eps, a, beta), curvature * one, noise * one)
    moves = moves_of(eps, a, beta, np.ones(1))
    known = {"plain": 0.0, "absorb": known_noise, "exact": known_noise}[form] * one
    friction = absorbed(known, (known_curvature if form == "exact" else 0.0) * one, moves @ moves.T)
    return settled(corrected_step(friction, eps, a, beta, np.ones(1)), curvature * one, noise * one)


def step_of_heat(heat, a, noise):
    return 2 * heat / ((1 + a) * noise)


def exactness():
    """Put the law of the proof into the recursion: S k up to .999 of its limit, rho up to 1000, matrices that do not commute."""
    settings = []
    grid = ([0, 1, 10, 100], [0, 0.9, 0.99], [0.1, 7], [0.01, 50], [0.01, 0.5, 0.999], [0, 0.5, 5, 1e3])
    for a, beta, scale, curvature, share, heat in product(*grid):
        eps = 4 * share / curvature / (2 * a * (1 - beta) / (1 + beta) * scale + 2)
        noise = 2 * heat / ((1 + a * scale) * eps)
        moves = moves_of(eps, a, beta, np.full(1, scale))
        settings.append((np.full((1, 1), curvature), np.full((1, 1), noise), moves, np.array([beta, 0.0])))
    rows, random = [("scalars", *departure(settings))], np.random.default_rng(0)
    settings = []
    for _ in range(200):
        d = random.integers(3, 6)
        root, part = random.normal(size=(d, d)), random.normal(size=(d, random.integers(1, d + 1)))
        scale, a, beta = np.exp(random.normal(size=d)), 10 ** random.uniform(-1, 2), random.uniform(0, 0.99)
        curvature, moves = root @ root.T + np.eye(d) / 10, moves_of(1.0, a, beta, scale)
        eps = 4 * random.choice([0.1, 0.5, 0.95]) / np.linalg.eigvals(moves @ moves.T @ curvature).real.max()
        noise = part @ part.T * 10 ** random.uniform(-2, 4)
        settings.append((curvature, noise, moves_of(eps, a, beta, scale), np.repeat([beta, 0.0], d)))
    rows.append(("matrices", *departure(settings)))
    table(
        "5. The law (5) under one corrected step: what it changes, relative; and the largest spectral radius",
        ("", "settings", "change", "radius"),
        rows,
    )


def departure(settings):
    """Return how many settings there are, what one step changes of the law at most, and whether each recursion settles."""
    worst, largest = 0.0, 0.0
    for curvature, noise, moves, kept in settings:
        d = len(curvature)
        law_at_gradient = np.block([[np.linalg.inv(curvature), moves / 2], [moves.T / 2, np.eye(len(kept))]])
        step = step_of(absorbed(noise, curvature, moves @ moves.T), moves, kept)
        carried, gradient, noises = step
        transition = carried + gradient @ curvature @ np.eye(len(carried))[:d]
        after = transition @ law_at_gradient @ transition.T + noises @ noises.T + gradient @ noise @ gradient.T
        deviations = np.diag(law_at_gradient) ** 0.5
        worst = max(worst, np.abs((after - law_at_gradient) / np.outer(deviations, deviations)).max())
        largest = max(largest, np.abs(np.linalg.eigvals(transition)).max())
    return len(settings), "< 1e-10" if worst < 1e-10 else worst, "< 1" if largest < 1 else largest


def corrections():
    rows = []
    for eps in (0.05, 0.3):
        for heat in (0.5, 5.0, 50.0):
            noise = 2 * heat / (11 * eps)
            errors = [in_one(form, eps, 10.0, 0.9, 1.0, noise)[1][0, 0] - 1 for form in ("plain", "subtract", "absorb", "exact")]
            rows.append((eps, heat, *(0.0 if abs(error) < 1e-9 else error for error in errors)))
    table(
        "6. Relative error of the variance on N(0, 1) under white noise of heat rho, a = 10, beta .9",
        ("eps", "rho", "plain", "subtract", "absorb", "exact"),
        rows,
    )


def draws():
    rows = []
    for a, beta, eps in ((0.0, 0.0, 0.1), (30.0, 0.95, 0.1), (1000.0, 0.999, 0.02)):
        for curvature in (1.0, 0.1, 0.01):
            transition, covariance = in_one("exact", eps, a, beta, curvature, 100 * curvature)
            sums = np.linalg.inv(np.eye(3) - transition) @ covariance
            correlation = covariance[:, 0] / covariance[0, 0]
            squares = np.linalg.solve(np.eye(9) - np.kron(transition, transition), np.kron(correlation, correlation))[0]
            formula = 100 + 2 / ((1 + a) * eps * curvature)
            found = 2 * sums[0, 0] / covariance[0, 0] - 1
            rows.append((a, beta, eps, curvature, (1 + a) * eps * 50 * curvature, formula, found, 2 * squares - 1))
    table(
        "7. Steps per independent draw, corrected, Sigma = 100 K (N/n = 100): formula (6), recursion, and for theta^2",
        ("a", "beta", "eps", "k", "rho", "formula (6)", "recursion", "of squares"),
        rows,
    )


def wrong():
    rows, factors = [], (0.8, 0.9, 1.1, 1.25)
    for what in ("Sigma, K right", "Sigma, V right"):
        for heat in (0.1, 1.0, 10.0, 100.0):
            noise, errors = 2 * heat / (11 * 0.05), []
            for factor in factors:
                curvature = 1.0 + (noise - factor * noise) * (what == "Sigma, V right")  # V - Sigma
                errors.append(in_one("exact", 0.05, 10.0, 0.9, 1.0, noise, factor * noise, curvature)[1][0, 0] - 1)
            rows.append((what, heat, *errors))
    table(
        "8. Relative error of the variance on N(0, 1) if Sigma is known up to a factor; a = 10, beta .9, eps .05",
        ("wrong", "rho", *(f"times {factor}" for factor in factors)),
        rows,
    )
    rows, factors = [], (0.0, 0.5, 1.5, 2.0)
    for eps in (0.05, 0.3):
        for heat in (0.1, 1.0, 10.0, 100.0):
            noise = 2 * heat / (11 * eps)
            errors = [in_one("exact", eps, 10.0, 0.9, 1.0, noise, noise, factor)[1][0, 0] - 1 for factor in factors]
            rows.append((eps, heat, *errors))
    table(
        "9. The same if K is known up to a factor (0: the step `absorb`)",
        ("eps", "rho", *(f"times {factor}" for factor in factors)),
        rows,
    )


def reshuffled():
    rows = []
    for period in (10, 100):
        for heat in (0.5, 5.0, 30.0):
            noise, eps = float(period), step_of_heat(heat, 10.0, period)
            errors = []
            for form in ("plain", "exact"):
                moves = moves_of(eps, 10.0, 0.9, np.ones(1))
                friction = absorbed(np.full((1, 1), noise), np.eye(1), moves @ moves.T) if form == "exact" else np.zeros((1, 1))
                steps = LinearProcess(*(torch.tensor(part)[None] for part in corrected_step(friction, eps, 10.0, 0.9, np.ones(1))))
                errors += [float(steps.variance(Direction(1.0, noise), epoch)[0]) - 1 for epoch in (None, period)]
            rows.append((period, heat, eps, *(0.0 if abs(error) < 1e-9 else error for error in errors)))
    table(
        "10. Relative error of the variance on N(0, 1), Sigma = N/n: rows with replacement (white) or reshuffled; a = 10, beta .9",
        ("N/n", "rho", "eps", "plain, white", "reshuffled", "exact, white", "reshuffled"),
        rows,
    )


def rotated():
    """Take K of condition number 100 in a basis where its diagonal is constant, Sigma = 100 K, rho as an element sees it."""
    basis, curvatures, scale = hadamard(8) / 8**0.5, np.geomspace(1, 0.01, 8), np.ones(8)
    curvature, rows = basis * curvatures @ basis.T, []
    for heat in (0.03, 0.1, 0.3, 1.0, 10.0):
        eps, worst = step_of_heat(heat, 10.0, 100 * curvatures.mean()), []
        moves = moves_of(eps, 10.0, 0.9, scale)
        for known in (0 * curvature, np.diag(np.diag(curvature)), curvature):
            friction = absorbed(100 * known, known, moves @ moves.T)
            covariance = settled(corrected_step(friction, eps, 10.0, 0.9, scale), curvature, 100 * curvature)[1][:8, :8]
            ratios = np.diag(basis.T @ covariance @ basis) * curvatures - 1
            ratios = np.where(np.abs(ratios) < 1e-9, 0.0, ratios)
            worst += [ratios.min(), ratios.max()]
        rows.append((heat, *worst))
    table(
        "11. Least and largest relative error of the variance along the axes of a rotated Gaussian: no, a diagonal, the full Sigma",
        ("rho", "none, least", "largest", "diagonal", "largest", "full", "largest"),
        rows,
    )


def stability():
    rows = []
    for a, beta in ((0.0, 0.0), (10.0, 0.9), (100.0, 0.99)):
        for heat in (0.0, 0.5, 5.0, 50.0):
            limits = []
            for form in ("plain", "subtract", "absorb", "exact"):
                low, high = 0.0, 999.0
                for _ in range(40):
                    size = (low + high) / 2
                    eps = size / (2 * a * (1 - beta) / (1 + beta) + 2)
                    transition = in_one(form, eps, a, beta, 1.0, 2 * heat / ((1 + a) * eps))[0]
                    low, high = (size, high) if np.abs(np.linalg.eigvals(transition)).max() < 1 else (low, size)
                limits.append(low)
            rows.append((a, beta, heat, *limits))
    table(
        "12. Limit of stability: S k on N(0, 1) at constant rho",
        ("a", "beta", "rho", "plain", "subtract", "absorb", "exact"),
        rows,
    )


def sums():
    """Check section 8: one to four averages, scales and a preconditioner that share no axis, without noise and with it."""
    random, rows = np.random.default_rng(1), []

    def positive(d, least):
        root = random.normal(size=(d, d))
        return root @ root.T + least * np.eye(d)

    for name in ("exact gradients", "noise absorbed"):
        settings = []
        for _ in range(200):
            d, averages = random.integers(2, 5), random.integers(1, 5)
            curvature, base = positive(d, 0.1), np.linalg.cholesky(positive(d, 0.1))
            betas, factors = random.uniform(0, 0.99, averages), 10 ** random.uniform(-1, 2, averages)
            strides = (2 * factors * (1 - betas) / (1 + betas)) ** 0.5
            parts = [stride * np.linalg.cholesky(positive(d, 0.1)) for stride in strides]
            moves = base @ np.hstack([*parts, 2**0.5 * np.eye(d)])
            share = random.choice([0.1, 0.5, 0.95])
            moves = moves * (4 * share / np.linalg.eigvals(moves @ moves.T @ curvature).real.max()) ** 0.5
            noise = 0 * curvature if name == "exact gradients" else positive(d, 0.0) * 10 ** random.uniform(-2, 4)
            settings.append((curvature, noise, moves, np.append(np.repeat(betas, d), np.zeros(d))))
        rows.append((name, *departure(settings)))
    table(
        "13. The same for sums of averages with a preconditioner, G_i, P, K and Sigma sharing no axis",
        ("", "settings", "change", "radius"),
        rows,
    )


def metric_that_moves():
    """Put the limit of section 9 to the test: the density that a step has for eps -> 0 at a fixed beta, and what the target says.

    In one dimension with R = sqrt(1 + x^2) and U = log cosh 3x + x^2 / 4, by quadrature: the stationary density is
    exp(integral of drift / (tau mobility)) / mobility.
    """
    x = np.linspace(-15, 15, 600_001)
    root, slope = (1 + x * x) ** 0.5, x / (1 + x * x) ** 0.5
    force, rows = 3 * np.tanh(3 * x) + x / 2, []
    for beta in (0.0, 0.5, 0.9, 0.99):
        seconds = []
        for taken in (1.0, 2 * beta / (1 + beta)):  # of the slope of the metric: ours, and that of an Euler step
            drift = (-root * root * force + root * slope + taken * root * slope) / root**2
            logs = np.concatenate([[0.0], np.cumsum((drift[1:] + drift[:-1]) / 2 * np.diff(x))]) - 2 * np.log(root)
            weights = np.exp(logs - logs.max())
            seconds.append(weights @ x**2 / weights.sum())
        energy = np.logaddexp(3 * x, -3 * x) + x * x / 4
        weights = np.exp(energy.min() - energy)
        true = weights @ x**2 / weights.sum()
        rows.append((beta, *(0.0 if abs(value / true - 1) < 1e-6 else value / true - 1 for value in seconds)))
    table("14. SGRHMC for eps -> 0 at a fixed beta, even friction: relative error of E x^2", ("beta", "midpoint", "Euler"), rows)


if __name__ == "__main__":
    published()
    forms()
    minibatches()
    speed()
    exactness()
    corrections()
    draws()
    wrong()
    reshuffled()
    rotated()
    stability()
    sums()
    metric_that_moves()
