"""What compiled code reads and writes: indices out of range, lazy bits, singular matrices, constants that change, aliases."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from program_checks import check_cases, difference, program_for, tape_of

from langevin.compiler import graph, source
from langevin.compiler.graph import UncoveredError
from langevin.compiler.program import Program, replay
from langevin.compiler.record import UnrecordableError, agreeing

X = torch.arange(12.0, dtype=torch.float64).view(3, 4)
GOOD, BAD = torch.tensor([0, 2, 1]), [torch.tensor([0, 3, 1]), torch.tensor([-4, 0, 0]), torch.tensor([2**40, 0, 0])]
ADDED = torch.ones(3, 4, dtype=torch.float64)
INDEXING = {
    "index": lambda x, i: x[i],
    "index of two axes": lambda x, i: x[i, i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], ADDED),
    "index_add": lambda x, i: x.index_add(0, i, ADDED),
    "index_copy": lambda x, i: x.index_copy(0, i, ADDED),
    "index_put": lambda x, i: x.index_put((i,), ADDED),
    "index_put accumulate": lambda x, i: x.index_put((i,), ADDED, accumulate=True),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "take": lambda x, i: x[:, 0].take(i),
}


@pytest.mark.parametrize("name", INDEXING)
def test_an_index_out_of_range_is_an_error(name):
    case = INDEXING[name]
    program = program_for(case, [X, GOOD])
    assert not difference(program([X, GOOD])[0], case(X, GOOD))
    for bad in BAD:
        with pytest.raises(IndexError, match="out of range"):
            program([X, bad])
    assert not difference(program([X, GOOD])[0], case(X, GOOD))  # it still works


def test_negative_indices_count_from_the_end_only_where_torch_lets_them():
    negative = torch.tensor([-1, -3, 0])
    for name, case in INDEXING.items():
        program = program_for(case, [X, GOOD])
        if name in ("index", "index of two axes", "index_put", "index_put accumulate", "take"):
            assert not difference(program([X, negative])[0], case(X, negative)), name
        else:
            with pytest.raises(IndexError, match="out of range"):
                program([X, negative])


def test_indices_that_are_computed_are_checked():
    program = program_for(lambda x: x[(x[0] * 0.5).long()], [X])
    assert not difference(program([X])[0], X[[0, 0, 1, 1]])
    with pytest.raises(IndexError):
        program([X + 100])


def test_a_matrix_without_factors_is_an_error():
    for case in (torch.linalg.cholesky, torch.linalg.inv, lambda a: torch.linalg.solve(a, a)):
        program = program_for(case, [torch.eye(3, dtype=torch.float64)])
        with pytest.raises(torch.linalg.LinAlgError):
            program([torch.zeros(3, 3, dtype=torch.float64)])


def test_lazy_bits_of_constants_are_resolved():
    z = torch.complex(X, X + 1)
    negative = z.conj().imag
    assert negative.is_neg()
    cases = {
        "whole": lambda x: x + negative,
        "view": lambda x: x[1] * negative[1] + negative.mT[1, 0],
        "result": lambda x: negative,
        "view as result": lambda x: (negative[0], negative.mT),
        "copy": lambda x: negative.clone() + x,
        "index": lambda x: negative[GOOD] + x,
    }
    check_cases(cases, [X], [X + 1])


def test_constants_that_are_known_to_be_zeros_are_zeros():
    zeros = torch._efficientzerotensor(3, 4, dtype=torch.float64)
    for case in (lambda x: x + zeros, lambda x: zeros[1] * x, lambda x: zeros):
        assert torch.equal(replay(tape_of(case, [X]))([X + 1])[0].clone(), case(X + 1).clone())


def test_lazy_bits_of_inputs_are_resolved():
    negative = torch.complex(X, X + 1).conj().imag
    program = program_for(lambda x: x * 2, [X])
    assert torch.equal(program([negative])[0], negative * 2)


@pytest.mark.parametrize(
    "case",
    [
        lambda x: torch.complex(x, x + 1).conj().imag,
        lambda x: torch.complex(x, x + 1).conj().imag * 2,
        lambda x: torch.view_as_real(torch.complex(x, x).conj().resolve_conj()),
        lambda x: (x.half() * 300).double(),
        lambda x: (x.bfloat16() / 3).double(),
        lambda x: (x.half() * 300 * 300).double() * 0,
    ],
)
def test_complex_and_16_bit_intermediates_are_replayed_with_the_same_bits(case):
    tape = tape_of(case, [X])
    with pytest.raises(UncoveredError):
        Program(tape)
    found, wanted = replay(tape)([X + 1])[0], case(X + 1)
    assert difference(found.resolve_neg(), wanted.resolve_neg()) == ""


def test_what_is_rebound_between_recordings_is_noticed():
    scale = [torch.ones(3, 4, dtype=torch.float64)]
    first = tape_of(lambda x: x * scale[0], [X])
    scale[0] = torch.full((3, 4), 2.0, dtype=torch.float64)
    with pytest.raises(UnrecordableError, match="two recordings differ"):
        agreeing(first, tape_of(lambda x: x * scale[0], [X]))


def test_a_constant_that_is_resized_is_an_error_and_not_a_crash():
    constant = torch.ones(3, 4, dtype=torch.float64)
    program = program_for(lambda x: x * constant, [X])
    constant.resize_(1 << 20)
    with pytest.raises(RuntimeError, match="resized"):
        program([X])


def test_values_of_constants_may_be_read_but_not_those_of_inputs():
    groups = torch.tensor([0, 2, 1, 1])
    cases = {
        "item": lambda x: x[: int(groups.max())] * float(groups.sum()),
        "branch": lambda x: x if bool((groups > 1).any()) else -x,
        "mask": lambda x: x[:, groups > 0] * 2,
        "nonzero": lambda x: x[:, (groups > 0).nonzero()[:, 0]],
        "unique": lambda x: x[:, : len(groups.unique())],
        "masked_select": lambda x: x[0].masked_select(groups > 0),
        "repeat": lambda x: x[0].repeat_interleave(groups),
        "list": lambda x: x[:, groups.tolist()],
        "numpy": lambda x: x * torch.from_numpy(groups.numpy() * 2.0),
        "filled": lambda x: x * int(torch.zeros(3).fill_(2.0).sum()),
    }
    check_cases(cases, [X], [X + 1])
    for case in (
        lambda x: x * x.sum().item(),
        lambda x: x[:, x[0] > 1],
        lambda x: x * (groups + x[0]).sum().item(),
        lambda x: x * torch.zeros(4, dtype=x.dtype).copy_(x[0]).sum().item(),
        lambda x: x * torch.zeros(2, 4, dtype=x.dtype)[0].add_(x[0]).sum().item(),
    ):
        with pytest.raises(UnrecordableError, match="reads values"):
            tape_of(case, [X])


def test_what_changes_other_tensors_than_its_first_argument_is_replayed():
    for case in (
        lambda x: (a := torch.empty_like(x), torch.add(x, x, out=a), a * 2)[-1],
        lambda x: (a := [x * 1, x * 2], torch._foreach_mul_(a, 2.0), torch.stack(a))[-1],
    ):
        tape = tape_of(case, [X])
        with pytest.raises(UncoveredError):
            Program(tape)
        assert torch.equal(replay(tape)([X + 1])[0], case(X + 1))


def test_buffers_that_are_alive_at_once_have_memory_of_their_own(monkeypatch):
    """The plan of the workspace, for tensors of one size that are read at the end."""

    def function(x):
        kept = [x.flip(0) + k for k in range(6)]
        rolled = [each.cumsum(0) for each in kept]
        return [*(a.cumsum(1) + b for a, b in zip(kept, rolled, strict=True)), sum(rolled)]

    check_cases({"kept": function}, [X], [X + 1])
    tape = tape_of(function, [X])
    groups: list[graph.Any] = []
    plan = source._plan

    def look(found):
        groups[:] = found
        return plan(found)

    monkeypatch.setattr(source, "_plan", look)
    source.write(tape)
    offsets, size = plan(groups)
    life = {buffer: [k for k, g in enumerate(groups) if buffer in g.reads | g.writes] for buffer in offsets}
    for a, at in offsets.items():
        assert at + a.numel * a.dtype.itemsize <= size
        for b, other in offsets.items():
            if a != b and life[a][0] <= life[b][-1] and life[b][0] <= life[a][-1]:
                assert at + a.numel * a.dtype.itemsize <= other or other + b.numel * b.dtype.itemsize <= at


def test_programs_take_inputs_of_any_strides_and_check_their_shapes():
    program = program_for(lambda x: x * 2, [X])
    wide = torch.arange(24.0, dtype=torch.float64).view(3, 8)[:, ::2]
    assert torch.equal(program([wide])[0], wide * 2)
    with pytest.raises(RuntimeError, match="takes"):
        program([X.mT])
    with pytest.raises(RuntimeError, match="takes"):
        program([X.float()])


def test_an_equal_recording_is_the_same_text_in_another_process():
    """The text is the key of the cache: were it not, every process would compile again."""
    script = """
import hashlib, torch
from langevin.compiler.record import record
from langevin.compiler.source import write
def function(x):
    parts = [(x + k).cumsum(0) for k in range(8)]
    return [sum(parts), *(part.cumsum(1) * part.sum() for part in parts)]
x = [torch.ones(5, 7)]
print(hashlib.sha256(write(record(lambda: function(*x), x)).text.encode()).hexdigest())
"""
    texts = set()
    for seed in "123":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
        texts.add(done.stdout)
    assert len(texts) == 1
