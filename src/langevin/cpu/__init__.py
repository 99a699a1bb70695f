"""What compiled CPU code stands on: elementary functions for numba, torch's threads, a private place for machine code."""
