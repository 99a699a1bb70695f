"""A stage's optimizer: one of ours or a baseline of torch's, on the same objective and the same scale."""

from __future__ import annotations

import torch
from torch import nn

from langevin import optim
from langevin.targets.priors import Prior
from langevin_paper.stages import BASELINES, Stage

__all__ = ["add_prior", "effective_temperature", "make_optimizer"]


def make_optimizer(stage: Stage, model: nn.Module, num_data: int, seed: int, step: int = 0) -> torch.optim.Optimizer:
    """Make a stage's optimizer; `step` is where its noise begins, so that two stages of a run never share any."""
    lr = stage.lr(0)
    if stage.optimizer in BASELINES:
        return getattr(torch.optim, stage.optimizer)(model.parameters(), lr=lr, fused=True, **stage.settings)
    optimizer: torch.optim.Optimizer = getattr(optim, stage.optimizer)(
        model.parameters(),
        lr=lr,
        num_data=num_data,
        prior=stage.prior,
        temperature=stage.temperature,
        seed=seed,
        **stage.settings,
    )
    for group in optimizer.param_groups:
        group["step"] = step
    return optimizer


def effective_temperature(stage: Stage, model: nn.Module) -> float | None:
    """Return the temperature of a stage's law for small steps; None for a baseline, or where no single one describes it."""
    if stage.optimizer in BASELINES:
        return None
    sampler = getattr(optim, stage.optimizer)
    group = make_optimizer(stage, model, num_data=1, seed=0).param_groups[0]  # with the optimizer's defaults
    kernel = sampler.builder(1.0, temperature=group["temperature"], **{name: group[name] for name in sampler.settings})
    return kernel.effective_temperature


@torch.no_grad()
def add_prior(model: nn.Module, prior: Prior, num_data: int) -> None:
    """Add the gradient of ``-log prior / N`` to that of the mean loss."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(prior.gradient(parameter), alpha=1 / num_data)
