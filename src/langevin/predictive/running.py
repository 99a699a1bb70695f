"""What the outputs of draws add up to, a few draws and one batch of rows at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.moments import merge
from langevin.predictive.walk import Piece
from langevin.targets.likelihoods import Likelihood

__all__ = ["Running"]


class Running:
    """Averages over draws of what they say of all rows, in float32 or wider.

    Args:
        likelihood: of y given outputs.
        keep: whether all outputs are kept.
    """

    def __init__(self, likelihood: Likelihood, keep: bool) -> None:
        """See the class."""
        self._likelihood, self._keep = likelihood, keep
        self.count = 0  # draws
        self.mean = _Column()  # of what one draw expects of y, (n, ...)
        self.spread = _Column()  # sum of squared deviations from it, (n, ...)
        self.noise = _Column()  # mean of the entropies (n,), or of the variances (n, ...); empty where they are not known
        self.log_density = _Column()  # log of the average density of y, (n,); empty where there is no y
        self.jumps = 0.0  # sum over rows and draws of the squared difference to the draw before
        self.kept: list[list[Tensor]] = []  # of each batch, outputs (draws, rows, ...)
        self._last = _Column()  # the mean of the draw before

    def add(self, piece: Piece) -> None:
        """Take in the outputs of some draws on one batch."""
        outputs, before, at = piece.outputs, piece.before, piece.rows
        num, rows = outputs.shape[:2]
        share = num / (before + num)
        flat = outputs.flatten(0, 1)  # a likelihood looks at one row at a time, so draws can be rows
        mean = _wide(self._likelihood.mean(flat))
        values = mean.unflatten(0, (num, rows))
        centre = values.mean(0)
        within = (values - centre).square().sum(0)
        noise = self._likelihood.entropy(mean) if self._likelihood.predicts == "classes" else self._likelihood.variance(flat)
        if noise is not None:
            fresh = _wide(noise).unflatten(0, (num, rows)).mean(0)
            # Weights, no difference: a variance may be infinite, and inf - inf is no number.
            self.noise.put(at, (1 - share) * self.noise[at] + share * fresh if before else fresh)
        if piece.y is not None:
            self.log_density.put(at, self._density(piece, piece.y.to(outputs.device)))
        if self._keep:
            self.kept += [[]] if piece.batch == len(self.kept) else []
            self.kept[piece.batch].append(outputs)
        first = self._last[at][None] if before else values[:1]
        self.jumps += float((values - torch.cat([first, values[:-1]])).double().square().sum())
        self._last.put(at, values[-1])
        if before:
            so_far = torch.tensor(before), self.mean[at], self.spread[at]
            _, centre, within = merge(*so_far, torch.tensor(num), centre, within, outer=False)
        self.mean.put(at, centre)
        self.spread.put(at, within)
        self.count = before + num

    def take_outputs(self) -> Tensor:
        """Return all outputs, (draws, n, ...), and let go of those that were kept, batch by batch."""
        like, rows = self.kept[0][0], len(self.mean.all())
        result, start = like.new_empty(self.count, rows, *like.shape[2:]), 0
        while self.kept:
            batch = self.kept.pop(0)
            stop = start + batch[0].shape[1]
            torch.cat(batch, out=result[:, start:stop])
            start = stop
        return result

    def _density(self, piece: Piece, y: Tensor) -> Tensor:
        """Return the log of the density of y, averaged over the draws so far and these."""
        num, rows = piece.outputs.shape[:2]
        if not piece.before:
            self._likelihood.check(piece.outputs[0], y)
        many = y if num == 1 else y.repeat(num, *[1] * (y.ndim - 1))
        total = _wide(self._likelihood.log_likelihood(piece.outputs.flatten(0, 1), many)).unflatten(0, (num, rows)).logsumexp(0)
        if piece.before:
            total = torch.logaddexp(self.log_density[piece.rows] + math.log(piece.before), total)
        return total - math.log(piece.before + num)


class _Column:
    """Rows in one piece of memory, whose number grows: many small tensors would scatter themselves over the memory."""

    def __init__(self) -> None:
        self._room = torch.empty(0)
        self._used = 0

    def __getitem__(self, at: slice) -> Tensor:
        return self._room[at]

    def put(self, at: slice, rows: Tensor) -> None:
        """Write rows, the first time behind those before, and make room for as many again where there is none."""
        if at.start == 0 and self._used == 0:
            self._room = rows.clone()
        elif at.stop > len(self._room):
            self._room = torch.cat([self._room, self._room.new_empty(2 * at.stop - len(self._room), *self._room.shape[1:])])
        if rows.shape[1:] != self._room.shape[1:]:  # which might broadcast
            raise needs("predict", "model", f"rows of one shape, {tuple(self._room.shape[1:])}", tuple(rows.shape[1:]))
        self._room[at] = rows
        self._used = max(self._used, at.stop)

    def __bool__(self) -> bool:
        return self._used > 0

    def all(self) -> Tensor:
        """Return the rows, without the room."""
        return self._room if self._used == len(self._room) else self._room[: self._used].clone()


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
