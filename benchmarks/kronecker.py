"""The corrected kick on small networks: is the noise known well enough as a diagonal in the Kronecker eigenbasis of each layer?

    python benchmarks/kronecker.py [regression] [classifier] | tee docs/benchmarks/kronecker.txt

Two tanh networks (bias as a last column of each weight matrix), Gaussian prior, temperature 1. The truth: long runs with all data
in a dense scale. Compared: the variances of predictions at test points, the mean energy, and the mean square of each layer's
weights, which do not change under the symmetries of a network (units swapped, signs turned). Rows of a minibatch are drawn with
replacement. rho = (1 + a) ε s^2 / 2 of the noisiest direction. What a method knows of the noise covariance Sigma:

  diagonal    its diagonal
  kronecker   for each weight matrix, its diagonal in the basis Q_L x Q_R of the eigenvectors of E[D D^T] and E[D^T D]
  layer       its block for each weight matrix
  full        all of it

*frozen*: the average over draws of the posterior, from all data, the best that one average can be. *followed*: by each chain, from
differences of successive gradients (what an optimizer has) or inside the batch (per-example gradients), over a window of steps.
First the exact law of the step on the Gaussian that has the network's mean curvature K and mean Sigma, then the networks.
`spread` is the rms error of the single predictions' variances beyond chance, `mean` their mean error, `energy` the error of the
mean of U in units of dim / 2 (a relative temperature), `layers` the worst relative error of a layer's mean square; all in percent.
A negative spread is one below chance. Runs start from draws of the truth and last two to five autocorrelation times, so slow
directions have not gone all the way to a wrong law: compare rows with each other, and errors with those of the exact law.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from typing import NamedTuple

import torch
from torch import Tensor

import langevin as lv

CHAINS, ROWS, SEED, THIN = 64, 1000, 0, 10
STEPS, WARMUP = 1200, 400
STEP = 0.02  # ε times the largest curvature
CONDUCT = ((1, 33, 0.97), (3, 33, 0.97), (10, 100, 0.99), (30, 100, 0.99))  # rho, a, β: the batch size follows
KNOWN = ("diagonal", "kronecker", "layer", "full")


class Net:
    """A tanh network with its data; gradients of many positions at once, by hand."""

    def __init__(self, kind: str) -> None:
        """Make the data of "regression" or "classifier"."""
        self.kind, sizes = kind, {"regression": (3, 8, 1), "classifier": (2, 8, 3)}[kind]
        self.shapes = [(outs, ins + 1) for ins, outs in itertools.pairwise(sizes)]
        self.dim = sum(outs * ins for outs, ins in self.shapes)
        generator = torch.Generator().manual_seed(SEED + 2)
        self.x = torch.randn(ROWS, sizes[0], generator=generator)
        self.test = 1.2 * torch.randn(24, sizes[0], generator=generator)
        if kind == "regression":
            teacher = 1.5 * torch.randn(1, self.dim, generator=generator)
            self.y = self.outputs(teacher, self.x)[0] + torch.randn(ROWS, 1, generator=generator)
        else:
            first, second = self.x.mT
            logits = 1.2 * torch.stack([1.5 * first, 1.5 * torch.sin(2 * second), 1 - first**2 + second / 2], 1)
            gumbel = -(-torch.rand(ROWS, 3, generator=generator).log()).log()
            self.y = torch.nn.functional.one_hot((logits + gumbel).argmax(1), 3).double()

    def layers(self, theta: Tensor) -> list[Tensor]:
        """Return the weight matrices of positions."""
        parts = theta.split([outs * ins for outs, ins in self.shapes], -1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def blocks(self):
        """Yield where each weight matrix lies, and its shape."""
        begin = 0
        for outs, ins in self.shapes:
            yield slice(begin, begin + outs * ins), outs, ins
            begin += outs * ins

    def _forward(self, theta, x):
        inputs, values = [], x
        for index, weights in enumerate(self.layers(theta)):
            inputs.append(values if index == 0 else values.tanh())
            values = torch.baddbmm(weights[:, None, :, -1], inputs[-1], weights[:, :, :-1].mT)
        return inputs, values

    def outputs(self, theta, x):
        """Return the network's outputs (chains, n, outs)."""
        return self._forward(theta, x.expand(len(theta), *x.shape[-2:]))[1]

    def predictions(self, theta):
        """Return what is compared: outputs at the test points (chains, quantities)."""
        values = self.outputs(theta, self.test)
        if self.kind == "classifier":  # the mean of the logits says nothing, and two of three centred ones say all
            values = (values - values.mean(-1, keepdim=True))[..., :2]
        return values.flatten(1)

    def _deltas(self, theta, x, y):
        """Return the negative log-likelihood (chains,) and per layer, last first, dNLL/d(its outputs) and its inputs with a 1."""
        inputs, values = self._forward(theta, x)
        if self.kind == "regression":
            loss, delta = (values - y).square().sum((1, 2)) / 2, values - y
        else:
            logs = torch.log_softmax(values, -1)
            loss, delta = -(logs * y).sum((1, 2)), logs.exp() - y
        pairs, weights = [], self.layers(theta)
        for index in reversed(range(len(weights))):
            pairs.append((delta, torch.cat([inputs[index], torch.ones_like(inputs[index][..., :1])], -1)))
            if index:
                delta = (delta @ weights[index][..., :-1]) * (1 - inputs[index].square())
        return loss, pairs

    def gradient(self, theta, rows=None):
        """Return U (chains,) and its gradient from the given rows (chains, n), or from all."""
        x, y = (
            (self.x.expand(len(theta), -1, -1), self.y.expand(len(theta), -1, -1)) if rows is None else (self.x[rows], self.y[rows])
        )
        loss, pairs = self._deltas(theta, x, y)
        scale = ROWS / x.shape[1]
        flat = torch.cat([(delta.mT @ values).flatten(1) for delta, values in reversed(pairs)], 1)
        return scale * loss + theta.square().sum(1) / 2, scale * flat + theta

    def each(self, theta, rows):
        """Return the likelihood gradients of single rows (chains, n, dim)."""
        _, pairs = self._deltas(theta, self.x[rows], self.y[rows])
        return torch.cat([(delta[..., :, None] * values[..., None, :]).flatten(2) for delta, values in reversed(pairs)], 2)

    def noise(self, theta):
        """Return Sigma of batches of one row at each position, (positions, dim, dim)."""
        every = torch.arange(ROWS)[None]
        return torch.stack([ROWS**2 * torch.cov(self.each(one[None], every)[0].mT, correction=0) for one in theta])


