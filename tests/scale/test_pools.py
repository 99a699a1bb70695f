"""Any pool with `map`: the same draws as in one process, and an error in words for whatever happens to its processes."""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch
from spread_targets import BLOCKS, INIT, SAMPLER, acting, arming, half_square

import langevin as lv
from langevin.distributed import Pool, WorkerError, messages

QUIET = lv.targets.energy(half_square, dim=2)


@pytest.fixture(scope="module")
def context():
    """Return processes that start fast: one of them has imported everything, the others are its forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["langevin", "spread_targets"])
    return context


@pytest.fixture(scope="module")
def expected():
    return lv.sample(QUIET, sampler=SAMPLER, init=INIT, engine="local", **BLOCKS)


def run(pool, target=QUIET, seconds=0.05, **settings):
    engine = "local" if pool is None else Pool(pool=pool, seconds=seconds)
    return lv.sample(target, sampler=SAMPLER, init=INIT, engine=engine, **{**BLOCKS, **settings})


@pytest.mark.parametrize("workers", [1, 2])
def test_the_draws_do_not_depend_on_the_pool(workers, context, expected, tmp_path):
    with context.Pool(workers) as pool:
        found = lv.sample(QUIET, sampler=SAMPLER, init=INIT, engine=pool, **BLOCKS, out=tmp_path / "run")
        again = run(pool, lv.targets.energy(lambda theta: (theta * theta).sum() / 2, dim=2))  # cloudpickle takes lambdas
    assert torch.equal(found.draws, expected.draws)
    assert torch.equal(again.draws, expected.draws)
    assert torch.equal(lv.load_samples(tmp_path / "run").draws, expected.draws)
    assert str(found.trust) == str(expected.trust)


def test_executors_and_threads_are_pools_too(context, expected):
    before = torch.get_num_threads()
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert torch.equal(run(pool).draws, expected.draws)
    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(run(pool).draws, expected.draws)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("kind", ["Pool", "Executor"])
def test_a_killed_process_is_an_error_and_the_run_goes_on_from_its_folder(kind, context, tmp_path, expected):
    """`multiprocessing.Pool` itself would wait for ever."""
    target = acting("die", tmp_path)
    words = r"(?s)(died with exit code -9|pool is broken).*langevin\.resume\("
    processes = context.Pool(2) if kind == "Pool" else ProcessPoolExecutor(2, mp_context=context)
    with processes as pool, pytest.raises(WorkerError, match=words) as caught:
        run(pool, target, seconds=1e-9, out=tmp_path / "run", progress=arming(tmp_path))
    assert str(tmp_path / "run") in str(caught.value)
    assert lv.load_samples(tmp_path / "run").status[0].steps > 0
    (tmp_path / "armed").unlink()
    assert torch.equal(lv.resume(tmp_path / "run", target, sampler=SAMPLER, progress=False).draws, expected.draws)


def test_a_worker_without_memory_stops_no_chain(context, tmp_path, expected):
    """It is no chain's fault: the block can go on elsewhere."""
    target = acting("starve", tmp_path)
    words = r"(?s)the block of chains 0 to 3: .*MemoryError: RuntimeError: .*allocate.*continues from there"
    with context.Pool(1) as pool, pytest.raises(WorkerError, match=words):
        run(pool, target, seconds=1e-9, out=tmp_path / "run", progress=arming(tmp_path))
    assert all(status.is_healthy for status in lv.load_samples(tmp_path / "run").status)
    (tmp_path / "armed").unlink()
    assert torch.equal(lv.resume(tmp_path / "run", target, sampler=SAMPLER, progress=False).draws, expected.draws)


def test_an_error_in_a_worker_arrives_with_its_text(context):
    words = r"(?s)the block of chains 0 to 3: .*process \d+: Traceback.*SystemError: a library broke\nNo draws were kept"
    with context.Pool(1) as pool, pytest.raises(WorkerError, match=words):
        run(pool, keep=Breaking())


class Breaking:
    """Keeps positions; breaks where it is opened in a worker."""

    def __call__(self, theta):
        return theta

    def __reduce__(self):
        return _break, ()


def _break():
    raise SystemError("a library broke")


def other_version():
    lv.__version__ = "0.0.7"


def test_a_worker_with_another_version_is_told_apart(context):
    with context.Pool(1, other_version) as pool, pytest.raises(WorkerError) as caught:
        run(pool)
    assert f"another version on a worker: langevin 0.0.7 there, {lv.__version__} here" in str(caught.value)
    assert "No draws were kept" in str(caught.value)


def test_what_cannot_be_sent_is_said_before_anything_runs(context, monkeypatch):
    lock = threading.Lock()

    def energy(theta):
        with lock:
            return half_square(theta)

    with context.Pool(1) as pool:
        with pytest.raises(TypeError, match=r"sampler, target, data or keep\) cannot be sent to another process: .*lock"):
            run(pool, lv.targets.energy(energy, dim=2))
        monkeypatch.setattr(messages, "_dumps", lambda: messages.pickle.dumps)
        with pytest.raises(TypeError, match="With cloudpickle installed lambdas"):
            run(pool, lv.targets.energy(lambda theta: half_square(theta), dim=2))


def test_a_worker_that_rounds_otherwise_is_warned_of_once(context, monkeypatch):
    with context.Pool(1) as pool:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
        with pytest.warns(UserWarning, match="this machine ABACUS") as caught:
            run(pool)
    assert sum("ABACUS" in str(entry.message) for entry in caught) == 1


def test_a_pool_that_is_closed(context):
    pool = context.Pool(1)
    pool.terminate()
    with pytest.raises(WorkerError, match="pool is broken: it is closed"):
        run(pool)


@pytest.fixture(params=["tmpfs", "limit"])
def small_disk(request, tmp_path):
    """Return a folder on a disk that is soon full, and what makes room there."""
    if request.param == "limit":  # files may not grow: what the system says then is an OSError, too
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield (
            tmp_path,
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (45_000, before[1])),
            "File too large",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before),
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=240k", "tmpfs", tmp_path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield tmp_path, lambda: None, "No space left", lambda: subprocess.run(["mount", "-o", "remount,size=50m", tmp_path], check=True)
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_loses_nothing_that_was_written(context, small_disk):
    folder, fill, words, make_room = small_disk
    expected = run(None, num_steps=1000)
    with context.Pool(1) as pool:
        pool.map(abs, [1])  # its process is there before files may not grow
        fill()
        with pytest.raises(OSError, match=rf"(?s){words}.*langevin\.resume\("):
            run(pool, num_steps=1000, seconds=1e-9, out=folder / "run")
        written = lv.load_samples(folder / "run")
        assert torch.equal(written.draws, expected.draws[:, : written.draws.shape[1]])
        make_room()
        assert torch.equal(lv.resume(folder / "run", QUIET, sampler=SAMPLER, engine=pool, progress=False).draws, expected.draws)
    assert written.status[0].steps > 0
