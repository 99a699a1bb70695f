"""Tests see no global generator: whatever is random has a seed in its address."""

from __future__ import annotations

import signal

import pytest
import torch

# A job that a shell starts in the background ignores SIGINT, and so do its children; the tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def compiled_from_the_first_step(monkeypatch):
    """Runs in tests are short: their first steps are to be compiled ones, too."""
    from langevin.engines import turns

    monkeypatch.setattr(turns, "_HEAD_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def global_generator_is_left_alone():
    """No code of ours may draw from, or seed, torch's global generator."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())
