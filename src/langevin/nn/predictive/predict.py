"""Predictions averaged over draws of any kind, and the log-likelihood of data under each draw."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from langevin.checks import check_bool, check_dense, known_arguments, level_of_caller, needs
from langevin.diagnostics.trust import TrustWarning
from langevin.nn.batches import Batches, lengths_of
from langevin.nn.predictive.averages import Averages, Block, draw_warnings, joined, take_outputs
from langevin.nn.predictive.draws import Draws, DrawsLike, LikelihoodLike, Transform, as_draws
from langevin.nn.predictive.prediction import Prediction, check_levels, quantile
from langevin.nn.trees import Tree
from langevin.targets import Posterior
from langevin.targets.likelihoods import Likelihood

__all__ = ["evaluate", "log_likelihood", "merged", "predict"]

_DELAY = 1.0  # seconds before a progress bar is shown
_ELEMENTS_AT_ONCE = 2**16  # outputs to merge: sums over small batches cost more than a forward pass


@known_arguments("predict")
def predict(
    model: Posterior | nn.Module | None,
    draws: DrawsLike,
    x: Tree,
    *,
    y: Tensor | None = None,
    likelihood: LikelihoodLike = None,
    transform: Transform = None,
    interval: float | Sequence[float] | None = None,
    per_draw: bool = False,
    batch_size: int | None = 256,
    on_error: str = "raise",
    progress: bool | None = None,
) -> Prediction:
    """Average the predictions of draws for new data.

    Each draw is read once and called on one batch after the other, without gradients and in
    evaluation mode. Memory is needed for the result, a few times, and for one batch of one draw (of
    a few draws if they are positions of a small model). Intervals and ``per_draw=True`` keep all
    outputs, draws x rows of them. Models and modules are not changed.

    Args:
        model: a `Posterior`, or an `nn.Module` of the draws' kind; None if the draws are modules.
        draws: the result of `sample` (its healthy chains) or positions (..., dim); a `SampleBank`;
            or modules, such as an ensemble. A list of Samples or of banks counts as one.
        x: new inputs: a tensor, ``model(x)``; a tuple or a list of tensors, ``model(*x)``; or a
            dict, ``model(**x)``. Or a loader: a `DataLoader` or any iterable that yields the same
            batches each time that it is read, once per draw. A batch is a tensor, a dict, or a
            tuple or list whose first entry is the inputs; other entries (labels) are ignored.
        y: targets of all rows, as the likelihood takes them, for `log_density`.
        likelihood: as in `Posterior`, which has its own: a name, an object or a function of outputs
            and targets.
        transform: in place of a likelihood, a function of the model's output for one draw and one
            batch, of any type, as in ``lambda out: out.logits.softmax(-1)``. Its result, a tensor
            (n, ...), is averaged.
        interval: a level such as .9, or several: central credible intervals of y itself, from the
            mixture of the draws' distributions.
        per_draw: keep the outputs of each draw.
        batch_size: rows at a time; changes the result by rounding only. None calls the model on all
            of `x`, or on each whole batch of a loader.
        on_error: "raise" or "skip", for damaged draws of a bank.
        progress: show a progress bar; None shows one on a terminal after a second.

    Returns:
        A `Prediction`. Its `warnings` are also emitted as `TrustWarning`.

    Example:
        >>> import langevin as lv
        >>> prior = lv.priors.gaussian(std=1.0)
        >>> posterior = lv.Posterior(nn.Linear(4, 3), "categorical", prior=prior, num_data=100)
        >>> found = lv.predict(posterior, posterior.init(chains=5), torch.ones(10, 4))
        >>> found.probabilities.shape, found.labels.shape, bool((found.epistemic > 0).all())
        (torch.Size([10, 3]), torch.Size([10]), True)
        >>> ensemble = [nn.Linear(4, 1) for _ in range(5)]
        >>> gaussian = lv.likelihoods.gaussian(std=0.1)
        >>> found = lv.predict(None, ensemble, torch.ones(10, 4), likelihood=gaussian, interval=0.9)
        >>> bool((found.lower < found.mean).all()), found.std.shape
        (True, torch.Size([10, 1]))
    """
    check_bool("predict", "per_draw", per_draw)
    if y is not None and transform is not None:
        raise needs("predict", "y", "a likelihood, in place of transform=", y)
    source = as_draws("predict", model, draws, likelihood, transform, on_error)
    family = source.likelihood
    levels = check_levels("predict", interval, family)
    batches: list[Averages] = []
    for block in merged(
        evaluate("predict", source, Batches("predict", x, batch_size), y, progress)
    ):
        if block.batch == len(batches):
            batches.append(Averages(family, keep=per_draw or bool(levels)))
        batches[block.batch].add(block)
    count, mean = batches[0].count, joined([batch.mean for batch in batches])
    spread = joined([batch.spread for batch in batches])
    assert mean is not None
    assert spread is not None
    noise = joined([batch.noise for batch in batches])
    epistemic = spread / count
    if family.predicts == "classes" and noise is not None:
        total = family.entropy(mean)
        epistemic = epistemic if total is None else (total - noise).clamp(min=0.0)
    lower: Tensor | None = None
    upper: Tensor | None = None
    if levels:
        lower, upper = (
            _quantiles(family, batches, [(1 + sign * level) / 2 for level in levels]).to(mean)
            for sign in (-1, 1)
        )
        if not isinstance(interval, Sequence):
            lower, upper = lower[0], upper[0]
    jumps = sum(batch.jumps for batch in batches)
    reasons = draw_warnings(mean, float(spread.double().sum()), jumps, count)
    for reason in reasons:
        warnings.warn(f"predict: {reason}", TrustWarning, stacklevel=level_of_caller())
    return Prediction(
        likelihood=family,
        num_draws=count,
        mean=mean,
        aleatoric=noise,
        epistemic=epistemic,
        levels=levels,
        lower=lower,
        upper=upper,
        outputs=take_outputs(batches) if per_draw else None,
        y=y,
        log_density=joined([batch.log_density for batch in batches]),
        warnings=reasons,
    )


def _quantiles(
    likelihood: Likelihood, batches: list[Averages], probabilities: list[float]
) -> Tensor:
    """Return quantiles of y, (probabilities, n, ...), batch by batch."""
    rows = []
    for batch in batches:
        outputs = torch.cat(batch.kept)
        rows.append(
            torch.stack([quantile("predict", likelihood, outputs, p) for p in probabilities])
        )
    return torch.cat(rows, 1)


@known_arguments("log_likelihood")
def log_likelihood(
    model: Posterior | nn.Module | None,
    draws: DrawsLike,
    x: Tree,
    y: Tensor,
    *,
    likelihood: LikelihoodLike = None,
    batch_size: int | None = 256,
) -> Tensor:
    """Return the log-likelihood of every row under every draw.

    The arguments are those of `predict`, whose ``y=`` averages the likelihoods over draws in
    constant memory.

    Returns:
        A tensor (..., n) for positions (..., dim), (draws, n) for modules.

    Example:
        >>> ensemble = [nn.Linear(4, 3) for _ in range(5)]
        >>> x, y = torch.ones(10, 4), torch.zeros(10, dtype=torch.int64)
        >>> log_likelihood(None, ensemble, x, y, likelihood="categorical").shape
        torch.Size([5, 10])
    """
    who = "log_likelihood"
    source = as_draws(who, model, draws, likelihood)
    family = source.likelihood
    columns: list[list[Tensor]] = []
    for block in evaluate(who, source, Batches(who, x, batch_size), y):
        if block.y is None:
            raise needs(who, "y", "a tensor of targets", y, TypeError)
        if block.batch == len(columns):
            family.check(block.outputs[0], block.y)
            columns.append([])
        columns[block.batch] += [
            family.log_likelihood(outputs, block.y) for outputs in block.outputs
        ]
    found = torch.cat([torch.stack(column) for column in columns], -1)
    return found if source.shape is None else found.reshape(*source.shape, -1)


def evaluate(
    who: str,
    source: Draws,
    batches: Batches,
    y: Tensor | None = None,
    progress: bool | None = False,
) -> Iterator[Block]:
    """Yield the outputs of a few draws batch by batch, then those of the next few draws."""
    if y is not None:
        if not isinstance(y, Tensor) or y.ndim == 0:
            raise needs(who, "y", "a tensor of targets, one for each row", y, TypeError)
        check_dense(who, "y", y)
    source.check(batches.first)
    done = 0
    from tqdm.auto import tqdm  # imports IPython and asyncio

    # tqdm takes disable=None as "only on a terminal".
    disable = None if progress is None else not progress
    with tqdm(total=source.total, desc=who, unit="draw", disable=disable, delay=_DELAY) as bar:
        for chains, function in source.groups:
            start = 0
            for batch, inputs in batches:
                with torch.no_grad():
                    outputs = function(inputs)
                expected, stop = lengths_of(inputs), start + outputs.shape[1]
                if expected and outputs.shape[1] not in expected:
                    is_model = source.argument == "model"
                    what = "a row of outputs" if is_model else "a row per row of inputs"
                    condition = f"{what}, for each of the {expected[0]} rows of a batch"
                    found = f"outputs of shape {tuple(outputs.shape[1:])}"
                    raise needs(who, source.argument, condition, found)
                if y is not None and stop > len(y):
                    condition = f"a target for each row of x, at least {stop}"
                    raise needs(who, "y", condition, f"{len(y)} of them")
                rows = slice(start, stop)
                yield Block(batch, rows, done, outputs, None if y is None else y[rows], chains)
                start = stop
            if y is not None and start != len(y):
                condition = f"a target for each of the {start} rows of x"
                raise needs(who, "y", condition, f"{len(y)} of them")
            done += len(chains)
            bar.update(len(chains))
    if not done:
        raise needs(who, "draws", "at least one readable draw", "none")
    if done == len(chains):
        batches.check_again()


def merged(blocks: Iterator[Block]) -> Iterator[Block]:
    """Merge small batches of the same draws, so that sums run over fewer, larger tensors.

    All draws have the same merged batches, though the last ones may come fewer at a time.
    """
    held: list[Block] = []
    size, number, most = 0, 0, 0
    for block in blocks:
        is_next = bool(held) and block.before != held[0].before
        most = most or len(block.outputs)
        own = block.outputs[0].numel() * most
        if held and (is_next or size + own > _ELEMENTS_AT_ONCE):
            yield _merge(held, number)
            held, size, number = [], 0, 0 if is_next else number + 1
        held.append(block)
        size += own
    if held:
        yield _merge(held, number)


def _merge(blocks: list[Block], number: int) -> Block:
    first = blocks[0]
    if len(blocks) == 1:
        return first._replace(batch=number)
    if len(shapes := {tuple(block.outputs.shape[2:]) for block in blocks}) > 1:
        raise needs("predict", "model", "rows of one shape", sorted(shapes))
    return first._replace(
        batch=number,
        rows=slice(first.rows.start, blocks[-1].rows.stop),
        outputs=torch.cat([block.outputs for block in blocks], 1),
        y=None
        if first.y is None
        else torch.cat([block.y for block in blocks if block.y is not None]),
    )
