"""Neural networks: draw banks, predictions, lint, sparsity, prior choice, learning coefficients.

`callbacks` fills a bank in the Trainers of Hugging Face and Lightning.
"""

import importlib
from types import ModuleType

__all__ = ["bank", "callbacks", "choice", "lint", "llc", "predictive", "sparse"]


def __getattr__(name: str) -> ModuleType:
    """Import a part when it is first used."""
    if name in __all__:
        return importlib.import_module(f"langevin.nn.{name}")
    raise AttributeError(f"module 'langevin.nn' has no attribute {name!r}")
