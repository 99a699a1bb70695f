"""Tutorial: a training loop that samples. Two spirals, a small network, lint, heat, a bank of draws, averaged predictions.

python examples/tutorial_network.py [--quick]
"""

import argparse
import math
import tempfile

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import langevin as lv
from langevin.random import Purpose, batch_indices, normal, stream

parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true", help="fewer steps")
quick = parser.parse_args().quick
trained, steps = (500, 2_000) if quick else (2_000, 20_000)


def spirals(rows, step):
    """Return points of two spirals with noise, and which spiral each is on."""
    labels = torch.arange(rows) % 2
    angle = torch.linspace(0.5, 3.0, rows) + math.pi * labels
    places = torch.stack([angle.cos(), angle.sin()], -1) * torch.linspace(0.5, 2.0, rows)[:, None]
    return places + 0.5 * normal(3, stream(Purpose.DATA), step, 2 * rows).view(-1, 2), labels


x, y = spirals(200, 0)
x_test, y_test = spirals(1000, 1)
torch.manual_seed(0)  # torch's initial weights; nothing of the sampler depends on it
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

# 1. Train first: a sampler that has to find the mode wastes its steps on it.
adam = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(trained):
    adam.zero_grad()
    cross_entropy(model(x), y).backward()
    adam.step()
point = cross_entropy(model(x_test), y_test).item()

# 2. The optimizer. The loss stays the mean loss; num_data and the prior make it a posterior. The noise of minibatches, which would
# widen predictions, is estimated in each layer and corrected.
opt = lv.optim.MSGLD(
    model.named_parameters(),
    lr=0.02,
    bias_factor=10.0,
    invariant=True,
    noise="corrected",
    num_data=len(x),
    prior=lv.priors.fan_in(std=2.0),
    seed=0,
)
opt.describe()


def step(batch):
    """Take one step, as the loop does."""
    opt.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    opt.step()


# 3. Ask before the loop: lint names mistakes that no error shows. Here there are none.
report = lv.lint(model, cross_entropy, opt, (x[:100], y[:100]), step=step)
print(f"lint: {report.names or 'nothing'}")

# 4. The loop. Rows have addresses too, so that a run that is killed can go on with the same ones.
bank = lv.SampleBank(tempfile.mkdtemp(), thin=steps // 40)
for number in range(steps):
    rows = batch_indices(0, stream(Purpose.BATCH), number, 100, len(x))
    step((x[rows], y[rows]))
    if number >= steps // 4:  # the warm-up
        bank.add(model, step=number)
print(f"minibatch noise: {opt.heat()[0]}")

# 5. Predictions are averages over draws: probabilities, never weights.
found = lv.predict(model, bank, x_test, y=y_test, likelihood="categorical")
print(found)
one = torch.stack([cross_entropy(draw(x_test), y_test) for draw in bank.models(model)]).mean().item()
print(f"test NLL: Adam {point:.3f}, one draw {one:.3f} (mean of all), average of {len(bank)} draws {-found.log_density.mean():.3f}")

# 6. Far from the data the draws disagree: that is what a single network cannot know.
far = lv.predict(model, bank, 4 * x_test[::20], likelihood="categorical")
near, out = found.epistemic.mean(), far.epistemic.mean()
print(f"what the draws disagree on, in nats: near the data {near:.3f}, four times as far out {out:.3f}")
