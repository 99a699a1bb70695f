"""Ctrl-C anywhere in a run returns what was drawn: whole draws, a true status, and on disk a folder that goes on."""

from __future__ import annotations

import importlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

import langevin as lv
from langevin import storage
from langevin.execution import Runner, blocks
from langevin.sampling import config as plan
from langevin.sampling import recorder as progress
from langevin.sampling.interrupts import Interrupts

driver, given, sampling = (importlib.import_module(f"langevin.sampling.{name}") for name in ("loop", "manual", "sample"))
X = lv.random.normal(1, 0, 0, 60, dtype=torch.float64)
TARGET = lv.targets.likelihood(lambda theta, x: -0.5 * (x - theta[0] * theta[1]) ** 2, prior=lv.priors.gaussian(std=1.0))
START = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
SETTINGS = {"data": X, "batch_size": 7, "num_steps": 60, "warmup": 6, "thin": 3, "seed": 4, "compile": False}
PLACES = {
    "check": (given, "check_evaluation"),
    "gradient": (plan, "minibatch"),
    "centre": (plan, "control_variate"),
    "evaluation": (type(TARGET), "evaluate"),
    "tuning": (given, "find_step_size"),
    "fingerprints": (sampling, "fingerprints"),
    "create": (storage.DiskStore, "create"),
    "draw": (driver, "draw_block"),
    "engine": (Runner, "run"),
    "step": (type(lv.sgld(0.1)), "step"),
    "judgement": (progress, "_find_bad"),
    "moments": (progress, "add_moments"),
    "write": (storage.MemoryStore, "write"),
    "written": (storage.DiskStore, "write"),
    "flush": (storage.DiskStore, "flush"),
    "save": (storage.DiskStore, "save"),
    "last": (progress, "evaluate_chains"),
}


def run(auto=False, **changes):
    kernel = lv.sgld("auto") if auto else lv.sgld(1e-3)
    return lv.sample(TARGET, sampler=kernel, init=START, **{**SETTINGS, **changes})


def check(part, whole):
    """See that a part of a run is a part of it, and that it knows how far it is."""
    (steps,) = {status.steps for status in part.status}
    (draws,) = {status.draws for status in part.status}
    assert draws == len(range(8, steps, 3))
    if part.moments is not None:
        assert set(part.moments.num.tolist()) <= {draws, draws - 1}
        assert part.draws.shape == (3, 0, 2)
        return
    for name in ("draws", "energy", "gradient_norm"):
        assert getattr(part, name).shape[:2] == (3, draws)
        assert torch.equal(getattr(part, name), getattr(whole, name)[:, :draws]), name
    assert torch.equal(part.step_size, whole.step_size[:draws])


def interrupt(monkeypatch, place, call, before):
    """Raise KeyboardInterrupt at that call of a function, before it or after it has done its work."""
    owner, name = PLACES[place]
    function, calls = getattr(owner, name), 0
    is_bound = isinstance(owner, type) and isinstance(owner.__dict__.get(name), classmethod)

    def interrupting(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == call and before:
            raise KeyboardInterrupt
        result = function(*arguments, **options)
        if calls == call:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, staticmethod(interrupting) if is_bound else interrupting)
    return lambda: calls >= call


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "_MAX_BLOCK", 16)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ["memory", "disk", "moments", "auto"])
def test_an_interrupt_raised_anywhere_returns_what_was_drawn(tmp_path, monkeypatch, kind, before):
    options = {"memory": {}, "disk": {}, "moments": {"keep": "moments"}, "auto": {"auto": True}}[kind]
    options = options | ({"control_variate": START[0]} if kind == "memory" else {})
    monkeypatch.setattr(driver, "_CHECKPOINT_SECONDS", -1.0)
    whole = run(**options)
    seen = set()
    calls = {"auto": (1,), "disk": (1, 3)}.get(kind, (1, 2, 40))
    for place in ("check", "evaluation", "tuning") if kind == "auto" else PLACES:  # tuning takes seconds
        for call in calls:
            out = tmp_path / f"{place}{call}" if kind == "disk" else None
            with monkeypatch.context() as patch:
                was_there = interrupt(patch, place, call, before)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    warnings.simplefilter("ignore", lv.TrustWarning)  # the run is short
                    part = run(out=out, **options)
            if not was_there():
                assert not caught
                continue
            seen.add(place)
            assert any("was interrupted" in str(warning.message) for warning in caught), place
            check(part, whole)
            if out is not None and out.exists():
                check(lv.load_samples(out), whole)
                again = lv.resume(out, TARGET, sampler=lv.sgld(1e-3), data=X)
                assert torch.equal(again.draws, whole.draws), place
                assert again.status == whole.status
    shared = {"check", "gradient", "evaluation", "draw", "engine", "step", "judgement", "last"}
    own = {"memory": {"write", "centre"}, "disk": {"fingerprints", "create", "written", "flush", "save"}, "moments": {"moments"}}
    assert seen == (shared | own[kind] if kind in own else {"check", "evaluation", "tuning"})


