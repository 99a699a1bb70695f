"""Averages need memory for the result and a batch, not for draws x rows."""

import torch
from allocations import peak_bytes
from predict_models import seeded
from torch import nn

import langevin as lv


def test_averages_do_not_hold_draws_times_rows():
    models = [seeded(lambda: nn.Linear(4, 10), seed) for seed in range(40)]
    posterior = lv.Posterior(models[0], "categorical", prior=lv.priors.gaussian(std=1.0), num_data=10)
    positions = torch.stack([posterior.space.flatten(model) for model in models])
    x, y = torch.linspace(0, 1, 80_000).reshape(20_000, 4), torch.zeros(20_000, dtype=torch.int64)
    options = {"y": y, "batch_size": 4000}
    lv.predict(posterior, positions, x[:8000], y=y[:8000], batch_size=4000)  # imports modules, fills caches
    found = {
        "modules": peak_bytes(lambda: lv.predict(None, models, x, likelihood="categorical", **options)),
        "positions": peak_bytes(lambda: lv.predict(posterior, positions, x, y=y, batch_size=1000)),
        "kept": peak_bytes(lambda: lv.predict(None, models, x, likelihood="categorical", per_draw=True, **options)),
    }
    print(found)
    held = 40 * 20_000 * 10 * 4  # bytes of all outputs: 32 million
    assert found["modules"] < held / 2
    assert found["positions"] < held / 2
    assert held < found["kept"] < 2.5 * held
