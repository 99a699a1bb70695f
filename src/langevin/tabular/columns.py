"""Convert a table with columns of any type to the inputs of a network."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import (
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.utils import check_array
from torch import Tensor

__all__ = ["Array", "Columns", "is_frame"]

Array = np.ndarray[Any, Any]

_FEW = 2  # columns of at most so many values are not ranked
_GRID = 256  # quantiles that are stored; between them ranks are interpolated
_WIDTH = 12**0.5  # of a uniform distribution with variance one
_LEVELS = 20  # a category with more levels becomes one number, the mean target of its level
_MISSING = "missing"
_PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}  # days
_TIMES = (datetime.date, np.datetime64)  # a datetime is a date


class Columns:
    """Convert a table to the inputs of a network, as fitted to a training set.

    - **Numbers and booleans**: missing values become the median, with a column that marks them. A
      column with more than two values becomes two inputs: standardised, and as its rank among the
      values of the training set, from -sqrt(3) to sqrt(3). Ranks show a network structure at the
      crowded end of a skewed column, as trees see it.
    - **Times**: days, and sine and cosine of the year, the week and the day.
    - **Categories and strings**: one input per level; above 20 levels, the mean target of the level
      (`TargetEncoder`). A missing value is a level; an unseen one has zeros, or the overall mean.

    Columns that are constant in the training set are dropped.

    Args:
        table: a data frame, or an array (n, columns).
        y: targets, for categories with many levels.
        kind: of the targets: "continuous", "binary" or "multiclass".
        weights: of the rows, or None.
        seed: of the folds in which categories with many levels are encoded.

    Example:
        >>> colours = np.array([[1, "red"], [2, "blue"], [3, None]], dtype=object)
        >>> columns = Columns(colours, np.zeros(3))
        >>> columns.get_feature_names_out().tolist()
        ['x0', 'rank(x0)', 'x1=blue', 'x1=missing', 'x1=red']
        >>> columns(colours).shape
        torch.Size([3, 5])
    """

    def __init__(
        self,
        table: Any,
        y: Array,
        kind: str = "continuous",
        weights: Array | None = None,
        seed: int = 0,
    ) -> None:
        """See the class."""
        split = _split(table)
        self._kinds = split.kinds
        keep = {"strategy": "median", "keep_empty_features": True}
        self._imputer = SimpleImputer(**keep, add_indicator=True)
        levels = {name: len(set(values)) for name, values in split.categories.items()}
        can_average = y.ndim == 1  # a `TargetEncoder` takes one target
        self._many = [name for name in levels if levels[name] > _LEVELS and can_average]
        self._few = [name for name in levels if name not in self._many]
        self._names: list[str] = list(split.names)
        numbers = np.zeros((split.length, 0))
        if split.names:
            numbers = self._imputer.fit_transform(split.numbers)
            marked = self._imputer.indicator_.features_
            self._names += [f"missing({split.names[k]})" for k in marked]
        if self._few:
            self._one_hot = OneHotEncoder(
                handle_unknown="ignore",
                max_categories=_LEVELS + 1,
                sparse_output=False,
                feature_name_combiner=_level_name,
            ).fit(_matrix(split, self._few))
        if self._many:
            self._means = TargetEncoder(target_type=kind, **_folds(kind, seed))
            no_routing = sklearn.config_context(enable_metadata_routing=False)  # to the folds
            with warnings.catch_warnings(), no_routing:
                warnings.simplefilter("ignore", UserWarning)  # of classes with few rows
                found = self._means.fit_transform(_matrix(split, self._many), y)
            self._names += [
                f"mean({name})" if kind != "multiclass" else f"mean({name}, {c})"
                for name in self._many
                for c in (range(len(self._means.classes_)) if kind == "multiclass" else [0])
            ]
            numbers = np.hstack([numbers, found])
        scaler = StandardScaler().fit(numbers, sample_weight=weights) if self._names else None
        self._keep = np.zeros(0, dtype=np.int64)
        if scaler is not None:
            spread = scaler.var_ > 1e-24 * (1 + scaler.mean_**2)
            self._keep = np.flatnonzero(spread)
            if not spread.any() and not self._few:
                self._keep = np.arange(1)  # all columns are constant, and a network needs an input
        numbers = numbers[:, self._keep]
        self._names = [self._names[k] for k in self._keep]
        self._scaler = StandardScaler().fit(numbers, sample_weight=weights) if self._names else None
        self._ranked = [k for k in range(numbers.shape[1]) if _has_many(numbers[:, k])]
        if self._ranked:
            size = min(_GRID, len(numbers))
            self._ranks = QuantileTransformer(n_quantiles=size, subsample=None)
            self._ranks.fit(numbers[:, self._ranked])
        self._training = self._inputs(numbers, split)

    def training_inputs(self) -> Tensor:
        """Return the inputs of the training set, once: encoded without a row's own target."""
        return torch.as_tensor(self.__dict__.pop("_training"), dtype=torch.float32)

    def __call__(self, table: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the inputs (n, inputs) of further rows."""
        split = _split(table, self._kinds)
        numbers = np.zeros((split.length, 0))
        if split.names:
            numbers = self._imputer.transform(split.numbers)
        if self._many:
            means = self._means.transform(_matrix(split, self._many))
            numbers = np.hstack([numbers, means])
        return torch.as_tensor(self._inputs(numbers[:, self._keep], split), dtype=dtype)

    def get_feature_names_out(self) -> Array:
        """Return the names of the inputs."""
        names = [*self._names, *(f"rank({self._names[k]})" for k in self._ranked)]
        if self._few:
            names += list(self._one_hot.get_feature_names_out(self._few))
        return np.asarray([str(name) for name in names], dtype=object)

    def _inputs(self, numbers: Array, split: _Split) -> Array:
        parts = [numbers if self._scaler is None else self._scaler.transform(numbers)]
        if self._ranked:
            parts.append(_WIDTH * (self._ranks.transform(numbers[:, self._ranked]) - 0.5))
        if self._few:
            parts.append(self._one_hot.transform(_matrix(split, self._few)))
        return np.hstack(parts)


class _Split(NamedTuple):
    """A table by types of its columns."""

    length: int
    kinds: dict[str, str]  # "numbers", "times" or "categories" by column
    names: list[str]  # of the numbers
    numbers: Array  # (n, numbers), NaN where missing
    categories: dict[str, list[str]]


def is_frame(table: Any) -> bool:
    """Return whether a table is a data frame of any library."""
    return hasattr(table, "columns") and hasattr(table, "dtypes")


def _columns(table: Any) -> Iterator[tuple[str, Array, bool]]:
    """Yield the name and the values of each column, and whether it is declared as categories."""
    if not is_frame(table):
        yield from ((f"x{k}", table[:, k], False) for k in range(table.shape[1]))
        return
    for name in table.columns:
        kind = str(table[name].dtype).lower()
        is_declared = kind.startswith(("category", "categorical", "enum"))
        yield str(name), np.asarray(table[name].to_numpy()), is_declared


def _split(table: Any, kinds: dict[str, str] | None = None) -> _Split:
    found: dict[str, str] = {}
    numbers: dict[str, Array] = {}
    categories: dict[str, list[str]] = {}
    for name, values, is_declared in _columns(table):
        missing = _is_missing(values)
        kind = kinds[name] if kinds else _kind(values[~missing], is_declared)
        found[name] = kind
        if kind == "categories":
            pairs = zip(values.tolist(), missing.tolist(), strict=True)
            categories[name] = [_MISSING if gone else _level(value) for value, gone in pairs]
            continue
        if kind == "times":
            numbers |= _time_parts(name, values)
            continue
        column = np.full(len(values), np.nan)
        try:
            column[~missing] = values[~missing].astype(np.float64)
        except ValueError as error:
            raise ValueError(f"X needs numbers in column {name!r}: {error}") from error
        numbers[name] = column
    length = len(table)
    matrix = np.column_stack(list(numbers.values())) if numbers else np.zeros((length, 0))
    if numbers:
        matrix = check_array(matrix, ensure_all_finite="allow-nan", input_name="X")
    return _Split(length, found, list(numbers), matrix, categories)


def _kind(values: Array, is_declared: bool) -> str:
    """Return the kind of a column's values that are not missing."""
    if values.dtype.kind == "M" or any(isinstance(value, _TIMES) for value in values[:1]):
        return "times"
    is_text = values.dtype.kind in "USTO" and any(isinstance(value, str) for value in values)
    return "categories" if is_declared or is_text else "numbers"


def _is_missing(values: Array) -> Array:
    if values.dtype.kind in "biu":
        return np.zeros(len(values), dtype=bool)
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "M":
        return np.isnat(values)
    # None, and what is not equal to itself: NaN and NaT; comparisons of pandas.NA have no truth.
    return np.array(
        [v is None or type(v).__name__ == "NAType" or bool(v != v) for v in values.tolist()],
        dtype=bool,
    )


def _level(value: Any) -> str:
    """Return a level as text, the same for 1 and 1.0, as missing values turn one into the other."""
    return f"{value:.12g}" if isinstance(value, int | float) else str(value)


def _time_parts(name: str, values: Array) -> dict[str, Array]:
    """Return days since 1970, and sine and cosine of the year, the week and the day."""
    times = values.astype("datetime64[us]")
    days = np.where(np.isnat(times), np.nan, times.astype(np.int64) / 86_400e6)
    parts = {name: days}
    for period, length in _PERIODS.items():
        angle = 2 * np.pi * (days / length % 1.0)
        parts[f"sin({name}, {period})"] = np.nan_to_num(np.sin(angle))
        parts[f"cos({name}, {period})"] = np.nan_to_num(np.cos(angle), nan=1.0)
    return parts


def _matrix(split: _Split, names: list[str]) -> Array:
    return np.array([split.categories[name] for name in names], dtype=object).T


def _folds(kind: str, seed: int) -> dict[str, Any]:
    """Return the arguments of `TargetEncoder` for folds that depend on a seed."""
    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9):
        return {"random_state": seed}
    folds = KFold if kind == "continuous" else StratifiedKFold
    return {"cv": folds(5, shuffle=True, random_state=seed % 2**32)}


def _level_name(name: str, level: str) -> str:
    return f"{name}={level}"


def _has_many(values: Array) -> bool:
    return len(np.unique(values)) > _FEW
