"""Where the noise of an optimizer's elements comes from: addresses in words of 32 bits, and who else uses them.

A float32 normal takes one word, a float64 normal two, and a block of four words is never shared between dtypes: where the dtype
changes, the next parameter begins at a new block. So an optimizer of one dtype has its elements at consecutive addresses.
"""

from __future__ import annotations

import functools
import itertools
import operator
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import level_of_caller, needs
from langevin.noise.address import MAX_BLOCK

__all__ = [
    "MAX_ADDRESS",
    "Offsets",
    "SharedNoiseWarning",
    "claims_of",
    "element_offsets",
    "fix_addresses",
    "next_address",
    "shared",
    "warn_of_shared_noise",
]

BLOCK = 4  # words
Claim = tuple[int, int, int, int]
_FIXED = "_langevin_address"  # attribute of a parameter: its first word
_num_fixings = 0  # calls of fix_addresses
MAX_ADDRESS = BLOCK * MAX_BLOCK


class SharedNoiseWarning(UserWarning):
    """Two optimizers that are alive draw the same noise.

    Example:
        >>> import warnings
        >>> import langevin as lv
        >>> first, second = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        >>> twins = [lv.optim.SGLD([p], lr=0.1, num_data=10, seed=71) for p in (first, second)]  # chain=1 would part them
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always", SharedNoiseWarning)
        ...     for opt in twins:
        ...         (first + second).sum().backward()
        ...         opt.step()
        >>> [warning.category.__name__ for warning in said]
        ['SharedNoiseWarning']
    """


def _words(dtype: torch.dtype) -> int:
    return 2 if dtype == torch.float64 else 1


def _to_block(address: int) -> int:
    return -(-address // BLOCK) * BLOCK


def _places(who: str, groups: list[dict[str, Any]]) -> list[list[tuple[int, int]]]:
    """Return, for every group and parameter, its first word and the word after its last."""
    fixed = [[getattr(parameter, _FIXED, None) for parameter in group["params"]] for group in groups]
    if any(begin is not None for row in fixed for begin in row):
        return _fixed_places(who, groups, fixed)
    sizes = tuple(tuple((parameter.numel(), _words(parameter.dtype)) for parameter in group["params"]) for group in groups)
    return _laid_out(who, groups[0]["first_address"], sizes)


def _fixed_places(who: str, groups: list[dict[str, Any]], fixed: list[list[Any]]) -> list[list[tuple[int, int]]]:
    if groups[0]["first_address"]:
        raise needs(who, "first_address", "0 where addresses were fixed by fix_addresses", groups[0]["first_address"])
    if any(begin is None for row in fixed for begin in row):
        raise needs(who, "params", "addresses for all parameters or for none: call fix_addresses with all of them", "some without")
    return [
        [(begin, begin + _words(p.dtype) * p.numel()) for p, begin in zip(group["params"], row, strict=True)]
        for group, row in zip(groups, fixed, strict=True)
    ]


def fix_addresses(params: Iterable[Any], first_address: int = 0) -> int:
    """Give parameters the addresses of noise that one optimizer of all of them would give, whichever optimizers they go to.

    For parameters that are dealt out: by `ZeroRedundancyOptimizer`, to the stages of a pipeline, to one optimizer each. Then no two
    of them draw the same noise, and the steps are those of one optimizer in one process. The address is an attribute of the
    parameter: a copy of it, or what `fully_shard` makes of it, has none.

    Args:
        params: parameters, as `model.parameters()` gives them, or pairs of name and parameter.
        first_address: of the first element, in words of 32 bits, a multiple of 4.

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
        raise needs("fix_addresses", "params", "parameters, or pairs of name and parameter", given[:1], TypeError)
    if not isinstance(first_address, int) or first_address % BLOCK or first_address < 0:
        raise needs("fix_addresses", "first_address", "a multiple of 4, at least 0", first_address)
    sizes = (tuple((parameter.numel(), _words(parameter.dtype)) for parameter in given),)
    (row,) = _laid_out("fix_addresses", first_address, sizes)
    for parameter, (begin, _) in zip(given, row, strict=True):
        setattr(parameter, _FIXED, begin)
    global _num_fixings
    _num_fixings += 1
    return _to_block(row[-1][1])


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


class Offsets:
    """`element_offsets` of an optimizer, the same lists again as long as nothing has changed that they depend on."""

    def __init__(self) -> None:
        """Begin without any."""
        self._parameters: list[Tensor] = []
        self._like: list[Any] = []
        self._found: list[list[int]] = []

    def __call__(self, who: str, groups: list[dict[str, Any]]) -> list[list[int]]:
        """Return the address of every parameter's first element, per group."""
        parameters = [parameter for group in groups for parameter in group["params"]]
        sizes, dtypes = list(map(Tensor.numel, parameters)), [parameter.dtype for parameter in parameters]
        like = [sizes, dtypes, groups[0]["first_address"], _num_fixings, [len(group["params"]) for group in groups]]
        is_same = len(parameters) == len(self._parameters) and all(map(operator.is_, parameters, self._parameters))
        if not is_same or like != self._like:
            self._parameters, self._like, self._found = parameters, like, element_offsets(who, groups)
        return self._found


def next_address(who: str, groups: list[dict[str, Any]]) -> int:
    """Return the first address of a block that no parameter of these groups uses, nor one after them."""
    return _to_block(max(end for row in _places(who, groups) for _, end in row))


def claims_of(optimizer: torch.optim.Optimizer) -> list[Claim]:
    """Return the words that an optimizer draws noise from, as (seed, chain, first, the one after the last)."""
    claims: list[Claim] = []
    groups = optimizer.param_groups
    for group, row in zip(groups, _places(type(optimizer).__name__, groups), strict=True):
        for begin, end in row if group["temperature"] > 0 else ():
            seed, chain, _, last = claims[-1] if claims else (-1, -1, -1, -1)
            if (seed, chain, last) == (group["seed"], group["chain"], begin):
                claims[-1] = (*claims[-1][:3], end)
            elif begin < end:
                claims.append((group["seed"], group["chain"], begin, end))
    return claims


def shared(mine: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> tuple[int, int, int, int] | None:
    """Return what two optimizers both draw from, the first of it, or None."""
    for (seed, chain, begin, end), other in itertools.product(mine, theirs):
        low, high = max(begin, other[2]), min(end, other[3])
        if (seed, chain) == tuple(other[:2]) and low < high:
            return seed, chain, low, high
    return None


_stepping: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def warn_of_shared_noise(optimizer: torch.optim.Optimizer) -> None:
    """Warn when another optimizer that is alive and has stepped draws from the same addresses; called at the first step."""
    mine, who = claims_of(optimizer), type(optimizer).__name__
    others = [other for other in _stepping if other is not optimizer]
    _stepping.add(optimizer)
    for other in others:
        if found := shared(mine, claims_of(other)):
            seed, chain, low, high = found
            warnings.warn(
                f"{who} draws the same noise as a {type(other).__name__} that is still in use (seed {seed}, chain {chain}, "
                f"addresses {low} to {high - 1}): their draws are correlated. For another part of the "
                f"same model give {who}(first_address=other.next_address), for an independent run another chain= or seed=.",
                SharedNoiseWarning,
                stacklevel=level_of_caller(),
            )
            return
