"""Convert draws to the container of the installed ArviZ: InferenceData (0.x) or DataTree (1.x).

Only this module imports ArviZ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from langevin.checks import check_function, import_extra, needs
from langevin.random import Purpose
from langevin.random.torch_rng import fork_rng
from langevin.targets import Target
from langevin.targets.automatic import per_chain
from langevin.targets.gradients import full

if TYPE_CHECKING:
    from langevin.storage.samples import Samples

__all__ = ["arviz_data", "import_arviz"]

_FREE = "unconstrained_posterior"
_BATCH = 2**22  # draws times rows per evaluation: 32 MB per float64 intermediate


def import_arviz() -> ModuleType:
    """Import ArviZ lazily, since it takes seconds; its converters alone (arviz-base) will do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return import_extra("to_arviz()", "arviz", "arviz", "arviz_base")


def arviz_data(
    samples: Samples,
    lp: bool,
    log_likelihood: bool,
    posterior_predictive: Callable[..., Any] | None,
    unconstrained: bool,
    seed: int,
) -> Any:
    """Return the healthy chains as ArviZ data; see `Samples.to_arviz` for the arguments."""
    posterior = samples.values_by_name("to_arviz")
    good = [k for k, status in enumerate(samples.status) if status.is_healthy]
    draws, space = samples.draws[good], samples.space
    stats = {
        "energy": samples.energy[good],
        "gradient_norm": samples.gradient_norm[good],
        "step_size": samples.step_size.expand(len(samples.status), -1)[good],
    }
    groups: dict[str, dict[str, Tensor]] = {"posterior": posterior, "sample_stats": stats}
    if unconstrained:
        if space is None:
            condition = "positions of a target with names"
            raise needs("to_arviz", "unconstrained", condition, unconstrained)
        groups[_FREE] = {
            name: part.reshape(*part.shape[:2], *shape) if part.shape[-1] == shape.numel() else part
            for name, part, shape in zip(
                space.names, draws.split(space.sizes, -1), space.shapes, strict=True
            )
        }
    if lp:
        stats["lp"] = -_per_draw(draws, samples, _energies)
    if log_likelihood:
        groups["log_likelihood"] = {"obs": _per_draw(draws, samples, _log_likelihoods)}
    if posterior_predictive is not None:
        condition = "a function of the parameters and the data's columns"
        check_function("to_arviz", "posterior_predictive", posterior_predictive, condition)
        chains, data = [samples.status[k].chain for k in good], _target(samples)[1]
        groups["posterior_predictive"] = _simulate(
            posterior, draws.shape[1], data, posterior_predictive, chains, seed
        )
    dims: dict[str, list[str]] = {}
    observed = [
        found["obs"] for group, found in groups.items() if group != "posterior" and "obs" in found
    ]
    if observed and all(value.ndim == 3 for value in observed):
        dims["obs"] = ["row"]
    coords: dict[str, object] = {}
    if space is not None:
        dims |= {name: list(axes) for name, axes in space.dims.items()}
        coords |= space.coords
    return _container(groups, dims, coords, samples.attributes)


def _container(
    groups: Mapping[str, Mapping[str, Tensor]],
    dims: dict[str, list[str]],
    coords: dict[str, object],
    attributes: Mapping[str, object],
) -> Any:
    """Return what the installed ArviZ makes of groups of arrays; groups share the axes."""
    arrays = {
        group: {name: value.cpu().numpy() for name, value in found.items()}
        for group, found in groups.items()
    }
    arviz, free = import_arviz(), arrays.pop(_FREE, None)
    has_trees = "InferenceData" not in vars(arviz)  # 1.x
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "More chains")  # ArviZ suspects swapped axes
        settings = {"dims": dims, "coords": coords}
        data = arviz.from_dict(*[arrays] * has_trees, **({} if has_trees else arrays), **settings)
        if free is not None:  # some parameters have another shape there
            posterior = arrays["posterior"]
            same = [
                name for name in dims.keys() & free if free[name].shape == posterior[name].shape
            ]
            settings["dims"] = {name: dims[name] for name in same}
            if has_trees:
                data[_FREE] = arviz.from_dict({_FREE: free}, **settings)[_FREE]
            else:
                group = arviz.dict_to_dataset(free, **settings)
                data.add_groups({_FREE: group}, warn_on_custom_groups=False)
    data.attrs.update(attributes)
    for group in groups:
        data[group].attrs.update(attributes)
    return data


def _target(samples: Samples) -> tuple[Target, tuple[Tensor, ...]]:
    """Return the target of the positions and its data."""
    load = "load_samples(path, target=..., data=...)"
    if samples.target is None or samples.kept != "positions":
        condition = f"positions and their target: {load} or with_target(...)"
        found = "no target" if samples.target is None else f"keep={samples.kept!r}"
        raise needs("to_arviz", "samples", condition, found)
    if samples.target.needs_data and not samples.data:
        raise needs("to_arviz", "samples", f"the data of the run: {load}", "no data")
    return samples.target, samples.data


def _per_draw(
    draws: Tensor,
    samples: Samples,
    function: Callable[[Tensor, Target, tuple[Tensor, ...]], Tensor],
) -> Tensor:
    """Evaluate a function of positions, target and data for all draws, in batches."""
    target, data = _target(samples)
    rows, flat = len(data[0]) if data else 1, draws.flatten(0, 1)
    batches = flat.split(max(1, _BATCH // max(rows, flat.shape[-1])))
    with torch.no_grad():
        parts = [function(batch, target, data) for batch in batches]
    return torch.cat(parts).unflatten(0, draws.shape[:2])


def _energies(draws: Tensor, target: Target, data: tuple[Tensor, ...]) -> Tensor:
    return full(target, data or None)(draws, 0).energy


def _log_likelihoods(draws: Tensor, target: Target, data: tuple[Tensor, ...]) -> Tensor:
    function = getattr(target, "log_likelihood_fn", None)
    if function is None or not target.needs_data:
        condition = "a target with a log-likelihood per row, such as Model(...)"
        raise needs("to_arviz", "log_likelihood", condition, target)
    axes = 0, *(None for _ in data)
    return per_chain("to_arviz", "log_likelihood", function, axes, draws, *data)


def _simulate(
    values: dict[str, Tensor],
    num_draws: int,
    data: tuple[Tensor, ...],
    function: Callable[..., Any],
    chains: list[int],
    seed: int,
) -> dict[str, Tensor]:
    """Call a user's simulation for every draw in turn; it may use torch's global generator."""
    found: list[list[dict[str, Tensor]]] = []
    for index, chain in enumerate(chains):
        with fork_rng(seed, Purpose.PREDICT, chain), torch.no_grad():
            draws = (
                {name: value[index, draw] for name, value in values.items()}
                for draw in range(num_draws)
            )
            found.append([_as_dict(function(draw, *data)) for draw in draws])
    return {
        name: torch.stack([torch.stack([draw[name] for draw in chain]) for chain in found])
        for name in found[0][0]
    }


def _as_dict(result: Any) -> dict[str, Tensor]:
    found = result if isinstance(result, dict) else {"obs": result}
    types = {name: type(value).__name__ for name, value in found.items()}
    if not found or not all(isinstance(value, Tensor) for value in found.values()):
        condition = "a function that returns a tensor, or a dict of them"
        raise needs("to_arviz", "posterior_predictive", condition, types, TypeError)
    return found
