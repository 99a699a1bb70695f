"""What the tables report of a trained network: accuracy in percent, and the share of weights that are not zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from langevin.checks import check_number, needs
from langevin_paper.images import Inputs

__all__ = ["accuracy", "predict", "sparsity_ratio"]

_ROWS = 500  # at a time: a wide ResNet needs 260 KB per row and layer


@torch.no_grad()
def predict(model: nn.Module, inputs: Inputs, images: Tensor) -> Tensor:
    """Return class probabilities (n, classes) in evaluation mode; the model is left in that mode."""
    model.eval()
    return torch.cat([model(inputs.scale(rows)).softmax(-1) for rows in images.split(_ROWS)])


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Return the percentage of rows whose likeliest class is the label.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
        50.0
    """
    return 100 * int((probabilities.argmax(-1) == labels).sum()) / len(labels)


def sparsity_ratio(model: nn.Module, threshold: float) -> float:
    """Return the percentage of connection weights with ``|theta| >= threshold``; biases are no connections and do not count.

    Example:
        >>> layer = nn.Linear(2, 2, bias=False).requires_grad_(False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.5, -0.01], [0.0, -0.3]]))
        >>> sparsity_ratio(layer, 0.02)
        50.0
    """
    check_number("sparsity_ratio", "threshold", threshold, ">= 0", lambda v: v >= 0)
    weights = [parameter.detach() for parameter in model.parameters() if parameter.ndim >= 2]
    if not weights:
        raise needs("sparsity_ratio", "model", "weights, that is parameters of two axes or more", type(model).__name__)
    kept = sum(int((weight.abs() >= threshold).sum()) for weight in weights)
    return 100 * kept / sum(weight.numel() for weight in weights)
