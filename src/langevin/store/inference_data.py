"""Draws as ArviZ data: one variable per name, in the space of the values, with statistics and what is asked for besides."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from langevin.checks import check_function, needs
from langevin.gradients import full
from langevin.noise import Purpose
from langevin.noise.borrowed import borrowed_generator
from langevin.targets import Target
from langevin.targets.automatic import per_chain

if TYPE_CHECKING:
    import arviz

    from langevin.store.samples import Samples

__all__ = ["import_arviz", "inference_data"]

_NUMBERS_AT_ONCE = 2**22  # draws times rows in one evaluation: 32 MB per float64 intermediate


def import_arviz() -> ModuleType:
    """Import ArviZ when it is needed: it takes seconds, and warns of its coming refactor once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def inference_data(
    samples: Samples, lp: bool, log_likelihood: bool, posterior_predictive: Callable[..., Any] | None, seed: int
) -> arviz.InferenceData:
    """Return the healthy chains as ArviZ data; `Samples.to_arviz` says what each argument is."""
    good = [k for k, status in enumerate(samples.status) if status.is_healthy]
    step_size = samples.step_size.expand(len(samples.status), -1)
    if not good or not step_size.shape[1]:
        raise ValueError("to_arviz() needs a healthy chain with draws, got: " + "; ".join(map(str, samples.status)))
    draws, space = samples.draws[good], samples.space
    statistics = {"energy": samples.energy, "gradient_norm": samples.gradient_norm, "step_size": step_size}
    stats = {name: value[good] for name, value in statistics.items()}
    groups: dict[str, dict[str, Tensor]] = {"posterior": {"theta": draws} if space is None else space.values(draws)}
    if lp:
        stats["lp"] = -_per_draw(draws, samples, lambda part, target, data: full(target, data or None)(part, 0).energy)
    if log_likelihood:
        groups["log_likelihood"] = {"obs": _per_draw(draws, samples, _log_likelihoods)}
    if posterior_predictive is not None:
        check_function(
            "to_arviz", "posterior_predictive", posterior_predictive, "a function of the parameters and the data's columns"
        )
        groups["posterior_predictive"] = _simulate(
            samples, draws, posterior_predictive, [samples.status[k].chain for k in good], seed
        )
    groups["sample_stats"] = stats
    arrays = {group: {name: value.cpu().numpy() for name, value in found.items()} for group, found in groups.items()}
    observed = [found["obs"] for group, found in groups.items() if group != "posterior" and "obs" in found]
    dims: dict[str, Any] = {"obs": ["row"]} if observed and all(value.ndim == 3 for value in observed) else {}
    dims |= {name: list(axes) for name, axes in space.dims.items()} if space is not None else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "More chains")  # ArviZ fears swapped axes; ours are named
        return import_arviz().from_dict(**arrays, dims=dims, coords=dict(space.coords) if space is not None else None)


def _target(samples: Samples) -> Target:
    """Return the target of which the draws are positions, with the data that it needs."""
    if samples.target is None or samples.kept != "positions":
        condition = "positions and their target: load_samples(path, target=..., data=...) or with_target(...)"
        raise needs("to_arviz", "samples", condition, "no target" if samples.target is None else f"keep={samples.kept!r}")
    if samples.target.needs_data and not samples.data:
        raise needs("to_arviz", "samples", "the data of the run: load_samples(path, target=..., data=...)", "no data")
    return samples.target


def _per_draw(draws: Tensor, samples: Samples, function: Callable[[Tensor, Target, tuple[Tensor, ...]], Tensor]) -> Tensor:
    """Return what a function gives for each draw, (chain, draw, ...), some draws at a time."""
    target, rows = _target(samples), len(samples.data[0]) if samples.data else 1
    flat = draws.flatten(0, 1)
    with torch.no_grad():
        parts = [function(part, target, samples.data) for part in flat.split(max(1, _NUMBERS_AT_ONCE // max(rows, flat.shape[-1])))]
    return torch.cat(parts).unflatten(0, draws.shape[:2])


def _log_likelihoods(draws: Tensor, target: Target, data: tuple[Tensor, ...]) -> Tensor:
    function = getattr(target, "log_likelihood_fn", None)
    if function is None or not target.needs_data:
        raise needs("to_arviz", "log_likelihood", "a target with a log-likelihood per row, such as Model(...)", target)
    return per_chain("to_arviz", "log_likelihood", function, (0, *(None for _ in data)), draws, *data)


def _simulate(samples: Samples, draws: Tensor, function: Callable[..., Any], chains: list[int], seed: int) -> dict[str, Tensor]:
    """Call a user's simulation for every draw, one after the other: it may do what it likes, with torch's random numbers too."""
    _target(samples)
    values = {"theta": draws} if samples.space is None else samples.space.values(draws)
    found: list[list[dict[str, Tensor]]] = []
    for index, chain in enumerate(chains):
        with borrowed_generator(seed, Purpose.PREDICT, chain), torch.no_grad():
            ones = ({name: value[index, draw] for name, value in values.items()} for draw in range(draws.shape[1]))
            found.append([_as_dict(function(one, *samples.data)) for one in ones])
    names = found[0][0]
    return {name: torch.stack([torch.stack([one[name] for one in chain]) for chain in found]) for name in names}


def _as_dict(result: Any) -> dict[str, Tensor]:
    found = result if isinstance(result, dict) else {"obs": result}
    bad = {name: type(value).__name__ for name, value in found.items() if not isinstance(value, Tensor)}
    if bad or not found:
        raise needs(
            "to_arviz", "posterior_predictive", "a function that returns a tensor, or a dict of them", bad or found, TypeError
        )
    return found
