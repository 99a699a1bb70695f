"""`lint`: run all checks, and restore everything that they may change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import getstate, setstate

import torch
from numpy.random import get_state, set_state
from torch import nn

from langevin.checks import check_bool, check_function, known_arguments, needs
from langevin.nn.batches import evaluation_mode
from langevin.nn.lint import data as data_checks
from langevin.nn.lint import labels, loss, outputs, training
from langevin.nn.lint.report import Finding, Lint
from langevin.nn.lint.setup import Setup
from langevin.nn.trees import Tree, logits_of, num_rows
from langevin.optim import LangevinOptimizer
from langevin.optim.minibatch_noise import MinibatchNoise
from langevin.optim.wrapped import unwrap_optimizer

__all__ = ["lint", "preserve_state"]


@known_arguments("lint")
def lint(
    model: nn.Module,
    loss_fn: Callable[..., Tree] | None,
    optimizer: LangevinOptimizer,
    batch: Tree,
    *,
    data: object = None,
    step: Callable[..., Tree] | None = None,
    takes_model: bool | None = None,
    verbose: bool = True,
) -> Lint:
    """Find mistakes of a training loop that raise no error but change the posterior.

    docs/lint.md lists them. Nothing is changed: no parameter, buffer, gradient, mode, state of the
    optimizer or of a generator. Call it once before the loop, with the model in the mode in which
    it will be sampled.

    Args:
        model: the module to sample.
        loss_fn: ``loss_fn(model(x), y)``, a module such as `nn.CrossEntropyLoss()` or any function;
            ``loss_fn(model, batch)`` if the batch is a dict, or with `takes_model`; None for
            ``model(**batch).loss``, as in Hugging Face models.
        optimizer: one of `langevin.optim`, also inside the wrappers of accelerate or Lightning.
        batch: (x, y), or a dict; of the size that the loop uses.
        data: the `DataLoader` or data set of the batches. Compares num_data with it, and reads the
            same rows twice, which counts as use of the data set if that is counted.
        step: a function that takes one training step, ``step(batch)``, with this model and this
            optimizer: zero_grad, backward, clipping, optimizer.step(). It is run twice, with an
            `optimizer.step` that only records the gradients. Other changes that it makes (a
            learning-rate schedule, a GradScaler) remain.
        takes_model: whether loss_fn takes (model, batch); None means for dicts.
        verbose: whether to print findings.

    Returns:
        The findings, in a `Lint`.

    Example:
        >>> import langevin as lv, torch
        >>> model, prior = nn.Linear(3, 2), lv.priors.gaussian(std=1.0)
        >>> optimizer = lv.optim.SGLD(model.parameters(), lr=0.1, num_data=100, prior=prior)
        >>> batch = torch.ones(8, 3), torch.zeros(8, dtype=torch.int64)
        >>> lv.lint(model, nn.CrossEntropyLoss(), optimizer, batch).is_clean
        True
        >>> loss_fn = nn.CrossEntropyLoss(reduction="sum")
        >>> lv.lint(model, loss_fn, optimizer, batch, verbose=False).names
        ['sum loss']
    """
    optimizer = unwrap_optimizer(optimizer)
    setup = _checked(model, loss_fn, optimizer, batch, takes_model)
    if step is not None:
        check_function("lint", "step", step, "None or a function that takes one training step")
    check_bool("lint", "verbose", verbose)
    report = _Report()
    with preserve_state(setup, with_parameters=step is not None):
        report.add(*data_checks.membership(setup))
        value, output = setup.run()
        report.add(data_checks.finite_gradients(setup, value))
        report.add(data_checks.flat_prior(setup))
        if "not finite" not in report.found:
            with evaluation_mode(*setup.modules):
                _check_loss(report, setup, output, data)
            if step is not None and setup.sampled:
                report.add(*training.compare_gradients(setup, step))
            # Last, since the step may have called model.train():
            report.run("dropout", outputs.random_outputs, setup)
            report.run("BatchNorm", outputs.coupled_rows, setup)
        if data is not None:
            report.run("the sampler", data_checks.weighted_sampler, data)
            report.run("augmentation", data_checks.augmentation, data)
    result = report.result()
    if verbose and (result.findings or result.notes):
        print(result)
    return result


class _Report:
    """Findings by name; the first check that finds a mistake reports it."""

    def __init__(self) -> None:
        self.found: dict[str, Finding] = {}
        self.notes: dict[str, Finding] = {}
        self.skipped: list[str] = []

    def add(self, *findings: Finding | None) -> None:
        for finding in findings:
            if finding is not None:
                kind = self.notes if finding.is_note else self.found
                kind.setdefault(finding.name, finding)

    def run(self, what: str, check: Callable[..., Finding | None], *args: object) -> None:
        """Run a check that calls the user's code in ways that it may not expect."""
        try:
            self.add(check(*args))
        except Exception as error:
            self.skipped.append(f"{what}: {type(error).__name__}: {error}".split("\n")[0])

    def result(self) -> Lint:
        return Lint(tuple(self.found.values()), tuple(self.skipped), tuple(self.notes.values()))


