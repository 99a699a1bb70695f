"""Training set-ups in which nothing is wrong: functions of seed, batch size and dtype that return the arguments of `lint`."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv

ROWS = 60
PRIOR = lv.priors.gaussian(std=0.5)


def optimizer(model, num_data=ROWS, **changes):
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return lv.optim.SGLD(wanted, **{"lr": 0.01, "num_data": num_data, "prior": PRIOR, **changes})


def built(seed, make):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def normals(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(seed, high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def labelled(model, loss_fn, x, y, size, num_data=ROWS, **changes):
    """Put the arguments of `lint` together, for data of which the batch has the first rows."""
    data = DataLoader(TensorDataset(x, y), batch_size=size)
    opt = optimizer(model, num_data, **changes)

    def step(batch):
        opt.zero_grad()
        loss_fn(model(batch[0]), batch[1]).backward()
        opt.step()

    return {"model": model, "loss_fn": loss_fn, "optimizer": opt, "batch": (x[:size], y[:size]), "data": data, "step": step}


def classifier(seed=0, size=16, dtype=torch.float32, loss_fn=None, extra=()):
    model = built(seed, lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), *extra, nn.Linear(8, 3)).to(dtype))
    x, y = normals(seed, ROWS, 5, dtype=dtype), integers(seed, 3, ROWS)
    return labelled(model, loss_fn or nn.CrossEntropyLoss(), x, y, size)


def regression(seed=0, size=16, dtype=torch.float32, loss_fn=None, outputs=1, num_data=ROWS):
    model = built(seed, lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).to(dtype))
    x, y = normals(seed, ROWS, 4, dtype=dtype), 30 + 5 * normals(seed + 1, ROWS, outputs, dtype=dtype)
    return labelled(model, loss_fn or (lambda f, y: ((f - y) ** 2 / (2 * 5.0**2)).sum(-1).mean()), x, y, size, num_data)


class Heteroscedastic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x):
        mean, log_variance = self.body(x).unbind(-1)
        return mean, log_variance.exp()


def gaussian_nll(seed=0, size=16, dtype=torch.float32):
    """A network that predicts mean and variance, in a tuple."""
    model, nll = built(seed, lambda: Heteroscedastic().to(dtype)), nn.GaussianNLLLoss()
    x, y = normals(seed, ROWS, 4, dtype=dtype), normals(seed + 1, ROWS, dtype=dtype)
    return labelled(model, lambda output, y: nll(output[0], y, output[1]), x, y, size)


class LearntNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.log_sd = nn.Linear(4, 1), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return self.body(x)[:, 0]


def learnt_noise(seed=0, size=16, dtype=torch.float32):
    """The loss knows a parameter of the model that is no part of its outputs, and is no penalty."""
    model = built(seed, lambda: LearntNoise().to(dtype))
    x, y = normals(seed, ROWS, 4, dtype=dtype), normals(seed + 1, ROWS, dtype=dtype)
    return labelled(model, lambda f, y: (0.5 * ((f - y) / model.log_sd.exp()) ** 2 + model.log_sd).mean(), x, y, size)


def convolution(seed=0, size=16, dtype=torch.float32, is_training=False):
    layers = lambda: [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()]  # noqa: E731
    model = built(seed, lambda: nn.Sequential(*layers(), nn.Linear(64, 3)).to(dtype))
    x, y = normals(seed, ROWS, 1, 8, 8, dtype=dtype), integers(seed, 3, ROWS)
    model(x)  # running statistics
    return labelled(model.train(is_training), nn.CrossEntropyLoss(), x, y, size)


VOCABULARY, TOKENS = 11, 7


class LanguageModel(nn.Module):
    """A transformer with a loss of its own, in the manner of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids, labels=None):
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1]).to(self.head.weight.dtype)
        logits = self.head(self.layer(self.embedding(input_ids), src_mask=mask))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


def language_model(seed=0, size=6, dtype=torch.float32, num_data=ROWS * TOKENS, loss_fn=None):
    model = built(seed, lambda: LanguageModel().to(dtype))
    ids = integers(seed, VOCABULARY, ROWS, TOKENS)
    labels = ids.clone()
    labels[::3, 5:] = -100  # padding
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    opt = optimizer(model, num_data)

    def step(batch):
        opt.zero_grad()
        (model(**batch).loss if loss_fn is None else loss_fn(model, batch)).backward()
        opt.step()

    batch = {"input_ids": ids[:size], "labels": labels[:size]}
    return {"model": model, "loss_fn": loss_fn, "optimizer": opt, "batch": batch, "data": DataLoader(rows, size), "step": step}


def language_model_loss(seed=0, size=6, dtype=torch.float32):
    """The same with a loss of (model, batch)."""

    def loss_fn(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    return language_model(seed, size, dtype, loss_fn=loss_fn)


class Adapted(nn.Module):
    """A frozen layer with an adapter of rank 2, whose second factor starts at zero."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 8).requires_grad_(False)
        self.a, self.b = nn.Linear(5, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.b.weight)
        self.head = nn.Linear(8, 1).requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.body(x) + self.b(self.a(x))))[:, 0]


def adapters(seed=0, size=16, dtype=torch.float32, loss_fn=None):
    model = built(seed, lambda: Adapted().to(dtype))
    x, y = normals(seed, ROWS, 5, dtype=dtype), integers(seed, 2, ROWS).to(dtype)
    return labelled(model, loss_fn or nn.BCEWithLogitsLoss(), x, y, size)


def log_probabilities(seed=0, size=16, dtype=torch.float32):
    model = built(seed, lambda: nn.Sequential(nn.Linear(5, 200), nn.LogSoftmax(-1)).to(dtype))
    return labelled(model, nn.NLLLoss(), normals(seed, ROWS, 5, dtype=dtype), integers(seed, 200, ROWS), size)


CLEAN = {
    function.__name__: function
    for function in (
        classifier,
        regression,
        gaussian_nll,
        learnt_noise,
        convolution,
        language_model,
        language_model_loss,
        adapters,
        log_probabilities,
    )
}


def everything(arguments):
    """Return copies of all that `lint` must leave alone."""
    model, opt = arguments["model"], arguments["optimizer"]
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    return copy.deepcopy([model.state_dict(), gradients, modes, opt.state_dict(), torch.get_rng_state()])
