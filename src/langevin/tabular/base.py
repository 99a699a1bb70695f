"""The common base of the estimators: a table in, draws of a network, predictions out."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, Tags, _safe_indexing
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor, nn
from typing_extensions import override

from langevin.checks import check_integer, check_number, level_of_caller, needs
from langevin.compiler.runtime import one_thread
from langevin.diagnostics.trust import TrustWarning
from langevin.nn.predictive import Prediction, log_likelihood, predict
from langevin.random import Purpose, permutation, stream
from langevin.random.torch_rng import fork_rng
from langevin.tabular.chains import ChainDraws, Settings, run_chains
from langevin.tabular.columns import Array, Columns, is_frame
from langevin.tabular.network import layer_scales, network
from langevin.tabular.threads import run_tasks
from langevin.targets import Posterior, priors
from langevin.targets.likelihoods import Likelihood

__all__ = ["LangevinEstimator"]

GROUP = 2  # chains that run together; constant, so that results do not depend on the threads
_ADAM, _BURN_IN, _STEPS = 800, 1600, 2048  # for up to _ROWS rows per step; fewer with more
_ROWS = 5000
_ALL_UP_TO, _BATCH = 10_000, 1000  # use all rows up to so many, minibatches of this size above
_REJECTED = 0.2  # share of rejected segments above which a chain leads to a warning
# The comparison of noise models and priors: rows that it needs and takes at most, the share that
# is held out, and the part of a run's steps.
_FEWEST, _MOST, _HELD_OUT, _PART = 50, 1500, 0.2, 3
_OTHERS = range(2**31, 2**31 + GROUP)  # chains that are in no run

_CHOICE = "noise and prior"

_Problem = tuple[Posterior, Posterior]


class LangevinEstimator(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """The common base of `LangevinRegressor` and `LangevinClassifier`: see these."""

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

    @abstractmethod
    def _checked(self, y: Any) -> Array:
        """Return the training targets as an array, or fail as scikit-learn does."""

    @abstractmethod
    def _fit_targets(self, y: Array, weights: Array | None) -> Tensor:
        """Fit to the training targets; return them as a tensor (n, ...)."""

    @abstractmethod
    def _targets(self, y: Array) -> Tensor:
        """Return further targets as a tensor (n, ...)."""

    @abstractmethod
    def _noises(self) -> dict[str, tuple[Likelihood, int]]:
        """Return the candidates for the likelihood, and their outputs, by name."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Draw from the posterior of the network.

        Args:
            X: the table: a data frame with numbers, booleans, strings, categories, times and
                missing values, or an array (n, columns).
            y: targets, (n,); for regression (n, targets), too.
            sample_weight: how often each row counts; a row of weight 2 counts as two equal rows,
                one of 0 is left out.
        """
        y = self._checked(y)
        X, y, weights = self._rows(self._read(X, y, reset=True), y, sample_weight)
        targets = self._fit_targets(y, weights)
        kind = "continuous" if targets.is_floating_point() else "multiclass"
        if kind == "multiclass" and len(self.classes_) == 2:
            kind = "binary"
        self._seed_used = self._seed(self.random_state)
        self.columns_ = Columns(X, y, kind, weights, self._seed_used)
        self._seen = (self.columns_.training_inputs(), targets, weights)
        self.n_inputs_ = self._seen[0].shape[1]
        self.noise_, self.prior_std_ = self._choose()
        self._sample(None)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows: the chains continue to the posterior of all rows so far.

        Rows are stored. The encoding of columns, the noise model and the classes are those of the
        first call.
        """
        if not hasattr(self, "draws_"):
            return self.fit(X, y, sample_weight)
        y = np.asarray(y)
        X, y, weights = self._rows(self._read(X, y, reset=False), y, sample_weight)
        inputs, targets, old = self._seen
        if weights is not None or old is not None:
            pairs = ((inputs, old), (y, weights))
            ones = [np.ones(len(part)) if found is None else found for part, found in pairs]
            weights = np.concatenate(ones)
        inputs = torch.cat([inputs, self.columns_(X)])
        self._seen = (inputs, torch.cat([targets, self._targets(y)]), weights)
        self._sample(self.draws_[:, -1])
        return self

    def uncertainty(self, X: Any) -> Bunch:
        """Split the uncertainty of y: `total` = `aleatoric` + `epistemic`, for each row.

        For numbers these are variances: of the noise, and of the means of the draws. For classes
        entropies in nats: the mean entropy of the draws, and their disagreement.
        """
        found, unit = self._predict(X), self._unit**2
        parts = {"aleatoric": found.aleatoric, "epistemic": found.epistemic}
        split = {name: unit * part.numpy() for name, part in parts.items() if part is not None}
        if found.is_of_classes:
            split["epistemic"] = found.total.numpy() - split["aleatoric"]  # type: ignore[union-attr]
        return Bunch(total=split["aleatoric"] + split["epistemic"], **split)

    def log_prob(self, X: Any, y: Any) -> Array:
        """Return the log of the predictive density (or probability) of y for each row, (n,)."""
        check_is_fitted(self, "draws_")
        check_consistent_length(X, y)
        targets = self._targets(np.asarray(y))
        targets = targets.double() if targets.is_floating_point() else targets
        found = self._predict(X, y=targets)
        assert found.log_density is not None
        shift = np.log(self._unit).sum()  # a density per unit of y
        return np.asarray(found.log_density.double().numpy() - shift)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the network's inputs, which `columns_` computes from a table."""
        check_is_fitted(self, "draws_")
        return self.columns_.get_feature_names_out()

    @property
    def _unit(self) -> Any:
        """The unit of the targets, in units of y."""
        return 1.0

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _read(self, X: Any, y: Any, *, reset: bool) -> Any:
        """Check a table's shape and names as scikit-learn does; columns are converted later."""
        if not is_frame(X):
            X = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
        elif len(X) == 0:
            raise ValueError(f"Found array with 0 sample(s), of shape {X.shape}, in X.")
        else:
            validate_data(self, X, reset=reset, skip_check_array=True)
        if y is not None:
            check_consistent_length(X, y)
        return X

    def _rows(self, X: Any, y: Array, sample_weight: Any) -> tuple[Any, Array, Array | None]:
        """Return the rows of positive weight, and their weights; None if all are one."""
        if sample_weight is None:
            return X, y, None
        weights = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
        kept = weights > 0
        if not kept.any():
            condition = "at least one weight above zero"
            raise needs(self._who, "sample_weight", condition, weights[:5].tolist())
        if kept.all():
            return X, y, weights
        return _safe_indexing(X, np.flatnonzero(kept)), y[kept], weights[kept]

    def _network(self, noise: str) -> nn.Sequential:
        outputs = self._noises()[noise][1]
        with fork_rng(0, Purpose.INIT, 0):  # layers draw their weights from torch's generator
            return network(self.n_inputs_, self._hidden(), outputs)

    def _problem(
        self, noise: str, prior_std: float | str, num_data: int, weights: Array | None
    ) -> _Problem:
        """Return the posterior under a noise model and a prior, and one with a Gaussian prior."""
        model, likelihood = self._network(noise), self._noises()[noise][0]
        likelihood = likelihood if weights is None else Weighted(likelihood)
        make = partial(Posterior, model, likelihood, num_data=num_data)
        if prior_std == "layers":
            prior = layer_scales(model, ("log_scale",) if noise == "learned" else ())
            return make(prior=prior), make(prior=priors.gaussian(1.0))
        condition = '> 0, "layers" or "auto"'
        std = check_number(self._who, "prior_std", prior_std, condition, lambda v: v > 0)
        return make(prior=priors.gaussian(std)), make(prior=priors.gaussian(std))

    def _data(self) -> tuple[Tensor, Tensor]:
        inputs, targets, weights = self._seen
        if weights is not None:
            columns = targets.to(torch.float64).reshape(len(targets), -1)
            targets = torch.cat([columns, torch.as_tensor(weights)[:, None]], -1)
        return inputs, targets

    def _choose(self) -> tuple[str, float | str]:
        """Return the noise model and the prior that predict held-out rows best.

        Noise models are compared under N(0, 1), with the first one unless another is better by more
        than a standard error; priors under the first noise model.
        """
        noises, prior, (x, y) = list(self._noises()), self.prior_std, self._data()
        if not isinstance(prior, str) or prior != "auto":
            tried = [(noise, prior) for noise in noises]
        else:
            tried = [*((noise, 1.0) for noise in noises), (noises[0], "layers")]
        if len(tried) == 1 or len(x) < _FEWEST:
            return tried[0][0], tried[-1][1]
        seed, weights = self._seed_used, self._seen[2]
        order = permutation(seed, stream(Purpose.DATA), 0, len(x))[:_MOST]
        cut = round(_HELD_OUT * len(order))
        unseen, seen = ((x[rows], y[rows]) for rows in (order[:cut], order[cut:]))
        settings = self._settings(len(seen[0])).shorter(_PART)
        problems = [self._problem(*choice, len(seen[0]), weights) for choice in tried]
        run = partial(run_chains, data=seen, settings=settings, chains=_OTHERS, seed=seed)
        found = self._run([partial(run, *pair) for pair in problems], settings.total, _CHOICE)
        scores = []
        for (posterior, _), part in zip(problems, found, strict=True):
            logs = log_likelihood(posterior, part.draws.flatten(0, 1), *unseen).double()
            scores.append(logs.logsumexp(0) - math.log(len(logs)))
        means = [float(score.mean()) for score in scores]
        best = means.index(max(means[: len(noises)]))
        gain = scores[best] - scores[0]
        if not gain.mean() > gain.std() / len(gain) ** 0.5:
            best = 0
        chosen = noises[best], tried[-1][1] if means[-1] > means[0] else tried[0][1]
        if self.verbose:
            shown = ", ".join(f"{c} {m:.3f}" for c, m in zip(tried, means, strict=True))
            print(f"{self._who}: noise and prior_std are {chosen}; held-out scores: {shown}")
        return chosen

    def _sample(self, start: Tensor | None) -> None:
        data, weights = self._data(), self._seen[2]
        count, seed = check_integer(self._who, "chains", self.chains, 1), self._seed_used
        settings = self._settings(len(data[0]))
        choice = self.noise_, self.prior_std_
        pair = self._problem(*choice, len(data[0]), weights)
        groups = [range(first, min(first + GROUP, count)) for first in range(0, count, GROUP)]
        run = partial(run_chains, *pair, data=data, settings=settings, seed=seed, start=start)
        tasks = [partial(run, chains=group) for group in groups]
        found = self._run(tasks, settings.total, "chains")
        shortest = min(part.draws.shape[1] for part in found)
        self.draws_ = torch.cat([part.draws[:, :shortest] for part in found])
        self.posterior_ = self._problem(*choice, len(data[0]), None)[0]
        self.warnings_ = []
        if shortest < settings.num_draws or len(found) < len(groups):
            kept = f"{shortest} of {settings.num_draws} draws of {len(self.draws_)} chains"
            self.warnings_.append(f"interrupted: {kept} are kept.")
        for chain, share in enumerate(torch.cat([part.rejected for part in found]).tolist()):
            if share > _REJECTED:
                self.warnings_.append(
                    f"chain {chain} left the typical set in {share:.0%} of its segments, which "
                    "were rejected: its draws cover only a part of the posterior. Use a longer "
                    "burn_in or a smaller prior_std."
                )
        if self.warnings_:
            text = f"{self._who}: {' '.join(self.warnings_)}"
            warnings.warn(text, TrustWarning, stacklevel=level_of_caller())

    def _run(self, tasks: Sequence[Callable[..., ChainDraws]], total: int, name: str) -> Any:
        """Run tasks in threads; after Ctrl-C, return those that have draws."""
        found = run_tasks(tasks, self.n_jobs, total, bool(self.verbose), name)
        if len(done := [part for part in found if part.draws.shape[1]]) < (
            len(tasks) if name == _CHOICE else 1
        ):
            raise KeyboardInterrupt
        return done

    def _settings(self, rows: int) -> Settings:
        """Return the settings of the chains; those that are "auto" depend on the number of rows."""
        size = self._rows_per_step(rows)
        share = min(1.0, _ROWS / (size or rows))

        def steps(name: str, most: int) -> int:
            value = getattr(self, name)
            if isinstance(value, str) and value == "auto":
                return max(1, round(share * most))
            return check_integer(self._who, name, value, 1)

        adam_steps, burn_in = steps("adam_steps", _ADAM), steps("burn_in", _BURN_IN)
        num_steps = steps("num_steps", _STEPS)
        num_draws = min(check_integer(self._who, "num_draws", self.num_draws, 1), num_steps)
        return Settings(adam_steps, burn_in, num_steps, num_draws, size)

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

    def _seed(self, state: Any) -> int:
        if state is None:
            return 0
        if hasattr(state, "randint"):  # NumPy's RandomState, as everywhere in scikit-learn
            return int(state.randint(2**31))
        return check_integer(self._who, "random_state", int(state), 0)

    def _predict(self, X: Any, **options: Any) -> Prediction:
        """Return the posterior predictive distribution of new rows."""
        check_is_fitted(self, "draws_")
        X = self._read(X, None, reset=False)
        # In float64, so that a row's prediction does not depend on the other rows.
        wide, inputs = self._network(self.noise_).double(), self.columns_(X, torch.float64)
        likelihood, num_data = self._noises()[self.noise_][0], self.posterior_.num_data
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", TrustWarning)  # `fit` has warned already
            posterior = Posterior(wide, likelihood, prior=priors.flat(), num_data=num_data)
            return predict(posterior, self.draws_.double(), inputs, progress=False, **options)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are draws."""
        return hasattr(self, "draws_")

    def __sklearn_tags__(self) -> Tags:
        """Declare what tables may hold."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = True
        return tags


@dataclass(frozen=True)
class Weighted(Likelihood):
    """Weight the rows of a likelihood; targets have the weights in their last column."""

    inner: Likelihood

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        targets = y[:, 0] if y.shape[1] == 2 else y[:, :-1]
        targets = targets.long() if self.inner.predicts == "classes" else targets.to(output.dtype)
        return self.inner.log_likelihood(output, targets) * y[:, -1].to(output.dtype)

    @override
    def mean(self, output: Tensor) -> Tensor:
        return self.inner.mean(output)

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        return self.inner.wrap(model)