def strides(step, factor, smoothing):
    """Return h, sqrt(2 ε) and S = h^2 + 2 ε."""
    lasting = 2 * factor * step * (1 - smoothing) / (1 + smoothing)
    return math.sqrt(lasting), math.sqrt(2 * step), lasting + 2 * step


def known(net, noise, kind):
    """Return what a method knows of covariances (..., dim, dim)."""
    if kind == "full":
        return noise
    if kind == "diagonal":
        return torch.diag_embed(noise.diagonal(dim1=-2, dim2=-1))
    result = torch.zeros_like(noise)
    for at, outs, ins in net.blocks():
        block = noise[..., at, at]
        if kind == "kronecker":
            parts = block.unflatten(-1, (outs, ins)).unflatten(-3, (outs, ins))
            left = torch.linalg.eigh(torch.einsum("...aibi->...ab", parts))[1]
            right = torch.linalg.eigh(torch.einsum("...aiaj->...ij", parts))[1]
            basis = torch.einsum("...ab,...ij->...aibj", left, right).flatten(-4, -3).flatten(-2, -1)
            values = torch.einsum("...ij,...ik,...kj->...j", basis, block, basis)
            block = (basis * values[..., None, :]) @ basis.mT
        result[..., at, at] = block
    return result


def absorber(noise, curvature, size):
    """Return D = Sigma (2 I + S (Sigma - K) / 2)^-1."""
    return noise @ torch.linalg.inv(2 * torch.eye(noise.shape[-1]) + size * (noise - curvature) / 2)


class Follow(NamedTuple):
    """Sigma followed by each chain: from "differences" or inside the "batch", over a window of steps."""

    source: str
    window: int


