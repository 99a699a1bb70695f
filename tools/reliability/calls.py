"""Valid calls of the public interface, and the values that each argument accepts, for the fuzzer."""

from __future__ import annotations

import functools
import inspect
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import langevin as lv
from langevin.checks import takes

__all__ = ["CALLS", "Argument", "Call"]


class Argument(NamedTuple):
    """A factory of a valid value, and whether a value is accepted without warning or error."""

    make: Callable[[], Any]
    accepts: Callable[[Any], bool]


class Call(NamedTuple):
    """A function of keyword arguments that uses a public name; good messages contain one of `words`."""

    function: Callable[..., Any]
    arguments: dict[str, Argument]
    words: tuple[str, ...]


CALLS: dict[str, Call] = {}


# ---- what an argument may take


def is_real(value: Any) -> bool:
    """Whether a value is a finite real number, including numpy's, excluding bools."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)) or isinstance(value, complex):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_dense(value: Any) -> bool:
    """Whether a value is a tensor of finite floats with at least one element."""
    if not isinstance(value, Tensor) or value.is_meta or value.layout != torch.strided or not value.is_floating_point():
        return False
    return value.numel() > 0 and bool(torch.isfinite(value).all())


def real(valid: float, holds: Callable[[float], bool] = lambda value: True) -> Argument:
    """Accept a finite number for which `holds` is true."""
    return Argument(lambda: valid, lambda value: is_real(value) and holds(value))


def positive(valid: float) -> Argument:
    return real(valid, lambda value: value > 0)


def not_negative(valid: float) -> Argument:
    return real(valid, lambda value: value >= 0)


def share(valid: float) -> Argument:
    return real(valid, lambda value: 0 <= value < 1)


def whole(valid: int, minimum: int = 0, end: float = math.inf) -> Argument:
    """Accept an int in [minimum, end)."""

    def accepts(value: Any) -> bool:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and minimum <= value < end

    return Argument(lambda: valid, accepts)


def seed() -> Argument:
    return whole(7, 0, 2**64)


def flag(valid: bool) -> Argument:
    return Argument(lambda: valid, lambda value: isinstance(value, (bool, np.bool_)))


def choice(valid: Any, *others: Any) -> Argument:
    return Argument(lambda: valid, lambda value: type(value) in (str, bool, type(None)) and value in (valid, *others))


def function(valid: Callable[..., Any]) -> Argument:
    """Accept no other function: its result is unknown before the call, so a bad one must fail in the call."""
    return Argument(lambda: valid, lambda value: False)


def is_watcher(value: Any) -> bool:
    """Whether a value is a function of two numbers; its result is ignored."""
    return inspect.isfunction(value) and takes(value, 2)


def schedule(valid: Any) -> Argument:
    """Accept a number > 0 or "auto"; none of the bad functions returns numbers > 0."""
    return Argument(lambda: valid, lambda value: value == "auto" if isinstance(value, str) else is_real(value) and value > 0)


def floats(make: Callable[[], Tensor]) -> Argument:
    """Accept a dense tensor of finite floats."""
    return Argument(make, is_dense)


def numbers(make: Callable[[], Any], optional: bool = False) -> Argument:
    """Accept a tensor, an array or nested lists of finite numbers."""

    def accepts(value: Any) -> bool:
        if value is None:
            return optional
        if isinstance(value, Tensor):
            return is_dense(value.float()) if value.layout == torch.strided and not value.is_complex() else False
        try:
            array = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            return False
        return array.size > 0 and bool(np.isfinite(array).all())

    return Argument(make, accepts)


def columns(make: Callable[[], Any]) -> Argument:
    """Accept columns of a data set, including integers."""

    def accepts(value: Any) -> bool:
        plain = isinstance(value, Tensor) and not value.is_meta and value.layout == torch.strided and not value.is_complex()
        return plain and value.numel() > 0 and bool(torch.isfinite(value).all())

    return Argument(make, accepts)


def optional(argument: Argument) -> Argument:
    return Argument(argument.make, lambda value: value is None or argument.accepts(value))


def only(make: Callable[[], Any]) -> Argument:
    """Accept only the valid value."""
    return Argument(make, lambda value: False)


def anything(make: Callable[[], Any]) -> Argument:
    return Argument(make, lambda value: True)


# ---- what calls are made of


def call(*words: str, **arguments: Argument) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a call; `words` are names for it in good messages."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CALLS[words[0]] = Call(function, arguments, (*words, words[0].rpartition(".")[2]))
        return function

    return add


def new_path() -> str:
    return str(Path(tempfile.mkdtemp(prefix="langevin-fuzz-")) / "new")


def addressed(*shape: int) -> Tensor:
    return lv.random.normal(0, 0, 0, math.prod(shape)).reshape(shape)


def target() -> Any:
    return lv.targets.gaussian([[1.0, 0.5], [0.5, 1.0]])


def regression() -> Any:
    return lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0]) ** 2 - theta[1] ** 2, prior=lv.priors.gaussian(std=1.0))


def data() -> Tensor:
    return addressed(12)


@functools.cache
def some_samples() -> Any:
    return lv.sample(target(), sampler=lv.sgld(0.1), init=torch.zeros(4, 2), num_steps=60, warmup=10, compile=False, progress=False)


@functools.cache
def some_run() -> str:
    path = new_path()
    lv.sample(target(), sampler=lv.sgld(0.1), init=torch.zeros(4, 2), num_steps=20, out=path, compile=False, progress=False)
    return path


def model() -> nn.Module:
    layer = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    nn.init.constant_(layer[0].weight, 0.3)
    return layer.eval()


@functools.cache
def some_bank() -> str:
    path = new_path()
    with lv.SampleBank(path) as bank:
        for step in range(3):
            bank.add(model(), step=step)
    return path


def bank_copy() -> Any:
    import shutil

    path = new_path()
    shutil.copytree(some_bank(), path)
    return lv.SampleBank(path, resume=True)


def run_kernel(kernel: Any) -> Any:
    """Run a few steps: a sampler that accepts its arguments must run."""
    return lv.sample(target(), sampler=kernel, init=torch.zeros(4, 2), num_steps=3, compile=False, progress=False)


def run_target(made: Any, rows: Any = None) -> Any:
    return lv.sample(made, sampler=lv.sgld(0.01), init=torch.zeros(4, 2), num_steps=3, data=rows, compile=False, progress=False)


def plot(function: Callable[..., Any], **arguments: Any) -> None:
    """Draw and close the figure."""
    from matplotlib import pyplot

    try:
        function(**arguments)
    finally:
        pyplot.close("all")


# ---- recipes, each run for three steps

KERNEL = {"step_size": schedule(0.1), "temperature": not_negative(1.0)}
# The class int, as a function of the step, is a schedule that grows: odd, but none of our business.
FACTOR = {"bias_factor": Argument(lambda: 1.0, lambda value: value is int or (is_real(value) and value >= 0))}
PAIR = {"betas": Argument(lambda: (0.9, 0.999), lambda value: False)}
FORM = {"invariant": flag(False)}
FROZEN = {"invariant": flag(True), "adapt_steps": optional(whole(2, 1))}
ROOT, EPS, BETA = {"eps_root": positive(1e-5)}, {"eps": positive(1e-5)}, {"beta": share(0.9)}
MATRIX = function(lambda theta: torch.eye(2))


def _sampler(name: str, **arguments: Argument) -> None:
    call(name, "sample", **KERNEL, **arguments)(lambda **given: run_kernel(getattr(lv, name)(**given)))


_sampler("sgld")
_sampler("psgld", **BETA, **EPS, num_data=positive(1.0), curvature=optional(function(lambda theta: torch.ones_like(theta))))
_sampler("sghmc", **BETA)
_sampler("sgnht", **BETA, thermal_mass=positive(500.0), elementwise=flag(False))
_sampler("sgrld", metric=MATRIX, correction=flag(True))
_sampler("sgrhmc", metric=MATRIX, **BETA, friction=choice("metric", "even"), correction=flag(True))
_sampler("msgld", **FACTOR, **BETA, **FORM)
_sampler("asgld", **FACTOR, **PAIR, **ROOT, **FROZEN)
_sampler("asgld_full", **FACTOR, **PAIR, **ROOT, **FROZEN)
_sampler("adamax_sgld", **FACTOR, **PAIR, **EPS, **FROZEN)
_sampler("adadelta_sgld", **FACTOR, **BETA, **ROOT)
_sampler(
    "compose",
    drift=optional(only(lv.drifts.Momentum)),
    preconditioner=optional(only(lv.preconditioners.RMS)),
    annealing=FACTOR["bias_factor"],
    **FROZEN,
)
_sampler(
    "complete_recipe",
    diffusion=function(lambda xi: torch.eye(len(xi))),
    curl=optional(function(lambda xi: torch.zeros(len(xi), len(xi)))),
    num_auxiliary=whole(1, 0, 2),  # without auxiliary variables `kinetic` is not called
    kinetic=optional(function(lambda auxiliary: 0.5 * (auxiliary * auxiliary).sum())),
)


def _first(function: Callable[..., Any], argument: Argument) -> dict[str, Argument]:
    """Return an argument under the name of the function's first."""
    return {next(iter(inspect.signature(function).parameters)): argument}


