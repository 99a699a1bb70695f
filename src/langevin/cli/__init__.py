"""The command `langevin`."""
