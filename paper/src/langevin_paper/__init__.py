"""The paper's experiments: their data, settings, runs and report."""
