"""Training set-ups in which nothing is wrong: functions of seed, batch size and dtype that return the arguments of `lint`."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

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


def column_outputs(seed=0, size=16, dtype=torch.float32):
    """Outputs (n, 1) and targets (n,), which the loss brings together."""
    arguments = regression(seed, size, dtype, loss_fn=lambda f, y: ((f[:, 0] - y) ** 2 / (2 * 5.0**2)).mean())
    return with_targets(arguments, lambda y: y[:, 0])


def column_targets(seed=0, size=16, dtype=torch.float32):
    """Outputs (n,) and targets (n, 1)."""
    model = built(seed, lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0)).to(dtype))
    x, y = normals(seed, ROWS, 4, dtype=dtype), normals(seed + 1, ROWS, 1, dtype=dtype)
    return labelled(model, lambda f, y: (2 * (f - y.squeeze(-1)) ** 2).mean(), x, y, size)


def with_targets(arguments, change):
    """Return the arguments of `lint` with other targets."""
    (x, y), (all_x, all_y) = arguments["batch"], arguments["data"].dataset.tensors
    data = DataLoader(TensorDataset(all_x, change(all_y)), batch_size=arguments["data"].batch_size)
    return arguments | {"batch": (x, change(y)), "data": data}


def log_softmax_twice(seed=0, size=16, dtype=torch.float32):
    """A log-softmax before the one of a cross-entropy changes nothing."""
    model = built(seed, lambda: nn.Sequential(nn.Linear(5, 3), nn.LogSoftmax(-1)).to(dtype))
    return labelled(model, nn.CrossEntropyLoss(), normals(seed, ROWS, 5, dtype=dtype), integers(seed, 3, ROWS), size)


class GraphNetwork(nn.Module):
    """A graph convolution on a ring of so many nodes, which are one batch."""

    def __init__(self, nodes, norm):
        super().__init__()
        ring = torch.eye(nodes) + torch.eye(nodes).roll(1, 0) + torch.eye(nodes).roll(-1, 0)
        self.register_buffer("adjacency", ring / ring.sum(1, keepdim=True))
        self.first, self.norm, self.last = nn.Linear(5, 6), norm, nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.adjacency @ torch.relu(self.norm(self.first(self.adjacency @ x))))


def transductive(seed=0, size=16, dtype=torch.float32):
    """All nodes of a graph are the batch: BatchNorm in training mode has the same statistics in every step."""
    size = max(size, 2)  # BatchNorm needs two
    model = built(seed, lambda: GraphNetwork(size, nn.BatchNorm1d(6)).to(dtype)).train()
    x, y = normals(seed, size, 5, dtype=dtype), integers(seed, 3, size)
    return labelled(model, nn.CrossEntropyLoss(), x, y, size, num_data=size) | {"data": None}


def student_t(seed=0, size=16, dtype=torch.float32):
    """A robust likelihood that is a density."""
    law = torch.distributions.StudentT(torch.tensor(4.0, dtype=dtype))
    return regression(seed, size, dtype, loss_fn=lambda f, y: -law.log_prob(f - y).sum(-1).mean())


def learnt_laplace(seed=0, size=16, dtype=torch.float32):
    arguments = learnt_noise(seed, size, dtype)
    model = arguments["model"]
    loss_fn = lambda f, y: ((f - y).abs() / model.log_sd.exp() + model.log_sd).mean()  # noqa: E731
    return labelled(model, loss_fn, *arguments["data"].dataset.tensors, size)


def half_labelled(seed=0, size=16, dtype=torch.float32):
    """Every third node has a label; the others are ignored, and num_data counts the labels."""
    size = max(size, 6)
    model = built(seed, lambda: GraphNetwork(size, nn.LayerNorm(6)).to(dtype))
    x, y = normals(seed, size, 5, dtype=dtype), integers(seed, 3, size)
    y[torch.arange(size) % 3 > 0] = -100
    return labelled(model, nn.CrossEntropyLoss(), x, y, size, num_data=int((y >= 0).sum())) | {"data": None}


def masked_nodes(seed=0, size=16, dtype=torch.float32):
    """The same with a mask that the loss knows."""
    size = max(size, 6)
    model = built(seed, lambda: GraphNetwork(size, nn.BatchNorm1d(6)).to(dtype)).train()
    x, y, mask = normals(seed, size, 5, dtype=dtype), integers(seed, 3, size), torch.arange(size) % 3 == 0
    loss_fn = lambda f, y: F.cross_entropy(f[mask[: len(f)]], y[mask[: len(y)]])  # noqa: E731
    return labelled(model, loss_fn, x, y, size, num_data=int(mask.sum())) | {"data": None}


def probabilities(seed=0, size=16, dtype=torch.float32):
    """A sigmoid, and the loss that takes probabilities."""
    model = built(seed, lambda: nn.Sequential(nn.Linear(5, 1), nn.Sigmoid(), nn.Flatten(0)).to(dtype))
    x, y = normals(seed, ROWS, 5, dtype=dtype), integers(seed, 2, ROWS).to(dtype)
    return labelled(model, nn.BCELoss(), x, y, size)


class Mixture(nn.Module):
    """The log of an average of two softmaxes."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        return torch.logaddexp(self.one(x).log_softmax(-1), self.other(x).log_softmax(-1)) - torch.tensor(2.0).log().to(x.dtype)


