"""torch's compiler in a process of its own: it takes seconds to load and to run, and changes much of torch while it does.

The steps of a run go on meanwhile, Ctrl-C is heard, and whatever the compiler leaves behind ends with its process. The process
waits for more work for half a minute, and ends with the one that started it.

    python -m langevin.engines.compiler    reads jobs from standard input
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import operator
import os
import pickle
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.engines.loop import checksum, folder
from langevin.engines.tape import Operation, Tape, Value

__all__ = ["build"]

_IDLE_SECONDS = 30.0
_MOST_KEPT = 256  # programs of about 1.5 MB
_STALE_SECONDS = 3600.0  # no compiler takes so long
_SIZE = struct.Struct("<q")


class Job(NamedTuple):
    """What the other process is told: operations and layouts, no values of tensors."""

    name: str
    folder: str
    dtype: torch.dtype  # torch's default: `torch.zeros(3)` is written down without one
    operations: list[Operation]
    results: list[Value]
    carry: list[tuple[Any, ...]]
    scanned: list[tuple[Any, ...]]
    constants: list[tuple[Any, ...]]


def build(name: str, tape: Tape, carry: Sequence[Tensor], scanned: Sequence[Tensor]) -> Future[Path]:
    """Have the code of a turn written, and return at once; the result is its file."""

    def layouts(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
        return [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in tensors]

    given = (layouts(tensors) for tensors in (carry, scanned, tape.constants))
    job = Job(name, str(folder()), torch.get_default_dtype(), tape.operations, tape.results, *given)
    data, future = pickle.dumps(tuple(job)), Future[Path]()

    def wait() -> None:
        try:
            path = _server().ask(data) or _server().ask(data)  # the first may have ended meanwhile, since it had nothing to do
            if path is None:
                raise RuntimeError("the compiler failed: its process ended")
            future.set_result(path)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=wait, name="langevin compiler", daemon=True).start()
    return future


class _Server:
    """The other process, seen from this one."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "langevin.engines.compiler"]  # -P: nothing is imported from where the user stands
        environment = dict(os.environ)
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "torch"))
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        # Without buffers, since a buffer that is read from cannot be closed: a process that ends would wait for the compiler.
        self._process = subprocess.Popen(command, bufsize=0, env=environment, stdin=pipe, stdout=pipe, stderr=nothing)
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        return self._process.poll() is None

    def ask(self, data: bytes) -> Path | None:
        """Return the file; None where the process had just ended, because it had waited long enough."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            rest = memoryview(_SIZE.pack(len(data)) + data)
            try:
                while rest:
                    rest = rest[self._process.stdin.write(rest) :]
                line = self._process.stdout.readline()
            except BrokenPipeError:
                line = b""
            if not line and self._process.wait() == 0:
                return None
        answer = json.loads(line or b'{"error": "its process ended"}')
        if "error" in answer:
            raise RuntimeError(f"the compiler failed: {answer['error']}")
        return Path(answer["path"])

    def close(self) -> None:
        """Let go of it: it ends when it has done what it does."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._process.poll() is None:
            self._process.returncode = 0  # it is left alone on purpose: Python need not warn of it


_servers: list[_Server] = []
_starting = threading.Lock()


def _server() -> _Server:
    with _starting:
        if not _servers or not _servers[-1].is_there:
            _close()
            _servers.append(_Server())
        return _servers[-1]


@atexit.register
def _close() -> None:
    while _servers:
        _servers.pop().close()


def _after_fork() -> None:
    """Let a child start a process of its own; a lock may have been held by a thread that it does not have."""
    global _starting
    _starting = threading.Lock()
    _close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# The other process.


