"""Tutorial: a sampler of your own, in both forms, in every engine, and how to see whether its law is right.

    python examples/tutorial_custom_sampler.py [--quick]

ASGLD divides its average of gradients by the root of V, the average squared gradient. On a Gaussian V is the curvature, so 1 / V
would make all directions alike. The library does not have that one: here it is, in some ten lines.
"""

import argparse
import warnings
from dataclasses import dataclass
from functools import partial

import torch

import langevin as lv

parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true", help="fewer steps and chains")
chains, steps = (100, 2_000) if parser.parse_args().quick else (400, 8_000)


# 1. A bias a G m is a `ScaledAverage`: say what V remembers, what G does and what its root does. Adam's V serves; G is new.
#    Operators only: then tensors, the compiled scan, the fused CPU kernel and the optimizers all run these same two functions.
@dataclass(frozen=True)
class InverseSquare(lv.drifts.Adam):
    """``A_t = m_t / (V_t + λ)``."""

    def scale(self, memory, vector):
        return vector / (memory[0] + self.eps_root)

    def root(self, memory, vector):
        return vector * (memory[0] + self.eps_root) ** -0.5

    def scale_sde(self):
        return f"m / (V + {self.eps_root:g})", *super().scale_sde()[1:]


# 2. A sampler is the drift put into a kernel. `invariant=True` gives the averaged gradient its own noise.
def sampler(step_size, *, bias_factor=1.0, invariant=False, adapt_steps=None, temperature=1.0):
    """Make the sampler; `adapt_steps` freezes V, without which no law is promised."""
    drift = InverseSquare(bias_factor=bias_factor, betas=(0.9, 0.999), eps_root=1e-3)
    return lv.compose(step_size, drift=drift, invariant=invariant, adapt_steps=adapt_steps, temperature=temperature)


sampler(0.01, bias_factor=10.0).describe()

# 3. Look at its law, on a target that is known: widths 1 and 10.
widths = torch.tensor([1.0, 10.0], dtype=torch.float64)
target = lv.targets.gaussian(torch.diag(widths**2).tolist())
start = widths * lv.random.normal(0, lv.random.stream(lv.random.Purpose.INIT), 0, 2 * chains, dtype=torch.float64).view(chains, 2)
warnings.simplefilter("ignore", lv.TrustWarning)
run = {"num_steps": steps, "warmup": steps // 4, "compile": False}
print(f"\n{'':12}{'variance over the exact one':>30}{'temperature':>14}{'R-hat':>8}")
for name, kernel in (
    ("published", sampler(0.05, bias_factor=10.0)),
    ("invariant", sampler(0.05, bias_factor=10.0, invariant=True)),
    ("SGLD", lv.sgld(0.05)),
):
    samples = lv.sample(target, sampler=kernel, init=start, **run)
    ratio = samples.draws.var((0, 1)) / widths**2
    temperature, rhat = (samples.trust[check].value for check in ("temperature", "R-hat"))
    print(f"{name:12}{ratio[0]:18.3f}{ratio[1]:12.3f}{temperature:14.2f}{rhat:8.2f}")


# 4. The optimizer is the same formula: name the builder and its settings.
class InverseSquareSGLD(lv.optim.LangevinOptimizer):
    """The sampler for training loops, its V frozen after 500 steps."""

    builder = staticmethod(partial(sampler, invariant=True, adapt_steps=500))
    settings = ("bias_factor",)


found = []
for fused in (False, True):  # plain torch, and the fused engine, traced from the two functions above
    parameter = torch.nn.Parameter(torch.ones(1000))
    opt = InverseSquareSGLD([parameter], 0.01, {"bias_factor": 10.0}, num_data=1, fused=fused)
    for _ in range(20):
        opt.zero_grad()
        (0.5 * parameter.square().sum()).backward()
        opt.step()
    found.append(parameter.detach())
    del opt
print(f"\nfused and plain torch, 20 steps: equal bit for bit: {torch.equal(*found)}")
