"""A regressor and a classifier for tables, with the interface of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor
from typing_extensions import override

from langevin.checks import check_integer, check_number, needs
from langevin.nn.predictive.prediction import quantile
from langevin.random import Purpose, normal, stream
from langevin.tabular.base import LangevinEstimator
from langevin.tabular.columns import Array
from langevin.tabular.noise import AUTO, NOISES, NORMALS, outputs_of, sample
from langevin.targets import likelihoods
from langevin.targets.likelihoods import Likelihood

__all__ = ["LangevinClassifier", "LangevinRegressor"]


class LangevinRegressor(RegressorMixin, LangevinEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Fit a Bayesian network to a table: means, quantiles and densities, untuned.

    Columns are encoded by `columns_` (numbers, booleans, categories, strings, times, missing
    values). Chains start from networks trained by Adam, adapt a metric each, and draw from the
    posterior by invariant MSGLD; predictions are averages over all draws. The noise of y is
    predicted for each row.

    Args:
        hidden: sizes of the hidden layers.
        noise: "auto", or its result: "predicted", a Gaussian whose standard deviation is predicted
            for each row; "student_t", Student's t with 4 degrees of freedom and a predicted scale;
            "mixture", of two Gaussians, all predicted. "auto" compares the three by short chains on
            held-out rows, a fifth, and takes the Gaussian unless another is better by more than a
            standard error (or if there are fewer than 50 rows). `noise_` is the result. "learned"
            is a Gaussian with one standard deviation for all rows.
        chains: number of chains, which run in groups of two, in parallel if `n_jobs` allows.
        num_draws: draws per chain.
        prior_std: of the weights, in units of standardised columns; or "layers", an unknown scale
            for each layer, integrated out. "auto" compares 1.0 and "layers" on the same held-out
            rows; with fewer than 50 rows it is "layers". `prior_std_` is the result.
        batch_size: rows of a minibatch, for whose noise steps are corrected; None uses all rows at
            every step. "auto" is None up to 10,000 rows, and 1,000 above.
        adam_steps: of the initial networks; "auto" is 800 up to 5,000 rows (or a minibatch), fewer
            with more.
        burn_in: discarded steps in which metrics adapt; "auto" is 1,600, likewise.
        num_steps: steps after the burn-in, at least 64 per draw; "auto" is 2,048, likewise.
        random_state: an int, or a RandomState; None is 0. The same state gives the same draws,
            whatever `n_jobs`.
        n_jobs: threads; -1 for one per core.
        verbose: 1 shows a progress bar, and prints the choices. Ctrl-C ends a fit early, with
            the draws so far.

    Example:
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> short = {"chains": 2, "adam_steps": 200, "burn_in": 100, "num_steps": 100}
        >>> model = LangevinRegressor(hidden=(8,), **short)
        >>> mean, std = model.fit(x, x[:, 0] ** 2).predict(x[:3], return_std=True)
        >>> mean.shape, std.shape
        ((3,), (3,))
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (32, 32, 32),
        *,
        noise: str = "auto",
        chains: int = 8,
        num_draws: int = 32,
        prior_std: float | str = "auto",
        batch_size: int | str | None = "auto",
        adam_steps: int | str = "auto",
        burn_in: int | str = "auto",
        num_steps: int | str = "auto",
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: int = 0,
    ) -> None:
        """See the class."""
        self.hidden, self.noise, self.prior_std = hidden, noise, prior_std
        self.chains, self.num_draws, self.num_steps = chains, num_draws, num_steps
        self.adam_steps, self.burn_in, self.batch_size = adam_steps, burn_in, batch_size
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_interval: float | None = None,
        quantiles: Sequence[float] | None = None,
    ) -> Any:
        """Return the mean of y for each row, optionally with its uncertainty.

        Args:
            X: new rows.
            return_std: add the standard deviation of y, from noise and disagreement of the draws.
            return_interval: a probability such as 0.9; adds the bounds (lower, upper) of a central
                interval that contains y with this probability.
            quantiles: probabilities; adds the quantiles of y, (probabilities, n).

        Returns:
            The means (n,); or a tuple of the means and what was asked for, in this order: std,
            (lower, upper), quantiles. With several targets (n, targets) in place of (n,).
        """
        found = self._predict(X, interval=return_interval, per_draw=quantiles is not None)
        parts: list[Any] = [self._unscaled(found.mean)]
        if return_std:
            assert found.std is not None
            parts.append(self._unit * found.std.double().numpy())
        for _, lower, upper in found.intervals:
            parts.append((self._unscaled(lower), self._unscaled(upper)))
        if quantiles is not None:
            levels = [_probability(self._who, level) for level in quantiles]
            rows = [quantile(self._who, found.likelihood, found.outputs, p) for p in levels]  # type: ignore[arg-type]
            parts.append(self._unscaled(torch.stack(rows)))
        return parts[0] if len(parts) == 1 else tuple(parts)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw y from its predictive distribution, (n, n_samples), or (n, targets, n_samples).

        A sample takes one draw of the network for all rows, and noise for each.
        """
        found, seed = self._predict(X, per_draw=True), self._seed(random_state)
        assert found.outputs is not None
        shape, samples = found.mean.shape, []
        for number in range(check_integer(self._who, "n_samples", n_samples, 1)):
            at = stream(Purpose.PREDICT), number
            noise = normal(seed, *at, 1 + NORMALS * shape.numel(), dtype=torch.float64)
            draw = int(torch.special.ndtr(noise[0]) * len(found.outputs))
            output = found.outputs[min(draw, len(found.outputs) - 1)].double()
            samples.append(sample(found.likelihood, output, noise[1:].reshape(NORMALS, *shape)))
        return np.stack([self._unscaled(values) for values in samples], -1)

    def cdf(self, X: Any, y: Any) -> Array:
        """Return the predicted probability that y is at most the given value, for each row.

        For calibrated predictions these are uniform over rows.
        """
        found, values = self._predict(X, per_draw=True), self._targets(np.asarray(y)).double()
        assert found.outputs is not None
        below = [found.likelihood.cdf(output.double(), values) for output in found.outputs]
        return np.asarray(torch.stack(below).mean(0).numpy())  # type: ignore[arg-type]

    def _unscaled(self, values: Tensor) -> Array:
        return np.asarray(self.y_mean_ + self._unit * values.double().numpy())

    @property
    @override
    def _unit(self) -> Any:
        return self.y_std_

    @override
    def _checked(self, y: Any) -> Array:
        if y is None:
            raise ValueError(f"{self._who} requires y to be passed, but the target y is None")
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        return _flat(y)

    @override
    def _fit_targets(self, y: Array, weights: Array | None) -> Tensor:
        self._shape = y.shape[1:]
        self.y_mean_ = np.average(y, axis=0, weights=weights)
        std = np.average((y - self.y_mean_) ** 2, axis=0, weights=weights) ** 0.5
        is_constant = std <= 1e-12 * (1 + np.abs(self.y_mean_))
        if np.any(is_constant) and len(y) > 1:
            warnings.warn(f"{self._who}: y is constant, and so are predictions", stacklevel=3)
        self.y_std_ = np.where(is_constant, 1.0, std)
        return self._targets(y)

    @override
    def _targets(self, y: Array) -> Tensor:
        scaled = (_flat(np.asarray(y, np.float64)) - self.y_mean_) / self.y_std_
        return torch.as_tensor(scaled, dtype=torch.float32)

    @override
    def _noises(self) -> dict[str, tuple[Likelihood, int]]:
        if self.noise != "auto" and self.noise not in NOISES:
            raise needs(self._who, "noise", f"one of {['auto', *NOISES]}", self.noise)
        count = int(np.prod(self._shape))
        candidates = AUTO if self.noise == "auto" else (self.noise,)
        return {name: (NOISES[name], outputs_of(name, count)) for name in candidates}

    def __sklearn_tags__(self) -> Tags:
        """Declare several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _flat(y: Array) -> Array:
    """Return a single target as (n,)."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _probability(who: str, level: float) -> float:
    return check_number(who, "quantiles", level, "0 < quantile < 1", lambda p: 0 < p < 1)


