"""Evidence that samplers have the law they should have: exact laws, exact tests, calibration (`langevin-paper check`)."""

from langevin.diagnostics.calibration import Calibration, sbc, simultaneous_band
from langevin_paper.check.calibration import check_sbc
from langevin_paper.check.invariance import Decision, check_invariance, sequential_test
from langevin_paper.check.law import check_law
from langevin_paper.check.report import Report, Row

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
