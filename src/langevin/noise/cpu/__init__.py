"""Addressed noise on the CPU: the numba engine behind `langevin.noise`.

Every operation on an element is a single IEEE operation (explicit fused multiply-adds included) and nothing is
contracted or reassociated, so an element has the same bits whatever the vector width, the tile or the thread.
"""

from langevin.noise.cpu.batches import draw_batches
from langevin.noise.cpu.box_muller import pair_f32, pair_f64
from langevin.noise.cpu.lanes import draw_lanes
from langevin.noise.cpu.normals import draw_rows, draw_short_rows, fill_normal, make_scratch
from langevin.noise.cpu.philox import SOURCES, philox
from langevin.noise.cpu.uniforms import draw_uniform_rows, fill_uniform

__all__ = [
    "SOURCES",
    "draw_batches",
    "draw_lanes",
    "draw_rows",
    "draw_short_rows",
    "draw_uniform_rows",
    "fill_normal",
    "fill_uniform",
    "make_scratch",
    "pair_f32",
    "pair_f64",
    "philox",
]
