"""Whether num_data counts what the loss is a mean of, and whether the data stand still."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from langevin.lint.loss import averages_elements
from langevin.lint.report import Finding
from langevin.lint.rows import differ, tensors
from langevin.lint.setup import Setup, class_axis

__all__ = ["augmentation", "count_data", "data_of"]

_IGNORED = -100  # torch's label of no datum
_PADDED = 2.0  # the batch may have so many times more or fewer tokens per row than the data


def data_of(data: Any) -> tuple[Any, int | None, int | None]:
    """Return the data set of a loader or data set, its number of rows, and the number of batches; None where not known."""
    dataset = getattr(data, "dataset", data)
    chosen = getattr(getattr(data, "sampler", None), "indices", None)  # a SubsetRandomSampler's
    return dataset, _length(dataset if chosen is None else chosen), None if dataset is data else _length(data)


def _length(value: Any) -> int | None:
    try:
        return None if hasattr(value, "__next__") else len(value)
    except (TypeError, NotImplementedError):  # streams have none
        return None


def count_data(setup: Setup, output: Tensor | None, y: Tensor | None, groups: list[dict[str, Any]], data: Any) -> list[Finding]:
    """Compare num_data with the data, or with the batch where no data are given."""
    counts = sorted({group["num_data"] for group in groups})
    if len(counts) > 1:
        what = f"The groups of the optimizer have different num_data, {counts}: each samples its part of another posterior."
        return [Finding("num_data", what, "Give all groups the same num_data.", float(counts[0]))]
    (num_data,), size = counts, setup.size
    _, rows, batches = data_of(data) if data is not None else (None, None, None)
    elements = _elements_per_row(setup, output, y)
    if elements is None:
        if num_data >= (size if rows is None else rows):
            raise ValueError("how many elements of a label the loss averages over is not known")
        elements = 1
    if elements > 1:
        least = size * elements if rows is None else rows * elements / _PADDED
        most = num_data if rows is None else rows * elements * _PADDED
        if least <= num_data <= most:
            return []
        if num_data == rows or (rows is None and num_data >= size) or num_data < size:
            return [_said_of_elements(num_data, rows, elements, size)]
    expected = rows * elements if rows is not None else None
    if expected is None:
        if num_data >= size:
            return []
        what = f"num_data = {num_data} is smaller than the batch of {size} rows"
    elif num_data == expected:
        return []
    elif num_data == batches:
        what = f"num_data = {num_data} is the number of batches; the data set has {rows} rows"
    elif num_data == size:
        what = f"num_data = {num_data} is the size of the batch; the data set has {rows} rows"
    else:
        what = f"num_data = {num_data}, and the data set has {rows} rows" + (f" of {elements:.3g} elements" if elements > 1 else "")
    ratio = (expected or size) / num_data
    return [
        Finding(
            "num_data",
            f"{what}: standard deviations are about sqrt({ratio:.3g}) = {ratio**0.5:.3g} times what they should be.",
            f"num_data={expected:.0f}." if expected else "num_data=len(loader.dataset).",
            float(num_data),
        )
    ]


def _elements_per_row(setup: Setup, output: Tensor | None, y: Tensor | None) -> float | None:
    """Return how many terms of the loss's mean a row has: its tokens, say, less those that are ignored. None is not known."""
    if y is not None and (y.ndim < 2 or y[0].numel() < 2):
        return 1
    if output is None or y is None or (class_axis(output, y) is None and output.shape != y.shape):
        return None
    if y.is_floating_point() and y.ndim == 2 and _are_classes(y):
        return 1
    if not averages_elements(setup, output, y):
        return 1
    valid = y.numel() if y.is_floating_point() else int((y != _IGNORED).sum())
    return max(1.0, valid / len(y))


def _are_classes(y: Tensor) -> bool:
    """Say whether rows are probabilities of classes: one datum each."""
    return bool((y >= 0).all()) and float((y.sum(1) - 1).abs().max()) < 1e-3


def _said_of_elements(num_data: int, rows: int | None, elements: float, size: int) -> Finding:
    known = f" of the {rows} rows" if num_data == rows else ""
    least = (
        f"{rows} rows * {elements:.4g} = {rows * elements:.0f}"
        if rows is not None
        else f"at least {size * elements:.0f}, this batch's"
    )
    return Finding(
        "tokens",
        f"The loss is a mean over the elements of a label, such as tokens: {elements:.4g} in a row. num_data = {num_data}{known} "
        f"does not count them: standard deviations are about sqrt({elements:.4g}) = {elements**0.5:.3g} times too large.",
        f"Count what the loss averages over: num_data = all elements of all rows ({least}); or sum the loss over a row's elements.",
        elements,
    )


def augmentation(data: Any) -> list[Finding]:
    """Ask the data set for the same rows twice."""
    dataset, rows, _ = data_of(data)
    if not rows or not hasattr(dataset, "__getitem__"):
        return []
    size = 0.0
    for index in sorted({0, rows // 2, rows - 1}):
        pair = [_as_tensors(dataset[index]) for _ in range(2)]
        shapes = [[tuple(tensor.shape) for tensor in tensors(tree)] for tree in pair]
        size = max(size, differ(*pair) if shapes[0] == shapes[1] else 1.0)
    if size == 0:
        return []
    return [
        Finding(
            "augmentation",
            f"The data set returns another input each time it is asked for the same row (different by {size:.2g} of its size): it "
            "is augmented at random. There are then more inputs than num_data counts, and none of them is a datum of its own: the "
            "draws are from a tempered posterior of unknown temperature.",
            "Sample without augmentation, or with one fixed version of each row; or say that it is meant, and choose temperature=.",
            size,
        )
    ]


def _as_tensors(item: Any) -> Any:
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, tuple | list) else (item,)
    arrays = (part if isinstance(part, Tensor) else _as_tensor(part) for part in parts)
    return [array.double() for array in arrays if array is not None]


def _as_tensor(part: Any) -> Tensor | None:
    """Return numbers, arrays and images as a tensor."""
    try:
        return torch.as_tensor(np.asarray(part, dtype=np.float64))
    except (TypeError, ValueError):
        return None
