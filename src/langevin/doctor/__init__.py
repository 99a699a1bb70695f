"""`langevin doctor`: is everything there, is it right, how fast is it, and what to do about what is missing."""

from langevin.doctor.examine import examine
from langevin.doctor.finding import Finding

__all__ = ["Finding", "examine"]
