"""Philox4x32-10 of a block or two, and how the functions of this folder are compiled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from langevin.cpu import elementary
from langevin.cpu.code_cache import cached_njit
from langevin.cpu.elementary import inlined

__all__ = ["HALF_WORD", "LOW", "SOURCES", "kernel", "philox", "philox_pair"]

LOW = np.uint64(0xFFFFFFFF)
HALF_WORD = np.uint64(32)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
ROUNDS = 10

SOURCES = (*sorted(Path(__file__).parent.glob("*.py")), Path(elementary.__file__))
"""What the machine code of noise depends on."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of this folder; its code is kept, and made anew when one of `SOURCES` changes."""
    return cached_njit(function, *SOURCES, nogil=True, error_model="numpy")


@inlined
def turn(block, key0, key1):
    """One round; words are the low halves of uint64, because vectors multiply 32 x 32 -> 64 there.

    The high halves carry leftovers of the products: masking them only where they are read saves two instructions.
    """
    c0, c1, c2, c3 = block
    product0 = (c0 & LOW) * MULTIPLIERS[0]
    product1 = (c2 & LOW) * MULTIPLIERS[1]
    return (product1 >> HALF_WORD) ^ c1 ^ key0, product1, (product0 >> HALF_WORD) ^ c3 ^ key1, product0


@inlined
def philox(c0, c1, c2, c3, key0, key1):
    """Philox4x32-10 of one block."""
    block = c0, c1, c2, c3
    for _ in range(ROUNDS):
        block = turn(block, key0, key1)
        key0 += WEYL[0]
        key1 += WEYL[1]
    return block[0] & LOW, block[1] & LOW, block[2] & LOW, block[3] & LOW


@inlined
def philox_pair(first, second, key0, key1):
    """Philox of two blocks, round by round in turns: one multiplies while the other waits for its product (a fifth less time).

    Words are the low halves of what is returned; the high halves are to be cut off.
    """
    for _ in range(ROUNDS):
        first, second = turn(first, key0, key1), turn(second, key0, key1)
        key0 += WEYL[0]
        key1 += WEYL[1]
    return first, second
