"""A training loop turned into a posterior sampler by changing one line; no data set needed, a few seconds.

A small network learns y = sin(3x) + noise from 100 points with a gap in the middle. After a warm-up every 100th state of the
network goes into a bank. The spread of the draws is small where there are data and large in the gap.
"""

import tempfile

import torch
from torch import nn

import langevin as lv

torch.manual_seed(0)
x = torch.cat([torch.rand(50, 1) * 1.0 - 1.5, torch.rand(50, 1) * 1.0 + 0.5])
y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))


def loss_fn():
    """Return the mean negative log-likelihood of a Gaussian with standard deviation 0.1, without its constant."""
    return (model(x) - y).square().mean() / (2 * 0.1**2)


# optimizer = torch.optim.SGD(model.parameters(), lr=2e-4, momentum=0.9)          # before
optimizer = lv.optim.SGHMC(model.parameters(), lr=2e-4, beta=0.9, num_data=100, prior=lv.priors.gaussian(std=1.0))  # after
optimizer.describe()

bank = lv.SampleBank(tempfile.mkdtemp(), thin=100)
for step in range(20_000):
    optimizer.zero_grad()
    loss = loss_fn()
    loss.backward()
    optimizer.step()
    if step >= 10_000:
        bank.add(model, step=step, loss=loss.item())
bank.close()

places = torch.tensor([[-1.25], [-1.0], [0.0], [1.0], [1.25]])
with torch.no_grad():
    draws = torch.stack([draw(places) for draw in bank.models(model)])
print(f"\n{len(bank)} draws\n{'x':>6} {'truth':>7} {'mean':>7} {'sd':>6}")
for place, mean, sd in zip(places[:, 0], draws.mean(0)[:, 0], draws.std(0)[:, 0], strict=True):
    gap = "   (no data here)" if place == 0 else ""
    print(f"{place:6.2f} {torch.sin(3 * place):7.2f} {mean:7.2f} {sd:6.2f}{gap}")
