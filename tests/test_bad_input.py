"""Every bad value fails when it is given, with the argument's name and the value in the message."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import langevin as lv
from langevin.checks import check_finite
from langevin.kernels.drifts import Adam, Momentum, Total

GAUSSIAN = lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])
NORMAL_MEAN = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta) ** 2, prior=lv.priors.gaussian(std=1.0))
LINEAR = lv.targets.likelihood(lambda theta, x: -0.5 * (x @ theta) ** 2, prior=lv.priors.gaussian(std=1.0))
START = torch.zeros(3, 2)
DATA = torch.ones(4)
META = torch.zeros(4, 2, device="meta")
SPARSE = torch.zeros(4, 2).to_sparse()
NETWORK = lv.Posterior(torch.nn.Linear(2, 3), "categorical", prior=lv.priors.flat(), num_data=4)


def minibatch(target=LINEAR, seed=0, chains=range(3)):
    return lv.gradients.minibatch(target, torch.ones(4, 2), 2, seed=seed, chains=chains)(START, 0)


def noisy(gradient_fn=None, like=START, chains=range(3)):
    gradient_fn = gradient_fn or lv.gradients.full(GAUSSIAN)
    return lv.gradients.noisy(gradient_fn, 1.0, seed=0, chains=chains, like=like)(START, 0)


def run(kernel=None, target=GAUSSIAN, init=START, num_steps=5, **rest):
    return lv.sample(target, sampler=kernel or lv.sgld(0.01), init=init, num_steps=num_steps, **rest)


class OneNumberForAllChains(lv.targets.Target):
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
    "sgnht beta of one": (lambda: lv.sgnht(0.1, beta=1.0), ValueError, r"sgnht\(beta=.*1\.0"),
    "sgnht without a thermal mass": (lambda: lv.sgnht(0.1, thermal_mass=0.0), ValueError, r"sgnht\(thermal_mass=.*> 0.*0\.0"),
    "sgnht elementwise as text": (lambda: lv.sgnht(0.1, elementwise="yes"), TypeError, r"sgnht\(elementwise=.*'yes'"),
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
    "drift that is none": (lambda: lv.compose(0.1, drift="momentum"), TypeError, r"drift=.*'momentum'"),
    "preconditioner that is none": (lambda: lv.compose(0.1, preconditioner=0.5), TypeError, r"preconditioner=.*0\.5"),
    "empty sum of drifts": (lambda: Total(()), TypeError, r"drifts="),
    "momentum factor": (lambda: Momentum("1"), TypeError, r"bias_factor=.*'1'"),
    "adam factor": (lambda: Adam(math.inf), ValueError, r"bias_factor=.*inf"),
    "metric of sgrhmc that is no function": (lambda: lv.sgrhmc(0.1, metric=None), TypeError, r"metric=.*None"),
    "friction that is not known": (
        lambda: lv.sgrhmc(0.1, metric=torch.diag, friction="odd"),
        ValueError,
        r"friction=.*'metric' or 'even', got 'odd'",
    ),
    "diffusion that is no function": (lambda: lv.complete_recipe(0.1, diffusion=None), TypeError, r"diffusion=.*None"),
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
        r"one number per datum, \(4,\); leave out .*, got \(\)",
    ),
    "kernel that is none": (lambda: run("sgld"), TypeError, r"sampler=.*'sgld'"),
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
    "resume without a kernel": (lambda: lv.resume("x", GAUSSIAN, sampler="sgld"), TypeError, r"resume\(sampler=.*'sgld'"),
    "resume without a target": (lambda: lv.resume("x", None, sampler=lv.sgld(0.1)), TypeError, r"resume\(target=.*got None"),
    "resume with data for a target without": (
        lambda: lv.resume("x", GAUSSIAN, sampler=lv.sgld(0.1), data=START),
        ValueError,
        r"resume\(data=.*no data",
    ),
    "resume of no path": (lambda: lv.resume(3, GAUSSIAN, sampler=lv.sgld(0.1)), TypeError, r"resume\(path=.*3"),
    "resume with a keep that is no function": (
        lambda: lv.resume("x", GAUSSIAN, sampler=lv.sgld(0.1), keep="positions"),
        TypeError,
        r"resume\(keep=.*'positions'",
    ),
    "unknown keep": (lambda: run(keep="everything"), ValueError, r"keep=.*'everything'"),
    "unknown compile": (lambda: run(compile="yes"), ValueError, r"compile=.*'yes'"),
    "control variate without batches": (lambda: run(control_variate=torch.zeros(2)), ValueError, r"control_variate=.*batch_size"),
    "negative first chain": (lambda: run(first_chain=-1), ValueError, r"sample\(first_chain=.*-1"),
    "invariant without a warm-up": (
        lambda: lv.sample(GAUSSIAN, sampler=lv.asgld(0.1, invariant=True), init=torch.zeros(2, 2), num_steps=10),
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
    # numbers that a user gives as a tensor, an array or nested lists
    "no matrix": (lambda: lv.targets.gaussian(None), TypeError, r"gaussian\(covariance=.*numbers of shape \(dim, dim\), got None"),
    "a ragged matrix": (lambda: lv.targets.gaussian([[1.0], [2.0, 3.0]]), TypeError, r"covariance=.*numbers.*\[\[1\.0\], \[2\.0"),
    "a matrix of words": (lambda: lv.targets.mixture([["a", "b"]]), TypeError, r"mixture\(means=.*numbers.*'a'"),
    "a number that no float holds": (lambda: lv.targets.gaussian([[10**400]]), TypeError, r"covariance=.*numbers.*1000"),
    "complex numbers": (lambda: lv.targets.gaussian(torch.eye(2) * 1j), TypeError, r"covariance=.*numbers"),
    "a complex array": (lambda: lv.targets.gaussian(np.eye(2) * 1j), TypeError, r"covariance=.*numbers"),
    "a sparse matrix": (lambda: lv.targets.gaussian(SPARSE), TypeError, r"covariance=.*dense.*sparse_coo"),
    "a matrix without values": (lambda: lv.targets.mixture(META), TypeError, r"means=.*values.*meta"),
    "an empty matrix": (
        lambda: lv.targets.gaussian(torch.zeros(0, 0)),
        ValueError,
        r"covariance=.*shape \(dim, dim\), got \(0, 0\)",
    ),
    "a mean with nan": (lambda: lv.targets.gaussian([[1.0]], mean=[math.nan]), ValueError, r"mean=.*element \[0\].*nan"),
    "weights that are a function": (lambda: lv.targets.mixture(weights=len), TypeError, r"weights=.*numbers of shape \(5,\)"),
    "too many weights": (
        lambda: lv.targets.mixture([[0.0]], weights=[1.0, 1.0]),
        ValueError,
        r"weights=.*shape \(1,\), got \(2,\)",
    ),
    "a std whose square is no number": (lambda: lv.targets.mixture(std=1e308), ValueError, r"mixture\(std=.*1e150, got 1e\+308"),
    "a likelihood of such a std": (lambda: lv.likelihoods.gaussian(5e-324), ValueError, r"gaussian\(std=.*1e-150.*5e-324"),
    "no ravine": (lambda: lv.targets.ravine_data(0), ValueError, r"ravine_data\(num_data=.*\[1, 2\*\*32\), got 0"),
    "the size of a ravine": (lambda: lv.targets.ravine_data(2.5), TypeError, r"ravine_data\(num_data=.*2\.5"),
    "the truth of a ravine": (lambda: lv.targets.ravine_data(3, truth=1.0), ValueError, r"ravine_data\(truth=.*\(2,\), got \(\)"),
    "the seed of a ravine": (lambda: lv.targets.ravine_data(3, seed=-1), ValueError, r"ravine_data\(seed=.*-1"),
    # functions
    "an energy that is a class": (lambda: lv.targets.energy(torch.nn.Linear), TypeError, r"energy\(energy_fn=.*Linear"),
    "an energy without arguments": (lambda: lv.targets.energy(lambda: 1.0), TypeError, r"energy\(energy_fn=.*one position"),
    "an energy without values": (
        lambda: lv.targets.energy(torch.nn.Linear(2, 1, device="meta")),
        TypeError,
        r"energy\(energy_fn=.*Linear.*meta device",
    ),
    "a likelihood without data": (
        lambda: run(target=lv.targets.likelihood(lambda theta: theta, prior=lv.priors.flat()), data=DATA),
        TypeError,
        r"likelihood\(log_likelihood_fn=.*the data's columns, 2 here, got.*takes 1 positional argument but 2",
    ),
    "keep that is an array": (lambda: run(keep=np.ones(2)), ValueError, r"sample\(keep=.*array"),
    "compile that is an array": (lambda: run(compile=np.ones(2)), ValueError, r"sample\(compile=.*array"),
    # targets, data and what gradients take
    "positions of another length": (lambda: run(init=torch.zeros(3, 5)), ValueError, r"sample\(init=.*2 elements.*got 5"),
    "positions that torch would broadcast": (lambda: run(init=torch.zeros(3, 1)), ValueError, r"sample\(init=.*2 elements.*got 1"),
    "a ravine of three elements": (
        lambda: run(target=lv.targets.ravine(), init=torch.zeros(3), data=(DATA, DATA)),
        ValueError,
        r"sample\(init=.*2 elements.*got 3",
    ),
    "a mode of another length": (
        lambda: lv.gradients.find_mode(GAUSSIAN, None, torch.zeros(3)),
        ValueError,
        r"find_mode\(init=.*2 elements.*got 3",
    ),
    "data that is a bool": (lambda: run(target=LINEAR, data=True), TypeError, r"sample\(data=.*tensors, one per column, got True"),
    "sparse data": (lambda: run(target=LINEAR, data=SPARSE), TypeError, r"sample\(data=.*dense.*sparse_coo"),
    "data without values": (lambda: run(target=LINEAR, data=META), TypeError, r"sample\(data=.*values.*meta"),
    "no target of a gradient": (lambda: lv.gradients.full(None), TypeError, r"full\(target=.*None"),
    "data that no target needs": (lambda: lv.gradients.full(GAUSSIAN, DATA), ValueError, r"full\(data=.*no data"),
    "data that no mode needs": (lambda: lv.gradients.find_mode(GAUSSIAN, DATA, START[0]), ValueError, r"find_mode\(data=.*no data"),
    "no target of minibatches": (lambda: minibatch(target=None), TypeError, r"minibatch\(target=.*None"),
    "minibatches without data": (lambda: minibatch(GAUSSIAN), ValueError, r"minibatch\(target=.*with data.*Gaussian"),
    "the seed of minibatches": (lambda: minibatch(seed=1.5), TypeError, r"minibatch\(seed=.*1\.5"),
    "chains that are a number": (lambda: minibatch(chains=3), TypeError, r"minibatch\(chains=.*a range, got 3"),
    "minibatches for other chains": (lambda: minibatch(chains=range(2)), ValueError, r"minibatch\(chains=.*3 chains.*got 2"),
    "noise on no gradient": (lambda: noisy(GAUSSIAN), TypeError, r"noisy\(gradient_fn=.*a GradientFn.*Gaussian"),
    "noise like nothing": (lambda: noisy(like=3), TypeError, r"noisy\(like=.*tensor.*got 3"),
    "noise like others": (lambda: noisy(like=torch.zeros(3, 4)), ValueError, r"noisy\(like=.*2 elements, got 4"),
    "noise for other chains": (lambda: noisy(chains=range(1)), ValueError, r"noisy\(chains=.*3 chains.*got 1"),
    "data of no posterior": (lambda: NETWORK.check_data(None), TypeError, r"Posterior\(data=.*got None"),
    "inputs without values": (lambda: lv.predict(NETWORK, torch.zeros(2, 9), META), TypeError, r"predict\(x=.*values.*meta"),
    "a position that is a text": (lambda: NETWORK.module("theta"), TypeError, r"module\(position=.*'theta'"),
    "a module of many draws": (lambda: NETWORK.module(torch.zeros(2, 9)), ValueError, r"module\(position=.*\(9,\).*\(2, 9\)"),
    "the epoch of a permutation": (lambda: lv.random.permutation(0, 0, -1, 5), ValueError, r"permutation\(epoch=.*-1"),
    "an epoch beyond the last": (
        lambda: lv.random.permutation(0, 0, 2**55, 2**9),
        ValueError,
        r"permutation\(epoch=.*epoch \* num",
    ),
    # paths
    "no path": (lambda: lv.load_samples(None), TypeError, r"load_samples\(path=.*None"),
    "a path of bytes": (lambda: lv.load_samples(b"run"), TypeError, r"load_samples\(path=.*b'run'"),
    "an empty path": (lambda: lv.resume("", GAUSSIAN, sampler=lv.sgld(0.1)), ValueError, r"resume\(path=.*''"),
    "a path that no system has": (lambda: lv.SampleBank("a\0b"), ValueError, r"SampleBank\(path=.*a\\x00b"),
    "a run where none can be": (lambda: run(out="/proc/none/run"), OSError, r"sample\(out=.*'/proc/none/run'"),
    "a bank where none can be": (lambda: lv.SampleBank("/proc/none/bank").add(NORM), OSError, "/proc/none/bank"),
}


@pytest.mark.parametrize("case", TABLE)
def test_it_fails_at_once_with_name_and_value(case):
    call, error, message = TABLE[case]
    with pytest.raises(error, match=message):
        call()


def test_the_largest_seed_is_a_seed():
    assert run(seed=2**64 - 1).draws.isfinite().all()
    assert not torch.equal(NETWORK.init(2, seed=2**64 - 1), NETWORK.init(2, seed=2**63))


def test_the_values_of_noise_like_positions_do_not_count():
    """`resume` gives positions of chains that stopped, which may be NaN."""
    assert torch.equal(noisy(like=START * math.nan).gradient, noisy().gradient)


def test_the_cause_of_an_error_is_kept():
    with pytest.raises(TypeError, match="covariance=") as caught:
        lv.targets.gaussian("text")
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(TypeError, match="of its own"):  # and an error that the function itself raises comes as it is
        run(target=lv.targets.energy(own_error))


def own_error(theta):
    raise TypeError("of its own")


BANK_TABLE = {
    "a draw at a bool": (lambda bank: bank.state_dict(True), TypeError, r"SampleBank\.state_dict\(i=.*True"),
    "a draw at a float": (lambda bank: bank.load(NORM, 0.0), TypeError, r"SampleBank\.load\(i=.*0\.0"),
    "a draw that is not there": (lambda bank: bank.state_dict(np.int64(1)), IndexError, r"no draw 1, the bank has 1"),
    "calls that are a bool": (lambda bank: bank.rewind(torch.tensor(True)), TypeError, r"rewind\(calls=.*tensor\(True\)"),
    "calls that are many": (lambda bank: bank.rewind(torch.zeros(4)), TypeError, r"rewind\(calls=.*tensor\(\[0"),
    "no loader": (lambda bank: bank.update_bn(NORM, None), TypeError, r"update_bn\(loader=.*None"),
    "a loader of one number": (lambda bank: bank.update_bn(NORM, torch.tensor(1.0)), TypeError, r"update_bn\(loader=.*tensor\(1"),
    "a loader without values": (lambda bank: bank.update_bn(NORM, [META]), TypeError, r"update_bn\(loader=.*values.*meta"),
    "inputs of one number": (
        lambda bank: lv.predict(NORM, bank, np.array("text"), likelihood="poisson"),
        TypeError,
        r"predict\(x=.*'text'",
    ),
    "a transform that is none": (lambda bank: lv.predict(NORM, bank, X, transform=1.0), TypeError, r"predict\(transform=.*1\.0"),
    "a transform of two": (
        lambda bank: lv.predict(NORM, bank, X, transform=lambda a, b: a),
        TypeError,
        r"predict\(transform=.*output",
    ),
    "on_error that is an array": (
        lambda bank: lv.predict(NORM, bank, X, likelihood="poisson", on_error=np.ones(2)),
        ValueError,
        r"on_error=.*array",
    ),
}
NORM, X = torch.nn.BatchNorm1d(2), torch.zeros(4, 2)


@pytest.mark.parametrize("case", BANK_TABLE)
def test_a_bank_names_what_it_cannot_take(case, tmp_path):
    call, error, message = BANK_TABLE[case]
    with lv.SampleBank(tmp_path / "bank") as bank:
        bank.add(NORM)
        with pytest.raises(error, match=message):
            call(bank)


def test_a_bank_takes_whole_numbers_of_numpy_and_torch(tmp_path):
    with lv.SampleBank(tmp_path / "bank", thin=np.int64(1)) as bank:
        bank.add(NORM, step=torch.tensor(3))
        assert bank.draws[0].step == 3
        assert bank.state_dict(torch.tensor(-1)).keys() == NORM.state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_finite_values_whose_sum_overflows_are_finite(dtype):
    largest = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    assert check_finite("f", "x", largest) is largest
    assert check_finite("f", "x", largest[:0]).numel() == 0


@pytest.mark.parametrize("values", [[math.inf, -math.inf], [math.nan, 0.0], [-math.inf, 1.0]])
def test_values_that_are_not_finite_are_found_also_where_they_cancel(values):
    with pytest.raises(ValueError, match=r"f\(x=\.\.\.\) needs finite values \(element \[1\] is not\)"):
        check_finite("f", "x", torch.tensor([0.0, *values]))
