"""The `Model` of a Pyro program: its sites as named parameters, data and outputs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._pytree import tree_map_only
from typing_extensions import override

from langevin.checks import level_of_caller, needs
from langevin.targets.base import Batch, Evaluation
from langevin.targets.constraints import Constraint, Values
from langevin.targets.model import Model
from langevin.targets.named_priors import NamedPrior
from langevin.targets.pyro.checks import check_subsampling
from langevin.targets.pyro.structure import first_traces, named_axes, parents, unused
from langevin.targets.pyro.supports import Subset, as_constraint, ends
from langevin.targets.pyro.trace import WHO, Site, Trace, run, settings

__all__ = ["PyroModel"]

_PARAMS = (
    "from_pyro() keeps the pyro.param sites {names} at their current values; to sample them, use "
    "pyro.sample with a prior."
)


class PyroModel(Model):
    """Define the posterior of a Pyro model's latent sites; see `from_pyro`.

    Args:
        model: a function with Pyro primitives.
        args: its arguments.
        kwargs: its keyword arguments.

    Example:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> import langevin as lv
        >>> model = lv.from_pyro(lambda: pyro.sample("scale", dist.HalfNormal(2.0)))
        >>> model.evaluate(torch.zeros(1, 1, dtype=torch.float64)).gradient  # scale^2 / 4 - 1
        tensor([[-0.7500]], dtype=torch.float64)
    """

    _who, _argument = WHO, "model"
    _may_ignore = True  # a uniform site that nothing reads has its prior as posterior

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """See the class."""
        if isinstance(model, type) or not callable(model) or hasattr(model, "initial_params"):
            condition = "a Pyro model: a function with pyro.sample statements, not a kernel of MCMC"
            raise needs(WHO, "model", condition, model, TypeError)
        dtype = torch.float64
        if isinstance(model, nn.Module):
            model = copy.deepcopy(model).to(dtype)
        self._model = functools.partial(model, *_cast(args, dtype), **_cast(dict(kwargs), dtype))
        self._last: tuple[Values, Trace] | None = None
        traces = first_traces(self._model, dtype)
        first = traces[0]
        self._params = {name: value.to(dtype) for name, value in first.params.items()}
        if self._params:
            message = _PARAMS.format(names=list(self._params))
            warnings.warn(message, UserWarning, stacklevel=level_of_caller())
        self._plate = check_subsampling(first)
        self.needs_data = self._plate is not None
        if self._plate is not None:
            self.data = (torch.arange(first.subsampled[self._plate]),)
        latent = [site for site in first.sites.values() if not site.is_observed]
        outputs = [site for site in first.sites.values() if site.is_deterministic]
        self._typical = {site.name: site.value for site in latent}
        with settings(dtype):
            self._parents = dict(parents(first, self._run))
        parameters = {site.name: self._constraint(site.name, traces) for site in latent}
        prior: dict[str, NamedPrior] = {
            name: functools.partial(self._prior_of, name) for name in parameters
        }
        dims = named_axes([*latent, *outputs])
        function = self._log_likelihoods if self.needs_data else self._log_likelihood
        named = {name: dims[name] for name in parameters}
        super().__init__(function, parameters, prior, dims=named, dtype=dtype)
        self.space = dataclasses.replace(
            self.space,
            dims=dims,
            derived_names=tuple(site.name for site in outputs),
            derived_fn=self._outputs,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        with settings(position.dtype):
            try:
                return super().evaluate(position, batch)
            finally:
                self._last = None

    @override
    def check_data(self, columns: Sequence[Tensor]) -> None:
        own = self.data or ()
        if len(columns) != len(own) or not all(map(torch.equal, columns, own)):
            condition = "None: the data are the arguments of the Pyro model"
            raise needs("sample", "data", condition, columns)
        with settings(self.space.dtype):
            super().check_data(columns)

    @override
    def log_likelihood_fn(self, position: Tensor, *columns: Tensor) -> Tensor:
        with settings(self.space.dtype):
            return super().log_likelihood_fn(position, *columns)

    def _constraint(self, name: str, traces: Sequence[Trace]) -> Constraint:
        """Return the constraint of a site, without masked elements that nothing depends on."""

        def bound(which: int) -> functools.partial[Any]:
            return functools.partial(self._bound, name, which)

        found = as_constraint(name, [trace.sites[name].fn for trace in traces], bound)
        if any(callable(getattr(found, end, None)) for end in ("low", "high")):
            names = list(self._typical)  # a flat prior shows no dependence on its bounds
            self._parents[name] |= frozenset(names[: names.index(name)])
        if traces[0].sites[name].mask is None:
            return found

        def log_density(values: dict[str, Tensor]) -> Tensor:
            with settings(torch.float64):
                sites = self._run(values).sites.values()
                return sum((s.log_density().sum() for s in sites), torch.zeros(()))

        ignored = unused(name, traces, log_density).flatten()
        if found.size != len(ignored) or not ignored.any():
            return found
        return Subset(found.shape, found, (~ignored).nonzero()[:, 0])

    def _run(self, values: Values, rows: Tensor | None = None) -> Trace:
        return run(self._model, lambda name, fn: values.get(name), self._params, rows)

    def _trace(self, values: Values, rows: Tensor | None = None) -> Trace:
        """Run the model at values; an evaluation asks for several parts of the same run."""
        last = self._last
        if last is not None and last[0] is values:
            return last[1]
        with settings(self.space.dtype):
            trace = self._run(values, rows)
        self._last = (values, trace)
        return trace

    def _site(self, name: str, values: Values) -> Site:
        """Return a latent site, given the values of the sites before it."""
        last = self._last
        if last is not None and last[0] is values:
            return last[1].sites[name]
        given = {**self._typical, **{parent: values[parent] for parent in self._parents[name]}}
        with settings(self.space.dtype):
            found = run(self._model, lambda n, fn: given.get(n), self._params, until=name)
        return found.sites[name]

    def _bound(self, name: str, which: int, values: Values) -> Any:
        """Return the lower (0) or upper (1) bound of a site, given the preceding values."""
        found = ends(self._site(name, values).fn.support)
        assert found is not None
        return found[which]

    def _prior_of(self, name: str, values: dict[str, Tensor]) -> Distribution | Tensor:
        """Return the distribution of a latent site, or its log density if it is scaled."""
        site = self._site(name, values)
        if site.is_plain and site.arguments == ((), {}):
            fn: Distribution = site.fn
            return fn
        return site._replace(value=values[name]).log_density().sum()

    def _observed(self, trace: Trace) -> list[Site]:
        sites = trace.sites.values()
        return [site for site in sites if site.is_observed and not site.is_deterministic]

    def _log_likelihood(self, values: dict[str, Tensor]) -> Tensor:
        """Return the log density of all observed sites and factors."""
        return self._total(self._observed(self._trace(values)))

    def _log_likelihoods(self, values: dict[str, Tensor], rows: Tensor) -> Tensor:
        """Return the log density of each row of the subsampled plate."""
        sites = self._observed(self._trace(values, rows))
        total = torch.zeros(len(rows), dtype=self.space.dtype)
        for site in sites:
            for plate in site.plates:
                if plate.name == self._plate and plate.axis is not None:
                    logs = site.log_density()
                    logs = logs.movedim(plate.axis, 0).reshape(len(rows), -1).sum(-1)
                    # The library itself scales the rows of a minibatch to all data.
                    total = total + logs * (len(rows) / self._num_rows)
        return total

    @property
    def _num_rows(self) -> int:
        return len(self.data[0]) if self.data else 0

    @override
    def log_prior(self, values: dict[str, Tensor]) -> Tensor:
        """Return the log density of all sites outside the subsampled plate."""
        total = super().log_prior(values)
        if not self.needs_data:
            return total
        sites = self._observed(self._trace(values))
        outside = [site for site in sites if all(p.name != self._plate for p in site.plates)]
        return total + self._total(outside)

    def _total(self, sites: Sequence[Site]) -> Tensor:
        total = torch.zeros((), dtype=self.space.dtype)
        for site in sites:
            total = total + site.log_density().sum()
        return total

    def _outputs(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the deterministic sites at ONE position."""
        with settings(self.space.dtype):
            trace = self._trace(self.space.constrain(vector)[0])
        self._last = None
        return {name: trace.sites[name].value for name in self.space.derived_names}


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    """Convert the floating-point tensors of nested arguments; parameters are constants here."""
    return tree_map_only(
        Tensor, lambda t: t.detach().to(dtype) if t.is_floating_point() else t, tree
    )
