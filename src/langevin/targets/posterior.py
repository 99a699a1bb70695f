"""The posterior of an `nn.Module`'s parameters: a target for any number of chains, with starts and predictions."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import check_columns, check_dense, check_integer, check_position, needs
from langevin.noise import Purpose, philox, stream
from langevin.noise.address import check_seed
from langevin.space import Ravel
from langevin.targets.automatic import likelihood as likelihood_target
from langevin.targets.base import Batch, Evaluation
from langevin.targets.likelihoods import Likelihood, as_likelihood
from langevin.targets.priors import Prior

__all__ = ["Posterior"]

_DRAWS_AT_ONCE = 16  # of a small model; of a large one fewer, so that their parameters stay within
_ELEMENTS_AT_ONCE = 2**18


class Posterior:
    """``U(theta) = N * mean NLL - log prior`` of a model's parameters; its data are the columns (x, y).

    The model is copied and never changed. theta has its parameters in the order of ``model.parameters()``; frozen ones
    (``requires_grad=False``) and buffers stay what they are. Chains run under `torch.func.vmap`, each with minibatches of its own.

    Args:
        model: maps x (n, ...) to outputs (n, ...), row by row. BatchNorm and Dropout must be in evaluation mode.
        likelihood: "categorical" (outputs are logits, y int64 labels) or an object such as ``likelihoods.gaussian(std=0.1)``.
        prior: one of `langevin.priors`, on all of theta.
        num_data: N, the number of rows of the whole data set.

    Example:
        >>> from langevin.targets import priors
        >>> posterior = Posterior(nn.Linear(4, 3), "categorical", prior=priors.gaussian(std=1.0), num_data=100)
        >>> position = posterior.init(chains=5, seed=0)
        >>> batch = Batch((torch.zeros(10, 4), torch.zeros(10, dtype=torch.int64)), num_data=100, per_chain=False)
        >>> posterior.evaluate(position, batch).gradient.shape
        torch.Size([5, 15])
        >>> posterior.predict(position, torch.zeros(10, 4)).shape
        torch.Size([10, 3])
    """

    needs_data = True
    gradient_noise = 0.0

    def __init__(self, model: nn.Module, likelihood: str | Likelihood, *, prior: Prior, num_data: int) -> None:
        """See the class."""
        self.ravel = Ravel.of(model, who="Posterior")
        self.likelihood = as_likelihood("Posterior", likelihood)
        if not isinstance(prior, Prior):
            raise needs("Posterior", "prior", "a prior of langevin.priors", prior, TypeError)
        self.prior = prior
        self.num_data = check_integer("Posterior", "num_data", num_data, 1)
        self._model = copy.deepcopy(model)
        self._target = likelihood_target(self.log_likelihood_fn, prior=prior)

    def __repr__(self) -> str:
        name = type(self._model).__name__
        return f"Posterior({name}, {self.likelihood}, prior={self.prior}, num_data={self.num_data}, dim={self.dim})"

    @property
    def dim(self) -> int:
        """The number of elements of theta."""
        return self.ravel.dim

    def output_fn(self, position: Tensor, x: Tensor) -> Tensor:
        """Return the model's outputs at ONE position (dim,); pure, so it may be vmapped, differentiated and compiled."""
        return torch.func.functional_call(self._model, self.ravel.unflatten(position), (x,))

    def log_likelihood_fn(self, position: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the log-likelihood of every row, (n,), at ONE position (dim,); pure as `output_fn` is."""
        return self.likelihood.log_likelihood(self.output_fn(position, x), y)

    def evaluate(self, position: Tensor, batch: Batch | None = None) -> Evaluation:
        """Return U and its gradient at positions (chains, dim)."""
        if batch is None:
            raise needs("Posterior", "data", "two columns (x, y)", None)
        self._check_columns(batch.columns)
        if batch.num_data != self.num_data:
            raise needs("Posterior", "num_data", f"the {batch.num_data} rows of the data", self.num_data)
        self._check_position("position", position)
        if position.ndim != 2:
            raise needs("Posterior", "position", "shape (chains, dim)", tuple(position.shape))
        if torch.compiler.is_compiling():
            return self._target.evaluate(position, batch)
        try:
            return self._target.evaluate(position, batch)
        except (IndexError, RuntimeError, ValueError):
            x, y = (column.flatten(0, 1) if batch.per_chain else column for column in batch.columns)
            self._check_rows(x, y)  # says what is wrong with the data, if that is it
            raise

    def check_data(self, data: Sequence[Tensor]) -> None:
        """Fail when a data set does not fit: its columns, size, dtypes, the model's input shape, the targets' values.

        It looks at every target and runs the model on one row.
        """
        columns = check_columns("Posterior", data)
        self._check_columns(columns)
        x, y = columns
        if len(x) != self.num_data:
            raise needs("Posterior", "num_data", f"the {len(x)} rows of the data", self.num_data)
        self._check_rows(x, y)

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
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.default_generator.manual_seed(_generator_seed(seed, chain))
                scratch.apply(_reset)
            starts.append(self.ravel.flatten(scratch))
        return torch.stack(starts).to(self.ravel.device)

    def module(self, position: Tensor) -> nn.Module:
        """Return a copy of the model with this theta (dim,)."""
        self._check_position("position", check_position("module", "position", position))
        if position.ndim != 1:
            raise needs("module", "position", f"shape ({self.dim},), one draw", tuple(position.shape))
        result = copy.deepcopy(self._model)
        self.ravel.assign(result, position)
        return result

    def predict(self, samples: Any, x: Tensor, *, batch_size: int = 256) -> Any:
        """Average the predictions over draws, a few draws and rows at a time.

        Args:
            samples: the result of `sample`, of which the healthy chains count, or draws (..., dim).
            x: new inputs, (n, ...).
            batch_size: rows at a time; it does not change the result beyond rounding.

        Returns:
            For "categorical" probabilities (n, classes). For a Gaussian likelihood a GaussianPrediction of mean and variance,
            the latter being that of the noise plus that of the mean over draws.
        """
        draws = self._draws("predict", samples)
        self._output(x)
        parts = [self._moments(draws, rows) for (rows,) in self._batches("predict", batch_size, x)]
        mean, variance = (torch.cat(part) for part in zip(*parts, strict=True))
        return self.likelihood.combine(mean, variance)

    def log_likelihood(self, samples: Any, x: Tensor, y: Tensor, *, batch_size: int = 256) -> Tensor:
        """Return the log-likelihood of every row under every draw: draws (..., dim) give (..., n)."""
        draws = self._draws("log_likelihood", samples)
        self._check_rows(x, y)
        per_draw = torch.func.vmap(self.log_likelihood_fn, in_dims=(0, None, None))
        with torch.no_grad():
            parts = [
                torch.cat([per_draw(chunk, *rows) for chunk in self._chunks(draws)])
                for rows in self._batches("log_likelihood", batch_size, x, y)
            ]
        return torch.cat(parts, -1).unflatten(0, draws.shape[:-1])

    def _moments(self, draws: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance over the draws of what one draw predicts, merging chunk by chunk (Chan, Golub, LeVeque 1979)."""
        per_draw = torch.func.vmap(lambda position: self.likelihood.predictive(self.output_fn(position, x)))
        count, mean, square = 0, torch.zeros(()), torch.zeros(())
        for chunk in self._chunks(draws):
            with torch.no_grad():
                values = per_draw(chunk)
            values = values.to(torch.promote_types(values.dtype, torch.float32))
            fresh = values.mean(0)
            gap, total = fresh - mean.to(fresh), count + len(chunk)
            square = square.to(fresh) + (values - fresh).square().sum(0) + gap * gap * (count * len(chunk) / total)
            mean = mean.to(fresh) + gap * (len(chunk) / total)
            count = total
        return mean, square / count

    def _chunks(self, draws: Tensor) -> Iterator[Tensor]:
        """Yield a few draws at a time, (draws, dim)."""
        size = max(1, min(_DRAWS_AT_ONCE, _ELEMENTS_AT_ONCE // self.dim))
        yield from draws.reshape(-1, self.dim).split(size)

    def _batches(self, who: str, batch_size: int, x: Tensor, *more: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield a few rows at a time."""
        check_integer(who, "batch_size", batch_size, 1)
        yield from zip(*(column.split(batch_size) for column in (x, *more)), strict=True)

    def _draws(self, who: str, samples: Any) -> Tensor:
        """Return the draws (..., dim) of healthy chains."""
        draws = getattr(samples, "healthy", samples)
        if isinstance(draws, Tensor) and draws.numel() == 0:
            raise needs(who, "samples", "at least one draw of a chain that ran to its end", f"draws of shape {tuple(draws.shape)}")
        check_position(who, "samples", draws)
        self._check_position("samples", draws)
        return draws.detach().to(self.ravel.device)

    def _check_position(self, argument: str, position: Tensor) -> None:
        if position.shape[-1:] != (self.dim,):
            raise needs("Posterior", argument, f"{self.dim} elements, the model's parameters, per draw", tuple(position.shape))
        self._check_dtype(argument, position)

    def _check_dtype(self, argument: str, value: Tensor) -> None:
        if value.dtype != self.ravel.dtype:
            raise needs("Posterior", argument, f"the dtype of the model's parameters, {self.ravel.dtype}", value.dtype, TypeError)

    def _check_columns(self, columns: tuple[Tensor, ...]) -> None:
        if len(columns) != 2:
            raise needs("Posterior", "data", "two columns (x, y)", f"{len(columns)} columns")
        self._check_input(columns[0])

    def _check_input(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise needs("Posterior", "x", "a torch.Tensor of shape (n, ...)", type(x).__name__, TypeError)
        check_dense("Posterior", "x", x)
        if x.is_floating_point():
            self._check_dtype("x", x)

    def _check_rows(self, x: Tensor, y: Tensor) -> None:
        """Fail when inputs or targets do not fit the model."""
        if not isinstance(y, Tensor):
            raise needs("Posterior", "y", "a torch.Tensor of shape (n, ...)", type(y).__name__, TypeError)
        output = self._output(x)
        self.likelihood.check(output.expand(len(x), *output.shape[1:]), y)

    def _output(self, x: Tensor) -> Tensor:
        """Return the model's output for the first row, or fail when its shape or dtype is not one that the model takes."""
        self._check_input(x)
        if x.ndim == 0 or len(x) == 0:
            raise needs("Posterior", "x", "at least one row, shape (n, ...)", tuple(x.shape))
        try:
            with torch.no_grad():  # under vmap as the chains are, where torch refuses random numbers
                output = torch.func.vmap(self.output_fn, in_dims=(0, None))(self.ravel.flatten(self._model)[None], x[:1])
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            name = type(self._model).__name__
            if "random operation" in str(error):
                condition, shown = (
                    "no noise without an address: model.eval(), or no such layer",
                    f"{name}, which draws random numbers",
                )
                raise needs("Posterior", "model", condition, shown) from error
            shown = f"shape {tuple(x.shape)} and {x.dtype} ({error})"
            raise needs("Posterior", "x", f"inputs that {name} takes under torch.func.vmap", shown) from error
        if not isinstance(output, Tensor) or output.shape[:2] != (1, 1):
            shown = str(tuple(output.shape[1:])) if isinstance(output, Tensor) else type(output).__name__
            raise needs("Posterior", "model", "one row of outputs, a tensor (1, ...), for one row of inputs", shown)
        return output[0]


def _reset(module: nn.Module) -> None:
    """Run a module's own initialisation; MultiheadAttention and Transformer have theirs under a private name."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(reset):
        reset()


def _generator_seed(seed: int, chain: int) -> int:
    """Return a chain's seed of torch's CPU generator: the word at the address (seed, INIT), plus the chain.

    That generator uses 32 bits of a seed only. Hashing the chain too would give two of 10,000 chains the same start in one run
    of a hundred; counting it on never does.
    """
    word, *_ = philox((0, 0, 0, stream(Purpose.INIT) >> 32), (seed & 0xFFFFFFFF, seed >> 32))
    return word + chain & 0xFFFFFFFF
