"""Checks of the loss: sums, squared errors without a variance, penalties, residual densities."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from langevin.nn.lint.report import Finding
from langevin.nn.lint.setup import Setup, class_axis, relative_difference, tolerance
from langevin.nn.trees import take_rows

__all__ = [
    "averages_elements",
    "describe_penalty",
    "penalty",
    "residual_loss",
    "squared_error",
    "sum_loss",
]

_POINTS = 60  # of the quadrature over residuals
_FAR = 1e6  # residual at which the tail is measured
_NORMALISED = 0.02  # relative error of an integral that counts as 1
_SCORE = 0.05  # mean of a score, relative to its mean size, that counts as 0


def sum_loss(setup: Setup) -> Finding | None:
    """Compare the loss of the batch with that of 2 and 4 copies of it; a sum grows."""
    with torch.no_grad():
        one, two, four = (setup.repeated_loss(times) for times in (1, 2, 4))
        try:
            count = min(setup.size, 4)
            rows = [setup.run(take_rows(setup.batch, [row]))[0] for row in range(count)]
        except Exception:  # a model of all nodes of a graph takes no single rows
            rows = []
    # terms may cancel in the mean
    allowed = tolerance(one) * max(float(loss.abs()) for loss in (one, *rows))
    growth = float(two - one)
    if abs(growth) <= allowed or abs(float(four - two) - 2 * growth) > 4 * allowed:
        return None
    ratio, size = float(two / one), setup.size
    return Finding(
        "sum loss",
        f"The loss of the batch repeated twice is {ratio:.3g} times that of the batch: it is a "
        f"sum over the {size} rows. Times num_data = {setup.num_data} it counts every observation "
        f"{size} times: standard deviations are up to sqrt({size}) = {size**0.5:.3g} times too "
        f"small.",
        'Take the mean over the batch: reduction="mean", or loss / len(x).',
        ratio,
    )


def squared_error(setup: Setup, output: Tensor, y: Tensor) -> Finding | None:
    """Find a loss c |output - y|^2 whose c is that of `MSELoss` and not a chosen 1 / (2 sd^2)."""
    if not y.is_floating_point() or output.shape != y.shape:
        return None
    shape = (1, *y.shape[1:])
    away, other = (_wave(y[0].numel(), shift).reshape(shape).to(output) for shift in (1.0, 2.0))
    zero, around = torch.zeros_like(away).to(y), other.to(y)
    pairs = [(0 * away, zero), (away, zero), (-away, zero), (2 * away, zero), (other, zero)]
    try:
        with torch.no_grad():
            values = [setup.loss_at(*pair) for pair in (*pairs, (other + away, around))]
    except RuntimeError:
        return None  # a loss of probabilities, which takes no other outputs
    at_zero, *losses = map(float, values)
    square, other_square = float(away.square().sum()), float(other.square().sum())
    c = losses[0] / square
    expected = [c * times for times in (square, square, 4 * square, other_square, square)]
    allowed = 4 * tolerance(output, y)
    if not c > 0 or abs(at_zero) > allowed * losses[0]:
        return None
    if any(abs(a - b) > allowed * b for a, b in zip(losses, expected, strict=True)):
        return None
    if all(abs(c * count - 1) > allowed for count in (1, y[0].numel())):
        return None  # the user's own 1 / (2 sd^2)
    variance = 0.5 / c
    return Finding(
        "squared error",
        f"The loss of a row is {c:.3g} times the squared error: a Gaussian likelihood with "
        f"variance {variance:.3g} (sd {variance**0.5:.3g}), whatever the noise of the data is. "
        f"Standard deviations are wrong by the ratio of the two.",
        "Set the sd of the noise: ((output - y)**2 / (2 * sd**2)).sum(-1).mean(), or estimate it "
        "(nn.GaussianNLLLoss).",
        variance,
    )


def _wave(size: int, shift: float) -> Tensor:
    """Return numbers of size 1 that are unrelated to the data."""
    return 1.5 * torch.cos(shift + 2.4 * torch.arange(size, dtype=torch.float64))


def averages_elements(setup: Setup, output: Tensor, y: Tensor) -> bool:
    """Return whether the loss is a mean over the elements of a label, such as tokens, not a sum.

    Compares constant outputs and labels of two lengths, so that a loss that compares each output
    with the next label is covered too.
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
                logits = _wave(output.shape[axis], 0.0).to(output)
                out = logits.expand(*label.shape, -1).movedim(-1, axis)
            losses.append(float(setup.loss_at(out, label)))
        if all(map(math.isfinite, losses)):
            break
    return abs(losses[1] - losses[0]) <= 4 * tolerance(output) * abs(losses[0])


