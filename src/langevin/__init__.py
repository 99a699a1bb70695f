"""Stochastic gradient MCMC with adaptive drifts, for PyTorch.

A public name is loaded when it is first asked for: `import langevin` takes no time, and a training loop that needs an optimizer
does not wait for what draws pictures (`benchmarks/waiting.py`). Type checkers and editors read `__init__.pyi`.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

__version__ = "0.2.0"

_PARTS = [
    *("choice", "diagnostics", "drifts", "engines", "evidence", "gradients", "kernels", "noise", "optim", "preconditioners"),
    *("predictive", "samplers", "scale", "schedules", "sparse", "targets", "trust"),
]
_NAMES = {
    "chains": ["resume", "sample"],
    "choice": ["PriorChoice", "choose_prior"],
    "constraints": ["correlation_cholesky", "interval", "ordered", "positive", "real", "simplex", "unit"],
    "engines": ["side_by_side"],
    "lint": ["Finding", "Lint", "lint"],
    "llc": ["LLC", "llc", "llc_limit"],
    "moments": ["Moments"],
    "predictive": [
        *("FunctionDiagnostics", "Metrics", "Prediction"),
        *("function_diagnostics", "log_likelihood", "metrics", "ood_auroc", "predict"),
    ],
    "store": ["ChainStatus", "Samples", "load_samples"],
    "store.bank": ["CorruptDrawError", "SampleBank"],
    "targets": ["Model", "Posterior", "last_layer", "likelihoods", "priors"],
    "trust": ["Trust", "TrustWarning"],
    "tuning": ["contour_weights", "learn_contour"],
}  # the names of the samplers are in `samplers.__all__`
_HOMES = {name: f"langevin.{home}" for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name == "__all__":
        value = [*_PARTS, *_HOMES, *importlib.import_module("langevin.samplers").__all__]
    elif not name.startswith("_") and importlib.util.find_spec(f"langevin.{name}"):
        value = importlib.import_module(f"langevin.{name}")
    elif not name.startswith("_") and name in importlib.import_module("langevin.samplers").__all__:
        value = getattr(importlib.import_module("langevin.samplers"), name)
    else:
        raise AttributeError(f"module 'langevin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


class _Package(ModuleType):
    """This module. `lint` and `llc` are functions, and folders: whoever imports from a folder must not hide its function."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
