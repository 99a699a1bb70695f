"""Define models with named, constrained parameters and priors by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from typing_extensions import override

from langevin.checks import check_function, check_integer, known_arguments, needs, takes
from langevin.random import Purpose, normal, streams
from langevin.targets.automatic import REDUCED, differentiate, per_chain, validation
from langevin.targets.base import Batch, Evaluation, Target, check_init
from langevin.targets.conditionals import Centredness, Conditionals, check_centredness
from langevin.targets.constraints import Constraint, is_real
from langevin.targets.data import named_columns
from langevin.targets.named_priors import NamedPrior, check_priors, log_prior, prior_functions
from langevin.targets.prior_draws import draw_from_priors
from langevin.targets.space import Space

__all__ = ["Model"]

Parameters = dict[str, Tensor]
Dims = Mapping[str, Sequence[str]]
Coords = Mapping[str, Sequence[object]]


class Model(Target):
    """Define the posterior of named parameters by a log-likelihood per observation.

    ``U(theta) = -(N / n) sum_i log p(row_i | p) - log prior(p) - log |det dp / dtheta|``

    theta holds the unconstrained numbers behind the parameters p; constraints map them to values.
    All densities are densities of the values. A parameter without a prior has a flat prior.

    Args:
        log_likelihood: a function of the dict of parameters and of the data's columns, (n, ...)
            each, that returns the log-likelihood of every row, (n,). It is written for ONE dict of
            values and runs on all chains at once.
        parameters: constraints by name, such as ``real()``, ``real(5)``, ``positive()``, in the
            order of theta.
        prior: by name: one of `langevin.priors`; a `torch.distributions` object, for the whole
            parameter or for each element; or, for hierarchies, a function of the dict of parameters
            that returns a distribution or a log density.
        centredness: how `langevin.sample` moves parameters whose priors have a location m and a
            scale s that depend on other parameters (`langevin.targets.parameterisation`). "auto"
            adapts it to the data if `sample` chooses the sampler, and leaves the model as written
            beside ``sampler=``. A number c in [0, 1], or numbers by name, fix it: 0 is
            ``m + s z`` (non-centred), 1 as written. Positions and draws are always as written.
        dims: names of a parameter's axes, for ArviZ.
        coords: labels along these axes, for ArviZ.
        dtype: of theta and of the data's floating-point columns.

    Example:
        >>> from torch.distributions import HalfNormal, Normal
        >>> import langevin as lv
        >>> model = lv.Model(
        ...     lambda p, x, y: Normal(p["a"] + x @ p["b"], p["sigma"]).log_prob(y),
        ...     parameters={"a": lv.real(), "b": lv.real(2), "sigma": lv.positive()},
        ...     prior={"b": lv.priors.gaussian(std=1.0), "sigma": HalfNormal(1.0)},
        ... )
        >>> model
        Model(a: (), b: (2,), sigma: (), dim=4)
        >>> model.constrain(torch.zeros(3, 4, dtype=torch.float64))["sigma"]
        tensor([1., 1., 1.], dtype=torch.float64)
    """

    _who, _argument = "Model", "log_likelihood"
    _may_ignore = False  # whether the density may be constant in a parameter
    needs_data = True

    @known_arguments("Model")
    def __init__(
        self,
        log_likelihood: Callable[..., Tensor],
        parameters: Mapping[str, Constraint],
        prior: Mapping[str, NamedPrior] | None = None,
        *,
        centredness: Centredness = "auto",
        dims: Dims | None = None,
        coords: Coords | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """See the class."""
        what, count = "a function of the dict of parameters and the data's columns", None
        if not self.needs_data:
            what, count = "a function of the dict of parameters", 1
        check_function(self._who, self._argument, log_likelihood, what, count)
        self._function = log_likelihood
        self._arguments = _column_names(log_likelihood) if self.needs_data else ()
        self.space: Space = _space(self._who, parameters, dims or {}, coords or {}, dtype)
        self.dim: int = self.space.dim
        self.prior = check_priors(self._who, prior, self.space)
        self.centredness = check_centredness(self._who, centredness, self.space)

    @classmethod
    @known_arguments("Model.log_density")
    def log_density(
        cls,
        function: Callable[[Parameters], Tensor],
        parameters: Mapping[str, Constraint],
        prior: Mapping[str, NamedPrior] | None = None,
        *,
        centredness: Centredness = "auto",
        dims: Dims | None = None,
        coords: Coords | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        """Make a model from a log density of the values, up to a constant; data are in its closure.

        Args:
            function: of the dict of parameters; returns one number, to which priors are added.
            parameters: as for `Model`.
            prior: as for `Model`.
            centredness: as for `Model`.
            dims: as for `Model`.
            coords: as for `Model`.
            dtype: of theta.

        Example:
            >>> import langevin as lv
            >>> model = lv.Model.log_density(lambda p: -p["rate"], {"rate": lv.positive()})
            >>> model.evaluate(torch.zeros(1, 1, dtype=torch.float64)).energy  # rate - log(rate)
            tensor([1.], dtype=torch.float64)
        """
        model = cls.__new__(cls)
        model._who, model._argument, model.needs_data = "Model.log_density", "function", False
        Model.__init__(
            model, function, parameters, prior,
            centredness=centredness, dims=dims, coords=coords, dtype=dtype,
        )  # fmt: skip
        return model

    def __repr__(self) -> str:
        shapes = zip(self.space.names, self.space.shapes, strict=True)
        parts = ", ".join(f"{name}: {tuple(shape)}" for name, shape in shapes)
        return f"{self._who}({parts}, dim={self.dim})"

    @cached_property
    @override
    def conditionals(self) -> Conditionals:
        return Conditionals.of(self.space, prior_functions(self.prior))

    def log_likelihood_fn(self, position: Tensor, *columns: Tensor) -> Tensor:
        """Return the log-likelihood of every row, (n,), at ONE position (dim,)."""
        return self._call(self.space.constrain(position)[0], columns)

    def log_prior(self, values: Parameters) -> Tensor:
        """Return the log density of the priors for ONE dict of values."""
        return log_prior(self._who, self.prior, values)

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if (batch is not None) != self.needs_data:
            condition = "the columns of the log-likelihood" if self.needs_data else "None"
            raise needs(self._who, "data", condition, batch)
        self.space.check(self._who, "position", position)
        columns: tuple[Tensor, ...] = () if batch is None else batch.columns
        scale = 1.0 if batch is None else batch.scale
        row_axis = 0 if batch is not None and batch.per_chain else None

        def energy(theta: Tensor, *rows: Tensor) -> Tensor:
            values, log_jacobian = self.space.constrain(theta)
            logs = self._call(values, rows)
            return -(scale * logs.sum() + self.log_prior(values) + log_jacobian)

        axes = (0, *(row_axis for _ in columns))

        def energies(leaf: Tensor) -> Tensor:
            return per_chain(self._who, self._argument, energy, axes, leaf, *columns)

        return differentiate(energies, position)

    @override
    def as_columns(self, who: str, data: Any) -> tuple[Tensor, ...]:
        return named_columns(who, self._arguments, data, self.space.dtype)

    @override
    def check_data(self, columns: Sequence[Tensor]) -> None:
        """Run the model once, with all checks of `torch.distributions`, and explain any failure."""
        if not takes(self._function, 1 + len(columns)):
            count = f"{1 + len(columns)} arguments, the dict and {len(columns)} columns"
            raise self._bad(
                f"a function that takes {count}", f"{inspect.signature(self._function)}"
            )
        start = torch.zeros(self.dim, dtype=self.space.dtype).requires_grad_()
        values, log_jacobian = self.space.constrain(start)
        for name, shape in zip(self.space.names, self.space.shapes, strict=True):
            found_shape = tuple(values[name].shape)
            if found_shape != shape:  # torch broadcasts with the value of a bound's function
                condition = f"bounds of {name!r} for its shape {tuple(shape)}"
                raise needs(self._who, "parameters", condition, found_shape)
        try:
            with torch.enable_grad():
                logs = self._try(values, columns)
                total = logs.sum() + self.log_prior(values) + log_jacobian
        except LinAlgError:  # a matrix may be singular at this position; that is no mistake
            return
        except ValueError as error:
            if "Expected parameter" not in str(error):
                raise
            self._check_signs(columns)
            with torch.enable_grad(), validation(False):  # a prior's scale may be 0 here
                total = logs.sum() + self.log_prior(values) + log_jacobian
        used = torch.autograd.grad(total, list(values.values()), allow_unused=True)
        missing = [name for name, gradient in zip(values, used, strict=True) if gradient is None]
        if missing:
            self._check_gradients(missing, columns)
        self._check_signs(columns)

    def _log_posterior(
        self, values: Mapping[str, float], others: float, columns: Sequence[Tensor]
    ) -> Tensor:
        """Return the log density without the Jacobian, with all checks of `torch.distributions`.

        Every element of the unconstrained parameters in `values` is that number, all others are
        `others`.
        """
        parts = zip(self.space.names, self.space.constraints, strict=True)
        free = [
            torch.full((part.size,), values.get(name, others), dtype=self.space.dtype)
            for name, part in parts
        ]
        with torch.no_grad(), validation(True):
            found = self.space.constrain(torch.cat(free))[0]
            return self._call(found, columns).sum() + self.log_prior(found)

    def _check_gradients(self, names: list[str], columns: Sequence[Tensor]) -> None:
        """Fail for parameters without a gradient: unused, or with a gradient that is cut off."""

        def changes(name: str) -> bool:
            found = set()
            for value in (-3.0, -0.7, 0.2, 0.7, 3.0):
                try:
                    found.add(float(self._log_posterior({name: value}, 0.0, columns)))
                except (ValueError, RuntimeError):  # outside a support
                    continue
            return len(found) > 1

        changing = [name for name in names if changes(name)]
        if changing:
            condition = (
                f"a gradient for {', '.join(map(repr, changing))}: the log density depends on it, "
                "but its gradient is 0 or cut off, as by a comparison, round(), .detach() or "
                "torch.no_grad()"
            )
            raise needs(self._who, "parameters", condition, "no gradient")
        if not self._may_ignore:
            condition = f"names that the {self._argument} or a prior depends on"
            raise needs(self._who, "parameters", condition, f"unused: {names}")

    def _check_signs(self, columns: Sequence[Tensor]) -> None:
        """Fail if a real parameter, such as a scale, must be positive.

        That is so if the log density is valid at all tried positive values and at no negative one.
        Half of the positions would end a chain.
        """

        def is_valid(values: Mapping[str, float], others: float) -> bool:
            try:
                return not bool(self._log_posterior(values, others, columns).isnan())
            except (ValueError, RuntimeError):
                return False

        parts = zip(self.space.names, self.space.constraints, strict=True)
        reals = {name: constraint.shape for name, constraint in parts if is_real(constraint)}
        if not reals or is_valid(dict.fromkeys(reals, -1.0), 0.0):
            return
        tried = [(size, others) for others in (0.3, 0.01) for size in (0.1, 1.0, 10.0)]
        for name, lengths in reals.items():
            if all(is_valid({name: s}, o) and not is_valid({name: -s}, o) for s, o in tried):
                shape = ", ".join(map(str, lengths))
                why = "since the log density does not exist where it is negative"
                condition = f"positive({shape}) for {name!r}, {why}"
                raise needs(self._who, "parameters", condition, f"real({shape})")

    def _try(self, values: Parameters, columns: Sequence[Tensor]) -> Tensor:
        """Call the user's function for one dict of values; its errors list what it received."""

        def alone(*, strict: bool) -> Tensor:
            with validation(strict):
                return self._call(values, columns)

        axes = (0, *(None for _ in columns))
        start = torch.zeros(1, self.dim, dtype=self.space.dtype)
        try:
            # Under vmap first: only there does torch reject `if` and the like.
            function, names = self.log_likelihood_fn, self._arguments
            with torch.no_grad():
                per_chain(self._who, self._argument, function, axes, start, *columns, names=names)
            try:
                return alone(strict=True)
            except ValueError as error:
                if "Expected value argument" in str(error):
                    found = " ".join(str(error).split())
                    condition = "values in the support of the log-likelihood's distribution"
                    raise needs(self._who, "data", condition, found) from error
                if "Expected parameter" not in str(error):
                    raise
                return alone(strict=False)  # a scale may be 0 at this position; that is no mistake
        except KeyError as error:
            name = error.args[0] if error.args else None
            if name in values:
                raise
            raise self._bad(f"a function that reads the parameters {list(values)}", name) from error
        except LinAlgError:
            raise
        except (RuntimeError, IndexError) as error:
            given = [f"{name}: {tuple(value.shape)}" for name, value in values.items()]
            for name, column in zip(self._arguments, columns, strict=False):
                given.append(f"{name}: {tuple(column.shape)} {column.dtype}")
            condition = "a function that runs on one dict of parameters and the columns"
            if "can't be cast" in str(error):
                condition += "; integers stay integers, for indexing: write y.double() for floats"
            found = f"{str(error).splitlines()[0]} (given {', '.join(given)})"
            raise self._bad(condition, found) from error

    def _bad(self, condition: str, found: object) -> Exception:
        return needs(self._who, self._argument, condition, found)

    def _call(self, values: Parameters, columns: Sequence[Tensor]) -> Tensor:
        """Call the user's function and check the shape: one number per row, or one number."""
        result: object = self._function(values, *columns)
        shape = columns[0].shape[:1] if self.needs_data else torch.Size()
        if isinstance(result, Tensor) and result.shape == shape:
            return result
        found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        hint = ""
        if not self.needs_data:
            if isinstance(found, tuple):
                hint = "; take the .sum(), or use Model, which takes one number per row"
            raise self._bad(f"one number, a tensor of shape (){hint}", found)
        if found == ():
            hint, found = f"; {REDUCED}", "a single number"
        elif found == (*shape, *shape):
            column = (*shape, 1)
            hint = f"; shapes {tuple(shape)} and {column} broadcast: use y.squeeze(-1) or similar"
        found = f"shape {found}" if isinstance(found, tuple) else found
        raise self._bad(f"one number per row, a tensor of shape {tuple(shape)}{hint}", found)

    def constrain(self, position: Tensor) -> Parameters:
        """Return the values by name, (..., *shape), at positions (..., dim)."""
        self.space.check("constrain", "position", position)
        return self.space.values(position)

    def unconstrain(self, values: Mapping[str, Any]) -> Tensor:
        """Return the position (dim,) of values by name: numbers, lists, arrays or tensors."""
        return self.space.unconstrain(self._tensors("unconstrain", values))

    def init_from(self, values: Mapping[str, Any], chains: int) -> Tensor:
        """Return initial positions (chains, dim) at these values; other parameters have theta 0."""
        check_integer("init_from", "chains", chains, 1)
        found = self._tensors("init_from", values)
        return self.space.unconstrain(found, partial=True).repeat(chains, 1)

    def _tensors(self, who: str, values: Mapping[str, Any]) -> Parameters:
        if not isinstance(values, Mapping):
            raise needs(who, "values", "a dict of values by name", values, TypeError)
        found = {}
        for name, value in values.items():
            try:
                found[name] = torch.as_tensor(value, dtype=self.space.dtype)
            except (TypeError, ValueError, RuntimeError) as error:
                raise needs(who, "values", f"numbers for {name!r}", value, TypeError) from error
        return found

    def init(self, chains: int, seed: int = 0, *, first_chain: int = 0) -> Tensor:
        """Draw initial positions (chains, dim), uniform on (-2, 2) for each element as in Stan.

        Chain k's position is a function of (seed, k).
        """
        at = streams(Purpose.INIT, check_init(chains, seed, first_chain))
        drawn = normal(seed, at, 0, self.dim, dtype=self.space.dtype)
        return 4 * torch.special.ndtr(drawn) - 2

    @override
    def explore(self, count: int, seed: int = 0) -> Tensor:
        """Draw positions (count, dim) from the priors, where to search for modes."""
        return draw_from_priors(self.space, self.prior, count, seed)


