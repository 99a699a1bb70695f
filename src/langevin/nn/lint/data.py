"""Checks of num_data, the data, the sampled parameters and their prior."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from langevin.nn.lint.loss import averages_elements
from langevin.nn.lint.report import Finding, listed
from langevin.nn.lint.setup import Setup, class_axis, relative_difference
from langevin.nn.trees import Tree, logits_of, tensors
from langevin.targets.priors import Flat

__all__ = [
    "augmentation",
    "count_data",
    "finite_gradients",
    "flat_prior",
    "membership",
    "weighted_sampler",
]

_IGNORED = -100  # torch's label for "no label"
_PADDED = 2.0  # factor by which tokens per row may differ between the batch and the data

# ---- num_data


def count_data(setup: Setup, output: Tensor | None, y: Tensor | None, data: Tree) -> Finding | None:
    """Compare num_data with the data, or with the batch if no data are given."""
    counts = sorted({group["num_data"] for group in setup.optimizer.param_groups})
    if len(counts) > 1:
        text = (
            f"The groups of the optimizer have different num_data, {counts}: each samples its part "
            f"of another posterior."
        )
        return Finding("num_data", text, "Give all groups the same num_data.", float(counts[0]))
    (num_data,), size = counts, setup.size
    _, rows, batches = _data_set(data) if data is not None else (None, None, None)
    if rows is None and num_data < size and (labelled := _labelled_rows(setup)) < size:
        size = labelled
        if num_data >= size:
            return None
    elements = _elements_per_row(setup, output, y)
    if elements is None:
        if num_data >= (size if rows is None else rows):
            raise ValueError("how many elements of a label the loss averages over is not known")
        elements = 1
    if elements > 1:
        least = size * elements if rows is None else rows * elements / _PADDED
        most = num_data if rows is None else rows * elements * _PADDED
        if least <= num_data <= most:
            return None
        if num_data == rows or (rows is None and num_data >= size) or num_data < size:
            return _uncounted_elements(num_data, rows, elements, size)
    expected = None if rows is None else rows * elements
    if (num_data >= size) if expected is None else (num_data == expected):
        return None
    what = f"the data set has {rows} rows"
    if expected is None:
        what = f"num_data = {num_data} is smaller than the batch of {size} rows"
    elif num_data == batches:
        what = f"num_data = {num_data} is the number of batches; {what}"
    elif num_data == size:
        what = f"num_data = {num_data} is the size of the batch; {what}"
    else:
        each = f" of {elements:.3g} elements" if elements > 1 else ""
        what = f"num_data = {num_data}, and {what}{each}"
    ratio = (expected or size) / num_data
    root = f"sqrt({ratio:.3g}) = {ratio**0.5:.3g}"
    return Finding(
        "num_data",
        f"{what}: standard deviations are about {root} times what they should be.",
        f"num_data={expected:.0f}." if expected else "num_data=len(loader.dataset).",
        float(num_data),
    )


def _data_set(data: Tree) -> tuple[Tree, int | None, int | None]:
    """Return a loader's data set, its rows and the number of batches; None if unknown."""
    dataset = getattr(data, "dataset", data)
    subset = getattr(getattr(data, "sampler", None), "indices", None)  # of a SubsetRandomSampler
    rows = _length(dataset if subset is None else subset)
    return dataset, rows, None if dataset is data else _length(data)


def _length(value: Tree) -> int | None:
    try:
        return None if hasattr(value, "__next__") else len(value)
    except (TypeError, NotImplementedError):  # streams have none
        return None


def _labelled_rows(setup: Setup) -> int:
    """Return the rows of the batch that affect the loss: others have no label, or are masked."""
    value, output = setup.run()
    logits = logits_of(output)
    if logits is None or not logits.requires_grad or len(logits) != setup.size:
        return setup.size
    (gradient,) = setup.gradient(value, [logits])
    return setup.size if gradient is None else int(gradient.reshape(setup.size, -1).any(1).sum())


def _elements_per_row(setup: Setup, output: Tensor | None, y: Tensor | None) -> float | None:
    """Return the terms per row of the loss's mean, such as tokens; None if unknown."""
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
    """Return whether rows are probabilities of classes, one observation each."""
    return bool((y >= 0).all()) and float((y.sum(1) - 1).abs().max()) < 1e-3


def _uncounted_elements(num_data: int, rows: int | None, elements: float, size: int) -> Finding:
    known = f" of the {rows} rows" if num_data == rows else ""
    count = f"at least {size * elements:.0f}, as in this batch"
    if rows is not None:
        count = f"{rows} rows * {elements:.4g} = {rows * elements:.0f}"
    return Finding(
        "tokens",
        f"The loss is a mean over the elements of a label, such as tokens: {elements:.4g} per row. "
        f"num_data = {num_data}{known} does not count them: standard deviations are about "
        f"sqrt({elements:.4g}) = {elements**0.5:.3g} times too large.",
        f"Count what the loss averages over: num_data = all elements of all rows ({count}); or sum "
        f"the loss over a row's elements.",
        elements,
    )


# ---- Data sets


