"""Tensors of a step like the one before: what has moved, or shares memory, is seen, for few gradients and for many."""

from __future__ import annotations

import pytest
import torch

from langevin.execution.fused import PointerCache, table_row

SIZE = 8


def columns_of(count):
    """Positions, gradients and one memory for each of `count` rows."""
    return [[torch.zeros(SIZE) for _ in range(count)] for _ in range(3)]


def known_of(columns):
    rows = [table_row(p, g, [m], SIZE * k) for k, (p, g, m) in enumerate(zip(*columns, strict=True))]
    known = PointerCache(columns, rows)
    assert known.table(columns) is not None  # notes where they lie
    return known


@pytest.mark.parametrize("count", [1, 3, 60])
def test_new_gradients_are_taken_and_their_pointers_are_in_the_table(count):
    columns = columns_of(count)
    known = known_of(columns)
    for _ in range(3):
        columns[1] = [torch.ones(SIZE) for _ in range(count)]
        table, storages = known.table(columns)
        for k, column in enumerate(columns):
            assert table[:, 4 + k].tolist() == [tensor.data_ptr() for tensor in column]
        held = {storage.data_ptr() for storage in storages}
        assert held == {tensor.data_ptr() for column in columns for tensor in column}


@pytest.mark.parametrize("count", [3, 60])
@pytest.mark.parametrize("other", ["position", "memory", "gradient", "overlap before", "overlap behind", "cut"])
def test_a_gradient_that_shares_memory_or_has_too_little_is_seen(count, other):
    columns = columns_of(count)
    buffer = torch.zeros(2 * SIZE)
    columns[0][1] = buffer[4 : 4 + SIZE]
    known = known_of(columns)
    gradients = columns[1] = [torch.ones(SIZE) for _ in range(count)]
    assert known.table(columns) is not None
    if other == "position":
        gradients[2] = columns[0][0].view(SIZE)
    elif other == "memory":
        gradients[2] = columns[2][0].view(SIZE)
    elif other == "gradient":
        gradients[2] = gradients[0].view(SIZE)
    elif other == "overlap before":
        gradients[2] = buffer[:SIZE]
    elif other == "overlap behind":
        gradients[2] = buffer[SIZE:]
    else:
        gradients[2].untyped_storage().resize_(4)
    assert known.table(columns) is None


@pytest.mark.parametrize("count", [3, 60])
def test_a_position_that_moved_is_looked_at_again(count):
    columns = columns_of(count)
    known = known_of(columns)
    columns[0][1].data = torch.ones(SIZE)
    table, _ = known.table(columns)
    assert table[1, 4] == columns[0][1].data_ptr()
    columns[0][1].data = columns[2][0]  # now it is the memory of another row
    assert known.table(columns) is None


def test_gradients_are_not_kept_between_steps():
    """Their memory is free after `zero_grad`."""
    columns = columns_of(3)
    known = known_of(columns)
    found = known.table(columns)
    assert found is not None
    held = {storage.data_ptr() for storage in known._fixed._storages}
    assert held == {tensor.data_ptr() for column in (columns[0], columns[2]) for tensor in column}
