"""A network and a training loop of the kind that everybody has: parts 4 and 6 run it with two optimizers."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from langevin.random import Purpose, normal, stream, white_rows

__all__ = ["loop", "network", "rows_of"]

CHUNK = 256  # steps whose rows are drawn together


def network(sizes: tuple[int, ...], activation: type[nn.Module], seed: int = 0) -> nn.Sequential:
    """Return a network whose weights start as normals over the root of the inputs, by address: nothing else is random here."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layer = skip_init(nn.Linear, inputs, outputs)
        with torch.no_grad():
            layer.weight.copy_(
                normal(seed, stream(Purpose.INIT), number, inputs * outputs).view(outputs, inputs) / math.sqrt(inputs)
            )
            layer.bias.zero_()
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def rows_of(num_data: int, batch_size: int, steps: int, seed: int = 0) -> Iterator[Tensor]:
    """Yield the rows of each step, (batch_size,), drawn anew each time."""
    for begin in range(0, steps, CHUNK):
        yield from white_rows(seed, stream(Purpose.ROWS), range(begin, min(begin + CHUNK, steps)), batch_size, num_data)


def loop(
    model: nn.Module,
    loss_fn: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    rows: Iterable[Tensor],
    keep: range,
) -> list[nn.Module]:
    """Train; return copies of the model after the steps in `keep`."""
    kept = []
    for step, batch in enumerate(rows):
        optimizer.zero_grad()
        loss_fn(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if step in keep:
            kept.append(copy.deepcopy(model))
    return kept
