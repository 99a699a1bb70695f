"""Tables of three kinds: scikit-learn's, files of the UCI repository, and generated ones with categories and gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langevin_paper.tabular import load_regression

__all__ = ["CLASSES", "NUMBERS", "UCI", "load"]

Array = NDArray[Any]
Table = tuple[Any, Array]
"""A data frame or an array (n, columns), and y (n,)."""

UCI = {
    "airfoil": ("airfoil", "b67fbd58a5d267d6b601dd7836c7811c20ed419e59ead9456aa9a5dac2312eb5"),
    "bikesharing": ("bikesharing", "8caf738f5c6860f17333e29ea47c6e38caea6030171564aba89c5aa4283aa172"),
    "boston": ("bostonHousing", "001326d6f09288bc94c41af85bbef89c93187597af17d80481487a4f17a8d374"),
    "concrete": ("concrete", "ed68b6b481a58de235da1fbcbc6ab082aa0282936e6227b953550b8d4caa1948"),
    "energy": ("energy", "07eb789801fbfa985917354fee4140a87b5d1a6b7b08eeecb5e59114c095ae68"),
    "kin8nm": ("kin8nm", "4edbae94105afa7cc5583f51b91b1c822123ca4e1059ec1dfd9b129143936adf"),
    "naval": ("naval-propulsion-plant", "7983e8a9919a26cd10472db4cbc91d2360275fa6e6a682d2e0344668daee54a8"),
    "power": ("power-plant", "984bfaef043e8b7ba8908b63238cb2f71716db8968bb2aa114617c91f29d2d73"),
    "protein": ("protein-tertiary-structure", "f0a5e111e36c6f9859bda4d41c981bbf867208af3e9b6c369dfc90dc92a038c2"),
    "wine": ("wine-quality-red", "3727faedf1a1259314c2e1a7dbb91f553ea1affbea026d3975fc5f373eb196c4"),
    "yacht": ("yacht", "1202a49cfe25d86947dadd136a94c7582e1981c6e735a09a21bb1fd89e2071e8"),
}
"""Files of `load_regression` and the sums of their contents; those of airfoil and so on are as in `experiments.tables`."""


def load(name: str, rows: int, seed: int) -> Table:
    """Return a table by name, at most so many of its rows, drawn by a seed.

    Example:
        >>> x, y = load("diabetes", rows=100, seed=42)
        >>> x.shape, y.shape
        ((100, 10), (100,))
    """
    if name in UCI:
        found = load_regression(*UCI[name])
        x, y = found.x, found.y.ravel()
    else:
        x, y = {**NUMBERS, **CLASSES}[name](rows, seed)
    if len(y) <= rows:
        return x, y
    kept = np.sort(np.random.RandomState(seed).permutation(len(y))[:rows])
    return (x.iloc[kept] if hasattr(x, "iloc") else x[kept]), y[kept]


def _sklearn(loader: str) -> Callable[[int, int], Table]:
    def made(rows: int, seed: int) -> Table:
        import sklearn.datasets

        return getattr(sklearn.datasets, loader)(return_X_y=True)

    return made


def _friedman(rows: int, seed: int) -> Table:
    from sklearn.datasets import make_friedman1

    return make_friedman1(rows, noise=1.0, random_state=seed)


def _shop(rows: int, seed: int) -> tuple[Any, Array, np.random.RandomState]:
    """A data frame with categories of few and many levels, times, booleans and gaps, and a smooth effect of all."""
    import pandas as pd

    rng = np.random.RandomState(seed)
    levels = rng.normal(size=40)
    shop, weather = rng.randint(40, size=rows), rng.choice(["dry", "rain", "snow"], rows, p=[0.6, 0.3, 0.1])
    price, size, is_open = rng.lognormal(size=rows), rng.normal(size=rows), rng.rand(rows) < 0.7
    day = rng.randint(730, size=rows)
    season = np.sin(2 * np.pi * day / 365.25)
    effect = levels[shop] + season + (weather == "rain") - 2.0 * (weather == "snow") + np.tanh(size) * is_open - 0.5 * np.log(price)
    table = pd.DataFrame(
        {
            "shop": [f"shop {k}" for k in shop],
            "weather": pd.Categorical(weather),
            "price": np.where(rng.rand(rows) < 0.1, np.nan, price),
            "size": size,
            "is_open": is_open,
            "day": pd.Timestamp("2023-01-01") + pd.to_timedelta(day, "D"),
        }
    )
    table.loc[rng.rand(rows) < 0.1, "weather"] = None
    return table, effect, rng


def _sales(rows: int, seed: int) -> Table:
    """Noise whose spread depends on the row."""
    table, effect, rng = _shop(rows, seed)
    return table, effect + np.where(table["is_open"], 0.2, 0.6) * rng.normal(size=rows)


def _outliers(rows: int, seed: int) -> Table:
    """Errors of Student's t with two degrees of freedom."""
    table, effect, rng = _shop(rows, seed)
    return table, effect + 0.3 * rng.standard_t(2, size=rows)


def _two_ways(rows: int, seed: int) -> Table:
    """One of two answers, at random: a mixture of two Gaussians."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 3))
    way = np.where(rng.rand(rows) < 0.5, 1.0, -1.0)
    return x, way * (1 + np.sin(x[:, 0])) + 0.5 * x[:, 1] + 0.15 * rng.normal(size=rows)


def _bought(rows: int, seed: int) -> Table:
    """Whether a logistic chance comes out: one class is rare."""
    table, effect, rng = _shop(rows, seed)
    return table, np.where(rng.rand(rows) < 1 / (1 + np.exp(3.0 - 1.5 * effect)), "bought", "left")


def _graded(rows: int, seed: int) -> Table:
    """Twelve classes: a noisy effect by quantiles."""
    table, effect, rng = _shop(rows, seed)
    noisy = effect + 0.3 * rng.normal(size=rows)
    return table, np.searchsorted(np.quantile(noisy, np.linspace(0, 1, 13)[1:-1]), noisy)


def _moons(rows: int, seed: int) -> Table:
    from sklearn.datasets import make_moons

    return make_moons(rows, noise=0.3, random_state=seed)


def _landsat(rows: int, seed: int) -> Table:
    from langevin_paper.data import load as load_set

    found = load_set("landsat")
    return found.x_train.double().numpy(), found.y_train.numpy()


NUMBERS: dict[str, Callable[[int, int], Table]] = {
    "diabetes": _sklearn("load_diabetes"),
    "friedman": _friedman,
    "sales": _sales,
    "outliers": _outliers,
    "two-ways": _two_ways,
}
"""Regressions beside those of `UCI`: scikit-learn's and generated ones."""

CLASSES: dict[str, Callable[[int, int], Table]] = {
    "iris": _sklearn("load_iris"),
    "wine-cultivars": _sklearn("load_wine"),
    "breast-cancer": _sklearn("load_breast_cancer"),
    "digits": _sklearn("load_digits"),
    "landsat": _landsat,
    "moons": _moons,
    "bought": _bought,
    "graded": _graded,
}
"""Classifications."""
