"""Ctrl-C: let through only where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """Holds SIGINT back, in the main thread, while this context lasts.

    Between `open` and `close` it acts at once, elsewhere at the next `check` or `open`. A second one, while the first waits, is let
    through wherever it comes. What it does is up to the handler that was there before; Python's own raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        """Nothing has come."""
        self._before: Callable[[int, FrameType | None], Any] | None = None
        self._is_open = self._waits = False
        self.was_raised = False  # C code on the way may lose an exception; this does not

    def __enter__(self) -> Interrupts:
        """Take the signal over; in other threads there is none to take."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Give the signal back."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def open(self) -> None:
        """From here on Ctrl-C acts at once."""
        self.check()
        self._is_open = True

    def close(self) -> None:
        """From here on Ctrl-C waits."""
        self._is_open = False

    def check(self) -> None:
        """Act on a Ctrl-C that waits, or whose exception was lost."""
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
        self.was_raised = False  # a handler that returns has dealt with it
