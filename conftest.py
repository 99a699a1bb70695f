"""What tests of the library and of the paper share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent
# What proves that a version of Python, torch or a system works (`pytest -m core`), beside the tests with the mark: every formula
# against its oracle, golden paths, compiled against eager code, the optimizers' conventions, runs and banks on disk, predictions.
CORE = """
bank/test_bank bank/test_bank_resume contract/test_kernel estimators/test_sklearn execution/test_operations law/test_golden
law/test_reductions law/test_step optim/test_optimizer optim/test_state predictive/test_predict test_import test_native_math
test_noise test_project test_recording test_sample test_store test_torch_internals
"""


def pytest_collection_modifyitems(items):
    """Mark the core tests."""
    core = {ROOT / "tests" / f"{name}.py" for name in CORE.split()}
    for item in items:
        if item.path in core:
            item.add_marker("core")


@pytest.fixture
def one_thread():
    """Small tensors: a second thread only waits, and on a busy machine for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
