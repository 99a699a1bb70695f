"""Every bad value fails when it is given, with the argument's name and the value in the message."""

from __future__ import annotations

import math

import pytest
import torch

import langevin as lv
from langevin.drifts import Adam, Momentum, Total

GAUSSIAN = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
NORMAL_MEAN = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=lv.priors.gaussian(std=1.0))
LINEAR = lv.targets.likelihood(lambda theta, x: -0.5 * (x @ theta) ** 2, prior=lv.priors.gaussian(std=1.0))
START = torch.zeros(3, 2)


def run(kernel=None, target=GAUSSIAN, init=START, num_steps=5, **rest):
    return lv.sample(kernel or lv.sgld(0.01), target, init, num_steps=num_steps, **rest)


class OneNumberForAllChains:
    needs_data, gradient_noise = False, 0.0

    def evaluate(self, position, batch=None):
        return lv.targets.Evaluation((position**2).sum() / 2, position)


TABLE = {
    "negative step size": (lambda: lv.sgld(-0.1), ValueError, r"sgld\(step_size=...\).*-0\.1"),
    "zero step size": (lambda: lv.msgld(0.0), ValueError, r"msgld\(step_size=...\).*0\.0"),
    "infinite step size": (lambda: lv.sgld(math.inf), ValueError, r"step_size=.*inf"),
    "step size of a wrong type": (lambda: lv.sgld("0.1"), TypeError, r"step_size=.*'0\.1'"),
    "boolean step size": (lambda: lv.sgld(True), TypeError, r"step_size=.*True"),
    "negative temperature": (lambda: lv.sgld(0.1, temperature=-1.0), ValueError, r"temperature=.*-1\.0"),
    "nan temperature": (lambda: lv.asgld(0.1, temperature=math.nan), ValueError, r"temperature=.*nan"),
    "beta of one": (lambda: lv.msgld(0.1, beta=1.0), ValueError, r"beta=.*1\.0"),
    "sghmc beta above one": (lambda: lv.sghmc(0.1, beta=1.5), ValueError, r"sghmc\(beta=.*1\.5"),
    "psgld beta": (lambda: lv.psgld(0.1, beta=-0.1), ValueError, r"beta=.*-0\.1"),
    "psgld eps": (lambda: lv.psgld(0.1, eps=0.0), ValueError, r"eps=.*0\.0"),
    "negative bias factor": (lambda: lv.msgld(0.1, bias_factor=-2.0), ValueError, r"bias_factor=.*-2\.0"),
    "beta_1**2 >= beta_2": (lambda: lv.asgld(0.1, betas=(0.9, 0.8)), ValueError, r"beta_1\*\*2 < beta_2.*\(0\.9, 0\.8\)"),
    "beta_1**2 equal to beta_2": (lambda: lv.asgld(0.1, betas=(0.5, 0.25)), ValueError, r"beta_1\*\*2 < beta_2"),
    "betas of a wrong type": (lambda: lv.asgld(0.1, betas=0.9), TypeError, r"betas=.*0\.9"),
    "eps_root of zero": (lambda: lv.asgld(0.1, eps_root=0.0), ValueError, r"eps_root=.*0\.0"),
    "metric that is no function": (lambda: lv.sgrld(0.1, metric=torch.eye(2)), TypeError, r"metric=.*function"),
    "metric of a wrong shape": (lambda: run(lv.sgrld(0.1, metric=lambda t: torch.eye(3))), ValueError, r"information=.*\(3, 3\)"),
    "drift that is none": (lambda: lv.langevin(0.1, drift="momentum"), TypeError, r"drift=.*'momentum'"),
    "preconditioner that is none": (lambda: lv.langevin(0.1, preconditioner=0.5), TypeError, r"preconditioner=.*0\.5"),
    "empty sum of drifts": (lambda: Total(()), TypeError, r"drifts="),
    "momentum factor": (lambda: Momentum("1"), TypeError, r"bias_factor=.*'1'"),
    "adam factor": (lambda: Adam(math.inf), ValueError, r"bias_factor=.*inf"),
    "diffusion that is no function": (lambda: lv.recipe(0.1, diffusion=None), TypeError, r"diffusion=.*None"),
    "schedule factor": (lambda: lv.schedules.step_decay(0.1, factor=1.5, every=10), ValueError, r"factor=.*1\.5"),
    "schedule length": (lambda: lv.schedules.step_decay(0.1, factor=0.5, every=0), ValueError, r"every=.*0"),
    "schedule of a wrong type": (lambda: lv.schedules.cyclical(0.1, cycle_length=1.5), TypeError, r"cycle_length=.*1\.5"),
    "schedule floor": (lambda: lv.schedules.cyclical(0.1, cycle_length=5, floor=1.0), ValueError, r"floor=.*1\.0"),
    "schedule power": (lambda: lv.schedules.polynomial(0.1, power=0.0), ValueError, r"power=.*0\.0"),
    "prior std": (lambda: lv.priors.gaussian(std=0.0), ValueError, r"std=.*0\.0"),
    "spike wider than slab": (
        lambda: lv.priors.spike_slab(slab_weight=0.5, slab_std=0.1, spike_std=0.2),
        ValueError,
        r"spike_std=.*0\.1.*0\.2",
    ),
    "slab weight": (lambda: lv.priors.spike_slab(slab_weight=1.0, slab_std=1.0, spike_std=0.1), ValueError, r"slab_weight=.*1\.0"),
    "covariance not square": (lambda: lv.targets.gaussian([[1.0, 0.0]]), ValueError, r"covariance=.*\[\[1\.0, 0\.0\]\]"),
    "covariance not symmetric": (lambda: lv.targets.gaussian([[1.0, 0.5], [0.0, 1.0]]), ValueError, r"symmetric"),
    "covariance not positive": (lambda: lv.targets.gaussian([[1.0, 2.0], [2.0, 1.0]]), ValueError, r"positive definite"),
    "mean of another length": (lambda: lv.targets.gaussian([[1.0]], mean=[0.0, 0.0]), ValueError, r"mean=.*\(2,\)"),
    "gradient noise": (lambda: lv.targets.gaussian([[1.0]], gradient_noise=-1.0), ValueError, r"gradient_noise=.*-1\.0"),
    "mixture weights": (lambda: lv.targets.mixture([[0.0], [1.0]], weights=[1.0, 0.0]), ValueError, r"weights=.*\[1\.0, 0\.0\]"),
    "mixture means": (lambda: lv.targets.mixture([0.0, 1.0]), ValueError, r"means=.*\(2,\)"),
    "energy that is no function": (lambda: lv.targets.energy(3.0), TypeError, r"energy_fn=.*3\.0"),
    "energy that returns a vector": (
        lambda: run(target=lv.targets.energy(lambda theta: theta**2)),
        ValueError,
        r"energy_fn=.*\(2,\)",
    ),
    "energy that ignores theta": (
        lambda: run(target=lv.targets.energy(lambda theta: torch.tensor(1.0))),
        ValueError,
        r"depends on theta",
    ),
    "one energy for many chains": (
        lambda: run(target=OneNumberForAllChains()),
        ValueError,
        r"one energy per chain, shape \(3,\), got \(\)",
    ),
    "likelihood without prior": (lambda: lv.targets.likelihood(lambda theta, x: x, prior=None), TypeError, r"prior=.*None"),
    "likelihood that sums": (
        lambda: run(target=lv.targets.likelihood(lambda theta, x: -(theta**2).sum(), prior=lv.priors.flat()), data=torch.ones(4)),
        ValueError,
        r"one number per datum, \(4,\), got \(\)",
    ),
    "kernel that is none": (lambda: run("sgld"), TypeError, r"kernel=.*'sgld'"),
    "target that is none": (lambda: run(target=lambda theta: theta), TypeError, r"target="),
    "integer positions": (lambda: run(init=torch.zeros(3, 2, dtype=torch.int64)), TypeError, r"init=.*torch\.int64"),
    "positions that are no tensor": (lambda: run(init=[[0.0, 0.0]]), TypeError, r"init=.*\[\[0\.0, 0\.0\]\]"),
    "positions with nan": (lambda: run(init=torch.tensor([[0.0, math.nan]])), ValueError, r"init=.*\[0, 1\].*nan"),
    "positions with three axes": (lambda: run(init=torch.zeros(2, 2, 2)), ValueError, r"init=.*\(2, 2, 2\)"),
    "no positions": (lambda: run(init=torch.zeros(0, 2)), ValueError, r"init=.*\(0, 2\)"),
    "no steps": (lambda: run(num_steps=0), ValueError, r"num_steps=.*0"),
    "fractional steps": (lambda: run(num_steps=1e3), TypeError, r"num_steps=.*1000\.0"),
    "warm-up longer than the run": (lambda: run(warmup=5), ValueError, r"warmup=.*num_steps = 5.*got 5"),
    "negative thinning": (lambda: run(thin=0), ValueError, r"thin=.*0"),
    "thinning that keeps nothing": (lambda: run(thin=6), ValueError, r"thin=.*5, got 6"),
    "seed of a wrong type": (lambda: run(seed="1"), TypeError, r"seed=.*'1'"),
    "negative seed": (lambda: run(seed=-1), ValueError, r"sample\(seed=.*-1"),
    "seed too large": (lambda: run(seed=2**64), ValueError, r"sample\(seed=.*2\*\*64.*18446744073709551616"),
    "too many chains": (lambda: run(first_chain=2**32 - 2), ValueError, r"sample\(first_chain=.*2\*\*32 - 3.*4294967294"),
    "progress of a wrong type": (lambda: run(progress="yes"), TypeError, r"sample\(progress=.*'yes'"),
    "out of a wrong type": (lambda: run(out=3), TypeError, r"sample\(out=.*3"),
    "sparse init": (lambda: run(init=START.to_sparse()), TypeError, r"sample\(init=.*dense.*sparse_coo"),
    "meta init": (lambda: run(init=START.to("meta")), TypeError, r"sample\(init=.*values.*meta"),
    "a class for a target": (lambda: run(target=lv.targets.Gaussian), TypeError, r"sample\(target=.*Gaussian"),
    "keep that returns a dict": (lambda: run(keep=lambda theta: {"a": theta}), TypeError, r"sample\(keep=.*real tensor.*dict"),
    "keep that returns a number": (lambda: run(keep=lambda theta: 1.0), ValueError, r"sample\(keep=.*must only return Tensors"),
    "keep that returns complex numbers": (lambda: run(keep=torch.fft.fft), TypeError, r"sample\(keep=.*real tensor.*complex64"),
    "an energy with if": (
        lambda: run(target=lv.targets.energy(lambda theta: theta @ theta if theta[0] > 0 else theta.sum())),
        ValueError,
        r"energy\(energy_fn=.*torch\.where.*control flow",
    ),
    "an energy with item": (
        lambda: run(target=lv.targets.energy(lambda theta: theta @ theta * theta[0].item())),
        ValueError,
        r"energy\(energy_fn=.*no \.item\(\).*calling \.item\(\)",
    ),
    "an energy with numpy": (
        lambda: run(target=lv.targets.energy(lambda theta: torch.tensor(theta.detach().numpy().sum()) + theta.sum())),
        ValueError,
        r"energy\(energy_fn=.*\.numpy\(\)",
    ),
    "an energy with noise": (
        lambda: run(target=lv.targets.energy(lambda theta: theta @ theta + torch.randn(()))),
        ValueError,
        r"energy\(energy_fn=.*noise belongs to the sampler.*random operation",
    ),
    "a likelihood with if": (
        lambda: run(
            target=lv.targets.likelihood(lambda theta, x: x * theta[0] if theta[0] > 0 else x, prior=lv.priors.flat()),
            data=torch.ones(4),
        ),
        ValueError,
        r"likelihood\(log_likelihood_fn=.*torch\.where.*control flow",
    ),
    "float32 init with float64 data": (
        lambda: run(target=LINEAR, data=torch.ones(4, 2, dtype=torch.float64)),
        TypeError,
        r"sample\(init=.*dtype of the data, torch\.float64, got torch\.float32",
    ),
    "float32 init with batches of float64 data": (
        lambda: run(target=LINEAR, data=torch.ones(4, 2, dtype=torch.float64), batch_size=2),
        TypeError,
        r"sample\(init=.*dtype of the data, torch\.float64, got torch\.float32",
    ),
    "a control variate of a wrong shape": (
        lambda: run(target=LINEAR, data=torch.ones(4, 2), batch_size=2, control_variate=torch.zeros(3)),
        ValueError,
        r"sample\(control_variate=.*shape \(2,\).*\(3,\)",
    ),
    "a control variate of a wrong dtype": (
        lambda: run(target=LINEAR, data=torch.ones(4, 2), batch_size=2, control_variate=torch.zeros(2, dtype=torch.float64)),
        TypeError,
        r"sample\(control_variate=.*float32.*float64",
    ),
    "resume without a kernel": (lambda: lv.resume("x", "sgld", GAUSSIAN), TypeError, r"resume\(kernel=.*'sgld'"),
    "resume without a target": (lambda: lv.resume("x", lv.sgld(0.1), None), TypeError, r"resume\(target=.*None"),
    "resume with data for a target without": (
        lambda: lv.resume("x", lv.sgld(0.1), GAUSSIAN, data=START),
        ValueError,
        r"resume\(data=.*no data",
    ),
    "resume of no path": (lambda: lv.resume(3, lv.sgld(0.1), GAUSSIAN), TypeError, r"resume\(path=.*3"),
    "resume with a keep that is no function": (
        lambda: lv.resume("x", lv.sgld(0.1), GAUSSIAN, keep="positions"),
        TypeError,
        r"resume\(keep=.*'positions'",
    ),
    "unknown keep": (lambda: run(keep="everything"), ValueError, r"keep=.*'everything'"),
    "unknown compile": (lambda: run(compile="yes"), ValueError, r"compile=.*'yes'"),
    "control variate without batches": (lambda: run(control_variate=torch.zeros(2)), ValueError, r"control_variate=.*batch_size"),
    "negative first chain": (lambda: run(first_chain=-1), ValueError, r"sample\(first_chain=.*-1"),
    "invariant without a warm-up": (
        lambda: lv.sample(lv.asgld(0.1, invariant=True), GAUSSIAN, torch.zeros(2, 2), num_steps=10),
        ValueError,
        r"asgld\(warmup=.*0",
    ),
    "freezing the published form": (lambda: lv.asgld(0.1, adapt_steps=10), ValueError, r"adapt_steps=.*invariant=True.*10"),
    "a bias factor that is none": (lambda: lv.msgld(0.1, bias_factor="big"), TypeError, r"bias_factor=.*'big'"),
    "only exploration": (lambda: lv.schedules.cyclical(0.1, cycle_length=10, exploration=0.95), ValueError, r"exploration=.*0\.95"),
    "invariant of a wrong type": (lambda: lv.msgld(0.1, invariant="yes"), TypeError, r"invariant=.*'yes'"),
    "another word for auto": (lambda: lv.sgld("automatic"), TypeError, r"step_size=.*'automatic'"),
    "data missing": (lambda: run(target=NORMAL_MEAN, init=torch.zeros(3, 1)), ValueError, r"data=.*None"),
    "data for a target without": (lambda: run(data=torch.ones(3)), ValueError, r"data=.*no data"),
    "batches without data": (lambda: run(batch_size=3), ValueError, r"batch_size=.*3"),
    "empty data": (lambda: run(target=NORMAL_MEAN, init=torch.zeros(3, 1), data=torch.ones(0)), ValueError, r"data=.*0.*rows"),
    "ragged data": (lambda: run(target=NORMAL_MEAN, data=(torch.ones(3), torch.ones(4))), ValueError, r"data=.*\[3, 4\]"),
    "data with nan": (
        lambda: run(target=NORMAL_MEAN, init=torch.zeros(3, 1), data=torch.tensor([0.0, math.nan])),
        ValueError,
        r"data=.*column 0, element \[1\].*nan",
    ),
    "data that is no tensor": (lambda: run(target=NORMAL_MEAN, data=([1.0],)), TypeError, r"data=.*list"),
    "batch larger than the data": (
        lambda: run(target=NORMAL_MEAN, init=torch.zeros(3, 1), data=torch.ones(4), batch_size=5),
        ValueError,
        r"batch_size=.*4 rows.*got 5",
    ),
    "empty batch": (
        lambda: run(target=NORMAL_MEAN, init=torch.zeros(3, 1), data=torch.ones(4), batch_size=0),
        ValueError,
        r"batch_size=.*0",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_it_fails_at_once_with_name_and_value(case):
    call, error, message = TABLE[case]
    with pytest.raises(error, match=message):
        call()
