"""The paper's algorithms as plain loops over Python floats: slow, obvious, sharing no code with the library.

Each function takes a start theta (a list), a function of theta that returns the gradient (a list), the noise of every step
(a list of lists) and the settings by the paper's letters, and returns the path. Those with a matrix use numpy.
"""

from __future__ import annotations

from math import erfc, exp, sqrt

import numpy as np


def sgld(theta, gradient, noises, *, eps, tau):
    path = []
    for eta in noises:
        g = gradient(theta)
        theta = [theta[i] - eps * g[i] + sqrt(2 * eps * tau) * eta[i] for i in range(len(theta))]
        path.append(theta)
    return path


def sglrw(theta, gradient, noises, *, eps, tau):
    """Up or down by sqrt(2 eps tau), up where the uniform (1 + u) / 2 on (0, 1) is above one less the probability of it."""
    path = []
    for u in noises:
        g = gradient(theta)
        theta, before = [], theta
        for i, x in enumerate(before):
            d = max(sqrt(2 * eps * tau), eps * abs(g[i]))
            up = (1 - eps * g[i] / d) / 2 if d else 0.0
            theta.append(x + d if (1 + u[i]) / 2 > 1 - up else x - d)
        path.append(theta)
    return path


def msgld(theta, gradient, noises, *, eps, tau, a, beta):
    """Algorithm 1: m_t holds the gradients before step t."""
    d, path = len(theta), []
    m = [0.0] * d
    for eta in noises:
        g = gradient(theta)
        theta = [theta[i] - eps * (g[i] + a * m[i]) + sqrt(2 * eps * tau) * eta[i] for i in range(d)]
        m = [beta * m[i] + (1 - beta) * g[i] for i in range(d)]
        path.append(theta)
    return path


def msgld_invariant(theta, gradient, noises, *, eps, tau, a, beta):
    """docs/theory.md: BAOAB with a velocity v that lasts and one, u, made anew at every step. A noise is a pair (eta, xi)."""
    return invariant(theta, gradient, noises, eps, tau, a, beta, lambda g, step: lambda vector: vector)


def asgld_invariant(theta, gradient, noises, *, eps, tau, a, beta_1, beta_2, lam, adapt_steps):
    v = [0.0] * len(theta)

    def root(g, step):
        for i in range(len(g)):
            if step == 0:
                v[i] = g[i] ** 2
            elif step < adapt_steps:
                v[i] = beta_2 * v[i] + (1 - beta_2) * g[i] ** 2
        return lambda vector: [x * (v[i] + lam) ** -0.25 for i, x in enumerate(vector)]

    return invariant(theta, gradient, noises, eps, tau, a, beta_1, root)


def adamax_invariant(theta, gradient, noises, *, eps, tau, a, beta_1, beta_2, lam, adapt_steps):
    u = [0.0] * len(theta)

    def root(g, step):
        if step < adapt_steps:
            u[:] = [max(beta_2 * u[i], abs(g[i])) for i in range(len(g))]
        return lambda vector: [x / sqrt(u[i] + lam) for i, x in enumerate(vector)]

    return invariant(theta, gradient, noises, eps, tau, a, beta_1, root)


def asgld_full_invariant(theta, gradient, noises, *, eps, tau, a, beta_1, beta_2, lam, adapt_steps):
    v = np.zeros((len(theta), len(theta)))

    def root(g, step):
        if step < adapt_steps:
            share = 1 - beta_2 if step else 1.0
            v[:] = (1 - share) * v + share * np.outer(g, g)
        power = _power(v + lam * np.eye(len(g)), -0.25)
        return lambda vector: (power @ vector).tolist()

    return invariant(theta, gradient, noises, eps, tau, a, beta_1, root)


def invariant(theta, gradient, noises, eps, tau, a, beta, root):
    """Take the steps; `root` is told the gradient and the step, and returns what applies G^(1/2) to a vector."""
    d, path, h = len(theta), [], sqrt(2 * a * eps * (1 - beta) / (1 + beta))
    v, u = [0.0] * d, [0.0] * d
    for step, (eta, xi) in enumerate(noises):
        g = gradient(theta)
        scaled = root(g, step)
        kick = scaled(g)
        for i in range(d):
            v[i] -= h * kick[i]  # B
            u[i] -= sqrt(2 * eps) * g[i]
        pull = scaled(v)
        half = [theta[i] + 0.5 * (h * pull[i] + sqrt(2 * eps) * u[i]) for i in range(d)]  # A
        v = [beta * v[i] + sqrt(tau * (1 - beta**2)) * xi[i] for i in range(d)]  # O
        u = [sqrt(tau) * eta[i] for i in range(d)]
        pull = scaled(v)
        theta = [half[i] + 0.5 * (h * pull[i] + sqrt(2 * eps) * u[i]) for i in range(d)]  # A
        path.append(theta)
    return path