# ---- Penalties


def penalty(setup: Setup) -> Finding | None:
    """Find a term of the loss that depends on parameters but not on the outputs."""
    try:
        shifted = setup.detached_loss(shift=1.37)
    except RuntimeError:  # a loss of probabilities
        shifted = setup.detached_loss(shift=1.37, are_probabilities=True)
    whole, gradients, others = (
        setup.gradient(value) for value in (setup.run()[0], setup.detached_loss(), shifted)
    )
    pairs = [(a, b) for a, b in zip(whole, gradients, strict=True) if a is not None]
    if pairs and all(b is not None and torch.equal(a, b) for a, b in pairs):
        raise ValueError("the outputs that the loss uses are not those of the model as a whole")
    named = setup.sampled.items()
    found = [
        (name, parameter.detach(), gradient)
        for (parameter, name), gradient, other in zip(named, gradients, others, strict=True)
        if gradient is not None
        and other is not None
        and gradient.any()
        # the same operations: equal up to far less than rounding
        and relative_difference(gradient, other) <= tolerance(gradient) ** 2
    ]
    if not found:
        return None
    theta = torch.cat([parameter.double().flatten() for _, parameter, _ in found])
    pull = torch.cat([gradient.double().flatten() for *_, gradient in found])
    where = f"of {len(found)} of {len(named)} parameters ({found[0][0]}, ...)"
    return describe_penalty(theta, pull, setup.num_data, where)


def describe_penalty(theta: Tensor, pull: Tensor, num_data: int, where: str) -> Finding:
    """Return the finding for a penalty's gradient: L2 if parallel to the parameters."""
    rate = float(pull @ theta / (theta @ theta))
    cosine = float(pull @ theta / (pull.norm() * theta.norm()))
    if cosine > 0.99:
        std = (rate * num_data) ** -0.5
        root = f"1 / sqrt(num_data * {rate:.3g}) = {std:.3g}"
        what = f"a gradient {rate:.3g} * theta: an L2 penalty, equal to a prior of sd {root}"
        fix = f"Remove it from the loss and pass prior=langevin.priors.gaussian(std={std:.3g})."
    else:
        rate = float(pull.norm())
        what = f"a gradient of norm {rate:.3g} that depends on the parameters only: a penalty"
        fix = "Remove it from the loss and pass it as prior= of the optimizer."
    text = f"The loss has {what}, {where}. With a prior= as well, the prior is counted twice."
    return Finding("penalty", text, fix, rate)


# ---- Residual losses


def residual_loss(setup: Setup, output: Tensor, y: Tensor) -> Finding | None:
    """Check that exp(-loss) is a density of y where the loss is a function of output - y.

    For a density, the mean over y of the gradient of the loss with respect to any parameter is 0. A
    scale that is estimated without its normalising constant breaks that.
    """
    if not y.is_floating_point() or output.shape[:1] != y.shape[:1]:
        return None
    count = y[0].numel()
    if output[0].numel() != count:
        return None
    if count > 1 and (y.ndim < 2 or averages_elements(setup, output, y)):
        count = 1

    def loss(residual: float, at: float = 0.3) -> Tensor:
        """Return the loss of one row; `at` is valid as a mean, a rate and a probability."""
        out, label = (
            torch.full((1, *like.shape[1:]), value, dtype=torch.float64, device=like.device)
            for like, value in ((output, at), (y, at + residual))
        )
        return setup.loss_at(out, label) / count

    if not _depends_on_residual(loss, tolerance(*setup.sampled)):
        return None
    with torch.no_grad():
        base, near, far = (float(loss(residual)) for residual in (0.0, _FAR / 10, _FAR))
    if not math.isfinite(base) or math.isnan(near):
        return None
    tail = math.inf if math.isinf(near) or math.isinf(far) else (far - near) / math.log(10)
    if tail <= 1.01:
        return Finding(
            "not a likelihood",
            "The loss hardly grows for large residuals: exp(-loss) has no finite integral over y, "
            "so it is not a density of y and there is no posterior.",
            "Use a density with heavy tails, such as "
            "-torch.distributions.StudentT(4, f, scale).log_prob(y).",
            tail,
        )
    own = _loss_parameters(loss(1.0), setup.sampled)
    with torch.no_grad():
        if not own and _is_quadratic(loss, base):
            return None  # a Gaussian of fixed variance, whose constant changes nothing
        scale = next((10.0**k for k in range(-8, 9) if float(loss(10.0**k)) - base >= 1), None)
    if scale is None:
        return None
    # equal ratios around the residual at which the loss has grown by 1
    residuals = [scale * 10 ** (8 * k / (_POINTS - 1) - 4) for k in range(_POINTS)]
    return _estimated_scale(loss, residuals, own) if own else _fixed_scale(loss, residuals, tail)


