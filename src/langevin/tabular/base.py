"""The common base of the estimators: a table in, draws of a network, predictions out."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn
from typing_extensions import override

from langevin.checks import check_integer, check_number, needs
from langevin.compiler.runtime import one_thread
from langevin.diagnostics.trust import TrustWarning
from langevin.nn.predictive import Prediction, predict
from langevin.random import Purpose
from langevin.random.torch_rng import fork_rng
from langevin.tabular.explore import (
    ChainDraws,
    Settings,
    explore,
    run_groups,
    scales_predict_better,
)
from langevin.tabular.model import LayerScales, NetworkPosterior, network
from langevin.targets import Posterior, priors
from langevin.targets.likelihoods import Likelihood
from langevin.targets.priors import PlacedPrior, Prior

__all__ = ["Columns", "LangevinEstimator", "Standard"]


Array = np.ndarray[Any, Any]

_FEW = 2  # columns of at most so many values are not ranked
_GRID = 256  # ranks that are stored; between them ranks are interpolated
_WIDTH = 12**0.5  # of a uniform distribution with variance one

GROUP = 5  # chains that run together; constant, so that results do not depend on the processes
_ADAM, _BURN_IN, _STEPS = 2000, 25_000, 25_000  # for up to _ROWS rows per step; fewer with more
_ROWS = 1500
_ALL_UP_TO, _BATCH = 4000, 1000  # use all rows up to so many, minibatches of this size above
_REJECTED = 0.1  # share of rejected segments above which a chain leads to a warning


@dataclass(frozen=True)
class Standard:
    """Standardise values; constant columns become zero."""

    mean: Array
    std: Array

    @classmethod
    def of(cls, values: Array, weights: Array | None) -> Self:
        """Compute mean and standard deviation of values (n, ...), each with its weight."""
        mean = np.average(values, axis=0, weights=weights)
        std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
        return cls(np.asarray(mean), np.where(std > 1e-12 * (1 + np.abs(mean)), std, 1.0))

    def __call__(self, values: Array) -> Array:
        """Return standardised values."""
        return (values - self.mean) / self.std


@dataclass(frozen=True)
class Columns:
    """Convert a table to the inputs of a network; `Columns.of` fits it to a training set.

    A column with more than two values becomes two inputs: standardised, and as its rank among the
    values of the training set, from -sqrt(3) to sqrt(3). Ranks show a network structure at the
    crowded end of a skewed column, as trees see it.
    """

    standard: Standard
    grids: tuple[tuple[int, Array, Array], ...]  # column, values, their ranks

    @classmethod
    def of(cls, x: Array, weights: Array | None = None) -> Self:
        """Fit to a table (n, columns)."""
        grids = []
        for column in range(x.shape[1]):
            values, counts = np.unique(x[:, column], return_counts=True)
            if len(values) > _FEW:
                ranks = (np.cumsum(counts) - counts / 2) / len(x)
                at = np.unique(np.linspace(0, len(values) - 1, _GRID).round().astype(int))
                grids.append((column, values[at], _WIDTH * (ranks[at] - 0.5)))
        return cls(Standard.of(x, weights), tuple(grids))

    def __call__(self, x: Array, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the inputs (n, inputs)."""
        ranks = [np.interp(x[:, k], values, ranks)[:, None] for k, values, ranks in self.grids]
        return torch.as_tensor(np.hstack([self.standard(x), *ranks]), dtype=dtype)


