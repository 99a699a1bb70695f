"""`sample`: draw from a target, with your sampler or one that is chosen automatically."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from torch import Tensor
from typing_extensions import Unpack

from langevin.checks import check_bool, known_arguments, needs
from langevin.distributed import as_engine
from langevin.execution import compile_pays
from langevin.kernels import Kernel
from langevin.sampling.arguments import Settings, configure
from langevin.sampling.auto import choose_sampler
from langevin.sampling.background import Background
from langevin.sampling.config import Inputs, Keep, MetricSetting
from langevin.sampling.distributed import chains_per_block, run
from langevin.sampling.interrupts import Interrupts
from langevin.sampling.loop import interrupted_in_setup
from langevin.sampling.manual import tune_sampler
from langevin.sampling.progress import Progress
from langevin.sampling.recorder import Recorded
from langevin.storage import (
    Blocks,
    DiskBlocks,
    DiskStore,
    MemoryBlocks,
    MemoryStore,
    Samples,
    Store,
    make_samples,
)
from langevin.storage.fingerprint import fingerprints
from langevin.storage.folder import check_new
from langevin.targets import Target

__all__ = ["sample"]


@overload
def sample(
    target: Target, *, blocking: Literal[False], **settings: Unpack[Settings]
) -> Background: ...
@overload
def sample(
    target: Target, *, blocking: Literal[True] = True, **settings: Unpack[Settings]
) -> Samples: ...
@known_arguments("sample")
def sample(
    target: Target,
    *,
    data: object = None,
    sampler: Kernel | None = None,
    init: Tensor | Mapping[str, object] | str | None = None,
    chains: int | None = None,
    num_draws: int | None = None,
    num_steps: int | None = None,
    warmup: int | None = None,
    thin: int | None = None,
    metric: MetricSetting = None,
    batch_size: int | None = None,
    batches: str = "auto",
    control_variate: Tensor | str | None = "auto",
    seed: int = 0,
    first_chain: int = 0,
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: Progress = None,
    engine: object = None,
    block_size: int | None = None,
    blocking: bool = True,
) -> Any:
    """Sample from `target`.

    By default the sampler and its settings are chosen automatically: chains start at random
    positions, find a mode by L-BFGS, and adapt a mass matrix and a step size for invariant MSGLD
    (about 1,000 gradients per chain). The chosen settings are printed and stored in
    `samples.description`. Pass `sampler=` to choose the sampler yourself.

    Every random number is a function of (seed, chain, step): the same call gives the same bits.

    Args:
        target: an energy of `langevin.targets`, a `langevin.Posterior` or a `langevin.Model`.
        data: the data set's columns, for targets that need one.
        sampler: such as ``langevin.sgld(step_size=0.01)``. With ``step_size="auto"`` a short
            warm-up finds a step size whose error is at most 2.5 percent of a posterior standard
            deviation.
        init: initial positions: (chains, dim); (dim,) for all chains; values by name for a
            `Model`. None draws them at random; without a sampler, chains whose mode is far above
            the best one then move to the best one, and "spread" leaves each chain at its mode.
        chains: number of chains; by default the rows of `init`, or 8.
        num_draws: draws kept per chain; 1,000 by default.
        num_steps: with a sampler, the total number of steps instead of `num_draws`.
        warmup: with a sampler, the number of first steps to discard; 0 by default.
        thin: with a sampler, keep every `thin`-th draw; 1 by default.
        metric: the inverse mass matrix: a covariance (dim, dim), variances (dim,), or "dense",
            "diagonal", "low_rank" or "auto" to estimate one before the run ("auto" is dense up to
            500 dimensions, low rank plus diagonal above). None is "auto" without a sampler, and
            the identity with one.
        batch_size: rows per step and chain; None takes all data at every step. Without a sampler
            the noise that this adds to the gradient is estimated and corrected.
        batches: "reshuffled" uses each row once per epoch, so that gradient noise cancels over an
            epoch; "white" draws rows independently at every step, which samplers that correct for
            gradient noise need (``noise="corrected"``); "auto" chooses what the sampler needs.
        control_variate: with a sampler, a position (dim,) near the mode, for instance from
            `langevin.gradients.find_mode`: minibatch gradients are corrected by those at this
            position, which removes most of their noise near it. Without a sampler "auto" uses
            control variates if they reduce the cost, and None never does.
        seed: an int in [0, 2**64).
        first_chain: number of the first chain, so that separate calls give the draws of one call.
        keep: "positions"; a function of one position (dim,) whose results are kept instead; or
            "moments" for the running mean and covariance only.
        out: a new folder to stream draws to, so that memory stays flat. `langevin.resume`
            continues it after a kill; `langevin.load_samples` reads it, also while it grows.
        compile: True, False or "auto", which compiles long runs (a function of sizes alone, so
            the same call always decides the same). Compiled code is cached on disk for all seeds,
            step sizes and data of the same shapes. The target must be a pure function. CPU only.
        progress: True or False for a progress bar; None shows one on a terminal only; a function
            is called with (steps done, total steps).
        engine: None runs all chains together in this process. A pool (anything with a method
            ``map``), "ray" or "local" runs blocks of chains separately, with the same bits.
        block_size: with an engine, chains per block, which may change the rounding of draws.
        blocking: False runs in another thread and returns a `Background` at once: its `steps` and
            `samples` are those so far, `wait()` returns the samples, `cancel()` ends the run.

    Returns:
        Samples, whose `draws` have shape (chains, num_draws, dim). A chain stops where its
        position, energy or gradient is not finite, or where the target raises; it keeps its draws
        up to there and reports when and why in `status`. Ctrl-C returns the draws so far. Failed
        diagnostics are listed in one `langevin.TrustWarning`; `samples.trust` has every check.

    Example:
        >>> import torch
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> samples = lv.sample(target, compile=False)  # doctest: +ELLIPSIS
        Warm-up: 8 chains, ...
        >>> samples.draws.shape
        torch.Size([8, 1000, 2])
        >>> init = torch.zeros(4, 2)
        >>> lv.sample(target, sampler=lv.sgld(step_size=0.05), init=init, num_draws=200).draws.shape
        torch.Size([4, 200, 2])
    """
    given: Any = {name: value for name, value in locals().items() if name != "target"}
    if check_bool("sample", "blocking", given.pop("blocking")):
        return _run(target, given, Interrupts())
    return Background(partial(_run, target, given))


def _run(target: Target, given: Settings, interrupts: Interrupts) -> Samples:
    """Check the arguments, adapt what they leave open, and run to the end."""
    engine, block_size, compile = given["engine"], given["block_size"], given["compile"]
    worker = None if engine is None else as_engine("sample", engine)
    if worker is None and block_size is not None:
        what = 'None without an engine; engine="local" runs blocks in this process'
        raise needs("sample", "block_size", what, block_size)
    config, adaptation = configure(target, given)
    out, keep = given["out"], config.keep
    if out is not None:
        check_new(out)
    columns, position = adaptation.columns, adaptation.position
    shape = config.event_shape(position)
    with interrupts:
        try:
            interrupts.open()
            adapt = choose_sampler if given["sampler"] is None else tune_sampler
            config, position = adapt(config, adaptation)
            interrupts.close()
            interrupts.check()
            per_block = None
            if worker is not None:
                per_block = chains_per_block(block_size, config.kernel, position)
            compiled = compile is True or (
                compile == "auto"
                and compile_pays(
                    config.num_steps, position[:per_block], columns, config.batch_size,
                    target.has_closed_form,
                )
            )  # fmt: skip
            gradient_fn = config.gradient(target, columns, position, is_compiled=compiled)
            start = Recorded.new(config, position).checkpoint(config.kernel, compiled, 0.0)
            store: Store | Blocks
            sizes, count = config.step_size_shape, len(position)
            if out is None:
                store = MemoryStore(shape, count, config.num_draws, position, sizes)
                if per_block is not None:
                    store = MemoryBlocks(store, count, per_block)
            else:
                keep_fn = keep if callable(keep) else None
                identity = fingerprints(config.kernel, gradient_fn, position, columns, keep_fn)
                manifest = {**config.manifest(position, compile), "fingerprints": identity}
                if per_block is not None:
                    manifest["block_size"] = per_block
                    sizes = (-(-count // per_block),)  # each block writes its own
                disk = DiskStore.create(out, manifest, shape, start, sizes)
                store = disk if per_block is None else DiskBlocks(disk)
        except KeyboardInterrupt:
            nothing = MemoryStore(shape, len(position), 0, position).read(0)
            start = Recorded.new(config, position).checkpoint(config.kernel, False, 0.0)
            samples = make_samples(nothing, start, config.chains, config.about)
            return interrupted_in_setup(samples, "sample")
        with store:
            inputs = Inputs(target, columns, given["progress"], interrupts)
            return run(config, gradient_fn, store, start, worker, inputs)