def run(net, theta, settings, steps, batch=None, *, root=None, absorb=None, kind="", follow=None, noise=None, seed=0):
    """Return positions, gradients and energies of the invariant step with g + D p in place of g, every THIN steps.

    The step is that of `langevin.kernels.Invariant`; D is `absorb`, or made of the noise that each chain follows from `noise` on.
    """
    step, _, smoothing = settings
    (lasting, passing, size), generator = strides(*settings), torch.Generator().manual_seed(SEED + seed)
    velocity, last = torch.randn(2, *theta.shape, generator=generator)
    kept, before = [], None
    for index in range(steps):
        rows = None if batch is None else torch.randint(ROWS, (len(theta), batch), generator=generator)
        energy, gradient = net.gradient(theta, rows)
        if index % THIN == 0:
            kept.append((theta, gradient, energy))
        if root is not None:
            gradient = gradient @ root
        kick = gradient
        if follow is not None and index % 5 == 0:
            absorb = absorber(known(net, noise, kind), 0, size)
        if absorb is not None:
            push = lasting * velocity + passing * last - size * gradient / 2
            kick = gradient + (absorb @ push[..., None])[..., 0]
        if follow is not None:
            if follow.source == "batch":
                each = net.each(theta, rows) * (ROWS / batch)
                each = each - each.mean(1, keepdim=True)
                noise = noise + (each.mT @ each * (batch / (batch - 1)) - noise) / follow.window
            elif before is not None:
                gap = gradient - before
                noise = noise + (gap[:, :, None] * gap[:, None, :] / 2 - noise) / follow.window
            before = gradient
        kicked = velocity - lasting * kick
        fresh, ξ = torch.randn(2, *theta.shape, generator=generator)
        velocity = smoothing * kicked + math.sqrt(1 - smoothing**2) * ξ
        moved = -step * kick + passing / 2 * (last + fresh) + lasting / 2 * (kicked + velocity)
        theta, last = theta + (moved if root is None else moved @ root.mT), fresh
    return [torch.stack(parts) for parts in zip(*kept, strict=True)]


def truth(net):
    """Return positions, gradients and energies of long runs with all data, all from one mode, in a dense scale that is learnt."""
    generator = torch.Generator().manual_seed(SEED + 1)
    theta = 0.7 * torch.randn(8, net.dim, generator=generator)
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    for index in range(1, 1501):  # Adam
        energy, gradient = net.gradient(theta)
        first, second = first.lerp(gradient, 0.1), second.lerp(gradient**2, 0.01)
        rate = 0.05 * (1 if index < 800 else 0.1 if index < 1200 else 0.01)
        theta = theta - rate * first / (1 - 0.9**index) / ((second / (1 - 0.99**index)).sqrt() + 1e-8)
    mode, eye = theta[energy.argmin()], torch.eye(net.dim)
    curvature = net.noise(mode[None])[0] / ROWS + eye
    start = torch.randn(CHAINS, net.dim, generator=generator)
    theta = mode + 0.2 * torch.linalg.solve_triangular(torch.linalg.cholesky(curvature + 10 * eye).mT, start.mT, upper=True).mT
    for index, (floor, steps) in enumerate(((0.1, 300), (0.03, 300), (0.01, 400), (0.003, 400), (0.003, 1500))):
        values, vectors = torch.linalg.eigh(curvature + floor * torch.linalg.matrix_norm(curvature, 2) * eye)
        found = run(net, theta, (0.02, 20, 0.95), steps, root=vectors * values**-0.5, seed=10 + index)
        theta, gradients = found[0][-1], found[1][5:].flatten(0, 1)
        curvature = gradients.mT @ gradients / len(gradients)  # by parts the mean Hessian
    return *found, curvature


def law(curvature, noise, absorb, settings):
    """Return the stationary covariance of θ on a Gaussian, and its sum over all lags, by doubling; None where it is unstable."""
    step, _, smoothing = settings
    lasting, passing, size = strides(*settings)
    dim = len(curvature)
    eye, zero = torch.eye(dim), torch.zeros(dim, dim)
    # kick = pass (K θ + noise) + absorb (lasting v + passing u), as rows of (θ, v, u, noise)
    let = eye - size * absorb / 2
    kick = torch.cat([let @ curvature, lasting * absorb, passing * absorb, let], 1)
    kicked = torch.cat([zero, eye, zero, zero], 1) - lasting * kick
    moved = torch.cat([eye, zero, passing / 2 * eye, zero], 1) - step * kick + lasting * (1 + smoothing) / 2 * kicked
    whole = torch.cat([moved, smoothing * kicked, torch.zeros(dim, 4 * dim)])
    move, heat = whole[:, : 3 * dim], whole[:, 3 * dim :]
    root = math.sqrt(1 - smoothing**2)
    injected = [torch.cat([lasting / 2 * root * eye, root * eye, zero]), torch.cat([passing / 2 * eye, zero, eye])]
    total, power = heat @ noise @ heat.mT + sum(part @ part.mT for part in injected), move
    for _ in range(60):
        total, before, power = total + power @ total @ power.mT, total, power @ power
        if not bool(total.abs().max() < 1e12):
            return None
        if bool((total - before).abs().max() < 1e-12 * total.abs().max()):
            break
    lags = 2 * torch.linalg.solve(torch.eye(3 * dim) - move, total) - total
    return total[:dim, :dim], lags[:dim, :dim]


