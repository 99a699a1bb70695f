"""What the sampling optimizers share: groups, settings, state, and the order of a step."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Required, TypedDict

import torch
from torch import Tensor

from langevin.checks import check_function, check_integer, check_number, lacks_memory, needs
from langevin.gradient_noise import FollowedNoise
from langevin.kernels import Kernel, StepInputs
from langevin.noise.address import MAX_CHAIN, MAX_SEED, MAX_STEP, check_int
from langevin.optim import addresses, first_steps, ranks
from langevin.optim.parts import aligned_gradient, check_sharding, master_of
from langevin.optim.placed import check_names, check_prior_of, priors_of
from langevin.optim.repeat import Ready, Repeat
from langevin.optim.state import (
    MASTER,
    STEPS,
    check_group_names,
    local_memory,
    memory_like,
    plain_setting,
    restored_setting,
    wide_dtype,
)
from langevin.optim.update import Entry, row_of, update
from langevin.optim.watch import PERIOD, MinibatchHeat, Spread, Watch, sizes_of
from langevin.shards import is_sharded, local_part, runs_of
from langevin.targets import priors
from langevin.targets.priors import PlacedPrior, Prior

__all__ = ["Common", "LangevinOptimizer"]

_REFUSED = {
    "momentum": "SGHMC(beta=...) for inertia or MSGLD(beta=..., bias_factor=...) for the paper's momentum",
    "noise_scale": "temperature=...: the scale of the noise follows from it",
}


_FOLLOWED, _GIVEN = FollowedNoise(), FollowedNoise(is_given=True)


class Common(TypedDict, total=False):
    """The arguments that every sampling optimizer takes."""

    num_data: Required[int]
    temperature: float
    prior: Prior | PlacedPrior | None
    seed: int
    chain: int
    first_address: int
    fused: bool | None
    master: bool
    weight_decay: float


class LangevinOptimizer(torch.optim.Optimizer):
    """A sampler of ``exp(-U / temperature)`` with ``U = num_data * loss - log prior``, for any training loop.

    The loss is the mean over the batch, as for SGD; nothing else is to be scaled by the user. A subclass names the builder of its
    sampler and its settings; the formula is the sampler's own.

    Every normal is a function of (seed, chain, step, address of the element), so runs repeat bit for bit, and two optimizers with
    the same seed and chain draw the same noise wherever their addresses overlap. Give

    - independent runs another `chain` (or seed);
    - a second optimizer for another part of the same model `first_address=other.next_address`;
    - parameters that are dealt out to several optimizers (`ZeroRedundancyOptimizer`, the stages of a pipeline, one optimizer per
      parameter) their addresses beforehand, by `langevin.optim.fix_addresses(model.parameters())`.

    Ranks of DistributedDataParallel have the same parameters and need the same noise; the shards of a DTensor (FSDP2, tensor
    parallelism) draw that of their own elements: change nothing. A second optimizer that overlaps one still in use, or one on
    another rank, says so (`SharedNoiseWarning`); ranks that should be equal and are not raise `RanksDisagreeError`.

    The noise of minibatches heats: `heat` and `describe` say by how much, and a `TrustWarning` does where it is above 10 % of the
    temperature. It is measured from successive gradients of at most 1024 elements of each group, or, with fewer doubts, from the
    micro-batches whose gradients a loop accumulates, where it calls `observe` after each of them:

        >>> for x, y in micro_batches:  # doctest: +SKIP
        ...     (loss(model(x), y) / len(micro_batches)).backward()
        ...     opt.observe()
        >>> opt.step(); opt.zero_grad()  # doctest: +SKIP

    With ``noise="corrected"`` (MSGLD, ASGLD and AdaMaxSGLD, when invariant) the step absorbs it, element by element, with a
    variance that is followed in the same two ways. Rows must then be drawn with replacement
    (``RandomSampler(data, replacement=True)``): the noise of reshuffled epochs cancels by itself, and absorbing it as well cools.

    Args:
        params: parameters, or groups of them; any setting may be given per group.
        lr: learning rate as in SGD; the paper's epsilon is lr / num_data. At 0 no time passes: nothing moves, nothing is counted,
            averages stand still.
        settings: the sampler's own.
        num_data: N, the size of the training set (of a language model: the number of tokens that the loss averages over).
        temperature: tau; 0 makes the sampler an optimizer.
        prior: one of `langevin.priors`, or any object with their two methods; None is flat. For `by_name` give the parameters with
            their names, ``model.named_parameters()``. It may be changed in mid-run: ``group["prior"] = ...``.
        seed: an int in [0, 2**64).
        chain: an int in [0, 2**32): which of the runs with this seed.
        first_address: address of the first element, in words of 32 bits, a multiple of 4; later groups continue it.
        fused: None takes the fused CPU engine, or on a GPU generated code, where it can; False always takes plain torch; True fails
            where the fused CPU engine cannot be taken.
        master: moves parameters in half precision by way of a float32 copy in the state, so that steps below their spacing add up
            instead of being lost; False saves these four bytes per element.
        weight_decay: w > 0 stands for the prior N(0, 1 / (w num_data)), which it is in SGD; for trainers that pass it.
        unknown: refused, with a word on what to write instead.
    """

    builder: ClassVar[Callable[..., Kernel]]
    settings: ClassVar[tuple[str, ...]] = ()
    """The sampler's settings that live in the parameter groups under the same name."""

    _checked_settings: dict[int, list[Any]]  # of each group, as the objects that were checked last
    _watches: dict[int, Watch]  # of each group; neither these nor micro-batches are saved
    _offsets: addresses.Offsets  # of each group's parameters
    _repeats: dict[int, Repeat | None]  # of each group, what its last step was like
    _spreads: dict[Tensor, Spread]  # micro-batches so far, where a kernel absorbs their noise
    _is_announced = False  # whether others were looked for that draw the same noise; not pickled, so that a copy asks again
    _meeting: ranks.Meeting | None = None  # what other ranks are asked; not pickled either

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        settings: dict[str, Any],
        *,
        num_data: int | None = None,
        temperature: float = 1.0,
        prior: Prior | PlacedPrior | None = None,
        seed: int = 0,
        chain: int = 0,
        first_address: int = 0,
        fused: bool | None = None,
        master: bool = True,
        weight_decay: float = 0.0,
        **unknown: Any,
    ) -> None:
        """Check the settings and build the groups."""
        self._refuse(unknown)
        common = {"num_data": num_data, "temperature": temperature, "prior": prior, "fused": fused, "master": master}
        common["weight_decay"] = weight_decay
        try:
            params = params if isinstance(params, Tensor) else list(params)  # torch has words for a tensor
        except TypeError as error:
            raise needs(type(self).__name__, "params", "parameters, or groups of them", params, TypeError) from error
        self._forget()
        noise = {"seed": seed, "chain": chain, "first_address": first_address, "step": 0}
        super().__init__(params, {"sampler": type(self).__name__, "lr": lr, **settings, **common, **noise})
        check_names(self.param_groups)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what was pickled or loaded; it is checked at the next step."""
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """Begin without anything that was noted on the way; none of it is saved."""
        self._checked_settings, self._watches, self._spreads = {}, {}, {}
        self._offsets, self._repeats = addresses.Offsets(), {}

    @classmethod
    def _refuse(cls, unknown: dict[str, Any]) -> None:
        for name, value in unknown.items():
            if name in _REFUSED:
                raise TypeError(f"{cls.__name__}({name}={value!r}) is not an argument here: write {_REFUSED[name]}")
            raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {name!r}, got {value!r}")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; any setting may differ from the others'. New elements get addresses after all earlier ones."""
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise needs(f"{type(self).__name__}.add_param_group", "param_group", "a dict with params", param_group, TypeError)
        self._refuse({name: value for name, value in param_group.items() if name in _REFUSED})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._take_weight_decay(group)
            self._check_group(group, self.param_groups[0]["first_address"])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._is_announced = False

    def _take_weight_decay(self, group: dict[str, Any]) -> None:
        """Turn a weight decay, which trainers put into every group, into the prior that it stands for."""
        who, decay = type(self).__name__, group.pop("weight_decay", 0.0)
        check_number(who, "weight_decay", decay, ">= 0", lambda v: v >= 0)
        if decay == 0:
            return
        if group["prior"] is not None:
            raise needs(who, "weight_decay", f"0 beside prior={group['prior']}: it is a prior itself", decay)
        check_integer(who, "num_data", group["num_data"], 1)
        prior = priors.gaussian(std=(decay * group["num_data"]) ** -0.5)
        group["prior"] = prior
        print(f"{who}: weight_decay={decay:g} is the prior N(0, std**2) with std = 1 / sqrt({decay:g} * num_data) = {prior.std:g}")

    def _check_group(self, group: dict[str, Any], first_address: int) -> None:
        who = type(self).__name__
        lr = group["lr"]
        if isinstance(lr, Tensor) and lr.numel() == 1 and not lr.is_meta and not lr.is_complex():  # torch's schedulers take tensors
            lr = lr.item()
        check_number(who, "lr", lr, ">= 0", lambda v: v >= 0)
        check_integer(who, "num_data", group["num_data"], 1)
        for name, end in (("seed", MAX_SEED), ("chain", MAX_CHAIN), ("step", MAX_STEP), ("first_address", addresses.MAX_ADDRESS)):
            check_int(who, name, group[name], 0, end)
        if group["first_address"] % addresses.BLOCK or group["first_address"] != first_address:
            condition = "a multiple of 4, the same for all groups (later groups continue it): take another optimizer's next_address"
            raise needs(who, "first_address", condition, group["first_address"])
        check_prior_of(who, group)
        if group["fused"] is not None and not isinstance(group["fused"], bool):
            raise needs(who, "fused", "None, True or False", group["fused"], TypeError)
        if not isinstance(group["master"], bool):
            raise needs(who, "master", "True or False", group["master"], TypeError)
        if "noise" in self.settings and (group["noise"] is not None and group["noise"] != "corrected"):
            raise needs(who, "noise", 'None or "corrected": an optimizer learns it on the way', group["noise"])
        kernel = self._kernel(group)  # checks the rest
        if kernel.needs_energy or kernel.group_size > 1:
            what = "a sampler of one chain that looks at gradients only"
            raise needs(who, "builder", what, f"{kernel.name}, which needs the energy or other chains")
        for parameter in group["params"]:
            if not parameter.is_floating_point():
                raise needs(who, "params", "real floating-point parameters", parameter.dtype, TypeError)
            check_sharding(who, parameter)

    def _check_changed_settings(self) -> None:
        """Check the groups whose settings are not the objects that were checked last: any may be changed in mid-run."""
        names = ("lr", "num_data", "temperature", "prior", "fused", "master", "seed", "chain", "first_address", *self.settings)
        changed: dict[int, list[Any]] = {}
        for number, group in enumerate(self.param_groups):
            values = [group[name] for name in names]
            if not all(map(operator.is_, values, self._checked_settings.get(number, [None] * len(names)))):
                self._check_group(group, self.param_groups[0]["first_address"])
                changed[number] = values
        if changed:
            check_names(self.param_groups)
            self._checked_settings |= changed

    def _kernel(self, group: dict[str, Any], noise: FollowedNoise = _FOLLOWED) -> Kernel:
        """Build the kernel of a group's settings; its own step size is not used, since the learning rate may change at any step."""
        # JSON and some trainers turn the pair of betas into a list.
        values = [tuple(group[name]) if isinstance(group[name], list) else group[name] for name in self.settings]
        try:
            return _build(type(self).builder, self.settings, group["temperature"], noise, *values)
        except TypeError:  # a value without a hash, which no sampler takes: let it say so
            return _build.__wrapped__(type(self).builder, self.settings, group["temperature"], noise, *values)

    @property
    def next_address(self) -> int:
        """The `first_address` for an optimizer of further parameters, so that no noise is used twice."""
        return addresses.next_address(type(self).__name__, self.param_groups)

    @torch._disable_dynamo  # type: ignore[attr-defined] # as torch.optim does: `torch.compiler.disable` would load the compiler now
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
            check_function(f"{type(self).__name__}.step", "closure", closure, "None or a function that returns the loss", count=0)
            with torch.enable_grad():
                loss = closure()
        self._check_changed_settings()
        if not self._is_announced:
            self._is_announced = True
            addresses.warn_of_shared_noise(self)
            self._meeting = ranks.meet(self)
        # All is checked before anything moves.
        kernels, offsets = map(self._kernel, self.param_groups), self._offsets(type(self).__name__, self.param_groups)
        plans = list(zip(self.param_groups, kernels, offsets, strict=True))
        found = [self._ready(number, *plan) for number, plan in enumerate(plans)]
        first_steps.look(self, (pair for ready in found for pair in _gradients(ready)))
        if self._meeting is not None and self._meeting.step(
            [entry for ready in found if isinstance(ready, list) for entry in ready]
        ):
            self._meeting = None
        for number, (plan, ready) in enumerate(zip(plans, found, strict=True)):
            group, kernel, _ = plan
            if float(group["lr"]) > 0:  # at lr 0 no time passes
                self._look(number, group, kernel)
                if isinstance(ready, Ready):
                    ready.repeat.update(group, kernel, ready)
                else:
                    self._update(number, *plan, ready)
                group["step"] += 1
        self._spreads.clear()
        return loss

    def _ready(self, number: int, group: dict[str, Any], kernel: Kernel, offsets: list[int]) -> Ready | list[Entry]:
        """Return the group's tensors, checked: all at once where they are like those of the last step, else one by one."""
        check_int(type(self).__name__, "step", group["step"], 0, MAX_STEP)
        repeat = self._repeats.get(number)
        if repeat is not None and self._meeting is None and not self._spreads:
            ready = repeat.check(group, kernel, offsets, self.state)
            if ready is not None:
                return ready
        return self._entries(group, kernel, offsets)

    def _update(self, number: int, group: dict[str, Any], kernel: Kernel, offsets: list[int], ready: list[Entry]) -> None:
        """Move the parameters of a group and count their gradients; note what its step was like."""
        update(type(self).__name__, group, self._given_noise(group, kernel, ready), [e for e in ready if e.position.numel()])
        if kernel.memory:
            for entry in ready:
                self.state[entry.parameter][STEPS] += 1
        self._repeats[number] = Repeat.of(group, kernel, offsets, ready)

    @torch.no_grad()
    def observe(self) -> None:
        """Look at the gradients after the backward pass of a micro-batch, where those of several are accumulated for one step.

        Their differences give the variance of the sum, which knows neither where the gradient points nor how it turns from step to
        step. Micro-batches are to be of equal size. Clipping or unscaling before the step is seen and followed. A single one in a
        step has no variance: as without a call, successive gradients are taken then. `zero_grad` and `step` begin anew.
        """
        for number, group in enumerate(self.param_groups):
            self._watch(number, group).observe(group["params"])
            if self._kernel(group).gradient_noise is not None:
                count = max((self._spreads[p].count for p in group["params"] if p in self._spreads), default=0)
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        total = local_part(aligned_gradient(parameter)).to(wide_dtype(parameter.dtype))
                        self._spreads.setdefault(parameter, Spread(total, count)).add(total)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, and forget the micro-batches that `observe` saw."""
        super().zero_grad(set_to_none)
        self._spreads.clear()
        for watch in self._watches.values():
            watch.forget()

    def heat(self) -> list[MinibatchHeat]:
        """Return, for each group, how much the noise of minibatches adds to the temperature: share, error, and how it was measured.

        The share is ``R s^2 / (2 τ)`` for noise of variance s^2 in the gradient of U. R, how far a gradient moves θ in all, is ε
        for SGLD, ``ε / (1 - β)`` for SGHMC, ``(1 + a G) ε`` with a bias. It is known after 32 steps, and of the last 800 or so.
        """
        return [self._heat(number, group, self._kernel(group)) for number, group in enumerate(self.param_groups)]

    def _watch(self, number: int, group: dict[str, Any]) -> Watch:
        """Return the watch of a group, which begins anew where the parameters have other sizes."""
        watch = self._watches.get(number)
        if watch is None or (group["step"] % PERIOD == 0 and watch.sizes != sizes_of(group["params"])):
            watch = self._watches[number] = Watch(group["params"])
        return watch

    def _look(self, number: int, group: dict[str, Any], kernel: Kernel) -> None:
        """Let the group's watch see this step's gradients, and say it where they heat too much."""
        if group["temperature"] > 0:
            watch = self._watch(number, group)
            if watch.step(group["params"], group["step"]):
                watch.warn(type(self).__name__, number, float(group["lr"]), self._heat(number, group, kernel))

    def _heat(self, number: int, group: dict[str, Any], kernel: Kernel) -> MinibatchHeat:
        watch, epsilon = self._watch(number, group), float(group["lr"]) / group["num_data"]
        states = [self.state.get(parameter, {}) for parameter in group["params"]]
        memory = [watch.gather([state.get(name) for state in states]) for name in kernel.memory]
        known = tuple(tensor for tensor in memory if tensor is not None)
        inputs = kernel.inputs(group["step"], step_size=epsilon)
        reach = kernel.reach(known, inputs) if len(known) == len(memory) else None
        return watch.heat(reach, group["num_data"], group["temperature"], kernel.gradient_noise is not None)

    def _given_noise(self, group: dict[str, Any], kernel: Kernel, ready: list[Entry]) -> Kernel:
        """Put the variance that micro-batches gave into the memory, and return the kernel that takes it from there."""
        if kernel.gradient_noise is None or not self._spreads:
            return kernel
        spreads = {entry.parameter: self._spreads.get(entry.parameter) for entry in ready}
        if not spreads or not all(spread and spread.count > 1 for spread in spreads.values()):
            return kernel
        for entry in ready:
            spread, state = spreads[entry.parameter], self.state[entry.parameter]
            assert spread is not None
            found = spread.variance(entry.gradient.to(spread.total.dtype)) * group["num_data"] ** 2
            local_part(state["noise_variance"]).lerp_(found, _FOLLOWED.rate(state[STEPS] + 1))
        return self._kernel(group, _GIVEN)

    def _entries(self, group: dict[str, Any], kernel: Kernel, offsets: list[int]) -> list[Entry]:
        """Return the parameters of a group that have a gradient, with their memory, which is made here when they are new."""
        names, who = kernel.memory, type(self).__name__
        epsilon = float(group["lr"]) / group["num_data"]
        inputs: dict[int, StepInputs] = {}  # by the number of gradients seen: a first one may come late
        entries = []
        for parameter, offset, prior in zip(group["params"], offsets, priors_of(who, group), strict=True):
            if parameter.grad is None:
                continue
            memory, steps = self._memory(parameter, kernel, names) if names else ([], group["step"])
            position, gradient, runs, rounded = parameter, parameter.grad, None, None
            if is_sharded(parameter) or is_sharded(gradient):
                position, gradient, runs = local_part(parameter), local_part(aligned_gradient(parameter)), runs_of(parameter)
                memory = [local_part(tensor) for tensor in memory]
            if group["master"] and wide_dtype(position.dtype) != position.dtype:
                self._check_tensors(position, gradient, dict(zip(names, memory, strict=True)))
                rounded, position = position, master_of(self.state[parameter], parameter, position)
                gradient = gradient.to(position.dtype)
            row = row_of(group, position, gradient, memory, offset, runs)
            if row is None:
                self._check_tensors(position, gradient, dict(zip(names, memory, strict=True)))
            if steps not in inputs:
                inputs[steps] = kernel.inputs(group["step"], seen=steps, step_size=epsilon)
            entries.append(Entry(parameter, position, gradient, memory, offset, runs, inputs[steps], prior, row, rounded))
        return entries

    def _memory(self, parameter: Tensor, kernel: Kernel, names: tuple[str, ...]) -> tuple[list[Tensor], int]:
        """Return a parameter's memory, as the kernel starts it, and how many gradients it has seen."""
        state = self.state[parameter]
        if not state:
            start = kernel.start(local_part(parameter.detach()).to(wide_dtype(parameter.dtype)))
            state.update({name: local_memory(parameter, value) for name, value in zip(names, start, strict=True)})
            state[STEPS] = 0
        try:
            return [state[name] for name in names], state[STEPS]
        except KeyError:
            self._check_names(f"{type(self).__name__}.step", kernel, state)
            raise

    def _check_tensors(self, parameter: Tensor, gradient: Tensor, memory: dict[str, Tensor]) -> None:
        """Refuse what plain torch would broadcast, or crash on."""
        who = type(self).__name__
        if not parameter.is_floating_point():
            raise needs(who, "params", "real floating-point parameters", parameter.dtype, TypeError)
        if gradient.layout != torch.strided:
            raise needs(who, "params", "dense gradients (sparse=False in the layer)", gradient.layout)
        if gradient.shape != parameter.shape:
            raise needs(who, "params", f"gradients of the parameter's shape {tuple(parameter.shape)}", tuple(gradient.shape))
        self._check_memory(f"{who}.step", parameter, memory)
        for tensor in (parameter, gradient, *memory.values()):
            if type(tensor).__name__ == "FakeTensor":  # by name: its module takes long to import
                raise needs(who, "params", "tensors with values", "a FakeTensor")
            is_plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.is_cpu
            if (
                is_plain
                and tensor is not gradient
                and any(n > 1 and not s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            ):
                raise needs(who, "params", "memory for every element of a parameter and its state (clone() it)", tensor.stride())
            if is_plain and lacks_memory(tensor):
                raise needs(who, "params", f"memory for {tensor.numel()} elements", f"{tensor.untyped_storage().nbytes()} bytes")

    @staticmethod
    def _check_names(call: str, kernel: Kernel, state: dict[str, Any]) -> None:
        wanted = [*kernel.memory, STEPS] if kernel.memory else []
        if state.keys() - {MASTER} != set(wanted):
            raise needs(call, "state", f"the memory {wanted} of {kernel.name}", sorted(state))
        if wanted:
            check_integer(call, STEPS, state[STEPS], 0)

    @staticmethod
    def _check_memory(call: str, parameter: Tensor, memory: dict[str, Any]) -> None:
        for name, value in memory.items():
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                found = tuple(value.shape) if isinstance(value, Tensor) else value
                raise needs(call, "state", f"{name!r} of the parameter's shape {tuple(parameter.shape)}", found)
            if not value.is_floating_point() or value.layout != torch.strided or (value.is_meta and not parameter.is_meta):
                found = f"{value.dtype}, {value.layout} on {value.device.type}"
                raise needs(call, "state", f"{name!r} as a dense floating-point tensor with values", found)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, as tensors and plain values that load with `weights_only=True`."""
        state = super().state_dict()
        for group in state["param_groups"]:
            group.update({name: plain_setting(value) for name, value in group.items() if name in ("prior", *self.settings)})
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of another optimizer of this kind; the next steps are the ones it would have taken.

        All of it is checked first, after the pre-hooks: kind of sampler, settings, names and shapes. What does not fit is a
        ValueError or TypeError, and nothing has changed.
        """
        if not isinstance(state_dict, dict):
            raise needs(f"{type(self).__name__}.load_state_dict", "state_dict", "what state_dict() returned", state_dict, TypeError)
        wide: dict[Tensor, dict[str, Any]] = {}

        def check(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
            checked, memory = self._checked(state)
            wide.update(memory)
            return checked

        def restore(_: torch.optim.Optimizer) -> None:
            # torch has cast the memory to the parameter's dtype, which would round the float32 averages of half precision.
            self.state.update(wide)

        hooks = (
            self.register_load_state_dict_pre_hook(check),  # last of the pre-hooks
            self.register_load_state_dict_post_hook(restore, prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()
        self._is_announced = False

    def _checked(self, state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[Tensor, dict[str, Any]]]:
        """Return a loaded state with its settings restored, and the memory of each parameter."""
        who = type(self).__name__
        call, saved_groups = f"{who}.load_state_dict", state_dict.get("param_groups")
        if not isinstance(saved_groups, list) or not isinstance(state_dict.get("state"), dict):
            raise needs(call, "state_dict", "what state_dict() returned", sorted(state_dict))
        if len(saved_groups) != len(self.param_groups):
            raise needs(call, "state_dict", f"{len(self.param_groups)} parameter groups", len(saved_groups))
        indices = [index for group in saved_groups if isinstance(group, dict) for index in group.get("params", ())]
        if len(set(indices)) < len(indices):
            raise needs(call, "state_dict", "each parameter once", indices)
        groups, memory = [], {}
        for number, (saved, now) in enumerate(zip(saved_groups, self.param_groups, strict=True)):
            check_group_names(who, number, saved, now)
            group = {name: restored_setting(who, name, value, now.get(name)) for name, value in saved.items()}
            if "noise" in now:  # states of before had none
                group.setdefault("noise", None)
            group.setdefault("master", now["master"])
            self._check_group(
                {"param_names": now.get("param_names"), **group, "params": now["params"]}, saved_groups[0].get("first_address")
            )
            groups.append(group)
            kernel = self._kernel(group)
            for index, parameter in zip(saved["params"], now["params"], strict=True):
                if state := state_dict["state"].get(index):
                    self._check_names(call, kernel, state)
                    self._check_memory(call, parameter, {name: value for name, value in state.items() if name != STEPS})
                    memory[parameter] = {
                        name: memory_like(parameter, value) if isinstance(value, Tensor) else value for name, value in state.items()
                    }
        return {**state_dict, "param_groups": groups}, memory

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
        is_given = self._watch(number, group).estimator == "micro-batches"
        kernel = self._kernel(group, _GIVEN if is_given else _FOLLOWED).with_step_size(epsilon)
        elements = sum(parameter.numel() for parameter in group["params"])
        return "\n".join(
            [
                f"group {number}: {elements:,} elements, step {group['step']}, seed {group['seed']}, chain {group['chain']}",
                f"  U = {group['num_data']} * mean loss - log prior, prior: {group['prior'] or 'flat'}",
                f"  epsilon = lr / num_data = {float(group['lr']):g} / {group['num_data']} = {epsilon:g}",
                f"  noise: standard deviation {kernel.noise_scale(kernel.inputs(0)):g} per element and step",
                f"  heat of minibatches: {self._heat(number, group, kernel)}",
                *(f"  {line}" for line in kernel.description.splitlines()),
            ]
        )


def _gradients(ready: Ready | list[Entry]) -> Iterable[tuple[Tensor, Tensor]]:
    """Return the parameters of a group that have a gradient, each with it."""
    if isinstance(ready, Ready):
        return zip(ready.parameters, ready.gradients, strict=True)
    return ((entry.parameter, entry.gradient) for entry in ready)


@functools.lru_cache(maxsize=1024, typed=True)  # typed: True is not 1.0
def _build(
    builder: Callable[..., Kernel], names: tuple[str, ...], temperature: float, noise: FollowedNoise, *values: Any
) -> Kernel:
    kernel = builder(1.0, temperature=temperature, **dict(zip(names, values, strict=True)))
    return kernel.with_gradient_noise(noise)
