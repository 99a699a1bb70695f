"""Define the posterior of an `nn.Module`, or of its last layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from langevin.checks import (
    check_columns,
    check_dense,
    check_integer,
    check_position,
    known_arguments,
    needs,
)
from langevin.random import Purpose
from langevin.random.torch_rng import fork_rng
from langevin.targets.automatic import posterior_energy
from langevin.targets.base import Batch, Evaluation, Target, check_init
from langevin.targets.data import arguments, as_inputs, rows
from langevin.targets.likelihoods import Likelihood, as_likelihood
from langevin.targets.priors import PlacedPrior, Prior, on_theta
from langevin.targets.space import NO_NOISE, Parameters, Space, choose, own_names, renamed_masks

__all__ = ["LastLayer", "Posterior", "last_layer"]

_DATA = "two columns (x, y), or more where the model takes several inputs"


class Posterior(Target):
    """Define ``U(theta) = N * mean NLL - log prior`` over a module's parameters; data are (x, y).

    The model is copied and never changed. theta holds its parameters in the order of
    ``model.parameters()``; frozen parameters (``requires_grad=False``) and buffers keep their
    values. Chains run under `torch.func.vmap`, each with its own minibatches.

    x is a tensor; a tuple of tensors for ``model(a, b)``, given as ``((a, b), y)`` or
    ``(a, b, y)``; or a dict of tensors for ``model(**x)``, whose names are those of the first data.

    Args:
        model: maps x (n, ...) to outputs (n, ...), row by row. BatchNorm and Dropout must be in
            evaluation mode.
        likelihood: "categorical", "bernoulli", "gaussian", "poisson" or "student_t"; an object such
            as ``likelihoods.gaussian(std=0.1)``; or a function of outputs and targets. A learned
            scale is one more parameter.
        prior: one of `langevin.priors`, for all of theta; `by_name` and `fan_in` depend on names
            and shapes of the parameters.
        num_data: N, the number of observations in the whole data set.
        parameters: which ones to sample, whatever their ``requires_grad``: one or several name
            patterns such as "head.*", or a predicate of a name. None takes those that require a
            gradient. A learned scale is always sampled.
        mask: by parameter name, booleans of its shape: which elements to sample. Others keep their
            values.

    Example:
        >>> from langevin.targets import priors
        >>> prior = priors.gaussian(std=1.0)
        >>> posterior = Posterior(nn.Linear(4, 3), "categorical", prior=prior, num_data=100)
        >>> position = posterior.init(chains=5, seed=0)
        >>> columns = (torch.zeros(10, 4), torch.zeros(10, dtype=torch.int64))
        >>> batch = Batch(columns, num_data=100, per_chain=False)
        >>> posterior.evaluate(position, batch).gradient.shape
        torch.Size([5, 15])
    """

    needs_data = True

    @known_arguments("Posterior")
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
        who = "Posterior"
        self.likelihood = as_likelihood(who, likelihood)
        own = copy.deepcopy(model)
        choose(who, own, parameters)
        Space.of(own, who=who)  # checks the model before it is wrapped
        self._model = self.likelihood.wrap(own)
        names = own_names(own, self._model)
        masks = renamed_masks(who, mask, self._model, names)
        self.space: Space = Space.of(self._model, who=who, masks=masks)
        self.dim: int = self.space.dim
        # A prior by name is written for the names in the user's model.
        known = {new: name for name, new in names.items()}
        labels = [known[name] for name in self.space.names]
        like = torch.empty(0, dtype=self.space.dtype, device=self.space.device)
        self.prior = on_theta(who, prior, labels, self.space.shapes, self.space.sizes, like)
        self._input_names: tuple[str, ...] = ()
        self.num_data = check_integer(who, "num_data", num_data, 1)

    def __repr__(self) -> str:
        parts = f"{self.likelihood}, prior={self.prior}, num_data={self.num_data}, dim={self.dim}"
        return f"Posterior({type(self._model).__name__}, {parts})"

    def output_fn(self, position: Tensor, *x: Any) -> Tensor:
        """Return the model's outputs at ONE position (dim,).

        The function is pure: it may be vmapped, differentiated and compiled.

        Args:
            position: theta.
            x: the inputs as given, or as the columns from `as_columns`.
        """
        args, kwargs = arguments(x, self._input_names)
        parameters = self.space.unflatten(position)
        return torch.func.functional_call(self._model, parameters, args, kwargs)

    def log_likelihood_fn(self, position: Tensor, *columns: Any) -> Tensor:
        """Return the log-likelihood of every row, (n,), at ONE position; columns are x, ..., y."""
        *x, y = columns
        return self.likelihood.log_likelihood(self.output_fn(position, *x), y)

    @override
    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        if batch is None:
            raise needs("Posterior", "data", _DATA, None)
        self._check_columns(batch.columns)
        self._check_size(batch.num_data)
        self.space.check("Posterior", "position", position)
        if position.ndim != 2:
            raise needs("Posterior", "position", "shape (chains, dim)", tuple(position.shape))
        args = (self.log_likelihood_fn, self.prior, position, batch)
        if torch.compiler.is_compiling():
            return posterior_energy(*args)
        try:
            return posterior_energy(*args)
        except (IndexError, RuntimeError, ValueError):
            columns = batch.columns
            flat = [part.flatten(0, 1) for part in columns] if batch.per_chain else columns
            self.check_rows(tuple(flat[:-1]), flat[-1])  # raises if the data are the reason
            raise

    @override
    def as_columns(self, who: str, data: Any) -> tuple[Tensor, ...]:
        """Return the columns of ``(x, y)`` or ``(a, b, ..., y)``; a dict x sets the input names."""
        if not isinstance(data, tuple | list) or len(data) < 2:
            return check_columns(who, data)  # `check_data` rejects a single column
        inputs, names = as_inputs(who, data[0]) if len(data) == 2 else (tuple(data[:-1]), ())
        known = self._input_names
        if known and (names or len(inputs) != len(known)) and names != known:
            condition = f"the inputs {list(known)}, as in the data before"
            raise needs(who, "data", condition, list(names) or f"{len(inputs)} columns")
        columns = check_columns(who, (*inputs, data[-1]))
        self._input_names = names or known
        return columns

    @override
    def check_data(self, columns: Sequence[Tensor]) -> None:
        self._check_columns(columns)
        self.check_rows(tuple(columns[:-1]), columns[-1])
        self._check_size(len(columns[-1]))

    def init(self, chains: int, seed: int = 0, *, first_chain: int = 0) -> Tensor:
        """Draw initial positions (chains, dim) by PyTorch's own initialisation of each layer.

        Every module's `reset_parameters` runs in a copy of the model (for Linear and Conv:
        kaiming_uniform(a=sqrt(5)), biases uniform within 1 / sqrt(fan_in)), children before parents
        as when the model was built. Parameters that none of them sets keep the model's values, such
        as those of a module without that method, or behind `torch.nn.utils.parametrize`.

        Args:
            chains: how many.
            seed: an int in [0, 2**64). Chain k's position is a function of (seed, k); torch's
                global generator is left unchanged.
            first_chain: number of the first chain, so that separate runs match a joint one.
        """
        numbers = check_init(chains, seed, first_chain)
        scratch = copy.deepcopy(self._model).cpu()  # only the CPU generator is borrowed
        starts = []
        for chain in numbers:
            with fork_rng(seed, Purpose.INIT, chain), torch.no_grad():
                scratch.apply(_reset)
            starts.append(self.space.flatten(scratch))
        return torch.stack(starts).to(self.space.device)

    @override
    def explore(self, count: int, seed: int = 0) -> Tensor:
        """Return no positions: a network has a mode for every order of its units."""
        return torch.zeros(0, self.space.dim, dtype=self.space.dtype, device=self.space.device)

    def module(self, position: Tensor) -> nn.Module:
        """Return a copy of the model with this theta (dim,)."""
        self.space.check("module", "position", check_position("module", "position", position))
        if position.ndim != 1:
            condition = f"shape ({self.dim},), one draw"
            raise needs("module", "position", condition, tuple(position.shape))
        result = copy.deepcopy(self._model)
        self.space.assign(result, position)
        return result

    def check_rows(self, x: Any, y: Tensor) -> None:
        """Fail if inputs or targets do not fit the model: checks every target, runs one row."""
        if not isinstance(y, Tensor):
            condition = "a torch.Tensor of shape (n, ...)"
            raise needs("Posterior", "y", condition, type(y).__name__, TypeError)
        output, inputs = self.check_inputs(x), as_inputs("Posterior", x)[0]
        self.likelihood.check(output.expand(len(inputs[0]), *output.shape[1:]), y)

    def check_inputs(self, x: Any) -> Tensor:
        """Return the model's output for the first row, or fail if the inputs do not fit."""
        inputs, who = as_inputs("Posterior", x)[0], "Posterior"
        for column in inputs:
            self._check_input(column)
        first, start = rows(who, x, 0, 1), self.space.flatten(self._model)[None]
        name = type(self._model).__name__
        try:
            with torch.no_grad():  # under vmap as in a run, where torch rejects random numbers
                output = torch.func.vmap(lambda theta: self.output_fn(theta, first))(start)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if "random operation" in str(error):
                found = f"{name}, which draws random numbers"
                raise needs(who, "model", NO_NOISE, found) from error
            shapes = [f"shape {tuple(column.shape)} and {column.dtype}" for column in inputs]
            condition = f"inputs that {name} takes under torch.func.vmap"
            raise needs(who, "x", condition, f"{' and '.join(shapes)} ({error})") from error
        if not isinstance(output, Tensor) or output.shape[:2] != (1, 1):
            is_tensor = isinstance(output, Tensor)
            found = str(tuple(output.shape[1:])) if is_tensor else type(output).__name__
            condition = "one row of outputs, a tensor (1, ...), for one row of inputs"
            raise needs(who, "model", condition, found)
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
            condition = f"the {num_data} rows of the data"
            raise needs("Posterior", "num_data", condition, self.num_data)

    def _check_input(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            condition = "a torch.Tensor of shape (n, ...), or a tuple or a dict of them"
            raise needs("Posterior", "x", condition, type(x).__name__, TypeError)
        check_dense("Posterior", "x", x)
        if x.is_floating_point():
            self.space.check_dtype("Posterior", "x", x)


def _reset(module: nn.Module) -> None:
    """Run a module's own initialisation; that of MultiheadAttention and Transformer is private."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(reset):
        reset()


class LastLayer(NamedTuple):
    """The last layer of a network, and its inputs."""

    head: nn.Linear  # a trainable copy of the last layer
    features: Tensor  # its inputs, (n, ..., in_features)


def last_layer(model: nn.Module, x: Any, *, batch_size: int = 1024) -> LastLayer:
    """Split a network before its last linear layer, and compute that layer's inputs once.

    The rest is frozen in evaluation mode: ``head(features)`` are the outputs of ``model.eval()``.
    So ``Posterior(head, ...)`` with ``data=(features, y)`` is the posterior of the last layer
    alone. The model is not changed. For new inputs: ``last_layer(model, x_new).features``.

    Args:
        model: a module whose output is that of the `nn.Linear` it calls last; no other part may
            use that layer's weights.
        x: inputs of n rows: a tensor, a tuple of tensors for ``model(*x)``, or a dict for
            ``model(**x)``.
        batch_size: rows at a time.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> head, features = last_layer(model, torch.ones(10, 4))
        >>> head, features.shape
        (Linear(in_features=8, out_features=3, bias=True), torch.Size([10, 8]))
    """
    who = "last_layer"
    if not isinstance(model, nn.Module):
        raise needs(who, "model", "an nn.Module", model, TypeError)
    check_integer(who, "batch_size", batch_size, 1)
    rows(who, x, 0, 1)  # checks the inputs
    size = len(as_inputs(who, x)[0][0])
    model = copy.deepcopy(model).eval()
    calls: list[_Call] = []

    def note(
        layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor
    ) -> None:
        assert isinstance(layer, nn.Linear)
        calls.append(_Call(layer, args[0] if args else kwargs["input"], output))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    parts, head = [], None
    for start in range(0, size, batch_size):
        calls.clear()
        args, kwargs = arguments((rows(who, x, start, start + batch_size),))
        with torch.no_grad():
            output = model(*args, **kwargs)
        head, features = _check_last(model, calls, output)
        if len(features) != min(batch_size, size - start):
            condition = "one row of features for each row of inputs"
            raise needs(who, "model", condition, tuple(features.shape))
        parts.append(features)
    assert head is not None
    for hook in hooks:
        hook.remove()
    return LastLayer(head.requires_grad_(True), torch.cat(parts))


class _Call(NamedTuple):
    layer: nn.Linear
    features: Tensor
    output: Tensor


def _check_last(model: nn.Module, calls: list[_Call], output: object) -> tuple[nn.Linear, Tensor]:
    """Return the last layer and its inputs, or fail if the output depends on it in other ways."""
    who, name = "last_layer", type(model).__name__
    if not calls:
        raise needs(who, "model", "an nn.Linear that it calls", f"{name}, which calls none")
    head, features, last = calls[-1]
    called = next(name for name, layer in model.named_modules() if layer is head)
    tensor = output if isinstance(output, Tensor) else None
    if tensor is None or tensor.shape != last.shape or not torch.equal(tensor, last):
        found = (
            f"an output of shape {tuple(tensor.shape)}"
            if tensor is not None
            else type(output).__name__
        )
        condition = f"the output of the linear layer that it calls last, {called!r}"
        raise needs(who, "model", condition, f"{found} that differs")
    times = sum(call.layer is head for call in calls)
    if times > 1:
        condition = "a last layer that is called once"
        raise needs(who, "model", condition, f"{called!r}, called {times} times")
    weights = {id(parameter) for parameter in head.parameters()}
    parts = [part for part in model.modules() if part is not head]
    if weights & {id(p) for part in parts for p in part.parameters(recurse=False)}:
        condition = "a last layer whose weights no other part has"
        raise needs(who, "model", condition, f"{called!r}, which is tied to another")
    return head, features
