"""The settings of a parameter group: their checks, and the kernel and priors that they define."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Required, TypedDict

from torch import Tensor

from langevin.checks import check_bool, check_integer, check_number, needs
from langevin.kernels import Kernel
from langevin.kernels.gradient_noise import FollowedNoise, GivenFriction, GradientNoise
from langevin.optim.addresses import BLOCK, MAX_ADDRESS, Group
from langevin.random.address import MAX_CHAIN, MAX_SEED, MAX_STEP
from langevin.targets import priors
from langevin.targets.priors import PlacedPrior, Prior, check_any_prior, place

__all__ = ["CHECKED", "DEFAULTS", "MICRO_BATCHES", "REPLACEMENTS", "ROTATED", "SUCCESSIVE"]
__all__ += ["NOISES", "Common", "Group"]
__all__ += ["build_kernel", "check_group", "check_patterns", "describe_group", "named_priors"]
__all__ += ["prior_of_weight_decay", "refuse_unknown"]

CHECKED = (
    "lr", "num_data", "temperature", "prior", "fused", "master", "seed", "chain", "first_address",
)  # fmt: skip
"""Settings of every sampler that are checked again when they change."""

SUCCESSIVE, MICRO_BATCHES = FollowedNoise(), FollowedNoise(is_given=True)
"""The gradient noise of a kernel, estimated from successive gradients or by `observe`."""

ROTATED = GivenFriction()
"""The gradient noise of a kernel that takes its friction from `langevin.optim.kronecker`."""

NOISES = (None, "corrected", "corrected-diagonal")
"""Values of the setting `noise`."""

REPLACEMENTS = {
    "momentum": "SGHMC(beta=...) for inertia or MSGLD(beta=..., bias_factor=...) for the paper's "
    "momentum",
    "noise_scale": "temperature=...: the scale of the noise follows from it",
}


DEFAULTS = {
    "num_data": None, "temperature": 1.0, "prior": None, "fused": None, "master": True,
    "weight_decay": 0.0, "seed": 0, "chain": 0, "first_address": 0,
}  # fmt: skip
"""The common arguments and their defaults; num_data is required."""


class Common(TypedDict, total=False):
    """The arguments that every sampling optimizer takes.

    - `num_data`: N, the size of the training set (of a language model: the number of tokens that
      the loss averages over).
    - `temperature`: tau; 0 makes the sampler an optimizer.
    - `prior`: one of `langevin.priors`, or any object with their two methods; None is flat. For
      `by_name` give the parameters with their names, ``model.named_parameters()``. It may be
      changed during a run: ``group["prior"] = ...``.
    - `seed`: an int in [0, 2**64).
    - `chain`: an int in [0, 2**32): which of the runs with this seed.
    - `first_address`: address of the first element, in 32-bit words, a multiple of 4; later groups
      continue it.
    - `fused`: None uses fused CPU code, or generated code on a GPU, where possible; False always
      uses plain torch; True fails where fused CPU code is impossible.
    - `master`: update parameters in half precision through a float32 copy in the state, so that
      steps below their spacing add up; False saves these four bytes per element.
    - `weight_decay`: w > 0 is the prior N(0, 1 / (w num_data)), as in SGD; for trainers that set
      it.
    """

    num_data: Required[int]
    temperature: float
    prior: Prior | PlacedPrior | None
    seed: int
    chain: int
    first_address: int
    fused: bool | None
    master: bool
    weight_decay: float


def refuse_unknown(who: str, given: Group) -> None:
    """Raise a TypeError for an unknown argument, with its replacement where there is one."""
    for name, value in given.items():
        if name in REPLACEMENTS:
            hint = f"write {REPLACEMENTS[name]}"
            raise TypeError(f"{who}({name}={value!r}) is not an argument here: {hint}")
        raise TypeError(f"{who}() got an unexpected keyword argument {name!r}, got {value!r}")


def prior_of_weight_decay(who: str, group: Group) -> None:
    """Replace a group's weight decay w by the equivalent prior N(0, 1 / (w num_data))."""
    decay = check_number(
        who, "weight_decay", group.pop("weight_decay", 0.0), ">= 0", lambda v: v >= 0
    )
    if decay == 0:
        return
    if group["prior"] is not None:
        condition = f"0 together with prior={group['prior']}: weight decay is a prior"
        raise needs(who, "weight_decay", condition, decay)
    check_integer(who, "num_data", group["num_data"], 1)
    group["prior"] = prior = priors.gaussian(std=(decay * group["num_data"]) ** -0.5)
    print(
        f"{who}: weight_decay={decay:g} is the prior N(0, std**2) with "
        f"std = 1 / sqrt({decay:g} * num_data) = {prior.std:g}"
    )