def _drift(name: str, **arguments: Argument) -> None:
    make = getattr(lv.drifts, name)
    call(f"drifts.{name}", **arguments)(lambda **given: run_kernel(lv.compose(0.1, drift=make(**given))))


_drift("Momentum", **_first(lv.drifts.Momentum, not_negative(1.0)), **BETA)
_drift("Adam", **_first(lv.drifts.Adam, not_negative(1.0)), **PAIR, **ROOT)
_drift("AdamFull", **_first(lv.drifts.AdamFull, not_negative(1.0)), **PAIR, **ROOT)
_drift("AdaMax", **_first(lv.drifts.AdaMax, not_negative(1.0)), **PAIR, **EPS)
_drift("Adadelta", **_first(lv.drifts.Adadelta, not_negative(1.0)), **BETA, **ROOT)
_drift("Total", drifts=only(lambda: (lv.drifts.Momentum(), lv.drifts.Adam())))


@call("preconditioners.RMS", **BETA, **EPS, num_data=positive(1.0), curvature=optional(function(torch.ones_like)))
def _(**given: Any) -> Any:
    return run_kernel(lv.compose(0.1, preconditioner=lv.preconditioners.RMS(**given)))


@call("preconditioners.Fisher", information=MATRIX, correction=flag(True))
def _(**given: Any) -> Any:
    return run_kernel(lv.compose(0.1, preconditioner=lv.preconditioners.Fisher(**given)))


