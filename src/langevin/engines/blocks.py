"""A block: a fixed stretch of steps with everything random in it, and the trace that its steps leave behind.

A run that is cut anywhere goes on with the same blocks, hence with the same bits. A chain whose step raises is out, and so is one
that went non-finite; both keep their rows in the tensors, where they follow another chain (`feed`) and can do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from langevin.drifts import Number
from langevin.gradients import Draws, GradientFn
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.noise import KINDS, UPDATE_NOISES, Purpose, in_lanes, streams

__all__ = [
    "Block",
    "ByRows",
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
_MAX_COMPILED, _CACHED = 4096, 2**18  # a call of compiled code costs what hundreds of small steps do


class Block(NamedTuple):
    """What a stretch of steps needs; the first axis of every tensor is the step."""

    steps: range
    noise: Noise
    inputs: list[StepInputs]
    drawn: Draws  # what is random in the gradient, (steps, chains, ...)


class Noise(NamedTuple):
    """The noise of a stretch of steps, drawn when it is asked for: a thread draws that of its own chains."""

    seed: int
    kernel: Kernel
    chains: Sequence[int]  # their numbers; those of the same number share their noise
    steps: range
    like: Tensor  # positions, (chains, dim)

    @property
    def whole(self) -> Tensor:
        """The noise of all chains, (steps, noises, chains, dim)."""
        return self.of(slice(None), in_lanes=False)

    def of(self, piece: slice, *, in_lanes: bool) -> Tensor:
        """Return the noise of some chains; with `in_lanes` they are side by side in memory, (steps, noises, dim, chains)."""
        chains, purposes = self.chains[piece], UPDATE_NOISES[: self.kernel.num_noises]
        noises = [
            _noise(self.seed, purpose, chains, self.steps, self.like, self.kernel.noise_kind, in_lanes) for purpose in purposes
        ]
        return noises[0][:, None] if len(noises) == 1 else torch.stack(noises, 1)  # one noise is not copied

    def seated(self, rows: Tensor) -> Noise:
        """Return the noise with chains `rows` in the places of all."""
        return self._replace(chains=[self.chains[row] for row in rows.tolist()])


class ByRows(Protocol):
    """What gives some rows of a tensor that is not put together."""

    def __getitem__(self, rows: Any, /) -> Tensor:
        """Return them, as a tensor does."""


class Trace:
    """What a stretch of steps leaves behind; it is whole after every step, for a run that is interrupted.

    Args:
        state: where the chains are before the first step.
    """

    every: int = 1  # steps for a row
    positions: Tensor  # (rows, chains, dim), after the last step of each row
    energies: Tensor  # (rows, chains), before that step
    gradients: Tensor  # (rows, chains, elements), before the first step of each row; some of its elements, or all
    beside: ByRows | None = None  # stands for `gradients` after compiled steps
    norms: Tensor | None = None  # (rows, chains), of the gradient before the last step of each row; None: `gradients` tell
    residuals: Tensor | None = None  # (rows, chains), `energy_residuals` of the first step of each row, where a row has several
    sound: Tensor | None = None  # (rows, chains): NaN where some step of a row was not finite

    def __init__(self, state: KernelState) -> None:
        """Nothing has happened."""
        self.before = self.state = state
        self.failed: dict[int, tuple[int, str]] = {}  # chain -> the step at which it raised, and what

    @property
    def done(self) -> int:
        """How many steps were taken."""
        return self.state.step - self.before.step

    def forget(self, state: KernelState | None = None) -> None:
        """Go back to what was there before the first step, or to a state."""
        self.state = self.before if state is None else state
        self.every, self.norms, self.beside, self.residuals, self.sound = 1, None, None, None, None


def block_length(position: Tensor) -> int:
    """Return how many steps make a block: many for small chains, few for large ones, a function of the shape alone."""
    return max(1, min(_MAX_BLOCK, _MAX_ELEMENTS // position.numel()))


def compiled_length(position: Tensor, numbers: int, steps: int) -> int:
    """Return how many steps make a block of compiled steps: whole turns of `steps`, more of them where little is drawn in each.

    Args:
        position: where the chains are.
        numbers: that are drawn for a step.
        steps: of a turn.
    """
    length = max(block_length(position), min(_MAX_COMPILED, _CACHED // numbers))
    return max(1, length // steps) * steps


def draw_block(kernel: Kernel, gradient_fn: GradientFn, like: Tensor, seed: int, chains: Sequence[int], steps: range) -> Block:
    """Draw everything random for a stretch of steps: one stream per chain and per noise of the kernel.

    Chains of the same number share their noise.
    """
    inputs = kernel.inputs_of(steps)
    if kernel.takes_chances:
        chances = torch.special.ndtr(_noise(seed, Purpose.CHANCE, chains, steps, like[:, :1]))
        inputs = [each._replace(chance=row) for each, row in zip(inputs, chances, strict=True)]
    return Block(steps, Noise(seed, kernel, chains, steps, like), inputs, gradient_fn.draw(steps))


def _noise(
    seed: int, purpose: Purpose, chains: Sequence[int], steps: range, like: Tensor, kind: str = "normal", lanes: bool = False
) -> Tensor:
    consecutive = chains if isinstance(chains, range) else range(min(chains), max(chains) + 1)
    where = seed, streams(purpose, consecutive), steps, like.shape[-1]
    if lanes and chains is consecutive:
        return in_lanes(kind, *where, like.dtype, like.device)
    noise = KINDS[kind](*where, dtype=like.dtype, device=like.device)
    noise = noise if chains is consecutive else noise[:, torch.tensor(chains, device=like.device) - consecutive.start]
    return noise.mT.contiguous() if lanes else noise


def stack_inputs(inputs: Sequence[StepInputs], like: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the inputs of some steps as tensors.

    Returns:
        Numbers (steps, fields), and by field what differs from chain to chain, (steps, chains, 1), which is NaN among the numbers.
    """
    is_steady = inputs[0] is inputs[-1]  # as `Kernel.inputs_of` makes them
    if is_steady:
        by_chain = [field for field, value in enumerate(inputs[0]) if isinstance(value, Tensor)]
    else:
        by_chain = [field for field in range(len(inputs[0])) if any(isinstance(each[field], Tensor) for each in inputs)]
    tensors = {field: stack([each[field] for each in inputs], is_steady, like) for field in by_chain}
    rows = [
        [math.nan if field in tensors else value for field, value in enumerate(each)] for each in inputs[: 1 if is_steady else None]
    ]
    numbers = torch.tensor(rows, dtype=torch.float64, device=like.device)
    return numbers.expand(len(inputs), -1).contiguous(), tensors


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
    return moved, block._replace(noise=block.noise.seated(rows), drawn=tuple(tensor[:, rows] for tensor in block.drawn))


def follow(chains: Sequence[int], like: Tensor, group: int) -> Tensor:
    """Return the chain that each row stands for: itself where it is one of `chains`, else its like in the first group of them."""
    rows = chains[0] + torch.arange(len(like), device=like.device) % group
    rows[list(chains)] = torch.tensor(chains, device=like.device)
    return rows
