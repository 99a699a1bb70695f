"""Faults that the library must survive: kills, damaged bytes, abused memory, nonsensical arguments. See `docs/reliability.md`."""
