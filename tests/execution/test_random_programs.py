"""Random programs of views, loops, reductions, mutations and indices: compiled code does what torch does."""

from __future__ import annotations

import random

import pytest
import torch
from program_checks import difference, program_for
from torch import Tensor

SHAPES = [(4, 6), (4, 1), (1, 6), (6,), (4,), (3, 4, 6), (2, 3, 4), (), (6, 4), (0, 6), (20, 30)]


class Writer:
    """Draws operations; the same seed draws the same program, whatever the values are."""

    def __init__(self, seed: int, inputs: list[Tensor]) -> None:
        self.random = random.Random(seed)
        self.made, self.fixed = list(inputs), len(inputs)
        self.index = torch.tensor([0, 2, 1, 2, 0])

    def pick(self, *, ndim: int = 0) -> Tensor:
        found = [each for each in self.made[-14:] + self.made[: self.fixed] if each.ndim >= ndim]
        return self.random.choice(found) if found else self.made[0]

    def partner(self, x: Tensor) -> Tensor | float:
        """A tensor that broadcasts with `x`, or a number."""
        found = [each for each in self.made if _fits(x, each)]
        return self.random.choice([*found[-8:], *found[:3], 0.5, -1.25])

    def pointwise(self) -> Tensor:
        x = self.pick()
        y = self.partner(x)
        kind = self.random.randrange(9)
        if kind == 0:
            return x + y
        if kind == 1:
            return x * y * 0.5
        if kind == 2:
            return x - 0.25 * torch.as_tensor(y, dtype=x.dtype)
        if kind == 3:
            return torch.where(x > y, x, torch.as_tensor(y, dtype=x.dtype))
        if kind == 4:
            return x.tanh()
        if kind == 5:
            return torch.maximum(x, torch.as_tensor(y, dtype=x.dtype))
        if kind == 6:
            return (x.abs() + 1).log()
        if kind == 7:
            return x.masked_fill(x > 0.5, 0.25)
        return torch.sigmoid(x) * y

    def view(self) -> Tensor:
        x = self.pick(ndim=1)
        axis = self.random.randrange(x.ndim)
        kind = self.random.randrange(8)
        if kind == 0:
            return x.transpose(0, -1)
        if kind == 1:
            return x.flip(axis)
        if kind == 2:
            return x.narrow(axis, 0, max(0, x.shape[axis] - 1))
        if kind == 3:
            return x.unsqueeze(axis)[..., ::2]
        if kind == 4:
            return x.reshape(-1)
        if kind == 5:
            return x.select(axis, -1) if x.shape[axis] else x
        if kind == 6:
            return x.unsqueeze(0).expand(3, *x.shape) if x.ndim < 3 else x[1:]
        return x[..., 1::2]

    def reduction(self) -> Tensor:
        x = self.pick(ndim=1)
        axis, keep = self.random.randrange(x.ndim), self.random.random() < 0.4
        kind = self.random.randrange(7)
        if kind == 0:
            return x.sum() * 0.1
        if kind == 1:
            return x.mean(axis, keepdim=keep) if x.numel() else x.sum(axis, keepdim=keep)
        if kind == 2:
            return x.amax(axis, keepdim=keep) if x.numel() else x
        if kind == 3:
            return x.sum(axis, keepdim=keep) * 0.2
        if kind == 4:
            return x.logsumexp(axis, keepdim=keep) if x.numel() else x
        if kind == 5:
            return x.cumsum(axis) * 0.2
        return (x - x.sum(axis, keepdim=True)) * 0.1

    def copying(self) -> Tensor:
        x = self.pick(ndim=1)
        axis = self.random.randrange(x.ndim)
        kind = self.random.randrange(6)
        if kind == 0:
            return torch.cat([x, x.flip(axis), x * 0.5], axis) if x.numel() < 2000 else x
        if kind == 1:
            return torch.stack([x, x + 1], axis) if x.ndim < 3 and x.numel() < 2000 else x
        if kind == 2 and x.shape[axis] > 2:
            return x.index_select(axis, self.index)
        if kind == 3 and x.shape[axis] > 2:
            shape = [5 if k == axis else size for k, size in enumerate(x.shape)]
            return x.index_add(axis, self.index, torch.ones(shape, dtype=x.dtype) * 0.5)
        if kind == 4:
            return torch.nn.functional.pad(x, (1, 2))
        return x.roll(1, axis)

    def fill(self) -> Tensor:
        """Tensors of one value, which may be written later."""
        x = self.pick()
        filled = torch.full_like(x, 0.5) * 3 - torch.ones((), dtype=x.dtype)
        kind = self.random.randrange(4)
        if kind == 0:
            return x * filled + torch.zeros_like(x)
        if kind == 1:
            filled.select(0, 0).copy_(x.select(0, 0)) if x.ndim and x.shape[0] else filled.sub_(x)
            return filled
        if kind == 2:
            return (filled.sum() if x.numel() else filled) * 0.01 + x
        made = x.new_zeros(x.shape[::-1])
        made.copy_(x.permute(tuple(reversed(range(x.ndim)))))
        return made.mul_(filled.amax() if x.numel() else 1.0)

    def mutation(self) -> Tensor:
        """Change a copy of a tensor through views of it, while others look on."""
        x = self.pick(ndim=1).clone()
        before, axis = x * 2, self.random.randrange(x.ndim)
        part = x.narrow(axis, 0, (x.shape[axis] + 1) // 2)
        other = x.transpose(0, -1)
        for _ in range(self.random.randrange(1, 4)):
            kind = self.random.randrange(7)
            if kind == 0:
                part.mul_(0.5)
            elif kind == 1:
                other.add_(0.25)
            elif kind == 2:
                part.copy_(before.narrow(axis, 0, part.shape[axis]))
            elif kind == 3:
                x.sub_(x.sum() * 0.01)
            elif kind == 4:
                part.fill_(0.75)
            elif kind == 5:
                self.made.append(part * 1.5)
                x.tanh_()
            elif x.shape[0] > 2:
                x.index_put_((self.index,), part.sum(), accumulate=True)
        if self.random.random() < 0.5:
            self.made += [part, before]
        return self.random.choice([x, other, part + 1, x.sum(axis)])

    def write(self, length: int) -> list[Tensor]:
        kinds = (
            [self.pointwise] * 8 + [self.view] * 4 + [self.reduction] * 3 + [self.copying] * 2 + [self.mutation] * 2 + [self.fill]
        )
        while len(self.made) < length:
            found = self.random.choice(kinds)()
            if found.ndim < 4 and found.numel() < 4000:
                self.made.append(found)
        mutable = [each.clone() if self.random.random() < 0.1 else each for each in self.made[self.fixed :]]
        return [each for each in mutable if self.random.random() < 0.5][-60:]


def _fits(x: Tensor, y: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(x.shape, y.shape).numel() < 4000
    except RuntimeError:
        return False


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_do_what_torch_does(seed):
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if seed % 5 == 4 else torch.float64

    def draw() -> list[Tensor]:
        return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]

    def function(*inputs: Tensor) -> list[Tensor]:
        return Writer(seed, list(inputs)).write(220)

    inputs = draw()
    program = program_for(function, inputs)
    for given in (inputs, draw()):
        with torch.no_grad():
            wanted = function(*given)
        wrong = {k: text for k, (a, b) in enumerate(zip(program(given), wanted, strict=True)) if (text := difference(a, b, 1000))}
        assert not wrong