# ---- sample, resume, open

PATH = Argument(new_path, lambda value: isinstance(value, (str, Path)) and str(value).isalpha())
SAMPLE = {
    "sampler": only(lambda: lv.sgld(0.1)),
    "target": only(target),
    "init": optional(floats(lambda: torch.zeros(4, 2))),
    "num_steps": optional(whole(20, 1, 2**20)),
    "warmup": optional(whole(5, 0, 20)),
    "thin": optional(whole(2, 1, 20)),
    "seed": seed(),
    "first_chain": whole(0, 0, 2**32),
    "keep": choice("positions", "moments"),
    "out": optional(PATH),
    "compile": choice(False, True, "auto"),
    "progress": Argument(lambda: False, lambda value: value is None or isinstance(value, bool) or is_watcher(value)),
}
call("sample", **SAMPLE)(lambda **given: lv.sample(**given))
call(
    "sample with data",
    "sample",
    "minibatch",
    **SAMPLE | {
        "target": only(regression),
        "data": columns(data),
        "batch_size": optional(whole(4, 1, 13)),
        "control_variate": optional(floats(lambda: torch.zeros(2))),
        "keep": function(lambda theta: theta.sum()),
        "out": Argument(lambda: None, optional(PATH).accepts),
    },
)(lambda **given: lv.sample(**given))  # fmt: skip
call(
    "resume",
    "langevin.sample",
    path=only(some_run),
    sampler=only(lambda: lv.sgld(0.1)),
    target=only(target),
    data=optional(only(lambda: None)),
    keep=optional(only(lambda: None)),
)(lambda **given: lv.resume(**given))
call("open", "langevin.sample", path=only(some_run))(lambda **given: lv.load_samples(**given).draws)

# ---- targets, priors, schedules, likelihoods, gradients


@call(
    "targets.gaussian",
    covariance=numbers(lambda: [[1.0, 0.5], [0.5, 1.0]]),
    mean=numbers(lambda: [0.0, 1.0], True),
    gradient_noise=not_negative(0.0),
)
def _(**given: Any) -> Any:
    return run_target(lv.targets.gaussian(**given))


@call(
    "targets.mixture",
    means=numbers(lambda: [[0.0, 0.0], [1.0, 1.0]]),
    std=positive(1.0),
    weights=numbers(lambda: [0.5, 0.5], True),
    gradient_noise=not_negative(0.0),
)
def _(**given: Any) -> Any:
    return run_target(lv.targets.mixture(**given))


