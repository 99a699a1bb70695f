"""Addressed minibatches, divided among the ranks of one model without communication."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from langevin.checks import check_integer, needs
from langevin.random import Purpose, batch_indices, stream, white_rows
from langevin.random.address import check_seed

__all__ = ["RankBatches"]


class RankBatches(Sampler[list[int]]):
    """This rank's rows of each step, for ``DataLoader(data, batch_sampler=...)``.

    The minibatch of a step is a function of (seed, step) only; rank r of w takes every w-th row,
    starting at row r. A run therefore sees the same data for any number of ranks, and resumes with
    `first_step` alone.

    Args:
        num_data: rows of the data set.
        batch_size: of all ranks together; a multiple of their number, so that averaging the ranks'
            mean gradients is exact.
        seed: determines the order of the data.
        first_step: number of the first step.
        num_steps: number of steps; None for no end.
        batches: "reshuffled" uses each row once per epoch; "white" draws rows with replacement,
            which ``noise="corrected"`` needs.
        rank: by default that of torch.distributed, or 0.
        num_ranks: by default that of torch.distributed, or 1.

    Example:
        >>> parts = [RankBatches(10, 4, num_steps=5, rank=rank, num_ranks=2) for rank in range(2)]
        >>> whole = next(iter(RankBatches(10, 4, rank=0, num_ranks=1)))
        >>> first, second = (next(iter(part)) for part in parts)
        >>> whole[::2] == first, whole[1::2] == second
        (True, True)
    """

    def __init__(
        self,
        num_data: int,
        batch_size: int,
        *,
        seed: int = 0,
        first_step: int = 0,
        num_steps: int | None = None,
        batches: str = "reshuffled",
        rank: int | None = None,
        num_ranks: int | None = None,
    ) -> None:
        """See the class."""
        who, has_group = "RankBatches", dist.is_available() and dist.is_initialized()
        if rank is None:
            rank = dist.get_rank() if has_group else 0
        if num_ranks is None:
            num_ranks = dist.get_world_size() if has_group else 1
        self.rank = check_integer(who, "rank", rank, 0)
        self.num_ranks = check_integer(who, "num_ranks", num_ranks, 1)
        self.num_data = check_integer(who, "num_data", num_data, 1)
        self.batch_size = check_integer(who, "batch_size", batch_size, 1)
        self.first_step = check_integer(who, "first_step", first_step, 0)
        self.num_steps = num_steps
        if num_steps is not None:
            check_integer(who, "num_steps", num_steps, 0)
        self.seed = check_seed(who, seed)
        if self.rank >= self.num_ranks:
            raise needs(who, "rank", f"a rank below {self.num_ranks}", rank)
        if batch_size % self.num_ranks:
            raise needs(who, "batch_size", f"a multiple of the {self.num_ranks} ranks", batch_size)
        if batches not in ("reshuffled", "white"):
            raise needs(who, "batches", '"reshuffled" or "white"', batches)
        if batches == "reshuffled" and batch_size > num_data:
            raise needs(who, "batch_size", f"at most num_data={num_data}", batch_size)
        self.batches = batches

    def rows(self, step: int) -> torch.Tensor:
        """Return this rank's rows of a step."""
        is_white = self.batches == "white"
        draw = white_rows if is_white else batch_indices
        address = self.seed, stream(Purpose.ROWS if is_white else Purpose.BATCH), step
        return draw(*address, self.batch_size, self.num_data)[self.rank :: self.num_ranks]

    def __iter__(self) -> Iterator[list[int]]:
        steps = itertools.count(self.first_step)
        for step in itertools.islice(steps, self.num_steps):
            yield self.rows(step).tolist()

    def __len__(self) -> int:
        if self.num_steps is None:
            raise TypeError("RankBatches without num_steps has no length")
        return self.num_steps
