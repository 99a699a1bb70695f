"""How a compiled block goes through its steps: how many make a turn of its loop, what each row of its trace has, and the layout.

Everything here is decided by sizes and by what the code does, never by the clock, so that a run repeats bit for bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from langevin.engines.blocks import Block, compiled_length, draw_block
from langevin.engines.eager import take_step
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState

__all__ = ["Rows", "Turns", "turns_of"]

_MOST_STEPS = 16  # of a turn
_USUAL_STEPS = 4  # a turn costs what a small step costs; more steps in it save less than compiling them takes
_MOST_OPERATIONS = 200  # of a turn: compiling takes seconds for so many
_LANES_FROM, _MOST_LANED = 16, 4  # chains, and elements of a chain


class Rows(NamedTuple):
    """What a run needs of its steps."""

    thinned: int = 1  # steps of which one is looked at: every run of so many consecutive ones ends with a position that may be kept
    elements: tuple[int, ...] | None = None  # those of the gradient that are looked at; None for all


class Turns(NamedTuple):
    """How a compiled block goes through its steps."""

    steps: int = 1  # of a turn of the loop, written out one after the other
    every: int = 1  # steps for a row of the trace: one, or those of a turn
    in_lanes: bool = False  # whether the chains lie side by side in memory, one element after the other
    elements: tuple[int, ...] | None = None  # of the gradient that are in the trace


def turns_of(kernel: Kernel, gradient_fn: GradientFn, state: KernelState, rows: Rows) -> tuple[Turns, int]:
    """Return how blocks of steps like the next one are gone through, and how many steps they have.

    Many small steps make a turn; large ones are turns by themselves.
    """
    chains, dim = state.position.shape
    block = draw_block(kernel, gradient_fn, state.position, 0, range(chains), range(state.step, state.step + 1))
    most = max(1, _MOST_OPERATIONS // _operations(kernel, gradient_fn, block, state))
    thinned = max(n for n in range(1, min(most, _MOST_STEPS) + 1) if rows.thinned % n == 0)
    in_lanes = chains >= _LANES_FROM and dim <= _MOST_LANED and kernel.group_size == 1
    if thinned > 1:
        turns = Turns(thinned, thinned, in_lanes, rows.elements)
    else:
        turns = Turns(2 ** int(math.log2(min(most, _USUAL_STEPS))), 1, in_lanes, rows.elements if block.drawn else None)
    numbers = kernel.num_noises * state.position.numel() + sum(tensor.numel() for tensor in block.drawn)
    return turns, compiled_length(state.position, numbers, turns.steps)


def _operations(kernel: Kernel, gradient_fn: GradientFn, block: Block, state: KernelState) -> int:
    """Count torch's operations in one step; many, where it raises: the block says what is wrong."""
    drawn = tuple(tensor[0] for tensor in block.drawn)
    try:
        with torch.no_grad(), _Count() as count:
            take_step(kernel, gradient_fn, state, drawn, block.noise.whole[0], block.inputs[0])
    except Exception:
        return _MOST_OPERATIONS
    return max(1, count.operations)


class _Count(TorchDispatchMode):
    """Counts what is called under it."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))
