"""Sample from a target, and resume a run."""

from langevin.sampling.background import Background
from langevin.sampling.resume import resume
from langevin.sampling.sample import sample

__all__ = ["Background", "resume", "sample"]
