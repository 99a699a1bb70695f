"""Sample from a target, and resume a run."""

from langevin.sampling.resume import resume
from langevin.sampling.sample import sample

__all__ = ["resume", "sample"]
