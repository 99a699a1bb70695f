"""The regressor and the classifier beside others, each as a function from a training and a test part to a forecast."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm  # type: ignore[import-untyped]
from torch import Tensor

from langevin.diagnostics.trust import TrustWarning
from langevin.random import Purpose
from langevin.random.torch_rng import fork_rng
from langevin.targets import likelihoods

__all__ = ["CLASSIFIERS", "REGRESSORS", "Forecast"]

Array = NDArray[Any]
Settings = Mapping[str, Any]


class Forecast(NamedTuple):
    """The predictive distribution of the test rows."""

    mean: Array  # (n,)
    log_density: Array  # of the true y, (n,)
    samples: Array  # (n, samples): random ones, or quantiles at (k + 1/2) / samples
    lower: Array  # ends of the central 90 % intervals
    upper: Array


def langevin(x: Any, y: Array, x_test: Any, y_test: Array, seed: int, settings: Settings) -> Forecast:
    """`LangevinRegressor` with its defaults, but for what the scale gives."""
    from langevin.tabular import LangevinRegressor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustWarning)
        model = LangevinRegressor(random_state=seed, **settings["langevin"]).fit(x, y)
    mean, (lower, upper) = model.predict(x_test, return_interval=0.9)
    return Forecast(mean, model.log_prob(x_test, y_test), model.sample_y(x_test, settings["samples"]), lower, upper)


def boosting(x: Any, y: Array, x_test: Any, y_test: Array, seed: int, settings: Settings) -> Forecast:
    """HistGradientBoosting at ten quantiles; its density is that of the Gaussian through the outer two, around the mean."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def fitted(**loss: Any) -> Array:
        model = HistGradientBoostingRegressor(**loss, random_state=seed, categorical_features="from_dtype", **settings["boosting"])
        return model.fit(_plain(x), y).predict(_plain(x_test))

    levels = (np.arange(10) + 0.5) / 10
    quantiles = np.sort(np.stack([fitted(loss="quantile", quantile=level) for level in levels], -1), -1)
    mean, lower, upper = fitted(loss="squared_error"), quantiles[:, 0], quantiles[:, -1]
    std = np.maximum((upper - lower) / (2 * norm.ppf(0.95)), 1e-3 * y.std())
    return Forecast(mean, norm(mean, std).logpdf(y_test), quantiles, lower, upper)


def gaussian_process(x: Any, y: Array, x_test: Any, y_test: Array, seed: int, settings: Settings) -> Forecast | None:
    """A Gaussian process with a length scale per input, up to some number of rows."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    if len(y) > settings["gp_rows"]:
        return None
    inputs, unseen = _encoded(x, y, x_test, seed)
    kernel = 1.0 * RBF(np.ones(inputs.shape[1]), (1e-2, 1e4)) + WhiteKernel(0.1, (1e-6, 1e1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # length scales at their bounds
        mean, std = GaussianProcessRegressor(kernel, normalize_y=True).fit(inputs, y).predict(unseen, return_std=True)
    return _of_gaussians(mean[None], std[None], y_test, settings)


def ensemble(x: Any, y: Array, x_test: Any, y_test: Array, seed: int, settings: Settings) -> Forecast:
    """Five networks with a predicted variance, trained by Adam with weight decay (Lakshminarayanan et al. 2017)."""
    inputs, unseen = _encoded(x, y, x_test, seed)
    scaled = torch.as_tensor((y - y.mean()) / y.std(), dtype=torch.float32)
    family = likelihoods.gaussian("predicted", within=(1e-3, 3.0))
    outputs = _trained(inputs, unseen, scaled, family, 2, seed, settings)
    means = np.stack([family.mean(output).numpy() for output in outputs]).astype(np.float64)
    variances = np.stack([family.variance(output).numpy() for output in outputs]).astype(np.float64)
    return _of_gaussians(y.mean() + y.std() * means, y.std() * np.sqrt(variances), y_test, settings)


def ngboost(x: Any, y: Array, x_test: Any, y_test: Array, seed: int, settings: Settings) -> Forecast | None:
    """NGBoost with a Gaussian, where it is installed."""
    if importlib.util.find_spec("ngboost") is None:
        return None
    from ngboost import NGBRegressor  # type: ignore[import-not-found]

    inputs, unseen = _encoded(x, y, x_test, seed)
    found = NGBRegressor(random_state=seed, verbose=False, **settings["ngboost"]).fit(inputs, y).pred_dist(unseen)
    return _of_gaussians(found.params["loc"][None], found.params["scale"][None], y_test, settings)


def langevin_classes(x: Any, y: Array, x_test: Any, seed: int, settings: Settings) -> Array:
    """`LangevinClassifier` with its defaults, but for what the scale gives."""
    from langevin.tabular import LangevinClassifier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustWarning)
        return LangevinClassifier(random_state=seed, **settings["langevin"]).fit(x, y).predict_proba(x_test)


def boosting_classes(x: Any, y: Array, x_test: Any, seed: int, settings: Settings) -> Array:
    """HistGradientBoosting."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(random_state=seed, categorical_features="from_dtype", **settings["boosting"])
    return model.fit(_plain(x), y).predict_proba(_plain(x_test))


