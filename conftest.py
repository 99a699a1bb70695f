"""What tests of the library and of the paper share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def one_thread():
    """Small tensors: a second thread only waits, and on a busy machine for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
