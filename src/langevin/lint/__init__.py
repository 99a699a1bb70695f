"""Mistakes of a training loop that no error shows, each in a sentence with its fix: `langevin.lint`."""

from langevin.lint.report import Finding, Lint
from langevin.lint.run import lint

__all__ = ["Finding", "Lint", "lint"]
