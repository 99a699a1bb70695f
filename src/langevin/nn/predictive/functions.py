"""R-hat and effective sample size of predictions."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from langevin.checks import known_arguments, level_of_caller
from langevin.diagnostics.arrays import evenly_spaced
from langevin.diagnostics.convergence import MAX_RHAT, MIN_DRAWS, mixing
from langevin.diagnostics.running import MAX_ELEMENTS
from langevin.diagnostics.trust import TrustWarning
from langevin.nn.batches import Batches
from langevin.nn.predictive.averages import draw_warnings
from langevin.nn.predictive.draws import DrawsLike, LikelihoodLike, Transform, as_draws
from langevin.nn.predictive.predict import evaluate
from langevin.nn.trees import Tree
from langevin.targets import Posterior

__all__ = ["FunctionDiagnostics", "function_diagnostics"]

_FALSE_ALARMS = 1e-5  # probability that a prediction of converged chains exceeds the limit


@dataclass(frozen=True, repr=False, eq=False)
class FunctionDiagnostics:
    """Convergence diagnostics of predictions; `function_diagnostics` returns it.

    Args:
        values: the predictions, (chain, draw, prediction): probabilities or means of evenly spaced
            rows and outputs.
        rhat: rank-normalised split R-hat of each prediction; NaN with one chain, fewer than four
            draws, or for a constant prediction.
        bulk_ess: effective number of draws for its mean.
        tail_ess: effective number of draws for its 5 and 95 percent quantiles.
        warnings: reasons not to trust the draws.

    Example:
        >>> ess = torch.full((1,), 8.0)
        >>> FunctionDiagnostics(torch.zeros(2, 4, 1), torch.ones(1), ess, ess, ()).rhat
        tensor([1.])
    """

    values: Tensor
    rhat: Tensor
    bulk_ess: Tensor
    tail_ess: Tensor
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return a line for each number, and the warnings."""
        chains, draws, size = self.values.shape
        many = f"{chains} chain{'s' * (chains > 1)} x {draws} draws"
        lines = [f"{size} predictions of {many}: median, worst"]
        for name, values, worst in (
            ("R-hat", self.rhat, max),
            ("bulk ESS", self.bulk_ess, min),
            ("tail ESS", self.tail_ess, min),
        ):
            known = sorted(values[~torch.isnan(values)].tolist())
            found = f"{known[len(known) // 2]:.4g}, {worst(known):.4g}" if known else "-"
            lines.append(f"  {name:<8}  {found}")
        return "\n".join([*lines, *(f"! {reason}" for reason in self.warnings)])


@known_arguments("function_diagnostics")
def function_diagnostics(
    model: Posterior | nn.Module | None,
    draws: DrawsLike,
    x: Tree,
    *,
    likelihood: LikelihoodLike = None,
    transform: Transform = None,
    on_error: str = "raise",
) -> FunctionDiagnostics:
    """Return R-hat and effective sample sizes of predictions.

    Weights of a network have symmetries, so chains that disagree on them may agree on every
    prediction. Uses at most 200 rows and 200 predictions, evenly spaced. The arguments are those of
    `predict`.

    Args:
        model: a `Posterior`, or an `nn.Module` of the draws' kind; None if the draws are modules.
        draws: chains: the result of `sample`, positions (chain, draw, dim), or a list of banks; one
            bank, positions (draw, dim) or a list of modules are one chain. Of chains of different
            lengths the last draws are used.
        x: inputs at which predictions are compared.
        likelihood: decides what is compared, probabilities or means; as in `predict`.
        transform: or a function of the model's output, as in `predict`.
        on_error: "raise" or "skip", for damaged draws of a bank.

    Returns:
        The numbers, and warnings, which are also emitted as `TrustWarning`.

    Example:
        >>> import langevin as lv
        >>> gaussian, prior = lv.likelihoods.gaussian(1.0), lv.priors.gaussian(std=1.0)
        >>> posterior = lv.Posterior(nn.Linear(4, 1), gaussian, prior=prior, num_data=9)
        >>> chains = lv.random.normal(0, 0, 0, 4 * 100 * 5).reshape(4, 100, 5)
        >>> found = lv.function_diagnostics(posterior, chains, torch.eye(4))
        >>> found.rhat.shape, found.warnings
        (torch.Size([4]), ())
    """
    who = "function_diagnostics"
    source = as_draws(who, model, draws, likelihood, transform, on_error)
    batches = Batches(who, Batches(who, x, None).some(MAX_ELEMENTS), None)
    chains: dict[int, list[Tensor]] = {}
    for block in evaluate(who, source, batches):
        values = source.likelihood.mean(block.outputs.flatten(0, 1))
        values = values.unflatten(0, block.outputs.shape[:2]).flatten(1)
        picked = values[:, evenly_spaced(values.shape[1], MAX_ELEMENTS).to(values.device)]
        for chain, one in zip(block.chains, picked.cpu(), strict=True):
            chains.setdefault(chain, []).append(one)
    shortest = min(map(len, chains.values()))
    found = torch.stack([torch.stack(chain[-shortest:]) for chain in chains.values()]).double()
    reasons = _warnings(found)
    for reason in reasons:
        warnings.warn(f"{who}: {reason}", TrustWarning, stacklevel=level_of_caller())
    # a warning names elements that are not finite
    return FunctionDiagnostics(found, *mixing(found.where(found.isfinite(), 0.0)), reasons)


def _warnings(values: Tensor) -> tuple[str, ...]:
    chains, num, _ = values.shape
    flat = values.flatten(0, 1)
    mean = flat.mean(0)
    spread, jumps = float((flat - mean).square().sum()), float(flat.diff(dim=0).square().sum())
    found = draw_warnings(mean, spread, jumps, len(flat))
    if found or chains == 1 or num < MIN_DRAWS:
        return found
    rhat, limit = mixing(values).rhat.nan_to_num(0.0), rhat_limit(chains, num)
    if (worst := float(rhat.max())) <= limit:
        return ()
    share = 100 * float((rhat > limit).double().mean())
    return (
        f"the chains disagree on predictions: worst R-hat {worst:.3g}, and {share:.0f} % are above "
        f"{limit:.3g}; run longer, or discard more of the start",
    )


def rhat_limit(chains: int, num_draws: int) -> float:
    """Return the R-hat that independent draws hardly ever exceed, at least 1.01.

    With few draws R-hat is noisy: between 2 m halves of n draws, ``n Var(means) / W`` is a
    chi-squared variable over its 2 m - 1 degrees of freedom.

    Example:
        >>> rhat_limit(4, 100_000), round(rhat_limit(4, 50), 2)
        (1.01, 1.08)
    """
    from scipy.special import chdtri  # type: ignore[import-untyped] # takes 0.1 s to import

    freedom = 2 * chains - 1
    most = float(chdtri(freedom, _FALSE_ALARMS)) / freedom
    return max(MAX_RHAT, math.sqrt(1 + (most - 1) / (num_draws // 2)))
