"""What an optimizer reports about its groups: minibatch noise, and what they sample."""

from __future__ import annotations

from abc import abstractmethod

import torch

from langevin.kernels import Kernel
from langevin.kernels.gradient_noise import GradientNoise
from langevin.optim.kronecker import describe_blocks
from langevin.optim.minibatch_noise import MinibatchHeat, MinibatchNoise
from langevin.optim.settings import MICRO_BATCHES, SUCCESSIVE, Group, describe_group

__all__ = ["NoiseReports"]


class NoiseReports(torch.optim.Optimizer):
    """The methods of `LangevinOptimizer` that measure and describe."""

    _noise: MinibatchNoise

    @abstractmethod
    def _kernel(self, group: Group, noise: GradientNoise = SUCCESSIVE) -> Kernel:
        """Return the kernel of a group."""

    @torch.no_grad()
    def observe(self) -> None:
        """Record the accumulated gradients after the backward pass of a micro-batch.

        Their differences give the variance of the sum, whatever the direction of the gradient and
        its changes from step to step. Micro-batches must have equal size. Clipping or unscaling
        before the step is detected and taken into account. A single one in a step has no variance:
        successive gradients are then used, as without a call. `zero_grad` and `step` reset it.
        """
        for number, group in enumerate(self.param_groups):
            self._noise.observe(number, group, self._kernel(group))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients and the micro-batches of `observe`."""
        super().zero_grad(set_to_none)
        self._noise.forget()

    def heat(self) -> list[MinibatchHeat]:
        """Return what minibatch noise adds to each group: `MinibatchHeat`.

        First the excess variance of predictions, averaged over the training data, relative to the
        posterior's; then the mean over elements of their excess temperature, ``R s^2 / (2 τ)`` for
        noise of variance s^2 in the gradient of U. R, the total response of θ to a gradient, is ε
        for SGLD, ``ε / (1 - β)`` for SGHMC, ``(1 + a G) ε`` with a bias. The mean is known after 32
        steps, and averages about 800; predictions after 256, over the later half of the run. For
        SGNHT the friction of the thermostat measures it.
        """
        groups = enumerate(self.param_groups)
        return [self._noise.heat(k, group, self._kernel(group), self.state) for k, group in groups]

    @property
    def description(self) -> str:
        """What each group samples, as text."""
        return "\n".join(map(self._describe_group, range(len(self.param_groups))))

    def describe(self) -> None:
        """Print epsilon, noise scale, SDE, target and effective temperature of each group."""
        print(self.description)

    def _describe_group(self, number: int) -> str:
        group = self.param_groups[number]
        if float(group["lr"]) == 0:
            return f"group {number}: lr 0, no updates"
        is_observed = self._noise.watch(number, group).estimator == "micro-batches"
        kernel = self._kernel(group, MICRO_BATCHES if is_observed else SUCCESSIVE)
        heat = self._noise.heat(number, group, kernel, self.state)
        return describe_group(number, group, kernel, heat) + describe_blocks(group)
