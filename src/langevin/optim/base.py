"""What the sampling optimizers share: groups, state, the scale of the loss, and the choice of an engine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Required, TypedDict

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, needs
from langevin.gradients import energy_gradient
from langevin.kernels import Clock, Kernel
from langevin.noise import UPDATE_NOISES, normal, stream
from langevin.targets import priors
from langevin.targets.priors import Prior

try:
    from langevin import fused as engine
except ImportError:  # no numba: the torch engine serves the CPU too
    engine = None  # type: ignore[assignment]

__all__ = ["Common", "LangevinOptimizer"]

_WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
_REFUSED = {
    "weight_decay": "prior=langevin.priors.gaussian(std=...): SGD's weight_decay w is the prior with std = 1 / sqrt(w * num_data)",
    "momentum": "SGHMC(beta=...) for inertia or MSGLD(beta=..., bias_factor=...) for the paper's momentum",
    "noise_scale": "temperature=...: the scale of the noise follows from it",
}


class _Entry(NamedTuple):
    """A parameter that has a gradient, as the engines see it."""

    position: Tensor
    gradient: Tensor
    memory: list[Tensor]
    offset: int  # address of its first element: the number of elements before it in the optimizer
    is_new: bool  # whether this is its first gradient


class Common(TypedDict, total=False):
    """The arguments that every sampling optimizer takes."""

    num_data: Required[int]
    temperature: float
    prior: Prior | None
    seed: int
    fused: bool | None


class LangevinOptimizer(torch.optim.Optimizer):
    """A sampler of ``exp(-U / temperature)`` with ``U = num_data * loss - log prior``, for any training loop.

    The loss is the mean over the batch, as for SGD; nothing else is to be scaled by the user. A subclass names its recipe
    and its settings; the formula is the recipe's own.

    Args:
        params: parameters, or groups of them; any setting may be given per group.
        lr: learning rate as in SGD; the paper's epsilon is lr / num_data. At 0 no time passes: nothing moves, averages stand still.
        settings: the recipe's own.
        num_data: N, the size of the training set.
        temperature: tau; 0 makes the sampler an optimizer.
        prior: one of `langevin.priors`; None is flat. It may be changed in mid-run: ``group["prior"] = ...``.
        seed: every normal is a function of (seed, step, index of the element), so runs repeat bit for bit.
        fused: None takes the fused CPU engine where it can, False always takes plain torch.
        unknown: refused, with a word on what to write instead.
    """

    recipe: ClassVar[Callable[..., Kernel]]
    settings: ClassVar[tuple[str, ...]] = ()
    """The recipe's settings that live in the parameter groups under the same name."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        settings: dict[str, Any],
        *,
        num_data: int,
        temperature: float = 1.0,
        prior: Prior | None = None,
        seed: int = 0,
        fused: bool | None = None,
        **unknown: Any,
    ) -> None:
        """Check the settings and build the groups."""
        self._refuse(unknown)
        common = {"num_data": num_data, "temperature": temperature, "prior": prior, "seed": seed, "fused": fused}
        super().__init__(params, {"lr": lr, **settings, **common, "step": 0})

    @classmethod
    def _refuse(cls, unknown: dict[str, Any]) -> None:
        for name, value in unknown.items():
            if name in _REFUSED:
                raise TypeError(f"{cls.__name__}({name}={value!r}) is not an argument here: write {_REFUSED[name]}")
            raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {name!r}, got {value!r}")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; any setting may differ from the others'. New elements get addresses after all earlier ones."""
        if isinstance(param_group, dict):
            self._refuse({name: value for name, value in param_group.items() if name in _REFUSED})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _check_group(self, group: dict[str, Any]) -> None:
        who = type(self).__name__
        lr = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
        check_number(who, "lr", lr, ">= 0", lambda v: v >= 0)
        check_integer(who, "num_data", group["num_data"], 1)
        check_integer(who, "seed", group["seed"], 0)
        if group["seed"] >= 2**64:
            raise needs(who, "seed", "an int in [0, 2**64)", group["seed"])
        if group["prior"] is not None and not isinstance(group["prior"], Prior):
            raise needs(who, "prior", "None or a prior of langevin.priors", group["prior"], TypeError)
        self._kernel(group)  # checks the rest
        for parameter in group["params"]:
            if not parameter.is_floating_point():
                raise needs(who, "params", "real floating-point parameters", parameter.dtype, TypeError)

    def _kernel(self, group: dict[str, Any]) -> Kernel:
        """Build the kernel of a group's settings; its own step size is not used, for the learning rate may change at any step."""
        return _build(type(self).recipe, group["temperature"], tuple((name, group[name]) for name in self.settings))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of the sampler with the gradients of the mean loss.

        Args:
            closure: evaluates the loss again and returns it.

        Returns:
            What the closure returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        offset = 0
        for group in self.param_groups:
            kernel = self._kernel(group)
            names, entries = kernel.memory, []
            passes = float(group["lr"]) > 0  # at lr 0 no time passes: nothing moves, nothing is remembered
            for parameter in group["params"]:
                if passes and parameter.grad is not None:
                    entries.append(self._entry(parameter, parameter.grad, names, offset))
                offset += parameter.numel()
            self._update(group, kernel, entries)
            group["step"] += 1
        return loss

    def _entry(self, parameter: Tensor, gradient: Tensor, names: tuple[str, ...], offset: int) -> _Entry:
        if gradient.layout != torch.strided:
            raise needs(type(self).__name__, "params", "dense gradients (sparse=False in the layer)", gradient.layout)
        state = self.state[parameter]
        is_new = len(state) < len(names)
        if is_new:
            for name in names:
                # Averages in half precision would stand still: they are kept in float32.
                state[name] = torch.zeros_like(parameter, dtype=_WIDE.get(parameter.dtype, parameter.dtype))
        return _Entry(parameter, gradient, [state[name] for name in names], offset, is_new)

    def _update(self, group: dict[str, Any], kernel: Kernel, entries: list[_Entry]) -> None:
        """Move the parameters: those the fused engine can take in one call per dtype, the others one by one."""
        may_fuse = engine is not None and group["fused"] is not False and kernel.is_elementwise
        batches: dict[tuple[torch.dtype, bool], list[_Entry]] = {}
        for entry in entries:
            if may_fuse and _is_fusable(entry):
                batches.setdefault((entry.position.dtype, entry.is_new), []).append(entry)
            else:
                _update_by_torch(group, kernel, entry)
        for (dtype, is_new), batch in batches.items():
            table = np.array([engine.table_row(*entry[:4]) for entry in batch], dtype=np.int64)
            engine.fuse(kernel, group["prior"], dtype)(
                table,
                num_data=group["num_data"],
                clock=_clock(group, kernel, is_new),
                seed=group["seed"],
                step=group["step"],
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, as tensors and plain values that load with `weights_only=True`."""
        state = super().state_dict()
        for group in state["param_groups"]:
            group["prior"] = priors.to_plain(group["prior"])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of another optimizer of this kind; the next steps are the ones it would have taken."""
        groups = [{**group, "prior": priors.from_plain(group.get("prior"))} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})
        # torch casts state to the parameter's dtype, which would round float32 averages of half precision parameters.
        for saved, group in zip(groups, self.param_groups, strict=True):
            for index, parameter in zip(saved["params"], group["params"], strict=True):
                for name, value in state_dict["state"].get(index, {}).items():
                    self.state[parameter][name] = value.detach().to(parameter.device, copy=True)
            self._check_group(group)

    @property
    def description(self) -> str:
        """What each group samples, as text."""
        return "\n".join(self._describe_group(number, group) for number, group in enumerate(self.param_groups))

    def describe(self) -> None:
        """Print, for each group, epsilon, the scale of the noise, the SDE, the target and the effective temperature of the law."""
        print(self.description)

    def _describe_group(self, number: int, group: dict[str, Any]) -> str:
        epsilon = float(group["lr"]) / group["num_data"]
        if epsilon == 0:
            return f"group {number}: lr 0, nothing moves"
        kernel = dataclasses.replace(self._kernel(group), step_size=epsilon)
        elements = sum(parameter.numel() for parameter in group["params"])
        return "\n".join(
            [
                f"group {number}: {elements:,} elements, step {group['step']}, seed {group['seed']}",
                f"  U = {group['num_data']} * mean loss - log prior, prior: {group['prior'] or 'flat'}",
                f"  epsilon = lr / num_data = {float(group['lr']):g} / {group['num_data']} = {epsilon:g}",
                f"  noise: standard deviation {kernel.noise_scale(epsilon):g} per element and step",
                *(f"  {line}" for line in kernel.description.splitlines()),
            ]
        )


