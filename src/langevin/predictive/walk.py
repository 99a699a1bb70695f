"""The one loop over draws and batches: draws outside, so that each is read once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_dense, needs
from langevin.predictive.draws import Draws
from langevin.predictive.rows import Rows, rows_of

__all__ = ["Piece", "walk"]

_QUIET = 1.0  # seconds before a bar is shown


class Piece(NamedTuple):
    """What a few draws say of one batch."""

    batch: int  # its number
    rows: slice  # which rows of all they are
    before: int  # how many draws came before these
    outputs: Tensor  # (draws, rows, ...)
    y: Tensor | None  # the targets of these rows
    chains: list[int]  # the number of the chain that each draw is of


def walk(who: str, source: Draws, rows: Rows, y: Tensor | None = None, *, progress: bool | None = False) -> Iterator[Piece]:
    """Yield the outputs of a few draws on one batch after the other, then of the next few, without gradients."""
    if y is not None:
        if not isinstance(y, Tensor) or y.ndim == 0:
            raise needs(who, "y", "a tensor of targets, one for each row", y, TypeError)
        check_dense(who, "y", y)
    source.check(rows.first)
    done = 0
    from tqdm.auto import tqdm  # it asks for IPython and asyncio

    # tqdm takes disable=None as "only on a terminal".
    disable = None if progress is None else not progress
    with tqdm(total=source.total, desc=who, unit="draw", disable=disable, delay=_QUIET) as bar:
        for few in source.each:
            start = 0
            for batch, inputs in rows:
                with torch.no_grad():
                    outputs = few.outputs(inputs)
                expected, stop = rows_of(inputs), start + outputs.shape[1]
                if expected and outputs.shape[1] not in expected:
                    condition = f"a row of outputs for each of the {expected[0]} rows of a batch"
                    raise needs(who, "model", condition, f"outputs of shape {tuple(outputs.shape[1:])}")
                if y is not None and stop > len(y):
                    raise needs(who, "y", f"a target for each row of x, at least {stop}", f"{len(y)} of them")
                here = slice(start, stop)
                yield Piece(batch, here, done, outputs, None if y is None else y[here], few.chains)
                start = stop
            if y is not None and start != len(y):
                raise needs(who, "y", f"a target for each of the {start} rows of x", f"{len(y)} of them")
            done += len(few.chains)
            bar.update(len(few.chains))
    if not done:
        raise needs(who, "draws", "at least one readable draw", "none")
    if done == len(few.chains):
        rows.check_again()
