"""Delay Ctrl-C to points where no update is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """A context that delays SIGINT in the main thread, and the state of a run for other threads.

    Between `open` and `close` a signal acts at once, elsewhere at the next `check` or `open`. A
    second signal, while one is pending, acts at once anywhere. The previous handler decides what
    happens; Python's default raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        """Start without a pending signal."""
        self._before: Callable[[int, FrameType | None], Any] | None = None
        self._is_open = self._waits = False
        self.was_raised = False  # C code may lose an exception, but not this flag
        self._is_cancelled = False
        self.steps = 0, 0  # done, and in all
        self.partial: Callable[[], Any] | None = None  # returns the samples so far

    def __enter__(self) -> Interrupts:
        """Install the handler, in the main thread only."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Restore the previous handler."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def open(self) -> None:
        """Let signals act at once."""
        self.check()
        self._is_open = True

    def close(self) -> None:
        """Delay signals."""
        self._is_open = False

    def cancel(self) -> None:
        """Let the next `check` raise a KeyboardInterrupt, in any thread."""
        self._is_cancelled = True

    def check(self) -> None:
        """Act on a pending signal, or on one whose exception was lost."""
        if self._is_cancelled:
            self._is_cancelled = False
            raise KeyboardInterrupt
        if self._waits or self.was_raised:
            self._waits = False
            self._act(None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_open or self._waits:
            self._is_open = self._waits = False
            self._act(frame)
        else:
            self._waits = True

    def _act(self, frame: FrameType | None) -> None:
        self.was_raised = True
        if self._before is not None:
            self._before(signal.SIGINT, frame)
        self.was_raised = False  # the handler returned, so it raised nothing
