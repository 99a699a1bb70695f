"""Chains that start with a given law of position and memory, and take steps from there."""

from __future__ import annotations

import torch
from torch import Tensor

from langevin.execution import block_length, draw_block, take_step
from langevin.kernels import Kernel, KernelState
from langevin.random import Purpose, normal, streams
from langevin.targets.gradients import GradientFn
from langevin_paper.check.recursions import Matrix

__all__ = ["advance", "draw", "joined", "state_of"]


def draw(covariance: Matrix, seed: int, chains: range) -> Tensor:
    """Draw from N(0, covariance), one for each chain, (chains, n), float64."""
    root = torch.linalg.cholesky(torch.as_tensor(covariance))
    return normal(seed, streams(Purpose.INIT, chains), 0, len(covariance), dtype=torch.float64) @ root.mT


def state_of(vector: Tensor, dim: int, frozen: tuple[Tensor, ...] = ()) -> KernelState:
    """Make a kernel's state of z = (theta, memory...), (chains, n dim), and of scales that stand still, the same for all chains.

    It is that before step 1: what differs at step 0 alone is no part of a law.
    """
    position, *memory = (part.contiguous() for part in vector.split(dim, -1))
    return KernelState(position, (*memory, *(scale.expand(len(vector), *scale.shape) for scale in frozen)), 1)


def joined(state: KernelState, frozen: tuple[Tensor, ...] = ()) -> Tensor:
    """Return z of a state, (chains, n dim)."""
    return torch.cat([state.position, *state.tensors[: len(state.tensors) - len(frozen)]], -1)


def advance(
    kernel: Kernel, gradient_fn: GradientFn, state: KernelState, num_steps: int, *, seed: int, chains: range
) -> KernelState:
    """Take steps from a state, with the noise that belongs to their numbers."""
    end, like = state.step + num_steps, state.position
    with torch.no_grad():
        while state.step < end:
            steps = range(state.step, min(end, state.step + block_length(like)))
            block = draw_block(kernel, gradient_fn, like, seed, chains, steps)
            noise = block.noise.whole
            for index in range(len(steps)):
                drawn = tuple(tensor[index] for tensor in block.drawn)
                state, _ = take_step(kernel, gradient_fn, state, drawn, noise[index], block.inputs[index])
    return state
