"""Blocks: consecutive steps with all their random numbers, and the trace that the steps leave.

The steps of a block do not depend on where a run was interrupted, so a resumed run has the same
bits. A chain whose step raises, or that becomes non-finite, is stopped. It keeps its rows in the
tensors, where it repeats a running chain (`feed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.kernels.base import inputs_of
from langevin.kernels.drifts import Number
from langevin.random import KINDS, UPDATE_NOISES, Purpose, chains_last, streams
from langevin.targets.gradients import Draws, GradientFn

__all__ = [
    "Block",
    "Noise",
    "Trace",
    "block_length",
    "compiled_length",
    "draw_block",
    "feed",
    "follow",
    "seat",
    "stack",
    "stack_inputs",
]

_MAX_BLOCK, _MAX_ELEMENTS = 256, 2**22
_MAX_COMPILED, _CACHED = 4096, 2**18  # calling compiled code costs as much as 100 small steps


class Block(NamedTuple):
    """The inputs of consecutive steps; the first axis of every tensor is the step."""

    steps: range
    noise: Noise
    inputs: list[StepInputs]
    drawn: Draws  # random numbers of the gradient, (steps, chains, ...)


class Noise(NamedTuple):
    """The noise of consecutive steps, drawn on demand: each thread draws that of its chains."""

    seed: int
    kernel: Kernel
    chains: Sequence[int]  # their numbers; chains with the same number share noise
    steps: range
    like: Tensor  # positions, (chains, dim)

    @property
    def whole(self) -> Tensor:
        """The noise of all chains, (steps, noises, chains, dim)."""
        return self.of(slice(None), in_lanes=False)

    def of(self, piece: slice, *, in_lanes: bool) -> Tensor:
        """Return the noise of some chains.

        Its shape is (steps, noises, chains, dim); with `in_lanes` (steps, noises, dim, chains).
        """
        where = self.chains[piece], self.steps, self.like, self.kernel.traits.noise_kind, in_lanes
        purposes = UPDATE_NOISES[: self.kernel.traits.num_noises]
        noises = [_noise(self.seed, purpose, *where) for purpose in purposes]
        return noises[0][:, None] if len(noises) == 1 else torch.stack(noises, 1)


class Trace:
    """The record of consecutive steps; complete after every step, in case a run is interrupted.

    Args:
        state: the chains before the first step.
    """

    every: int = 1  # steps per row
    positions: Tensor  # (rows, chains, dim), after the last step of each row
    energies: Tensor  # (rows, chains), before that step
    gradients: Tensor  # (rows, chains, elements), before the first step of each row; all or some
    # (rows, chains), of the gradient before the last step of each row; None: see `gradients`
    norms: Tensor | None = None
    # (rows, chains), `energy_residuals` of the first step of each row, if a row has several steps
    residuals: Tensor | None = None
    sound: Tensor | None = None  # (rows, chains): NaN where some step of a row was not finite

    def __init__(self, state: KernelState) -> None:
        """Start without steps."""
        self.before = self.state = state
        self.failed: dict[int, tuple[int, str]] = {}  # chain -> the step that raised, and the error

    @property
    def done(self) -> int:
        """The number of steps taken."""
        return self.state.step - self.before.step

    def forget(self, state: KernelState | None = None) -> None:
        """Return to the state before the first step, or to another one."""
        self.state = self.before if state is None else state
        self.every, self.norms, self.residuals, self.sound = 1, None, None, None


def block_length(position: Tensor) -> int:
    """Return the number of steps of a block: more for smaller chains."""
    return max(1, min(_MAX_BLOCK, _MAX_ELEMENTS // position.numel()))


def compiled_length(position: Tensor, numbers: int, every: int) -> int:
    """Return the number of steps of a compiled block, a multiple of `every`.

    Args:
        position: of the chains.
        numbers: random numbers per step; the fewer, the longer the block.
        every: steps per row of the trace.
    """
    length = max(block_length(position), min(_MAX_COMPILED, _CACHED // numbers))
    return max(1, length // every) * every


def draw_block(
    kernel: Kernel,
    gradient_fn: GradientFn,
    like: Tensor,
    seed: int,
    chains: Sequence[int],
    steps: range,
) -> Block:
    """Draw all random numbers of consecutive steps: one stream per chain and noise of the kernel.

    Chains with the same number share noise.
    """
    inputs = inputs_of(kernel, steps)
    if kernel.traits.needs_uniform:
        chances = torch.special.ndtr(_noise(seed, Purpose.CHANCE, chains, steps, like[:, :1]))
        inputs = [each._replace(uniform=row) for each, row in zip(inputs, chances, strict=True)]
    return Block(steps, Noise(seed, kernel, chains, steps, like), inputs, gradient_fn.draw(steps))


def _noise(
    seed: int,
    purpose: Purpose,
    chains: Sequence[int],
    steps: range,
    like: Tensor,
    kind: str = "normal",
    lanes: bool = False,
) -> Tensor:
    consecutive = chains if isinstance(chains, range) else range(min(chains), max(chains) + 1)
    where = seed, streams(purpose, consecutive), steps, like.shape[-1]
    if lanes and chains is consecutive:
        return chains_last(kind, *where, like.dtype, like.device)
    noise = KINDS[kind](*where, dtype=like.dtype, device=like.device)
    if chains is not consecutive:
        noise = noise[:, torch.tensor(chains, device=like.device) - consecutive.start]
    return noise.mT.contiguous() if lanes else noise


def stack_inputs(inputs: Sequence[StepInputs], like: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the inputs of consecutive steps as tensors.

    Returns:
        Numbers (steps, fields), and a dict from field to tensors (steps, chains, 1) for the fields
        that differ between chains, which are NaN among the numbers.
    """
    is_steady = inputs[0] is inputs[-1]  # as `inputs_of` makes them
    different = inputs[:1] if is_steady else inputs
    tensors = {
        field: stack([each[field] for each in inputs], is_steady, like)
        for field in range(len(inputs[0]))
        if any(isinstance(each[field], Tensor) for each in different)
    }
    rows = [
        [math.nan if field in tensors else value for field, value in enumerate(each)]
        for each in different
    ]
    numbers = torch.tensor(rows, dtype=torch.float64, device=like.device)
    return numbers.expand(len(inputs), -1).contiguous(), tensors


