"""Runs in another thread: `sample(..., blocking=False)`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from langevin.checks import check_number
from langevin.sampling.interrupts import Interrupts
from langevin.storage import Samples

__all__ = ["Background"]


class Background:
    """A run in another thread, from ``sample(..., blocking=False)``.

    Warnings and the report of the warm-up are emitted there as they arise. Python waits for the
    run at exit; call `cancel` to end it.

    Args:
        run: takes the interrupts of a run and returns its samples.

    Example:
        >>> import langevin as lv, torch
        >>> settings = {"init": torch.zeros(4, 1), "num_draws": 500}
        >>> target, kernel = lv.targets.gaussian([[1.0]]), lv.msgld(0.1, invariant=True)
        >>> run = lv.sample(target, sampler=kernel, **settings, blocking=False)
        >>> run.wait().draws.shape, run.is_done, run.steps, run.num_steps
        (torch.Size([4, 500, 1]), True, 500, 500)
    """

    def __init__(self, run: Callable[[Interrupts], Samples]) -> None:
        """Start the run."""
        self._interrupts, self._run = Interrupts(), run
        self._result: Samples | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()  # a join that Ctrl-C interrupts loses track of its thread
        threading.Thread(target=self._work, name="langevin.sample").start()

    def _work(self) -> None:
        try:
            self._result = self._run(self._interrupts)
        except BaseException as error:  # raised by `wait`
            self._error = error
        finally:
            self._ended.set()

    def __repr__(self) -> str:
        """Return the state in one line."""
        state = "running"
        if self.is_done:
            state = "done" if self._error is None else f"failed: {type(self._error).__name__}"
        return f"<sampling: {state}, {self.steps} of {self.num_steps or '?'} steps>"

    @property
    def is_done(self) -> bool:
        """Whether the run has ended."""
        return self._ended.is_set()

    @property
    def steps(self) -> int:
        """The number of steps done, after the warm-up of automatic settings; over all blocks."""
        return self._interrupts.steps[0]

    @property
    def num_steps(self) -> int:
        """The total number of steps; 0 until the settings have been found."""
        return self._interrupts.steps[1]

    @property
    def samples(self) -> Samples | None:
        """The draws so far, of a run on disk those of its last checkpoint; None before the first.

        The last draw of each chain has not been checked yet.
        """
        partial = self._interrupts.partial
        return self._result or (None if partial is None else partial())

    def wait(self, timeout: float | None = None) -> Samples:
        """Wait for the end and return the samples; Ctrl-C cancels the run and keeps its draws.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: the run takes longer, and goes on.
            Exception: whatever the run raised.
        """
        if timeout is not None:
            check_number("wait", "timeout", timeout, ">= 0", lambda seconds: seconds >= 0)
        try:
            self._ended.wait(timeout)
        except KeyboardInterrupt:
            return self.cancel()
        if not self.is_done:
            raise TimeoutError(f"wait() timed out after {timeout:g} s: {self!r}")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> Samples:
        """End the run after the step that is being taken, and return its draws.

        A warm-up of automatic settings is completed first.
        """
        self._interrupts.cancel()
        return self.wait()