@call("targets.energy", "energy_fn", energy_fn=function(lambda theta: 0.5 * theta @ theta), gradient_noise=not_negative(0.0))
def _(**given: Any) -> Any:
    return run_target(lv.targets.energy(**given))


@call(
    "targets.likelihood",
    log_likelihood_fn=function(lambda theta, x: -0.5 * (x - theta[0]) ** 2),
    prior=only(lambda: lv.priors.gaussian(1.0)),
    gradient_noise=not_negative(0.0),
)
def _(**given: Any) -> Any:
    return run_target(lv.targets.likelihood(**given), data())


@call("targets.ravine", prior=optional(only(lambda: lv.priors.gaussian(1.0))), gradient_noise=not_negative(0.0))
def _(**given: Any) -> Any:
    return run_target(lv.targets.ravine(**given), lv.targets.ravine_data(10, dtype=torch.float32))


call(
    "targets.ravine_data",
    num_data=whole(10, 1, 2**30),
    truth=numbers(lambda: (20.0, 10.0)),
    seed=seed(),
    dtype=Argument(lambda: torch.float64, lambda value: isinstance(value, torch.dtype)),
)(lambda **given: lv.targets.ravine_data(**given))
call("priors.gaussian", std=positive(1.0))(lambda **given: lv.priors.gaussian(**given).gradient(torch.ones(3)))
call("priors.spike_slab", slab_weight=real(0.1, lambda value: 0 < value < 1), slab_std=positive(1.0), spike_std=positive(0.1))(
    lambda **given: lv.priors.spike_slab(**given).gradient(torch.ones(3))
)
call("priors.to_plain", **_first(lv.priors.to_plain, optional(only(lambda: lv.priors.gaussian(1.0)))))(
    lambda **given: lv.priors.to_plain(**given)
)
call("priors.from_plain", **_first(lv.priors.from_plain, optional(only(lambda: {"kind": "GaussianPrior", "std": 1.0}))))(
    lambda **given: lv.priors.from_plain(**given)
)


def _schedule(name: str, **arguments: Argument) -> None:
    def evaluate(**given: Any) -> Any:
        made = getattr(lv.schedules, name)(**given)
        return [made(step) for step in (0, 1, 10**6)]

    call(f"schedules.{name}", **arguments)(evaluate)


_schedule("constant", value=positive(0.1))
_schedule("step_decay", initial=positive(0.1), factor=real(0.5, lambda value: 0 < value <= 1), every=whole(10, 1))
_schedule("polynomial", initial=positive(0.1), power=real(0.5, lambda value: 0 < value <= 1), offset=positive(1.0))
_schedule("cyclical", initial=positive(0.1), cycle_length=whole(10, 1), floor=share(0.0), exploration=share(0.2))
call("likelihoods.gaussian", std=positive(1.0))(
    lambda **given: lv.likelihoods.gaussian(**given).log_likelihood(torch.zeros(3), torch.zeros(3))
)
call("gradients.full", target=only(regression), data=columns(data))(
    lambda **given: lv.gradients.full(**given)(torch.zeros(4, 2), 0)
)
call(
    "gradients.minibatch",
    target=only(regression),
    data=columns(data),
    batch_size=whole(4, 1, 13),
    seed=seed(),
    chains=only(lambda: range(4)),
)(lambda **given: lv.gradients.minibatch(**given)(torch.zeros(4, 2), 0))
call(
    "gradients.control_variate",
    target=only(regression),
    data=columns(data),
    batch_size=whole(4, 1, 13),
    mode=floats(lambda: torch.zeros(2)),
    seed=seed(),
    chains=only(lambda: range(4)),
)(lambda **given: lv.gradients.control_variate(**given)(torch.zeros(4, 2), 0))
call(
    "gradients.noisy",
    gradient_fn=only(lambda: lv.gradients.full(target())),
    std=not_negative(1.0),
    seed=seed(),
    chains=only(lambda: range(4)),
    # Only its shape, dtype and device count: `resume` gives positions of chains that stopped, which may be NaN.
    like=Argument(lambda: torch.zeros(4, 2), lambda value: is_dense(torch.zeros_like(value)) and value.shape[-1] == 2),
)(lambda **given: lv.gradients.noisy(**given)(torch.zeros(4, 2), 0))
call(
    "gradients.find_mode",
    target=only(target),
    data=optional(only(lambda: None)),
    init=floats(lambda: torch.zeros(2)),
    num_steps=whole(20, 1),
    tolerance=positive(0.1),
)(lambda **given: lv.gradients.find_mode(**given))

