"""Whether exp(-loss) is a law of the labels: a sum over labels of exp(-loss) that is 1, one row at a time and two."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from langevin.lint.report import Finding
from langevin.lint.rows import tolerance
from langevin.lint.setup import Setup, class_axis

__all__ = ["label_law"]

_MOST = 64  # labels that are tried where there are more than twice as many
_AMP = 2.0**8  # factors from here on, if powers of two, are scales of mixed precision


def label_law(setup: Setup, output: Tensor, y: Tensor, is_sum: bool) -> list[Finding]:
    """Try the loss on outputs of our own with every label."""
    axis = class_axis(output, y)
    if axis is not None and output.shape[axis] > 1:
        return _categorical(setup, output, y, axis, is_sum)
    if not y.is_floating_point() or output.shape != y.shape:
        return []
    if y.ndim == 2 and y.shape[1] > 1 and _are_soft(y):
        return _soft_classes(setup, output, y)
    return _binary(setup, output, y)


def _categorical(setup: Setup, output: Tensor, y: Tensor, axis: int, is_sum: bool) -> list[Finding]:
    classes = output.shape[axis]
    every = range(classes) if classes <= 2 * _MOST else [k * classes // _MOST for k in range(_MOST)]

    def loss(vector: Tensor, *labels: int) -> float:
        """Return the loss of rows with the same outputs; further axes of a label, such as tokens, have two equal elements."""
        label = torch.tensor(labels, device=y.device, dtype=y.dtype).reshape(-1, *[1] * (y.ndim - 1))
        label = label.expand(-1, *[2] * (y.ndim - 1)).contiguous()
        return float(setup.law(vector.expand(*label.shape, -1).movedim(-1, axis).contiguous(), label))

    allowed = 4 * tolerance(output)
    ones, truths, means, vectors = [], [], [], []
    for shift in (0.3, 1.7):
        # log-probabilities: the softmax of a cross-entropy leaves them as they are, and an NLLLoss takes them
        wave = 1.5 * torch.cos(shift + 2.4 * torch.arange(classes, dtype=torch.float64, device=output.device))
        vector = wave.log_softmax(0).to(output.dtype)
        vectors.append(vector)
        means.append(-float(vector.double().mean()))
        truths.append(-vector.double()[list(every)].cpu())
        ones.append(torch.tensor([loss(vector, label) for label in every], dtype=torch.float64))
    known = torch.isfinite(ones[0]) & torch.isfinite(ones[1])  # a label that is ignored has no mean
    if known.sum() < 2:
        return []
    labels = [label for label, is_known in zip(every, known.tolist(), strict=True) if is_known]
    ones, truths = [one[known] for one in ones], [truth[known] for truth in truths]
    if y.ndim > 1:  # a sum over the elements of a label is as good as a mean: num_data says which is meant
        count = max(1, round(float(ones[0] @ truths[0] / (truths[0] @ truths[0]))))
        ones = [one / count for one in ones]
    if _close(ones, truths, allowed):
        first, vector = labels[0], vectors[0]
        pairs = torch.tensor([loss(vector, label, first) for label in labels], dtype=torch.float64)
        expected = (truths[0] + truths[0][0]) / (1 if is_sum else 2)
        if y.ndim > 1:
            expected = expected * round(float(pairs[0] / expected[0]))
        if _close([pairs], [expected], allowed):
            return []
        shifted = float(((pairs - expected) / expected).abs().max())
        return [_weights(f"the loss of two rows is not the mean of their losses (off by {shifted:.0%})", shifted)]
    slopes = [_slope(one, truth) for one, truth in zip(ones, truths, strict=True)]
    slope = sum(slopes) / 2
    if _close(ones, [slope * truth for truth in truths], allowed):
        return [_scaled(slope)]
    lines = [slope * truth + (1 - slope) * mean for truth, mean in zip(truths, means, strict=True)]
    if 0 < slope < 1 and _close(ones, lines, allowed):
        return [_smoothing(1 - slope, "")]
    total = float(torch.exp(-ones[0]).sum())
    ratios = [one / truth for one, truth in zip(ones, truths, strict=True)]
    if _close(ratios[:1], ratios[1:], 10 * allowed):
        return [_weights(f"labels count between {float(ratios[0].min()):.3g} and {float(ratios[0].max()):.3g} times", total)]
    return [
        Finding(
            "not a likelihood",
            f"The sum over labels of exp(-loss) is {total:.3g}, and not 1, and the loss is no multiple of a cross-entropy: it is "
            "not minus the log of a probability, so the draws have no posterior that it would belong to.",
            "Sample with nn.CrossEntropyLoss() without options, or with your own -log p(y | output).",
            total,
        )
    ]


def _slope(values: Tensor, truth: Tensor) -> float:
    centred = truth - truth.mean()
    return float(values @ centred / (centred @ centred))


def _close(found: Sequence[Tensor], expected: Sequence[Tensor], allowed: float) -> bool:
    return all(bool(((a - b).abs() <= allowed * b.abs().clamp(min=1.0)).all()) for a, b in zip(found, expected, strict=True))


def _weights(what: str, value: float) -> Finding:
    return Finding(
        "class weights",
        f"Labels have weights: {what}. A datum of weight w counts as w data, so the draws are from no posterior of these "
        "num_data data; with a mean over weights, it even depends on the batch.",
        "Leave weight= (pos_weight=) out of the loss, and weigh the decisions made with the predictions instead.",
        value,
    )


def _smoothing(value: float, what: str) -> Finding:
    return Finding(
        "label smoothing",
        f"Labels are smoothed by {value:.3g}{what}: exp(-loss) summed over labels is not 1, and every datum speaks for all other "
        "labels too, which pulls the probabilities of the draws towards 1 / classes.",
        "Take hard labels and label_smoothing=0: a posterior average is calibrated by its spread.",
        value,
    )


def _scaled(value: float) -> Finding:
    is_amp = value >= _AMP and abs(value - 2 ** round(torch.tensor(value).log2().item())) < 1e-3 * value
    if is_amp:
        what, fix = "the scale of mixed precision was left in", "Call scaler.unscale_(optimizer), or scaler.step(optimizer)."
    else:
        what, fix = "a posterior at another temperature", "Take the mean loss as it is; temper with temperature= if that is meant."
    return Finding(
        "loss scale",
        f"The loss is {value:.5g} times minus the log-likelihood: {what}. "
        f"Standard deviations are {abs(value) ** -0.5:.3g} times as large.",
        fix,
        value,
    )


def _are_soft(y: Tensor) -> bool:
    is_law = bool((y >= 0).all()) and float((y.sum(1) - 1).abs().max()) <= tolerance(y)
    return is_law and float(y.max(1).values.min()) < 1 - tolerance(y)


def _soft_classes(setup: Setup, output: Tensor, y: Tensor) -> list[Finding]:
    loss, truth = setup.law(output.detach(), y), -(y * output.detach().log_softmax(1)).sum(1).mean()
    if float((loss - truth).abs()) > 4 * tolerance(output) * float(truth.abs()):
        return []
    return [_smoothing(float(1 - y.max(1).values.mean()), " (rows of y are no single class: smoothed or mixed)")]


def _binary(setup: Setup, output: Tensor, y: Tensor) -> list[Finding]:
    """Look at a Bernoulli loss of logits: softplus(output) for the label 0, softplus(-output) for 1, each times a constant."""
    low = float(y.min())
    if not 0 <= low < 0.5 or not bool(((y == low) | ((y - (1 - low)).abs() <= tolerance(y))).all()):
        return []
    ratios = []
    for place in (0.7, -1.3):
        logits = output.new_full((1, *output.shape[1:]), place)
        truths = [float(torch.nn.functional.softplus(torch.tensor(sign * place))) for sign in (1, -1)]
        losses = [float(setup.law(logits, y.new_full(logits.shape, label))) for label in (0, 1)]
        ratios.append(torch.tensor([loss / truth for loss, truth in zip(losses, truths, strict=True)]))
    allowed = 4 * tolerance(output)
    if not _close(ratios[:1], ratios[1:], allowed):
        return []  # some other law
    zero, one = ratios[0].tolist()
    if abs(zero - one) > allowed * abs(zero):
        return [_weights(f"a label 1 counts {one / zero:.3g} times as much as a 0", one / zero)]
    if low > 0:
        return [_smoothing(2 * low, f" (y is {low:.3g} or {1 - low:.3g})")]
    if all(abs(zero - count) > allowed * count for count in (1, y[0].numel())):
        return [_scaled(zero)]
    return []
