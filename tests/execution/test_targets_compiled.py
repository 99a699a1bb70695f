# ruff: noqa: E501
"""Energies and gradients of targets as people write them: compiled code against torch; draws for some of them."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from program_checks import check_cases
from torch import Tensor, nn

import langevin as lv
from langevin.compiler import program
from langevin.targets.gradients import full

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script:DeprecationWarning", "ignore:There is a performance drop:UserWarning"
)  # torch's own, of torch.func
DIM = 6
T = torch.float64
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=T)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=T) + 0.3 * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=T)
COUNTS = torch.arange(40) % 7
LABELS = torch.arange(40) % 3
GROUPS = torch.arange(40) % 4
BINARY = (Y > 0).to(T)
LOWER = torch.tril(torch.ones(3, 3, dtype=T) * 0.3) + torch.eye(3, dtype=T)


class Doubled(torch.autograd.Function):
    """A function with a derivative of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (output,) = ctx.saved_tensors
        return 2 * gradient * output


def log_prob(distribution, values):
    return -distribution.log_prob(values).sum()


def positive(theta: Tensor) -> Tensor:
    return F.softplus(theta) + 0.1


DISTRIBUTIONS = {
    "normal": lambda t: D.Normal(X @ t[:3], positive(t[3])),
    "student": lambda t: D.StudentT(3 + positive(t[4]), X @ t[:3], positive(t[3])),
    "cauchy": lambda t: D.Cauchy(t[0], positive(t[1])),
    "laplace": lambda t: D.Laplace(X @ t[:3], positive(t[3])),
    "gumbel": lambda t: D.Gumbel(t[0], positive(t[1])),
    "logistic": lambda t: D.TransformedDistribution(
        D.Uniform(0 * t[0], 1 + 0 * t[0], validate_args=False),
        [D.SigmoidTransform().inv, D.AffineTransform(t[0], positive(t[1]))],
        validate_args=False,
    ),
}
ON_POSITIVE = {
    "gamma": lambda t: D.Gamma(positive(t[0]), positive(t[1])),
    "inverse gamma": lambda t: D.InverseGamma(positive(t[0]), positive(t[1])),
    "lognormal": lambda t: D.LogNormal(t[0], positive(t[1])),
    "exponential": lambda t: D.Exponential(positive(t[0])),
    "half normal": lambda t: D.HalfNormal(positive(t[0])),
    "half cauchy": lambda t: D.HalfCauchy(positive(t[0])),
    "weibull": lambda t: D.Weibull(positive(t[0]), positive(t[1])),
    "chi2": lambda t: D.Chi2(positive(t[0])),
    "pareto": lambda t: D.Pareto(0.001 + 0 * t[0], positive(t[1])),
    "fisher": lambda t: D.FisherSnedecor(positive(t[0]), positive(t[1])),
}
ON_COUNTS = {
    "poisson": lambda t: D.Poisson((X @ t[:3]).exp()),
    "negative binomial": lambda t: D.NegativeBinomial(positive(t[0]), logits=X @ t[:3]),
    "binomial": lambda t: D.Binomial(7, logits=X @ t[:3]),
    "categorical": lambda t: D.Categorical(logits=torch.cat([t, t[:1]])),
}
ON_UNIT = {
    "beta": lambda t: D.Beta(positive(t[0]), positive(t[1])),
    "kumaraswamy": lambda t: D.Kumaraswamy(positive(t[0]), positive(t[1])),
    "bernoulli": lambda t: D.ContinuousBernoulli(logits=3 + positive(t[0])),
}


def hmm(theta):
    transition = theta[:4].view(2, 2).log_softmax(-1)
    state = torch.zeros(2, dtype=theta.dtype)
    for y in Y[:12]:
        state = torch.logsumexp(state[:, None] + transition, 0) - 0.5 * (y - theta[4:6]) ** 2
    return -state.logsumexp(0)


def kalman(theta):
    mean, variance, energy = theta[0], positive(theta[1]), theta.new_zeros(())
    for y in Y[:15]:
        variance = variance + positive(theta[2])
        total = variance + positive(theta[3])
        energy = energy + 0.5 * (y - mean) ** 2 / total + 0.5 * total.log()
        gain = variance / total
        mean, variance = mean + gain * (y - mean), (1 - gain) * variance
    return energy + 0.5 * theta.square().sum()


def garch(theta):
    alpha, beta, variances = theta[0].sigmoid() * 0.5, theta[1].sigmoid() * 0.5, [positive(theta[2])]
    for t in range(1, 15):
        variances.append(positive(theta[3]) + alpha * (Y[t - 1] - theta[4]) ** 2 + beta * variances[-1])
    return log_prob(D.Normal(theta[4], torch.stack(variances).sqrt()), Y[:15])


