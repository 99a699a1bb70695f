"""Checks of the outputs: activations, broadcasting, random numbers, rows that affect each other."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from langevin.nn.batches import evaluation_mode
from langevin.nn.lint.report import Finding, listed
from langevin.nn.lint.setup import Setup, class_axis, relative_difference, tolerance
from langevin.nn.trees import Tree, logits_of, map_tensors, take_rows, tensors

__all__ = ["activations", "broadcasting", "coupled_rows", "random_outputs"]

_CONSTANT = 0.05  # relative size of the gradient of a constant, in rounded arithmetic
_MOST = 16  # rows that are compared by `broadcasting`
_SHAPES = (
    *("View", "Reshape", "Squeeze", "Unsqueeze", "Select", "Slice"),
    *("Transpose", "T", "Permute", "ToCopy", "Clone", "Alias"),
)

# ---- Activations


def activations(setup: Setup, output: Tensor, y: Tensor) -> Finding | None:
    """Find an activation that is applied twice, or is missing."""
    axis = class_axis(output, y)
    again = logits_of(setup.run()[1])  # the graph of the first run was freed
    if again is not None:
        output = again
    if axis is not None and output.shape[axis] > 1:
        return _softmax(setup, output, y, axis)
    if output.shape == y.shape and y.is_floating_point():
        return _sigmoid(setup, output, y)
    return None


def _softmax(setup: Setup, output: Tensor, y: Tensor, axis: int) -> Finding | None:
    classes = output.shape[axis]
    with torch.no_grad():
        flat = torch.full_like(output, -math.log(classes))
        loss, shifted = float(setup.loss_at(flat, y)), float(setup.loss_at(flat + 1, y))
    slope = (loss - shifted) / loss * math.log(classes)  # 0 with a softmax in the loss, 1 without
    if not math.isfinite(slope):
        return None
    values = output.movedim(axis, -1)
    are_probabilities = _are_probabilities(values)
    if abs(slope) < 0.1 and are_probabilities and _sums_are_constant(setup, values):
        largest = math.e / (math.e + classes - 1)
        return Finding(
            "softmax twice",
            f"The outputs are probabilities (each row is >= 0 and sums to 1), and the loss applies "
            f"softmax again. No class can then get a probability above e / (e + {classes - 1}) = "
            f"{largest:.2g}, so the draws are from the posterior of another model.",
            "Return logits from the model: remove its softmax.",
            largest,
        )
    if not abs(slope - 1) < 0.1:
        return None
    excess = float(values.detach().double().logsumexp(-1).abs().max())
    if excess <= tolerance(output):
        return None
    what = "probabilities, not their logs" if are_probabilities else "not log-probabilities"
    return Finding(
        "not log-probabilities",
        f"The loss takes log-probabilities, as nn.NLLLoss does, and the outputs are {what}: the "
        f"log of the sum over classes of exp(output) is up to {excess:.3g}, not 0. exp(-loss) is "
        f"then not a probability.",
        "End the model with log_softmax, or use nn.CrossEntropyLoss with logits.",
        excess,
    )


def _are_probabilities(values: Tensor) -> bool:
    error = float((values.detach().double().sum(-1) - 1).abs().max())
    return bool((values >= 0).all()) and error <= 8 * torch.finfo(values.dtype).eps


def _sums_are_constant(setup: Setup, values: Tensor) -> bool:
    """Return whether sums over classes do not depend on the parameters, while the terms do."""
    first = values[..., 0]
    angle = torch.arange(first.numel(), device=values.device)
    weight = torch.cos(angle).reshape(first.shape).to(values.dtype)
    sizes = []
    for part in (values.sum(-1), first):
        gradient = setup.gradient((weight * part).sum(), keep=True)
        squares = (float(g.double().square().sum()) for g in gradient if g is not None)
        sizes.append(math.sqrt(sum(squares)))
    return sizes[0] <= _CONSTANT * sizes[1]


def _operation(node: Any) -> str:
    return str(node.name()).rstrip("0123456789").removesuffix("Backward").lstrip("_")


def _sigmoid(setup: Setup, output: Tensor, y: Tensor) -> Finding | None:
    node: Any = output.grad_fn
    while node is not None and _operation(node).startswith(_SHAPES):
        node = node.next_functions[0][0]
    if node is None or not node.name().startswith("SigmoidBackward"):
        return None
    values, ones = (0.2, 0.7), torch.ones_like(y[:1])
    with torch.no_grad():
        losses = [float(setup.loss_at(torch.full_like(output[:1], v), ones)) for v in values]
    truths = [float(F.softplus(torch.tensor(-v))) for v in values]
    one, other = losses[0] * truths[1], losses[1] * truths[0]
    if abs(one - other) > 4 * tolerance(output) * abs(one):
        return None
    return Finding(
        "sigmoid twice",
        "The outputs are those of a sigmoid, and the loss applies a sigmoid again. Probabilities "
        "are then between 0.5 and 0.73, so the draws are from the posterior of another model.",
        "Return logits from the model: remove its sigmoid; or use nn.BCELoss.",
        1 / (1 + math.exp(-1)),
    )


# ---- Broadcasting


def broadcasting(setup: Setup, output: Tree, y: Tensor) -> Finding | None:
    """Find a loss that does not depend on which target belongs to which row.

    A mean over rows changes when targets are exchanged between rows. A mean over all pairs of rows
    does not, and it is not the mean of the losses of single rows.
    """
    shape = next((part.shape for part in tensors(output) if _broadcast(part, y)), None)
    if shape is None:
        return None
    rows = list(range(min(setup.size, _MOST)))
    targets = _as_double(y[rows])
    outputs = _outputs_by_row(setup, take_rows(output, rows), len(rows))
    if outputs is None:
        return None
    with torch.no_grad():
        exchanged = targets.roll(1, 0)
        whole, other = (float(setup.loss_at(outputs, part)) for part in (targets, exchanged))
        single = [float(setup.loss_at(take_rows(outputs, [r]), targets[[r]])) for r in rows]
    allowed = tolerance(outputs) * max(map(abs, [whole, *single]))
    if abs(whole - other) > allowed:
        return None
    if min(abs(whole - sum(single)), abs(whole - sum(single) / len(single))) <= 10 * allowed:
        return None
    square = tuple(torch.broadcast_shapes(shape, y.shape))
    return Finding(
        "broadcasting",
        f"The loss compares every output with every target: outputs of shape {tuple(shape)} and "
        f"targets of shape {tuple(y.shape)} broadcast to {square}. Exchanging targets between rows "
        f"does not change the loss, so the draws ignore which of the {setup.size} targets belongs "
        f"to which input.",
        "Give both the same shape first: output.squeeze(-1), or y.unsqueeze(-1).",
        float(setup.size),
    )


def _broadcast(output: Tensor, y: Tensor) -> bool:
    """Return whether outputs and targets broadcast to more elements than either has."""
    if not output.is_floating_point() or not output.ndim:
        return False
    try:
        shape = torch.broadcast_shapes(output.shape, y.shape)
    except RuntimeError:
        return False
    return shape.numel() > max(output.numel(), y.numel())


def _outputs_by_row(setup: Setup, output: Tree, size: int) -> Tree:
    """Return float64 outputs that differ between rows; None if the loss cannot be given any."""
    wave = torch.cos(1 + 2.4 * torch.arange(size, dtype=torch.float64))

    def by_row(tensor: Tensor) -> Tensor:
        return wave.to(tensor.device).reshape(-1, *[1] * (tensor.ndim - 1))

    def scaled(part: Tensor) -> Tensor:
        if not part.is_floating_point() or not part.ndim or len(part) != size:
            return part
        return part.detach().double() * (1 + 0.3 * by_row(part))

    logits = logits_of(output)
    if logits is not None:  # between 0 and 1: valid as a mean, a rate, a logit and a probability
        return (0.5 + 0.3 * by_row(logits)).expand(logits.shape)
    return None if setup.takes_model else map_tensors(output, scaled)


def _as_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


# ---- Modes of layers


def random_outputs(setup: Setup) -> Finding | None:
    """Run the model twice on the same batch."""
    with torch.no_grad():
        one, other = setup.run(), setup.run()
    size = relative_difference(one, other)
    if size <= tolerance(one):
        return None
    layers = _training_layers(setup.model, nn.modules.dropout._DropoutNd)
    what = f"dropout is on ({listed(layers)})" if layers else "a layer draws random numbers"
    return Finding(
        "dropout",
        f"Two calls of the model on the same batch differ by {size:.2g} of the outputs' size: "
        f"{what}. The draws then follow the mean loss over masks, which is biased, and the masks' "
        f"noise raises the temperature.",
        "Call model.eval() before the loop (gradients work in evaluation mode), or set p=0.",
        size,
    )


def coupled_rows(setup: Setup) -> Finding | None:
    """Find outputs of a row that depend on the other rows of its batch.

    A model that sees all data in every batch and couples rows in evaluation mode too, such as one
    of a graph, is the same function in every step: it is correct, and so is its BatchNorm.
    """
    size, allowed = _coupling(setup, but=(_BatchNorm,))  # dropout has its own check
    if size <= allowed or (
        setup.size >= setup.num_data
        and (_needs_all_rows(setup) or _coupling(setup)[0] > allowed**2)
    ):
        return None
    layers = _training_layers(setup.model, _BatchNorm)
    what = "the model mixes rows"
    if layers:
        what = f"BatchNorm is in training mode ({listed(layers, 1)})"
    return Finding(
        "batchnorm",
        f"The outputs of a row change by {size:.2g} of their size with the other rows of its "
        f"batch: {what}. The loss of a batch is then not a mean over data, and U is another "
        f"function in every batch.",
        "Call model.eval() to use fixed running statistics, or use GroupNorm or LayerNorm.",
        size,
    )


def _training_layers(model: nn.Module, kind: type[nn.Module]) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(m, kind) and m.training]


def _needs_all_rows(setup: Setup) -> bool:
    """Return whether the model cannot run on some rows of the batch, as with a stored graph."""
    try:
        with torch.no_grad(), evaluation_mode(setup.model):
            setup.run(take_rows(setup.batch, list(range(setup.size // 2))))
    except Exception:
        return True
    return False


def _coupling(setup: Setup, but: tuple[type[nn.Module], ...] = ()) -> tuple[float, float]:
    """Return how much a half batch's outputs depend on the other half, and the tolerance.

    Independent rows go through the same operations both times: equal to far less than rounding.
    """
    half = setup.size // 2
    if half == 0:
        return 0.0, 0.0
    with torch.no_grad(), evaluation_mode(setup.model, but=but):
        _, whole = setup.run(take_rows(setup.batch, list(range(2 * half))))
        _, again = setup.run(take_rows(setup.batch, [*range(half)] * 2))
    firsts = [
        [tensor[:half] for tensor in tensors(tree) if tensor.ndim and len(tensor) == 2 * half]
        for tree in (whole, again)
    ]
    parameters = list(setup.model.parameters())
    return relative_difference(*firsts), tolerance(whole, *firsts, parameters)
