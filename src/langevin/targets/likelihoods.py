"""Likelihoods of a model's outputs: classes, measurements, counts, or a user's function."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus
from torch.special import xlogy
from typing_extensions import override

from langevin.checks import check_field, check_function, check_number, needs
from langevin.targets.priors import SCALE, is_scale

__all__ = [
    "LEARNED",
    "LIKELIHOODS",
    "PREDICTED",
    "Bernoulli",
    "Categorical",
    "GaussianLikelihood",
    "Likelihood",
    "OwnLikelihood",
    "PoissonLikelihood",
    "StudentTLikelihood",
    "WithScale",
    "as_likelihood",
    "bernoulli",
    "categorical",
    "gaussian",
    "poisson",
    "student_t",
]

LEARNED, PREDICTED = "learned", "predicted"
"""A scale that is one more parameter of the model, or one more output for each output."""


class Likelihood(ABC):
    """Define the distribution of y given a model's outputs.

    Subclasses implement `log_likelihood` and `mean`, and override the defaults below where they
    differ. Methods run for one draw of theta under `torch.func.vmap`, so they use torch operations
    only and do not look at values.

    Example:
        >>> class Exponential(Likelihood):
        ...     def log_likelihood(self, output, y):
        ...         return (output - output.exp() * y)[:, 0]
        ...     def mean(self, output):
        ...         return (-output).exp()
        >>> Exponential().loss(torch.zeros(2, 1), torch.tensor([[1.0], [2.0]]))
        tensor(1.5000)
    """

    predicts: str = "numbers"  # or "classes", whose `mean` are probabilities
    is_discrete: bool = False  # whether the numbers are integers

    @abstractmethod
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y_i | output_i)``, (n,), or fail if shapes or dtypes do not fit."""

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """Return the mean of y for one draw's outputs (n, ...); probabilities for classes."""

    def check(self, output: Tensor, y: Tensor) -> None:
        """Fail if targets do not fit in shape, dtype or value; outputs may have any values."""
        self.log_likelihood(output, y)

    def variance(self, output: Tensor) -> Tensor | None:
        """Return the variance of y in the shape of `mean`; None if unknown, and for classes."""
        return None

    def cdf(self, output: Tensor, value: Tensor) -> Tensor | None:
        """Return ``P(y <= value)`` in the shape of `mean`; None if unknown, and for classes."""
        return None

    def entropy(self, probabilities: Tensor) -> Tensor | None:
        """Return the entropy of y, (n,), from its probabilities; None for numbers."""
        return None

    def labels(self, probabilities: Tensor) -> Tensor:
        """Return the most probable classes; for classes only."""
        return probabilities.argmax(-1)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model with the likelihood's own parameters, if it has any."""
        return model

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return a batch's mean negative log-likelihood with all constants, as a training loss."""
        return -self.log_likelihood(output, y).mean()


class WithScale(nn.Module):
    """Append one parameter to a model's outputs: the log of a squared scale, shared by all.

    Outputs (n,) or (n, 1) become (n, 2), outputs (n, k) become (n, 2 k): the model's outputs first.

    Args:
        model: predicts the mean.
        start: initial squared scale.

    Example:
        >>> WithScale(nn.Linear(3, 1))(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, model: nn.Module, start: float = 1.0) -> None:
        """See the class."""
        super().__init__()
        like = next(model.parameters())
        self.model = model
        initial = torch.full((1,), start, dtype=like.dtype, device=like.device)
        self.log_scale = nn.Parameter(initial.log())

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the outputs, followed by the parameter."""
        output = self.model(*inputs, **named)
        output = output[:, None] if output.ndim == 1 else output
        return torch.cat([output, self.log_scale.expand_as(output)], -1)


def _sum_rows(terms: Tensor) -> Tensor:
    """Sum the elements of each row, (n, ...) to (n,)."""
    return terms.reshape(len(terms), -1).sum(-1)


def _check_ndim(who: str, what: str, output: Tensor) -> None:
    if output.ndim not in (1, 2):
        raise needs(who, "model", f"{what} of shape (n,) or (n, k)", tuple(output.shape))


def _check_shape(who: str, what: str, expected: Tensor, y: Tensor) -> None:
    if y.shape != expected.shape:  # (n,) against (n, 1) would broadcast to (n, n)
        condition = f"the shape of the model's {what}, {tuple(expected.shape)}"
        raise needs(who, "y", condition, tuple(y.shape))


def _check_values(who: str, condition: str, y: Tensor, good: Tensor) -> None:
    if not good.all():
        raise needs(who, "y", condition, y[~good][0].item())


