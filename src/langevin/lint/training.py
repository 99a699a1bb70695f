"""The user's own training step, watched: the gradient that reaches the optimizer against the gradient of the mean loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from langevin.checks import takes
from langevin.lint.loss import said_of_penalty
from langevin.lint.modes import coupled_rows, random_outputs
from langevin.lint.report import Finding
from langevin.lint.setup import Setup
from langevin.optim import LangevinOptimizer

__all__ = ["compare", "watched"]

_EXACT, _LOOSE, _UNEXPLAINED = 1e-3, 0.03, 0.05
"""Relative errors: of a factor where nothing else differs, of one in mixed precision, and of a remainder that is said aloud."""


def watched(optimizer: LangevinOptimizer, step: Callable[..., Any], batch: Any, parameters: list[Tensor]) -> list[list[Tensor]]:
    """Run the training step with an optimizer whose `step` takes down the gradients and moves nothing; return those it saw."""
    seen: list[list[Tensor]] = []

    def record(closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        seen.append([torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters])
        return loss

    own = optimizer.__dict__.get("step")  # a scheduler puts one there
    optimizer.step = record  # type: ignore[method-assign]
    try:
        step(batch) if takes(step, 1) else step()
    finally:
        if own is None:
            del optimizer.__dict__["step"]
        else:
            optimizer.step = own  # type: ignore[method-assign]
    return seen


def compare(setup: Setup, optimizer: LangevinOptimizer, step: Callable[..., Any], parameters: list[Tensor]) -> list[Finding]:
    """Take the step twice from the same place, and compare its gradients with those of the loss."""
    for parameter in parameters:
        parameter.grad = None
    devices = sorted({p.device.index or 0 for p in parameters if p.device.type == "cuda"})
    # Each from the same random state: the same masks, where a step draws no other random numbers.
    with torch.random.fork_rng(devices):
        first = watched(optimizer, step, setup.batch, parameters)
    if not first:
        text = "The training step never called optimizer.step(): nothing moves."
        return [Finding("no step", text, "Call optimizer.step() in it; with GradScaler, scaler.step(optimizer).", 0.0)]
    with torch.random.fork_rng(devices):
        second = watched(optimizer, step, setup.batch, parameters)
    with torch.random.fork_rng(devices):
        gradient = setup.gradient(setup.run()[0], parameters)
    expected = _flat([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradient, strict=True)])
    observed = _flat(first[0])
    if not torch.isfinite(observed).all():
        text = "The gradient that reaches the optimizer is not finite, while that of the loss is: every later draw would be NaN."
        fix = "With mixed precision step by scaler.step(optimizer), which leaves out such steps."
        return [Finding("not finite", text, fix, float(observed.norm()))]
    if not expected.any():
        return []
    if len(first) == len(second) == 1:
        again = _flat(second[0])
        growth = float(again @ observed / (observed @ observed)) if observed.any() else 1.0
        if growth > 1.5:
            text = (
                f"A second step from the same place has a gradient {growth:.3g} times as large: gradients of earlier steps are "
                "still in it. It is a momentum without friction, and the draws run far too wide."
            )
            return [Finding("zero_grad", text, "Call optimizer.zero_grad() in every step.", growth)]
    return _explained(observed, expected, parameters, setup, optimizer)


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach().double().flatten() for part in parts])


def _explained(
    observed: Tensor, expected: Tensor, parameters: list[Tensor], setup: Setup, optimizer: LangevinOptimizer
) -> list[Finding]:
    """Write the observed gradient as a factor times the expected one, plus a penalty, or a cut at a value."""
    num_data, size = optimizer.param_groups[0]["num_data"], setup.size
    theta = _flat(parameters)
    weights = _flat([parameter * (parameter.ndim > 1) for parameter in parameters])  # biases are often left out
    for pull, of in ((theta, theta), (weights, weights), (theta.sign(), theta)):
        if pull.any() and len(pull) > 3:  # two directions explain anything that has two elements
            both = torch.stack([expected, pull], 1)
            factor, rate = torch.linalg.lstsq(both, observed[:, None]).solution[:, 0].tolist()
            rest = observed - factor * expected - rate * pull
            part = abs(rate) * float(pull.norm())
            if rate > 0 and part > 1e-4 * float(observed.norm()) and float(rest.norm()) < 0.1 * part:
                said = said_of_penalty(of, rate * pull, num_data, "added in the training step, not by loss_fn")
                return [said, *_said_of_factor(factor, observed, size, _EXACT)]
    factor = float(observed @ expected / (expected @ expected))
    rest = observed - factor * expected
    remainder = float(rest.norm() / observed.norm().clamp(min=1e-300))
    largest = float(observed.abs().max())
    cut = expected.clamp(-largest, largest)
    if remainder > _EXACT and float((observed - cut).norm() / cut.norm()) < _EXACT:
        return [
            _clipped(f"elements of the gradient are cut off at {largest:.3g}", float((expected.abs() > largest).double().mean()))
        ]
    if remainder > _UNEXPLAINED:
        if random_outputs(setup) or coupled_rows(setup):
            return []  # that explains it, and is said by itself
        text = (
            f"The gradient that reaches the optimizer is not that of the loss: {remainder:.0%} of its length is something else "
            "(another loss, another batch, noise, or a change by hand)."
        )
        return [
            Finding("gradient", text, "Let the training step use loss_fn on the batch it is given, and nothing else.", remainder)
        ]
    return _said_of_factor(factor, observed, size, _EXACT if remainder < _EXACT else _LOOSE)


def _said_of_factor(factor: float, observed: Tensor, size: int, allowed: float) -> list[Finding]:
    def is_near(number: float) -> bool:
        return abs(factor - number) <= allowed * number

    if is_near(1.0):
        return []
    found = f"The gradient that reaches the optimizer is {factor:.5g} times that of the mean loss"
    effect = f"standard deviations are up to {abs(factor) ** -0.5:.3g} times as large." if factor else "nothing moves."
    power = round(torch.tensor(max(factor, 1.0)).log2().item())
    if factor <= 0:
        text, fix = f"{found}: it points uphill, or nowhere.", "Minimise the loss as it is."
        return [Finding("gradient", text, fix, factor)]
    if size > 1 and is_near(size):
        text = f"{found}, and the batch has {size} rows: it is that of a sum; {effect}"
        return [Finding("sum loss", text, 'Take the mean over the batch: reduction="mean".', factor)]
    if power >= 8 and is_near(2.0**power):
        text = f"{found}: the scale of mixed precision was left in; {effect}"
        return [Finding("loss scale", text, "Step by scaler.step(optimizer), or call scaler.unscale_(optimizer) before.", factor)]
    if factor > 1 and is_near(round(factor)):
        text = f"{found}: {round(factor)} micro-batches are summed, not averaged; {effect}"
        return [Finding("accumulation", text, f"Divide: (loss / {round(factor)}).backward().", factor)]
    if factor < 1:
        return [
            _clipped(f"{found}, of norm {float(observed.norm()):.3g}: it is clipped, or divided once too often; {effect}", factor)
        ]
    text = f"{found}; {effect}"
    return [Finding("loss scale", text, "Hand the gradient of the mean loss to the optimizer; temper with temperature=.", factor)]


def _clipped(what: str, value: float) -> Finding:
    text = what if what.startswith("The") else f"The gradient is clipped: {what}, {value:.0%} of them; the draws run too wide."
    return Finding("clipping", text, "Do not clip while sampling: take a smaller lr (and sample from a trained model).", value)
