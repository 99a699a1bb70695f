"""A regression for tables that knows how much it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor
from typing_extensions import override

from langevin.checks import needs
from langevin.estimators.base import LangevinEstimator
from langevin.estimators.table import Array, Standard
from langevin.targets import likelihoods
from langevin.targets.likelihoods import Likelihood

__all__ = ["LangevinRegressor"]

_NOISE = (1e-3, 3.0)  # between which the noise's std is, in units of that of y: no row of the training set can need more


class LangevinRegressor(RegressorMixin, LangevinEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A Bayesian network for a table of numbers: means with standard deviations and intervals, without tuning.

    Columns are standardised, and ranked where they have more than two values. Chains start from networks trained by Adam, learn a
    scale each, and draw from the posterior with the invariant MSGLD; predictions are averages over all draws. The noise of y is
    predicted for each row; its standard deviation stays between 0.001 and 3 times that of y.

    Args:
        hidden: sizes of the hidden layers.
        noise: "predicted" for each row, or "learned", one number for all.
        chains: how many; they run in groups of five, each in a process where `n_jobs` allows.
        num_draws: of each chain.
        prior_std: of the weights, in units of standardised columns. "auto" tries two on a fifth of the rows, held out from short
            chains: 1, and one for each layer drawn together with the weights (half-Cauchy of scale 1). `prior_std_` says what it
            became: a number, or means by layer.
        batch_size: rows of a minibatch, whose noise the steps absorb; None takes all rows at every step. "auto" is None up to
            4,000 rows, and 1,000 above.
        adam_steps: of the ensemble from which chains start; "auto" is 2000 up to 1,500 rows (or a minibatch), less with more.
        burn_in: steps in which scales are learnt, which are thrown away; "auto" is 25,000, likewise.
        num_steps: steps of which draws are taken, at least 64 for each; "auto" is 25,000, likewise.
        random_state: an int, or a RandomState; None is 0. The same gives the same draws, whatever `n_jobs`.
        n_jobs: processes; -1 for as many as there are cores.
        verbose: 1 shows a progress bar, and says what prior was found.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 40)[:, None]
        >>> model = LangevinRegressor(hidden=(8,), chains=2, burn_in=100, num_steps=100, adam_steps=200, n_jobs=1)
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
        self.hidden, self.noise, self.chains, self.num_draws, self.prior_std = hidden, noise, chains, num_draws, prior_std
        self.batch_size, self.adam_steps, self.burn_in, self.num_steps = batch_size, adam_steps, burn_in, num_steps
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    def predict(self, X: Any, return_std: bool = False, return_interval: float | None = None) -> Any:
        """Return the mean of y for each row, and on request what is known of it.

        Args:
            X: new rows, (n, columns).
            return_std: add the standard deviation of y: noise and what the draws disagree about, together.
            return_interval: a probability such as 0.9; adds (lower, upper), between which y lies with it.

        Returns:
            The means (n,); or a tuple (mean, std), (mean, (lower, upper)) or (mean, std, (lower, upper)).
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
    def _take_targets(self, y: Array, weights: Array | None) -> tuple[Tensor, int]:
        self.standard_ = Standard.of(y, weights)
        return self._targets(y), 2 if self.noise == "predicted" else 1

    @override
    def _targets(self, y: Array) -> Tensor:
        return torch.as_tensor(self.standard_(np.asarray(y, np.float64)), dtype=torch.float32)

    @override
    def _likelihood(self) -> Likelihood:
        if self.noise not in ("predicted", "learned"):
            raise needs(type(self).__name__, "noise", '"predicted" or "learned"', self.noise)
        return likelihoods.gaussian(self.noise, within=_NOISE)