@dataclass(frozen=True)
class Categorical(Likelihood):
    """``softmax(output)[y]`` for logits (n, classes) and class labels (n,)."""

    predicts = "classes"

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        self._check_shapes(output, y)
        # Not cross_entropy, which silently ignores labels of -100.
        return output.log_softmax(-1).gather(-1, y[:, None])[:, 0]

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self._check_shapes(output, y)
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= output.shape[-1]:
            condition = f"labels in [0, {output.shape[-1]}), one per output of the model"
            raise needs("categorical", "y", condition, [low, high])

    @override
    def mean(self, output: Tensor) -> Tensor:
        self._check_logits(output)
        return output.softmax(-1)

    @override
    def entropy(self, probabilities: Tensor) -> Tensor:
        return -xlogy(probabilities, probabilities).sum(-1)

    def _check_logits(self, output: Tensor) -> None:
        if output.ndim != 2:
            condition = "outputs of shape (n, classes)"
            raise needs("categorical", "model", condition, tuple(output.shape))

    def _check_shapes(self, output: Tensor, y: Tensor) -> None:
        self._check_logits(output)
        if y.dtype != torch.int64:
            condition = "class labels of dtype torch.int64 (y.long())"
            raise needs("categorical", "y", condition, y.dtype, TypeError)
        if y.shape != output.shape[:1]:
            condition = f"one label per row, shape ({len(output)},)"
            raise needs("categorical", "y", condition, tuple(y.shape))


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """``P(y = 1) = sigmoid(output)`` for logits (n,), or (n, k) for k labels; y is 0 or 1."""

    predicts = "classes"

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        _check_ndim("bernoulli", "logits", output)
        _check_shape("bernoulli", "outputs", output, y)
        return _sum_rows(logsigmoid(torch.where(y.bool(), output, -output)))

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self.log_likelihood(output, y)
        _check_values("bernoulli", "zeros and ones", y, (y == 0) | (y == 1))

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    @override
    def entropy(self, probabilities: Tensor) -> Tensor:
        other = 1 - probabilities
        return _sum_rows(-xlogy(probabilities, probabilities) - xlogy(other, other))

    @override
    def labels(self, probabilities: Tensor) -> Tensor:
        return (probabilities > 0.5).long()


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """``y ~ Poisson(exp(output))``, elementwise, for outputs and counts (n,) or (n, k)."""

    is_discrete = True

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        _check_ndim("poisson", "log-rates as outputs", output)
        _check_shape("poisson", "outputs", output, y)
        y = y.to(output.dtype)
        return _sum_rows(y * output - output.exp() - torch.lgamma(y + 1))

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self.log_likelihood(output, y)
        good = (y >= 0) & (y == y.to(output.dtype).round()) & torch.isfinite(y)
        _check_values("poisson", "counts 0, 1, 2, ...", y, good)

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output.exp()

    @override
    def variance(self, output: Tensor) -> Tensor:
        return output.exp()

    @override
    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        count = value.floor()
        inside = torch.special.gammaincc(count.clamp(min=0) + 1, output.exp())
        return torch.where(count < 0, 0.0, inside)


