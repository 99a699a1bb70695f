"""`sample`: draws from a target, many chains at once; with a sampler, or without any settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from langevin.chains.given import run_given
from langevin.chains.meter import Progress
from langevin.chains.plan import Keep
from langevin.chains.tune import ScaleSetting
from langevin.chains.without import run_without
from langevin.checks import needs
from langevin.kernels import Kernel
from langevin.scale import as_engine
from langevin.store import Samples
from langevin.targets import Target

__all__ = ["sample"]

_UNSET: Any = object()  # what was not given; None means something


@overload
def sample(
    target: Target,
    /,
    *,
    data: Any = None,
    chains: int = 8,
    num_draws: int = 1000,
    init: Tensor | Mapping[str, Any] | str | None = None,
    scale: ScaleSetting = "auto",
    batch_size: int | None = None,
    batches: str = "auto",
    seed: int = 0,
    first_chain: int = 0,
    control_variate: str | None = "auto",
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: Progress = None,
    engine: Any = None,
    block_size: int | None = None,
) -> Samples: ...


@overload
def sample(
    kernel: Kernel,
    target: Target,
    init: Tensor,
    *,
    num_steps: int,
    warmup: int = 0,
    thin: int = 1,
    data: Any = None,
    scale: ScaleSetting = None,
    batch_size: int | None = None,
    batches: str = "auto",
    seed: int = 0,
    first_chain: int = 0,
    control_variate: Tensor | None = None,
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: Progress = None,
    engine: Any = None,
    block_size: int | None = None,
) -> Samples: ...


def sample(
    kernel: Kernel | Target,
    target: Target | None = None,
    init: Any = None,
    *,
    data: Any = None,
    chains: Any = _UNSET,
    num_draws: Any = _UNSET,
    num_steps: Any = _UNSET,
    warmup: Any = _UNSET,
    thin: Any = _UNSET,
    scale: Any = _UNSET,
    batch_size: int | None = None,
    batches: str = "auto",
    seed: int = 0,
    first_chain: int = 0,
    control_variate: Any = _UNSET,
    keep: Keep = "positions",
    out: str | Path | None = None,
    compile: bool | str = "auto",
    progress: Progress = None,
    engine: Any = None,
    block_size: int | None = None,
) -> Samples:
    """Draw from `target`: ``sample(target, data=...)`` finds everything, ``sample(kernel, target, init, ...)`` runs a sampler.

    Without a sampler, chains go downhill from starts drawn at random, and learn scale, step size and the other settings of the
    invariant MSGLD in about 1,000 gradients each, which are printed, and kept in the samples' description
    (`langevin.tuning.warmup`). With one, nothing is found but what it leaves open. Every random number is a function of (seed,
    chain, step): the same call gives the same bits, and chains run apart (with `first_chain`) give what they give together, but for
    what they learn together. Compiled steps differ from eager ones in rounding.

    What speaks against the draws is said in a `langevin.TrustWarning` at the end; `samples.trust` has each check with its number.

    Args:
        kernel: a sampler such as ``langevin.sgld(step_size=0.01)``. With ``step_size="auto"`` a short warm-up finds a step whose
            law is off by at most 5 percent of the posterior variance, prints why, and the run starts where it ended.
        target: an energy of `langevin.targets`, a `langevin.Posterior` or a `langevin.Model`.
        init: starting positions, (chains, dim), or (dim,) for one chain; without a sampler (dim,) is for all of them, None finds
            modes from random starts, and chains whose mode is far higher than the best one go there; "spread" leaves each at the
            mode that it found, as given positions do; a `Model` also takes values by name.
        data: the data set's columns, for targets that need one.
        chains: how many, without a sampler; 8 by default, or as many as `init` has rows.
        num_draws: of each chain, without a sampler; 1000 by default. Where an effective draw takes many steps, some are left out.
        num_steps: steps in all, warm-up included.
        warmup: first steps whose draws are thrown away.
        thin: keep every `thin`-th position after the warm-up.
        scale: the metric G of the sampler: a covariance (dim, dim), variances (dim,), or one that is learnt from all data before
            the run and then stands still: "dense", "diagonal", "low_rank", or "auto", which is dense up to 500 dimensions, low rank
            plus diagonal above. None for none: the default where a sampler is given.
        batch_size: rows per step and chain; None takes all data each time. Without a sampler the noise that this brings is learnt,
            and absorbed by the step: the law stays, and a draw takes about an epoch, or far less with control variates.
        batches: "reshuffled" takes each datum once per epoch, so that the noise of the gradient cancels over it; "white" draws rows
            anew at every step, which a sampler needs that absorbs the noise (``noise="corrected"``). "auto" takes what is needed.
        seed: an int in [0, 2**64).
        first_chain: number of the first chain.
        control_variate: a position (dim,) near the mode, such as `langevin.gradients.find_mode` gives: minibatch gradients are then
            corrected by those at the mode, which takes most of their noise away there. Without a sampler "auto" does so where it
            pays for the second gradient, None never.
        keep: "positions"; or a function of one position (dim,), whose results are kept instead; or "moments" for running mean and
            covariance only.
        out: a new folder to which draws are streamed while the chains run, so that memory stays flat; `resume` continues it after a
            kill, `langevin.load_samples` reads it, also while it grows.
        compile: True, False, or "auto", which compiles when `num_steps` times the seconds that an eager step is taken to cost is
            more than 11: 3/4 of them are saved, for 8 that compiling takes. A step counts 0.12 ms for targets with a closed form
            (`gaussian`, `mixture`, `ravine`), 0.8 ms for others, plus 30 ns per element of all chains and 10 ns per number of the
            data that all chains look at. It decides by these sizes alone, so the same call always decides the same. A run
            begins at once: its first steps, a quarter of a second of them by sizes, are eager ones. Code is kept on disk (`langevin
            doctor` says where), and what does the same to tensors of the same shapes is never compiled again. For the CPU only.
        progress: show a progress bar; None shows one on a terminal only. A function is called with (steps done, steps in all)
            after every block of steps, at most 256; with an engine, with the steps of all blocks of chains.
        engine: None runs all chains together in this process. Else blocks of chains are run apart: by a pool, anything with a
            method ``map``; on Ray, by the name "ray"; or one after the other in this process, "local". What is learnt before
            the run is learnt here. The draws are the same bits whatever does the steps (docs/scale_chains.md).
        block_size: with an engine, chains of a block; by default at most a 16th of them, or 4 if that is more, and never more than
            64. A chain's bits may depend on it, in rounding; a run's folder keeps it.

    Returns:
        Samples, whose `draws` have axes (chain, draw, dim). A chain stops where its position, energy or gradient is not finite, or
        where the target raises: it keeps its draws up to there and says when and why in `status`; the others go on. Ctrl-C returns
        what was drawn so far, after the step that is being taken; a second one does not wait for that. What speaks against
        trusting the draws is said in one `langevin.TrustWarning`; `samples.trust` has every check with its number.

    Example:
        >>> import torch
        >>> import langevin as lv
        >>> target = lv.targets.gaussian([[1.0, 0.9], [0.9, 1.0]])
        >>> lv.sample(lv.sgld(step_size=0.05), target, torch.zeros(4, 2), num_steps=300, warmup=100).draws.shape
        torch.Size([4, 200, 2])
        >>> samples = lv.sample(target, compile=False)  # doctest: +ELLIPSIS
        msgld, invariant: 8 chains found their places with ...
        >>> samples.draws.shape
        torch.Size([8, 1000, 2])
    """
    asked = {"chains": chains, "num_draws": num_draws}
    steps = {"num_steps": num_steps, "warmup": warmup, "thin": thin}
    common = {
        "data": data, "scale": scale, "batch_size": batch_size, "batches": batches, "seed": seed, "first_chain": first_chain,
        "keep": keep, "out": out, "compile": compile, "progress": progress, "block_size": block_size,
        "engine": None if engine is None else as_engine("sample", engine),
    }  # fmt: skip
    if not isinstance(kernel, Target):
        _refuse("no sampler before the target: one that is given takes num_steps", asked)
        settings = {**steps, **common, "control_variate": control_variate}
        return run_given(kernel, target, init, **{name: value for name, value in settings.items() if value is not _UNSET})
    alone = {"target": target, **steps}
    _refuse("a sampler before the target: without one they are found", alone)
    settings = {**asked, **common, "init": init, "control_variate": control_variate}
    return run_without(kernel, **{name: value for name, value in settings.items() if value is not _UNSET})


def _refuse(condition: str, given: dict[str, Any]) -> None:
    """Fail when something was given that does not go with the first argument."""
    for name, value in given.items():
        if value is not _UNSET and value is not None:
            raise needs("sample", name, condition, value, TypeError)
