"""Evidence that samplers have the law they should have: exact laws, exact tests, calibration; the command `langevin check`."""

from langevin.evidence.calibration import check_sbc
from langevin.evidence.invariance import Decision, check_invariance, sequential_test
from langevin.evidence.law import check_law
from langevin.evidence.report import Report, Row
from langevin.evidence.sbc import Calibration, sbc, simultaneous_band

__all__ = [
    "Calibration",
    "Decision",
    "Report",
    "Row",
    "check_invariance",
    "check_law",
    "check_sbc",
    "sbc",
    "sequential_test",
    "simultaneous_band",
]
