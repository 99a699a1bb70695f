"""torch's own CPU generator, lent to code that cannot draw from addresses: a layer's initialisation, a user's simulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from langevin.noise.address import LOW, Purpose, stream
from langevin.noise.reference import philox

__all__ = ["borrowed_generator"]


@contextlib.contextmanager
def borrowed_generator(seed: int, purpose: Purpose, chain: int) -> Iterator[None]:
    """Start torch's global CPU generator at a function of (seed, purpose, chain), and put it back afterwards.

    Its seed is the word at the address (seed, purpose), plus the chain: the generator uses 32 bits of a seed only. Hashing the
    chain too would give two of 10,000 chains the same start in one run of a hundred; counting it on never does.
    """
    word, *_ = philox((0, 0, 0, stream(purpose) >> 32), (seed & LOW, seed >> 32))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(word + chain & LOW)
        yield
