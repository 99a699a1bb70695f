"""The posterior of an `nn.Module`'s parameters: a target for any number of chains, and their starts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from langevin.checks import check_columns, check_dense, check_integer, check_position, needs
from langevin.noise import Purpose
from langevin.noise.address import check_seed
from langevin.noise.borrowed import borrowed_generator
from langevin.space import Space
from langevin.targets.automatic import posterior_energy
from langevin.targets.base import Batch, Evaluation, Target
from langevin.targets.inputs import arguments, as_inputs, rows
from langevin.targets.likelihoods import Likelihood, as_likelihood
from langevin.targets.parts import Parameters, choose, own_names, renamed_masks
from langevin.targets.priors import PlacedPrior, Prior, on_theta

__all__ = ["Posterior"]

_DATA = "two columns (x, y), or more where the model takes several inputs"


class Posterior(Target):
    """``U(theta) = N * mean NLL - log prior`` of a model's parameters; its data are (x, y).

    The model is copied and never changed. theta has its parameters in the order of ``model.parameters()``; frozen ones
    (``requires_grad=False``) and buffers stay what they are. Chains run under `torch.func.vmap`, each with own minibatches.

    x is a tensor, a tuple of tensors, given as ``((a, b), y)`` or ``(a, b, y)``, for ``model(a, b)``, or a dict of tensors, for
    ``model(**x)``. Its names are learnt from the first data that have any.

    Args:
        model: maps x (n, ...) to outputs (n, ...), row by row. BatchNorm and Dropout must be in evaluation mode.
        likelihood: one of "categorical", "bernoulli", "gaussian", "poisson", "student_t", an object such as
            ``likelihoods.gaussian(std=0.1)``, or a function of outputs and targets. A scale that is learned is one more parameter.
        prior: one of `langevin.priors`, on all of theta; `by_name` and `fan_in` look at names and shapes of the parameters.
        num_data: N, the number of rows of the whole data set.
        parameters: those that are sampled, whatever their ``requires_grad``: a pattern of names such as "head.*", several, or a
            function that says of a name whether it is one. None takes those that require a gradient. A learned scale is always one.
        mask: by name of a parameter, booleans of its shape: the elements that are sampled. Others stay what they are in the model.

    Example:
        >>> from langevin.targets import priors
        >>> posterior = Posterior(nn.Linear(4, 3), "categorical", prior=priors.gaussian(std=1.0), num_data=100)
        >>> position = posterior.init(chains=5, seed=0)
        >>> batch = Batch((torch.zeros(10, 4), torch.zeros(10, dtype=torch.int64)), num_data=100, per_chain=False)
        >>> posterior.evaluate(position, batch).gradient.shape
        torch.Size([5, 15])
    """

    needs_data = True

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        prior: Prior | PlacedPrior,
        num_data: int,
        parameters: Parameters | None = None,
        mask: Mapping[str, Tensor] | None = None,
    ) -> None:
        """See the class."""
        self.likelihood = as_likelihood("Posterior", likelihood)
        own = copy.deepcopy(model)
        choose("Posterior", own, parameters)
        Space.of(own, who="Posterior")  # refuses what is no function of theta and x
        self._model = self.likelihood.wrap(own)
        names = own_names(own, self._model)
        self.space: Space = Space.of(self._model, who="Posterior", masks=renamed_masks("Posterior", mask, self._model, names))
        self.dim: int = self.space.dim
        known = {new: name for name, new in names.items()}  # a prior by name is asked for the names that the user gave
        like = torch.empty(0, dtype=self.space.dtype, device=self.space.device)
        self.prior = on_theta(
            "Posterior", prior, [known[name] for name in self.space.names], self.space.shapes, self.space.sizes, like
        )
        self._input_names: tuple[str, ...] = ()
        self.num_data = check_integer("Posterior", "num_data", num_data, 1)

    def __repr__(self) -> str:
        name = type(self._model).__name__
        return f"Posterior({name}, {self.likelihood}, prior={self.prior}, num_data={self.num_data}, dim={self.dim})"

    def output_fn(self, position: Tensor, *x: Any) -> Tensor:
        """Return the model's outputs at ONE position (dim,); pure, so it may be vmapped, differentiated and compiled.

        Args:
            position: theta.
            x: the inputs as they were given, or as the columns that `as_columns` made of them.
        """
        by_place, by_name = arguments(x, self._input_names)
        return torch.func.functional_call(self._model, self.space.unflatten(position), by_place, by_name)

    def log_likelihood_fn(self, position: Tensor, *columns: Any) -> Tensor:
        """Return the log-likelihood of every row, (n,), at ONE position (dim,), for columns x, ..., y; pure as `output_fn` is."""
        return self.likelihood.log_likelihood(self.output_fn(position, *columns[:-1]), columns[-1])

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if batch is None:
            raise needs("Posterior", "data", _DATA, None)
        self._check_columns(batch.columns)
        self._check_size(batch.num_data)
        self.space.check("Posterior", "position", position)
        if position.ndim != 2:
            raise needs("Posterior", "position", "shape (chains, dim)", tuple(position.shape))
        if torch.compiler.is_compiling():
            return posterior_energy(self.log_likelihood_fn, self.prior, position, batch)
        try:
            return posterior_energy(self.log_likelihood_fn, self.prior, position, batch)
        except (IndexError, RuntimeError, ValueError):
            *x, y = (column.flatten(0, 1) if batch.per_chain else column for column in batch.columns)
            self.check_rows(tuple(x), y)  # says what is wrong with the data, if that is it
            raise

    @override
    def as_columns(self, who: str, data: Any) -> tuple[Tensor, ...]:
        """Return the columns of ``(x, y)`` or ``(a, b, ..., y)``, and learn the names where x is a dict; columns pass through."""
        if not isinstance(data, tuple | list) or len(data) < 2:
            return check_columns(who, data)  # which has words for it; of a single column `check_data` has
        inputs, names = as_inputs(who, data[0]) if len(data) == 2 else (tuple(data[:-1]), ())
        known = self._input_names
        if known and (names or len(inputs) != len(known)) and names != known:
            raise needs(who, "data", f"the inputs {list(known)}, as in the data before", list(names) or f"{len(inputs)} columns")
        columns = check_columns(who, (*inputs, data[-1]))
        self._input_names = names or known
        return columns

    @override
    def check_data(self, columns: Sequence[Tensor]) -> None:
        self._check_columns(columns)
        *x, y = columns
        self.check_rows(tuple(x), y)
        self._check_size(len(y))

    def init(self, chains: int, seed: int = 0, *, first_chain: int = 0) -> Tensor:
        """Draw starting positions (chains, dim) by PyTorch's own initialisation of each layer.

        Every module's `reset_parameters` runs in a copy of the model (for Linear and Conv: kaiming_uniform(a=sqrt(5)), biases
        uniform within 1 / sqrt(fan_in)), children before parents as when the model was built. Parameters that none of them
        sets, such as those held by a module without that method or behind `torch.nn.utils.parametrize`, keep the model's values.

        Args:
            chains: how many.
            seed: an int in [0, 2**64). Chain k's start is a function of (seed, k); torch's global generator is left as it was.
            first_chain: number of the first chain, so that chains run apart start as they do together.
        """
        check_integer("init", "chains", chains, 1)
        check_integer("init", "first_chain", first_chain, 0)
        check_seed("init", seed)
        scratch = copy.deepcopy(self._model).cpu()  # on the CPU, whose generator alone is borrowed
        starts = []
        for chain in range(first_chain, first_chain + chains):
            with borrowed_generator(seed, Purpose.INIT, chain), torch.no_grad():
                scratch.apply(_reset)
            starts.append(self.space.flatten(scratch))
        return torch.stack(starts).to(self.space.device)

    def module(self, position: Tensor) -> nn.Module:
        """Return a copy of the model with this theta (dim,)."""
        self.space.check("module", "position", check_position("module", "position", position))
        if position.ndim != 1:
            raise needs("module", "position", f"shape ({self.dim},), one draw", tuple(position.shape))
        result = copy.deepcopy(self._model)
        self.space.assign(result, position)
        return result

    def check_rows(self, x: Any, y: Tensor) -> None:
        """Fail when inputs or targets do not fit the model; looks at every target and runs the model on one row."""
        if not isinstance(y, Tensor):
            raise needs("Posterior", "y", "a torch.Tensor of shape (n, ...)", type(y).__name__, TypeError)
        output = self.check_inputs(x)
        self.likelihood.check(output.expand(len(as_inputs("Posterior", x)[0][0]), *output.shape[1:]), y)

    def check_inputs(self, x: Any) -> Tensor:
        """Return the model's output for the first row, or fail when its shape or dtype is not one that the model takes."""
        inputs = as_inputs("Posterior", x)[0]
        for column in inputs:
            self._check_input(column)
        first = rows("Posterior", x, 0, 1)
        try:
            with torch.no_grad():  # under vmap as the chains are, where torch refuses random numbers
                output = torch.func.vmap(lambda theta: self.output_fn(theta, first))(self.space.flatten(self._model)[None])
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            name = type(self._model).__name__
            if "random operation" in str(error):
                condition = "no noise without an address: model.eval(), or no such layer"
                raise needs("Posterior", "model", condition, f"{name}, which draws random numbers") from error
            shown = f"{' and '.join(f'shape {tuple(column.shape)} and {column.dtype}' for column in inputs)} ({error})"
            raise needs("Posterior", "x", f"inputs that {name} takes under torch.func.vmap", shown) from error
        if not isinstance(output, Tensor) or output.shape[:2] != (1, 1):
            shown = str(tuple(output.shape[1:])) if isinstance(output, Tensor) else type(output).__name__
            raise needs("Posterior", "model", "one row of outputs, a tensor (1, ...), for one row of inputs", shown)
        return output[0]

    def _check_columns(self, columns: Sequence[Tensor]) -> None:
        if not isinstance(columns, tuple | list):
            raise needs("Posterior", "data", _DATA, columns, TypeError)
        if len(columns) < 2:
            raise needs("Posterior", "data", _DATA, f"{len(columns)} columns")
        for column in columns[:-1]:
            self._check_input(column)

    def _check_size(self, num_data: int) -> None:
        if num_data != self.num_data:
            raise needs("Posterior", "num_data", f"the {num_data} rows of the data", self.num_data)

    def _check_input(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            kinds = "a torch.Tensor of shape (n, ...), or a tuple or a dict of them"
            raise needs("Posterior", "x", kinds, type(x).__name__, TypeError)
        check_dense("Posterior", "x", x)
        if x.is_floating_point():
            self.space.check_dtype("Posterior", "x", x)


def _reset(module: nn.Module) -> None:
    """Run a module's own initialisation; MultiheadAttention and Transformer have theirs under a private name."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(reset):
        reset()