def check_group(who: str, group: Group, first_address: int) -> None:
    """Check the settings that all samplers share."""
    lr = group["lr"]  # torch's schedulers also accept tensors
    if isinstance(lr, Tensor) and lr.numel() == 1 and not lr.is_meta and not lr.is_complex():
        lr = lr.item()
    check_number(who, "lr", lr, ">= 0", lambda v: v >= 0)
    check_integer(who, "num_data", group["num_data"], 1)
    ends = {"seed": MAX_SEED, "chain": MAX_CHAIN, "step": MAX_STEP, "first_address": MAX_ADDRESS}
    for name, end in ends.items():
        check_integer(who, name, group[name], 0, end)
    if group["first_address"] % BLOCK or group["first_address"] != first_address:
        condition = "a multiple of 4, equal in all groups, such as another optimizer's next_address"
        raise needs(who, "first_address", condition, group["first_address"])
    if group["prior"] is not None:
        check_any_prior(who, group["prior"])
    named_priors(who, group)
    if group["fused"] is not None and not isinstance(group["fused"], bool):
        raise needs(who, "fused", "None, True or False", group["fused"], TypeError)
    check_bool(who, "master", group["master"])


def check_patterns(groups: Sequence[Group]) -> None:
    """Fail when a prior by name has a pattern that matches no parameter in any of its groups."""
    names: dict[PlacedPrior, list[str]] = {}
    for group in groups:
        if isinstance(group["prior"], PlacedPrior) and group.get("param_names") is not None:
            names.setdefault(group["prior"], []).extend(group["param_names"])
    for prior, known in names.items():
        prior.check_names(known)


_named_priors = functools.lru_cache(maxsize=256)(place)  # names and shapes repeat at every step


def named_priors(who: str, group: Group) -> Sequence[Prior | None]:
    """Return the prior of each parameter of a group; None is flat."""
    prior, parameters = group["prior"], group["params"]
    if not isinstance(prior, PlacedPrior):
        return [prior] * len(parameters)
    names = group.get("param_names")
    if names is None and prior.needs_names:
        condition = f"named parameters, {who}(model.named_parameters(), ...), for a prior by name"
        raise needs(who, "prior", condition, prior)
    names = [""] * len(parameters) if names is None else names
    return _named_priors(prior, tuple(names), tuple(p.shape for p in parameters))


@functools.lru_cache(maxsize=1024, typed=True)  # typed: True is not 1.0
def build_kernel(
    builder: Callable[..., Kernel],
    names: tuple[str, ...],
    temperature: float,
    noise: GradientNoise,
    *values: object,
) -> Kernel:
    """Build the kernel of a group's settings. Its step size is unused: lr may change any time."""
    kernel = builder(1.0, temperature=temperature, **dict(zip(names, values, strict=True)))
    return kernel.with_gradient_noise(noise)


def describe_group(number: int, group: Group, kernel: Kernel, heat: object) -> str:
    """Return epsilon, noise scale and excess temperature, and the kernel's description."""
    lr, num_data = float(group["lr"]), group["num_data"]
    epsilon = lr / num_data
    kernel = kernel.with_step_size(epsilon)
    noise = kernel.noise_scale(kernel.inputs(0))
    elements = sum(parameter.numel() for parameter in group["params"])
    lines = [
        f"group {number}: {elements:,} elements, step {group['step']}, seed {group['seed']}, "
        f"chain {group['chain']}",
        f"  U = {num_data} * mean loss - log prior, prior: {group['prior'] or 'flat'}",
        f"  epsilon = lr / num_data = {lr:g} / {num_data} = {epsilon:g}",
        f"  noise: standard deviation {noise:g} per element and step",
        f"  excess temperature: {heat}",
        *(f"  {line}" for line in kernel.description.splitlines()),
    ]
    return "\n".join(lines)
