"""Models as statisticians write them: named parameters with constraints, a log-likelihood per row, priors by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from typing_extensions import override

from langevin.checks import check_function, check_integer, needs, takes
from langevin.constraints import Constraint
from langevin.noise import Purpose, normal, streams
from langevin.noise.address import check_seed
from langevin.space import Space
from langevin.targets.automatic import differentiate, per_chain, validation
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.columns import named_columns
from langevin.targets.named_priors import NamedPrior, check_priors, log_prior

__all__ = ["Model"]

Parameters = dict[str, Tensor]


class Model(Target):
    """The posterior of named parameters, given a log-likelihood per row of the data.

    ``U(theta) = -(N / n) sum_i log p(row_i | p(theta)) - log prior(p(theta)) - log |det dp / dtheta|``

    theta has the free numbers behind the parameters p, whose constraints map them to values. What is written, here and in priors,
    is the density of the values. A name without a prior is flat in its values.

    Args:
        log_likelihood: a function of the dict of parameters and the data's columns, (n, ...) each, that returns the
            log-likelihood of every row, (n,). It is written for ONE dict of values and runs on all chains at once.
        parameters: constraints by name, such as ``real()``, ``real(5)``, ``positive()``; theta has them in this order.
        prior: by name one of `langevin.priors`; or an object of `torch.distributions`, on the whole parameter or on each of its
            elements; or a function of the dict of parameters that returns one, or a log density, for hierarchies.
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

    def __init__(
        self,
        log_likelihood: Callable[..., Tensor],
        parameters: Mapping[str, Constraint],
        prior: Mapping[str, NamedPrior] | None = None,
        *,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """See the class."""
        self._who, self._argument, self.needs_data = "Model", "log_likelihood", True
        check_function("Model", "log_likelihood", log_likelihood, "a function of the dict of parameters and the data's columns")
        self._arguments = _arguments(log_likelihood)
        self._set_up(log_likelihood, parameters, prior, dims, coords, dtype)

    @classmethod
    def log_density(
        cls,
        function: Callable[[Parameters], Tensor],
        parameters: Mapping[str, Constraint],
        prior: Mapping[str, NamedPrior] | None = None,
        *,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        """Make a model from a whole log density of the parameters' values, up to a constant; it closes over its data.

        Args:
            function: of the dict of parameters; it returns one number, to which the priors are added.
            parameters: as for `Model`, and so is the rest.
            prior: by name.
            dims: for ArviZ.
            coords: for ArviZ.
            dtype: of theta.

        Example:
            >>> import langevin as lv
            >>> model = lv.Model.log_density(lambda p: -p["rate"], {"rate": lv.positive()})
            >>> model.evaluate(torch.zeros(1, 1, dtype=torch.float64)).energy  # rate - log(rate), at rate 1
            tensor([1.], dtype=torch.float64)
        """
        model = cls.__new__(cls)
        model._who, model._argument, model.needs_data, model._arguments = "Model.log_density", "function", False, ()
        check_function(model._who, "function", function, "a function of the dict of parameters", 1)
        model._set_up(function, parameters, prior, dims, coords, dtype)
        return model

    def _set_up(self, function: Callable[..., Tensor], parameters: Any, prior: Any, dims: Any, coords: Any, dtype: Any) -> None:
        self._function = function
        self.space: Space = _space(self._who, parameters, dims or {}, coords or {}, dtype)
        self.dim: int = self.space.dim
        self.prior = check_priors(self._who, prior, self.space)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {tuple(shape)}" for name, shape in zip(self.space.names, self.space.shapes, strict=True))
        return f"{self._who}({parts}, dim={self.dim})"

    def log_likelihood_fn(self, position: Tensor, *columns: Tensor) -> Tensor:
        """Return the log-likelihood of every row, (n,), at ONE position (dim,); pure, so it may be vmapped and compiled."""
        return self._checked(self._function(self.space.constrain(position)[0], *columns), columns)

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if (batch is not None) != self.needs_data:
            raise needs(self._who, "data", "the columns of the log-likelihood" if self.needs_data else "None", batch)
        self.space.check(self._who, "position", position)
        columns: tuple[Tensor, ...] = () if batch is None else batch.columns
        scale, row_axis = (1.0, None) if batch is None else (batch.scale, 0 if batch.per_chain else None)

        def energy(theta: Tensor, *rows: Tensor) -> Tensor:
            values, log_jacobian = self.space.constrain(theta)
            logs = self._checked(self._function(values, *rows), rows)
            return -(scale * logs.sum() + log_prior(self._who, self.prior, values) + log_jacobian)

        axes = (0, *(row_axis for _ in columns))
        return differentiate(lambda leaf: per_chain(self._who, self._argument, energy, axes, leaf, *columns), position)

    @override
    def as_columns(self, who: str, data: Any) -> tuple[Tensor, ...]:
        return named_columns(who, self._arguments, data, self.space.dtype)

    @override
    def check_data(self, columns: Sequence[Tensor]) -> None:
        """Run the model once, for one chain and with all the checks of `torch.distributions`, and say what is wrong with it."""
        if not takes(self._function, 1 + len(columns)):
            shown = f"{1 + len(columns)} arguments, the dict and {len(columns)} columns"
            raise needs(self._who, self._argument, f"a function that takes {shown}", f"{inspect.signature(self._function)}")
        values, log_jacobian = self.space.constrain(torch.zeros(self.dim, dtype=self.space.dtype).requires_grad_())
        for name, shape in zip(self.space.names, self.space.shapes, strict=True):
            if values[name].shape != shape:  # torch broadcasts with what a bound's function returned
                raise needs(self._who, "parameters", f"bounds of {name!r} for its shape {tuple(shape)}", tuple(values[name].shape))
        try:
            with torch.enable_grad():
                logs = self._try(values, columns)
                total = logs.sum() + log_prior(self._who, self.prior, values) + log_jacobian
        except LinAlgError:  # a matrix may be singular at this place, which is none of the user's
            return
        used = torch.autograd.grad(total, list(values.values()), allow_unused=True)
        unused = [name for name, gradient in zip(values, used, strict=True) if gradient is None]
        if unused:
            raise needs(self._who, "parameters", f"names that the {self._argument} or a prior depends on", f"unused: {unused}")

    def _try(self, values: Parameters, columns: Sequence[Tensor]) -> Tensor:
        """Return what the user's function returns for one dict of values, or raise its errors with what it was given."""

        def as_a_chain() -> Tensor:
            axes, start = (0, *(None for _ in columns)), torch.zeros(1, self.dim, dtype=self.space.dtype)
            return per_chain(self._who, self._argument, self.log_likelihood_fn, axes, start, *columns)

        def alone(strict: bool) -> Tensor:
            with validation(strict):
                return self._checked(self._function(values, *columns), columns)

        try:
            with torch.no_grad():
                as_a_chain()  # first, since only here torch minds `if` and the like
            try:
                return alone(strict=True)
            except ValueError as error:
                if "Expected value argument" in str(error):
                    shown = " ".join(str(error).split())
                    raise needs(self._who, "data", "values in the support of the log-likelihood's distribution", shown) from error
                if "Expected parameter" not in str(error):
                    raise
                return alone(strict=False)  # a scale may be 0 at this place, which is none of the user's
        except KeyError as error:
            name = error.args[0] if error.args else None
            if name in values:
                raise
            raise needs(self._who, self._argument, f"a function that reads the parameters {list(values)}", name) from error
        except LinAlgError:
            raise
        except (RuntimeError, IndexError) as error:
            given = [f"{name}: {tuple(value.shape)}" for name, value in values.items()]
            given += [f"{name}: {tuple(c.shape)} {c.dtype}" for name, c in zip(self._arguments, columns, strict=False)]
            condition = "a function that runs on one dict of parameters and the columns"
            if "can't be cast" in str(error):
                condition += "; whole numbers stay whole, so that they can be indices: write y.double() for floats"
            raise needs(self._who, self._argument, condition, f"{str(error).splitlines()[0]} (given {', '.join(given)})") from error

    def _checked(self, result: Any, columns: Sequence[Tensor]) -> Tensor:
        """Return the result of the user's function when it is of the right shape: one number per row, or one."""
        shape = columns[0].shape[:1] if self.needs_data else torch.Size()
        if isinstance(result, Tensor) and result.shape == shape:
            return result
        shown = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        if self.needs_data:
            shown = "a single number; Model.log_density takes a whole log density" if shown == () else f"shape {shown}"
            raise needs(self._who, self._argument, f"one number per row, a tensor of shape {tuple(shape)}", shown)
        hint = "; take the .sum(), or use Model, which takes one number per row" if isinstance(shown, tuple) else ""
        raise needs(self._who, self._argument, f"one number, a tensor of shape (){hint}", shown)

    def constrain(self, position: Tensor) -> Parameters:
        """Return the values by name, (..., *shape), that positions (..., dim) stand for."""
        self.space.check("constrain", "position", position)
        return self.space.values(position)

    def unconstrain(self, values: Mapping[str, Any]) -> Tensor:
        """Return the position (dim,) that stands for these values: numbers, lists, arrays or tensors, one for each name."""
        return self.space.unconstrain(self._tensors("unconstrain", values))

    def init_from(self, values: Mapping[str, Any], chains: int) -> Tensor:
        """Return starting positions (chains, dim) at these values; the free numbers of a name that is left out are 0."""
        check_integer("init_from", "chains", chains, 1)
        return self.space.unconstrain(self._tensors("init_from", values), partial=True).repeat(chains, 1)

    def _tensors(self, who: str, values: Any) -> Parameters:
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
        """Draw starting positions (chains, dim), uniform in (-2, 2) among free numbers as Stan does; chain k's is of (seed, k)."""
        check_integer("init", "chains", chains, 1)
        check_integer("init", "first_chain", first_chain, 0)
        check_seed("init", seed)
        at = streams(Purpose.INIT, range(first_chain, first_chain + chains))
        return 4 * torch.special.ndtr(normal(seed, at, 0, self.dim, dtype=self.space.dtype)) - 2


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the columns that a log-likelihood takes, or none where it takes any number."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C
        return ()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return ()
    return tuple(parameter.name for parameter in parameters[1:] if parameter.default is parameter.empty)


def _space(who: str, parameters: Any, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any], dtype: Any) -> Space:
    if not isinstance(parameters, Mapping) or not parameters:
        raise needs(who, "parameters", "a dict of constraints by name, such as {'a': real(), 'b': real(5)}", parameters, TypeError)
    for name, constraint in parameters.items():
        if not isinstance(name, str) or not name:
            raise needs(who, "parameters", "names that are texts", name, TypeError)
        if not isinstance(constraint, Constraint):
            raise needs(who, "parameters", f"a constraint such as real() or positive(3) for {name!r}", constraint, TypeError)
        if constraint.size == 0:
            raise needs(who, "parameters", f"at least one free number in {name!r}", constraint)
    if dtype not in (torch.float32, torch.float64):
        raise needs(who, "dtype", "torch.float32 or torch.float64", dtype)
    lengths: dict[str, int] = {}
    for name, axes in dims.items():
        shape = tuple(parameters[name].shape) if name in parameters else ()
        if isinstance(axes, str) or len(axes) != len(shape) or name not in parameters:
            raise needs(who, "dims", "names of all axes of a parameter, by its name", {name: axes})
        lengths |= dict(zip(axes, shape, strict=True))
    for axis, labels in coords.items():
        if axis not in lengths or len(labels) != lengths[axis]:
            raise needs(who, "coords", f"a label for each element of an axis of dims, {lengths}", {axis: labels})
    named = {name: tuple(axes) for name, axes in dims.items()}
    return Space(tuple(parameters), tuple(parameters.values()), dtype, torch.device("cpu"), named, dict(coords))