# ---- noise

ADDRESS = {
    "seed": seed(),
    "stream": Argument(lambda: 3, lambda value: isinstance(value, range) or whole(0, 0, 2**40).accepts(value)),
    "step": Argument(lambda: 5, lambda value: isinstance(value, range) or whole(0, 0, 2**56).accepts(value)),
}
DEVICE = {"device": Argument(lambda: "cpu", lambda value: isinstance(value, torch.device))}
DTYPE = {"dtype": Argument(lambda: torch.float32, lambda value: isinstance(value, torch.dtype))}


def _noise(name: str, **arguments: Argument) -> None:
    call(f"noise.{name}", **arguments)(lambda **given: getattr(lv.random, name)(**given))


NORMAL = ADDRESS | {"size": whole(10, 0, 2**32), "offset": whole(0, 0, 2**33)} | DTYPE | DEVICE
_noise("normal", **NORMAL)
_noise("normal_reference", **NORMAL)
BATCH = ADDRESS | {"batch_size": whole(4, 1, 13), "num_data": whole(12, 4, 2**62)} | DEVICE
_noise("batch_indices", **BATCH)
_noise("batch_indices_reference", **BATCH)
_noise("permutation", seed=seed(), stream=ADDRESS["stream"], epoch=ADDRESS["step"], num=whole(5, 1, 2**32), **DEVICE)
_noise("integers", **ADDRESS, size=whole(10, 0, 2**32), bounds=only(lambda: (6, 6)), **DEVICE)
_noise("stream", purpose=whole(2, 0, 256), chain=whole(0, 0, 2**32))
_noise(
    "streams",
    purpose=whole(2, 0, 256),
    chains=Argument(lambda: range(3), lambda value: isinstance(value, range) and value.step == 1),
)

# ---- optimizers, each for two steps

COMMON = {
    "params": only(lambda: [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]),
    "lr": Argument(lambda: 0.1, lambda value: (is_dense(value) and value.numel() == 1) or (is_real(value) and value >= 0)),
    "num_data": whole(50, 1),
    "temperature": not_negative(1.0),
    "prior": optional(only(lambda: lv.priors.gaussian(1.0))),
    "seed": optional(seed()),
    "fused": Argument(lambda: None, lambda value: value is None or isinstance(value, bool)),
}
OPTIMIZERS: dict[str, dict[str, Argument]] = {
    "SGLD": {},
    "PSGLD": BETA | EPS,
    "SGHMC": BETA,
    "SGNHT": BETA | {"thermal_mass": positive(500.0)},
    "MSGLD": FACTOR | BETA | FORM,
    "ASGLD": FACTOR | PAIR | ROOT | FROZEN,
    "AdaMaxSGLD": FACTOR | PAIR | EPS | FROZEN,
    "AdadeltaSGLD": FACTOR | BETA | ROOT,
}


def two_steps(optimizer: Any) -> list[Tensor]:
    for _ in range(2):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
    optimizer.state_dict()
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _optimizer(name: str, arguments: dict[str, Argument]) -> None:
    call(f"optim.{name}", name.lower(), **COMMON | arguments)(lambda **given: two_steps(getattr(lv.optim, name)(**given)))


for _name, _arguments in OPTIMIZERS.items():
    _optimizer(_name, _arguments)


def optimizer() -> Any:
    return lv.optim.MSGLD([nn.Parameter(torch.ones(3))], lr=0.1, num_data=50, seed=1)


@call("optim.MSGLD.step", "MSGLD", closure=optional(Argument(lambda: lambda: torch.tensor(1.0), callable)))
def _(**given: Any) -> Any:
    made = optimizer()
    made.param_groups[0]["params"][0].grad = torch.ones(3)
    made.step(**given)
    return made.param_groups[0]["params"]


@call("optim.MSGLD.load_state_dict", "MSGLD", state_dict=only(lambda: optimizer().state_dict()))
def _(**given: Any) -> Any:
    made = optimizer()
    made.load_state_dict(given["state_dict"])
    return two_steps(made)


