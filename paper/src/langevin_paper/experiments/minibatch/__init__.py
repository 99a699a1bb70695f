"""Samplers under minibatches, with and without their noise absorbed: a bias atlas. Not in the paper.

`problems`, `regressions` and `network` say what is sampled and what is known of it, `laws` has the exact law of any linear
recursion, `ladders` the settings that each sampler is tried with, `measures` what draws say; `runs` brings them together, and
`atlas` is the experiment.
"""
