"""Predictions averaged over draws of any kind, and the log-likelihood of data under each draw."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from langevin.checks import check_bool, needs
from langevin.predictive.draws import as_draws
from langevin.predictive.intervals import check_levels, quantile
from langevin.predictive.prediction import Prediction
from langevin.predictive.rows import Rows
from langevin.predictive.running import Running
from langevin.predictive.sameness import warnings_of
from langevin.predictive.walk import walk
from langevin.targets import Posterior
from langevin.targets.likelihoods import Likelihood
from langevin.trust import TrustWarning

__all__ = ["log_likelihood", "predict"]


def predict(
    model: Posterior | nn.Module | None,
    draws: Any,
    x: Any,
    *,
    y: Tensor | None = None,
    likelihood: str | Likelihood | Callable[..., Tensor] | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
    interval: float | Sequence[float] | None = None,
    per_draw: bool = False,
    batch_size: int | None = 256,
    on_error: str = "raise",
    progress: bool | None = None,
) -> Prediction:
    """Average over draws what they say of new data.

    Each draw is read once and called on one batch after the other, without gradients and in evaluation mode. Memory is taken for
    the result, a few times, and for one batch of one draw (of a few draws where they are positions of a small model). Intervals
    and ``per_draw=True`` keep all outputs, draws x rows of them. Models and modules are not changed.

    Args:
        model: a `Posterior`, or an `nn.Module` of the draws' kind; None where the draws are modules.
        draws: the result of `sample` (its healthy chains) or positions (..., dim); a `SampleBank`; or modules, such as an
            ensemble. A list of Samples or of banks counts as one.
        x: new inputs: a tensor, ``model(x)``; a tuple or a list of tensors, ``model(*x)``; or a dict, ``model(**x)``. Or a loader:
            a `DataLoader` or anything else that gives the same batches each time that it is read, once per draw. A batch is a
            tensor, a dict, or a tuple or list whose first entry is the inputs and whose other entries, labels, are not looked at.
        y: targets of all rows, as the likelihood takes them, whose `log_density` is wanted.
        likelihood: as in `Posterior`, which knows its own: a name, an object or a function of outputs and targets.
        transform: in place of a likelihood, a function of one draw's outputs (n, ...) that is averaged.
        interval: a level such as .9, or several: central credible intervals of y itself, from the mixture of all draws' laws.
        per_draw: keep the outputs of each draw.
        batch_size: rows at a time; it does not change the result beyond rounding. None calls the model on all of `x`, or on each
            whole batch of a loader.
        on_error: "raise" or "skip", for damaged draws of a bank.
        progress: a bar; None shows one on a terminal when it takes more than a second.

    Returns:
        A `Prediction`; what speaks against trusting it is warned of (`TrustWarning`), and is in its `warnings`.

    Example:
        >>> import langevin as lv
        >>> posterior = lv.Posterior(nn.Linear(4, 3), "categorical", prior=lv.priors.gaussian(std=1.0), num_data=100)
        >>> found = lv.predict(posterior, posterior.init(chains=5), torch.ones(10, 4))
        >>> found.probabilities.shape, found.labels.shape, bool((found.epistemic > 0).all())
        (torch.Size([10, 3]), torch.Size([10]), True)
        >>> ensemble = [nn.Linear(4, 1) for _ in range(5)]
        >>> found = lv.predict(None, ensemble, torch.ones(10, 4), likelihood=lv.likelihoods.gaussian(std=0.1), interval=0.9)
        >>> bool((found.lower < found.mean).all()), found.std.shape
        (True, torch.Size([10, 1]))
    """
    check_bool("predict", "per_draw", per_draw)
    source = as_draws("predict", model, draws, likelihood, transform, on_error)
    levels = check_levels("predict", interval, source.likelihood)
    running = Running(source.likelihood, keep=per_draw or bool(levels))
    for piece in walk("predict", source, Rows("predict", x, batch_size), y, progress=progress):
        running.add(piece)
    mean, spread, noise = running.mean.all(), running.spread.all(), running.noise.all() if running.noise else None
    total = source.likelihood.entropy(mean) if source.likelihood.predicts == "classes" else None
    epistemic = spread / running.count if total is None or noise is None else (total - noise).clamp(min=0.0)
    bounds: list[Tensor | None] = [None, None]
    if levels:
        ends = [_quantiles(source.likelihood, running, [(1 + sign * level) / 2 for level in levels]) for sign in (-1, 1)]
        bounds = [end if isinstance(interval, Sequence) else end[0] for end in ends]
    sentences = warnings_of(mean, float(spread.double().sum()), running.jumps, running.count)
    for sentence in sentences:
        warnings.warn(f"predict: {sentence}", TrustWarning, stacklevel=2)
    return Prediction(
        likelihood=source.likelihood,
        num_draws=running.count,
        mean=mean,
        aleatoric=noise,
        epistemic=epistemic,
        levels=levels,
        lower=bounds[0],
        upper=bounds[1],
        outputs=running.take_outputs() if per_draw else None,
        y=y,
        log_density=running.log_density.all() if running.log_density else None,
        warnings=sentences,
    )


def log_likelihood(
    model: Posterior | nn.Module | None,
    draws: Any,
    x: Any,
    y: Tensor,
    *,
    likelihood: str | Likelihood | Callable[..., Tensor] | None = None,
    batch_size: int | None = 256,
) -> Tensor:
    """Return the log-likelihood of every row under every draw: (..., n) for positions (..., dim), (draws, n) for modules.

    The arguments are those of `predict`; its ``y=`` averages the likelihoods over draws in flat memory.

    Example:
        >>> ensemble = [nn.Linear(4, 3) for _ in range(5)]
        >>> x, y = torch.ones(10, 4), torch.zeros(10, dtype=torch.int64)
        >>> log_likelihood(None, ensemble, x, y, likelihood="categorical").shape
        torch.Size([5, 10])
    """
    source = as_draws("log_likelihood", model, draws, likelihood)
    rows, law = Rows("log_likelihood", x, batch_size), source.likelihood
    columns: list[list[Tensor]] = []
    for piece in walk("log_likelihood", source, rows, y):
        if piece.y is None:
            raise needs("log_likelihood", "y", "a tensor of targets", y, TypeError)
        if piece.batch == len(columns):
            law.check(piece.outputs[0], piece.y)
            columns.append([])
        columns[piece.batch] += [law.log_likelihood(outputs, piece.y) for outputs in piece.outputs]
    found = torch.cat([torch.stack(column) for column in columns], -1)
    return found if source.shape is None else found.reshape(*source.shape, -1)


def _quantiles(likelihood: Likelihood, running: Running, probabilities: list[float]) -> Tensor:
    """Return quantiles of y, (probabilities, n, ...), batch by batch."""
    rows = []
    for batch in running.kept:
        outputs = torch.cat(batch)
        rows.append(torch.stack([quantile("predict", likelihood, outputs, probability) for probability in probabilities]))
    return torch.cat(rows, 1).to(running.mean.all())