@call("optim.MSGLD.add_param_group", "MSGLD", param_group=only(lambda: {"params": [nn.Parameter(torch.ones(2))], "lr": 0.2}))
def _(**given: Any) -> Any:
    made = optimizer()
    made.add_param_group(given["param_group"])
    return two_steps(made)


@call(
    "optim.MSGLD group setting",
    "MSGLD",
    "msgld",
    **{k: COMMON[k] for k in ("lr", "num_data", "temperature", "prior", "seed", "fused")},
    **FACTOR,
    **BETA,
)
def _(**given: Any) -> Any:
    """Settings may change during a run and are then checked."""
    made = optimizer()
    made.param_groups[0].update(given)
    return two_steps(made)


# ---- modules: Posterior and SampleBank


def network() -> nn.Module:
    layer = nn.Linear(2, 3)
    nn.init.constant_(layer.weight, 0.1)
    nn.init.constant_(layer.bias, 0.0)
    return layer


def posterior() -> Any:
    return lv.Posterior(network(), "categorical", prior=lv.priors.gaussian(1.0), num_data=12)


def labels() -> Tensor:
    return torch.arange(12) % 3


INPUT = Argument(
    lambda: torch.zeros(4, 2), lambda value: isinstance(value, Tensor) and value.is_floating_point() and not value.is_meta
)
MODULE = Argument(network, lambda value: isinstance(value, nn.Module) and not next(value.parameters()).is_meta)


@call(
    "Posterior",
    "sample",
    "categorical",
    model=MODULE,
    likelihood=choice("categorical"),
    prior=only(lambda: lv.priors.gaussian(1.0)),
    num_data=whole(12, 1),
)
def _(**given: Any) -> Any:
    made = lv.Posterior(**given)
    rows = addressed(12, 2), labels()
    return lv.sample(made, sampler=lv.sgld(1e-3), num_steps=3, init=made.init(2), data=rows, compile=False, progress=False)


@call(
    "Posterior.sample",
    "Posterior",
    "sample",
    "categorical",
    x=only(lambda: addressed(12, 2)),
    y=only(labels),
    init=floats(lambda: posterior().init(2)),
)
def _(x: Any, y: Any, init: Any) -> Any:
    return lv.sample(
        posterior(), sampler=lv.sgld(1e-3), init=init, num_steps=3, data=(x, y), batch_size=4, compile=False, progress=False
    )


call("Posterior.init", chains=whole(2, 1, 2**16), seed=seed(), first_chain=whole(0, 0, 2**32))(
    lambda **given: posterior().init(**given)
)
call("predict", "Posterior", draws=floats(lambda: torch.zeros(2, 5, 9)), x=INPUT, batch_size=optional(whole(256, 1)))(
    lambda **given: lv.predict(posterior(), **given).mean.shape
)
call(
    "log_likelihood",
    "Posterior",
    "categorical",
    draws=floats(lambda: torch.zeros(2, 5, 9)),
    x=floats(lambda: torch.zeros(12, 2)),
    y=only(labels),
    batch_size=optional(whole(256, 1)),
)(lambda **given: lv.log_likelihood(posterior(), **given))
call("Posterior.module", "Posterior", position=floats(lambda: torch.zeros(9)))(
    lambda **given: posterior().module(**given)(torch.zeros(1, 2))
)
call("Posterior.check_data", "Posterior", "categorical", columns=only(lambda: (addressed(12, 2), labels())))(
    lambda **given: posterior().check_data(**given)
)


@call("SampleBank", path=PATH, thin=whole(1, 1), max_draws=optional(whole(2, 1)), resume=flag(False))
def _(**given: Any) -> Any:
    with lv.SampleBank(**given) as bank:
        for _ in range(3):
            bank.add(model())
        return len(bank)


BANK = {"model": only(model)}
INDEX = Argument(lambda: 0, lambda value: type(value) in (int, np.int64) and -3 <= value < 3)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return getattr(value, "size", 1) == 1 or getattr(value, "ndim", 1) == 0
    return isinstance(value, (type(None), bool, int, float, str))


def _bank(method: str, **arguments: Argument) -> None:
    def use(**given: Any) -> None:
        getattr(bank_copy(), method)(**given)

    call(f"SampleBank.{method}", "SampleBank", **arguments)(use)


