"""The numbers in `langevin.targets.elementwise_priors`: `python tools/fit_horseshoe.py` prints them and their error.

A rational function P(t) / Q(t) of t = 1 / x is fitted to ``x (1 / (x f(x)) - 1)``, where ``f(x) = exp(x) E1(x)`` and x >= 1: linear
least squares for the ratio, with weights that are turned towards the largest error (Lawson). mpmath comes with torch.
"""

from __future__ import annotations

import mpmath as mp

DEGREE, POINTS, ROUNDS = 6, 240, 40
mp.mp.dps = 60


def exact(t: mp.mpf) -> mp.mpf:
    """Return x (1 / (x f(x)) - 1) at x = 1 / t; 1 at t = 0."""
    if t == 0:
        return mp.mpf(1)
    x = 1 / t
    # The asymptotic series loses nothing at 60 digits where exp(x) E1(x) would be 0 * infinity.
    f = mp.exp(x) * mp.e1(x) if x < 1e4 else mp.nsum(lambda k: (-1) ** int(k) * mp.factorial(k) * t ** (int(k) + 1), [0, 30])
    return x * (1 / (x * f) - 1)


def fit() -> tuple[list[mp.mpf], list[mp.mpf], mp.mpf]:
    """Return the coefficients of P and Q, lowest first, Q's first being 1, and the largest relative error."""
    points = [(1 - mp.cos(mp.pi * k / (POINTS - 1))) / 2 for k in range(POINTS)]
    values = [exact(t) for t in points]
    weights, below = [mp.mpf(1)] * POINTS, [mp.mpf(1)] * POINTS
    best: tuple[list[mp.mpf], list[mp.mpf], mp.mpf] | None = None
    for _ in range(ROUNDS):
        rows, right = mp.matrix(POINTS, 2 * DEGREE + 1), mp.matrix(POINTS, 1)
        for i, (t, v, w, q) in enumerate(zip(points, values, weights, below, strict=True)):
            scale = mp.sqrt(w) / (v * q)
            for k in range(DEGREE + 1):
                rows[i, k] = scale * t**k
            for k in range(DEGREE):
                rows[i, DEGREE + 1 + k] = -scale * v * t ** (k + 1)
            right[i] = scale * v
        found = list(mp.lu_solve(rows.T * rows, rows.T * right))
        p, q = found[: DEGREE + 1], [mp.mpf(1), *found[DEGREE + 1 :]]
        below = [mp.polyval(q[::-1], t) for t in points]
        errors = [abs(mp.polyval(p[::-1], t) / b / v - 1) for t, v, b in zip(points, values, below, strict=True)]
        if best is None or max(errors) < best[2]:
            best = p, q, max(errors)
        weights = [w * e for w, e in zip(weights, errors, strict=True)]
        total = sum(weights)
        weights = [w / total for w in weights]
    assert best is not None
    return best


if __name__ == "__main__":
    over, under, error = fit()
    for name, coefficients in (("_OVER", over), ("_UNDER", under)):
        print(f"{name} = ({', '.join(mp.nstr(c, 17) for c in coefficients)})")
    print(f"largest relative error {mp.nstr(error, 2)}")
