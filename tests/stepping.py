"""A step by hand, from a gradient alone."""

from __future__ import annotations

import torch

from langevin.targets import Evaluation


def step(kernel, state, gradient, noise):
    """Take one step of a kernel that does not look at the energy, or give an evaluation; one noise need not be stacked."""
    noise = noise if noise.ndim > state.position.ndim else noise[None]
    evaluation = gradient if isinstance(gradient, Evaluation) else Evaluation(torch.tensor(torch.nan), gradient)
    return kernel.step(state, evaluation, noise)
