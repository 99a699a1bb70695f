"""Which parameters are sampled, from which prior, and whether their gradients are numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from langevin.lint.report import Finding
from langevin.targets.priors import Flat

__all__ = ["flat_prior", "gradients", "membership"]


def membership(model: nn.Module, loss_fn: Any, groups: list[dict[str, Any]]) -> list[Finding]:
    """Compare the parameters of the model with those of the optimizer; frozen ones are frozen on purpose."""
    owners = [root for root in (model, loss_fn) if isinstance(root, nn.Module)]
    named = {parameter: name for root in owners for name, parameter in root.named_parameters()}
    ours = [parameter for group in groups for parameter in group["params"]]
    findings = []
    if strange := [parameter for parameter in ours if parameter not in named]:
        findings.append(
            Finding(
                "not in the model",
                f"{len(strange)} of the {len(ours)} parameters of the optimizer (the first of shape {tuple(strange[0].shape)}) are "
                "not those of the model: they get no gradient from it.",
                "Build the optimizer from the parameters of this model, after anything that replaces them.",
                float(len(strange)),
            )
        )
    inside = set(ours)
    if left := [name for parameter, name in named.items() if parameter.requires_grad and parameter not in inside]:
        findings.append(
            Finding(
                "not in the optimizer",
                f"{len(left)} of the {len(named)} parameters ({_listed(left)}) want gradients but are not in the optimizer: they "
                "stay what they are in all draws, and their gradients pile up.",
                "Give them to the optimizer, or freeze them: parameter.requires_grad_(False).",
                float(len(left)),
            )
        )
    if ours and not any(parameter.requires_grad for parameter in ours):
        text = f"None of the {len(ours)} parameters of the optimizer wants a gradient: nothing will move."
        findings.append(Finding("no gradient", text, "requires_grad_(True) for those that are to be sampled.", float(len(ours))))
    return findings


def gradients(loss: Tensor, names: list[str], found: list[Tensor | None]) -> list[Finding]:
    """Look at the loss and its gradient: numbers, and one for every parameter."""
    if not torch.isfinite(loss):
        text = f"The loss is {float(loss)}: every draw after the first step would be NaN."
        return [
            Finding("not finite", text, "Look at inputs, learning rate and logs of 0; sample from a trained model.", float(loss))
        ]
    bad = [name for name, gradient in zip(names, found, strict=True) if gradient is not None and not torch.isfinite(gradient).all()]
    if bad:
        text = f"The loss is finite, but not the gradient of {_listed(bad)}: every draw after the first step would be NaN."
        return [Finding("not finite", text, "Look for sqrt, norm and log at 0, and for 0 * inf in masks.", float(len(bad)))]
    missing = [name for name, gradient in zip(names, found, strict=True) if gradient is None]
    if not missing:
        return []
    text = f"{len(missing)} of {len(names)} parameters ({_listed(missing)}) have no part in the loss: they will not move."
    return [
        Finding("no gradient", text, "Freeze them (requires_grad_(False)), or look for a detach() on the way.", float(len(missing)))
    ]


def flat_prior(model: nn.Module, groups: list[dict[str, Any]]) -> list[Finding]:
    """Look for weights of a network, or more parameters than data, that have no prior."""
    flat = [
        parameter
        for group in groups
        if group["temperature"] > 0 and (group["prior"] is None or isinstance(group["prior"], Flat))
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    count, num_data = sum(parameter.numel() for parameter in flat), groups[0]["num_data"]
    layers = sum(1 for module in model.modules() if any(p.ndim > 1 for p in module.parameters(recurse=False)))
    is_network = layers > 1 and any(parameter.ndim > 1 for parameter in flat)
    if not is_network and count < num_data:
        return []
    why = (
        "in a network some directions do not change the loss at all (one layer larger, the next one smaller), and along them"
        if is_network
        else f"{num_data} data leave directions open, and along them"
    )
    return [
        Finding(
            "flat prior",
            f"{count} parameters have no prior: {why} a flat posterior has no end. Draws wander off instead of settling.",
            "Give prior=langevin.priors.gaussian(std=...); for weights of a layer std = 1 / sqrt(fan_in) is a start.",
            float(count),
        )
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
