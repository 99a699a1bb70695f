"""Whether chains in blocks of other sizes give the same bits, and what an engine costs: prints what docs/scale_chains.md says."""

from __future__ import annotations

import time
import warnings

import torch

import langevin as lv

CHAINS, STEPS = 12, 600


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, seed 3, float64")
    x = lv.random.normal(0, 0, 0, 600).double().reshape(200, 3)
    data = (x, (x[:, 0] > 0).double())
    logistic = lv.Model(
        lambda p, x, y: torch.distributions.Bernoulli(logits=x @ p["b"]).log_prob(y),
        parameters={"b": lv.real(3)},
        prior={"b": lv.priors.gaussian(std=1.0)},
    )
    gaussian = lv.targets.gaussian(torch.eye(3).tolist())
    sampler = lv.msgld(step_size=1e-3, invariant=True)
    for name, target, settings in (
        ("Gaussian", gaussian, {}),
        ("logistic, all rows", logistic, {"data": data}),
        ("logistic, 20 rows", logistic, {"data": data, "batch_size": 20}),
    ):
        settings = {"num_steps": STEPS, "seed": 3, "compile": False, "progress": False, **settings}
        init = torch.zeros(CHAINS, 3, dtype=torch.float64)
        start = time.perf_counter()
        together = lv.sample(target, sampler=sampler, init=init, **settings)
        first = time.perf_counter() - start
        for size in (1, 4, 5, CHAINS):
            start = time.perf_counter()
            blocks = lv.sample(target, sampler=sampler, init=init, engine="local", block_size=size, **settings)
            gap = float((blocks.draws - together.draws).abs().max())
            seconds = time.perf_counter() - start
            print(f"{name:20} blocks of {size:2}: largest difference {gap:.2g}; {seconds:.2f} s, all together {first:.2f} s")


if __name__ == "__main__":
    main()
