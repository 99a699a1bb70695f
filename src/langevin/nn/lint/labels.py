"""Whether exp(-loss) is a distribution of the labels: it sums to 1, for one row and for two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from langevin.nn.lint.report import Finding
from langevin.nn.lint.setup import Setup, class_axis, tolerance

__all__ = ["label_distribution"]

_MOST = 64  # labels that are tried if there are more than twice as many
_AMP = 2.0**8  # powers of two from here on are loss scales of mixed precision


def label_distribution(setup: Setup, output: Tensor, y: Tensor, is_sum: bool) -> Finding | None:
    """Compute the loss of synthetic outputs for every label."""
    axis = class_axis(output, y)
    if axis is not None and output.shape[axis] > 1:
        return _categorical(setup, output, y, axis, is_sum)
    if not y.is_floating_point() or output.shape != y.shape:
        return None
    if y.ndim == 2 and y.shape[1] > 1 and _are_soft(y):
        return _soft_classes(setup, output, y)
    return _binary(setup, output, y)


def _categorical(
    setup: Setup, output: Tensor, y: Tensor, axis: int, is_sum: bool
) -> Finding | None:
    classes, double = output.shape[axis], torch.float64
    every = range(classes) if classes <= 2 * _MOST else [k * classes // _MOST for k in range(_MOST)]

    def loss(vector: Tensor, *labels: int) -> float:
        """Return the loss of rows with equal outputs; further label axes have two elements."""
        label = torch.tensor(labels, device=y.device, dtype=y.dtype)
        label = label.reshape(-1, *[1] * (y.ndim - 1))
        label = label.expand(-1, *[2] * (y.ndim - 1)).contiguous()
        outputs = vector.expand(*label.shape, -1).movedim(-1, axis).contiguous()
        return float(setup.loss_at(outputs, label))

    allowed = 4 * tolerance(output)
    ones, truths, means, vectors = [], [], [], []
    for shift in (0.3, 1.7):
        angle = shift + 2.4 * torch.arange(classes, dtype=double, device=output.device)
        # log-probabilities: valid for a cross-entropy, whose softmax keeps them, and an NLLLoss
        vector = (1.5 * torch.cos(angle)).log_softmax(0).to(output.dtype)
        vectors.append(vector)
        means.append(-float(vector.double().mean()))
        truths.append(-vector.double()[list(every)].cpu())
        ones.append(torch.tensor([loss(vector, label) for label in every], dtype=double))
    known = torch.isfinite(ones[0]) & torch.isfinite(ones[1])  # an ignored label has no mean
    if known.sum() < 2:
        return None
    labels = [label for label, is_known in zip(every, known.tolist(), strict=True) if is_known]
    ones, truths = [one[known] for one in ones], [truth[known] for truth in truths]
    if y.ndim > 1:  # a sum over the elements of a label is valid too: see num_data
        count = max(1, round(float(ones[0] @ truths[0] / (truths[0] @ truths[0]))))
        ones = [one / count for one in ones]
    if _close(ones, truths, allowed):
        first, vector = labels[0], vectors[0]
        pairs = torch.tensor([loss(vector, label, first) for label in labels], dtype=double)
        expected = (truths[0] + truths[0][0]) / (1 if is_sum else 2)
        if y.ndim > 1:
            expected = expected * round(float(pairs[0] / expected[0]))
        if _close([pairs], [expected], allowed):
            return None
        swapped = torch.tensor([loss(vector, first, label) for label in labels], dtype=double)
        if not _close([pairs], [swapped], allowed):
            raise ValueError("the loss of two rows depends on their order, as with a mask of rows")
        off = float(((pairs - expected) / expected).abs().max())
        return _weights(f"the loss of two rows is not the mean of their losses ({off:.0%})", off)
    slope = sum(_slope(one, truth) for one, truth in zip(ones, truths, strict=True)) / 2
    if _close(ones, [slope * truth for truth in truths], allowed):
        return _scaled(slope)
    lines = [slope * truth + (1 - slope) * mean for truth, mean in zip(truths, means, strict=True)]
    if 0 < slope < 1 and _close(ones, lines, allowed):
        return _smoothing(1 - slope, "")
    total = float(torch.exp(-ones[0]).sum())
    ratios = [one / truth for one, truth in zip(ones, truths, strict=True)]
    if _close(ratios[:1], ratios[1:], 10 * allowed):
        low, high = float(ratios[0].min()), float(ratios[0].max())
        return _weights(f"labels count between {low:.3g} and {high:.3g} times", total)
    return Finding(
        "not a likelihood",
        f"The sum over labels of exp(-loss) is {total:.3g}, not 1, and the loss is no multiple of "
        f"a cross-entropy: it is not a negative log-probability, so there is no posterior.",
        "Sample with nn.CrossEntropyLoss() without options, or with your own -log p(y | output).",
        total,
    )


def _slope(values: Tensor, truth: Tensor) -> float:
    centred = truth - truth.mean()
    return float(values @ centred / (centred @ centred))


def _close(found: Sequence[Tensor], expected: Sequence[Tensor], allowed: float) -> bool:
    return all(
        bool(((a - b).abs() <= allowed * b.abs().clamp(min=1.0)).all())
        for a, b in zip(found, expected, strict=True)
    )


def _weights(what: str, value: float) -> Finding:
    return Finding(
        "class weights",
        f"Labels have weights: {what}. An observation of weight w counts w times, so the draws do "
        f"not follow the posterior of num_data observations; a weighted mean even depends on the "
        f"batch.",
        "Remove weight= (pos_weight=) from the loss, and weight decisions made with the "
        "predictions instead.",
        value,
    )


def _smoothing(value: float, what: str) -> Finding:
    return Finding(
        "label smoothing",
        f"Labels are smoothed by {value:.3g}{what}: exp(-loss) summed over labels is not 1, and "
        f"every observation counts for all other labels too, which pulls the probabilities of the "
        f"draws towards 1 / classes.",
        "Use hard labels and label_smoothing=0: the posterior's spread calibrates its average.",
        value,
    )


def _scaled(value: float) -> Finding:
    if value >= _AMP and abs(value - 2.0 ** round(math.log2(value))) < 1e-3 * value:
        what = "the loss scale of mixed precision was not removed"
        fix = "Call scaler.unscale_(optimizer), or scaler.step(optimizer)."
    else:
        what = "a posterior at another temperature"
        fix = "Use the mean loss as it is; temper with temperature= if you mean to."
    text = (
        f"The loss is {value:.5g} times the negative log-likelihood: {what}. "
        f"Standard deviations are {abs(value) ** -0.5:.3g} times as large."
    )
    return Finding("loss scale", text, fix, value)


def _are_soft(y: Tensor) -> bool:
    sums_to_one = float((y.sum(1) - 1).abs().max()) <= tolerance(y)
    return bool((y >= 0).all()) and sums_to_one and float(y.amax(1).min()) < 1 - tolerance(y)


def _soft_classes(setup: Setup, output: Tensor, y: Tensor) -> Finding | None:
    output = output.detach()
    loss, truth = setup.loss_at(output, y), -(y * output.log_softmax(1)).sum(1).mean()
    if float((loss - truth).abs()) > 4 * tolerance(output) * float(truth.abs()):
        return None
    what = " (rows of y are no single class: smoothed or mixed)"
    return _smoothing(float(1 - y.amax(1).mean()), what)


def _binary_ratios(setup: Setup, output: Tensor, y: Tensor, value: float, logit: float) -> Tensor:
    """Return the losses of an output for labels 0 and 1, over minus their log-probabilities."""
    outputs = output.new_full((1, *output.shape[1:]), value)
    truths = [float(torch.nn.functional.softplus(torch.tensor(sign * logit))) for sign in (1, -1)]
    losses = [float(setup.loss_at(outputs, y.new_full(outputs.shape, label))) for label in (0, 1)]
    return torch.tensor([loss / truth for loss, truth in zip(losses, truths, strict=True)])


def _binary(setup: Setup, output: Tensor, y: Tensor) -> Finding | None:
    """Check a Bernoulli loss: multiples of softplus(logit) for 0 and softplus(-logit) for 1."""
    low = float(y.min())
    if not 0 <= low < 0.5 or not bool(((y == low) | ((y - (1 - low)).abs() <= tolerance(y))).all()):
        return None
    try:
        ratios = [_binary_ratios(setup, output, y, value, value) for value in (0.7, -1.3)]
    except RuntimeError:  # nn.BCELoss takes probabilities
        ratios = [
            _binary_ratios(setup, output, y, value, math.log(value / (1 - value)))
            for value in (0.7, 0.2)
        ]
    allowed = 4 * tolerance(output)
    if not _close(ratios[:1], ratios[1:], allowed):
        return None  # another distribution
    zero, one = ratios[0].tolist()
    if abs(zero - one) > allowed * abs(zero):
        return _weights(f"a label 1 counts {one / zero:.3g} times as much as a 0", one / zero)
    if low > 0:
        return _smoothing(2 * low, f" (y is {low:.3g} or {1 - low:.3g})")
    if all(abs(zero - count) > allowed * count for count in (1, y[0].numel())):
        return _scaled(zero)
    return None