def adamax(theta, gradient, noises, *, eps, tau, a, beta_1, beta_2, lam):
    d, path = len(theta), []
    m, u = [0.0] * d, [0.0] * d
    for eta in noises:
        g = gradient(theta)
        theta = [theta[i] - eps * (g[i] + a * m[i] / (u[i] + lam)) + sqrt(2 * eps * tau) * eta[i] for i in range(d)]
        m = [beta_1 * m[i] + (1 - beta_1) * g[i] for i in range(d)]
        u = [max(beta_2 * u[i], abs(g[i])) for i in range(d)]
        path.append(theta)
    return path


def adadelta(theta, gradient, noises, *, eps, tau, a, beta, lam):
    """Zeiler (2012), Algorithm 1, whose increment becomes the bias of the next step."""
    d, path = len(theta), []
    bias, v, increment = [0.0] * d, [0.0] * d, [0.0] * d
    for eta in noises:
        g = gradient(theta)
        theta = [theta[i] - eps * (g[i] + a * bias[i]) + sqrt(2 * eps * tau) * eta[i] for i in range(d)]
        v = [beta * v[i] + (1 - beta) * g[i] ** 2 for i in range(d)]
        bias = [sqrt(increment[i] + lam) / sqrt(v[i] + lam) * g[i] for i in range(d)]
        increment = [beta * increment[i] + (1 - beta) * bias[i] ** 2 for i in range(d)]
        path.append(theta)
    return path


def asgld(theta, gradient, noises, *, eps, tau, a, beta_1, beta_2, lam):
    """Algorithm 2: lambda inside the root."""
    d, path = len(theta), []
    m, v = [0.0] * d, [0.0] * d
    for eta in noises:
        g = gradient(theta)
        theta = [theta[i] - eps * (g[i] + a * m[i] / sqrt(v[i] + lam)) + sqrt(2 * eps * tau) * eta[i] for i in range(d)]
        m = [beta_1 * m[i] + (1 - beta_1) * g[i] for i in range(d)]
        v = [beta_2 * v[i] + (1 - beta_2) * g[i] ** 2 for i in range(d)]
        path.append(theta)
    return path


def _power(matrix, power):
    """Return a power of a symmetric positive matrix, whose singular values are its eigenvalues."""
    vectors, values, _ = np.linalg.svd(matrix)
    return vectors * values**power @ vectors.T


def asgld_full(theta, gradient, noises, *, eps, tau, a, beta_1, beta_2, lam):
    """Equation (2) with the matrix V, and lambda added to it."""
    d, path = len(theta), []
    m, v = np.zeros(d), np.zeros((d, d))
    for eta in noises:
        g = np.array(gradient(theta))
        bias = _power(v + lam * np.eye(d), -0.5) @ m
        theta = [theta[i] - eps * (g[i] + a * bias[i]) + sqrt(2 * eps * tau) * eta[i] for i in range(d)]
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * np.outer(g, g)
        path.append(theta)
    return path


def psgld(theta, gradient, noises, *, eps, tau, beta, lam, num_data=1.0, hessian_diagonal=None):
    """Section 2, V started at the first squared gradient; lambda outside the root; Gamma when the Hessian is given."""
    d, path = len(theta), []
    v = None
    for eta in noises:
        g = gradient(theta)
        square = [(g[i] / num_data) ** 2 for i in range(d)]
        share = 1.0 if v is None else 1 - beta
        v = [(1 - share) * (0.0 if v is None else v[i]) + share * square[i] for i in range(d)]
        metric = [1 / (lam + sqrt(v[i])) for i in range(d)]
        gamma = [0.0] * d
        if hessian_diagonal is not None:
            for i in range(d):
                slope_of_v = (1 - beta) * 2 * g[i] * hessian_diagonal[i] / num_data**2
                gamma[i] = -(metric[i] ** 2) * slope_of_v / (2 * sqrt(v[i]))
        theta = [
            theta[i] - eps * metric[i] * g[i] + eps * tau * gamma[i] + sqrt(2 * eps * tau * metric[i]) * eta[i] for i in range(d)
        ]
        path.append(theta)
    return path


def sghmc(theta, gradient, noises, *, eps, tau, beta):
    d, path = len(theta), []
    v = [0.0] * d
    for eta in noises:
        g = gradient(theta)
        v = [beta * v[i] - eps * g[i] + sqrt(2 * tau * eps * (1 - beta)) * eta[i] for i in range(d)]
        theta = [theta[i] + v[i] for i in range(d)]
        path.append(theta)
    return path


def sgnht(theta, gradient, noises, *, eps, tau, beta, thermal_mass, elementwise=False):
    """SGHMC with friction on the mean of two velocities: (1 + x) v' + x v = beta v - eps g + noise; x sees the new one."""
    d, path = len(theta), []
    v, x = [0.0] * d, [0.0] * d
    for eta in noises:
        g = gradient(theta)
        v = [((beta - x[i]) * v[i] - eps * g[i] + sqrt(2 * tau * eps * (1 - beta)) * eta[i]) / (1 + x[i]) for i in range(d)]
        theta = [theta[i] + v[i] for i in range(d)]
        heat = [v[i] ** 2 * (1 + beta) / (2 * eps) for i in range(d)]
        if not elementwise:
            heat = [sum(heat) / d] * d
        x = [x[i] + (heat[i] / tau - 1) / thermal_mass for i in range(d)]
        path.append(theta)
    return path


