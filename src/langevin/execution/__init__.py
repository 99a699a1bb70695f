"""Run the steps of a kernel in blocks, eager or compiled; the optimizers' fused CPU step."""

from langevin.execution.blocks import Block, Trace, block_length, draw_block
from langevin.execution.compiled import Rows, compile_pays
from langevin.execution.eager import evaluate_chains, take_step
from langevin.execution.runner import Runner, run_blocks
from langevin.execution.settings import SideBySide, side_by_side

__all__ = [
    "Block",
    "Rows",
    "Runner",
    "SideBySide",
    "Trace",
    "block_length",
    "compile_pays",
    "draw_block",
    "evaluate_chains",
    "run_blocks",
    "side_by_side",
    "take_step",
]