def _depends_on_residual(loss: Callable[..., Tensor], allowed: float) -> bool:
    with torch.no_grad():
        for residual in (0.5, 2.0):
            try:
                values = [float(loss(sign * residual, at)) for sign in (-1, 1) for at in (0.3, 0.7)]
            except RuntimeError:  # a loss of labels between 0 and 1
                return False
            if not all(
                math.isfinite(value) and abs(value - values[0]) <= allowed * max(1.0, abs(value))
                for value in values
            ):
                return False
    return True


def _is_quadratic(loss: Callable[..., Tensor], base: float) -> bool:
    one = float(loss(1.0)) - base
    return all(
        abs(float(loss(t)) - base - one * t * t) <= 1e-6 * abs(one) * t * t
        for t in (0.01, 10.0, 1000.0)
    )


def _loss_parameters(loss: Tensor, named: dict[Tensor, str]) -> dict[Tensor, str]:
    """Return the parameters that the loss depends on at fixed outputs."""
    if not loss.requires_grad:
        return {}
    gradients = torch.autograd.grad(loss, list(named), allow_unused=True)
    pairs = zip(named.items(), gradients, strict=True)
    return {p: name for (p, name), gradient in pairs if gradient is not None and gradient.any()}


def _quadrature_weights(losses: Tensor, residuals: list[float]) -> Tensor:
    """Return exp(-loss) times the quadrature step, over positive and negative residuals."""
    step = math.log(residuals[1] / residuals[0])
    return 2 * step * torch.tensor(residuals, dtype=torch.float64) * torch.exp(-losses)


def _estimated_scale(
    loss: Callable[..., Tensor], residuals: list[float], own: dict[Tensor, str]
) -> Finding | None:
    losses = [loss(residual) for residual in residuals]
    values = torch.stack([value.detach().double().cpu() for value in losses])
    density = _quadrature_weights(values, residuals)
    weights = (density / density.sum()).tolist()
    scores = [torch.autograd.grad(value, list(own)) for value in losses]
    for name, parts in zip(own.values(), zip(*scores, strict=True), strict=True):
        terms = torch.stack(
            [w * part.double().flatten() for w, part in zip(weights, parts, strict=True)]
        )
        means, sizes = terms.sum(0).abs(), terms.abs().sum(0)
        if bool((means > _SCORE * sizes).any()):
            return Finding(
                "not a likelihood",
                f"The loss depends on {name} as on a scale of the noise, but without the log of "
                f"the normalising constant: the integral of exp(-loss) over y changes with {name}, "
                f"and draws move towards ever larger noise.",
                "Use the full density: for a Gaussian 0.5 * ((f - y) / sd)**2 + log(sd), or "
                "-distribution.log_prob(y).",
                float((means / sizes.clamp(min=1e-300)).max()),
            )
    return None


def _fixed_scale(
    loss: Callable[..., Tensor], residuals: list[float], tail: float
) -> Finding | None:
    with torch.no_grad():
        losses = torch.tensor([float(loss(r)) for r in residuals], dtype=torch.float64)
    weights = _quadrature_weights(losses, residuals)
    integral = float(weights.sum())
    if abs(integral - 1) <= _NORMALISED:
        return None
    sd, noise = math.inf, "noise without a finite variance"
    if tail > 3.01:
        squares = torch.tensor(residuals, dtype=torch.float64).square()
        sd = float((weights * squares).sum() / integral) ** 0.5
        noise = f"noise of standard deviation {sd:.3g}"
    return Finding(
        "robust loss",
        f"As a density of y the loss assumes {noise}, whatever the noise of the data is. "
        f"exp(-loss) has the integral {integral:.3g} over y: a constant as long as its delta or "
        f"scale is fixed, so the draws follow this noise model. An estimated delta or scale, and "
        f"densities of y, would need that constant.",
        "Divide the residual by the scale of your noise, and check that this noise model fits.",
        sd,
        is_note=True,
    )
