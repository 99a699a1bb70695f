"""Evidence that samplers have the law they should have: exact laws, exact tests, calibration; the command `langevin check`."""

from langevin.evidence.law import check_law
from langevin.evidence.report import Report, Row

__all__ = ["Report", "Row", "check_law"]
