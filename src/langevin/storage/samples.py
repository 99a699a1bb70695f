"""The result of a run: draws with axes (chain, draw, ...), and the status of each chain."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_path, known_arguments, needs
from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.running import MAX_ELEMENTS, Moments, read_heat, read_moments
from langevin.diagnostics.trust import Evidence, Trust, TrustWarning, judge
from langevin.serialization import Json
from langevin.storage.arviz_data import arviz_data
from langevin.storage.blocks import DiskBlocks
from langevin.storage.checkpoint import Checkpoint
from langevin.storage.memory import Arrays, pick_elements
from langevin.storage.replicas import coldest, swap_rates
from langevin.storage.summary import Summary
from langevin.storage.zarr import DiskStore
from langevin.targets import Target
from langevin.targets.base import check_dim, check_target, own_data
from langevin.targets.space import Space

__all__ = ["ChainStatus", "Samples", "load_samples", "make_samples"]

_SHOWN = 3  # stopped chains listed in the repr
_MAX_NUMBERS = 2**19  # numbers that `trust` reads
_MIN_DRAWS = 500  # draws per chain that `trust` reads before it drops elements


class ChainStatus(NamedTuple):
    """The status of a chain at the end of a run.

    Example:
        >>> import langevin as lv
        >>> import torch
        >>> target, init = lv.targets.gaussian([[1.0]]), torch.zeros(2, 1)
        >>> samples = lv.sample(
        ...     target, sampler=lv.sgld(0.1), init=init, num_steps=50, progress=False
        ... )
        >>> print(samples.status[1])
        chain 1: 50 steps, 50 draws
        >>> samples.status[1].is_healthy
        True
    """

    chain: int  # number of the chain
    steps: int  # steps taken
    draws: int  # draws kept
    reason: str | None  # why the chain stopped early; None if it did not

    @property
    def is_healthy(self) -> bool:
        """Whether the chain completed the run."""
        return self.reason is None

    def __str__(self) -> str:
        """Return one sentence."""
        if self.is_healthy:
            return f"chain {self.chain}: {self.steps} steps, {self.draws} draws"
        start = f"chain {self.chain} stopped at step {self.steps}"
        return f"{start}: {self.reason}; {self.draws} draws kept"


@dataclass(frozen=True, repr=False)
class Samples:
    """The result of `sample`.

    Args:
        arrays: stored arrays by name; those of a run on disk are read at every access.
        status: one entry per chain.
        description: the sampler's SDE and stationary distribution.
        seconds: wall time of the run.
        moments: running moments, with ``keep="moments"``.
        compiled: whether the run was compiled.
        kept: type of `draws`: "positions", "function" (results of `keep`) or "moments" (no draws).
        event_shape: shape of a draw of one chain.
        path: folder of a run on disk.
        dim: elements of theta.
        temperature: of the target, ``exp(-U / temperature)``; 0 for an optimizer, None if chains
            differ.
        heat: sums over steps, from which the temperature of the draws is computed
            (`langevin.diagnostics.running`).
        warmup_gradients: gradients per chain before the run, with automatic settings.
        target: the target, which has names; not pickled, see `with_target`.
        data: columns of the data; not pickled.
        replicas: for chains at several temperatures (`langevin.replica_exchange`), the samples of
            all chains; this object has those at the target's temperature.
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

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "target": None, "data": ()}

    def __repr__(self) -> str:
        """Return a short summary without reading draws."""
        stopped = [f"  {status}" for status in self.status if not status.is_healthy]
        num_draws = max(status.draws for status in self.status)
        size = f"{len(self.status)} chains x {num_draws} draws x {self.event_shape}"
        kinds = {"positions": "", "function": ", of a function", "moments": ", as running moments"}
        health = f"{len(stopped)} stopped early:" if stopped else "all healthy"
        place = f"in {str(self.path)!r}" if self.path else "in memory"
        more = [f"  and {len(stopped) - _SHOWN} more, see status"]
        lines = [
            f"Samples of {self.description.splitlines()[0]}",
            f"  {size}{kinds[self.kept]}, {health}",
            *stopped[:_SHOWN],
            *(more if len(stopped) > _SHOWN else []),
            f"  {self.seconds:.3g} seconds, {place}",
        ]
        return "\n".join(lines)

    @property
    def draws(self) -> Tensor:
        """Positions (chain, draw, dim), or results of `keep`; NaN after a chain stopped."""
        return self.arrays["draws"]

    @property
    def energy(self) -> Tensor:
        """U at the position before each draw, where the gradient was computed, (chain, draw)."""
        return self.arrays["energy"]

    @property
    def gradient_norm(self) -> Tensor:
        """Norm of that gradient, (chain, draw)."""
        return self.arrays["gradient_norm"]

    @property
    def step_size(self) -> Tensor:
        """Step size of each draw's step, (draw,), or (chain, draw) if chains differ."""
        return self.arrays["step_size"]

    @property
    def _good(self) -> list[int]:
        return [k for k, status in enumerate(self.status) if status.is_healthy]

    @property
    def healthy(self) -> Tensor:
        """Draws of the chains that completed the run, (healthy chains, draw, dim)."""
        return self.draws[self._good]

    @cached_property
    def trust(self) -> Trust:
        """All checks of the run: chains, R-hat, ESS, temperature, energy, cycles.

        `trust.warnings` lists the failed ones. At most 200 evenly spaced elements and a subset of
        the draws are used, which takes milliseconds.

        Example:
            >>> import langevin as lv
            >>> import torch
            >>> target, init = lv.targets.gaussian([[1.0]]), torch.zeros(4, 1)
            >>> samples = lv.sample(
            ...     target, sampler=lv.sgld(1.9), init=init, num_steps=4000, compile=False
            ... )
            >>> samples.trust.is_clean, samples.trust.warnings[0].split(":")[0]
            (False, 'temperature too high')
        """
        good, size = self._good, math.prod(self.event_shape)
        num_draws = max(status.draws for status in self.status)
        share = _MAX_NUMBERS // max(1, len(good))
        elements = evenly_spaced(size, min(MAX_ELEMENTS, max(1, share // _MIN_DRAWS)))
        every = max(1, num_draws * len(elements) // share)
        draws = torch.empty(len(good), num_draws, 0)
        if self.kept != "moments" and size > 0:
            draws = self._some("draws", every, elements)[good]
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
                has_found_step=self.warmup_gradients > 0,
                swaps=None if self.replicas is None else swap_rates(self.replicas),
            )
        )

    def _name_of(self, index: int) -> str:
        """Return the name of an element of a draw."""
        return f"element {index}" if self.space is None else self.space.element(index)

    def _some(self, name: str, every: int, pick: Tensor | None = None) -> Tensor:
        """Return `Arrays.some` on the CPU, also of plain tensors."""
        if isinstance(self.arrays, Arrays):
            return self.arrays.some(name, every, pick).cpu()
        array = self.arrays[name]
        array = array[::every] if array.ndim == 1 else array[:, ::every]
        return pick_elements(array, pick).cpu()

    @property
    def space(self) -> Space | None:
        """Names, shapes and constraints of the parameters; None without positions or names."""
        return self.target.space if self.target is not None and self.kept == "positions" else None

    def __getitem__(self, name: str) -> Tensor:
        """Return a parameter's values (chain, draw, *shape) in the chains that completed the run.

        These are the chains of `healthy`, `summary` and `to_arviz`. Emits a `TrustWarning` that
        lists chains that stopped early; raises a ValueError if all did. `draws` has all chains.
        """
        if self.space is None:
            condition = (
                "positions of a target with names, such as Model(...); "
                "after load_samples(path), give it target="
            )
            raise needs("samples[...]", "name", condition, name, KeyError)
        names = [*self.space.names, *self.space.derived_names]
        if name not in names:
            raise needs("samples[...]", "name", f"one of {names}", name, KeyError)
        stopped = "; ".join(str(status) for status in self.status if not status.is_healthy)
        if stopped and not self._good:
            raise ValueError(f"samples[{name!r}] needs a chain that ran to its end, got: {stopped}")
        if stopped:
            count = f"{len(self._good)} of {len(self.status)} chains"
            message = f"samples[{name!r}] has {count}; left out: {stopped}"
            warnings.warn(message, TrustWarning, stacklevel=2)
        is_parameter = name in self.space.names
        values_of = self.space.values if is_parameter else self.space.derived
        return values_of(self.healthy if stopped else self.draws)[name]

    def with_target(self, target: Target, data: object = None) -> Samples:
        """Return these samples with their target, which has names, and its data.

        Only the number of elements is compared with the run; `resume` compares all.
        """
        data = own_data(target, data)
        is_bare = data is None and getattr(target, "needs_data", False)  # names need no data
        check_target("with_target", target, () if is_bare else data)
        if self.kept == "positions":
            check_dim("with_target", "target", target, self.event_shape[-1])
        columns = () if data is None else target.as_columns("with_target", data)
        return dataclasses.replace(self, target=target, data=columns)

    def values_by_name(self, who: str) -> dict[str, Tensor]:
        """Return the values (chain, draw, ...) of `healthy` by parameter, "theta" without names."""
        if not self._good or not self.draws.shape[1]:
            found = "; ".join(map(str, self.status))
            raise ValueError(f"{who}() needs a healthy chain with draws, got: {found}")
        if self.space is None:
            return {"theta": self.healthy}
        return {**self.space.values(self.healthy), **self.space.derived(self.healthy)}

    @property
    def attributes(self) -> dict[str, str | int | float]:
        """Library, version and settings of the run, as the attributes of `to_arviz`."""
        return {
            "inference_library": "langevin",
            "inference_library_version": importlib.import_module("langevin").__version__,
            "settings": self.description,
            "temperature": math.nan if self.temperature is None else self.temperature,
            "sampling_time": self.seconds,
            "warmup_gradients": self.warmup_gradients,
            "is_compiled": int(self.compiled),
        }

    @known_arguments("to_arviz")
    def to_arviz(
        self,
        *,
        lp: bool = False,
        log_likelihood: bool = False,
        posterior_predictive: Callable[..., Any] | None = None,
        unconstrained: bool = False,
        seed: int = 0,
    ) -> Any:
        """Convert the healthy chains to ArviZ, one variable per parameter (`theta` without names).

        Returns the container of the installed ArviZ: InferenceData of 0.2x, xarray's DataTree of
        1.x. The group `sample_stats` has `energy`, `gradient_norm` and `step_size`; the attributes
        have library, version and settings. Draws of the warm-up are not stored.

        Args:
            lp: add the statistic `lp`, the log density ``-U`` of each draw over all data, at one
                evaluation per draw (`energy` is U at the previous position, over its minibatch).
            log_likelihood: add the log-likelihood of every row under every draw, for
                ``arviz.loo(data)``.
            posterior_predictive: a function of ONE dict of parameters and the data's columns that
                returns simulated data, as a tensor or a dict of tensors. It may use torch's
                generator: ``torch.distributions.Normal(...).sample()``.
            unconstrained: add the group `unconstrained_posterior`: the elements of theta of each
                parameter, before the transform to its support.
            seed: of the simulations.
        """
        return arviz_data(self, lp, log_likelihood, posterior_predictive, unconstrained, seed)

    def summary(self) -> Summary:
        """Return a table of mean, sd, 94 % interval, Monte Carlo errors, ESS and R-hat by element.

        Failed diagnostics (`trust.warnings`) are printed above it.
        """
        values = self.values_by_name("summary")
        names = [
            f"{name}[{', '.join(map(str, place))}]" if place else name
            for name, value in values.items()
            for place in itertools.product(*self._labels(name, value.shape[2:]))
        ]
        draws = torch.cat([value.unsqueeze(-1).flatten(2) for value in values.values()], -1)
        return Summary.of(names, draws, self.trust.warnings)

    def _labels(self, name: str, shape: Sequence[int]) -> list[Iterable[object]]:
        """Return the labels along the axes of a parameter."""
        axes = () if self.space is None else self.space.dims.get(name, ())
        coords = {} if self.space is None else self.space.coords
        return [
            coords.get(str(axis), range(size)) for axis, size in itertools.zip_longest(axes, shape)
        ]


def make_samples(arrays: Arrays, checkpoint: Checkpoint, chains: range, about: Json) -> Samples:
    """Return samples from stored arrays, the last checkpoint, and entries of a manifest."""
    stopped, end = checkpoint.stopped, (checkpoint.step, checkpoint.kept, None)
    tensors, counts = checkpoint.tensors, {index: stop.draws for index, stop in stopped.items()}
    samples = Samples(
        arrays=dataclasses.replace(arrays, counts=counts),
        status=tuple(ChainStatus(chain, *stopped.get(k, end)) for k, chain in enumerate(chains)),
        description=about["description"],
        seconds=checkpoint.seconds,
        moments=read_moments(tensors),
        compiled=checkpoint.compiled,
        kept=about["keep"],
        event_shape=arrays.specs["draws"].tail[1:],
        path=arrays.path,
        dim=tensors["position"].shape[-1],
        temperature=about["temperature"],
        heat={name: tensor for name, tensor in tensors.items() if name.startswith("heat_")},
        warmup_gradients=about["warmup_gradients"],
    )
    group = tuple(about.get("temperatures", ()))
    return coldest(samples, group) if group else samples


def load_samples(path: str | Path, *, target: Target | None = None, data: object = None) -> Samples:
    """Read a run from its folder, up to its last checkpoint; the run may still be active.

    Args:
        path: the folder given to ``sample(out=...)``.
        target: of the run, for names; the folder has numbers, not code.
        data: of the run, for computations of `Samples.to_arviz`.

    Returns:
        The samples.

    Example:
        >>> import tempfile
        >>> import langevin as lv
        >>> import torch
        >>> folder = tempfile.mkdtemp() + "/run.zarr"
        >>> target, init = lv.targets.gaussian([[1.0]]), torch.zeros(2, 1)
        >>> samples = lv.sample(
        ...     target, sampler=lv.sgld(0.1), init=init, num_steps=50, out=folder, progress=False
        ... )
        >>> bool((lv.load_samples(folder).draws == samples.draws).all())
        True
    """
    condition = "the folder given to sample(out=...)"
    store = DiskStore.open(check_path("load_samples", "path", path, condition))
    checkpoint, manifest = store.load(), store.manifest
    chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
    if "block_size" in manifest:
        blocks = DiskBlocks(store)
        arrays, checkpoint = blocks.result(blocks.load(checkpoint))
    else:
        arrays = store.read(checkpoint.kept)
    samples = make_samples(arrays, checkpoint, chains, manifest)
    return samples if target is None else samples.with_target(target, data)
