"""Compile generated functions, and call them with a group's tensors.

Sizes are dynamic, and two small tensors hold everything that changes from step to step (settings,
seed, step, addresses): a formula is compiled once for a dtype and a device, for all parameters and
all steps. A large parameter is one launch. Small ones, and those whose elements are not in the
order of their addresses (channels last, shards by columns), are copied into one flat tensor,
updated in one launch, and copied back.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from langevin.checks import level_of_caller, needs
from langevin.execution.fused.table import Entry, wide_dtype
from langevin.execution.fused.trace import UntraceableError, numbers, structure
from langevin.execution.generated.code import Code, write
from langevin.execution.generated.layout import addresses, first_address, sort
from langevin.kernels import Kernel, StepInputs
from langevin.random import UPDATE_NOISES, stream
from langevin.random.address import MAX_BLOCK, lanes_of
from langevin.random.reference import counter_words, key_words
from langevin.targets.priors import Prior

__all__ = ["Generated", "compiler", "generate"]

Step = Callable[..., None]

_TRIAL = 8209  # elements of the first call, a prime: the compiler identifies equal sizes

compiler: Callable[[Step], Step] = functools.partial(torch.compile, dynamic=True, fullgraph=True)


@dataclass(frozen=True)
class _Functions:
    """The functions of one structure and dtype; None if compilation failed."""

    code: Code
    dtype: torch.dtype
    ready: dict[tuple[str, torch.device], Step | None] = field(default_factory=dict)

    def find(self, name: str, num_states: int, scalars: Tensor, words: Tensor) -> Step | None:
        where = name, scalars.device
        if where not in self.ready:
            try:
                self.ready[where] = self._compile(name, num_states, scalars, words)
            except Exception as error:  # of a compiler: any
                self.ready[where] = None
                _warn(f"torch.compile failed for {scalars.device.type}, optimizers run", error)
        return self.ready[where]

    def _compile(self, name: str, num_states: int, scalars: Tensor, words: Tensor) -> Step:
        """Compile by a call on zeros, so that a failure leaves the user's tensors unchanged."""
        step: Step = compiler(getattr(self.code, name))
        dtypes = [self.dtype] * 2 + [scalars.dtype] * num_states
        tensors = [torch.zeros(_TRIAL, dtype=dtype, device=scalars.device) for dtype in dtypes]
        address = [torch.arange(_TRIAL, device=scalars.device)] if name == "anywhere" else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about torch itself
            step(*tensors, scalars, words, *address)
        return step


_written: dict[Any, _Functions] = {}
_warned: set[str] = set()


def _warn(what: str, reason: object) -> None:
    """Warn once per process that something runs on plain torch."""
    if what not in _warned:
        _warned.add(what)
        line = next(iter(str(reason).splitlines()), type(reason).__name__)
        warnings.warn(
            f"{what} on plain torch, which is slower ({line})", stacklevel=level_of_caller()
        )


@dataclass(frozen=True, eq=False)
class Generated:
    """The update of a kernel and a prior."""

    functions: _Functions
    numbers: tuple[float, ...]  # the settings of the kernel and of the prior
    num_states: int
    num_noises: int

    def __call__(
        self,
        entries: Sequence[Entry],
        *,
        num_data: float,
        inputs: StepInputs,
        seed: int,
        chain: int,
        step: int,
    ) -> list[Entry]:
        """Update entries of one dtype and device in place; return those that were not updated."""
        device, real = entries[0].position.device, wide_dtype(self.functions.dtype)
        end = max(first_address(entry) + entry.position.numel() for entry in entries)
        if end > lanes_of(real) * MAX_BLOCK:
            condition = f"addresses up to {lanes_of(real) * MAX_BLOCK}"
            raise needs("Generated", "entries", condition, end)
        alone, parts, left = sort(entries)
        if not alone and not parts:
            return left
        counters = [
            word
            for purpose in UPDATE_NOISES[: self.num_noises]
            for word in counter_words(stream(purpose, chain), step)
        ]
        rows = [
            [*key_words(seed), first_address(entry), *counters] for entry in [*alone, *parts[:1]]
        ]
        values = self.functions.code.scalars(*inputs, num_data, *self.numbers)
        # Without waiting: the device may still be busy with the backward pass.
        rows_there = torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
        words = torch._foreach_add(list(rows_there), 0)  # copies: each row has its own storage
        scalars = torch.tensor(values, dtype=real).to(device, non_blocking=True)
        for batch, name, run in ((alone, "in_order", _one_by_one), (parts, "anywhere", _together)):
            if batch:
                compiled = self.functions.find(name, self.num_states, scalars, words[-1])
                if compiled is None:
                    left += batch
                else:
                    run(compiled, batch, scalars, words)
        return left


def _one_by_one(
    step: Step, entries: Sequence[Entry], scalars: Tensor, words: Sequence[Tensor]
) -> None:
    for entry, row in zip(entries, words, strict=False):
        state = [tensor.view(-1) for tensor in entry.state]
        gradient = entry.gradient.reshape(-1)
        if gradient.storage_offset():  # a view of a bucket: see `sort`
            gradient = gradient.clone()
        step(entry.position.detach().view(-1), gradient, *state, scalars, row)


def _together(
    step: Step, entries: Sequence[Entry], scalars: Tensor, words: Sequence[Tensor]
) -> None:
    """Update tensors through a flat copy of all of them."""
    rows = [[entry.position, *entry.state, entry.gradient] for entry in entries]
    position, *state, gradient = (
        torch.cat([tensor.reshape(-1) for tensor in column]) for column in zip(*rows, strict=True)
    )
    step(position, gradient, *state, scalars, words[-1], addresses(entries))
    sizes = [entry.position.numel() for entry in entries]
    moved = zip(*(tensor.split(sizes) for tensor in (position, *state)), strict=True)
    pairs = [
        (old, new)
        for row, news in zip(rows, moved, strict=True)
        for old, new in zip(row[:-1], news, strict=True)
    ]
    torch._foreach_copy_([old for old, _ in pairs], [new.view(old.shape) for old, new in pairs])


@functools.lru_cache(maxsize=1024)
def _generate(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Generated:
    if not kernel.traits.elementwise:
        raise UntraceableError(f"{kernel.name} is not elementwise")
    key = structure(kernel), kernel.state_names, structure(prior), dtype
    if key not in _written:
        _written[key] = _Functions(write(kernel, prior, wide_dtype(dtype)), dtype)
    return Generated(
        _written[key],
        numbers(kernel) + numbers(prior),
        len(kernel.state_names),
        kernel.traits.num_noises,
    )


def generate(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Generated | None:
    """Return the update of an elementwise kernel; None, with a warning, if it is untraceable."""
    try:
        return _generate(kernel, prior, dtype)  # type: ignore[arg-type] # a prior without a hash is a TypeError
    except TypeError as error:  # UntraceableError, or a part that has no hash
        _warn(f"{kernel.name} with prior {type(prior).__name__} runs", error)
        return None
