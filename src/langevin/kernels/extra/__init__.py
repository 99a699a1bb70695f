"""Rarely used samplers, one file each. No other file of `langevin.kernels` depends on them."""
