"""How a compiled block goes through its steps: how many make a turn of its loop, what each row of its trace has, and the layout.

Everything here is decided by sizes and by what the code does, never by the clock, so that a run repeats bit for bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from langevin.engines.blocks import Block, compiled_length, draw_block
from langevin.engines.eager import take_step
from langevin.engines.tape import record
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState

__all__ = ["Pace", "Rows", "Turns", "pace_of"]

_MOST_STEPS = 16  # of a turn
_USUAL_STEPS = 8  # a turn costs what a small step costs; more steps in it save less than compiling them takes
_MOST_OPERATIONS = 320  # of a turn: compiling takes seconds for so many
_LARGE = 2**20  # numbers that a step makes: beside so many a turn costs nothing
# What is taken one by one before compiled steps: a quarter of a second of eager ones, whose cost was measured.
_HEAD_SECONDS, _OPERATION_SECONDS, _ELEMENT_SECONDS = 0.25, 5e-6, 1e-9
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


class Pace(NamedTuple):
    """How a run goes through its steps."""

    turns: Turns
    length: int  # steps of a block; blocks begin at multiples of it after the head: only the last of a run is shorter
    head: int  # steps at the beginning of a run that are taken one by one, while code is written


def pace_of(kernel: Kernel, gradient_fn: GradientFn, state: KernelState, rows: Rows) -> Pace:
    """Return how a run goes through steps like the next one: many small ones make a turn; large ones are turns by themselves.

    Everything follows from what a step does to tensors, and how large they are.
    """
    chains, dim = state.position.shape
    block = draw_block(kernel, gradient_fn, state.position, 0, range(chains), range(state.step, state.step + 1))
    operations, elements = _measure(kernel, gradient_fn, block, state)
    most = 1 if elements > _LARGE else max(1, _MOST_OPERATIONS // operations)
    thinned = max(n for n in range(1, min(most, _MOST_STEPS) + 1) if rows.thinned % n == 0)
    in_lanes = chains >= _LANES_FROM and dim <= _MOST_LANED and kernel.group_size == 1
    if thinned > 1:
        turns = Turns(thinned, thinned, in_lanes, rows.elements)
    else:
        turns = Turns(2 ** int(math.log2(min(most, _USUAL_STEPS))), 1, in_lanes, rows.elements if block.drawn else None)
    numbers = kernel.num_noises * state.position.numel() + sum(tensor.numel() for tensor in block.drawn)
    length = compiled_length(state.position, numbers, turns.steps)
    head = int(_HEAD_SECONDS / (_OPERATION_SECONDS * operations + _ELEMENT_SECONDS * elements))
    return Pace(turns, length, min(length, head // turns.steps * turns.steps))


def _measure(kernel: Kernel, gradient_fn: GradientFn, block: Block, state: KernelState) -> tuple[int, int]:
    """Count torch's operations in one step, and the numbers that they make; many, where it raises: the block says what is wrong."""
    drawn, noise = tuple(tensor[0] for tensor in block.drawn), block.noise.whole[0]

    def step() -> list[Tensor]:
        return [take_step(kernel, gradient_fn, state, drawn, noise, block.inputs[0])[0].position]

    try:
        tape = record(step, [state.position])
    except Exception:
        return _MOST_OPERATIONS, 0
    return max(1, len(tape.operations)), tape.elements
