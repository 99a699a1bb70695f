"""Priors as plain values, which any file format can hold, and back."""

from __future__ import annotations

from typing import Any

from langevin import plain
from langevin.checks import needs
from langevin.targets.priors.base import PlacedPrior, Prior
from langevin.targets.priors.gaussians import Flat, GaussianPrior, SpikeSlab
from langevin.targets.priors.heavy import Horseshoe, LaplacePrior, StudentTPrior
from langevin.targets.priors.placed import ByName, FanIn, by_name

__all__ = ["KINDS", "from_plain", "to_plain"]

KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (Flat, GaussianPrior, SpikeSlab, LaplacePrior, StudentTPrior, Horseshoe, FanIn, ByName)
}
"""The library's own priors, by the name under which they are saved."""


def to_plain(prior: Prior | PlacedPrior | None) -> dict[str, Any] | None:
    """Return one of the library's priors as plain values, which any file format can hold.

    Example:
        >>> from langevin.targets.priors import gaussian
        >>> to_plain(by_name({"*": gaussian(std=2.0)}))
        {'kind': 'ByName', 'priors': [['*', {'kind': 'GaussianPrior', 'std': 2.0}]]}
    """
    if prior is None:
        return None
    if type(prior) not in KINDS.values():
        raise needs("to_plain", "prior", f"one of {sorted(KINDS)}", prior, TypeError)
    if isinstance(prior, ByName):
        return {"kind": "ByName", "priors": [[pattern, to_plain(entry)] for pattern, entry in prior.priors]}
    return plain.to_plain(prior)


def from_plain(values: dict[str, Any] | Prior | PlacedPrior | None) -> Prior | PlacedPrior | None:
    """Build the prior that `to_plain` described; a prior or None passes through.

    Example:
        >>> from langevin.targets.priors import gaussian, to_plain
        >>> from_plain(to_plain(gaussian(std=0.5)))
        GaussianPrior(std=0.5)
    """
    if values is None or isinstance(values, Prior | PlacedPrior):
        return values
    if isinstance(values, dict) and values.get("kind") == "ByName":
        return by_name(_entries(values))
    return plain.from_plain(values, KINDS)


def _entries(values: dict[str, Any]) -> dict[str, Any]:
    """Return the patterns and priors of a saved ByName."""
    pairs = values.get("priors")
    if set(values) != {"kind", "priors"} or not isinstance(pairs, list | tuple):
        raise needs("from_plain", "plain", "the arguments ['priors'] of ByName", values)
    found = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise needs("from_plain", "plain", "pairs of a pattern and a prior in ByName", pair)
        found[pair[0]] = from_plain(pair[1])
    return found