class LangevinClassifier(ClassifierMixin, LangevinEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Fit a Bayesian network to the classes of a table: averaged probabilities, untuned.

    Everything else is as in `LangevinRegressor`.

    Args:
        hidden: sizes of the hidden layers.
        chains: number of chains.
        num_draws: draws per chain.
        prior_std: of the weights, "layers" or "auto".
        batch_size: rows of a minibatch, None for all rows, or "auto".
        adam_steps: of the initial networks.
        burn_in: discarded steps in which metrics adapt.
        num_steps: steps after the burn-in.
        random_state: an int, or a RandomState; None is 0.
        n_jobs: threads; -1 for one per core.
        verbose: 1 shows a progress bar.

    Example:
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> short = {"chains": 2, "adam_steps": 200, "burn_in": 100, "num_steps": 100}
        >>> model = LangevinClassifier(hidden=(8,), **short)
        >>> model.fit(x, np.where(x[:, 0] > 0, "right", "left")).predict(x[[0, -1]]).tolist()
        ['left', 'right']
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (32, 32),
        *,
        chains: int = 8,
        num_draws: int = 32,
        prior_std: float | str = "auto",
        batch_size: int | str | None = "auto",
        adam_steps: int | str = "auto",
        burn_in: int | str = "auto",
        num_steps: int | str = "auto",
        random_state: Any = None,
        n_jobs: int | None = -1,
        verbose: int = 0,
    ) -> None:
        """See the class."""
        self.hidden, self.prior_std, self.batch_size = hidden, prior_std, batch_size
        self.chains, self.num_draws, self.num_steps = chains, num_draws, num_steps
        self.adam_steps, self.burn_in = adam_steps, burn_in
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, classes), in the order of `classes_`."""
        found = self._predict(X).mean.double().numpy()
        return np.asarray(found / found.sum(-1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(-1)])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw classes from their probabilities, (n, n_samples)."""
        levels = self.predict_proba(X).cumsum(-1)
        at, size = stream(Purpose.PREDICT), n_samples * len(levels)
        noise = normal(self._seed(random_state), at, 0, size, dtype=torch.float64)
        uniform = torch.special.ndtr(noise).numpy().reshape(len(levels), n_samples, 1)
        places = (uniform > levels[:, None, :-1]).sum(-1)
        return np.asarray(self.classes_[places])

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None
    ) -> LangevinClassifier:
        """Add rows, as `LangevinRegressor.partial_fit` does.

        Args:
            X: rows.
            y: their classes.
            sample_weight: how often each row counts.
            classes: all classes, if the rows of the first call lack some.
        """
        self._all_classes = classes
        try:
            return super().partial_fit(X, y, sample_weight)
        finally:
            del self._all_classes

    @override
    def _checked(self, y: Any) -> Array:
        if y is None:
            raise ValueError(f"{self._who} requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return np.asarray(y)

    @override
    def _fit_targets(self, y: Array, weights: Array | None) -> Tensor:
        given = getattr(self, "_all_classes", None)
        self.classes_ = np.unique(y if given is None else given)
        if len(self.classes_) < 2:
            found = f"1 class: {self.classes_.tolist()}"
            raise needs(self._who, "y", "at least two classes", found)
        return self._targets(y)

    @override
    def _targets(self, y: Array) -> Tensor:
        y = np.asarray(y)
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            condition = f"classes among {self.classes_.tolist()}"
            raise needs(self._who, "y", condition, y[unknown][0].item())
        return torch.as_tensor(np.searchsorted(self.classes_, y), dtype=torch.int64)

    @override
    def _noises(self) -> dict[str, tuple[Likelihood, int]]:
        return {"categorical": (likelihoods.categorical(), len(self.classes_))}
