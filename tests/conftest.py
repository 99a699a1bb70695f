"""Tests see no global generator: whatever is random has a seed in its address."""

from __future__ import annotations

import signal

import pytest
import torch

# A job that a shell starts in the background ignores SIGINT, and so do its children; the tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def global_generator_is_left_alone():
    """No code of ours may draw from, or seed, torch's global generator."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())
