"""The paper's experiments: one file of numbers each."""
