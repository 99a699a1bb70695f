"""A block: a fixed stretch of steps with everything random in it, and the trace that its steps leave behind.

A run that is cut anywhere goes on with the same blocks, hence with the same bits. A chain whose step raises is out, and so is one
that went non-finite; both keep their rows in the tensors, where they follow another chain (`feed`) and can do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.drifts import Number
from langevin.gradients import Draws, GradientFn
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.noise import KINDS, UPDATE_NOISES, Purpose, streams

__all__ = ["Block", "Trace", "block_length", "draw_block", "feed", "follow", "seat", "stack", "stack_inputs"]

_MAX_BLOCK, _MAX_ELEMENTS = 256, 2**22


class Block(NamedTuple):
    """What a stretch of steps needs; the first axis of every tensor is the step."""

    steps: range
    noise: Tensor  # (steps, noises, chains, dim)
    inputs: list[StepInputs]
    drawn: Draws  # what is random in the gradient, (steps, chains, ...)


class Trace:
    """What a stretch of steps leaves behind; it is whole after every step, for a run that is interrupted.

    Args:
        state: where the chains are before the first step.
    """

    positions: Tensor  # (steps, chains, dim), after each step
    energies: Tensor  # (steps, chains), before it
    gradients: Tensor  # (steps, chains, dim), before it

    def __init__(self, state: KernelState) -> None:
        """Nothing has happened."""
        self.before = self.state = state
        self.failed: dict[int, tuple[int, str]] = {}  # chain -> the step at which it raised, and what

    @property
    def done(self) -> int:
        """How many steps were taken."""
        return self.state.step - self.before.step


def block_length(position: Tensor) -> int:
    """Return how many steps make a block: many for small chains, few for large ones, a function of the shape alone."""
    return max(1, min(_MAX_BLOCK, _MAX_ELEMENTS // position.numel()))


def draw_block(kernel: Kernel, gradient_fn: GradientFn, like: Tensor, seed: int, chains: Sequence[int], steps: range) -> Block:
    """Draw everything random for a stretch of steps: one stream per chain and per noise of the kernel.

    Chains of the same number share their noise.
    """
    noises = [_noise(seed, purpose, chains, steps, like, kernel.noise_kind) for purpose in UPDATE_NOISES[: kernel.num_noises]]
    noise = noises[0][:, None] if len(noises) == 1 else torch.stack(noises, 1)  # one noise is not copied
    inputs = kernel.inputs_of(steps)
    if kernel.takes_chances:
        chances = torch.special.ndtr(_noise(seed, Purpose.CHANCE, chains, steps, like[:, :1]))
        inputs = [each._replace(chance=row) for each, row in zip(inputs, chances, strict=True)]
    return Block(steps, noise, inputs, gradient_fn.draw(steps))


def _noise(seed: int, purpose: Purpose, chains: Sequence[int], steps: range, like: Tensor, kind: str = "normal") -> Tensor:
    consecutive = chains if isinstance(chains, range) else range(min(chains), max(chains) + 1)
    noise = KINDS[kind](seed, streams(purpose, consecutive), steps, like.shape[-1], dtype=like.dtype, device=like.device)
    return noise if chains is consecutive else noise[:, torch.tensor(chains, device=like.device) - consecutive.start]


def stack_inputs(inputs: Sequence[StepInputs], like: Tensor) -> list[Tensor]:
    """Return every field of the inputs of some steps as a tensor: (steps,), or (steps, chains, 1) where chains differ."""
    is_steady = inputs[0] is inputs[-1]  # as `Kernel.inputs_of` makes them
    return [stack(values, is_steady, like) for values in zip(*inputs, strict=True)]


def stack(values: Sequence[Number], is_steady: bool, like: Tensor) -> Tensor:
    """Return one input of some steps as a tensor; `is_steady` says that it is the same in all of them."""
    tensors = [value for value in (values[:1] if is_steady else values) if isinstance(value, Tensor)]
    if tensors:
        return torch.stack([torch.as_tensor(value, dtype=like.dtype, device=like.device).expand_as(tensors[0]) for value in values])
    if is_steady:
        return torch.full((len(values),), float(values[0]), dtype=torch.float64, device=like.device)
    return torch.tensor(values, dtype=torch.float64, device=like.device)


def feed(state: KernelState, block: Block, alive: Sequence[int], group: int) -> tuple[KernelState, Block]:
    """Let every chain that is not in `alive` go the way of one that is: same place, same memory, same draws."""
    return seat(state, block, follow(alive, state.position, group))


def seat(state: KernelState, block: Block, rows: Tensor) -> tuple[KernelState, Block]:
    """Put chains `rows` into the places of all."""
    moved = KernelState(state.position[rows], tuple(tensor[rows] for tensor in state.memory), state.step)
    return moved, block._replace(noise=block.noise.index_select(-2, rows), drawn=tuple(tensor[:, rows] for tensor in block.drawn))


def follow(chains: Sequence[int], like: Tensor, group: int) -> Tensor:
    """Return the chain that each row stands for: itself where it is one of `chains`, else its like in the first group of them."""
    rows = chains[0] + torch.arange(len(like), device=like.device) % group
    rows[list(chains)] = torch.tensor(chains, device=like.device)
    return rows
