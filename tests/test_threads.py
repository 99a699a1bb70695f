"""Pieces of work on torch's threads."""

from __future__ import annotations

import threading

import pytest
import torch

from langevin.compiler import runtime as threads


@pytest.fixture(params=["OpenMP", "Python"])
def _engine(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(threads, "_gomp", None)
    elif threads._gomp is None:
        pytest.skip("torch does not run on GNU OpenMP here")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("count", [0, 1, 9, 10, 1000, 1003])
def test_the_pieces_cover_the_range_once(count):
    pieces = []
    threads.run_in_threads(lambda begin, end: pieces.append((begin, end)), count, 10)
    assert sorted(i for begin, end in pieces for i in range(begin, end)) == list(range(count))


@pytest.mark.usefixtures("_engine")
def test_two_threads_work_at_once():
    """Each of two pieces waits for the other: with one thread this would never end."""
    both = threading.Barrier(2, timeout=20)
    threads.run_in_threads(lambda begin, end: both.wait(), 2, 1)


@pytest.mark.usefixtures("_engine")
def test_an_exception_comes_back_to_the_caller():
    def work(begin, end):
        raise ValueError(f"piece {begin}")

    with pytest.raises(ValueError, match="piece"):
        threads.run_in_threads(work, 100, 10)
    threads.run_in_threads(lambda begin, end: None, 100, 10)  # and the threads are still there


@pytest.mark.usefixtures("_engine")
def test_other_threads_may_use_it_too():
    results = []

    def caller():
        threads.run_in_threads(lambda begin, end: results.append(end - begin), 100, 10)

    callers = [threading.Thread(target=caller) for _ in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(20)
    assert sum(results) == 300