def test_no_draw_of_a_run_in_memory_is_lost_while_it_is_recorded(monkeypatch):
    whole = run()
    with monkeypatch.context() as patch:
        interrupt(patch, "write", 2, before=True)
        with pytest.warns(UserWarning, match="interrupted at step 32; it returns 8 draws"):
            part = run()
    check(part, whole)
    assert part.status[0].steps == 32


def test_an_interrupt_in_the_set_up_says_so():
    class Interrupting(lv.targets.Target):
        needs_data, gradient_noise = False, 0.0

        def evaluate(self, position, batch=None):
            signal.raise_signal(signal.SIGINT)
            return lv.targets.Evaluation((position**2).sum(-1) / 2, position)

    with pytest.warns(UserWarning, match="interrupted during set-up; it returns 0 draws"):
        samples = lv.sample(Interrupting(), sampler=lv.sgld(0.1), init=START, num_steps=10, keep=lambda theta: theta.sum())
    assert samples.draws.shape == (3, 0)
    assert {status[1:] for status in samples.status} == {(0, 0, None)}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_waits_where_it_would_do_harm_and_a_second_one_does_not():
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.open()
        interrupts.was_raised = False
        interrupts.open()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()  # as long as nobody has seen it
        interrupts.was_raised = False
        interrupts.close()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_is_asked_and_given_back():
    calls = []

    def handler(number, frame):
        calls.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with Interrupts() as interrupts:
            interrupts.open()
            signal.raise_signal(signal.SIGINT)
            interrupts.close()
            signal.raise_signal(signal.SIGINT)
            interrupts.check()
            interrupts.check()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) == 2


def test_a_run_in_another_thread_leaves_signals_alone():
    found = []
    thread = threading.Thread(target=lambda: found.append(run().draws))
    thread.start()
    thread.join()
    assert found[0].shape[0] == 3


ZYGOTE = """
import os, signal, sys, warnings
import torch
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
import test_interrupts as t
t.driver._CHECKPOINT_SECONDS = 0.01
whole = t.run(num_steps=t.LONG)
print("ready", flush=True)
inside = False

def handler(number, frame):
    if inside:
        raise KeyboardInterrupt

class Watched(t.Interrupts):
    # Signals are sent from here on: what is checked before, and what the test does after, is not what is tried.
    def __enter__(self):
        global inside
        inside = True
        super().__enter__()
        print("go", flush=True)
        return self

    def __exit__(self, *error):
        global inside
        inside = False
        super().__exit__(*error)

for line in sys.stdin:
    kind, path = line.split()
    child = os.fork()
    if child == 0:
        code = 3
        signal.signal(signal.SIGINT, handler)
        before, t.sampling.Interrupts = t.sampling.Interrupts, Watched
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                part = t.run(num_steps=t.LONG, auto=kind == "auto", **(dict(out=path) if kind == "disk" else dict()))
            t.sampling.Interrupts = before
            if kind != "auto":
                t.check(part, whole)
            if kind == "disk" and os.path.exists(path):
                t.check(t.lv.load_samples(path), whole)
                again = t.lv.resume(path, t.TARGET, sampler=t.lv.sgld(1e-3), data=t.X)
                assert torch.equal(again.draws, whole.draws)
                assert not [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".new")]
            interrupted = any("was interrupted" in str(warning.message) for warning in caught)
            assert interrupted or part.status[0].steps == t.LONG
            code = 10 + interrupted
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), child, flush=True)
"""
LONG = 2_000


@pytest.mark.slow
def test_signals_at_random_moments_never_escape_and_never_spoil_a_draw(tmp_path):
    script = ZYGOTE.format(tests=str(Path(__file__).parent))
    moments, codes = random.Random(0), []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True, **pipes) as zygote:
        assert zygote.stdout.readline() == "ready\n"
        for trial in range(45):
            kind = ("memory", "disk", "auto")[trial % 3]
            zygote.stdin.write(f"{kind} {tmp_path / f'run{trial}'}\n")
            zygote.stdin.flush()
            assert zygote.stdout.readline() == "go\n"
            time.sleep(moments.uniform(0.002, 1.5))
            child = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text().split()
            for pid in child:
                os.kill(int(pid), signal.SIGINT)
            codes.append(int(zygote.stdout.readline().split()[0]))
        zygote.stdin.close()
    assert set(codes) <= {10, 11}, codes
    assert codes.count(11) >= 10, codes