def augmentation(data: Tree) -> Finding | None:
    """Read the same rows of the data set twice."""
    dataset, rows, _ = _data_set(data)
    if not rows or not hasattr(dataset, "__getitem__"):
        return None
    size = 0.0
    for index in sorted({0, rows // 2, rows - 1}):
        one, other = (_as_tensors(dataset[index]) for _ in range(2))
        is_same_shape = [t.shape for t in tensors(one)] == [t.shape for t in tensors(other)]
        size = max(size, relative_difference(one, other) if is_same_shape else 1.0)
    if size == 0:
        return None
    return Finding(
        "augmentation",
        f"The data set returns another input each time the same row is read (different by "
        f"{size:.2g} of its size): random augmentation. There are then more inputs than num_data "
        f"counts, and they are not independent observations: the draws are from a tempered "
        f"posterior of unknown temperature.",
        "Sample without augmentation, or with one fixed version of each row; or choose "
        "temperature= if you mean to augment.",
        size,
    )


def weighted_sampler(data: Tree) -> Finding | None:
    """Find a loader that draws rows with unequal probabilities."""
    batches = getattr(data, "batch_sampler", None)
    samplers: list[Tree] = [getattr(data, "sampler", None), getattr(batches, "sampler", None)]
    weights: Tree = next((s.weights for s in samplers if hasattr(s, "weights")), None)
    if weights is None:
        return None
    weights = torch.as_tensor(weights, dtype=torch.float64)
    low, high = float(weights.min()), float(weights.max())
    if high <= low * (1 + 1e-6):
        return None
    ratio = high / low if low else math.inf
    return Finding(
        "weighted sampler",
        f"The loader draws rows with unequal probabilities, up to {ratio:.3g} to 1. The mean loss "
        f"of a batch then does not estimate the mean over the data: a row of weight w counts as w "
        f"rows, and the draws are from another posterior.",
        "Draw rows uniformly (shuffle=True), and weight decisions made with the predictions "
        "instead.",
        ratio,
    )


def _as_tensors(item: Tree) -> list[Tensor]:
    """Return the numbers, arrays and images of an item as tensors."""
    if isinstance(item, dict):
        item = item.values()
    elif not isinstance(item, tuple | list):
        item = (item,)
    found = []
    for part in item:
        try:
            array = part if isinstance(part, Tensor) else np.asarray(part, dtype=np.float64)
            found.append(torch.as_tensor(array).double())
        except (TypeError, ValueError):  # text, for example
            continue
    return found


# ---- Parameters


def membership(setup: Setup) -> list[Finding]:
    """Compare the parameters of the model with those of the optimizer, except frozen ones."""
    named = {p: name for root in setup.modules for name, p in root.named_parameters()}
    ours, findings = dict.fromkeys(setup.parameters), []
    if strange := [parameter for parameter in ours if parameter not in named]:
        text = (
            f"{len(strange)} of the {len(ours)} parameters of the optimizer (the first of shape "
            f"{tuple(strange[0].shape)}) are not those of the model: the model gives them no "
            f"gradient."
        )
        fix = "Build the optimizer from this model's parameters, after anything replaces them."
        findings.append(Finding("not in the model", text, fix, float(len(strange))))
    if left := [name for p, name in named.items() if p.requires_grad and p not in ours]:
        text = (
            f"{len(left)} of the {len(named)} parameters ({listed(left)}) require gradients but "
            f"are not in the optimizer: they are the same in all draws, and their gradients "
            f"accumulate."
        )
        fix = "Give them to the optimizer, or freeze them: parameter.requires_grad_(False)."
        findings.append(Finding("not in the optimizer", text, fix, float(len(left))))
    if ours and not any(parameter.requires_grad for parameter in ours):
        text = f"None of the {len(ours)} parameters of the optimizer requires a gradient: no moves."
        fix = "Call requires_grad_(True) on those that are to be sampled."
        findings.append(Finding("no gradient", text, fix, float(len(ours))))
    return findings


def finite_gradients(setup: Setup, loss: Tensor) -> Finding | None:
    """Check that loss and gradients are finite, and that every parameter has a gradient."""
    value = float(loss.detach())
    if not math.isfinite(value):
        text = f"The loss is {value}: every draw after the first step would be NaN."
        fix = "Check inputs, learning rate and logs of 0; sample from a trained model."
        return Finding("not finite", text, fix, value)
    pairs = list(zip(setup.sampled.values(), setup.gradient(loss), strict=True))
    if bad := [name for name, g in pairs if g is not None and not torch.isfinite(g).all()]:
        text = (
            f"The loss is finite, but not the gradient of {listed(bad)}: every draw after the "
            f"first step would be NaN."
        )
        fix = "Check for sqrt, norm and log at 0, and for 0 * inf in masks."
        return Finding("not finite", text, fix, float(len(bad)))
    if missing := [name for name, gradient in pairs if gradient is None]:
        text = (
            f"{len(missing)} of {len(pairs)} parameters ({listed(missing)}) do not affect the "
            f"loss: they will not move."
        )
        fix = "Freeze them (requires_grad_(False)), or check for a detach() on the way."
        return Finding("no gradient", text, fix, float(len(missing)))
    return None


def flat_prior(setup: Setup) -> Finding | None:
    """Find weights of a network, or more parameters than data, without a prior."""
    flat = [
        parameter
        for group in setup.optimizer.param_groups
        if group["temperature"] > 0 and (group["prior"] is None or isinstance(group["prior"], Flat))
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    count, num_data = sum(parameter.numel() for parameter in flat), setup.num_data
    layers = sum(
        any(p.ndim > 1 for p in m.parameters(recurse=False)) for m in setup.model.modules()
    )
    why = f"{num_data} observations leave directions undetermined"
    if layers > 1 and any(parameter.ndim > 1 for parameter in flat):
        why = "in a network some directions do not change the loss (one layer larger, one smaller)"
    elif count < num_data:
        return None
    return Finding(
        "flat prior",
        f"{count} parameters have no prior: {why}, and along them a flat posterior has no end. "
        f"Draws drift away instead of converging.",
        "Give prior=langevin.priors.gaussian(std=...); for weights of a layer std = 1 / "
        "sqrt(fan_in) is a start.",
        float(count),
    )