def _column_names(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of a log-likelihood's columns, or () if it takes any number."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C
        return ()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return ()
    return tuple(part.name for part in parameters[1:] if part.default is part.empty)


def _space(who: str, parameters: Any, dims: Dims, coords: Coords, dtype: torch.dtype) -> Space:
    if not isinstance(parameters, Mapping) or not parameters:
        condition = "a dict of constraints by name, such as {'a': real(), 'b': real(5)}"
        raise needs(who, "parameters", condition, parameters, TypeError)
    for name, constraint in parameters.items():
        if not isinstance(name, str) or not name:
            raise needs(who, "parameters", "non-empty strings as names", name, TypeError)
        if not isinstance(constraint, Constraint):
            condition = f"a constraint such as real() or positive(3) for {name!r}"
            raise needs(who, "parameters", condition, constraint, TypeError)
        if constraint.size == 0:
            raise needs(who, "parameters", f"at least one element in {name!r}", constraint)
    if dtype not in (torch.float32, torch.float64):
        raise needs(who, "dtype", "torch.float32 or torch.float64", dtype)
    lengths: dict[str, int] = {}
    for name, axes in dims.items():
        shape = tuple(parameters[name].shape) if name in parameters else ()
        if isinstance(axes, str) or len(axes) != len(shape) or name not in parameters:
            condition = "names of all axes of a parameter, by its name"
            raise needs(who, "dims", condition, {name: axes})
        lengths |= dict(zip(axes, shape, strict=True))
    for axis, labels in coords.items():
        if axis not in lengths or len(labels) != lengths[axis]:
            condition = f"a label for each element of an axis of dims, {lengths}"
            raise needs(who, "coords", condition, {axis: labels})
    named = {name: tuple(axes) for name, axes in dims.items()}
    device = torch.device("cpu")
    return Space(tuple(parameters), tuple(parameters.values()), dtype, device, named, dict(coords))