class LangevinEstimator(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """The common base of `LangevinRegressor` and `LangevinClassifier`: see these."""

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
        self.hidden, self.prior_std, self.batch_size = hidden, prior_std, batch_size
        self.chains, self.num_draws, self.num_steps = chains, num_draws, num_steps
        self.adam_steps, self.burn_in = adam_steps, burn_in
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    @abstractmethod
    def _fit_targets(self, y: Array, weights: Array | None) -> tuple[Tensor, int]:
        """Fit to the training targets; return them as a tensor (n,), and the number of outputs."""

    @abstractmethod
    def _targets(self, y: Array) -> Tensor:
        """Return further targets as a tensor (n,)."""

    @abstractmethod
    def _likelihood(self) -> Likelihood:
        """Return the likelihood of the network's outputs."""

    @abstractmethod
    def _checked(self, x: Any, y: Any) -> tuple[Array, Array]:
        """Return the training set as arrays, or fail as scikit-learn does."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Draw from the posterior of the network.

        Args:
            X: the table, (n, columns), numbers.
            y: targets, (n,).
            sample_weight: how often each row counts; a row of weight 2 counts as two equal rows,
                one of 0 is left out.
        """
        x, y, weights = self._rows(*self._checked(X, y), sample_weight)
        self.columns_ = Columns.of(x, weights)
        targets, outputs = self._fit_targets(y, weights)
        self._seen = (self.columns_(x), targets, weights)
        # Layers draw their weights from torch's generator; chains start elsewhere.
        with fork_rng(0, Purpose.INIT, 0):
            self._network = network(self._seen[0].shape[1], self._hidden(), outputs)
        self._sample(None)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows: the chains continue to the posterior of all rows so far.

        Rows are stored. The standardisation of columns and the classes are those of the first call.
        """
        if not hasattr(self, "draws_"):
            return self.fit(X, y, sample_weight)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        x, y, weights = self._rows(x, np.asarray(y), sample_weight)
        inputs, targets, old = self._seen
        if weights is not None or old is not None:
            pairs = ((inputs, old), (x, weights))
            ones = [np.ones(len(part)) if found is None else found for part, found in pairs]
            weights = np.concatenate(ones)
        inputs = torch.cat([inputs, self.columns_(x)])
        self._seen = (inputs, torch.cat([targets, self._targets(y)]), weights)
        self._sample(self.draws_[:, -1])
        return self

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _rows(self, x: Array, y: Array, sample_weight: Any) -> tuple[Array, Array, Array | None]:
        """Return the rows of positive weight, and their weights; None if all are one."""
        if len(x) != len(y):
            raise needs(self._who, "y", f"{len(x)} targets, one per row", len(y))
        if sample_weight is None:
            return x, y, None
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        kept = weights > 0
        if not kept.any():
            condition = "at least one weight above zero"
            raise needs(self._who, "sample_weight", condition, weights[:5].tolist())
        return x[kept], y[kept], weights[kept]

    def _sample(self, start: Tensor | None) -> None:
        inputs, targets, weights = self._seen
        likelihood = self._likelihood()
        if weights is not None:
            likelihood = Weighted(likelihood)
            targets = torch.stack([targets.to(torch.float64), torch.as_tensor(weights)], -1)
        data, settings, seed = (inputs, targets), self._settings(len(inputs)), self._seed()
        std, show = self._fixed_std(), bool(self.verbose)
        count = check_integer(self._who, "chains", self.chains, 1)
        prior = priors.gaussian(std or 1.0)
        make = partial(NetworkPosterior, self._network, likelihood, prior=prior)
        if std is None and start is None:
            self._draws_scales = scales_predict_better(
                make, data, settings, seed=seed, jobs=self.n_jobs, progress=show
            )
        posterior = make(num_data=len(inputs))
        if std is None and self._draws_scales:
            posterior.prior = LayerScales.first(posterior.space)
        groups = [range(first, min(first + GROUP, count)) for first in range(0, count, GROUP)]
        task = partial(explore, posterior, data, settings, seed=seed, start=start)
        found: list[ChainDraws] = run_groups(task, groups, self.n_jobs, show)
        self.draws_ = torch.cat([part.draws for part in found])
        self.energies_ = torch.cat([part.energies for part in found])
        scales = [part.scales.mean(1) for part in found if part.scales is not None]
        means = torch.cat(scales).mean(0).tolist() if scales else []
        self.posterior_ = self._final_posterior(posterior, std or 1.0, means)
        self._warn(torch.cat([part.rejected for part in found]).tolist(), found[0].segments)

    def _fixed_std(self) -> float | None:
        """Return the standard deviation of the prior; None if it is "auto"."""
        if isinstance(self.prior_std, str) and self.prior_std == "auto":
            return None
        condition = '> 0, or "auto"'
        return check_number(self._who, "prior_std", self.prior_std, condition, lambda std: std > 0)

    def _final_posterior(self, posterior: Posterior, std: float, means: list[float]) -> Posterior:
        """Return the posterior under a fixed prior: mean scales of the layers, if drawn."""
        self.prior_std_: float | dict[str, float] = std
        prior: Prior | PlacedPrior = priors.gaussian(std)
        shown = f"std = {std:g}"
        if isinstance(posterior.prior, LayerScales):
            names = [layer.removeprefix("model.") for layer in posterior.prior.layers]  # unwrapped
            self.prior_std_ = dict(zip(names, means, strict=True))
            others = {name: prior for name in posterior.space.names if "." not in name}
            layers = {f"{name}.*": priors.gaussian(mean) for name, mean in self.prior_std_.items()}
            prior = priors.by_name(layers | others)
            shown = f"a std per layer, on average {', '.join(f'{mean:.2g}' for mean in means)}"
        if self.verbose:
            print(f"{self._who}: the prior of the weights is N(0, std**2) with {shown}")
        likelihood, num_data = self._likelihood(), posterior.num_data
        return Posterior(self._network, likelihood, prior=prior, num_data=num_data)

    def _warn(self, rejected: list[int], segments: int) -> None:
        """Warn about chains with many rejected segments."""
        self.warnings_ = [
            f"chain {chain} left the typical set in {count} of {segments} segments, which were "
            "rejected: its draws cover only a part of the posterior. Use a longer burn_in or a "
            "smaller prior_std."
            for chain, count in enumerate(rejected)
            if count > _REJECTED * segments
        ]
        if self.warnings_:
            text = f"{self._who}: {' '.join(self.warnings_)}"
            warnings.warn(text, TrustWarning, stacklevel=4)

    def _settings(self, rows: int) -> Settings:
        """Return the settings of the chains; those that are "auto" depend on the number of rows."""
        size = self._rows_per_step(rows)
        share = min(1.0, _ROWS / (size or rows))

        def steps(name: str, most: int) -> int:
            value = getattr(self, name)
            if value == "auto":
                return max(1, round(share * most))
            return check_integer(self._who, name, value, 1)

        adam_steps, burn_in = steps("adam_steps", _ADAM), steps("burn_in", _BURN_IN)
        num_steps = steps("num_steps", _STEPS)
        num_draws = min(check_integer(self._who, "num_draws", self.num_draws, 1), num_steps)
        return Settings(
            adam_steps=adam_steps,
            burn_in=burn_in,
            num_steps=num_steps,
            num_draws=num_draws,
            batch_size=size,
        )

    def _rows_per_step(self, rows: int) -> int | None:
        """Return the size of minibatches; None if every step uses all rows."""
        if self.batch_size is None:
            return None
        if isinstance(self.batch_size, str) and self.batch_size == "auto":
            size = _BATCH if rows > _ALL_UP_TO else rows
        else:
            size = check_integer(self._who, "batch_size", self.batch_size, 1)
        return size if size < rows else None

    def _hidden(self) -> tuple[int, ...]:
        if not isinstance(self.hidden, tuple | list):
            raise needs(self._who, "hidden", "a tuple of layer sizes", self.hidden, TypeError)
        return tuple(check_integer(self._who, "hidden", size, 1) for size in self.hidden)

    def _seed(self) -> int:
        state = self.random_state
        if state is None:
            return 0
        if hasattr(state, "randint"):  # NumPy's RandomState, as everywhere in scikit-learn
            return int(state.randint(2**31))
        return check_integer(self._who, "random_state", int(state), 0)

    def _predict(self, X: Any, interval: Any = None) -> Prediction:
        """Return the posterior predictive distribution of new rows."""
        check_is_fitted(self, "draws_")
        x = validate_data(self, X, reset=False, dtype=np.float64)
        # In float64, so that a row's prediction does not depend on the other rows.
        wide = copy.deepcopy(self._network).double()
        inputs, num_data = self.columns_(x, torch.float64), self.posterior_.num_data
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", TrustWarning)  # `fit` has warned already
            posterior = Posterior(wide, self._likelihood(), prior=priors.flat(), num_data=num_data)
            draws = self.draws_.double()
            return predict(posterior, draws, inputs, interval=interval, progress=False)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are draws."""
        return hasattr(self, "draws_")


@dataclass(frozen=True)
class Weighted(Likelihood):
    """Weight the rows of a likelihood; targets are pairs of y and weight, (n, 2)."""

    inner: Likelihood

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        targets = y[:, 0].long() if self.inner.predicts == "classes" else y[:, 0].to(output.dtype)
        return self.inner.log_likelihood(output, targets) * y[:, 1].to(output.dtype)

    @override
    def mean(self, output: Tensor) -> Tensor:
        return self.inner.mean(output)

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        return self.inner.wrap(model)