def process(theta):
    """Regression by a Gaussian process."""
    distances = torch.cdist(X[:10], X[:10])
    cov = positive(theta[0]) * torch.exp(-0.5 * (distances / positive(theta[1])) ** 2) + positive(theta[2]) * torch.eye(
        10, dtype=theta.dtype
    )
    factor = torch.linalg.cholesky(cov)
    solved = torch.cholesky_solve(Y[:10, None], factor)
    return 0.5 * Y[:10] @ solved[:, 0] + factor.diagonal().log().sum() + 0.5 * theta.square().sum()


def by_mask(theta):
    kept = Y > -0.5  # a mask of constants
    return (Y[kept] - X[kept] @ theta[:3]).square().sum() + theta.square().sum()


def out_of_place(theta):
    design = torch.zeros(4, 6, dtype=theta.dtype)
    design = design.index_put((torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 4])), theta[:4] ** 2)
    return design.sum(1).square().sum() + theta.square().sum()


class Network(nn.Module):
    """The paper's networks are such ones."""

    def __init__(self, activation) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 3)).to(T)

    def forward(self, x):
        return self.body(x)


def network_energy(activation, loss):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Network(activation)
    names = [name for name, _ in net.named_parameters()]
    shapes = [value.shape for _, value in net.named_parameters()]
    base = torch.cat([value.detach().flatten() for value in net.parameters()])

    def energy(theta):
        flat = base * (1 + theta[0]) + theta[1:].sum()
        parts = flat.split([shape.numel() for shape in shapes])
        parameters = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return loss(torch.func.functional_call(net, parameters, (X,))) + 0.5 * theta.square().sum()

    return energy


def normal(covariance):
    return lambda t: -D.MultivariateNormal(t[:3], covariance(t)).log_prob(X).sum()