def gaussian_process_classes(x: Any, y: Array, x_test: Any, seed: int, settings: Settings) -> Array | None:
    """A Gaussian process, one class against the rest."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF

    if len(y) > settings["gp_rows"]:
        return None
    inputs, unseen = _encoded(x, y, x_test, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianProcessClassifier(1.0 * RBF(1.0), random_state=seed).fit(inputs, y).predict_proba(unseen)


def ensemble_classes(x: Any, y: Array, x_test: Any, seed: int, settings: Settings) -> Array:
    """Five networks, trained by Adam with weight decay."""
    inputs, unseen = _encoded(x, y, x_test, seed)
    classes, labels = np.unique(y, return_inverse=True)
    family = likelihoods.categorical()
    outputs = _trained(inputs, unseen, torch.as_tensor(labels), family, len(classes), seed, settings)
    return np.mean([family.mean(output).double().numpy() for output in outputs], 0)


REGRESSORS: dict[str, Callable[..., Forecast | None]] = {
    "langevin": langevin,
    "boosting": boosting,
    "gp": gaussian_process,
    "ensemble": ensemble,
    "ngboost": ngboost,
}
CLASSIFIERS: dict[str, Callable[..., Array | None]] = {
    "langevin": langevin_classes,
    "boosting": boosting_classes,
    "gp": gaussian_process_classes,
    "ensemble": ensemble_classes,
}


def _plain(x: Any) -> Any:
    """Return a table that HistGradientBoosting takes: text as categories, times as numbers."""
    if not hasattr(x, "dtypes"):
        return x
    found = x.copy()
    for name, kind in x.dtypes.items():
        if kind.kind == "M":
            found[name] = x[name].astype("int64").astype("float64")
        elif str(kind) in ("object", "str", "string"):
            found[name] = x[name].astype("category")
    return found


def _encoded(x: Any, y: Array, x_test: Any, seed: int) -> tuple[Array, Array]:
    """Return the inputs of our networks, for the models that take numbers only."""
    from langevin.tabular.columns import Columns

    is_numeric = y.dtype.kind == "f"
    kind = "continuous" if is_numeric else "binary" if len(np.unique(y)) == 2 else "multiclass"
    columns = Columns(x, y, kind, seed=seed)
    return columns.training_inputs().double().numpy(), columns(x_test, torch.float64).numpy()


def _trained(inputs: Array, unseen: Array, y: Tensor, family: Any, outputs: int, seed: int, settings: Settings) -> list[Tensor]:
    """Return the outputs of each network of an ensemble for the test rows."""
    from langevin.tabular.network import network

    how = settings["ensemble"]
    x, x_test = (torch.as_tensor(part, dtype=torch.float32) for part in (inputs, unseen))
    found = []
    for member in range(how["members"]):
        with fork_rng(seed, Purpose.INIT, member):
            model = network(x.shape[1], tuple(how["hidden"]), outputs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=how["lr"], weight_decay=how["weight_decay"])
        for _ in range(how["steps"]):
            optimizer.zero_grad()
            family.loss(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            found.append(model(x_test))
    return found


def _of_gaussians(means: Array, stds: Array, y_test: Array, settings: Settings) -> Forecast:
    """Return the forecast of a mixture of Gaussians, (members, n) each, by quantiles."""
    parts = norm(means[..., None], stds[..., None])
    levels = (np.arange(settings["samples"]) + 0.5) / settings["samples"]
    levels = np.unique(np.concatenate([levels, [0.05, 0.95]]))
    low, high = parts.ppf(levels[0]).min(0), parts.ppf(levels[-1]).max(0)
    low, high = (np.repeat(end, len(levels), 1) for end in (low, high))
    for _ in range(60):  # bisection
        middle = (low + high) / 2
        below = parts.cdf(middle[None]).mean(0) < levels
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    density = np.log(norm(means, stds).pdf(y_test).mean(0).clip(1e-300))
    at = np.searchsorted(levels, [0.05, 0.95])
    return Forecast(means.mean(0), density, high, high[:, at[0]], high[:, at[1]])