def mixture(seed=0, size=16, dtype=torch.float32):
    model = built(seed, lambda: Mixture().to(dtype))
    return labelled(model, nn.NLLLoss(), normals(seed, ROWS, 5, dtype=dtype), integers(seed, 3, ROWS), size)


def counts(seed=0, size=16, dtype=torch.float32):
    """Counts (n, 1) with a log-rate (n, 1) and the whole Poisson density."""
    model = built(seed, lambda: nn.Linear(4, 1).to(dtype))
    x, y = 0.1 * normals(seed, ROWS, 4, dtype=dtype), integers(seed, 5, ROWS, 1).to(dtype)
    return labelled(model, lambda f, y: (f.exp() - y * f + torch.lgamma(y + 1)).mean(), x, y, size)


def zero_head(seed=0, size=16, dtype=torch.float32):
    """A column of outputs that are all zero at the start."""
    arguments = column_outputs(seed, size, dtype)
    nn.init.zeros_(arguments["model"][2].weight)
    nn.init.zeros_(arguments["model"][2].bias)
    return arguments


def columns_of_moments(seed=0, size=16, dtype=torch.float32):
    """Mean and variance (n, 1) in a tuple, targets (n,)."""

    class Columns(Heteroscedastic):
        def forward(self, x):
            return tuple(part[:, None] for part in super().forward(x))

    model = built(seed, lambda: Columns().to(dtype))
    x, y = normals(seed, ROWS, 4, dtype=dtype), normals(seed + 1, ROWS, dtype=dtype)
    return labelled(model, lambda out, y: F.gaussian_nll_loss(out[0], y[:, None], out[1]), x, y, size)


def resampled(seed=0, size=16, dtype=torch.float32):
    """Rows drawn with replacement, each with the same probability."""
    arguments = classifier(seed, size, dtype)
    sampler = WeightedRandomSampler(torch.full((ROWS,), 0.5), ROWS)
    return arguments | {"data": DataLoader(arguments["data"].dataset, size, sampler=sampler)}


def censored(seed=0, size=16, dtype=torch.float32):
    """A learned scale of a density with two parts: Laplace errors, half of them in a narrow core."""
    arguments = learnt_noise(seed, size, dtype)
    model = arguments["model"]

    def loss_fn(f, y):
        z = (f - y).abs() / model.log_sd.exp()
        return (-torch.logaddexp(-z, -4 * z + torch.tensor(4.0, dtype=z.dtype).log()) + model.log_sd).mean()

    return labelled(model, loss_fn, *arguments["data"].dataset.tensors, size)


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
        column_outputs,
        column_targets,
        log_softmax_twice,
        transductive,
        student_t,
        learnt_laplace,
        half_labelled,
        masked_nodes,
        probabilities,
        mixture,
        counts,
        zero_head,
        columns_of_moments,
        resampled,
        censored,
    )
}


def everything(arguments):
    """Return copies of all that `lint` must leave alone."""
    model, opt = arguments["model"], arguments["optimizer"]
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    return copy.deepcopy([model.state_dict(), gradients, modes, opt.state_dict(), torch.get_rng_state()])
