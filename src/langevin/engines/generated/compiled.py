"""Generated functions through the compiler, and how a group's tensors go through them.

Sizes are dynamic, and whatever changes from step to step (settings, seed, step, addresses) comes in two small tensors: a formula is
compiled once for a dtype and a device, for all parameters and all steps. A large parameter is one launch. Small ones, and those
whose elements do not lie in the order of their addresses (channels last, shards by columns), are copied into one flat tensor, moved
in one launch, and copied back.
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
from langevin.engines.fused.symbols import UntraceableError, numbers, structure
from langevin.engines.generated.code import Code, write
from langevin.engines.generated.places import WIDE, AnyEntry, Entry, addresses, first_address, sort
from langevin.kernels import Kernel, StepInputs
from langevin.noise import UPDATE_NOISES, stream
from langevin.noise.address import MAX_BLOCK, lanes_of
from langevin.noise.reference import counter_words, key_words
from langevin.targets.priors import Prior

__all__ = ["Generated", "compiler", "generate"]

Step = Callable[..., None]

_TRIAL = 8209  # elements of the first call, a prime: the compiler takes equal sizes for the same one

compiler: Callable[[Step], Step] = functools.partial(torch.compile, dynamic=True, fullgraph=True)


@dataclass(frozen=True)
class _Functions:
    """The functions of one structure and dtype, compiled when first called; None where that failed."""

    code: Code
    dtype: torch.dtype
    ready: dict[tuple[str, torch.device], Step | None] = field(default_factory=dict)

    def find(self, name: str, num_memories: int, scalars: Tensor, words: Tensor) -> Step | None:
        where = name, scalars.device
        if where not in self.ready:
            try:
                self.ready[where] = self._compile(name, num_memories, scalars, words)
            except Exception as error:  # of a compiler: any
                self.ready[where] = None
                _say(f"torch.compile failed for {scalars.device.type}, optimizers run", error)
        return self.ready[where]

    def _compile(self, name: str, num_memories: int, scalars: Tensor, words: Tensor) -> Step:
        """Compile by a first call, on tensors of no meaning: a compiler that fails has touched nothing of the user's."""
        step: Step = compiler(getattr(self.code, name))
        dtypes = [self.dtype] * 2 + [scalars.dtype] * num_memories
        tensors = [torch.zeros(_TRIAL, dtype=dtype, device=scalars.device) for dtype in dtypes]
        address = [torch.arange(_TRIAL, device=scalars.device)] if name == "anywhere" else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own, about parts of torch
            step(*tensors, scalars, words, *address)
        return step


_written: dict[Any, _Functions] = {}
_said: set[str] = set()


def _say(what: str, reason: object) -> None:
    """Say once per process that something runs on plain torch."""
    if what not in _said:
        _said.add(what)
        line = next(iter(str(reason).splitlines()), type(reason).__name__)
        warnings.warn(f"{what} on plain torch, which is slower ({line})", stacklevel=level_of_caller())


@dataclass(frozen=True, eq=False)
class Generated:
    """The update of a kernel and a prior."""

    functions: _Functions
    numbers: tuple[float, ...]  # the settings of the kernel and of the prior
    num_memories: int
    num_noises: int

    def __call__(
        self, entries: Sequence[AnyEntry], *, num_data: float, inputs: StepInputs, seed: int, chain: int, step: int
    ) -> list[AnyEntry]:
        """Update, in place, the tensors of these entries, all of one dtype and device; return those that were left alone."""
        device, real = entries[0].position.device, WIDE[self.functions.dtype]
        end = max(first_address(entry) + entry.position.numel() for entry in entries)
        if end > lanes_of(real) * MAX_BLOCK:
            raise needs("Generated", "entries", f"addresses up to {lanes_of(real) * MAX_BLOCK}", end)
        alone, parts, left = sort(entries)
        if not alone and not parts:
            return left
        counters = [word for purpose in UPDATE_NOISES[: self.num_noises] for word in counter_words(stream(purpose, chain), step)]
        rows = [[*key_words(seed), first_address(entry), *counters] for entry in [*alone, *parts[:1]]]
        values = self.functions.code.scalars(*inputs, num_data, *self.numbers)
        # Without waiting: the device may still be busy with the backward pass.
        words = torch._foreach_add(list(torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)), 0)  # storages apart
        scalars = torch.tensor(values, dtype=real).to(device, non_blocking=True)
        for batch, name, run in ((alone, "in_order", _one_by_one), (parts, "anywhere", _together)):
            if batch:
                compiled = self.functions.find(name, self.num_memories, scalars, words[-1])
                if compiled is None:
                    left += batch
                else:
                    run(compiled, batch, scalars, words)
        return left


def _one_by_one(step: Step, entries: Sequence[Entry], scalars: Tensor, words: Sequence[Tensor]) -> None:
    for entry, row in zip(entries, words, strict=False):
        memory = [tensor.view(-1) for tensor in entry.memory]
        gradient = entry.gradient.reshape(-1)
        if gradient.storage_offset():  # a view of a bucket: see `sort`
            gradient = gradient.clone()
        step(entry.position.detach().view(-1), gradient, *memory, scalars, row)


def _together(step: Step, entries: Sequence[Entry], scalars: Tensor, words: Sequence[Tensor]) -> None:
    """Update tensors by way of a flat copy of them all."""
    rows = [[entry.position, *entry.memory, entry.gradient] for entry in entries]
    position, *memory, gradient = (torch.cat([tensor.reshape(-1) for tensor in column]) for column in zip(*rows, strict=True))
    step(position, gradient, *memory, scalars, words[-1], addresses(entries))
    sizes = [entry.position.numel() for entry in entries]
    moved = zip(*(tensor.split(sizes) for tensor in (position, *memory)), strict=True)
    pairs = [(old, new) for row, news in zip(rows, moved, strict=True) for old, new in zip(row[:-1], news, strict=True)]
    torch._foreach_copy_([old for old, _ in pairs], [new.view(old.shape) for old, new in pairs])


@functools.lru_cache(maxsize=1024)
def _generate(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Generated:
    if not kernel.is_elementwise:
        raise UntraceableError(f"{kernel.name} is not elementwise")
    key = structure(kernel), kernel.memory, structure(prior), dtype
    if key not in _written:
        _written[key] = _Functions(write(kernel, prior, WIDE[dtype]), dtype)
    return Generated(_written[key], numbers(kernel) + numbers(prior), len(kernel.memory), kernel.num_noises)


def generate(kernel: Kernel, prior: Prior | None, dtype: torch.dtype) -> Generated | None:
    """Return the update of an elementwise kernel, written once per structure; None, with a warning, where there is none."""
    try:
        return _generate(kernel, prior, dtype)  # type: ignore[arg-type] # a prior without a hash is a TypeError
    except TypeError as error:  # UntraceableError, or a part that has no hash: a user's own may do anything
        _say(f"{kernel.name} with prior {type(prior).__name__} runs", error)
        return None