_bank("add", **BANK, step=optional(whole(3, -(10**500))), loss=Argument(lambda: 0.5, _is_plain))
_bank("rewind", calls=whole(2, 0))
_bank("update_bn", **BANK, loader=only(lambda: [torch.ones(4, 2), torch.zeros(4, 2)]))
_bank("state_dict", i=INDEX)
_bank("load", **BANK, i=INDEX)


@call("predict of a bank", "predict", **BANK, x=INPUT, on_error=choice("raise", "skip"))
def _(**given: Any) -> Any:
    return lv.predict(given.pop("model"), bank_copy(), transform=lambda output: output, **given).mean


@call("SampleBank.models", "SampleBank", **BANK, on_error=choice("raise", "skip"))
def _(**given: Any) -> Any:
    return [module(torch.zeros(4, 2)) for module in bank_copy().models(**given)]


# ---- diagnostics


def draws() -> Tensor:
    return addressed(4, 50, 2)


def _diagnostic(name: str, **arguments: Argument) -> None:
    call(f"diagnostics.{name}", **arguments)(lambda **given: getattr(lv.diagnostics, name)(**given))


def _plot(name: str, **arguments: Argument) -> None:
    call(f"diagnostics.{name}", **arguments)(lambda **given: plot(getattr(lv.diagnostics, name), **given))


DRAWS, SAMPLES, TARGET = floats(draws), only(some_samples), only(target)
ELEMENTS = optional(Argument(lambda: [0, 1], lambda value: False))
_diagnostic("ess", draws=DRAWS, method=choice("bulk", "tail", "mean"))
_diagnostic("rhat", draws=DRAWS)
_diagnostic("mcse", draws=DRAWS)
_diagnostic("autocorrelation", draws=DRAWS, max_lag=whole(20, 0))
_diagnostic("moment_errors", draws=DRAWS, mean=numbers(lambda: [0.0, 0.0]), covariance=numbers(lambda: [[1.0, 0.0], [0.0, 1.0]]))
_diagnostic(
    "sliced_wasserstein", draws=DRAWS, reference=floats(lambda: addressed(100, 2)), num_directions=whole(8, 1, 2**20), seed=seed()
)
_diagnostic("mode_shares", draws=DRAWS, target=only(lv.targets.mixture))
_diagnostic(
    "grid_total_variation",
    draws=DRAWS,
    target=TARGET,
    half_width=positive(4.0),
    bins=whole(10, 1, 2**12),
    data=optional(only(lambda: None)),
    temperature=positive(1.0),
)
_diagnostic(
    "kernel_stein_discrepancy",
    draws=DRAWS,
    gradients=floats(draws),
    temperature=positive(1.0),
    scale=positive(1.0),
    num=whole(50, 1),
    block=whole(16, 1),
)
_diagnostic(
    "kinetic_temperature",
    velocity=DRAWS,
    step_size=positive(0.1),
    beta=real(0.9, lambda value: 0 <= value <= 1),
    expected=optional(not_negative(1.0)),
)
_diagnostic(
    "configurational_temperature",
    draws=DRAWS,
    gradients=floats(draws),
    centre=numbers(lambda: [0.0, 0.0], True),
    expected=optional(not_negative(1.0)),
)
_diagnostic(
    "effective_temperature",
    samples=SAMPLES,
    target=TARGET,
    data=optional(only(lambda: None)),
    kernel=optional(only(lambda: lv.sgld(0.1))),
    centre=numbers(lambda: torch.zeros(2), optional=True),
    num=whole(50, 2),
)
_diagnostic(
    "ksd",
    samples=SAMPLES,
    target=TARGET,
    data=optional(only(lambda: None)),
    temperature=positive(1.0),
    scale=positive(1.0),
    num=whole(50, 1),
    block=whole(16, 1),
)
_plot("trace", samples=SAMPLES, elements=ELEMENTS, axes=optional(only(lambda: None)))
_plot(
    "running_mean",
    samples=SAMPLES,
    reference=numbers(lambda: [0.0, 0.0], True),
    elements=ELEMENTS,
    axes=optional(only(lambda: None)),
)
_plot("autocorrelation_plot", samples=SAMPLES, max_lag=whole(20, 1), elements=ELEMENTS, axes=optional(only(lambda: None)))
_plot(
    "pair",
    samples=SAMPLES,
    target=optional(TARGET),
    data=optional(only(lambda: None)),
    elements=Argument(lambda: (0, 1), lambda value: False),
    temperature=positive(1.0),
    axes=optional(only(lambda: None)),
)
