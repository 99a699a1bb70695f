"""Compile noise and optimizer steps ahead of time, for later processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from langevin.optim import named
from langevin.optim.base import LangevinOptimizer
from langevin.optim.update import has_fused_engine
from langevin.random import batch_indices, normal, uniform
from langevin.targets import priors
from langevin.targets.priors import Prior

__all__ = ["fill_caches"]

_SEED = 2**63  # unlikely in users' runs, which would share their noise and warn


def fill_caches(progress: Callable[[str, float], object] | None = None) -> list[tuple[str, float]]:
    """Compile noise and every optimizer's step in float32, with a flat and a Gaussian prior.

    The first step of a later process loads the code from the user's cache folder
    (`compiler.cache`). Code that is already there is loaded, which takes little time. Without a C
    compiler this does nothing.

    Args:
        progress: called with a name and its seconds, after each compilation.

    Returns:
        The names of what was compiled or loaded, and the seconds of each.

    Example:
        >>> import langevin as lv
        >>> lv.optim.fill_caches(progress=print)  # doctest: +SKIP
    """
    done = []
    for what, work in _works() if has_fused_engine() else ():
        begin = time.perf_counter()
        work()
        done.append((what, time.perf_counter() - begin))
        if progress is not None:
            progress(*done[-1])
    return done


def _works() -> Iterator[tuple[str, Callable[[], object]]]:
    for dtype in (torch.float32, torch.float64):
        word = str(dtype).removeprefix("torch.")
        yield f"short rows of normals in {word}", partial(normal, 0, 0, 0, 1, dtype=dtype)
        yield f"normals in {word}", partial(normal, 0, 0, 0, 9, dtype=dtype)
        yield f"uniforms in {word}", partial(uniform, 0, 0, 0, 1, dtype=dtype)
    yield "minibatches", partial(batch_indices, 0, 0, 0, 1, 2)
    for name in named.__all__:
        kind = getattr(named, name)
        for prior, suffix in ((None, ""), (priors.gaussian(std=1.0), ", Gaussian prior")):
            yield f"{name}{suffix}", partial(_step, kind, prior)
            if "invariant" in kind.settings:
                yield f"{name}, invariant{suffix}", partial(_step, kind, prior, invariant=True)


def _step(kind: Callable[..., LangevinOptimizer], prior: Prior | None, **settings: bool) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    kind([parameter], lr=0.1, num_data=1, prior=prior, seed=_SEED, **settings).step()
