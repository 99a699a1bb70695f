"""Invalid and extreme values."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["NASTY"]

NASTY: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "-1": lambda: -1,
    "0": lambda: 0,
    "-0.0": lambda: -0.0,
    "2.5": lambda: 2.5,
    "2**63": lambda: 2**63,
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "1e308": lambda: 1e308,
    "5e-324": lambda: 5e-324,
    "1 + 2j": lambda: 1 + 2j,
    "Fraction(1, 2)": lambda: Fraction(1, 2),
    "Decimal('0.5')": lambda: Decimal("0.5"),
    "''": lambda: "",
    "'auto'": lambda: "auto",
    "'nonsense'": lambda: "nonsense",
    "b'bytes'": lambda: b"bytes",
    "[]": list,
    "()": tuple,
    "{}": dict,
    "[1.0, 2.0]": lambda: [1.0, 2.0],
    "(0.5, 0.9, 0.1)": lambda: (0.5, 0.9, 0.1),
    "[[1.0], [2.0, 3.0]]": lambda: [[1.0], [2.0, 3.0]],
    "['a', None]": lambda: ["a", None],
    "{'a': 1}": lambda: {"a": 1},
    "range(0)": lambda: range(0),
    "range(5, 0, -1)": lambda: range(5, 0, -1),
    "object()": object,
    "int": lambda: int,
    "nn.Linear": lambda: nn.Linear,
    "lambda: None": lambda: lambda: None,
    "lambda a, b, c, d, e: a": lambda: lambda a, b, c, d, e: a,
    "lambda *a: None": lambda: lambda *a: None,
    "lambda *a: 'text'": lambda: lambda *a: "text",
    "lambda *a: nan": lambda: lambda *a: math.nan,
    "lambda *a: 1 / 0": lambda: lambda *a: 1 / 0,
    "(x for x in ())": lambda: (x for x in ()),
    "Path('/proc/nonexistent/folder')": lambda: Path("/proc/nonexistent/folder"),
    "'/dev/null'": lambda: "/dev/null",
    "'a\\0b'": lambda: "a\0b",
    "np.float64(nan)": lambda: np.float64(math.nan),
    "np.float32(0.5)": lambda: np.float32(0.5),
    "np.int64(3)": lambda: np.int64(3),
    "np.bool_(True)": lambda: np.bool_(True),
    "np.array([1.0, 2.0])": lambda: np.array([1.0, 2.0]),
    "np.array('text')": lambda: np.array("text"),
    "torch.tensor(1.0)": lambda: torch.tensor(1.0),
    "torch.tensor(nan)": lambda: torch.tensor(math.nan),
    "torch.tensor(True)": lambda: torch.tensor(True),
    "torch.zeros(0)": lambda: torch.zeros(0),
    "torch.zeros(3)": lambda: torch.zeros(3),
    "torch.zeros(2, 3, 4, 5)": lambda: torch.zeros(2, 3, 4, 5),
    "torch.full((4, 2), nan)": lambda: torch.full((4, 2), math.nan),
    "torch.full((4, 2), inf)": lambda: torch.full((4, 2), math.inf),
    "torch.zeros(4, 2, dtype=int64)": lambda: torch.zeros(4, 2, dtype=torch.int64),
    "torch.zeros(4, 2, dtype=bool)": lambda: torch.zeros(4, 2, dtype=torch.bool),
    "torch.zeros(4, 2, dtype=float16)": lambda: torch.zeros(4, 2, dtype=torch.float16),
    "torch.zeros(4, 2, dtype=complex64)": lambda: torch.zeros(4, 2, dtype=torch.complex64),
    "torch.zeros(4, 2, device='meta')": lambda: torch.zeros(4, 2, device="meta"),
    "torch.zeros(4, 2).to_sparse()": lambda: torch.zeros(4, 2).to_sparse(),
    "torch.zeros(4, 2, requires_grad=True)": lambda: torch.zeros(4, 2, requires_grad=True),
    "torch.zeros(1).expand(4, 2)": lambda: torch.zeros(1).expand(4, 2),
    "torch.float32": lambda: torch.float32,
    "nn.Linear(3, 5)": lambda: nn.Linear(3, 5),
    "nn.Linear(2, 1, device='meta')": lambda: nn.Linear(2, 1, device="meta"),
}
