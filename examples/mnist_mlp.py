"""Bayesian MNIST in one training loop: warm-up, cyclical learning rate, a bank of draws, averaged predictions.

    LANGEVIN_DATA=folder-with-mnist.npz python examples/mnist_mlp.py --epochs 6

Without LANGEVIN_DATA the official files are downloaded. An epoch takes about 5 seconds on two cores.
"""

import argparse
import tempfile

import torch
from langevin_paper.data import load
from langevin_paper.models import mlp
from torch.nn import functional

import langevin as lv

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6, help="in all; the first third is warm-up")
parser.add_argument("--cycle", type=int, default=1, help="epochs per cycle of the learning rate after the warm-up")
parser.add_argument("--temperature", type=float, default=0.01, help="1 is the posterior; less is colder")
arguments = parser.parse_args()

data = load("mnist")
x, y, x_test, y_test = data.x_train / 255, data.y_train, data.x_test / 255, data.y_test
steps = len(x) // 100
torch.manual_seed(0)
model = mlp(784, 400, 400, 10)
optimizer = lv.optim.MSGLD(
    model.parameters(), lr=0.2, num_data=len(x), prior=lv.priors.gaussian(std=1.0), temperature=arguments.temperature
)
warmup = max(1, arguments.epochs // 3)
cycle = lv.schedules.cyclical(0.2, cycle_length=arguments.cycle * steps, floor=0.02)
bank = lv.SampleBank(tempfile.mkdtemp(), thin=20)
optimizer.describe()

for step in range(arguments.epochs * steps):
    sampling = step - warmup * steps
    for group in optimizer.param_groups:
        group["lr"] = 0.2 if sampling < 0 else cycle(sampling)
    rows = lv.random.batch_indices(0, lv.random.stream(lv.random.Purpose.BATCH), step, 100, len(x))
    optimizer.zero_grad()
    functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
    if sampling >= 0 and sampling % (arguments.cycle * steps) > arguments.cycle * steps * 0.7:  # the quiet end of a cycle
        bank.add(model, step=step)
    if (step + 1) % steps == 0:
        with torch.no_grad():
            accuracy = (model(x_test).argmax(-1) == y_test).float().mean()
        print(f"epoch {(step + 1) // steps:3d}: test accuracy of the chain {100 * accuracy:.2f} %, {len(bank)} draws", flush=True)

average = lv.predict(model, bank, x_test, likelihood="categorical").probabilities
one = next(iter(bank.models(model)))(x_test).softmax(-1).detach()
for name, share in (("one draw", one), (f"{len(bank)} draws", average)):
    nll = functional.nll_loss(share.clamp(min=1e-12).log(), y_test)
    print(f"{name:>10}: accuracy {100 * (share.argmax(-1) == y_test).float().mean():.2f} %, NLL {nll:.4f}")