def sgrld(theta, gradient, noises, *, eps, tau, inverse, inverse_slope, root):
    """Scalars only: F^-1(theta), its derivative and F^(-1/2)(theta) are given as functions of each element."""
    path = []
    for eta in noises:
        g = gradient(theta)
        theta = [
            t - eps * inverse(t) * g[i] + eps * tau * inverse_slope(t) + sqrt(2 * eps * tau) * root(t) * eta[i]
            for i, t in enumerate(theta)
        ]
        path.append(theta)
    return path


def adaptive_sghmc(theta, gradient, noises, *, eps, tau, beta, lam, adapt_steps, num_data=1.0):
    """Springenberg et al. (2016), as in the authors' code: w, m and V start at one; the noise never has a negative variance."""
    d, path, v, window, m, square = len(theta), [], *([x] * len(theta) for x in (0.0, 1.0, 1.0, 1.0))
    for step, eta in enumerate(noises):
        g = gradient(theta)
        for i in range(d):
            if step < adapt_steps:
                window[i], m[i], square[i] = _windowed(g[i] / num_data, window[i], m[i], square[i], lam)
            scale = 1 / sqrt(square[i] + lam)
            spread = sqrt(max(0.0, 2 * tau * eps * (1 - beta) * scale - (eps * num_data) ** 2))
            v[i] = beta * v[i] - eps * scale * g[i] + spread * eta[i]
        theta = [theta[i] + v[i] for i in range(d)]
        path.append(theta)
    return path


def adaptive_sghmc_invariant(theta, gradient, noises, *, eps, tau, beta, lam, adapt_steps, num_data=1.0):
    """B A O A in y = G^(-1/2) theta: a kick by the whole time step, half a move, friction and noise, half a move."""
    d, path, v, window, m, square = len(theta), [], *([x] * len(theta) for x in (0.0, 1.0, 1.0, 1.0))
    h = sqrt(2 * eps / (1 + beta))
    for step, eta in enumerate(noises):
        g, moved = gradient(theta), []
        for i in range(d):
            if step < adapt_steps:
                window[i], m[i], square[i] = _windowed(g[i] / num_data, window[i], m[i], square[i], lam)
            root = (square[i] + lam) ** -0.25
            v[i] -= h * root * g[i]
            half = theta[i] + 0.5 * h * root * v[i]
            v[i] = beta * v[i] + sqrt(tau * (1 - beta**2)) * eta[i]
            moved.append(half + 0.5 * h * root * v[i])
        theta = moved
        path.append(theta)
    return path


def amagold(theta, gradient, noises, *, eps, tau, beta, length, energy):
    """Zhang, Cooper and De Sa (2020), kicks at the ends; written with their friction b and time step."""
    d, path, h = len(theta), [], sqrt(2 * eps / (1 + beta))
    b = (1 - beta) / (1 + beta)  # ((1 - b) v - h g + sqrt(4 b tau) eta) / (1 + b)
    for step, eta in enumerate(noises):
        g, place = gradient(theta), step % (length + 1)
        if place == 0:
            begin, v, work = theta, [sqrt(tau) * x for x in eta], 0.0
        before, at_end = v, place in (0, length)
        if at_end:
            v = [v[i] - h / 2 * g[i] for i in range(d)]
        else:
            v = [((1 - b) * v[i] - h * g[i] + sqrt(4 * b * tau) * eta[i]) / (1 + b) for i in range(d)]
        work += sum((0.25 if at_end else 0.5) * h * g[i] * (before[i] + v[i]) for i in range(d))
        if place < length:
            theta = [theta[i] + h * v[i] for i in range(d)]
        elif 0.5 * erfc(-eta[0] / sqrt(2)) > exp(min(0.0, (energy(begin) - energy(theta) + work) / tau)):
            theta = begin
        path.append(theta)
    return path


def _windowed(g, window, m, square, lam):
    share = 1 / (window + 1)
    return window * (1 - m**2 / (square + lam)) + 1, (1 - share) * m + share * g, (1 - share) * square + share * g**2


def sgrhmc(theta, gradient, noises, *, eps, tau, beta, inverse, root, root_slope, friction="metric"):
    """Scalars only, as in `sgrld`: half a kick, friction, half a kick, and a move by the root half way."""
    d, path, h = len(theta), [], sqrt(2 * eps / (1 + beta))
    v = [0.0] * d
    for eta in noises:
        g = gradient(theta)
        for i in range(d):
            push = 0.5 * h * (tau * root_slope(theta[i]) - root(theta[i]) * g[i])
            drag = (1 - beta) / (1 + beta) * (inverse(theta[i]) if friction == "metric" else 1.0)
            kept = (1 - drag) / (1 + drag)
            v[i] = kept * (v[i] + push) + sqrt(tau * (1 - kept**2)) * eta[i] + push
        theta = [theta[i] + h * root(theta[i] + 0.5 * h * root(theta[i]) * v[i]) * v[i] for i in range(d)]
        path.append(theta)
    return path
