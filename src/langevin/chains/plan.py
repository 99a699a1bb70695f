"""What is to be run and kept: a value that a run's folder holds, but for the sampler and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from langevin.checks import needs
from langevin.engines.blocks import stack
from langevin.gradient_noise import KINDS as NOISES
from langevin.gradient_noise import OPEN
from langevin.gradients import GradientFn, control_variate, full, minibatch, noisy, with_energy
from langevin.kernels import Kernel, Scaled, StepInputs
from langevin.scales import KINDS
from langevin.schedules import AUTO
from langevin.store import About
from langevin.store.checkpoint import learnt_tensors
from langevin.targets import Target
from langevin.tuning import sampler_at

__all__ = ["Keep", "Plan"]

Keep = str | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """What is to be run and kept.

    Args:
        kernel: the sampler, whose exploration phases keep nothing.
        num_steps: steps in all.
        warmup: first steps whose draws are thrown away.
        thin: every how many steps a position is kept.
        seed: of everything random.
        chains: numbers of the chains.
        keep: "positions", "moments" or a function of one position.
        batch_size: rows per step and chain; None for all data.
        mode: the centre of control variates, (dim,), or None.
        found: what was said of the step size when it was found, or "".
        num_data: rows of the data, or None.
        warmup_gradients: that each chain took before the run.
        recipe: size and softness of the sampler that a call without one found (`tuning.sampler_at`), or None.
        batches: how minibatches are drawn, one of `gradients.BATCHES`.
    """

    kernel: Kernel
    num_steps: int
    warmup: int
    thin: int
    seed: int
    chains: range
    keep: Keep
    batch_size: int | None = None
    mode: Tensor | None = None
    found: str = ""
    num_data: int | None = None
    recipe: tuple[float, float] | None = None
    warmup_gradients: int = 0
    batches: str = "reshuffled"

    @classmethod
    def of(
        cls, manifest: dict[str, Any], kernel: Kernel | None, keep: Callable[[Tensor], Tensor] | None, tensors: Mapping[str, Tensor]
    ) -> Plan:
        """Return the plan of a run's folder and its checkpoint, with what is not in them; a sampler that was found is."""
        recipe, like = manifest["recipe"], tensors["position"]
        noise = None
        if manifest["noise"] is not None:
            noise = NOISES[manifest["noise"]](*learnt_tensors("noise", tensors))
        if recipe is not None:
            kernel = sampler_at(recipe[0], recipe[1], noise=noise and OPEN)
        assert kernel is not None
        chains = range(manifest["first_chain"], manifest["first_chain"] + manifest["num_chains"])
        mode = manifest["control_variate"]
        kernel = kernel.for_run(manifest["warmup"], like)
        if kernel.step_size == AUTO and manifest["tuned"] is not None:
            kernel = kernel.with_step_size(manifest["tuned"])
        if kernel.has_open_bias and manifest["bias_factor"] is not None:
            kernel = kernel.with_bias_factor(manifest["bias_factor"])
        kernel = kernel.with_gradient_noise(noise)
        if manifest["scale"] is not None:
            kernel = Scaled.of(kernel, KINDS[manifest["scale"]](*learnt_tensors("scale", tensors)))
        return cls(
            kernel, manifest["num_steps"], manifest["warmup"], manifest["thin"], manifest["seed"],
            chains, keep or manifest["keep"], manifest["batch_size"],
            None if mode is None else torch.tensor(mode, dtype=torch.float64).to(like), manifest["found"], manifest["num_data"],
            None if recipe is None else (recipe[0], recipe[1]), manifest["warmup_gradients"],
            manifest["batches"],
        )  # fmt: skip

    def manifest(self, position: Tensor, compile: bool | str) -> dict[str, Any]:
        """Return the plan as plain values, for a run's folder."""
        return {
            "num_steps": self.num_steps, "warmup": self.warmup, "thin": self.thin, "seed": self.seed,
            "first_chain": self.chains.start, "num_chains": len(position), "dim": position.shape[-1], "num_draws": self.num_draws,
            "batch_size": self.batch_size, "keep": self.what, "compile": compile, "description": self.description,
            "tuned": self.kernel.step_size(0) if self.found else None, "found": self.found,
            "control_variate": None if self.mode is None else self.mode.double().tolist(),
            "bias_factor": self.kernel.inputs(0).annealing if self.found and not self.kernel.differs_by_chain else None,
            "warmup_gradients": self.warmup_gradients,
            "recipe": None if self.recipe is None else list(self.recipe),
            "scale": type(self.kernel.scale).__name__ if isinstance(self.kernel, Scaled) else None,
            "num_data": self.num_data, "temperature": self.kernel.target_temperature, "batches": self.batches,
            "noise": self._noise_kind, "temperatures": list(self.kernel.temperatures),
        }  # fmt: skip

    @property
    def _noise_kind(self) -> str | None:
        """The kind of a noise that was learnt before the run, or given; None for one that is followed in the sampler's memory."""
        kind = type(self.kernel.gradient_noise).__name__
        return kind if kind in NOISES else None

    @property
    def description(self) -> str:
        """The sampler's SDE and law, and what was said of its step size."""
        return self.kernel.description + (f"\n  {self.found}" if self.found else "")

    @property
    def about(self) -> About:
        """What the samples are told."""
        return About(
            self.description, self.what, self.kernel.target_temperature, self.warmup_gradients, self.kernel.temperatures
        )  # fmt: skip

    @property
    def num_draws(self) -> int:
        """How many draws a chain stores."""
        return 0 if self.keep == "moments" else len(self.chosen(range(self.num_steps)))

    @property
    def what(self) -> str:
        """What is kept, in a word: "positions", "moments" or "function"."""
        return self.keep if isinstance(self.keep, str) else "function"

    def chosen(self, steps: range) -> range | list[int]:
        """Return the places within a stretch of steps whose positions are kept.

        These are the steps warmup - 1 + k thin, k = 1, 2, ..., but for those of an exploration phase.
        """
        since = max(steps.start, self.warmup) - self.warmup + 1
        first = self.warmup - 1 + -(-since // self.thin) * self.thin
        places = range(first - steps.start, len(steps), self.thin)
        return places if self.kernel.is_steady else [place for place in places if not self.kernel.explores(steps[place])]

    def sampled(self, steps: range) -> range | list[int]:
        """Return the places within a stretch of steps that begin at a position after the warm-up, made in no exploration phase."""
        places = range(max(0, self.warmup + 1 - steps.start), len(steps))
        return places if self.kernel.is_steady else [place for place in places if not self.kernel.explores(steps[place] - 1)]

    def kept(self, positions: Tensor) -> Tensor:
        """Turn positions (draw, chain, dim) into what is stored, (draw, chain, ...)."""
        return torch.func.vmap(torch.func.vmap(self.keep))(positions) if callable(self.keep) else positions

    @property
    def step_size_shape(self) -> tuple[int, ...]:
        """The shape of a draw's step size: that of the chains, where they differ."""
        return (len(self.chains),) if self.kernel.differs_by_chain else ()

    def step_sizes(self, inputs: Sequence[StepInputs], like: Tensor) -> Tensor:
        """Return the step sizes of some steps, (steps, *step_size_shape)."""
        is_steady = inputs[0] is inputs[-1]
        values = [inputs[0].step_size] * len(inputs) if is_steady else [each.step_size for each in inputs]
        sizes = stack(values, is_steady, like).reshape(len(inputs), -1)
        return sizes.expand(-1, *self.step_size_shape) if self.step_size_shape else sizes[:, 0]

    def event_shape(self, position: Tensor) -> tuple[int, ...]:
        """Return the shape of what is kept of one position, or fail when nothing is, or `keep` makes no real tensor of it."""
        if self.keep != "moments" and self.num_draws == 0:
            raise needs("sample", "num_steps", "a step that is kept: after the warm-up, in no exploration phase", self.num_steps)
        condition = "a function of one position (dim,), made of torch operations, that returns a real tensor"
        try:
            result = self.kept(position[None])
        except Exception as error:
            raise needs("sample", "keep", condition, f"{type(error).__name__}: {error}") from error
        if not isinstance(result, Tensor) or result.is_complex():
            found = result.dtype if isinstance(result, Tensor) else type(result).__name__
            raise needs("sample", "keep", condition, found, TypeError)
        return tuple(result.shape[2:])

    def gradient(self, target: Target, columns: Sequence[Tensor], like: Tensor) -> GradientFn:
        """Return the gradient that the run sees, for chains like `like`."""
        if self.batch_size is None:
            gradient_fn = full(target, columns or None)
        elif self.mode is None:
            gradient_fn = minibatch(target, columns, self.batch_size, seed=self.seed, chains=self.chains, batches=self.batches)
        else:
            gradient_fn = control_variate(
                target, columns, self.batch_size, self.mode, seed=self.seed, chains=self.chains, batches=self.batches
            )
        if self.batch_size is not None and self.kernel.needs_full_energy:
            gradient_fn = with_energy(gradient_fn, full(target, columns))
        if not target.gradient_noise:
            return gradient_fn
        return noisy(gradient_fn, target.gradient_noise, seed=self.seed, chains=self.chains, like=like)