@functools.lru_cache(maxsize=1024)
def _build(recipe: Callable[..., Kernel], temperature: float, settings: tuple[tuple[str, Any], ...]) -> Kernel:
    return recipe(1.0, temperature=temperature, **dict(settings))


def _is_fusable(entry: _Entry) -> bool:
    dtype = entry.position.dtype
    if dtype not in engine.REALS:
        return False
    for tensor in (entry.position, entry.gradient, *entry.memory):
        if not tensor.is_cpu or tensor.dtype != dtype or not tensor.is_contiguous():
            return False
    return True


def _clock(group: dict[str, Any], kernel: Kernel, is_new: bool) -> Clock:
    """Return the numbers of this step; a parameter's first gradient may come late."""
    epsilon = float(group["lr"]) / group["num_data"]
    return kernel.clock(group["step"])._replace(step_size=epsilon, started=0.0 if is_new else 1.0)


def _update_by_torch(group: dict[str, Any], kernel: Kernel, entry: _Entry) -> None:
    """Run the formula on tensors: the oracle of the fused engine, and the path for other devices, dtypes and layouts."""
    dtype = _WIDE.get(entry.position.dtype, entry.position.dtype)
    position, gradient = entry.position.to(dtype), entry.gradient.to(dtype)
    noises = [
        normal(
            group["seed"],
            stream(purpose),
            group["step"],
            position.numel(),
            offset=entry.offset,
            dtype=dtype,
            device=position.device,
        ).view(position.shape)
        for purpose in UPDATE_NOISES[: kernel.num_noises]
    ]
    moved, memory = kernel.update(
        position,
        energy_gradient(gradient, position, group["num_data"], group["prior"]),
        noises[0] if kernel.num_noises == 1 else torch.stack(noises),
        tuple(entry.memory),
        _clock(group, kernel, entry.is_new),
    )
    for old, new in zip((entry.position, *entry.memory), (moved, *memory), strict=True):
        old.copy_(new)
