"""Find mistakes in a training loop that raise no error but change the posterior."""

from langevin.nn.lint.report import Finding, Lint
from langevin.nn.lint.run import lint

__all__ = ["Finding", "Lint", "lint"]
