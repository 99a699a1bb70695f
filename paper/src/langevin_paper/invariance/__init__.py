"""Which law do adaptive drifts sample, and at what price: the published forms beside the invariant ones.

    python -m langevin_paper.invariance --out docs/study

`problems` says what is sampled and what is known of it, `walk` runs many settings side by side, `law`, `integrator`, `efficiency`
and `ravine` are the four parts, `record` keeps what they found, and `page`, `tables`, `figures` and `verdict` make the report from
nothing else.
"""
