"""Chains: what is to be run, what has happened, which chains are sound, Ctrl-C, and the two calls around them."""

from langevin.chains.resume import resume
from langevin.chains.sample import sample

__all__ = ["resume", "sample"]
