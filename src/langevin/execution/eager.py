"""Eager steps: the reference for compiled blocks, and the search for chains whose step raises."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.execution.blocks import Block, Trace, feed, follow, seat
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.targets import Evaluation
from langevin.targets.gradients import Draws, GradientFn

__all__ = ["evaluate_chains", "first_line", "run_eagerly", "take_step"]


def take_step(
    kernel: Kernel,
    gradient_fn: GradientFn,
    state: KernelState,
    drawn: Draws,
    noise: Tensor,
    inputs: StepInputs,
    known: Evaluation | None = None,
) -> tuple[KernelState, Evaluation]:
    """Take a step; `known` is the evaluation at the current positions, if there is one."""
    evaluation = gradient_fn.evaluate(state.position, drawn) if known is None else known
    return kernel.step(state, evaluation, noise, inputs), evaluation


def run_eagerly(
    kernel: Kernel,
    gradient_fn: GradientFn,
    block: Block,
    trace: Trace,
    alive: Sequence[int],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Take the steps of a block one by one, calling `check` after each.

    If a step raises, the chains that also raise alone go to `trace.failed`, and the others
    continue without them.
    """
    state, length, group = trace.state, len(block.steps), kernel.traits.group_size
    trace.positions, trace.gradients = (
        state.position.new_empty((length, *state.position.shape)) for _ in range(2)
    )
    trace.energies = state.position.new_empty((length, len(state.position)))

    noise = block.noise.whole

    def at(index: int, rows: Tensor | None = None) -> tuple[KernelState, Evaluation]:
        """Take a step of the block; `rows` replace all chains."""
        start, now = (state, block) if rows is None else seat(state, block, rows)
        drawn = tuple(tensor[index] for tensor in now.drawn)
        here = noise[index] if rows is None else noise[index].index_select(-2, rows)
        return take_step(kernel, gradient_fn, start, drawn, here, now.inputs[index])

    for index, step in enumerate(block.steps):
        try:
            moved, evaluation = at(index)
        except Exception as error:
            is_whole = len(alive) == len(state.position)
            failing = _failing(functools.partial(at, index), alive, state.position, group)
            if is_whole and not failing:  # no chain raises alone: all have failed
                failing = dict.fromkeys(alive, first_line(error))
            alive = [chain for chain in alive if chain not in failing]
            if alive:
                # A stopped chain with different settings may have diverged again: reset it, too.
                state, block = feed(state, block, alive, group)
                noise = block.noise.whole
                try:
                    moved, evaluation = at(index)
                except Exception:
                    failing, alive = failing | dict.fromkeys(alive, first_line(error)), []
            if step == 0 and not alive:
                raise
            trace.failed |= {chain: (step, text) for chain, text in failing.items()}
            if not alive:
                return
        state = moved
        trace.positions[index] = state.position
        trace.energies[index], trace.gradients[index] = evaluation
        trace.state = state
        check()


def evaluate_chains(
    gradient_fn: GradientFn, state: KernelState, alive: Sequence[int], group: int
) -> tuple[Evaluation, dict[int, str]]:
    """Evaluate the target as the next step would; return also the chains that raise."""
    drawn = tuple(tensor[0] for tensor in gradient_fn.draw(range(state.step, state.step + 1)))

    def attempt(rows: Tensor) -> Evaluation:
        return gradient_fn.evaluate(state.position[rows], tuple(tensor[rows] for tensor in drawn))

    failing = _failing(attempt, alive, state.position, group)
    good = [chain for chain in alive if chain not in failing]
    nothing = Evaluation(torch.zeros_like(state.position[:, 0]), torch.zeros_like(state.position))
    return (attempt(follow(good, state.position, group)) if good else nothing), failing


def _failing(
    attempt: Callable[[Tensor], Any], chains: Sequence[int], like: Tensor, group: int
) -> dict[int, str]:
    """Return the chains for which `attempt(rows)` raises, with errors; bisects to groups."""
    try:
        attempt(follow(chains, like, group))
        return {}
    except Exception as error:
        if len(chains) == group:
            return dict.fromkeys(chains, first_line(error))
    half = len(chains) // group // 2 * group
    return _failing(attempt, chains[:half], like, group) | _failing(
        attempt, chains[half:], like, group
    )


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    text = f"{type(error).__name__.lstrip('_')}: {str(error).strip()}"
    return text.splitlines()[0].removesuffix(": ")
