"""The paper's experiments: their data, settings, runs and report."""

__version__ = "0.2.0"
