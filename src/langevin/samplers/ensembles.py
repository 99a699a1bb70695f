"""Samplers that cross between modes, around any of the others: chains at several temperatures, cycles of temperature, contours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langevin.checks import needs
from langevin.kernels import Cycles, Kernel, Replica

__all__ = ["cyclical_annealing", "replica_exchange"]


def replica_exchange(
    kernel: Kernel,
    *,
    temperatures: Sequence[float] = (1.0, 3.0, 10.0),
    swap_every: int = 10,
    energy_noise: float | str | None = None,
) -> Replica:
    """Replica exchange around any sampler (Deng, Feng, Gao, Liang and Lin 2020, with SGLD), with several temperatures.

    ``θ_j, θ_k`` swap places with probability ``min(1, exp(δ (U_j - U_k) - δ^2 (s_j^2 + s_k^2) / 2))``, δ = 1 / τ_j - 1 / τ_k

    Hot chains cross between modes, and the cold ones get what they find, with the weights of the posterior. A group of as many
    consecutive chains as there are temperatures meets: `init` has a row for each. `samples` has the chains at the target's
    temperature only; `samples.replicas` has all, and the trust check "swaps" says how often neighbours swap.

    Args:
        kernel: the sampler of each chain, such as ``sgld(0.01)`` or ``msgld(0.01, invariant=True)``, at the target's temperature.
        temperatures: multiples of it, rising from 1: the last high enough to cross, neighbours so near that they swap. In d
            dimensions near a mode neighbours swap with a ratio of up to about ``1 + 3 / sqrt(d)``.
        swap_every: steps from one round of swaps to the next.
        energy_noise: s, the standard deviation of one energy estimate; "auto" follows it, for minibatches; None for exact energies.
            Swaps become rare where ``δ s`` is above about 2.

    Differs from: Deng et al. divide the correction by a factor F, which makes swaps more frequent and the law wrong: a smaller
    number as `energy_noise` does that. They estimate the noise from further evaluations; "auto" takes the steps' own. Exact for
    Gaussian noise of known variance that is independent of the gradient's; that of minibatches is correlated with it, which
    biases one step in `swap_every`.

    Example:
        >>> import langevin as lv
        >>> kernel = replica_exchange(lv.sgld(0.01), temperatures=(1.0, 4.0), swap_every=5)
        >>> kernel.group_size, kernel.temperatures
        (2, (1.0, 4.0))
    """
    if not isinstance(kernel, Kernel):
        raise needs("replica_exchange", "kernel", "a sampler such as sgld(step_size=...)", kernel, TypeError)
    ladder = tuple(temperatures) if isinstance(temperatures, Sequence) else temperatures
    return Replica(
        "replica_exchange",
        kernel.step_size,
        kernel.temperature,
        inner=kernel,
        ladder=ladder,
        swap_every=swap_every,
        energy_noise=energy_noise,
    )


def cyclical_annealing(kernel: Kernel, *, cycle_length: int, hottest: float = 10.0, hot: float = 0.2, cold: float = 0.4) -> Cycles:
    """Cyclical sampling whose cycles have the weights of the posterior, around any sampler (ours; the aim of section 6).

    ``θ' = θ_new`` with probability ``min(1, w / w_kept)``, else the last place; ``log w = sum (1 / τ_t - 1 / τ_t+1) U(θ_t)``

    Each cycle heats the chain, cools it slowly and then decides, by what its energy was on the way, whether the mode that it
    found is taken; draws are kept only after that, at the target's temperature and with the step size of `kernel`. A cycle that is
    not taken goes back to the last place, so that a good mode counts as often as it should.

    Args:
        kernel: the sampler of all steps, such as ``sgld(0.01)``, with the step size that its law needs.
        cycle_length: steps in a cycle.
        hottest: temperature of the hot phase as a multiple of the kernel's: so high that a chain crosses between modes there.
        hot: share of a cycle at that temperature: so long that the chain forgets where it was.
        cold: share of a cycle that samples, at the kernel's temperature. In between it cools: slowly, so that cycles are taken.

    Differs from: cyclical step sizes (Zhang et al. 2020, `schedules.cyclical`) heat by steps that are too large: their modes come
    with the weights of the restart, not with those of the posterior, and draws at the start of a phase are hot (docs/modes.md).

    Example:
        >>> import langevin as lv
        >>> kernel = cyclical_annealing(lv.sgld(0.01), cycle_length=1000)
        >>> [kernel.explores(step) for step in (0, 600, 601, 999)]
        [True, True, False, False]
    """
    if not isinstance(kernel, Kernel):
        raise needs("cyclical_annealing", "kernel", "a sampler such as sgld(step_size=...)", kernel, TypeError)
    return Cycles(
        "cyclical_annealing",
        kernel.step_size,
        kernel.temperature,
        inner=kernel,
        cycle_length=cycle_length,
        hottest=hottest,
        hot=hot,
        cold=cold,
    )


NAMED: dict[str, Callable[..., Kernel]] = {}
