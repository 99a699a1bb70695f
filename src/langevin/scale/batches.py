"""Minibatches by address, dealt out to the ranks of one model: no rank sees another's rows, and no message is sent."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from langevin.checks import check_integer, needs
from langevin.noise import Purpose, batch_indices, stream, white_rows
from langevin.noise.address import check_seed

__all__ = ["RankBatches"]


class RankBatches(Sampler[list[int]]):
    """The rows of each step that this rank takes, for ``DataLoader(data, batch_sampler=...)``.

    The minibatch of a step is a function of (seed, step), the same whatever the number of ranks; rank r of w takes every w-th row
    of it, beginning with the r-th. So a run on other numbers of ranks sees the same data in the same steps, and one that goes on
    needs `first_step` only. It does not end by itself: take as many steps as the run has.

    Args:
        num_data: rows of the data set.
        batch_size: of all ranks together, a multiple of their number, so that the mean of their means is the mean.
        seed: of the order of the data.
        first_step: the step that comes first.
        num_steps: after how many it ends; None for never.
        batches: "reshuffled" takes each row once per epoch; "white" draws them anew, which ``noise="corrected"`` needs.
        rank: this one; None asks torch.distributed, where there is no group 0.
        num_ranks: how many; None asks torch.distributed, where there is no group 1.

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
        is_there = dist.is_available() and dist.is_initialized()
        self.rank = (dist.get_rank() if is_there else 0) if rank is None else check_integer("RankBatches", "rank", rank, 0)
        if num_ranks is None:
            num_ranks = dist.get_world_size() if is_there else 1
        self.num_ranks = check_integer("RankBatches", "num_ranks", num_ranks, 1)
        self.num_data = check_integer("RankBatches", "num_data", num_data, 1)
        self.batch_size = check_integer("RankBatches", "batch_size", batch_size, 1)
        self.first_step = check_integer("RankBatches", "first_step", first_step, 0)
        self.num_steps = None if num_steps is None else check_integer("RankBatches", "num_steps", num_steps, 0)
        self.seed = check_seed("RankBatches", seed)
        if self.rank >= self.num_ranks:
            raise needs("RankBatches", "rank", f"a rank below {self.num_ranks}", rank)
        if batch_size % self.num_ranks:
            raise needs("RankBatches", "batch_size", f"a multiple of the {self.num_ranks} ranks", batch_size)
        if batches not in ("reshuffled", "white"):
            raise needs("RankBatches", "batches", '"reshuffled" or "white"', batches)
        if batches == "reshuffled" and batch_size > num_data:
            raise needs("RankBatches", "batch_size", f"at most num_data={num_data}", batch_size)
        self.batches = batches

    def rows(self, step: int) -> torch.Tensor:
        """Return the rows that this rank takes at a step."""
        purpose, draw = (Purpose.ROWS, white_rows) if self.batches == "white" else (Purpose.BATCH, batch_indices)
        return draw(self.seed, stream(purpose), step, self.batch_size, self.num_data)[self.rank :: self.num_ranks]

    def __iter__(self) -> Iterator[list[int]]:
        step, end = self.first_step, None if self.num_steps is None else self.first_step + self.num_steps
        while step != end:
            yield self.rows(step).tolist()
            step += 1

    def __len__(self) -> int:
        if self.num_steps is None:
            raise TypeError("RankBatches without num_steps does not end")
        return self.num_steps
