"""The base class of the sampling optimizers: groups, saved state, and the order of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from langevin.checks import check_function, check_integer, needs
from langevin.execution.fused import Entry
from langevin.kernels import Kernel
from langevin.kernels.gradient_noise import GradientNoise
from langevin.optim import addresses, gradient_checks, ranks
from langevin.optim.cached_step import CachedOffsets, CachedStep, StepArgs, same
from langevin.optim.entries import check_parameter, entries_of
from langevin.optim.kronecker import blocks_of, update_blocks
from langevin.optim.loading import checked_loading
from langevin.optim.minibatch_noise import MinibatchNoise, is_observed
from langevin.optim.reports import NoiseReports
from langevin.optim.settings import (
    CHECKED,
    DEFAULTS,
    MICRO_BATCHES,
    NOISES,
    REPLACEMENTS,
    ROTATED,
    SUCCESSIVE,
    Common,
    Group,
    build_kernel,
    check_group,
    check_patterns,
    prior_of_weight_decay,
    refuse_unknown,
)
from langevin.optim.state import STEPS, plain_setting
from langevin.optim.update import update
from langevin.random.address import MAX_STEP

__all__ = ["LangevinOptimizer"]


class LangevinOptimizer(NoiseReports):
    """Sample from ``exp(-U / temperature)`` with ``U = num_data * loss - log prior``.

    The loss is the mean over the batch, as for SGD; users scale nothing. A subclass names its
    sampler and its settings; the formula is that of `langevin.kernels`.

    Every normal is a function of (seed, chain, step, address of the element), so runs repeat bit
    for bit, and two optimizers with the same seed and chain draw the same noise wherever their
    addresses overlap. Give

    - independent runs another `chain` (or seed);
    - a second optimizer for another part of the same model `first_address=other.next_address`;
    - parameters that several optimizers share among them (`ZeroRedundancyOptimizer`, the stages of
      a pipeline, one optimizer per parameter) their addresses beforehand, by
      `langevin.optim.fix_addresses(model.parameters())`.

    Ranks of DistributedDataParallel have the same parameters and need the same noise; the shards of
    a DTensor (FSDP2, tensor parallelism) draw that of their own elements: change nothing. A second
    optimizer that overlaps one still in use, or one on another rank, causes a `SharedNoiseWarning`;
    replicas that differ raise `RanksDisagreeError`.

    Minibatch noise raises the temperature: `heat` and `describe` report by how much, and above 10 %
    a `TrustWarning` follows. It is estimated from successive gradients of at most 1024 elements of
    each group, or, more reliably, from the micro-batches of a loop that accumulates gradients and
    calls `observe` after each of them:

        >>> for x, y in micro_batches:  # doctest: +SKIP
        ...     (loss(model(x), y) / len(micro_batches)).backward()
        ...     opt.observe()
        >>> opt.step(); opt.zero_grad()  # doctest: +SKIP

    With ``noise="corrected"`` (MSGLD, ASGLD and AdaMaxSGLD, when invariant) the step corrects for
    it in the Kronecker eigenbasis of each layer (`langevin.optim.kronecker`), other parameters
    element by element, with variances that are estimated in the same two ways. Data must then
    be drawn with replacement (``RandomSampler(data, replacement=True)``): the noise of reshuffled
    epochs cancels by itself, and correcting for it lowers the temperature.

    Args:
        params: parameters, or groups of them; any setting may be given per group.
        lr: learning rate as in SGD; the paper's epsilon is lr / num_data. ``lr=0`` is a no-op:
            neither parameters nor averages nor counts change.
        settings: of the sampler.
        common: the arguments that all of them take, in `langevin.optim.settings.Common`.
    """

    builder: ClassVar[Callable[..., Kernel]]
    settings: ClassVar[tuple[str, ...]] = ()
    """The sampler's settings, which the parameter groups have under the same names."""
    new_settings: ClassVar[dict[str, object]] = {}
    """Settings that older saved states lack, with the value that continues their run."""

    # None of these is saved.
    _checked: dict[int, list[Any]]  # of each group, the settings at the last check
    _noise: MinibatchNoise
    _offsets: CachedOffsets
    _cached_steps: dict[int, CachedStep | None]  # of each group
    _clipping: gradient_checks.Clipping
    _num_steps: int  # since these were created
    _stepping: list[object]  # a token for each running call of `step`, in any thread
    _has_started = False  # whether other optimizers and ranks know of this one
    _meeting: ranks.Meeting | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        settings: dict[str, Any],
        **common: Unpack[Common],
    ) -> None:
        """Check the settings and build the groups."""
        who = type(self).__name__
        refuse_unknown(who, {n: v for n, v in common.items() if n not in DEFAULTS})
        defaults = {"sampler": who, "lr": lr, **settings, **DEFAULTS, **common, "step": 0}
        try:
            params = params if isinstance(params, Tensor) else list(params)  # torch rejects tensors
        except TypeError as error:
            raise needs(who, "params", "parameters or groups of them", params, TypeError) from error
        self._forget()
        super().__init__(params, defaults)
        check_patterns(self.param_groups)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what was pickled or loaded; the next step checks it."""
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """Reset everything that is not saved."""
        self._stepping = vars(self).get("_stepping", [])  # a state may be loaded during a step
        self._checked, self._cached_steps, self._num_steps = {}, {}, 0
        self._noise, self._offsets = MinibatchNoise(), CachedOffsets()
        self._clipping = gradient_checks.Clipping()

    def add_param_group(self, param_group: Group) -> None:
        """Add a group with its own settings; its elements get addresses after all earlier ones."""
        who = type(self).__name__
        if not isinstance(param_group, dict) or "params" not in param_group:
            call = f"{who}.add_param_group"
            raise needs(call, "param_group", "a dict with params", param_group, TypeError)
        refuse_unknown(who, {n: v for n, v in param_group.items() if n in REPLACEMENTS})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            prior_of_weight_decay(who, group)
            self._check_group(group, self.param_groups[0]["first_address"])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._has_started = False

    def _check_group(self, group: Group, first_address: int) -> None:
        who = type(self).__name__
        check_group(who, group, first_address)
        if "noise" in self.settings and group["noise"] not in NOISES:
            condition = (
                'None or "corrected" (or "corrected-diagonal"): an optimizer estimates the noise'
            )
            raise needs(who, "noise", condition, group["noise"])
        kernel = self._kernel(group)  # checks the rest
        if kernel.traits.needs_energy or kernel.traits.group_size > 1:
            found = f"{kernel.name}, which needs the energy or other chains"
            raise needs(who, "builder", "a sampler of one chain, from gradients only", found)
        for parameter in group["params"]:
            check_parameter(who, parameter)

    def _check_changed_settings(self) -> None:
        """Check the groups whose settings have been replaced since the last check."""
        names, changed = (*CHECKED, *self.settings), {}
        for number, group in enumerate(self.param_groups):
            values = [group[name] for name in names]
            if not same(values, self._checked.get(number, [])):
                self._check_group(group, self.param_groups[0]["first_address"])
                changed[number] = values
        if changed:
            check_patterns(self.param_groups)
            self._checked |= changed

    def _kernel(self, group: Group, noise: GradientNoise = SUCCESSIVE) -> Kernel:
        # JSON and some trainers turn the pair of betas into a list.
        values = [tuple(v) if isinstance(v := group[name], list) else v for name in self.settings]
        if "noise" in self.settings and group["noise"] == "corrected-diagonal":
            values[self.settings.index("noise")] = "corrected"
        arguments = type(self).builder, self.settings, group["temperature"], noise, *values
        try:
            return build_kernel(*arguments)
        except TypeError:  # a value without a hash, which the sampler's own check rejects
            return build_kernel.__wrapped__(*arguments)

    @property
    def next_address(self) -> int:
        """The `first_address` for an optimizer of more parameters, so that no noise is reused."""
        return addresses.next_address(type(self).__name__, self.param_groups)

    # As in torch.optim; `torch.compiler.disable` would import the compiler now.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of the sampler with the gradients of the mean loss.

        Args:
            closure: evaluates the loss again and returns it.

        Returns:
            What the closure returned, or None.

        Raises:
            RuntimeError: another thread is inside `step`, or the closure calls it.
        """
        token = object()  # a lock that stays free if Ctrl-C comes between acquiring it and `try`
        try:
            self._stepping.append(token)
            if self._stepping[0] is not token:
                raise RuntimeError(
                    f"{type(self).__name__}.step() is already running in another thread, or was "
                    "called by its own closure. One thread at a time may step an optimizer: give "
                    "each thread its own model and optimizer, with its own chain=."
                )
            return self._step(closure)
        finally:
            self._stepping.remove(token)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        """Take one step: check everything, then update the groups."""
        who, groups, loss = type(self).__name__, self.param_groups, None
        if closure is not None:
            what = "None or a function that returns the loss"
            check_function(f"{who}.step", "closure", closure, what, count=0)
            with torch.enable_grad():
                loss = closure()
        self._check_changed_settings()
        if not self._has_started:
            self._has_started = True
            addresses.warn_of_shared_noise(self)
            self._meeting = ranks.meet(self)
        kernels = list(map(self._kernel, groups))
        offsets = self._offsets(who, groups)
        tensors = [self._prepare(k, kernels[k], offsets[k]) for k in range(len(groups))]
        self._check_gradients(tensors)
        if self._meeting is not None and self._meeting.step(
            [entry for found in tensors if isinstance(found, list) for entry in found]
        ):
            self._meeting = None
        for number, group in enumerate(groups):
            if float(group["lr"]) > 0:
                self._update(number, kernels[number], offsets[number], tensors[number])
                group["step"] += 1
        if self._noise.has_batches:
            self._noise.forget()
        return loss

    def _prepare(self, number: int, kernel: Kernel, offsets: list[int]) -> StepArgs | list[Entry]:
        """Return a group's tensors, checked: together if they are those of the last step."""
        who, group = type(self).__name__, self.param_groups[number]
        cached, step = self._cached_steps.get(number), group["step"]
        if not (type(step) is int and 0 <= step < MAX_STEP):
            check_integer(who, "step", step, 0, MAX_STEP)
        if cached is not None and self._meeting is None and not self._noise.sums:
            args = cached.check(group, kernel, offsets, self.state)
            if args is not None:
                return args
        return entries_of(who, group, self._kernels(group), offsets, self.state)

    def _kernels(self, group: Group) -> list[Kernel]:
        """Return the kernel of each parameter: another one in Kronecker blocks."""
        kernel = self._kernel(group)
        kernels, blocks = [kernel] * len(group["params"]), blocks_of(group)
        rotated = self._kernel(group, ROTATED) if blocks else kernel
        for number in (number for block in blocks for number in block):
            kernels[number] = rotated
        return kernels

    def _check_gradients(self, tensors: list[StepArgs | list[Entry]]) -> None:
        """Warn about gradients that are missing, not finite or clipped, in a few of the steps."""
        step = max(group["step"] for group in self.param_groups)
        if not (step & (step - 1) and step % gradient_checks.FINITE_PERIOD):
            gradient_checks.check_finite_gradients(self, step, _gradients(tensors))
        self._num_steps += 1
        if self._num_steps % gradient_checks.CLIPPING_PERIOD == 0:
            self._clipping.check_groups(
                type(self).__name__, self._num_steps, self.param_groups, self._noise
            )

    def _update(
        self, number: int, kernel: Kernel, offsets: list[int], tensors: StepArgs | list[Entry]
    ) -> None:
        """Estimate the noise, update a group's parameters, and count their gradients."""
        who, group, state = type(self).__name__, self.param_groups[number], self.state
        if is_observed(group["step"]) or self._noise.has_batches:
            self._noise.measure(who, number, group, kernel, state)
        if isinstance(tensors, StepArgs):
            tensors.cached.update(group, tensors)
            return
        self._cached_steps[number] = None
        rotated = self._kernel(group, ROTATED) if blocks_of(group) else kernel
        rest = update_blocks(who, group, rotated, tensors, state, self._noise.totals)
        is_stored = self._noise.store_variance(group, kernel, rest, state)
        formula = self._kernel(group, MICRO_BATCHES) if is_stored else kernel
        update(who, group, formula, [e for e in rest if e.position.numel()])
        if kernel.state_names:
            for entry in tensors:
                state[entry.parameter][STEPS] += 1
        if len(rest) == len(tensors):
            self._cached_steps[number] = CachedStep.of(group, kernel, offsets, tensors)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs, as tensors and plain values (for `weights_only`)."""
        state = super().state_dict()
        for group in state["param_groups"]:
            for name in {"prior", *self.settings} & group.keys():
                group[name] = plain_setting(group[name])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of another optimizer of this class, to continue its run.

        Kind of sampler, settings, names and shapes are checked first, after the pre-hooks.

        Raises:
            ValueError, TypeError: the state does not fit; nothing has changed.
        """
        with checked_loading(self, state_dict):
            super().load_state_dict(state_dict)
        self._has_started = False


def _gradients(tensors: list[StepArgs | list[Entry]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the parameters that have a gradient, each with its gradient."""
    for found in tensors:
        if isinstance(found, StepArgs):
            yield from zip(found.parameters, found.gradients, strict=True)
        else:
            yield from ((entry.parameter, entry.gradient) for entry in found)
