"""Compiling ahead: what the first step of a run waits for, done once and kept for later processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from langevin import noise
from langevin.optim import named
from langevin.optim.base import LangevinOptimizer
from langevin.optim.update import fused_engine
from langevin.targets import priors
from langevin.targets.priors import Prior

__all__ = ["fill_caches"]

_SEED = 2**63  # no run of a user's: two optimizers with one seed in a process are told that they share their noise


def fill_caches(progress: Callable[[str, float], object] | None = None) -> list[tuple[str, float]]:
    """Compile the noise and the fused step of every named optimizer in float32, without a prior and with a Gaussian one.

    The code is kept in the user's cache folder (`langevin.cpu.code_cache`): the first step of a later process loads it instead of
    compiling it. What is kept already is loaded, which takes little time. Without numba there is nothing to compile.

    Args:
        progress: called with what was compiled and its seconds, after each.

    Returns:
        What was compiled, or loaded, and the seconds of each.

    Example:
        >>> import langevin as lv
        >>> lv.optim.fill_caches(progress=print)  # doctest: +SKIP
    """
    done = []
    for what, work in _works() if fused_engine() is not None else ():
        begin = time.perf_counter()
        work()
        done.append((what, time.perf_counter() - begin))
        if progress is not None:
            progress(*done[-1])
    return done


def _works() -> Iterator[tuple[str, Callable[[], object]]]:
    for dtype in (torch.float32, torch.float64):
        word = str(dtype).removeprefix("torch.")
        yield f"short rows of normals in {word}", partial(noise.normal, 0, 0, 0, 1, dtype=dtype)
        yield f"normals in {word}", partial(noise.normal, 0, 0, 0, 9, dtype=dtype)
        yield f"uniforms in {word}", partial(noise.uniform, 0, 0, 0, 1, dtype=dtype)
    yield "minibatches", partial(noise.batch_indices, 0, 0, 0, 1, 2)
    for name in named.__all__:
        kind = getattr(named, name)
        for prior, said in ((None, ""), (priors.gaussian(std=1.0), ", Gaussian prior")):
            yield f"{name}{said}", partial(_step, kind, prior)
            if "invariant" in kind.settings:
                yield f"{name}, invariant{said}", partial(_step, kind, prior, invariant=True)


def _step(kind: Callable[..., LangevinOptimizer], prior: Prior | None, **settings: bool) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    kind([parameter], lr=0.1, num_data=1, prior=prior, seed=_SEED, **settings).step()
