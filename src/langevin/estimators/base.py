"""What the estimators share: a table in, chains of a network's posterior, predictions averaged over their draws."""

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
from langevin.cpu.threads import one_thread
from langevin.estimators.explore import Explored, Settings, explore
from langevin.estimators.network import NetworkPosterior, network
from langevin.estimators.prior import scales_predict_better
from langevin.estimators.scales import FoundScales
from langevin.estimators.table import Array, Columns
from langevin.estimators.workers import run_groups
from langevin.noise import Purpose
from langevin.noise.borrowed import borrowed_generator
from langevin.predictive import Prediction, predict
from langevin.targets import Posterior, priors
from langevin.targets.likelihoods import Likelihood
from langevin.targets.priors import PlacedPrior, Prior
from langevin.trust import TrustWarning

__all__ = ["LangevinEstimator"]

GROUP = 5  # chains that run as one; a function of nothing else, so that results do not depend on the number of processes
_ADAM, _BURN_IN, _STEPS = 2000, 25_000, 25_000  # for up to _ROWS rows at a step; with more rows they are fewer, at equal time
_ROWS = 1500
_FEW, _BATCH = 4000, 1000  # up to so many rows all are taken at every step, above that minibatches
_UNDONE = 0.1  # share of a chain's stretches that may be undone without a word


