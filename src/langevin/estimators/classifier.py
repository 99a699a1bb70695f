"""A classifier for tables whose probabilities are averages over a posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.estimators.base import LangevinEstimator
from langevin.estimators.table import Array
from langevin.targets import likelihoods
from langevin.targets.likelihoods import Likelihood

__all__ = ["LangevinClassifier"]


class LangevinClassifier(ClassifierMixin, LangevinEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A Bayesian network for the classes of a table: probabilities averaged over draws of its posterior, without tuning.

    The rest is as in `LangevinRegressor`.

    Args:
        hidden: sizes of the hidden layers.
        chains: how many.
        num_draws: of each chain.
        prior_std: of the weights, or "auto".
        batch_size: rows of a minibatch, None for all rows, or "auto".
        adam_steps: of the ensemble from which chains start.
        burn_in: steps in which scales are learnt.
        num_steps: steps of which draws are taken.
        random_state: an int, or a RandomState; None is 0.
        n_jobs: processes; -1 for as many as there are cores.
        verbose: 1 shows a progress bar, and says what prior was found.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> model = LangevinClassifier(hidden=(8,), chains=2, burn_in=100, num_steps=100, adam_steps=200, n_jobs=1)
        >>> model.fit(x, np.where(x[:, 0] > 0, "right", "left")).predict(x[[0, -1]]).tolist()
        ['left', 'right']
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (32, 32),
        *,
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
        self.hidden, self.chains, self.num_draws, self.prior_std = hidden, chains, num_draws, prior_std
        self.batch_size, self.adam_steps, self.burn_in, self.num_steps = batch_size, adam_steps, burn_in, num_steps
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, classes), in the order of `classes_`."""
        found = self._predict(X).mean.numpy().astype(np.float64)
        return found / found.sum(-1, keepdims=True)  # they were averaged in float32

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(-1)]

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> LangevinClassifier:
        """Take more rows, as `LangevinRegressor.partial_fit` does.

        Args:
            X: rows.
            y: their classes.
            sample_weight: how often each row counts.
            classes: all classes there will be, where the first call does not have all of them.
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
    def _take_targets(self, y: Array, weights: Array | None) -> tuple[Tensor, int]:
        given = getattr(self, "_all_classes", None)
        self.classes_ = np.unique(y if given is None else given)
        if len(self.classes_) < 2:
            raise needs(type(self).__name__, "y", "at least two classes", f"1 class: {self.classes_.tolist()}")
        return self._targets(y), len(self.classes_)

    @override
    def _targets(self, y: Array) -> Tensor:
        y = np.asarray(y)
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise needs(type(self).__name__, "y", f"classes among {self.classes_.tolist()}", y[unknown][0].item())
        return torch.as_tensor(np.searchsorted(self.classes_, y), dtype=torch.int64)

    @override
    def _likelihood(self) -> Likelihood:
        return likelihoods.categorical()
