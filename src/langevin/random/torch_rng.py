"""Seed torch's own generator for code that needs it: initialisation of layers, simulations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from langevin.random.address import LOW, Purpose, stream
from langevin.random.reference import philox

__all__ = ["fork_rng"]


@contextlib.contextmanager
def fork_rng(seed: int, purpose: Purpose, chain: int) -> Iterator[None]:
    """Seed torch's global CPU generator by (seed, purpose, chain) within a block, then restore it.

    The generator uses 32 bits of a seed: the word at the address (seed, purpose), plus the chain.
    Hashing the chain would give two of 10,000 chains the same seed in one of a hundred runs.
    """
    word, *_ = philox((0, 0, 0, stream(purpose) >> 32), (seed & LOW, seed >> 32))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(word + chain & LOW)
        yield
