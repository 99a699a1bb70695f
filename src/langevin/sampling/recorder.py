"""The progress of a run: an immutable value that each block of steps replaces.

A draw counts if it is finite and the target has a finite energy and gradient there. The target is
evaluated where a step begins, so a position is judged by the step after it, and the last position
of a run by one more evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.running import (
    add_heat,
    add_moments,
    energy_residuals,
    epoch_weights,
    heat_stride,
    no_heat,
    no_moments,
)
from langevin.execution import Block, Rows, Trace, evaluate_chains
from langevin.kernels import Kernel, KernelState, Scaled, StepInputs
from langevin.sampling.config import RunConfig
from langevin.storage import Checkpoint, Stop, Store
from langevin.targets.gradients import GradientFn

__all__ = ["Recorded"]


class Recorded(NamedTuple):
    """State of the chains, stopped chains, and counts of what was kept."""

    state: KernelState
    stopped: dict[int, Stop]  # by index of the chain
    kept: int  # draws written
    judged: int  # steps whose positions are known to be good or bad
    moments: dict[str, Tensor]  # running moments, or none
    heat: dict[str, Tensor]  # running sums of the temperature

    @classmethod
    def new(cls, config: RunConfig, position: Tensor) -> Recorded:
        """Return the progress before the first step."""
        moments = no_moments(position) if config.keep == "moments" else {}
        return cls(config.kernel.init(position), {}, 0, 0, moments, no_heat(position))

    @classmethod
    def of(cls, kernel: Kernel, checkpoint: Checkpoint) -> Recorded:
        """Return the progress at a checkpoint."""
        tensors = checkpoint.tensors
        memory = tuple(tensors[f"memory_{k}"] for k in range(len(kernel.state_names)))
        moments, heat = (
            {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            for prefix in ("moments_", "heat_")
        )
        stopped = {index: Stop(*stop) for index, stop in checkpoint.stopped.items()}
        state = KernelState(tensors["position"], memory, checkpoint.step)
        return cls(state, stopped, checkpoint.kept, checkpoint.judged, moments, heat)

    def checkpoint(self, kernel: Kernel, compiled: bool, seconds: float) -> Checkpoint:
        """Return a checkpoint of this progress."""
        state = self.state
        memory = {f"memory_{k}": tensor for k, tensor in enumerate(state.tensors)}
        sums = {**self.moments, **self.heat}
        tensors = {"position": state.position, **memory, **sums, **kernel.constants}
        return Checkpoint(
            tensors, state.step, self.kept, self.judged, self.stopped, compiled, seconds
        )

    @property
    def alive(self) -> Sequence[int]:
        """Indices of the chains that have not stopped."""
        if not self.stopped:
            return range(len(self.state.position))
        return [index for index in range(len(self.state.position)) if index not in self.stopped]

    def rows(self, config: RunConfig) -> Rows:
        """Return which steps and which elements of the gradient are needed."""
        dim, elements = self.state.position.shape[-1], self.heat["heat_centre"].shape[-1]
        thinned = 1 if self.moments else math.gcd(config.thin, config.warmup, config.num_steps)
        some = None if elements == dim else tuple(evenly_spaced(dim, elements).tolist())
        return Rows(thinned, some)

    def after(self, config: RunConfig, store: Store, trace: Trace, block: Block | None) -> Recorded:
        """Check the chains after a block, store its draws, and return the progress."""
        if block is None or not (trace.done or trace.failed):
            return self
        steps, every = range(trace.before.step, trace.state.step), trace.every
        rows = len(steps) // every
        energies, positions, norms = trace.energies[:rows], trace.positions[:rows], trace.norms
        if norms is None:
            norms = torch.linalg.vector_norm(trace.gradients[: len(steps)], dim=-1)
        bad = {}
        if every == 1:  # the compiled code has checked steps that share a row
            bad = _find_bad(steps.start, energies, norms, positions, trace.failed, self.alive)
        stopped = {**self.stopped, **self._stops(config, bad)}
        indices = config.chosen(steps)
        moments, judged = self.moments, max(self.judged, steps.stop - 1)
        if moments:
            since = torch.cat([trace.before.position[None], positions])
            since = since[self.judged - steps.start + 1 : len(steps)]
            moments = self._with_draws(config, range(self.judged, judged), since, stopped)
        elif indices:
            last = _last_rows(indices, every)
            values = {  # in the dtype of the chains: no integer marks a lost draw
                "draws": config.kept(_some(positions, last)).to(positions.dtype),
                "energy": _some(energies, last),
                "gradient_norm": _some(norms, last),
                "step_size": config.step_sizes(_some(block.inputs, indices), positions),
            }
            if stopped:
                gone = ~self._count(steps, indices, stopped)
                for name, value in values.items():
                    if value.ndim > 1:  # it has a chain axis
                        values[name] = value.clone()
                        values[name][gone] = torch.nan
            store.write(self.kept, values)
        # A swap of replicas is no step along the path.
        is_smooth = not block.drawn and not config.kernel.traits.temperatures
        heat = self._with_heat(config, trace, steps, stopped, is_exact=is_smooth)
        return Recorded(trace.state, stopped, self.kept + len(indices), judged, moments, heat)

    def judge_last(
        self, config: RunConfig, gradient_fn: GradientFn, *, trust_errors: bool
    ) -> Recorded:
        """Evaluate the target at the last positions to decide whether the last draws count.

        Errors after an interrupt are not to be trusted: torch may be in an inconsistent state.
        """
        state, alive = self.state, self.alive
        if self.judged == state.step or not alive:
            return self
        (energy, gradient), failing = evaluate_chains(
            gradient_fn, state, alive, config.kernel.traits.group_size
        )
        if failing and not trust_errors:
            return self
        norm = torch.linalg.vector_norm(gradient, dim=-1)
        failed = {chain: (state.step, text) for chain, text in failing.items()}
        nowhere = state.position[None][:0]
        bad = _find_bad(state.step, energy[None], norm[None], nowhere, failed, alive)
        stopped = {**self.stopped, **self._stops(config, bad)}
        moments = self.moments
        if moments:
            steps = range(self.judged, state.step)
            moments = self._with_draws(config, steps, state.position[None], stopped)
        return self._replace(stopped=stopped, judged=state.step, moments=moments)

    def _stops(self, config: RunConfig, bad: Mapping[int, tuple[int, str]]) -> dict[int, Stop]:
        """Return when failed chains and those of their groups stopped, with counts of draws.

        The last draw that was written may not count.
        """
        here, group = self.state.step, config.kernel.traits.group_size

        def draws(step: int) -> int:
            if step >= here:
                return self.kept + len(config.chosen(range(here, step)))
            return self.kept - len(config.chosen(range(step, here)))

        bad = bad if group == 1 else _with_groups(bad, group, config.chains, self.alive)
        return {index: Stop(step, draws(step), reason) for index, (step, reason) in bad.items()}

    def _with_draws(
        self, config: RunConfig, steps: range, positions: Tensor, stopped: Mapping[int, Stop]
    ) -> dict[str, Tensor]:
        """Return the moments with the kept positions (steps, chains, dim) of running chains."""
        indices = config.chosen(steps)
        if not indices:
            return self.moments
        counted = self._count(steps, indices, stopped)
        return add_moments(self.moments, config.theta(_some(positions, indices)), counted)

    def _with_heat(
        self,
        config: RunConfig,
        trace: Trace,
        steps: range,
        stopped: Mapping[int, Stop],
        *,
        is_exact: bool,
    ) -> dict[str, Tensor]:
        """Return the sums of the temperature with those of the steps after the warm-up.

        Energies are compared within a block only.
        """
        whole = _first_rows(config.sampled(steps), trace.every)
        stride, first = -(-heat_stride(self.heat) // trace.every), steps.start // trace.every
        at, residuals = _of_stride(whole, first, stride), trace.energies[:0]
        if not at:
            return self.heat
        gradients = trace.gradients
        if is_exact and trace.residuals is not None:
            residuals = _some(trace.residuals, at)
        elif is_exact:
            ends = _with_next(at, whole)
            both = [(_begun(trace, k), _some(trace.energies, k), _some(gradients, k)) for k in ends]
            pairs = [torch.stack(parts) for parts in zip(*both, strict=True)]
            residuals = energy_residuals(*pairs)[0]
        positions, slopes, kernel = _begun(trace, at), _some(gradients, at), config.kernel
        elements = evenly_spaced(positions.shape[-1], self.heat["heat_centre"].shape[-1])
        elements = elements.to(positions.device)
        limited = None
        if isinstance(kernel, Scaled) and kernel.force_limit and slopes.shape == positions.shape:
            limited = kernel.is_limited(slopes, kernel.step_size(0))
        positions = positions.index_select(-1, elements)
        if slopes.shape != positions.shape:
            slopes = slopes.index_select(-1, elements)
        cancels = config.batch_size if config.batches == "reshuffled" else None  # over an epoch
        taken = [(first + row) * trace.every for row in at] if cancels else at
        weights = epoch_weights(taken, cancels, config.num_data or 1)
        good = torch.ones(len(self.state.position), dtype=torch.bool, device=positions.device)
        good[list(stopped)] = False
        return add_heat(self.heat, positions, slopes, weights, residuals, good, limited)

    def _count(self, steps: range, indices: Sequence[int], stopped: Mapping[int, Stop]) -> Tensor:
        """Return which positions count, (indices, chains): those before their chain stopped."""
        like = self.state.position
        ends = [stopped[k].steps if k in stopped else steps.stop for k in range(len(like))]
        last = torch.tensor(ends, device=like.device)
        return torch.tensor([steps[index] for index in indices], device=like.device)[:, None] < last


def _find_bad(
    start: int,
    energies: Tensor,
    gradient_norms: Tensor,
    positions: Tensor,
    failed: Mapping[int, tuple[int, str]],
    alive: Sequence[int],
) -> dict[int, tuple[int, str]]:
    """Return the chains that failed in a segment: their good steps in total, and the reason.

    Args:
        start: the first step of the segment.
        energies: (steps, chains), at the beginning of each step.
        gradient_norms: of the same shape.
        positions: (steps, chains, dim), at the end of each step; the last may be missing.
        failed: chain -> the step in which it raised an error, and the message.
        alive: the chains that were good before.
    """
    if not failed and bool(torch.isfinite(energies.sum() + gradient_norms.sum() + positions.sum())):
        return {}
    is_position = torch.isfinite(positions).all(-1)
    is_value = torch.isfinite(energies) & torch.isfinite(gradient_norms)
    suspects = (~(is_position.all(0) & is_value.all(0))).nonzero().flatten().tolist()
    found = {}
    for chain in sorted({*suspects, *failed} & set(alive)):
        # What was evaluated at step t is the position that step t - 1 made.
        events = [] if chain not in failed else [(failed[chain][0] - 1, 2, failed[chain][1])]
        if not is_position[:, chain].all():
            row = int(is_position[:, chain].int().argmin())
            events.append((start + row, 0, "the position became non-finite"))
        if not is_value[:, chain].all():
            row = int(is_value[:, chain].int().argmin())
            events.append((start + row - 1, 1, _reason(float(energies[row, chain]))))
        step, _, reason = min(events)
        found[chain] = (max(0, step), reason)
    return found


def _with_groups(
    bad: Mapping[int, tuple[int, str]], group: int, chains: range, alive: Sequence[int]
) -> dict[int, tuple[int, str]]:
    """Return `bad` with all chains of their groups, which stop together."""
    found = {}
    for chain in alive:
        others = [other for other in bad if other // group == chain // group]
        if others:
            first = min(others, key=lambda other: bad[other][0])
            step, reason = bad[first]
            if chain != first:
                reason = f"chain {chains[first]}, in the same group, stopped: {reason}"
            found[chain] = (step, reason)
    return found


def _reason(energy: float) -> str:
    if math.isfinite(energy):
        return "the gradient became non-finite"
    return f"the energy became {energy}" + (": outside the support" if energy == math.inf else "")


def _last_rows(indices: range | list[int], every: int) -> range | list[int]:
    """Return the rows whose last steps are `indices`."""
    if isinstance(indices, range) and indices.step % every == 0:
        start, stop = (indices.start + 1) // every, (indices.stop + every) // every
        return range(start - 1, stop - 1, indices.step // every)
    return _evenly([(index + 1) // every - 1 for index in indices])


def _first_rows(indices: range | list[int], every: int) -> range | list[int]:
    """Return the rows whose first steps are among `indices`."""
    if isinstance(indices, range) and indices.step == 1:
        return range(-(-indices.start // every), -(-indices.stop // every))
    return [index // every for index in indices if index % every == 0]


def _of_stride(rows: range | list[int], first: int, stride: int) -> range | list[int]:
    """Return the rows whose number, counted from `first` on, is a multiple of `stride`."""
    if isinstance(rows, range):
        return rows[(-first - rows.start) % stride :: stride]
    return _evenly([row for row in rows if (first + row) % stride == 0])


def _with_next(rows: range | list[int], known: range | list[int]) -> list[range | list[int]]:
    """Return the rows whose next row is known, and those next rows."""
    if isinstance(rows, range) and isinstance(known, range):
        pairs = rows[: -1 if rows and rows[-1] + 1 not in known else None]
        return [pairs, range(pairs.start + 1, pairs.stop + 1, pairs.step)]
    also = set(known)
    found = [row for row in rows if row + 1 in also]
    return [_evenly([row + k for row in found]) for k in (0, 1)]


def _evenly(rows: list[int]) -> range | list[int]:
    """Return rows as a range if they are evenly spaced, as without exploration phases."""
    if not rows:
        return rows
    found = range(rows[0], rows[-1] + 1, rows[1] - rows[0] if len(rows) > 1 else 1)
    return found if len(found) == len(rows) and list(found) == rows else rows


@overload
def _some(tensor: Tensor, rows: range | list[int]) -> Tensor: ...
@overload
def _some(tensor: list[StepInputs], rows: range | list[int]) -> list[StepInputs]: ...
def _some(tensor: Any, rows: range | list[int]) -> Any:
    """Return some rows, as a view if they are evenly spaced."""
    if isinstance(rows, range):
        return tensor[rows.start : rows.stop : rows.step]
    return [tensor[row] for row in rows] if isinstance(tensor, list) else tensor[rows]


def _begun(trace: Trace, rows: range | list[int]) -> Tensor:
    """Return the positions at the beginning of some rows: the ends of the rows before them."""
    if not isinstance(rows, range):
        return torch.cat([trace.before.position[None], trace.positions])[rows]
    if rows.start > 0 or not rows:
        rows = rows or range(1, 1)
        return trace.positions[rows.start - 1 : rows.stop - 1 : rows.step]
    later = trace.positions[rows.step - 1 : rows.stop - 1 : rows.step]
    return torch.cat([trace.before.position[None], later])
