"""What all ranks of a distributed run do together: it succeeds on all of them, or raises on all of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

__all__ = ["ElsewhereError", "check_claims", "is_writer", "together"]


class ElsewhereError(RuntimeError):
    """Another rank failed, or did not answer."""


def is_writer() -> bool:
    """Whether this process writes: all do, except ranks above 0 of a distributed run."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


@contextmanager
def together(who: str) -> Iterator[Callable[[Any], list[Any]]]:
    """Give a function that waits for all ranks and returns the values that they called it with, by rank.

    A rank that fails in the block tells the others, which raise an `ElsewhereError` at their next call of the function; so the
    last call of it has to be the last thing in the block that may fail. An interrupt (Ctrl-C) is told to nobody.
    """

    def exchange(failure: str | None, value: Any) -> list[Any]:
        found: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, (failure, value))
        return found

    def agree(value: Any) -> list[Any]:
        try:
            found = exchange(None, value)
        except Exception as error:
            raise ElsewhereError(f"{who}: a rank has died, or did not answer in the group's timeout ({error})") from error
        for rank, (failure, _) in enumerate(found):
            if failure is not None:
                raise ElsewhereError(f"{who} failed on rank {rank}, so it does on every rank: {failure}")
        return [value for _, value in found]

    try:
        yield agree
    except ElsewhereError:
        raise
    except Exception as error:
        with suppress(Exception):  # ranks that are gone cannot be told
            exchange(f"{type(error).__name__}: {error}", None)
        raise


def check_claims(claims: Sequence[dict[str, Any]]) -> None:
    """Fail, on every rank alike, unless all ranks claim the same."""
    for rank, claim in enumerate(claims):
        for name, value in claim.items():
            if value != (first := claims[0][name]):
                raise ValueError(
                    f"SampleBank needs the same {name} on every rank, got {first!r:.200} on rank 0, {value!r:.200} on {rank}"
                )
