"""Reject Pyro models that cannot be sampled, and name the site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyro.distributions import Delta
from torch.distributions import Independent

from langevin.checks import needs
from langevin.targets.pyro.trace import WHO, Trace

__all__ = ["check_latent", "check_same_sites", "check_subsampling"]


def check_latent(name: str, fn: Any) -> None:
    """Fail if a latent site is discrete or constant."""
    if fn.has_enumerate_support or getattr(fn.support, "is_discrete", False):
        condition = (
            f"continuous latent sites: sum {name!r} out, for example with MixtureSameFamily or by "
            "torch.logsumexp in pyro.factor"
        )
        raise needs(WHO, "model", condition, type(_base(fn)).__name__)
    if isinstance(_base(fn), Delta):
        condition = f"pyro.deterministic instead of a latent site {name!r} with one value"
        raise needs(WHO, "model", condition, "Delta")


def _base(fn: Any) -> Any:
    """Return the distribution inside masks and reinterpreted axes."""
    while isinstance(fn, Independent) or type(fn).__name__ == "MaskedDistribution":
        fn = fn.base_dist
    return fn


def check_same_sites(traces: Sequence[Trace]) -> None:
    """Fail if runs differ in their sites, their shapes or what is observed."""
    first = traces[0].sites
    latent = [name for name, site in first.items() if not site.is_observed]
    if not latent:
        raise needs(WHO, "model", "at least one latent sample site", list(first))
    for trace in traces[1:]:
        for name in (*first, *trace.sites):
            a, b = first.get(name), trace.sites.get(name)
            same = a is not None and b is not None
            if a is not None and b is not None:
                shapes = a.fn.shape() == b.fn.shape() and a.value.shape == b.value.shape
                same = shapes and a.is_observed == b.is_observed and type(a.fn) is type(b.fn)
            if not same:
                condition = (
                    "a model with the same sample sites in every run: replace control flow that "
                    "depends on values or random numbers by torch.where"
                )
                raise needs(WHO, "model", condition, f"{name!r}, which changes between runs")


def check_subsampling(trace: Trace) -> str | None:
    """Return the name of the subsampled plate, if any, or fail if its sites cannot be sampled."""
    if len(trace.subsampled) > 1:
        condition = "at most one plate with subsample_size"
        raise needs(WHO, "model", condition, list(trace.subsampled))
    for plate in trace.subsampled:
        inside = [
            (site, frame)
            for site in trace.sites.values()
            for frame in site.plates
            if frame.name == plate
        ]
        for site, frame in inside:
            if frame.axis is None:
                condition = (
                    f"`with pyro.plate({plate!r}, ...) as rows:` around {site.name!r}, since "
                    "subsampled rows are tensors"
                )
                raise needs(WHO, "model", condition, "a loop over the plate")
            if not site.is_observed:
                condition = (
                    f"no subsample_size in the plate {plate!r}, which has a latent site of each row"
                )
                raise needs(WHO, "model", condition, site.name)
        if not any(not site.is_deterministic for site, _ in inside):
            condition = f"an observed site in the subsampled plate {plate!r}"
            raise needs(WHO, "model", condition, [site.name for site, _ in inside])
        return plate
    return None