def stack(values: Sequence[Number], is_steady: bool, like: Tensor) -> Tensor:
    """Return one input of consecutive steps as a tensor; `is_steady` if all steps share it."""
    different = values[:1] if is_steady else values
    tensors = [value for value in different if isinstance(value, Tensor)]
    if tensors:
        each = (torch.as_tensor(value, dtype=like.dtype, device=like.device) for value in values)
        return torch.stack([value.expand_as(tensors[0]) for value in each])
    if is_steady:
        return torch.full((len(values),), float(values[0]), dtype=torch.float64, device=like.device)
    return torch.tensor(values, dtype=torch.float64, device=like.device)


def feed(
    state: KernelState, block: Block, alive: Sequence[int], group: int
) -> tuple[KernelState, Block]:
    """Let every stopped chain repeat one of `alive`: same position, same noise."""
    return seat(state, block, follow(alive, state.position, group))


def seat(state: KernelState, block: Block, rows: Tensor) -> tuple[KernelState, Block]:
    """Replace all chains by chains `rows`."""
    tensors = tuple(tensor[rows] for tensor in state.tensors)
    chains = [block.noise.chains[row] for row in rows.tolist()]
    return KernelState(state.position[rows], tensors, state.step), block._replace(
        noise=block.noise._replace(chains=chains),
        drawn=tuple(tensor[:, rows] for tensor in block.drawn),
    )


def follow(chains: Sequence[int], like: Tensor, group: int) -> Tensor:
    """Return the chain whose state each row holds: itself if it is in `chains`.

    Other rows get the chains of the first group of `chains`.
    """
    rows = chains[0] + torch.arange(len(like), device=like.device) % group
    rows[list(chains)] = torch.tensor(chains, device=like.device)
    return rows
