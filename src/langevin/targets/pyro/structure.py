"""Find the structure of a Pyro model: its sites, the names of their axes, unused elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.compiler.record import UnrecordableError, Value, record, substitute
from langevin.random import Purpose, normal, streams
from langevin.random.torch_rng import fork_rng
from langevin.targets.pyro.checks import check_latent, check_same_sites
from langevin.targets.pyro.supports import feasible
from langevin.targets.pyro.trace import WHO, Site, Trace, run, settings

__all__ = ["first_traces", "named_axes", "parents", "unused"]

_RUNS = 4  # in pairs of opposite values, so that a branch on a sign is seen
Numbers = Callable[[int], Tensor]


def first_traces(model: Callable[[], Any], dtype: torch.dtype) -> list[Trace]:
    """Run a model at several values, uniform in (-2, 2) unconstrained, and compare the runs."""
    traces: list[Trace] = []
    for number in range(_RUNS):
        at, counter = streams(Purpose.INIT, range(number // 2, number // 2 + 1)), itertools.count()
        sign = 1 - 2 * (number % 2)

        def numbers(
            count: int, at: range = at, site: Iterator[int] = counter, sign: int = sign
        ) -> Tensor:
            uniform = torch.special.ndtr(normal(0, at, next(site), count, dtype=dtype)[0])
            return sign * (4 * uniform - 2)

        def fill(name: str, fn: Any, numbers: Numbers = numbers) -> Tensor:
            check_latent(name, fn)
            return feasible(name, fn, numbers).detach()

        # Every run starts from the same parameters, also if the model changes them.
        params = traces[0].params if traces else None
        with settings(dtype), torch.no_grad(), fork_rng(number, Purpose.INIT, 0):
            try:
                traces.append(run(model, fill, params))
            except RuntimeError as error:
                if "dtype" not in str(error) and "scalar type" not in str(error):
                    raise
                condition = (
                    "tensors and modules in float64: those among the arguments are converted, "
                    "others, such as global ones, are not"
                )
                raise needs(WHO, "model", condition, str(error).splitlines()[0]) from error
    check_same_sites(traces)
    return traces


def unused(
    name: str, traces: Sequence[Trace], log_density: Callable[[dict[str, Tensor]], Tensor]
) -> Tensor:
    """Return which elements of a site the log density ignores, such as those masked out."""
    found = torch.ones(traces[0].sites[name].value.shape, dtype=torch.bool)
    for trace in traces:
        values = {n: site.value for n, site in trace.sites.items() if not site.is_observed}
        values[name] = values[name].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(log_density(values), values[name])
        found &= gradient == 0
    return found


def parents(
    trace: Trace, run_at: Callable[[dict[str, Tensor]], Trace]
) -> Mapping[str, frozenset[str]]:
    """Return the latent sites that the distribution of each latent site depends on."""
    latent = {name: site.value for name, site in trace.sites.items() if not site.is_observed}
    inputs = {name: value.clone() for name, value in latent.items()}

    def log_densities() -> list[Tensor]:
        sites = run_at(inputs).sites
        return [sites[name].fn.log_prob(value).sum() for name, value in latent.items()]

    names = list(latent)
    try:
        tape = record(log_densities, list(inputs.values()))
    except UnrecordableError:  # all that come before
        return {name: frozenset(names[:k]) for k, name in enumerate(names)}
    found = {Value("input", k): {name} for k, name in enumerate(names)}
    for operation in tape.operations:
        read: list[Value] = []
        substitute((operation.arguments, operation.options), read.append)
        reads = {name for value in read for name in found.get(value, ())}
        for value in operation.results:
            if value is not None:
                found[value] = found.get(value, set()) | reads
    pairs = zip(names, tape.results, strict=True)
    return {name: frozenset(found.get(value, ())) for name, value in pairs}


def named_axes(sites: Sequence[Site]) -> Mapping[str, tuple[str, ...]]:
    """Name the axes of the sites' values after plates, for ArviZ; other axes get its defaults."""
    taken = {site.name for site in sites} | {"chain", "draw"}
    sizes: dict[str, set[int]] = {}
    for site in sites:
        for plate in site.plates:
            sizes.setdefault(plate.name, set()).add(plate.size)
    named: dict[str, tuple[str, ...]] = {}
    for site in sites:
        shape = tuple(site.value.shape)
        # The event of a deterministic site is by default all of its value.
        batch = len(shape) - (0 if site.is_deterministic else len(site.fn.event_shape))
        axes = [f"{site.name}_dim_{k}" for k in range(len(shape))]
        for plate in site.plates:
            axis = -1 if plate.axis is None else batch + plate.axis
            unique = plate.name not in taken and len(sizes[plate.name]) == 1
            if axis >= 0 and shape[axis] == plate.size and unique:
                axes[axis] = plate.name
        named[site.name] = tuple(axes)
    return named