class LangevinEstimator(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """The common part of `LangevinRegressor` and `LangevinClassifier`: see these."""

    hidden: tuple[int, ...]
    chains: int
    num_draws: int
    prior_std: float | str
    batch_size: int | str | None
    adam_steps: int | str
    burn_in: int | str
    num_steps: int | str
    random_state: Any
    n_jobs: int | None
    verbose: int

    # ---- what a subclass says

    @abstractmethod
    def _take_targets(self, y: Array, weights: Array | None) -> tuple[Tensor, int]:
        """Look at the training set's targets; return them as a tensor (n,), and how many outputs the network has."""

    @abstractmethod
    def _targets(self, y: Array) -> Tensor:
        """Return further targets as a tensor (n,)."""

    @abstractmethod
    def _likelihood(self) -> Likelihood:
        """Return the law of the targets given outputs."""

    @abstractmethod
    def _checked(self, x: Any, y: Any) -> tuple[Array, Array]:
        """Return the training set as arrays, or fail as scikit-learn does."""

    # ---- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Draw from the posterior of the network.

        Args:
            X: the table, (n, columns), numbers.
            y: targets, (n,).
            sample_weight: how often each row counts; a row of weight 2 counts as two equal rows, one of 0 is left out.
        """
        x, y, weights = self._rows(*self._checked(X, y), sample_weight)
        self.columns_ = Columns.of(x, weights)
        targets, outputs = self._take_targets(y, weights)
        self._seen = (self.columns_(x), targets, weights)
        with borrowed_generator(0, Purpose.INIT, 0):  # layers draw their weights from torch's generator; chains have other starts
            self._network = network(self._seen[0].shape[1], self._hidden(), outputs)
        self._sample(None)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Take more rows: the chains go on from where they are, to the posterior of all rows so far.

        Rows are remembered. How columns are standardised, and the classes, are those of the first call.
        """
        if not hasattr(self, "draws_"):
            return self.fit(X, y, sample_weight)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        x, y, weights = self._rows(x, np.asarray(y), sample_weight)
        before, old, old_weights = self._seen
        if weights is not None or old_weights is not None:
            ones = [np.ones(len(part)) if found is None else found for part, found in ((before, old_weights), (x, weights))]
            weights = np.concatenate(ones)
        self._seen = (torch.cat([before, self.columns_(x)]), torch.cat([old, self._targets(y)]), weights)
        self._sample(self.draws_[:, -1])
        return self

    def _rows(self, x: Array, y: Array, sample_weight: Any) -> tuple[Array, Array, Array | None]:
        """Return the rows that count, with their weights, or None where all count once."""
        if len(x) != len(y):
            raise needs(type(self).__name__, "y", f"{len(x)} targets, one per row", len(y))
        if sample_weight is None:
            return x, y, None
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        kept = weights > 0
        if not kept.any():
            raise needs(type(self).__name__, "sample_weight", "at least one weight above zero", weights[:5].tolist())
        return x[kept], y[kept], weights[kept]

    def _sample(self, start: Tensor | None) -> None:
        inputs, targets, weights = self._seen
        likelihood = self._likelihood()
        if weights is not None:
            likelihood = Weighted(likelihood)
            targets = torch.stack([targets.to(torch.float64), torch.as_tensor(weights)], -1)
        who, seed, settings = type(self).__name__, self._seed(), self._settings(len(inputs))
        std, count = self._asked_std(), check_integer(who, "chains", self.chains, 1)
        make = partial(NetworkPosterior, self._network, likelihood, prior=priors.gaussian(std or 1.0))
        if std is None and start is None:
            self._draws_scales = scales_predict_better(
                make, (inputs, targets), settings, seed=seed, jobs=self.n_jobs, progress=bool(self.verbose)
            )
        posterior = make(num_data=len(inputs))
        if std is None and self._draws_scales:
            posterior.prior = FoundScales.first(posterior.space)
        groups = [range(first, min(first + GROUP, count)) for first in range(0, count, GROUP)]
        task = partial(_explore_group, posterior, (inputs, targets), settings, seed, start)
        found: list[Explored] = run_groups(task, groups, self.n_jobs, bool(self.verbose))
        self.posterior_ = self._with_prior(posterior, std or 1.0, [part.scales for part in found if part.scales is not None])
        self._keep(found)

    def _asked_std(self) -> float | None:
        """Return the standard deviation of the prior that was asked for; None where it is to be found."""
        if isinstance(self.prior_std, str) and self.prior_std == "auto":
            return None
        return check_number(type(self).__name__, "prior_std", self.prior_std, '> 0, or "auto"', lambda std: std > 0)

    def _with_prior(self, posterior: Posterior, std: float, scales: list[Tensor]) -> Posterior:
        """Return the posterior under the prior as it was found, layer by layer: the means of all draws."""
        self.prior_std_: float | dict[str, float] = std
        prior: Prior | PlacedPrior = priors.gaussian(std)
        if isinstance(posterior.prior, FoundScales):
            layers = [layer.removeprefix("model.") for layer in posterior.prior.layers]  # as in the network that is not wrapped
            means = torch.cat([part.mean(1) for part in scales]).mean(0).tolist()
            self.prior_std_ = dict(zip(layers, means, strict=True))
            others = {name: prior for name in posterior.space.names if "." not in name}
            prior = priors.by_name({f"{layer}.*": priors.gaussian(mean) for layer, mean in self.prior_std_.items()} | others)
        if self.verbose:
            print(f"{type(self).__name__}: the prior of the weights is N(0, std**2) with {_words(self.prior_std_)}")
        return Posterior(self._network, self._likelihood(), prior=prior, num_data=posterior.num_data)

    def _keep(self, found: list[Explored]) -> None:
        """Keep the draws, say where chains had to be held back."""
        self.draws_ = torch.cat([part.draws for part in found])
        self.energies_ = torch.cat([part.energies for part in found])
        undone, stretches = torch.cat([part.undone for part in found]), found[0].stretches
        self.warnings_ = [
            f"chain {chain} left the posterior in {count} of {stretches} stretches of steps, which were undone: its draws are "
            "of a part of the posterior only. Take a longer burn_in, or a smaller prior_std."
            for chain, count in enumerate(undone.tolist())
            if count > _UNDONE * stretches
        ]
        if self.warnings_:
            warnings.warn(f"{type(self).__name__}: " + " ".join(self.warnings_), TrustWarning, stacklevel=4)

    def _settings(self, rows: int) -> Settings:
        """Return how long each part takes: what was asked for, or what the number of rows suggests."""
        who, size = type(self).__name__, self._rows_at_once(rows)
        share = min(1.0, _ROWS / (size or rows))
        asked = {"adam_steps": _ADAM, "burn_in": _BURN_IN, "num_steps": _STEPS}
        found: dict[str, int] = {}
        for name, most in asked.items():
            value = getattr(self, name)
            found[name] = max(1, round(share * most)) if value == "auto" else check_integer(who, name, value, 1)
        draws = min(check_integer(who, "num_draws", self.num_draws, 1), found["num_steps"])
        return Settings(num_draws=draws, batch_size=size, **found)

    def _rows_at_once(self, rows: int) -> int | None:
        """Return the size of minibatches; None where all rows are taken at every step."""
        if self.batch_size is None:
            return None
        if isinstance(self.batch_size, str) and self.batch_size == "auto":
            size = _BATCH if rows > _FEW else rows
        else:
            size = check_integer(type(self).__name__, "batch_size", self.batch_size, 1)
        return size if size < rows else None

    def _hidden(self) -> tuple[int, ...]:
        if not isinstance(self.hidden, tuple | list):
            raise needs(type(self).__name__, "hidden", "a tuple of layer sizes", self.hidden, TypeError)
        return tuple(check_integer(type(self).__name__, "hidden", size, 1) for size in self.hidden)

    def _seed(self) -> int:
        state = self.random_state
        if hasattr(state, "randint"):  # NumPy's RandomState, which scikit-learn takes everywhere
            return int(state.randint(2**31))
        return 0 if state is None else check_integer(type(self).__name__, "random_state", int(state), 0)

    # ---- predicting

    def _predict(self, X: Any, interval: Any = None) -> Prediction:
        """Return what the draws say of new rows."""
        check_is_fitted(self, "draws_")
        x = validate_data(self, X, reset=False, dtype=np.float64)
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", TrustWarning)  # how well chains mixed was said by fit
            # In float64, so that a row's prediction does not depend on the rows beside it.
            wide = copy.deepcopy(self._network).double()
            posterior = Posterior(wide, self._likelihood(), prior=priors.flat(), num_data=self.posterior_.num_data)
            inputs = self.columns_(x, torch.float64)
            return predict(posterior, self.draws_.double(), inputs, interval=interval, progress=False)

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there are draws."""
        return hasattr(self, "draws_")


@dataclass(frozen=True)
class Weighted(Likelihood):
    """A likelihood whose rows count as often as their weight says: targets are pairs of y and weight, (n, 2)."""

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


def _words(std: float | dict[str, float]) -> str:
    if not isinstance(std, dict):
        return f"std = {std:g}"
    return "std drawn layer by layer, in the mean " + ", ".join(f"{mean:.2g}" for mean in std.values())


def _explore_group(
    posterior: Posterior,
    data: tuple[Tensor, Tensor],
    settings: Settings,
    seed: int,
    start: Tensor | None,
    chains: range,
    progress: Any,
) -> Explored:
    """Run the chains of one group, perhaps in a process of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustWarning)  # weights of a network have many equal modes; predictions are looked at
        begin = None if start is None else start[chains.start : chains.stop]
        return explore(posterior, data, settings, chains=chains, seed=seed, start=begin, progress=progress)