class _Measured(Likelihood):
    """``y = mean + scale * error``; subclasses define the distribution of the error."""

    name: ClassVar[str]  # of the function that builds it
    scale_name: ClassVar[str]  # of its scale
    within: tuple[float, float] | None  # bounds of a learned or predicted scale

    @property
    def _scale(self) -> float | str:
        found: float | str = getattr(self, self.scale_name)
        return found

    def _check_scale(self) -> None:
        who, name, value = f"likelihoods.{self.name}", self.scale_name, self._scale
        if not isinstance(value, str):
            check_field(self, who, name, SCALE.replace("std", name), is_scale)
        elif value not in (LEARNED, PREDICTED):
            raise needs(who, name, f'a number, "{LEARNED}" or "{PREDICTED}"', value)
        within = self.within
        if within is None:
            return
        if not isinstance(value, str):
            raise needs(who, "within", f"None where {name} is a number", within)
        if not isinstance(within, tuple) or len(within) != 2:
            condition = "a pair (low, high) of standard deviations"
            raise needs(who, "within", condition, within, TypeError)
        condition = SCALE.replace("std", "within")
        low, high = (check_number(who, "within", value, condition, is_scale) for value in within)
        if not low < high:
            raise needs(who, "within", "low < high", within)

    @override
    def wrap(self, model: nn.Module) -> nn.Module:
        return WithScale(model) if self._scale == LEARNED else model

    @override
    def mean(self, output: Tensor) -> Tensor:
        return self._split(output)[0]

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        self._standardise(output, y)
        _check_values(self.name, "finite targets", y, torch.isfinite(y))

    def _split(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log of the squared scale, both in the shape of y."""
        if not isinstance(self._scale, str):
            _check_ndim(self.name, "outputs", output)
            return output, torch.full_like(output, 2 * math.log(self._scale))
        if output.ndim != 2 or output.shape[-1] % 2 or output.shape[-1] == 0:
            condition = "outputs of shape (n, 2), mean and log-variance, or (n, 2 k)"
            raise needs(self.name, "model", condition, tuple(output.shape))
        mean, log_square = output.unbind(-1) if output.shape[-1] == 2 else output.chunk(2, -1)
        return mean, log_square if self.within is None else bounded(log_square, self.within)

    def _standardise(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(y - mean)^2 / scale^2`` and the log of the squared scale."""
        mean, log_square = self._split(output)
        if y.dtype != output.dtype:
            condition = f"the dtype of the model's outputs, {output.dtype} (y.to({output.dtype}))"
            raise needs(self.name, "y", condition, y.dtype, TypeError)
        _check_shape(self.name, "outputs" if mean is output else "predicted means", mean, y)
        return (y - mean).square() * torch.exp(-log_square), log_square


@dataclass(frozen=True)
class GaussianLikelihood(_Measured):
    """``y = mean + N(0, std^2)``, elementwise; use `gaussian` to build one."""

    std: float | str
    within: tuple[float, float] | None = None  # bounds of a learned or predicted std
    name = "gaussian"
    scale_name = "std"

    def __post_init__(self) -> None:
        self._check_scale()

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        square, log_square = self._standardise(output, y)
        return -0.5 * _sum_rows(square + log_square + math.log(2 * math.pi))

    @override
    def variance(self, output: Tensor) -> Tensor:
        return self._split(output)[1].exp()

    @override
    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        mean, log_square = self._split(output)
        return torch.special.ndtr((value - mean) * torch.exp(-0.5 * log_square))


@dataclass(frozen=True)
class StudentTLikelihood(_Measured):
    """``y = mean + scale * t`` with Student's t of df degrees of freedom; see `student_t`."""

    df: float
    scale: float | str
    within: tuple[float, float] | None = None  # bounds of a learned or predicted scale
    name = "student_t"
    scale_name = "scale"

    def __post_init__(self) -> None:
        condition = "0 < df <= 1e6 (more is a Gaussian)"
        check_field(self, "likelihoods.student_t", "df", condition, lambda v: 0 < v <= 1e6)
        self._check_scale()

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        square, log_square = self._standardise(output, y)
        half = (self.df + 1) / 2
        constant = math.lgamma(half) - math.lgamma(self.df / 2) - 0.5 * math.log(self.df * math.pi)
        return _sum_rows(constant - 0.5 * log_square - half * torch.log1p(square / self.df))

    @override
    def variance(self, output: Tensor) -> Tensor:
        factor = self.df / (self.df - 2) if self.df > 2 else math.inf
        return self._split(output)[1].exp() * factor

    @override
    def cdf(self, output: Tensor, value: Tensor) -> Tensor:
        # torch has no incomplete beta function; scipy.stats takes a second to import.
        from scipy.stats import t  # type: ignore[import-untyped]

        mean, log_square = self._split(output)
        error = (value - mean) * torch.exp(-0.5 * log_square)
        share = t.cdf(error.detach().cpu().numpy(), self.df)
        return torch.as_tensor(share, dtype=output.dtype, device=output.device)


@dataclass(frozen=True)
class OwnLikelihood(Likelihood):
    """A user's function of outputs and targets; predictions are averages of the outputs.

    Args:
        function: takes outputs (n, ...) and targets (n, ...), returns the log-likelihood of every
            row, (n,).

    Example:
        >>> absolute = OwnLikelihood(lambda output, y: -(output - y).abs())
        >>> absolute.log_likelihood(torch.zeros(2), torch.tensor([1.0, 2.0]))
        tensor([-1., -2.])
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        what = "a function of outputs (n, ...) and targets (n, ...)"
        check_function("likelihood", "function", self.function, what, 2)

    @override
    def log_likelihood(self, output: Tensor, y: Tensor) -> Tensor:
        logs = self.function(output, y)
        if not isinstance(logs, Tensor) or logs.shape != output.shape[:1]:
            found = tuple(logs.shape) if isinstance(logs, Tensor) else type(logs).__name__
            hint = "; leave out .mean() and .sum(), since the library sums over rows"
            condition = f"one log-likelihood per row, shape ({len(output)},)"
            condition += hint if found == () else ""
            raise needs("likelihood", "function", condition, found)
        return logs

    @override
    def mean(self, output: Tensor) -> Tensor:
        return output


def categorical() -> Categorical:
    """Make the likelihood of class labels under a softmax of the model's outputs.

    Example:
        >>> categorical().log_likelihood(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
        tensor([0.2500, 0.2500])
    """
    return Categorical()


def bernoulli() -> Bernoulli:
    """Make the likelihood of zeros and ones under a sigmoid of the model's outputs.

    Example:
        >>> bernoulli().log_likelihood(torch.zeros(2), torch.tensor([0.0, 1.0])).exp()
        tensor([0.5000, 0.5000])
    """
    return Bernoulli()


def poisson() -> PoissonLikelihood:
    """Make the likelihood of counts whose log-rates are the model's outputs.

    Example:
        >>> poisson().log_likelihood(torch.zeros(2), torch.tensor([0, 2])).exp()
        tensor([0.3679, 0.1839])
    """
    return PoissonLikelihood()


def gaussian(std: float | str, *, within: tuple[float, float] | None = None) -> GaussianLikelihood:
    """Make the likelihood of measurements with Gaussian errors.

    Args:
        std: of the errors. A number: outputs and y have the same shape, (n,) or (n, k). "learned":
            one number for all rows, which becomes a parameter of the model
            (``model = likelihood.wrap(model)``; `Posterior` does this itself). "predicted": the
            network has outputs (n, 2) for y (n,), or (n, 2 k) for y (n, k): the mean, followed by
            the log of the variance.
        within: bounds (low, high) of a learned or predicted std. The log l of the variance becomes
            ``L + softplus(H - softplus(H - l) - L)`` with L and H those of the bounds: nearly l
            between them, flat beyond. Without bounds, a few draws of a network may predict any
            noise far from the data and dominate the predictive variance.

    Example:
        >>> gaussian(std=2.0).log_likelihood(torch.tensor([1.0]), torch.tensor([1.0]))
        tensor([-1.6121])
        >>> output = torch.tensor([[1.0, 4.0]]).log()
        >>> gaussian("predicted").log_likelihood(output, torch.tensor([0.0]))
        tensor([-1.6121])
    """
    return GaussianLikelihood(std, within)


def student_t(
    df: float = 4.0,
    scale: float | str = LEARNED,
    *,
    within: tuple[float, float] | None = None,
) -> StudentTLikelihood:
    """Make the likelihood of measurements with outliers: Student's t errors.

    Args:
        df: degrees of freedom; fewer allow larger outliers.
        scale: of the errors, as the std of `gaussian`: a number, "learned" or "predicted" (as the
            log of its square).
        within: bounds (low, high) of a learned or predicted scale, as in `gaussian`.

    Example:
        >>> likelihood = student_t(df=3.0, scale=1.0)
        >>> likelihood.log_likelihood(torch.tensor([1.0]), torch.tensor([1.0]))
        tensor([-1.0009])
    """
    return StudentTLikelihood(df, scale, within)


def bounded(log_square: Tensor, within: tuple[float, float]) -> Tensor:
    """Return the log of a squared scale within bounds (low, high) of the scale, smoothly.

    Example:
        >>> bounded(torch.tensor([-50.0, 0.0, 50.0]), (0.01, 10.0)).div(2).exp()
        tensor([ 0.0100,  0.9951, 10.0000])
    """
    low, high = (2 * math.log(scale) for scale in within)
    return low + softplus(high - softplus(high - log_square) - low)


LIKELIHOODS: dict[str, Likelihood] = {
    "bernoulli": bernoulli(),
    "categorical": categorical(),
    "gaussian": gaussian(LEARNED),
    "poisson": poisson(),
    "student_t": student_t(),
}
"""Likelihoods by name; their scales are learned."""


def as_likelihood(who: str, value: Any) -> Likelihood:
    """Convert a name, or a function of outputs and targets, to a likelihood.

    Example:
        >>> as_likelihood("predict", "categorical")
        Categorical()
    """
    found = LIKELIHOODS.get(value) if isinstance(value, str) else value
    if isinstance(found, Likelihood):
        return found
    if callable(found) and not isinstance(found, type):
        return OwnLikelihood(found)
    condition = (
        f"one of {sorted(LIKELIHOODS)}, an object such as likelihoods.gaussian(std=...), or a "
        "function of outputs and targets"
    )
    error = ValueError if isinstance(value, str) else TypeError
    raise needs(who, "likelihood", condition, value, error)