def autocorrelation(values):
    """Return the mean integrated autocorrelation time of series (steps, chains, quantities), by Geyer's pairs."""
    length = len(values)
    wave = torch.fft.rfft(values - values.mean((0, 1)), 2 * length, dim=0)
    lags = torch.fft.irfft(wave.abs() ** 2, dim=0)[:length].mean(1) / torch.arange(length, 0, -1)[:, None]
    pairs = (lags / lags[0])[1 : length - length % 2 - 1].unflatten(0, (-1, 2)).sum(1)
    return float((1 + 2 * (pairs * ((pairs < 0).cumsum(0) == 0)).sum(0)).mean())


class Reference(NamedTuple):
    """Means and variances of the predictions (with their relative chance errors), mean energy with chance, squares of layers."""

    mean: Tensor
    variance: Tensor
    chance: Tensor
    energy: tuple[float, float]
    squares: Tensor


def squares(net, theta):
    return torch.stack([weights.square().sum((-1, -2)).mean() for weights in net.layers(theta.flatten(0, 1))])


def over_chains(values):
    """Return mean and chance error of (chains, ...) values."""
    return values.mean(0), values.std(0) / len(values) ** 0.5


def reference(net, theta, energies):
    values = torch.stack([net.predictions(one) for one in theta])
    mean, variance = values.mean((0, 1)), values.flatten(0, 1).var(0)
    chance = over_chains(((values - mean) ** 2 / variance).mean(0))[1]
    return Reference(mean, variance, chance, tuple(map(float, over_chains(energies.mean(0)))), squares(net, theta))


def row(net, theta, truly, batch):
    """Return the errors of a run, as text."""
    if not bool(torch.isfinite(theta[-1]).all()):
        return f"{int((~torch.isfinite(theta[-1]).all(-1)).sum())} chains died"
    values = torch.stack([net.predictions(one) for one in theta])
    ratio = ((values - truly.mean) ** 2 / truly.variance).mean(0)
    error, chance = over_chains(ratio)
    spread = ((error - 1) ** 2 - chance**2 - truly.chance**2).mean()
    mean, by_chance = over_chains(ratio.mean(1))
    energy, doubt = over_chains(torch.stack([net.gradient(one)[0] for one in theta[::10]]).mean(0))
    heat, unsure = (100 * 2 / net.dim * x for x in (float(energy) - truly.energy[0], math.hypot(float(doubt), truly.energy[1])))
    layers = squares(net, theta) / truly.squares - 1
    pace = ROWS / batch / (THIN * autocorrelation(values))
    return (
        f"{100 * math.copysign(abs(float(spread)) ** 0.5, float(spread)):8.0f}"
        f"{100 * float(mean - 1):+9.1f} ± {100 * float(by_chance):3.1f}"
        f"{heat:+9.1f} ± {unsure:3.1f}{100 * float(layers[layers.abs().argmax()]):+8.1f}{pace:9.2f}"
    )


