"""Compare the gradient that reaches the optimizer in a training step with that of the mean loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from langevin.checks import takes
from langevin.nn.lint.loss import describe_penalty
from langevin.nn.lint.outputs import coupled_rows, random_outputs
from langevin.nn.lint.report import Finding
from langevin.nn.lint.setup import Setup

__all__ = ["compare_gradients", "record_gradients"]

_EXACT, _LOOSE = 1e-3, 0.03  # relative errors of a factor: otherwise, and in mixed precision
_UNEXPLAINED = 0.05  # relative size of a remainder that is reported


def record_gradients(setup: Setup, step: Callable[..., object]) -> list[list[Tensor]]:
    """Run the training step with an `optimizer.step` that records the gradients and does not move.

    Returns:
        The gradients of each call of `optimizer.step`.
    """
    optimizer, seen = setup.optimizer, []

    def record(closure: Callable[[], object] | None = None) -> object:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        seen.append(_gradients(setup, [p.grad for p in setup.sampled]))
        return loss

    own = optimizer.__dict__.get("step")  # set by a scheduler
    optimizer.step = record  # type: ignore[method-assign]
    try:
        step(setup.batch) if takes(step, 1) else step()
    finally:
        if own is None:
            del optimizer.__dict__["step"]
        else:
            optimizer.step = own  # type: ignore[method-assign]
    return seen


def _gradients(setup: Setup, found: list[Tensor | None]) -> list[Tensor]:
    pairs = zip(setup.sampled, found, strict=True)
    return [torch.zeros_like(p) if g is None else g.detach().clone() for p, g in pairs]


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().double().flatten() for part in parts])


def compare_gradients(setup: Setup, step: Callable[..., object]) -> list[Finding]:
    """Run the step twice at the same parameters, and compare its gradients with the loss's."""
    for parameter in setup.sampled:
        parameter.grad = None
    devices = sorted({p.device.index or 0 for p in setup.sampled if p.device.type == "cuda"})
    # Equal random states give equal masks, if a step draws no other random numbers.
    with torch.random.fork_rng(devices):
        first = record_gradients(setup, step)
    if not first:
        text = "The training step never called optimizer.step(): nothing moves."
        fix = "Call optimizer.step() in it; with GradScaler, scaler.step(optimizer)."
        return [Finding("no step", text, fix, 0.0)]
    with torch.random.fork_rng(devices):
        second = record_gradients(setup, step)
    with torch.random.fork_rng(devices):
        gradient = setup.gradient(setup.run()[0])
    expected, observed = _flat(_gradients(setup, gradient)), _flat(first[0])
    if not torch.isfinite(observed).all():
        text = (
            "The gradient that reaches the optimizer is not finite, while that of the loss is: "
            "every later draw would be NaN."
        )
        fix = "With mixed precision, step by scaler.step(optimizer), which skips such steps."
        return [Finding("not finite", text, fix, float(observed.norm()))]
    if not expected.any():
        return []
    if len(first) == len(second) == 1:
        again = _flat(second[0])
        growth = float(again @ observed / (observed @ observed)) if observed.any() else 1.0
        if growth > 1.5:
            text = (
                f"A second step at the same parameters has a gradient {growth:.3g} times as large: "
                f"it includes the gradients of earlier steps. That is momentum without friction, "
                f"and the draws spread far too wide."
            )
            return [Finding("zero_grad", text, "Call optimizer.zero_grad() in every step.", growth)]
    return _explain(setup, observed, expected)


def _explain(setup: Setup, observed: Tensor, expected: Tensor) -> list[Finding]:
    """Write the observed gradient as a factor times the expected one, plus a penalty or a cut."""
    theta, size = _flat(setup.sampled), setup.size
    weights = _flat(p * (p.ndim > 1) for p in setup.sampled)  # biases are often left out
    for pull, of in ((theta, theta), (weights, weights), (theta.sign(), theta)):
        if not pull.any() or len(pull) <= 3:  # two directions explain anything of two elements
            continue
        both = torch.stack([expected, pull], 1)
        factor, rate = torch.linalg.lstsq(both, observed[:, None]).solution[:, 0].tolist()
        rest = observed - factor * expected - rate * pull
        part = abs(rate) * float(pull.norm())
        is_large = rate > 0 and part > 1e-4 * float(observed.norm())
        if is_large and float(rest.norm()) < 0.1 * part:
            where = "added in the training step, not by loss_fn"
            found = describe_penalty(of, rate * pull, setup.num_data, where)
            return [found, *_describe_factor(factor, observed, size, _EXACT)]
    factor = float(observed @ expected / (expected @ expected))
    rest = observed - factor * expected
    remainder = float(rest.norm() / observed.norm().clamp(min=1e-300))
    largest = float(observed.abs().max())
    cut = expected.clamp(-largest, largest)
    if remainder > _EXACT and float((observed - cut).norm() / cut.norm()) < _EXACT:
        share = float((expected.abs() > largest).double().mean())
        text = (
            f"The gradient is clipped: elements are cut off at {largest:.3g}, {share:.0%} of them; "
            f"the draws spread too wide."
        )
        return [_clipped(text, share)]
    if remainder > _UNEXPLAINED:
        if random_outputs(setup) or coupled_rows(setup):
            return []  # these explain it, and are findings of their own
        text = (
            f"The gradient that reaches the optimizer is not that of the loss: {remainder:.0%} of "
            f"its length is something else (another loss or batch, noise, or a manual change)."
        )
        fix = "Use loss_fn on the batch that the training step receives, and nothing else."
        return [Finding("gradient", text, fix, remainder)]
    return _describe_factor(factor, observed, size, _EXACT if remainder < _EXACT else _LOOSE)


def _describe_factor(factor: float, observed: Tensor, size: int, allowed: float) -> list[Finding]:
    def is_near(number: float) -> bool:
        return abs(factor - number) <= allowed * number

    if is_near(1.0):
        return []
    found = f"The gradient that reaches the optimizer is {factor:.5g} times that of the mean loss"
    if factor <= 0:
        text, fix = f"{found}: it points uphill, or is zero.", "Minimise the loss as it is."
        return [Finding("gradient", text, fix, factor)]
    effect = f"standard deviations are up to {factor**-0.5:.3g} times as large."
    if factor < 1:
        norm = float(observed.norm())
        text = f"{found}, of norm {norm:.3g}: it is clipped, or divided once too often; {effect}"
        return [_clipped(text, factor)]
    count, power = round(factor), round(math.log2(factor))
    if size > 1 and is_near(size):
        text = f"{found}, and the batch has {size} rows: it is that of a sum; {effect}"
        fix = 'Take the mean over the batch: reduction="mean".'
        return [Finding("sum loss", text, fix, factor)]
    if power >= 8 and is_near(2.0**power):
        text = f"{found}: the loss scale of mixed precision was not removed; {effect}"
        fix = "Step by scaler.step(optimizer), or call scaler.unscale_(optimizer) before."
        return [Finding("loss scale", text, fix, factor)]
    if is_near(count):
        text = f"{found}: {count} micro-batches are summed, not averaged; {effect}"
        return [Finding("accumulation", text, f"Divide: (loss / {count}).backward().", factor)]
    fix = "Pass the gradient of the mean loss to the optimizer; temper with temperature=."
    return [Finding("loss scale", f"{found}; {effect}", fix, factor)]


def _clipped(text: str, value: float) -> Finding:
    fix = "Do not clip while sampling: use a smaller lr (and sample from a trained model)."
    return Finding("clipping", text, fix, value)