TARGETS = {
    **{name: (lambda t, make=make: log_prob(make(t), Y)) for name, make in DISTRIBUTIONS.items() if name != "logistic"},
    "logistic": lambda t: log_prob(DISTRIBUTIONS["logistic"](t), Y),
    **{name: (lambda t, make=make: log_prob(make(t), Y.abs() + 0.01)) for name, make in ON_POSITIVE.items()},
    **{name: (lambda t, make=make: log_prob(make(t), COUNTS.to(T))) for name, make in ON_COUNTS.items() if name != "categorical"},
    "categorical": lambda t: log_prob(ON_COUNTS["categorical"](t), COUNTS),
    **{name: (lambda t, make=make: log_prob(make(t), Y.sigmoid())) for name, make in ON_UNIT.items()},
    "bernoulli logits": lambda t: log_prob(D.Bernoulli(logits=X @ t[:3]), BINARY),
    "dirichlet": lambda t: log_prob(D.Dirichlet(positive(t)), torch.full((6,), 1 / 6, dtype=T)),
    "multivariate normal by factor": lambda t: -D.MultivariateNormal(t[:3], scale_tril=LOWER * positive(t[3])).log_prob(X).sum(),
    "multivariate normal by covariance": normal(lambda t: LOWER @ LOWER.mT * positive(t[3])),
    "multivariate normal by precision": lambda t: -D.MultivariateNormal(t[:3], precision_matrix=LOWER @ LOWER.mT * positive(t[3])).log_prob(X).sum(),
    "low rank normal": lambda t: -D.LowRankMultivariateNormal(t[:3], LOWER[:, :1], positive(t[3:])).log_prob(X).sum(),
    "von mises": lambda t: log_prob(D.VonMises(t[0], positive(t[1])), Y),
    "lkj": lambda t: -D.LKJCholesky(3, 1.5).log_prob(LOWER / LOWER.norm(dim=1, keepdim=True)) + t.square().sum(),
    "independent": lambda t: -D.Independent(D.Normal(t[:3], positive(t[3:])), 1).log_prob(X).sum(),
    "mixture family": lambda t: -D.MixtureSameFamily(D.Categorical(logits=t[:3]), D.Normal(t[3:], 1.0)).log_prob(Y).sum(),
    "mixture": lambda t: -torch.logsumexp(torch.stack([D.Normal(t[k], 0.5).log_prob(Y) + t[3:].log_softmax(0)[k] for k in range(3)]), 0).sum(),
    "kl": lambda t: D.kl_divergence(D.Normal(t[:3], positive(t[3:])), D.Normal(torch.zeros(3, dtype=T), 1.0)).sum(),
    "hmm": hmm,
    "kalman": kalman,
    "garch": garch,
    "process": process,
    "mask": by_mask,
    "index_put": out_of_place,
    "hierarchical": lambda t: log_prob(D.Normal(t[:4][GROUPS], positive(t[4])), Y) + log_prob(D.Normal(t[5], 1.0), t[:4]),
    "groups by one_hot": lambda t: (Y - F.one_hot(GROUPS, 4).to(T) @ t[:4]).square().sum(),
    "number of groups by item": lambda t: (Y - t[: int(GROUPS.max()) + 1][GROUPS]).square().sum(),
    "segment sums": lambda t: torch.zeros(4, dtype=T).index_add(0, GROUPS, Y * t[0]).square().sum() + t.square().sum(),
    "scatter": lambda t: torch.zeros(4, dtype=T).scatter_add(0, GROUPS, Y * t[1]).square().sum() + t.square().sum(),
    "gather": lambda t: (Y - t.gather(0, GROUPS)).square().sum(),
    "views": lambda t: (t.view(2, 3).mT[1:] @ t.view(2, 3)[:, ::2]).square().sum() + t.flip(0)[1:4].sum() ** 2,
    "expanded": lambda t: (t.expand(4, 6) * torch.arange(4.0, dtype=T)[:, None]).square().sum(),
    "chunks": lambda t: sum((part * k).square().sum() for k, part in enumerate(t.split(2))) + torch.stack(t.chunk(3)).prod(0).sum() ** 2,
    "broadcast": lambda t: (Y[:, None] - t).square().mean() + (t[:, None] - t).abs().sum(),
    "where": lambda t: torch.where(t > 0, t**2, t.abs() ** 1.5 + t**2).sum(),
    "where guards": lambda t: torch.where(t > 0, torch.where(t > 0, t, 1.0).sqrt(), 0.0).sum() + t.square().sum(),
    "clamped": lambda t: t.clamp(-0.5, 0.5).square().sum() + t.square().sum() + torch.clamp(t, min=0).sum(),
    "booleans": lambda t: ((t > 0) & (t < 1) | (t.abs() < 0.1)).to(t.dtype) @ t.square() + t.square().sum(),
    "integers": lambda t: (t * (COUNTS[:6] // 2 % 3)).square().sum() + (t > 0).sum() * 0.5 + t.square().sum(),
    "nan": lambda t: torch.nan_to_num(torch.where(t > 9, t, torch.nan), 0.5).sum() + t.square().sum() + torch.nansum(t * torch.tensor([1.0, math.nan, 2, 3, 4, 5], dtype=T)),
    "in place": lambda t: (t * 2).add_(1).mul_(0.5).exp_().sum() + t.clone().mul_(t).sum(),
    "function of one's own": lambda t: Doubled.apply(t).sum() + t.square().sum(),
    "cumsum": lambda t: t.cumsum(0).square().sum() + t.exp().cumprod(0).log1p().sum(),
    "logcumsumexp": lambda t: t.logcumsumexp(0).square().sum(),
    "stick breaking": lambda t: -(t[:5].sigmoid().log() + F.pad((-t[:4]).sigmoid().log().cumsum(0), (1, 0))).sum() + t.square().sum(),
    "cholesky": lambda t: torch.linalg.cholesky(torch.outer(t, t) + 2 * torch.eye(6, dtype=T)).diagonal().log().sum() + t.square().sum(),
    "solve_triangular": lambda t: torch.linalg.solve_triangular(LOWER, t.view(3, 2), upper=False).square().sum(),
    "inverse": lambda t: t[:3] @ torch.linalg.inv(LOWER + torch.diag(t[3:] ** 2)) @ t[:3] + t.square().sum(),
    "logdet": lambda t: -torch.logdet(torch.eye(3, dtype=T) * 3 + torch.outer(t[:3], t[:3])) + t.square().sum() * 2,
    "slogdet": lambda t: -torch.linalg.slogdet(torch.eye(3, dtype=T) * 3 + torch.outer(t[:3], t[3:]) * 0.1)[1] + t.square().sum(),
    "solve": lambda t: torch.linalg.solve(LOWER @ LOWER.mT + torch.diag(t[:3] ** 2), t[3:]).square().sum() + t.square().sum(),
    "softmax": lambda t: (t.softmax(0) - 0.2).square().sum() + t.square().sum(),
    "log_softmax": lambda t: -(X @ t.view(3, 2)).log_softmax(1)[:, 0].sum() + t.square().sum(),
    "cross_entropy": lambda t: F.cross_entropy(torch.cat([X @ t.view(3, 2), X[:, :1]], 1), LABELS, reduction="sum") + t.square().sum(),
    "nll": lambda t: F.nll_loss(torch.cat([X @ t.view(3, 2), X[:, :1]], 1).log_softmax(1), LABELS) + t.square().sum(),
    "bce": lambda t: F.binary_cross_entropy_with_logits(X @ t[:3], BINARY, reduction="sum") + t.square().sum(),
    "mse": lambda t: F.mse_loss(X @ t[:3], Y, reduction="sum") + t.square().sum(),
    "huber": lambda t: F.huber_loss(X @ t[:3], Y, reduction="sum") + t.square().sum(),
    "gelu": lambda t: (F.gelu(X @ t[:3]) - Y).square().sum() + t.square().sum(),
    "silu": lambda t: (F.silu(X @ t[:3]) - Y).square().sum() + F.elu(t).sum() + t.square().sum(),
    "layer_norm": lambda t: (F.layer_norm(X, (3,), t[:3], t[3:]).sum(1) - Y).square().sum() + F.layer_norm(t, (6,)).square().sum() * t.square().sum(),
    "embedding": lambda t: (F.embedding(GROUPS % 3, t.view(3, 2)).sum(1) - Y).square().sum() + t.square().sum(),
    "einsum": lambda t: torch.einsum("ni,ij,j->n", X, t[:3, None] * t[3:], t[:3]).square().mean() + t.square().sum(),
    "bmm": lambda t: torch.bmm(t.view(2, 3, 1), t.view(2, 1, 3)).square().sum() + torch.baddbmm(LOWER.expand(2, 3, 3), t.view(2, 3, 1), t.view(2, 1, 3)).sum() ** 2,
    "outer and kron": lambda t: torch.kron(t[:2], t[2:]).square().sum() + torch.outer(t, t).trace() + t.square().sum(),
    "cdist": lambda t: torch.cdist(t.view(3, 2), t.view(3, 2) + 1).sum() + t.square().sum(),
    "hessian": lambda t: torch.func.hessian(lambda z: (z**4).sum() + (z[0] * z[1]) ** 2)(t).diagonal().sum() + t.square().sum(),
    "grad inside": lambda t: torch.func.grad(lambda z: (z.sin() * z).sum())(t).square().sum() + t.square().sum(),
    "jvp inside": lambda t: torch.func.jvp(lambda z: z.exp(), (t,), (torch.ones_like(t),))[1].log1p().sum() + t.square().sum(),
    "vmap inside": lambda t: torch.func.vmap(lambda x, y: (y - x @ t[:3]).square())(X, Y).sum() + t.square().sum(),
    "vmap of vmap": lambda t: torch.func.vmap(lambda a: torch.func.vmap(lambda b: (a - b).cos())(t))(t).sum() + t.square().sum(),
    "special": lambda t: (torch.special.ndtr(t).log() + torch.erf(t) + torch.lgamma(positive(t)) + torch.special.i0e(t)).sum() * -0.1 + t.square().sum(),
    "poisson process": lambda t: ((X @ t[:3]).exp() - COUNTS * (X @ t[:3])).sum() + torch.lgamma(COUNTS + 1.0).sum() + t.square().sum(),
    "ordered": lambda t: -(torch.diff(torch.cat([torch.full((1,), -torch.inf, dtype=T), t[:5].exp().cumsum(0), torch.full((1,), torch.inf, dtype=T)]).sigmoid())[COUNTS % 6] + 1e-9).log().sum() + t.square().sum(),
    "searchsorted": lambda t: t[torch.bucketize(Y, torch.linspace(-3, 3, 5, dtype=T))].square().sum() + t.square().sum(),
    "repeat": lambda t: (t.repeat(2)[:12].view(3, 4) + t[:3].repeat_interleave(4).view(3, 4)).square().sum(),
    "tril indices": lambda t: (torch.zeros(3, 3, dtype=T).index_put(tuple(torch.tril_indices(3, 3)), t) @ LOWER).square().sum(),
    "polynomial": lambda t: (torch.linalg.vander(X[:, 0], N=6) @ t - Y).square().mean() + t.square().sum(),
    "roll": lambda t: (t - t.roll(1)).square().sum() + t.square().sum(),
    "constant": lambda t: t.square().sum() + torch.zeros(3, dtype=T).sum() + torch.ones(()).sum(),
    "does not depend on all": lambda t: t[:2].square().sum() + 0 * t.sum(),
    "mlp tanh": network_energy(nn.Tanh(), lambda out: (out[:, 0] - Y).square().sum()),
    "mlp relu": network_energy(nn.ReLU(), lambda out: F.cross_entropy(out, LABELS, reduction="sum")),
    "mlp sigmoid": network_energy(nn.Sigmoid(), lambda out: F.cross_entropy(out, LABELS)),
    "mlp softplus": network_energy(nn.Softplus(), lambda out: -D.Normal(out[:, 0], positive(out[:, 1])).log_prob(Y).sum()),
    "mlp leaky": network_energy(nn.LeakyReLU(), lambda out: F.huber_loss(out[:, 0], Y)),
}  # fmt: skip
DRAWN = ["student", "gamma", "mixture", "hmm", "kalman", "process", "hierarchical", "mask", "index_put", "where", "function of one's own",
         "stick breaking", "solve", "hessian", "vmap inside", "cross_entropy", "mlp tanh", "mlp relu", "in place", "multivariate normal by covariance"]  # fmt: skip


def positions(dtype: torch.dtype, seed: int) -> Tensor:
    return (torch.randn(5, DIM, generator=torch.Generator().manual_seed(seed), dtype=T) * 0.4).to(dtype)


def evaluation(energy):
    gradient_fn = full(lv.targets.energy(energy))
    return lambda position: list(gradient_fn.evaluate(position, ()))


@pytest.mark.parametrize("part", range(4))
def test_energies_and_gradients_of_targets_match_torch(part):
    D.Distribution.set_default_validate_args(False)
    try:
        cases = {name: evaluation(energy) for k, (name, energy) in enumerate(TARGETS.items()) if k % 4 == part}
        check_cases(cases, [positions(T, 0)], [positions(T, 1)], scale=1000)
    finally:
        D.Distribution.set_default_validate_args(True)


def test_there_are_many_targets():
    assert len(TARGETS) >= 80


def test_targets_of_float32_match_torch():
    chosen = (
        "views",
        "expanded",
        "chunks",
        "where",
        "clamped",
        "in place",
        "cumsum",
        "softmax",
        "hessian",
        "vmap of vmap",
        "roll",
        "cdist",
        "outer and kron",
    )
    cases = {name: evaluation(TARGETS[name]) for name in chosen}
    check_cases(cases, [positions(torch.float32, 0)], [positions(torch.float32, 1)], scale=50)


def test_draws_of_compiled_runs_match_those_of_eager_runs():
    """One target is a sum of many, each of elements of its own."""

    def energy(theta):
        return sum((TARGETS[name](theta[k * DIM : (k + 1) * DIM]) for k, name in enumerate(DRAWN)), torch.zeros((), dtype=T))

    D.Distribution.set_default_validate_args(False)
    try:
        init = torch.cat([positions(T, k) for k in range(len(DRAWN))], 1)
        fast, eager = (
            lv.sample(lv.targets.energy(energy), sampler=lv.msgld(1e-4), init=init, num_steps=40, compile=way)
            for way in (True, False)
        )
    finally:
        D.Distribution.set_default_validate_args(True)
    assert fast.compiled
    torch.testing.assert_close(fast.draws, eager.draws, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "energy"),
    [
        ("sort", lambda t: (t.sort().values * torch.arange(6, dtype=T)).sum() + t.square().sum()),
        ("convolution", lambda t: F.conv1d(t[None, None], torch.ones(1, 1, 3, dtype=T)).square().sum() + t.square().sum()),
        ("_fft", lambda t: torch.fft.rfft(t).abs().sum() + t.square().sum()),
        ("max_pool", lambda t: F.max_pool2d(t.view(1, 1, 2, 3), 2).sum() + t.square().sum()),
        ("Float16|float16", lambda t: (t.half().exp() * 0.1).sum().to(T) + t.square().sum()),
        ("bfloat16", lambda t: t.bfloat16().square().sum().to(T) + t.square().sum()),
        ("complex", lambda t: torch.view_as_real(torch.complex(t[:3], t[3:]).conj() * 1j).square().sum() + t.square().sum()),
    ],
)
def test_what_is_not_covered_is_replayed_with_one_warning(name, energy, monkeypatch):
    monkeypatch.setattr(program, "_warned", set())
    target, init = lv.targets.energy(energy), positions(T, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast = [lv.sample(target, sampler=lv.sgld(0.01), init=init, num_steps=20, compile=True) for _ in range(2)]
    told = [str(each.message) for each in caught if "operation by operation" in str(each.message)]
    assert len(told) == 1
    assert any(word in told[0] for word in name.split("|")), told
    eager = lv.sample(target, sampler=lv.sgld(0.01), init=init, num_steps=20, compile=False)
    torch.testing.assert_close(fast[0].draws, eager.draws, rtol=1e-12, atol=1e-12)
    assert torch.equal(fast[0].draws, fast[1].draws)