def _check_loss(report: _Report, setup: Setup, output: Tree, data: object) -> None:
    logits, y, has_loss = logits_of(output), setup.labels(), setup.loss_fn is not None
    report.run("sum or mean", loss.sum_loss, setup)
    if has_loss:
        report.run("penalty", loss.penalty, setup)
    if "penalty" in report.found:
        report.skipped.append("the distribution of labels: a penalty hides it")
    elif y is not None and has_loss:
        report.run("shapes", outputs.broadcasting, setup, output, y)
        if logits is not None and "broadcasting" not in report.found:
            report.run("squared error", loss.squared_error, setup, logits, y)
            if "squared error" not in report.found:
                is_sum, what = "sum loss" in report.found, "the distribution of labels"
                report.run(what, labels.label_distribution, setup, logits, y, is_sum)
                report.run("activations", outputs.activations, setup, logits, y)
                report.run("residuals", loss.residual_loss, setup, logits, y)
    report.run("num_data", data_checks.count_data, setup, logits, y, data)


def _checked(
    model: object,
    loss_fn: Callable[..., Tree] | None,
    optimizer: object,
    batch: Tree,
    takes_model: bool | None,
) -> Setup:
    if not isinstance(model, nn.Module):
        raise needs("lint", "model", "a torch.nn.Module", model, TypeError)
    if not isinstance(optimizer, LangevinOptimizer):
        raise needs("lint", "optimizer", "an optimizer of langevin.optim", optimizer, TypeError)
    is_dict, kind = isinstance(batch, Mapping), type(batch).__name__
    if loss_fn is not None:
        what = "a function of (model(x), y) or (model, batch), or None"
        check_function("lint", "loss_fn", loss_fn, what, count=2)
    if takes_model is not None:
        check_bool("lint", "takes_model", takes_model)
    if num_rows(batch) is None:
        what = "tensors of at least one axis: (x, y), or a dict"
        raise needs("lint", "batch", what, kind, TypeError)
    if num_rows(batch) == 0:
        raise needs("lint", "batch", "at least one row", 0)
    if loss_fn is None and not is_dict:
        what = "a function, since the batch is not a dict for model(**batch).loss"
        raise needs("lint", "loss_fn", what, None, TypeError)
    takes_model = is_dict if takes_model is None else takes_model or loss_fn is None
    if not takes_model and (not isinstance(batch, Sequence) or len(batch) != 2):
        what = "a pair (x, y); for other batches use loss_fn(model, batch) and takes_model=True"
        raise needs("lint", "batch", what, kind, TypeError)
    return Setup(model, loss_fn, optimizer, batch, takes_model)


@contextlib.contextmanager
def preserve_state(setup: Setup, *, with_parameters: bool) -> Iterator[None]:
    """Restore everything that running the model, or a training step that does not move, changes.

    That is: modes, buffers, gradients, the optimizer's settings and gradient records, and random
    states.

    Args:
        setup: the user's model, loss and optimizer.
        with_parameters: whether to copy and restore the values of parameters too.
    """
    optimizer = setup.optimizer
    modules = [module for root in setup.modules for module in root.modules()]
    modes = [(module, module.training) for module in modules]
    buffers = [(module, *item) for module in modules for item in module._buffers.items()]
    parameters = list(dict.fromkeys((*setup.model.parameters(), *setup.parameters)))
    gradients = [parameter.grad for parameter in parameters]
    tensors = [tensor for *_, tensor in buffers if tensor is not None]
    tensors += parameters if with_parameters else []
    copies = [(tensor, tensor.detach().clone()) for tensor in tensors]
    groups = [dict(group) for group in optimizer.param_groups]
    noise, optimizer._noise = optimizer._noise, MinibatchNoise()
    python_state, numpy_state = getstate(), get_state()  # noqa: NPY002 (saved, not drawn from)
    devices = sorted({p.device.index or 0 for p in parameters if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices), torch.enable_grad():
            yield
    finally:
        setstate(python_state)
        set_state(numpy_state)  # noqa: NPY002
        optimizer._noise = noise
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.update(saved)
        for module, training_mode in modes:
            module.training = training_mode
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        with torch.no_grad():
            for tensor, value in copies:
                tensor.copy_(value)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
