"""Noise addresses of an optimizer's elements, in 32-bit words, and checks that they are unique.

A float32 normal takes one word, a float64 normal two. Dtypes never share a block of four words:
where the dtype changes, the next parameter begins at a new block. So an optimizer of one dtype has
its elements at consecutive addresses.
"""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import level_of_caller, needs
from langevin.random.address import MAX_BLOCK

__all__ = ["BLOCK", "MAX_ADDRESS", "Group", "SharedNoiseWarning", "claims_of"]
__all__ += [
    "element_offsets",
    "fix_addresses",
    "next_address",
    "shared",
    "warn_of_shared_noise",
    "word_ranges",
]

Group = dict[str, Any]
"""A parameter group of `torch.optim`."""

BLOCK = 4  # words
Claim = tuple[int, int, int, int]
_FIXED = "_langevin_address"  # attribute of a parameter: its first word
num_fixings = 0  # calls of fix_addresses
MAX_ADDRESS = BLOCK * MAX_BLOCK


class SharedNoiseWarning(UserWarning):
    """Two optimizers in use draw the same noise.

    Example:
        >>> import warnings
        >>> import langevin as lv
        >>> first, second = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        >>> # With chain=1 for one of them, their noise would be independent.
        >>> twins = [lv.optim.SGLD([p], lr=0.1, num_data=10, seed=71) for p in (first, second)]
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", SharedNoiseWarning)
        ...     for opt in twins:
        ...         (first + second).sum().backward()
        ...         opt.step()
        >>> [warning.category.__name__ for warning in caught]
        ['SharedNoiseWarning']
    """


def _words(dtype: torch.dtype) -> int:
    return 2 if dtype == torch.float64 else 1


