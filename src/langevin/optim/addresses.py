"""Where the noise of an optimizer's elements comes from: addresses in words of 32 bits, and who else uses them.

A float32 normal takes one word, a float64 normal two, and a block of four words is never shared between dtypes: where the dtype
changes, the next parameter begins at a new block. So an optimizer of one dtype has its elements at consecutive addresses.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

import torch

from langevin.checks import needs
from langevin.noise.address import MAX_BLOCK

__all__ = ["MAX_ADDRESS", "SharedNoiseWarning", "element_offsets", "next_address", "warn_of_shared_noise"]

BLOCK = 4  # words
MAX_ADDRESS = BLOCK * MAX_BLOCK


class SharedNoiseWarning(UserWarning):
    """Two optimizers that are alive draw the same noise."""


def _words(dtype: torch.dtype) -> int:
    return 2 if dtype == torch.float64 else 1


def _to_block(address: int) -> int:
    return -(-address // BLOCK) * BLOCK


def _places(who: str, groups: list[dict[str, Any]]) -> list[list[tuple[int, int]]]:
    """Return, for every group and parameter, its first word and the word after its last."""
    sizes = tuple(tuple((parameter.numel(), _words(parameter.dtype)) for parameter in group["params"]) for group in groups)
    return _laid_out(who, groups[0]["first_address"], sizes)


@functools.lru_cache(maxsize=256)
def _laid_out(who: str, address: int, sizes: tuple[tuple[tuple[int, int], ...], ...]) -> list[list[tuple[int, int]]]:
    before, places = 0, []
    for group in sizes:
        row = []
        for size, words in group:
            if words != before and before:
                address = _to_block(address)
            end = address + words * size
            row.append((address, end))
            address, before = end, words
        places.append(row)
    if address > MAX_ADDRESS:
        raise needs(who, "first_address", f"all addresses below 2**34, {MAX_ADDRESS}", address)
    return places


def element_offsets(who: str, groups: list[dict[str, Any]]) -> list[list[int]]:
    """Return, per group, the address of every parameter's first element, counted in elements of its dtype."""
    return [
        [begin // _words(parameter.dtype) for parameter, (begin, _) in zip(group["params"], row, strict=True)]
        for group, row in zip(groups, _places(who, groups), strict=True)
    ]


def next_address(who: str, groups: list[dict[str, Any]]) -> int:
    """Return the first address of a block that no parameter of these groups uses, nor one after them."""
    return _to_block(max(end for row in _places(who, groups) for _, end in row))


def _claims(optimizer: torch.optim.Optimizer) -> dict[tuple[int, int], tuple[int, int]]:
    """Return, by seed and chain, the interval of words that an optimizer draws noise from."""
    claims: dict[tuple[int, int], tuple[int, int]] = {}
    groups = optimizer.param_groups
    for group, row in zip(groups, _places(type(optimizer).__name__, groups), strict=True):
        if group["temperature"] > 0 and row and row[-1][1] > row[0][0]:
            key = group["seed"], group["chain"]
            low, high = claims.get(key, (row[0][0], row[-1][1]))
            claims[key] = min(low, row[0][0]), max(high, row[-1][1])
    return claims


_stepping: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def warn_of_shared_noise(optimizer: torch.optim.Optimizer) -> None:
    """Warn when another optimizer that is alive and has stepped draws from the same addresses; called at the first step."""
    mine, who = _claims(optimizer), type(optimizer).__name__
    others = [other for other in _stepping if other is not optimizer]
    _stepping.add(optimizer)
    for other in others:
        for (seed, chain), (begin, end) in _claims(other).items():
            low, high = mine.get((seed, chain), (0, 0))
            if max(low, begin) < min(high, end):
                warnings.warn(
                    f"{who} draws the same noise as a {type(other).__name__} that is still in use (seed {seed}, chain {chain}, "
                    f"addresses {max(low, begin)} to {min(high, end) - 1}): their draws are correlated. For another part of the "
                    f"same model give {who}(first_address=other.next_address), for an independent run another chain= or seed=.",
                    SharedNoiseWarning,
                    stacklevel=6,  # past the four wrappers around step
                )
                return
