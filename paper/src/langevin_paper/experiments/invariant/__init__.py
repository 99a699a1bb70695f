"""Which law do adaptive drifts sample, and at what price: the published forms beside the invariant ones. Not in the paper.

`law`, `integrator`, `efficiency` and `ravine` are the four experiments; `problems` says what is sampled and what is known of it,
`draws` runs many settings side by side and measures what they drew.
"""
