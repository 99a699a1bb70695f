"""Do chains agree on what they predict, and how many independent draws are they worth: R-hat and ESS of functions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from langevin.predictive.draws import as_draws
from langevin.predictive.rows import Rows
from langevin.predictive.sameness import warnings_of
from langevin.predictive.walk import walk
from langevin.targets import Posterior
from langevin.targets.likelihoods import Likelihood
from langevin.trust import MAX_ELEMENTS, TrustWarning, evenly_spaced
from langevin.trust.mixing import MAX_RHAT, MIN_DRAWS, mixing

__all__ = ["FunctionDiagnostics", "function_diagnostics"]

_FALSE_ALARMS = 1e-5  # how often one prediction of chains that agree may be above the limit


@dataclass(frozen=True, repr=False, eq=False)
class FunctionDiagnostics:
    """How well the predictions of chains mix; `function_diagnostics` makes it.

    Args:
        values: what was looked at, (chain, draw, prediction): probabilities or means at rows and outputs that are evenly spaced.
        rhat: rank-normalised split R-hat of each prediction; NaN with one chain, fewer than four draws, or where it stands.
        bulk_ess: how many independent draws the chains are worth for its mean.
        tail_ess: the same for its 5 and 95 percent quantiles.
        warnings: what speaks against the draws, in sentences.
    """

    values: Tensor
    rhat: Tensor
    bulk_ess: Tensor
    tail_ess: Tensor
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return a line for each number, and the warnings under them."""
        chains, draws, size = self.values.shape
        lines = [f"{size} predictions of {chains} chain{'s' * (chains > 1)} x {draws} draws: median, worst"]
        for name, values, worst in (("R-hat", self.rhat, max), ("bulk ESS", self.bulk_ess, min), ("tail ESS", self.tail_ess, min)):
            known = sorted(values[~torch.isnan(values)].tolist())
            lines.append(f"  {name:<8}  {known[len(known) // 2]:.4g}, {worst(known):.4g}" if known else f"  {name:<8}  -")
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.warnings)])


def function_diagnostics(
    model: Posterior | nn.Module | None,
    draws: Any,
    x: Any,
    *,
    likelihood: str | Likelihood | Callable[..., Tensor] | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
    on_error: str = "raise",
) -> FunctionDiagnostics:
    """Return R-hat and effective sample sizes of what draws predict.

    Weights of a network have symmetries, so that chains which disagree on them may agree on every prediction. At most 200 rows and
    200 predictions are looked at, evenly spaced. The arguments are those of `predict`.

    Args:
        model: a `Posterior`, or an `nn.Module` of the draws' kind; None where the draws are modules.
        draws: chains: the result of `sample`, positions (chain, draw, dim), or a list of banks; one bank, positions (draw, dim) or
            a list of modules are one chain. Of chains that differ in length the last draws count.
        x: inputs at which the predictions are compared.
        likelihood: says what is compared, probabilities or means; as in `predict`.
        transform: or a function of the outputs.
        on_error: "raise" or "skip", for damaged draws of a bank.

    Returns:
        The numbers, and in sentences what they mean; these are warned of, too (`TrustWarning`).

    Example:
        >>> import langevin as lv
        >>> posterior = lv.Posterior(nn.Linear(4, 1), lv.likelihoods.gaussian(1.0), prior=lv.priors.gaussian(std=1.0), num_data=9)
        >>> chains = lv.noise.normal(0, 0, 0, 4 * 100 * 5).reshape(4, 100, 5)
        >>> found = lv.function_diagnostics(posterior, chains, torch.eye(4))
        >>> found.rhat.shape, found.warnings
        (torch.Size([4]), ())
    """
    who = "function_diagnostics"
    source = as_draws(who, model, draws, likelihood, transform, on_error)
    rows = Rows(who, Rows(who, x, None).some(MAX_ELEMENTS), None)
    chains: dict[int, list[Tensor]] = {}
    for piece in walk(who, source, rows):
        values = source.likelihood.mean(piece.outputs.flatten(0, 1)).unflatten(0, piece.outputs.shape[:2]).flatten(1)
        picked = values[:, evenly_spaced(values.shape[1], MAX_ELEMENTS).to(values.device)]
        for chain, one in zip(piece.chains, picked.cpu(), strict=True):
            chains.setdefault(chain, []).append(one)
    shortest = min(len(chain) for chain in chains.values())
    together = torch.stack([torch.stack(chain[-shortest:]) for chain in chains.values()]).double()
    sentences = _warnings(together)
    for sentence in sentences:
        warnings.warn(f"{who}: {sentence}", TrustWarning, stacklevel=2)
    finite = torch.where(torch.isfinite(together), together, 0.0)  # an element that is not finite is said, and the others count
    return FunctionDiagnostics(together, *mixing(finite), sentences)


def _warnings(values: Tensor) -> tuple[str, ...]:
    chains, num, _ = values.shape
    flat = values.flatten(0, 1)
    mean = flat.mean(0)
    spread, jumps = float((flat - mean).square().sum()), float(flat.diff(dim=0).square().sum())
    found = warnings_of(mean, spread, jumps, len(flat))
    if found or chains == 1 or num < MIN_DRAWS:
        return found
    rhat = mixing(values).rhat.nan_to_num(0.0)
    worst, limit = float(rhat.max()), rhat_limit(chains, num)
    if worst <= limit:
        return ()
    share = float((rhat > limit).double().mean())
    return (
        f"the chains disagree on what they predict: R-hat is {worst:.3g} at worst, and above {limit:.3g} for {100 * share:.0f} % "
        "of them; run longer, or leave out more of the start",
    )


def rhat_limit(chains: int, num_draws: int) -> float:
    """Return the R-hat that chains of independent draws hardly ever exceed, and 1.01 at least: with few draws it is noisy.

    Between 2 m halves of n draws, ``n Var(means) / W`` is a chi-squared number over its 2 m - 1 degrees of freedom.

    Example:
        >>> rhat_limit(4, 100_000), round(rhat_limit(4, 50), 2)
        (1.01, 1.08)
    """
    from scipy.special import chdtri  # type: ignore[import-untyped] # a tenth of a second to import

    freedom = 2 * chains - 1
    most = float(chdtri(freedom, _FALSE_ALARMS)) / freedom
    return max(MAX_RHAT, math.sqrt(1 + (most - 1) / (num_draws // 2)))