def _to_block(address: int) -> int:
    return -(-address // BLOCK) * BLOCK


def word_ranges(who: str, groups: list[Group]) -> list[list[tuple[int, int]]]:
    """Return the range of words [begin, end) of each parameter, per group."""
    fixed = [
        [getattr(parameter, _FIXED, None) for parameter in group["params"]] for group in groups
    ]
    if any(begin is not None for row in fixed for begin in row):
        return _fixed_ranges(who, groups, fixed)
    sizes = tuple(
        tuple((parameter.numel(), _words(parameter.dtype)) for parameter in group["params"])
        for group in groups
    )
    return _consecutive_ranges(who, groups[0]["first_address"], sizes)


def _fixed_ranges(
    who: str, groups: list[Group], fixed: list[list[Any]]
) -> list[list[tuple[int, int]]]:
    if first := groups[0]["first_address"]:
        raise needs(who, "first_address", "0 if addresses were set by fix_addresses", first)
    if any(begin is None for row in fixed for begin in row):
        condition = "addresses for all parameters or for none: call fix_addresses with all of them"
        raise needs(who, "params", condition, "some without")
    return [
        [
            (begin, begin + _words(p.dtype) * p.numel())
            for p, begin in zip(group["params"], row, strict=True)
        ]
        for group, row in zip(groups, fixed, strict=True)
    ]


def fix_addresses(params: Iterable[Any], first_address: int = 0) -> int:
    """Fix the noise addresses of parameters, whichever optimizers they are given to.

    They are those of one optimizer for all of them. Use it for parameters that are distributed: by
    `ZeroRedundancyOptimizer`, over the stages of a pipeline, to one optimizer each. Then no two of
    them draw the same noise, and the steps are those of one optimizer in one process. The address
    is an attribute of the parameter, lost in copies of it and by `fully_shard`.

    Args:
        params: parameters, as `model.parameters()` gives them, or pairs of name and parameter.
        first_address: of the first element, in 32-bit words, a multiple of 4.

    Returns:
        The first address after them.

    Example:
        >>> import torch, langevin as lv
        >>> model = torch.nn.Linear(3, 2)
        >>> lv.optim.fix_addresses(model.parameters())
        8
        >>> weight, bias = (lv.optim.SGLD([p], lr=0.1, num_data=10) for p in model.parameters())
    """
    given = [entry[1] if isinstance(entry, tuple) else entry for entry in params]
    if not given or not all(isinstance(parameter, Tensor) for parameter in given):
        condition = "parameters, or pairs of name and parameter"
        raise needs("fix_addresses", "params", condition, given[:1], TypeError)
    if not isinstance(first_address, int) or first_address % BLOCK or first_address < 0:
        raise needs("fix_addresses", "first_address", "a multiple of 4, at least 0", first_address)
    sizes = (tuple((parameter.numel(), _words(parameter.dtype)) for parameter in given),)
    (row,) = _consecutive_ranges("fix_addresses", first_address, sizes)
    for parameter, (begin, _) in zip(given, row, strict=True):
        setattr(parameter, _FIXED, begin)
    global num_fixings
    num_fixings += 1
    return _to_block(row[-1][1])


@functools.lru_cache(maxsize=256)
def _consecutive_ranges(
    who: str, address: int, sizes: tuple[tuple[tuple[int, int], ...], ...]
) -> list[list[tuple[int, int]]]:
    before, ranges = 0, []
    for group in sizes:
        row = []
        for size, words in group:
            if words != before and before:
                address = _to_block(address)
            end = address + words * size
            row.append((address, end))
            address, before = end, words
        ranges.append(row)
    if address > MAX_ADDRESS:
        raise needs(who, "first_address", f"all addresses below 2**34, {MAX_ADDRESS}", address)
    return ranges


def element_offsets(who: str, groups: list[Group]) -> list[list[int]]:
    """Return the address of each parameter's first element, in elements of its dtype, per group."""
    return [
        [
            begin // _words(parameter.dtype)
            for parameter, (begin, _) in zip(group["params"], row, strict=True)
        ]
        for group, row in zip(groups, word_ranges(who, groups), strict=True)
    ]


def next_address(who: str, groups: list[Group]) -> int:
    """Return the first address of the block after all parameters of these groups."""
    return _to_block(max(end for row in word_ranges(who, groups) for _, end in row))


def claims_of(optimizer: torch.optim.Optimizer) -> list[Claim]:
    """Return the words of an optimizer's noise, as ranges (seed, chain, begin, end)."""
    claims: list[Claim] = []
    groups = optimizer.param_groups
    for group, row in zip(groups, word_ranges(type(optimizer).__name__, groups), strict=True):
        for begin, end in row if group["temperature"] > 0 else ():
            seed, chain, _, last = claims[-1] if claims else (-1, -1, -1, -1)
            if (seed, chain, last) == (group["seed"], group["chain"], begin):
                claims[-1] = (*claims[-1][:3], end)
            elif begin < end:
                claims.append((group["seed"], group["chain"], begin, end))
    return claims


def shared(
    mine: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> tuple[int, int, int, int] | None:
    """Return the first range of words that two optimizers share, or None."""
    for (seed, chain, begin, end), other in itertools.product(mine, theirs):
        low, high = max(begin, other[2]), min(end, other[3])
        if (seed, chain) == tuple(other[:2]) and low < high:
            return seed, chain, low, high
    return None


_stepping: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def warn_of_shared_noise(optimizer: torch.optim.Optimizer) -> None:
    """Warn if another optimizer in use draws from the same addresses; called at the first step."""
    mine, who = claims_of(optimizer), type(optimizer).__name__
    others = [other for other in _stepping if other is not optimizer]
    _stepping.add(optimizer)
    for other in others:
        if found := shared(mine, claims_of(other)):
            seed, chain, low, high = found
            warnings.warn(
                f"{who} draws the same noise as a {type(other).__name__} that is still in use "
                f"(seed {seed}, chain {chain}, addresses {low} to {high - 1}): their draws are "
                f"correlated. For another part of the same model, pass "
                f"{who}(first_address=other.next_address); for an independent run, another chain= "
                "or seed=.",
                SharedNoiseWarning,
                stacklevel=level_of_caller(),
            )
            return
