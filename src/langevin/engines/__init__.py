"""What runs the steps of a kernel: blocks of steps, eager or compiled; and the fused CPU kernel of the optimizers."""

from langevin.engines.blocks import Block, Trace, block_length, draw_block
from langevin.engines.compiled import compile_pays
from langevin.engines.eager import evaluate_chains, take_step
from langevin.engines.runner import Runner, run_blocks
from langevin.engines.settings import SideBySide, side_by_side
from langevin.engines.turns import Rows

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
