"""Tutorial: minibatches heat. What they do to a posterior, how to see it, and three remedies.

    python examples/tutorial_minibatch.py [--quick]

A logistic regression with many rows. First with all rows at every step, which is what the others are compared with; then with
batches of 50. What is printed is the standard deviation of each weight over that of the run with all rows: 1 is right.
"""

import argparse
import warnings

import torch
from torch.distributions import Bernoulli

import langevin as lv
from langevin.random import Purpose, normal, stream, uniform

parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true", help="fewer rows and draws")
quick = parser.parse_args().quick
rows, batch, num_draws = (2_000, 50, 150) if quick else (20_000, 50, 1000)

# Whatever is random has an address: this data set is the same on every machine.
truth = torch.tensor([-0.5, 1.0, 0.3, 0.0], dtype=torch.float64)
x = normal(7, stream(Purpose.DATA), 0, rows * 4).double().reshape(rows, 4)
y = ((uniform(7, stream(Purpose.DATA), 1, rows).double() + 1) / 2 < torch.sigmoid(x @ truth)).double()
model = lv.Model(
    lambda p, x, y: Bernoulli(logits=x @ p["w"]).log_prob(y),
    parameters={"w": lv.real(4)},
    prior={"w": lv.priors.gaussian(std=2.0)},
)


def show(name, samples, reference):
    """Print the ratio of standard deviations, and how hot the run says that it is."""
    ratios = " ".join(f"{ratio:5.2f}" for ratio in samples["w"].std((0, 1)) / reference)
    print(f"{name:28} sd ratio {ratios}   temperature {samples.trust['temperature'].value:5.2f}", flush=True)


warnings.simplefilter("ignore", lv.TrustWarning)  # some of these runs are wrong on purpose; here the numbers are looked at
full = lv.sample(model, data=(x, y), num_draws=num_draws)
reference, mode = full["w"].std((0, 1)), full["w"].mean((0, 1))
print(f"\nmeans {mode.numpy().round(2)}, truth {truth.numpy()}\n")
show("all rows", full, reference)

# 1. The mistake: a step that would be fine with all rows, on batches of 50. The gradient's noise is rows / 50 times the curvature.
step = 0.05 * float(reference.min() ** 2)
run = {"data": (x, y), "batch_size": batch, "num_steps": 10 * num_draws, "warmup": 2 * num_draws, "seed": 1}
start = mode + reference * normal(7, stream(Purpose.INIT), 0, 32).double().reshape(8, 4)
white = lv.sample(model, sampler=lv.sgld(step), init=start, batches="white", **run)
show("SGLD, independent rows", white, reference)

# 2. Reshuffled epochs, the default: each row once per epoch, so much of the noise cancels.
show("SGLD, reshuffled epochs", lv.sample(model, sampler=lv.sgld(step), init=start, **run), reference)

# 3. Control variates: each row counts for what it says less what it said near the mode.
show(
    "SGLD, control variates",
    lv.sample(model, sampler=lv.sgld(step), init=start, batches="white", control_variate=mode, **run),
    reference,
)

# 4. The default call with minibatches: noise measured, and absorbed by the step. With and without control variates.
settings = {"data": (x, y), "batch_size": batch, "num_draws": num_draws, "progress": False}
corrected = lv.sample(model, control_variate=None, **settings)
both = lv.sample(model, **settings)
print()
show("noise absorbed", corrected, reference)
show("default call", both, reference)
