"""What another thread may do while an optimizer steps: replace its tensors, but not step it too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from catalogue import OPTIMIZERS, build, data, network, train
from torch import nn

import langevin as lv

HAMMER = Path(__file__).parent / "hammer.py"


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_tensors_that_another_thread_replaces_during_steps_crash_nothing(engine):
    """With a fixed threshold malloc gives freed memory back to the system at once, so that touching it is a SIGSEGV."""
    run = subprocess.run(
        [sys.executable, HAMMER, engine, "0.8"],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr[-2000:]}"
    assert run.stdout.endswith("survived\n")


def in_step_of(optimizer, work):
    """Call `work` in another thread while the optimizer is in the middle of a step, and return what it raised."""
    raised = []

    def other():
        try:
            work()
        except Exception as error:
            raised.append(error)

    def closure():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    optimizer.step(closure)
    return raised


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_second_thread_in_step_gets_an_error_and_moves_nothing(name):
    model, reference = network(), network()
    optimizer, alone = build(name, model.parameters()), build(name, reference.parameters())
    for one, own in ((model, optimizer), (reference, alone)):
        train(one, own, 2)
    (error,) = in_step_of(optimizer, optimizer.step)
    assert isinstance(error, RuntimeError)
    assert f"{type(optimizer).__name__}.step() is already running in another thread" in str(error)
    alone.step()
    assert torch.equal(*(nn.utils.parameters_to_vector(one.parameters()) for one in (model, reference)))
    train(model, optimizer, 2)  # the failed call left nothing behind
    train(reference, alone, 2)
    assert torch.equal(*(nn.utils.parameters_to_vector(one.parameters()) for one in (model, reference)))


def test_a_closure_that_steps_gets_an_error():
    optimizer = build("SGLD", network().parameters())
    with pytest.raises(RuntimeError, match="by its own closure"):
        optimizer.step(optimizer.step)
    optimizer.step()


def test_a_step_that_failed_or_was_interrupted_leaves_the_optimizer_free():
    model = network()
    optimizer = build("MSGLD", model.parameters())

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(interrupt)
    model[0].weight.grad = torch.ones(7, 5).to_sparse()
    with pytest.raises(ValueError, match="dense gradients"):
        optimizer.step()
    train(model, optimizer, 1)


def test_a_state_loaded_in_mid_step_does_not_open_it_to_a_second_thread():
    model = network()
    optimizer = build("MSGLD", model.parameters())
    train(model, optimizer, 1)
    state = optimizer.state_dict()

    def load_then_step():
        optimizer.load_state_dict(state)
        optimizer.step()

    (error,) = in_step_of(optimizer, load_then_step)
    assert "already running" in str(error)


def test_two_optimizers_of_one_model_step_in_two_threads():
    model = network()
    first, second = (lv.optim.SGLD([p], lr=0.1, num_data=50, chain=k) for k, p in enumerate(list(model.parameters())[:2]))
    x, y = data()
    (model(x) - y).square().mean().backward()
    assert in_step_of(first, second.step) == []
