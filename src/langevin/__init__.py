"""Stochastic gradient MCMC with adaptive drifts, for PyTorch.

Public names are loaded at their first access: `import langevin` is fast, and a training loop loads
only its optimizer (`benchmarks/waiting.py`). Type checkers and editors read `__init__.pyi`.
"""

import importlib
import importlib.util
import threading

__version__ = "0.2.0"

_PARTS = {
    **{name: name for name in ("diagnostics", "distributed", "execution", "kernels")},
    **{name: name for name in ("nn", "optim", "random", "targets")},
    **{name: f"kernels.{name}" for name in ("drifts", "preconditioners", "samplers", "schedules")},
    **{"gradients": "targets.gradients", "sparse": "nn.sparse"},
}
_NAMES = {
    "sampling": ["Background", "resume", "sample"],
    "nn.choice": ["PriorChoice", "choose_prior"],
    "targets.constraints": [
        *("correlation_cholesky", "interval", "ordered", "positive", "real", "simplex", "unit"),
    ],
    "execution": ["side_by_side"],
    "nn.lint": ["Finding", "Lint", "lint"],
    "nn.llc": ["LLC", "llc", "llc_limit"],
    "diagnostics.running": ["Moments"],
    "nn.predictive": [
        *("FunctionDiagnostics", "Metrics", "Prediction"),
        *("crps", "function_diagnostics", "interval_score", "log_likelihood", "metrics"),
        *("ood_auroc", "predict"),
    ],
    "storage": ["ChainStatus", "Samples", "load_samples"],
    "nn.bank": ["CorruptDrawError", "SampleBank"],
    "targets.pyro": ["from_pyro"],
    "targets": ["Model", "Posterior", "last_layer", "likelihoods", "priors"],
    "diagnostics.trust": ["Trust", "TrustWarning"],
    "adaptation": ["contour_weights", "learn_contour"],
}  # the names of the samplers are in `kernels.samplers.__all__`
_HOMES = {name: f"langevin.{home}" for home, names in _NAMES.items() for name in names}


_lock = threading.RLock()  # threads that import at the same time wait for each other


def __getattr__(name: str) -> object:
    with _lock:
        value = _load(name)
    globals()[name] = value
    return value


def _load(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _PARTS:
        return importlib.import_module(f"langevin.{_PARTS[name]}")
    if name == "__all__":
        return [*_PARTS, *_HOMES, *importlib.import_module("langevin.kernels.samplers").__all__]
    if not name.startswith("_"):
        if importlib.util.find_spec(f"langevin.{name}"):
            return importlib.import_module(f"langevin.{name}")
        samplers = importlib.import_module("langevin.kernels.samplers")
        if name in samplers.__all__:
            return getattr(samplers, name)
    raise AttributeError(f"module 'langevin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
