"""The configuration of a run, which its folder stores, and of the adaptation before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.adaptation import FORCE_LIMIT, sampler_at
from langevin.checks import needs
from langevin.execution.blocks import stack
from langevin.kernels import Kernel, Scaled, StepInputs
from langevin.kernels.gradient_noise import KINDS as NOISES
from langevin.kernels.gradient_noise import OPEN
from langevin.kernels.schedules import AUTO
from langevin.sampling.interrupts import Interrupts
from langevin.sampling.progress import Progress
from langevin.serialization import Json
from langevin.storage.checkpoint import adapted_tensors
from langevin.targets import Target
from langevin.targets.conditionals import Weights
from langevin.targets.gradients import (
    GradientFn,
    compiled,
    control_variate,
    full,
    minibatch,
    noisy,
    with_energy,
)
from langevin.targets.metric import METRICS, Metric
from langevin.targets.parameterisation import Reparameterised

__all__ = ["Adaptation", "Inputs", "Keep", "MetricSetting", "RunConfig"]

Keep = str | Callable[[Tensor], Tensor]

MetricSetting = str | Tensor | Metric | None
"""A covariance (dim, dim), variances (dim,), a `Metric`, a kind to estimate, or None."""


class Inputs(NamedTuple):
    """What a run takes beside its configuration."""

    target: Target
    columns: tuple[Tensor, ...]  # of the data
    progress: Progress
    interrupts: Interrupts


@dataclass(frozen=True)
class Adaptation:
    """What is adapted before a run.

    Args:
        target: the target, in the coordinates in which the run begins.
        columns: its data.
        position: initial positions (chains, dim), or zeros like them.
        starts: initial positions from the caller, or None.
        metric: the metric, or the kind to estimate, or None.
        progress: as in `sample`.
        moves_chains: whether chains with a mode far above the best one move to the best one.
        uses_control_variates: whether to use control variates if they reduce the cost.
        is_compiled: whether gradients are compiled.
        names: of the parameters whose parameterisation is chosen.
    """

    target: Target
    columns: tuple[Tensor, ...]
    position: Tensor
    starts: Tensor | None
    metric: MetricSetting
    progress: Progress
    moves_chains: bool
    uses_control_variates: bool
    is_compiled: bool
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunConfig:
    """What a run does and what it keeps.

    Args:
        kernel: the sampler.
        num_steps: the total number of steps.
        warmup: first steps, whose draws are discarded.
        thin: keep every `thin`-th position.
        seed: of all random numbers.
        chains: numbers of the chains.
        keep: "positions", "moments" or a function of one position.
        batch_size: rows per step and chain; None for all data.
        centre: of control variates, (dim,), or None.
        tuning: the report of the adaptation, or "".
        num_data: rows of the data, or None.
        recipe: size and smallest curvature if `sample` chose the sampler (`sampler_at`), or None.
        warmup_gradients: gradients per chain before the run.
        batches: how minibatches are drawn, one of `gradients.BATCHES`.
        coordinates: the target in the coordinates of the chains; None for its own. What is kept is
            always in its own.
    """

    kernel: Kernel
    num_steps: int
    warmup: int
    thin: int
    seed: int
    chains: range
    keep: Keep
    batch_size: int | None = None
    centre: Tensor | None = None
    tuning: str = ""
    num_data: int | None = None
    recipe: tuple[float, float] | None = None
    warmup_gradients: int = 0
    batches: str = "reshuffled"
    coordinates: Reparameterised | None = None

    @classmethod
    def from_manifest(
        cls,
        manifest: dict[str, Any],
        kernel: Kernel | None,
        keep: Callable[[Tensor], Tensor] | None,
        tensors: Mapping[str, Tensor],
        target: Target,
    ) -> RunConfig:
        """Return the configuration in a run's folder, with the sampler if `sample` chose it."""
        recipe, like = manifest["recipe"], tensors["position"]
        noise, centre = None, manifest["control_variate"]
        if manifest["noise"] is not None:
            noise = NOISES[manifest["noise"]](*adapted_tensors("noise", tensors))
        if recipe is not None:
            kernel = sampler_at(recipe[0], recipe[1], noise=noise and OPEN)
        assert kernel is not None
        chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
        kernel = kernel.for_run(manifest["warmup"], like)
        if kernel.step_size == AUTO and manifest["tuned"] is not None:
            kernel = kernel.with_step_size(manifest["tuned"])
        if kernel.has_open_bias and manifest["bias_factor"] is not None:
            kernel = kernel.with_bias_factor(manifest["bias_factor"])
        kernel = kernel.with_gradient_noise(noise)
        if manifest["scale"] is not None:
            metric = METRICS[manifest["scale"]](*adapted_tensors("scale", tensors))
            limit = FORCE_LIMIT if recipe is not None and noise is None else None
            kernel = Scaled.of(kernel, metric, limit)
        if centre is not None:
            centre = torch.tensor(centre, dtype=torch.float64).to(like)
        return cls(
            kernel, manifest["num_steps"], manifest["warmup"], manifest["thin"], manifest["seed"],
            chains, keep or manifest["keep"], manifest["batch_size"], centre, manifest["found"],
            manifest["num_data"], recipe and (recipe[0], recipe[1]), manifest["warmup_gradients"],
            manifest["batches"], _coordinates(manifest.get("parameterisation"), target),
        )  # fmt: skip

    def manifest(self, position: Tensor, compile: bool | str) -> dict[str, object]:
        """Return the configuration as plain values, for a run's folder."""
        kernel = self.kernel
        has_bias = self.tuning and not kernel.traits.differs_by_chain
        noise = type(kernel.gradient_noise).__name__
        return {
            "num_steps": self.num_steps, "warmup": self.warmup, "thin": self.thin,
            "seed": self.seed, "first_chain": self.chains.start, "num_chains": len(position),
            "dim": position.shape[-1], "num_draws": self.num_draws, **self.about,
            "batch_size": self.batch_size, "batches": self.batches, "num_data": self.num_data,
            "compile": compile, "found": self.tuning,
            "tuned": kernel.step_size(0) if self.tuning else None,
            "bias_factor": kernel.inputs(0).annealing if has_bias else None,
            "control_variate": None if self.centre is None else self.centre.double().tolist(),
            "recipe": None if self.recipe is None else list(self.recipe),
            "scale": type(kernel.scale).__name__ if isinstance(kernel, Scaled) else None,
            "noise": noise if noise in NOISES else None,  # constant during the run
            "parameterisation": None if self.coordinates is None else [
                part.double().tolist() for part in self.coordinates.weights
            ],
        }  # fmt: skip

    def steps_per_epoch(self, target: Target) -> float | None:
        """Return the steps over which minibatch noise cancels, or None if it does not."""
        if self.batch_size is None or self.batches != "reshuffled" or target.gradient_noise:
            return None
        assert self.num_data is not None
        return self.num_data / self.batch_size

    @property
    def description(self) -> str:
        """The sampler's SDE and stationary distribution, and the report of the adaptation."""
        return self.kernel.description + (f"\n  {self.tuning}" if self.tuning else "")

    @property
    def about(self) -> Json:
        """What the samples report about their run: entries of the manifest."""
        return {
            "description": self.description, "keep": self.what,
            "temperature": self.kernel.target_temperature,
            "temperatures": list(self.kernel.traits.temperatures),
            "warmup_gradients": self.warmup_gradients,
        }  # fmt: skip

    @property
    def num_draws(self) -> int:
        """How many draws a chain stores."""
        return 0 if self.keep == "moments" else len(self.chosen(range(self.num_steps)))

    @property
    def what(self) -> str:
        """What is kept, in a word: "positions", "moments" or "function"."""
        return self.keep if isinstance(self.keep, str) else "function"

    def chosen(self, steps: range) -> range | list[int]:
        """Return the indices within a segment of steps whose positions are kept.

        These are the steps warmup - 1 + k thin, k = 1, 2, ..., except in exploration phases.
        """
        since = max(steps.start, self.warmup) - self.warmup + 1
        first = self.warmup - 1 + -(-since // self.thin) * self.thin
        found = range(first - steps.start, len(steps), self.thin)
        if self.kernel.is_steady:
            return found
        return [index for index in found if not self.kernel.explores(steps[index])]

    def sampled(self, steps: range) -> range | list[int]:
        """Return the indices of steps that begin after the warm-up, in no exploration phase."""
        found = range(max(0, self.warmup + 1 - steps.start), len(steps))
        if self.kernel.is_steady:
            return found
        return [index for index in found if not self.kernel.explores(steps[index] - 1)]

    def target_of(self, target: Target) -> Target:
        """Return the target in the coordinates of the chains."""
        return target if self.coordinates is None else self.coordinates

    def theta(self, positions: Tensor) -> Tensor:
        """Return positions (..., dim) of the chains in the target's own coordinates."""
        return positions if self.coordinates is None else self.coordinates.theta(positions)

    def kept(self, positions: Tensor) -> Tensor:
        """Turn positions (draw, chain, dim) into what is stored, (draw, chain, ...)."""
        positions = self.theta(positions)
        if not callable(self.keep):
            return positions
        return torch.func.vmap(torch.func.vmap(self.keep))(positions)

    @property
    def step_size_shape(self) -> tuple[int, ...]:
        """The shape of a draw's step size: one number, or one per chain."""
        return (len(self.chains),) if self.kernel.traits.differs_by_chain else ()

    def step_sizes(self, inputs: Sequence[StepInputs], like: Tensor) -> Tensor:
        """Return the step sizes of some steps, (steps, *step_size_shape)."""
        values = [each.step_size for each in inputs]
        sizes = stack(values, inputs[0] is inputs[-1], like).reshape(len(inputs), -1)
        return sizes.expand(-1, *self.step_size_shape) if self.step_size_shape else sizes[:, 0]

    def event_shape(self, position: Tensor) -> tuple[int, ...]:
        """Return the shape of a stored draw; fail if no draw is kept or `keep` is unsuitable."""
        if self.keep != "moments" and self.num_draws == 0:
            what = "a step that is kept: after the warm-up, in no exploration phase"
            raise needs("sample", "num_steps", what, self.num_steps)
        what = "a function of one position (dim,), of torch operations, that returns a real tensor"
        try:
            result = self.kept(position[None])
        except Exception as error:
            raise needs("sample", "keep", what, f"{type(error).__name__}: {error}") from error
        if not isinstance(result, Tensor) or result.is_complex():
            found = result.dtype if isinstance(result, Tensor) else type(result).__name__
            raise needs("sample", "keep", what, found, TypeError)
        return tuple(result.shape[2:])

    def gradient(
        self, target: Target, columns: Sequence[Tensor], like: Tensor, *, is_compiled: bool = False
    ) -> GradientFn:
        """Return the gradient of the run, for chains like `like`.

        Without a sampler the warm-up compiles the gradient by itself, and so does the run.
        """
        target = self.target_of(target)
        addresses: dict[str, Any] = {"seed": self.seed, "chains": self.chains}
        if self.batch_size is None:
            gradient_fn = full(target, columns or None)
        else:
            settings = {**addresses, "batches": self.batches}
            if self.centre is None:
                gradient_fn = minibatch(target, columns, self.batch_size, **settings)
            else:
                gradient_fn = control_variate(
                    target, columns, self.batch_size, self.centre, **settings
                )
            if self.kernel.traits.needs_full_energy:
                gradient_fn = with_energy(gradient_fn, full(target, columns))
        if target.gradient_noise:
            gradient_fn = noisy(gradient_fn, target.gradient_noise, **addresses, like=like)
        is_compiled = is_compiled and self.recipe is not None
        return compiled(gradient_fn, len(like)) if is_compiled else gradient_fn


def _coordinates(weights: list[list[float]] | None, target: Target) -> Reparameterised | None:
    """Return a target in the coordinates of a manifest's weights."""
    if weights is None:
        return None
    if target.conditionals is None:
        what = "the run's own, whose priors depend on other parameters"
        raise needs("resume", "target", what, type(target).__name__, TypeError)
    parts = Weights(*(torch.tensor(part, dtype=torch.float64) for part in weights))
    return Reparameterised(target, target.conditionals, parts)
