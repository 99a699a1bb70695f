"""What has happened in a run so far: a value that every block of steps turns into the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from langevin.chains.health import find_bad, together
from langevin.chains.plan import Plan
from langevin.engines import Block, Rows, Trace, evaluate_chains
from langevin.engines.blocks import ByRows
from langevin.gradients import GradientFn
from langevin.kernels import Kernel, KernelState, StepInputs
from langevin.moments import add_moments, no_moments
from langevin.store import Checkpoint, Stop, Store
from langevin.trust import add_heat, energy_residuals, epoch_weights, evenly_spaced, heat_stride, no_heat

__all__ = ["Recorded"]


class Recorded(NamedTuple):
    """Where the chains are, which have stopped, and what was kept."""

    state: KernelState
    stopped: dict[int, Stop]  # by index of the chain
    kept: int  # draws written
    judged: int  # steps whose positions are known to be good or bad
    moments: dict[str, Tensor]  # running moments, where they are kept
    heat: dict[str, Tensor]  # what the temperature is measured from

    @classmethod
    def new(cls, plan: Plan, position: Tensor) -> Recorded:
        """Nothing has happened yet."""
        moments = no_moments(position) if plan.keep == "moments" else {}
        return cls(plan.kernel.init(position), {}, 0, 0, moments, no_heat(position))

    @classmethod
    def of(cls, kernel: Kernel, checkpoint: Checkpoint) -> Recorded:
        """Read a checkpoint."""
        tensors = checkpoint.tensors
        memory = tuple(tensors[f"memory_{k}"] for k in range(len(kernel.memory)))
        moments, heat = ({name: tensor for name, tensor in tensors.items() if name.startswith(k)} for k in ("moments_", "heat_"))
        stopped = {index: Stop(*stop) for index, stop in checkpoint.stopped.items()}
        state = KernelState(tensors["position"], memory, checkpoint.step)
        return cls(state, stopped, checkpoint.kept, checkpoint.judged, moments, heat)

    def checkpoint(self, kernel: Kernel, compiled: bool, seconds: float) -> Checkpoint:
        """Return what is saved."""
        memory = {f"memory_{k}": tensor for k, tensor in enumerate(self.state.memory)}
        tensors = {"position": self.state.position, **memory, **self.moments, **self.heat, **kernel.constants}
        return Checkpoint(tensors, self.state.step, self.kept, self.judged, self.stopped, compiled, seconds)

    @property
    def alive(self) -> Sequence[int]:
        """The chains that go on, by index."""
        if not self.stopped:
            return range(len(self.state.position))
        return [index for index in range(len(self.state.position)) if index not in self.stopped]

    def rows(self, plan: Plan) -> Rows:
        """Say what is needed of the steps: which of them, and which elements of the gradient."""
        dim, elements = self.state.position.shape[-1], self.heat["heat_centre"].shape[-1]
        thinned = 1 if self.moments else math.gcd(plan.thin, plan.warmup, plan.num_steps)
        return Rows(thinned, None if elements == dim else tuple(evenly_spaced(dim, elements).tolist()))

    def after(self, plan: Plan, store: Store, trace: Trace, block: Block | None) -> Recorded:
        """Judge the chains after some steps, store the draws, and return the progress with them."""
        if block is None or not (trace.done or trace.failed):
            return self
        steps, every = range(trace.before.step, trace.state.step), trace.every
        energies, positions = (tensor[: len(steps) // every] for tensor in (trace.energies, trace.positions))
        norms = trace.norms
        if norms is None:
            norms = torch.linalg.vector_norm(trace.gradients[: len(steps)], dim=-1)
        # Where a row has several steps, all of them are known to be good.
        bad = find_bad(steps.start, energies, norms, positions, trace.failed, self.alive) if every == 1 else {}
        stopped = {**self.stopped, **self._stops(plan, bad)}
        places = plan.chosen(steps)
        moments, judged = self.moments, max(self.judged, steps.stop - 1)
        if moments:
            since = torch.cat([trace.before.position[None], positions])[self.judged - steps.start + 1 : len(steps)]
            moments = self._with_draws(plan, range(self.judged, judged), since, stopped)
        elif places:
            rows = _last_rows(places, every)
            values = {
                "draws": plan.kept(_some(positions, rows)).to(
                    positions.dtype
                ),  # as it is stored; there is no integer for a lost draw
                "energy": _some(energies, rows),
                "gradient_norm": _some(norms, rows),
                "step_size": plan.step_sizes(_some(block.inputs, places), positions),
            }
            if stopped:
                gone = ~self._count(steps, places, stopped)
                for name in [name for name, value in values.items() if value.ndim > 1]:  # those with a chain axis
                    values[name] = values[name].clone()
                    values[name][gone] = torch.nan
            store.write(self.kept, values)
        is_smooth = not block.drawn and not plan.kernel.temperatures  # a swap is no step of the path
        heat = self._with_heat(plan, trace, steps, stopped, is_exact=is_smooth)
        return Recorded(trace.state, stopped, self.kept + len(places), judged, moments, heat)

    def judge_last(self, plan: Plan, gradient_fn: GradientFn, *, trust_errors: bool) -> Recorded:
        """Evaluate the target where the chains are, which tells whether the last draws count.

        After an interrupt errors are not to be trusted: it may have left torch's own state half done.
        """
        state, alive = self.state, self.alive
        if self.judged == state.step or not alive:
            return self
        (energy, gradient), failing = evaluate_chains(gradient_fn, state, alive, plan.kernel.group_size)
        if failing and not trust_errors:
            return self
        norm = torch.linalg.vector_norm(gradient, dim=-1)
        failed = {chain: (state.step, text) for chain, text in failing.items()}
        bad = find_bad(state.step, energy[None], norm[None], state.position[None][:0], failed, alive)
        stopped = {**self.stopped, **self._stops(plan, bad)}
        moments = self.moments
        if moments:
            moments = self._with_draws(plan, range(self.judged, state.step), state.position[None], stopped)
        return self._replace(stopped=stopped, judged=state.step, moments=moments)

    def _stops(self, plan: Plan, bad: Mapping[int, tuple[int, str]]) -> dict[int, Stop]:
        """Count the draws of chains that went bad, and of those that meet them; the last one written may be bad, too."""
        here, bad = self.state.step, together(bad, plan.kernel.group_size, plan.chains, self.alive)

        def draws(step: int) -> int:
            return self.kept + (len(plan.chosen(range(here, step))) if step >= here else -len(plan.chosen(range(step, here))))

        return {index: Stop(step, draws(step), reason) for index, (step, reason) in bad.items()}

    def _with_draws(self, plan: Plan, steps: range, positions: Tensor, stopped: Mapping[int, Stop]) -> dict[str, Tensor]:
        """Return the moments with the positions of these steps, (steps, chains, dim), of chains that had not stopped then."""
        places = plan.chosen(steps)
        return add_moments(self.moments, _some(positions, places), self._count(steps, places, stopped)) if places else self.moments

    def _with_heat(
        self, plan: Plan, trace: Trace, steps: range, stopped: Mapping[int, Stop], *, is_exact: bool
    ) -> dict[str, Tensor]:
        """Return the sums of the temperature with those of the steps that began after the warm-up.

        Energies are compared within a block only: the one before is gone.
        """
        whole = _first_rows(plan.sampled(steps), trace.every)
        stride, first = -(-heat_stride(self.heat) // trace.every), steps.start // trace.every
        at, residuals = _of_stride(whole, first, stride), trace.energies[:0]
        if not at:
            return self.heat
        gradients = trace.gradients if trace.beside is None else trace.beside
        if is_exact and trace.residuals is not None:
            residuals = _some(trace.residuals, at)
        elif is_exact:
            ends = _with_next(at, whole)
            both = [(_begun(trace, k), _some(trace.energies, k), _some(gradients, k)) for k in ends]
            residuals = energy_residuals(*(torch.stack(parts) for parts in zip(*both, strict=True)))[0]
        elements = evenly_spaced(trace.positions.shape[-1], self.heat["heat_centre"].shape[-1]).to(trace.positions.device)
        positions, slopes = _begun(trace, at), _some(gradients, at)
        positions = positions.index_select(-1, elements)
        slopes = slopes if slopes.shape == positions.shape else slopes.index_select(-1, elements)
        cancels = plan.batch_size if plan.batches == "reshuffled" else None  # white noise is independent of where it is taken
        weights = epoch_weights([(first + row) * trace.every for row in at] if cancels else at, cancels, plan.num_data or 1)
        good = torch.ones(len(self.state.position), dtype=torch.bool, device=positions.device)
        good[list(stopped)] = False
        return add_heat(self.heat, positions, slopes, weights, residuals, good)

    def _count(self, steps: range, places: Sequence[int], stopped: Mapping[int, Stop]) -> Tensor:
        """Say which positions count, (places, chains): those before their chain stopped."""
        like = self.state.position
        last = torch.tensor([stopped[k].steps if k in stopped else steps.stop for k in range(len(like))], device=like.device)
        return torch.tensor([steps[place] for place in places], device=like.device)[:, None] < last


def _last_rows(places: range | list[int], every: int) -> range | list[int]:
    """Return the rows of steps that are the last of theirs."""
    if isinstance(places, range) and places.step % every == 0:
        return range((places.start + 1) // every - 1, (places.stop + every) // every - 1, places.step // every)
    return _evenly([(place + 1) // every - 1 for place in places])


def _first_rows(places: range | list[int], every: int) -> range | list[int]:
    """Return the rows of steps, of which some are the first of theirs."""
    if isinstance(places, range) and places.step == 1:
        return range(-(-places.start // every), -(-places.stop // every))
    return [place // every for place in places if place % every == 0]


def _of_stride(rows: range | list[int], first: int, stride: int) -> range | list[int]:
    """Return the rows whose number, counted from `first` on, is a multiple of `stride`."""
    if isinstance(rows, range):
        return rows[(-first - rows.start) % stride :: stride]
    return _evenly([row for row in rows if (first + row) % stride == 0])


def _with_next(rows: range | list[int], known: range | list[int]) -> list[range | list[int]]:
    """Return the rows whose next is known, too, and those next ones."""
    if isinstance(rows, range) and isinstance(known, range):
        pairs = rows[: -1 if rows and rows[-1] + 1 not in known else None]
        return [pairs, range(pairs.start + 1, pairs.stop + 1, pairs.step)]
    also = set(known)
    found = [row for row in rows if row + 1 in also]
    return [_evenly([row + k for row in found]) for k in (0, 1)]


def _evenly(rows: list[int]) -> range | list[int]:
    """Return rows as a range where they are evenly spaced: no exploration phase cuts them up."""
    if not rows:
        return rows
    found = range(rows[0], rows[-1] + 1, rows[1] - rows[0] if len(rows) > 1 else 1)
    return found if len(found) == len(rows) and list(found) == rows else rows


@overload
def _some(tensor: Tensor | ByRows, rows: range | list[int]) -> Tensor: ...
@overload
def _some(tensor: list[StepInputs], rows: range | list[int]) -> list[StepInputs]: ...
def _some(tensor: Any, rows: range | list[int]) -> Any:
    """Return some rows: of a tensor a view, where they are evenly spaced."""
    if isinstance(rows, range):
        return tensor[rows.start : rows.stop : rows.step]
    return [tensor[row] for row in rows] if isinstance(tensor, list) else tensor[rows]


def _begun(trace: Trace, rows: range | list[int]) -> Tensor:
    """Return where the first steps of some rows began: where the rows before them ended."""
    if not isinstance(rows, range):
        return torch.cat([trace.before.position[None], trace.positions])[rows]
    if rows.start > 0:
        return trace.positions[rows.start - 1 : rows.stop - 1 : rows.step]
    return torch.cat([trace.before.position[None], trace.positions[rows.step - 1 : rows.stop - 1 : rows.step]])
