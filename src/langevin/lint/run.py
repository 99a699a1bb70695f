"""`lint`: all checks, in the order in which one explains the next, on a model that is left as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from langevin.checks import check_bool, check_function, needs
from langevin.lint import data as data_checks
from langevin.lint import labels, loss, modes, parameters, training
from langevin.lint.report import Finding, Lint
from langevin.lint.rows import num_rows
from langevin.lint.setup import Setup, logits_of
from langevin.lint.untouched import steady, untouched
from langevin.optim import LangevinOptimizer

__all__ = ["lint"]


def lint(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    optimizer: LangevinOptimizer,
    batch: Any,
    *,
    data: Any = None,
    step: Callable[..., Any] | None = None,
    takes_model: bool | None = None,
    verbose: bool = True,
) -> Lint:
    """Look for mistakes of a training loop that no error shows but that change what is sampled; docs/lint.md lists them.

    Nothing is changed: no parameter, buffer, gradient, mode, state of the optimizer or of a generator. Call it once before the
    loop, with the model in the mode in which it will be sampled.

    Args:
        model: the module to sample.
        loss_fn: ``loss_fn(model(x), y)``, a module such as `nn.CrossEntropyLoss()` or any function; ``loss_fn(model, batch)`` where
            the batch is a dict, or with `takes_model`; None for ``model(**batch).loss``, as models of Hugging Face have it.
        optimizer: one of `langevin.optim`.
        batch: (x, y), or a dict; of the size that the loop uses.
        data: the `DataLoader` or data set that batches come from: then num_data is compared with it, and the same rows are asked
            for twice. This counts as use of the data set where that counts.
        step: a function that takes one training step, ``step(batch)``, with this model and this optimizer: zero_grad, backward,
            clipping, optimizer.step(). It is run twice, with an `optimizer.step` that only takes down the gradients. What else it
            changes (a learning-rate schedule, a GradScaler) stays changed.
        takes_model: whether loss_fn takes (model, batch); None says so for dicts.
        verbose: whether findings are printed; where there are none, nothing is.

    Returns:
        The findings, in a `Lint`.

    Example:
        >>> import langevin as lv, torch
        >>> model = nn.Linear(3, 2)
        >>> optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=100, prior=lv.priors.gaussian(std=1.0))
        >>> batch = torch.ones(8, 3), torch.zeros(8, dtype=torch.int64)
        >>> lv.lint(model, nn.CrossEntropyLoss(), optimizer, batch).is_clean
        True
        >>> lv.lint(model, nn.CrossEntropyLoss(reduction="sum"), optimizer, batch, verbose=False).names
        ['sum loss']
    """
    setup = _checked(model, loss_fn, optimizer, batch, takes_model)
    if step is not None:
        check_function("lint", "step", step, "None or a function that takes one training step")
    check_bool("lint", "verbose", verbose)
    looks = _Looks()
    with untouched(model, loss_fn, optimizer, with_parameters=step is not None):
        groups = optimizer.param_groups
        named = _wanting_gradients(setup, groups)
        looks.add(parameters.membership(model, loss_fn, groups))
        value, output = setup.run()
        looks.add(parameters.gradients(value.detach(), list(named.values()), setup.gradient(value, list(named))))
        looks.add(parameters.flat_prior(model, groups))
        if "not finite" not in looks.found:
            with steady(model, loss_fn):
                _look_at_loss(looks, setup, output, named, groups, data)
            if step is not None and named:
                looks.add(training.compare(setup, optimizer, step, list(named)))
            # Now, since the step may have called model.train():
            looks.at("dropout", lambda: modes.random_outputs(setup))
            looks.at("BatchNorm", lambda: modes.coupled_rows(setup))
        if data is not None:
            looks.at("augmentation", lambda: data_checks.augmentation(data))
    result = Lint(tuple(looks.found.values()), tuple(looks.skipped))
    if verbose and not result.is_clean:
        print(result)
    return result


class _Looks:
    """What was found so far, by name: the first look at a mistake says it."""

    def __init__(self) -> None:
        self.found: dict[str, Finding] = {}
        self.skipped: list[str] = []

    def add(self, findings: list[Finding]) -> None:
        for finding in findings:
            self.found.setdefault(finding.name, finding)

    def at(self, what: str, check: Callable[[], list[Finding]]) -> None:
        """Run a check that calls the user's code in ways that it may not have foreseen."""
        try:
            self.add(check())
        except Exception as error:
            self.skipped.append(f"{what}: {type(error).__name__}: {error}".split("\n")[0])


def _look_at_loss(
    looks: _Looks, setup: Setup, output: Any, named: dict[Tensor, str], groups: list[dict[str, Any]], data: Any
) -> None:
    num_data, logits, y = groups[0]["num_data"], logits_of(output), setup.labels()
    looks.at("sum or mean", lambda: loss.sum_loss(setup, num_data))
    if setup.loss_fn is not None:
        looks.at("penalty", lambda: loss.penalty(setup, list(named.values()), list(named), num_data))
    if "penalty" in looks.found:
        looks.skipped.append("the law of labels: a penalty hides it")
    elif logits is not None and y is not None and setup.loss_fn is not None:
        looks.at("squared error", lambda: loss.squared_error(setup, logits, y))
        if "squared error" not in looks.found:
            looks.at("the law of labels", lambda: labels.label_law(setup, logits, y, "sum loss" in looks.found))
    looks.at("num_data", lambda: data_checks.count_data(setup, logits, y, groups, data))


def _wanting_gradients(setup: Setup, groups: list[dict[str, Any]]) -> dict[Tensor, str]:
    """Return the names of the optimizer's parameters that want gradients."""
    owners = [root for root in (setup.loss_fn, setup.model) if isinstance(root, nn.Module)]
    names = {parameter: name for root in owners for name, parameter in root.named_parameters()}
    ours = (parameter for group in groups for parameter in group["params"] if parameter.requires_grad)
    return {parameter: names.get(parameter, f"a parameter of shape {tuple(parameter.shape)}") for parameter in ours}


def _checked(model: Any, loss_fn: Any, optimizer: Any, batch: Any, takes_model: bool | None) -> Setup:
    if not isinstance(model, nn.Module):
        raise needs("lint", "model", "a torch.nn.Module", model, TypeError)
    if not isinstance(optimizer, LangevinOptimizer):
        raise needs("lint", "optimizer", "an optimizer of langevin.optim", optimizer, TypeError)
    if loss_fn is not None:
        check_function("lint", "loss_fn", loss_fn, "a function of (model(x), y) or (model, batch), or None", count=2)
    if takes_model is not None:
        check_bool("lint", "takes_model", takes_model)
    if num_rows(batch) is None:
        raise needs("lint", "batch", "tensors of at least one axis: (x, y), or a dict", type(batch).__name__, TypeError)
    if num_rows(batch) == 0:
        raise needs("lint", "batch", "at least one row", 0)
    if loss_fn is None and not isinstance(batch, Mapping):
        raise needs("lint", "loss_fn", "a function, since the batch is no dict for model(**batch).loss", None, TypeError)
    takes_model = isinstance(batch, Mapping) if takes_model is None else takes_model or loss_fn is None
    if not takes_model and (not isinstance(batch, Sequence) or len(batch) != 2):
        condition = "a pair (x, y); for other batches let loss_fn take (model, batch), with takes_model=True"
        raise needs("lint", "batch", condition, type(batch).__name__, TypeError)
    return Setup(model, loss_fn, batch, takes_model)
