"""A regressor and a classifier for tables, with the interface of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.tabular.base import Array, LangevinEstimator, Standard
from langevin.targets import likelihoods
from langevin.targets.likelihoods import Likelihood

__all__ = ["LangevinClassifier", "LangevinRegressor"]


_NOISE = (1e-3, 3.0)  # bounds of the noise's std in units of y's, wide enough for any training set


class LangevinRegressor(RegressorMixin, LangevinEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Fit a Bayesian network to a table: means, standard deviations and intervals, untuned.

    Columns are standardised, and ranked if they have more than two values. Chains start from
    networks trained by Adam, adapt a scale each, and draw from the posterior by invariant MSGLD;
    predictions are averages over all draws. The noise of y is predicted for each row; its standard
    deviation is bounded between 0.001 and 3 times that of y.

    Args:
        hidden: sizes of the hidden layers.
        noise: "predicted" for each row, or "learned", one number for all.
        chains: number of chains, which run in groups of five, in parallel if `n_jobs` allows.
        num_draws: draws per chain.
        prior_std: of the weights, in units of standardised columns. "auto" compares two priors by
            short chains on held-out rows, a fifth: std 1, and a std per layer that is drawn with
            the weights (half-Cauchy of scale 1). `prior_std_` is the result: a number, or means by
            layer.
        batch_size: rows of a minibatch, for whose noise steps are corrected; None uses all rows at
            every step. "auto" is None up to 4,000 rows, and 1,000 above.
        adam_steps: of the initial networks; "auto" is 2000 up to 1,500 rows (or a minibatch), fewer
            with more.
        burn_in: discarded steps in which scales adapt; "auto" is 25,000, likewise.
        num_steps: steps after the burn-in, at least 64 per draw; "auto" is 25,000, likewise.
        random_state: an int, or a RandomState; None is 0. The same state gives the same draws,
            whatever `n_jobs`.
        n_jobs: processes; -1 for one per core.
        verbose: 1 shows a progress bar, and prints the prior.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> short = {"chains": 2, "adam_steps": 200, "burn_in": 100, "num_steps": 100, "n_jobs": 1}
        >>> model = LangevinRegressor(hidden=(8,), **short)
        >>> mean, std = model.fit(x, x[:, 0] ** 2).predict(x[:3], return_std=True)
        >>> mean.shape, std.shape
        ((3,), (3,))
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (32, 32, 32, 32),
        *,
        noise: str = "predicted",
        chains: int = 10,
        num_draws: int = 50,
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
        self, X: Any, return_std: bool = False, return_interval: float | None = None
    ) -> Any:
        """Return the mean of y for each row, optionally with its uncertainty.

        Args:
            X: new rows, (n, columns).
            return_std: add the standard deviation of y, from noise and disagreement of the draws.
            return_interval: a probability such as 0.9; adds the bounds (lower, upper) of an
                interval that contains y with this probability.

        Returns:
            The means (n,); or a tuple (mean, std), (mean, (lower, upper)) or (mean, std, (lower,
            upper)).
        """
        found = self._predict(X, return_interval)
        parts: list[Any] = [self._unscaled(found.mean)]
        if return_std:
            assert found.variance is not None
            parts.append(self.standard_.std * found.variance.sqrt().numpy().astype(np.float64))
        if return_interval is not None:
            assert found.lower is not None
            assert found.upper is not None
            parts.append((self._unscaled(found.lower), self._unscaled(found.upper)))
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _unscaled(self, values: Tensor) -> Array:
        return self.standard_.mean + self.standard_.std * values.numpy().astype(np.float64)

    @override
    def _checked(self, x: Any, y: Any) -> tuple[Array, Array]:
        x, y = validate_data(self, x, y, dtype=np.float64, y_numeric=True)
        return x, y.astype(np.float64)

    @override
    def _fit_targets(self, y: Array, weights: Array | None) -> tuple[Tensor, int]:
        self.standard_ = Standard.of(y, weights)
        return self._targets(y), 2 if self.noise == "predicted" else 1

    @override
    def _targets(self, y: Array) -> Tensor:
        return torch.as_tensor(self.standard_(np.asarray(y, np.float64)), dtype=torch.float32)

    @override
    def _likelihood(self) -> Likelihood:
        if self.noise not in ("predicted", "learned"):
            raise needs(self._who, "noise", '"predicted" or "learned"', self.noise)
        return likelihoods.gaussian(self.noise, within=_NOISE)


class LangevinClassifier(ClassifierMixin, LangevinEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Fit a Bayesian network to the classes of a table: averaged probabilities, untuned.

    Everything else is as in `LangevinRegressor`.

    Args:
        hidden: sizes of the hidden layers.
        chains: number of chains.
        num_draws: draws per chain.
        prior_std: of the weights, or "auto".
        batch_size: rows of a minibatch, None for all rows, or "auto".
        adam_steps: of the initial networks.
        burn_in: discarded steps in which scales adapt.
        num_steps: steps after the burn-in.
        random_state: an int, or a RandomState; None is 0.
        n_jobs: processes; -1 for one per core.
        verbose: 1 shows a progress bar, and prints the prior.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> short = {"chains": 2, "adam_steps": 200, "burn_in": 100, "num_steps": 100, "n_jobs": 1}
        >>> model = LangevinClassifier(hidden=(8,), **short)
        >>> model.fit(x, np.where(x[:, 0] > 0, "right", "left")).predict(x[[0, -1]]).tolist()
        ['left', 'right']
    """

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, classes), in the order of `classes_`."""
        found = self._predict(X).mean.numpy().astype(np.float64)
        return found / found.sum(-1, keepdims=True)  # against rounding of float32

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(-1)]

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
    def _checked(self, x: Any, y: Any) -> tuple[Array, Array]:
        x, y = validate_data(self, x, y, dtype=np.float64)
        check_classification_targets(y)
        return x, y

    @override
    def _fit_targets(self, y: Array, weights: Array | None) -> tuple[Tensor, int]:
        given = getattr(self, "_all_classes", None)
        self.classes_ = np.unique(y if given is None else given)
        if len(self.classes_) < 2:
            found = f"1 class: {self.classes_.tolist()}"
            raise needs(self._who, "y", "at least two classes", found)
        return self._targets(y), len(self.classes_)

    @override
    def _targets(self, y: Array) -> Tensor:
        y = np.asarray(y)
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            condition = f"classes among {self.classes_.tolist()}"
            raise needs(self._who, "y", condition, y[unknown][0].item())
        return torch.as_tensor(np.searchsorted(self.classes_, y), dtype=torch.int64)

    @override
    def _likelihood(self) -> Likelihood:
        return likelihoods.categorical()