def serve() -> None:
    """Do jobs until there are none for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other one, which closes the pipe when it ends
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer
    source = sys.stdin.buffer
    while select.select([source], [], [], _IDLE_SECONDS)[0]:
        head = source.read(_SIZE.size)
        if len(head) < _SIZE.size:
            return
        job = Job(*pickle.loads(source.read(_SIZE.unpack(head)[0])))  # from the process that started this one
        try:
            answer = {"path": str(_compile(job))}
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        print(json.dumps(answer), file=answers, flush=True)


def _compile(job: Job) -> Path:
    """Write the code; where it stands its name has a digest of it, and it is whole."""
    torch.set_default_dtype(job.dtype)
    _tidy(Path(job.folder))
    with tempfile.TemporaryDirectory(dir=job.folder, prefix=".") as work:
        made = Path(_assemble(job, Path(work) / "loop.so"))
        beside = list(Path(work).rglob("*.wrapper.json"))  # operations that torch's own loader must be asked for
        final = Path(job.folder) / f"{job.name}-{checksum(made, *beside)}.so"
        for nodes in beside:
            nodes.replace(final.with_suffix(".json"))
        made.chmod(0o600)
        made.replace(final)
    return final


def _tidy(kept: Path) -> None:
    """Remove what killed processes have left, and the code that was not used for the longest time, where there is much of it."""
    with contextlib.suppress(OSError):  # another process may tidy, too
        for place in kept.glob(".*"):
            if place.stat().st_mtime < time.time() - _STALE_SECONDS:
                shutil.rmtree(place)
        programs = sorted(kept.glob("*.so"), key=lambda path: path.stat().st_mtime)
        for old in programs[: -_MOST_KEPT or None]:
            old.unlink()
            old.with_suffix(".json").unlink(missing_ok=True)


def _assemble(job: Job, path: Path) -> str:
    import torch._inductor.compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from langevin.engines.small import with_small_products

    compile_fx: Any = torch._inductor.compile_fx
    table = compile_fx.select_decomp_table
    compile_fx.select_decomp_table = functools.cache(lambda: with_small_products(table()))
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with mode:
        given = [torch.empty_strided(*layout[:2], dtype=layout[2]) for layout in (*job.carry, *job.scanned, *job.constants)]
    settings = {"cpp.threads": 1, "aot_inductor.output_path": str(path)}
    known = {"cpp.vec_isa_ok": True}  # the compiler is believed to know this processor's instructions: to try each takes seconds
    try:
        for more in (known, {}):
            with torch.no_grad(), contextlib.suppress(*([Exception] if more else [])):
                return str(compile_fx.compile_fx_aot(_graph(job), given, config_patches={**settings, **more}))
    finally:
        compile_fx.select_decomp_table = table
    raise AssertionError("one of two ways returns or raises")


def _graph(job: Job) -> torch.fx.GraphModule:
    """Return a graph of one node, torch's scan of the turn."""
    graph = torch.fx.Graph()
    carry, scanned, constants = (
        [graph.placeholder(f"{word}{k}") for k in range(len(layouts))]
        for word, layouts in (("carry", job.carry), ("scanned", job.scanned), ("constant", job.constants))
    )
    loop = graph.call_function(torch.ops.higher_order.scan, (graph.get_attr("turn"), carry, scanned, tuple(constants)))
    graph.output([graph.call_function(operator.getitem, (loop, k)) for k in range(len(job.results))])
    return torch.fx.GraphModule({"turn": _turn(job)}, graph)


def _turn(job: Job) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    nodes = {Value("input", k): graph.placeholder(f"input{k}") for k in range(len(job.carry) + len(job.scanned))}
    nodes |= {Value("constant", k): graph.placeholder(f"constant{k}") for k in range(len(job.constants))}

    def node_of(value: Any) -> Any:
        if isinstance(value, Value):
            return nodes[value]
        if isinstance(value, (list, tuple)):
            return type(value)(map(node_of, value))
        return {key: node_of(part) for key, part in value.items()} if isinstance(value, dict) else value

    for operation in job.operations:
        function: Any = functools.reduce(getattr, operation.name.split("."), torch.ops)
        made = graph.call_function(function, node_of(operation.arguments), node_of(operation.options))
        for k, value in enumerate(operation.results):
            if value is not None and value not in nodes:
                nodes[value] = made if operation.is_single else graph.call_function(operator.getitem, (made, k))
    graph.output([nodes[value] for value in job.results])
    graph.eliminate_dead_code()
    return torch.fx.GraphModule({}, graph)


if __name__ == "__main__":
    serve()