def exact_laws(net, curvature, noise, theta):
    """Print the errors on the Gaussian with the network's own K and Sigma."""
    jacobian = torch.func.vmap(torch.func.jacrev(lambda one: net.predictions(one[None])[0]))(theta).mean(0)
    largest, noisiest = (float(torch.linalg.matrix_norm(matrix, 2)) for matrix in (curvature, noise))
    right = torch.linalg.inv(curvature)
    print(
        "exact law on the Gaussian of mean K and Sigma, a 100, β .99: rms error of the predictions' variances / worst, in percent"
    )
    print(
        f"{'ε k':>5s}{'rho':>7s}{'N/n':>7s}{'uncorrected':>15s}"
        + "".join(f"{kind:>14s}" for kind in KNOWN)
        + f"{'kronecker, K = 0':>18s}"
    )
    for size in (STEP, 0.1):
        for rho in (0.1, 0.3, 1, 3, 10, 30, 100):
            settings = (size / largest, 100, 0.99)
            batch = 101 * settings[0] * noisiest / 2 / rho
            cells = [("none", 0), *((kind, 1) for kind in KNOWN), ("kronecker", 0)]
            line = f"{size:5.2f}{rho:7.1f}{ROWS / batch:7.2f}"
            for (kind, knows), width in zip(cells, (15, 14, 14, 14, 14, 18), strict=True):
                absorb = torch.zeros_like(noise)
                if kind != "none":
                    absorb = absorber(known(net, noise / batch, kind), knows * known(net, curvature, kind), strides(*settings)[2])
                found = law(curvature, noise / batch, absorb, settings)
                if found is None:
                    line += f"{'unstable':>{width}s}"
                    continue
                error = 100 * ((jacobian @ found[0] @ jacobian.mT).diagonal() / (jacobian @ right @ jacobian.mT).diagonal() - 1)
                line += f"{f'{float(error.square().mean()) ** 0.5:.0f} / {float(error[error.abs().argmax()]):+.0f}':>{width}s}"
            print(line, flush=True)


def network(kind):
    begin, net = time.perf_counter(), Net(kind)
    theta, _, energies, curvature = truth(net)
    truly = reference(net, theta, energies)
    draws = theta.flatten(0, 1)
    draws = draws[torch.linspace(0, len(draws) - 1, 64).long()]
    each = net.noise(draws)
    noise, traces = each.mean(0), each.diagonal(dim1=1, dim2=2).sum(1)
    values = torch.linalg.eigvalsh(curvature)
    largest, noisiest = float(values[-1]), float(torch.linalg.matrix_norm(noise, 2))
    print(
        f"\n{kind}, {net.dim} parameters, N = {ROWS}: K {float(values[0]):.2g} to {largest:.2g};"
        f" truth in {time.perf_counter() - begin:.0f} s"
    )
    print(
        f"Sigma over draws of the posterior, sd / mean: trace {float(traces.std() / traces.mean()):.2f}; what of it is left out by"
    )
    for name, matrices in (("the average Sigma", noise[None]), ("Sigma at one draw", each)):
        lost = ((matrices - known(net, matrices, k)).norm(dim=(1, 2)) / matrices.norm(dim=(1, 2)) for k in KNOWN[:3])
        print(f"  {name}: " + ", ".join(f"{k} {float(x.mean()):.2f}" for k, x in zip(KNOWN, lost, strict=False)))
    exact_laws(net, curvature, noise, draws[:8])
    print(f"{'the network':44s}{'spread':>8s}{'mean':>15s}{'energy':>15s}{'layers':>8s}{'draws per epoch':>17s}{'seconds':>9s}")
    start = theta[-1]
    for rho, factor, smoothing in CONDUCT:
        settings = (STEP / largest, factor, smoothing)
        batch, size = round((1 + factor) * settings[0] * noisiest / 2 / rho), strides(*settings)[2]
        mean = rho * float(noise.diagonal().mean()) / noisiest
        print(f"rho {rho} (mean {mean:.2g}), n = {batch}, a = {factor}, β = {smoothing}")
        local = net.noise(start) / batch
        cases = {"all data": {}} if rho == 3 else {}
        cases["uncorrected"] = {"batch": batch}
        for name in KNOWN:
            absorb = absorber(known(net, noise / batch, name), known(net, curvature, name), size)
            cases[f"{name}, frozen"] = {"batch": batch, "absorb": absorb}
        for follow in () if rho == 1 else (Follow("differences", 100), Follow("batch", 10))[: 1 + (rho > 3)]:  # the most telling
            for name in KNOWN:
                text = f"{name}, followed, {follow.source}, {follow.window}"
                cases[text] = {"batch": batch, "kind": name, "follow": follow, "noise": local}
        for name, options in cases.items():
            begin = time.perf_counter()
            found = run(net, start, settings, STEPS, seed=20, **options)[0][WARMUP // THIN :]
            print(
                f"  {name:42s}{row(net, found, truly, options.get('batch', ROWS))}{time.perf_counter() - begin:17.0f}", flush=True
            )


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    begin = time.perf_counter()
    print(
        f"{CHAINS} chains, {STEPS - WARMUP} steps after {WARMUP}, ε k = {STEP}, seed {SEED},"
        f" torch {torch.__version__}, langevin {lv.__version__}"
    )
    for kind in sys.argv[1:] or ("regression", "classifier"):
        network(kind)
    print(f"{time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    main()
