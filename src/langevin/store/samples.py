"""The result of a run: draws, axes (chain, draw, ...), with what happened to each chain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from langevin.checks import check_path, needs
from langevin.moments import Moments, read_moments
from langevin.space import Space
from langevin.store.blocks import DiskBlocks
from langevin.store.checkpoint import Checkpoint
from langevin.store.inference_data import import_arviz, inference_data
from langevin.store.memory import Arrays
from langevin.store.replicas import coldest, swap_rates
from langevin.store.zarr import DiskStore
from langevin.targets import Target
from langevin.targets.base import check_dim, check_target
from langevin.trust import MAX_ELEMENTS, Evidence, Trust, evenly_spaced, judge, read_heat

if TYPE_CHECKING:
    import arviz
    import pandas

__all__ = ["About", "ChainStatus", "Samples", "import_arviz", "load_samples", "make_samples"]

_SHOWN = 3  # stopped chains that the text of samples names
_MAX_NUMBERS, _FEW_DRAWS = 2**19, 500  # what `trust` looks at: numbers in all, and draws of a chain before elements are left out


class ChainStatus(NamedTuple):
    """How a chain ended.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> samples = lv.sample(lv.sgld(0.1), lv.targets.gaussian([[1.0]]), torch.zeros(2, 1), num_steps=50, progress=False)
        >>> print(samples.status[1])
        chain 1: 50 steps, 50 draws
        >>> samples.status[1].is_healthy
        True
    """

    chain: int  # the chain's number
    steps: int  # steps taken
    draws: int  # draws kept
    reason: str | None  # None for a chain that ran to its end

    @property
    def is_healthy(self) -> bool:
        """Whether the chain ran to its end."""
        return self.reason is None

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.is_healthy:
            return f"chain {self.chain}: {self.steps} steps, {self.draws} draws"
        return f"chain {self.chain} stopped at step {self.steps}: {self.reason}; {self.draws} draws kept"


@dataclass(frozen=True, repr=False)
class Samples:
    """The result of `sample`.

    Args:
        arrays: what was stored, by name. In a run on disk they are read when they are asked for, each time anew.
        status: one entry per chain.
        description: the sampler's SDE and law.
        seconds: wall time of the run.
        moments: running moments, with ``keep="moments"``.
        compiled: whether the run was compiled.
        kept: what `draws` are: "positions", "function" (what `keep` made of them) or "moments" (there are none).
        event_shape: the shape of a draw of one chain.
        path: the folder of a run on disk.
        dim: elements of theta.
        temperature: that of the target, ``exp(-U / temperature)``; 0 for an optimizer, None where chains differ.
        heat: sums over the steps, from which the temperature of the draws is measured (`langevin.trust.heat`).
        warmup_gradients: that each chain took before the run, where everything was found.
        target: of which the draws are; it knows names. Pickles hold numbers only, as folders do: see `with_target`.
        data: the columns of the target.
        replicas: of chains at several temperatures (`langevin.replica_exchange`) the samples of all of them; these here are of
            the chains at the target's temperature.
        temperatures: of the chains of a group, in `replicas`.
    """

    arrays: Mapping[str, Tensor]
    status: tuple[ChainStatus, ...]
    description: str
    seconds: float
    moments: Moments | None = None
    compiled: bool = False
    kept: str = "positions"
    event_shape: tuple[int, ...] = ()
    path: Path | None = None
    dim: int = 0
    temperature: float | None = None
    heat: Mapping[str, Tensor] = field(default_factory=dict)
    warmup_gradients: int = 0
    target: Target | None = None
    data: tuple[Tensor, ...] = ()
    replicas: Samples | None = None
    temperatures: tuple[float, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "target": None, "data": ()}

    def __repr__(self) -> str:
        """Say in a few lines what was run and how it ended, without reading a draw."""
        stopped = [f"  {status}" for status in self.status if not status.is_healthy]
        size = f"{len(self.status)} chains x {max(status.draws for status in self.status)} draws x {self.event_shape}"
        what = {"positions": "", "function": ", of a function", "moments": ", as running moments"}[self.kept]
        lines = [
            f"Samples of {self.description.splitlines()[0]}",
            f"  {size}{what}, " + (f"{len(stopped)} stopped early:" if stopped else "all healthy"),
            *stopped[:_SHOWN],
            *([f"  and {len(stopped) - _SHOWN} more, see status"] if len(stopped) > _SHOWN else []),
            f"  {self.seconds:.3g} seconds, " + (f"in {str(self.path)!r}" if self.path else "in memory"),
        ]
        return "\n".join(lines)

    @property
    def draws(self) -> Tensor:
        """Positions (chain, draw, dim), or what `keep` made of each; a chain that stopped early has NaN after its last draw."""
        return self.arrays["draws"]

    @property
    def energy(self) -> Tensor:
        """U at each draw's predecessor, where the gradient was taken, (chain, draw)."""
        return self.arrays["energy"]

    @property
    def gradient_norm(self) -> Tensor:
        """Norm of that gradient, (chain, draw)."""
        return self.arrays["gradient_norm"]

    @property
    def step_size(self) -> Tensor:
        """Step size of the step that made the draw, (draw,), or (chain, draw) where it differs by chain."""
        return self.arrays["step_size"]

    @property
    def _good(self) -> list[int]:
        return [k for k, status in enumerate(self.status) if status.is_healthy]

    @property
    def healthy(self) -> Tensor:
        """The draws of the chains that ran to their end, (healthy chains, draw, dim)."""
        return self.draws[self._good]

    @cached_property
    def trust(self) -> Trust:
        """Every check of the run with its number: chains, R-hat, ESS, temperature, energy, cycles; `trust.warnings` in words.

        At most 200 elements are looked at, evenly spaced, and of many draws some: it takes milliseconds.

        Example:
            >>> import langevin as lv
            >>> import torch
            >>> target = lv.targets.gaussian([[1.0]])
            >>> samples = lv.sample(lv.sgld(1.9), target, torch.zeros(4, 1), num_steps=4000, compile=False)
            >>> samples.trust.is_clean, samples.trust.warnings[0].split(":")[0]
            (False, 'too hot')
        """
        good, size, num_draws = self._good, math.prod(self.event_shape), max(status.draws for status in self.status)
        share = _MAX_NUMBERS // max(1, len(good))
        elements = evenly_spaced(size, min(MAX_ELEMENTS, max(1, share // _FEW_DRAWS)))
        every = max(1, num_draws * len(elements) // share)
        nothing = torch.empty(len(good), num_draws, 0)
        draws = nothing if self.kept == "moments" or size == 0 else self._some("draws", every, elements)[good]
        step_size = self._some("step_size", every)
        return judge(
            Evidence(
                chains=len(self.status),
                stopped=[str(status) for status in self.status if not status.is_healthy],
                kept=self.kept,
                num_draws=draws.shape[1] if every == 1 else num_draws,
                size=size,
                draws=draws,
                elements=elements,
                energy=self._some("energy", every)[good],
                step_size=step_size if step_size.ndim == 1 else step_size[good],
                numbers=[self.status[index].chain for index in good],
                dim=self.dim,
                heat=read_heat(self.heat, good, self.dim),
                temperature=self.temperature,
                name_of=self._name_of,
                swaps=None if self.replicas is None else swap_rates(self.replicas),
            )
        )

    def _name_of(self, index: int) -> str:
        """Return what an element of a draw is called."""
        return f"element {index}" if self.space is None else self.space.element(index)

    def _some(self, name: str, every: int, pick: Tensor | None = None) -> Tensor:
        """Return a part of an array, as `Arrays.some` does, on the CPU; arrays may have been put there by hand."""
        if isinstance(self.arrays, Arrays):
            return self.arrays.some(name, every, pick).cpu()
        array = self.arrays[name][::every] if self.arrays[name].ndim == 1 else self.arrays[name][:, ::every]
        return (
            array if pick is None else array.reshape(*array.shape[:2], math.prod(array.shape[2:]))[..., pick.to(array.device)]
        ).cpu()

    @property
    def space(self) -> Space | None:
        """Names, shapes and constraints of the positions' parts, where the draws are positions and their target has names."""
        return None if self.target is None or self.kept != "positions" else self.target.space

    def __getitem__(self, name: str) -> Tensor:
        """Return the values of a parameter, (chain, draw, *shape), such as ``samples["sigma"]``; NaN after a chain's last draw."""
        if self.space is None:
            condition = "positions of a target with names, such as Model(...); after load_samples(path), give it target="
            raise needs("samples[...]", "name", condition, name, KeyError)
        if name not in self.space.names:
            raise needs("samples[...]", "name", f"one of {list(self.space.names)}", name, KeyError)
        return self.space.values(self.draws)[name]

    def with_target(self, target: Target, data: Any = None) -> Samples:
        """Return these samples with their target, which knows names, and its data, as given to `sample`.

        Neither is checked against the run but for the number of elements: `resume` does that.
        """
        is_bare = data is None and getattr(target, "needs_data", False)  # names need no data
        check_target("with_target", target, () if is_bare else data)
        if self.kept == "positions":
            check_dim("with_target", "target", target, self.event_shape[-1])
        return dataclasses.replace(self, target=target, data=() if data is None else target.as_columns("with_target", data))

    def to_arviz(
        self,
        *,
        lp: bool = False,
        log_likelihood: bool = False,
        posterior_predictive: Callable[..., Any] | None = None,
        seed: int = 0,
    ) -> arviz.InferenceData:
        """Return the healthy chains as ArviZ data: one variable per name, of values; `theta` for a target without names.

        The group `sample_stats` has `energy`, `gradient_norm` and `step_size`. The rest is computed on request.

        Args:
            lp: add the statistic `lp`, the log density ``-U`` of each draw itself over all data, at one evaluation per draw
                (`energy` is U at its predecessor, over the rows that it saw).
            log_likelihood: add the group of that name, of every row under every draw, so that ``arviz.loo(data)`` works.
            posterior_predictive: a function of ONE dict of parameters and the data's columns that returns simulated data, a tensor
                or a dict of them; it may draw from torch's generator, as ``torch.distributions.Normal(...).sample()`` does.
            seed: of these simulations.
        """
        return inference_data(self, lp, log_likelihood, posterior_predictive, seed)

    def summary(self) -> pandas.DataFrame:
        """Return mean, sd, Monte Carlo error, effective sample size and R-hat of each element, by name, by ArviZ.

        What speaks against trusting them (`trust.warnings`) is printed above the table; ``attrs["warnings"]`` has it, too.
        """
        with np.errstate(all="ignore"):  # R-hat of what is constant, such as the zeros of a Cholesky factor, is NaN
            table = import_arviz().summary(self.to_arviz(), round_to="none")
        from langevin.store.summary import with_warnings  # pandas takes long to import

        return with_warnings(table, self.trust.warnings)


class About(NamedTuple):
    """What is said of a run beside its draws."""

    description: str  # the sampler's SDE and law, and what was found
    kept: str  # "positions", "function" or "moments"
    temperature: float | None  # of the target
    warmup_gradients: int  # that each chain took before the run
    temperatures: tuple[float, ...] = ()  # of the chains of a group, where they differ

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> About:
        """Read a run's folder."""
        several = tuple(manifest.get("temperatures", ()))
        return cls(manifest["description"], manifest["keep"], manifest["temperature"], manifest["warmup_gradients"], several)


def make_samples(arrays: Arrays, checkpoint: Checkpoint, chains: range, about: About) -> Samples:
    """Put a result together from what was stored."""
    stopped, whole = checkpoint.stopped, (checkpoint.step, checkpoint.kept, None)
    status = tuple(ChainStatus(chain, *stopped.get(index, whole)) for index, chain in enumerate(chains))
    samples = Samples(
        dataclasses.replace(arrays, counts={index: stop.draws for index, stop in stopped.items()}),
        status,
        about.description,
        checkpoint.seconds,
        read_moments(checkpoint.tensors),
        checkpoint.compiled,
        about.kept,
        arrays.specs["draws"].tail[1:],
        arrays.path,
        checkpoint.tensors["position"].shape[-1],
        about.temperature,
        {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("heat_")},
        about.warmup_gradients,
    )
    return samples if not about.temperatures else coldest(samples, about.temperatures)


def load_samples(path: str | Path, *, target: Target | None = None, data: Any = None) -> Samples:
    """Read a run from its folder, also while it goes on: the draws up to its last checkpoint.

    Args:
        path: the folder given to ``sample(out=...)``.
        target: of the run, for names: the folder holds numbers, not code.
        data: of the run, for what `Samples.to_arviz` computes on request.

    Returns:
        Samples, as `sample` returns them.

    Example:
        >>> import tempfile
        >>> import langevin as lv
        >>> import torch
        >>> folder = tempfile.mkdtemp() + "/run.zarr"
        >>> target, init = lv.targets.gaussian([[1.0]]), torch.zeros(2, 1)
        >>> samples = lv.sample(lv.sgld(0.1), target, init, num_steps=50, out=folder, progress=False)
        >>> bool((lv.load_samples(folder).draws == samples.draws).all())
        True
    """
    store = DiskStore.open(check_path("load_samples", "path", path, "the folder given to sample(out=...)"))
    checkpoint, manifest = store.load(), store.manifest
    chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
    if "block_size" in manifest:
        blocks = DiskBlocks(store)
        arrays, checkpoint = blocks.result(blocks.load(checkpoint))
    else:
        arrays = store.read(checkpoint.kept)
    samples = make_samples(arrays, checkpoint, chains, About.of(manifest))
    return samples if target is None else samples.with_target(target, data)
