"""What the loss is a mean of, and what else is in it: sums, squared errors without a variance, penalties."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from langevin.lint.report import Finding
from langevin.lint.rows import differ, repeated, taken, tolerance
from langevin.lint.setup import Setup, class_axis

__all__ = ["averages_elements", "penalty", "squared_error", "sum_loss"]


def sum_loss(setup: Setup, num_data: int) -> list[Finding]:
    """Compare the loss of the batch with those of the batch twice and four times: a mean stays, a sum grows in proportion."""
    with torch.no_grad():
        one, two, four = (setup.run(repeated(setup.batch, times))[0] for times in (1, 2, 4))
        rows = [setup.run(taken(setup.batch, [row]))[0] for row in range(min(setup.size, 4))]
    allowed = tolerance(one) * max(float(loss.abs()) for loss in (one, *rows))  # terms may cancel in the mean
    growth = float(two - one)
    if abs(growth) <= allowed or abs(float(four - two) - 2 * growth) > 4 * allowed:
        return []
    ratio, size = float(two / one), setup.size
    return [
        Finding(
            "sum loss",
            f"The loss of the batch taken twice is {ratio:.3g} times that of the batch: it is a sum over the {size} rows. Times "
            f"num_data = {num_data} it counts every datum {size} times: standard deviations are up to sqrt({size}) = "
            f"{size**0.5:.3g} times too small.",
            'Take the mean over the batch: reduction="mean", or loss / len(x).',
            ratio,
        )
    ]


def squared_error(setup: Setup, output: Tensor, y: Tensor) -> list[Finding]:
    """Find out whether the loss of a row is c |output - y|^2 with the c of `MSELoss`, which nobody chose as 1 / (2 sigma^2)."""
    if not y.is_floating_point() or output.shape != y.shape:
        return []
    shape = (1, *y.shape[1:])
    away, other = (_wave(y[0].numel(), shift).reshape(shape).to(output) for shift in (1.0, 2.0))
    zero, around = torch.zeros_like(away).to(y), other.to(y)
    with torch.no_grad():
        places = ((away, zero), (-away, zero), (2 * away, zero), (other, zero), (other + away, around))
        at_zero, *losses = (float(setup.law(place, label)) for place, label in ((0 * away, zero), *places))
    square, other_square = float(away.square().sum()), float(other.square().sum())
    c = losses[0] / square
    expected = [c * times for times in (square, square, 4 * square, other_square, square)]
    allowed = 4 * tolerance(output, y)
    if (
        not c > 0
        or abs(at_zero) > allowed * losses[0]
        or any(abs(a - b) > allowed * b for a, b in zip(losses, expected, strict=True))
    ):
        return []
    if all(abs(c * count - 1) > allowed for count in (1, y[0].numel())):
        return []  # somebody's own 1 / (2 sigma^2)
    variance = 0.5 / c
    return [
        Finding(
            "squared error",
            f"The loss of a row is {c:.3g} times the squared error: as a law of y that is a Gaussian whose variance happens to be "
            f"{variance:.3g} (sd {variance**0.5:.3g}), whatever the noise of the data is. Standard deviations are wrong by the "
            "ratio of the two.",
            "Say which sd the noise of y has: ((output - y)**2 / (2 * sd**2)).sum(-1).mean(), or learn it (nn.GaussianNLLLoss).",
            variance,
        )
    ]


def _wave(size: int, shift: float) -> Tensor:
    """Return numbers of size 1 that have nothing in common with the data."""
    return 1.5 * torch.cos(shift + 2.4 * torch.arange(size, dtype=torch.float64))


def averages_elements(setup: Setup, output: Tensor, y: Tensor) -> bool:
    """Say whether the loss is a mean over the elements of a row's label, such as tokens, and not their sum.

    Outputs and labels are constant along a row, twice as long the second time: a mean stays what it is, also where the loss
    compares each output with the label after it.
    """
    if setup.loss_fn is None:
        return True  # the model's own: transformers take the mean over tokens
    axis = class_axis(output, y)
    for value in (0, 1):  # one of them may be a label that is ignored
        losses = []
        for times in (1, 2):
            label = y.new_full((1, 2 * times, *y.shape[2:]), value)
            if axis is None:
                out = output.new_full(label.shape, 0.3)
            else:
                out = _wave(output.shape[axis], 0.0).to(output).expand(*label.shape, -1).movedim(-1, axis)
            losses.append(float(setup.law(out, label)))
        if all(map(math.isfinite, losses)):
            break
    return abs(losses[1] - losses[0]) <= 4 * tolerance(output) * abs(losses[0])


def penalty(setup: Setup, names: list[str], parameters: list[Tensor], num_data: int) -> list[Finding]:
    """Look for a part of the loss that knows the parameters without the outputs, and is the same for other outputs."""
    whole, gradients, others = (
        setup.gradient(value, parameters) for value in (setup.run()[0], setup.apart(), setup.apart(shift=1.37))
    )
    pairs = [(all_of_it, gradient) for all_of_it, gradient in zip(whole, gradients, strict=True) if all_of_it is not None]
    if pairs and all(gradient is not None and torch.equal(all_of_it, gradient) for all_of_it, gradient in pairs):
        raise ValueError("the outputs that the loss uses are not those of the model as a whole")
    found = []
    for name, parameter, gradient, other in zip(names, parameters, gradients, others, strict=True):
        if gradient is None or other is None or not gradient.any():
            continue
        if differ(gradient, other) <= tolerance(gradient) ** 2:  # the same operations: not even rounding differs, in principle
            found.append((name, parameter.detach(), gradient))
    if not found:
        return []
    theta = torch.cat([parameter.double().flatten() for _, parameter, _ in found])
    pull = torch.cat([gradient.double().flatten() for *_, gradient in found])
    return [said_of_penalty(theta, pull, num_data, f"of {len(found)} of {len(names)} parameters ({found[0][0]}, ...)")]


def said_of_penalty(theta: Tensor, pull: Tensor, num_data: int, where: str) -> Finding:
    """Put a penalty's gradient into words: L2 where it is parallel to the parameters."""
    rate = float(pull @ theta / (theta @ theta))
    cosine = float(pull @ theta / (pull.norm() * theta.norm()))
    if cosine > 0.99:
        std = (rate * num_data) ** -0.5
        root = f"1 / sqrt(num_data * {rate:.3g}) = {std:.3g}"
        what = f"a gradient {rate:.3g} * theta: that of an L2 penalty, which is a prior of sd {root}"
        fix = f"Leave it out of the loss and write it once, as prior=langevin.priors.gaussian(std={std:.3g})."
    else:
        what = f"a gradient of norm {float(pull.norm()):.3g} that is a function of the parameters alone: a penalty"
        fix = "Leave it out of the loss, and say it as a prior= of the optimizer."
        rate = float(pull.norm())
    return Finding("penalty", f"The loss has {what}, {where}. With a prior= beside it, the prior is counted twice.", fix, rate)
