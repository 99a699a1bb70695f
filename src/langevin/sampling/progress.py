"""Progress bars and progress callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "progress_bar"]

Progress = bool | Callable[[int, int], object] | None
"""True, False, None (a bar on a terminal only), or a function of (steps done, total steps)."""


@contextmanager
def progress_bar(
    progress: Progress, name: str, done: int, total: int, unit: str = "step"
) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the number of steps done."""
    if callable(progress):
        yield lambda now: progress(now, total)
        return
    from tqdm.auto import tqdm  # slow: it imports asyncio

    # tqdm takes disable=None as "only on a terminal".
    disable = None if progress is None else not progress
    with tqdm(total=total, initial=done, desc=name, unit=unit, disable=disable) as bar:
        yield lambda now: bar.update(now - bar.n)
