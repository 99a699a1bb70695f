"""What draws say of new data together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from langevin.checks import needs
from langevin.targets.likelihoods import Likelihood

__all__ = ["Prediction"]


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """What is known of the targets y of n rows, the draws' laws of y mixed in equal parts; `predict` makes it.

    Of **classes**: `probabilities`, `labels`, and the entropy of y in nats: `total` = `aleatoric` (what each draw by itself does
    not know, on average) + `epistemic` (what the draws disagree on: the mutual information of y and the draw), each (n,);
    several questions of a row are summed, each by itself.

    Of **numbers**: `mean`, `std`, and the variance of y: `variance` = `aleatoric` (the mean of the draws' variances) + `epistemic`
    (the variance of the draws' means), each in the shape of y.

    Args:
        likelihood: of y given outputs.
        num_draws: how many there were.
        mean: of y, (n, ...); where y are classes, the average probabilities.
        aleatoric: see above; None where the likelihood does not say it.
        epistemic: see above.
        levels: of the intervals that were asked for.
        lower: the intervals' lower ends, shape of y, or (levels, *shape of y) where several levels were asked for.
        upper: their upper ends.
        outputs: the model's outputs for each draw, (draws, n, ...), where they were asked for.
        y: the targets, where they were given.
        log_density: the log of the average over draws of ``p(y_i | draw)``, (n,), where y was given.
        warnings: what speaks against trusting it, in sentences.
    """

    likelihood: Likelihood
    num_draws: int
    mean: Tensor
    aleatoric: Tensor | None
    epistemic: Tensor
    levels: tuple[float, ...] = ()
    lower: Tensor | None = None
    upper: Tensor | None = None
    outputs: Tensor | None = None
    y: Tensor | None = None
    log_density: Tensor | None = None
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def is_of_classes(self) -> bool:
        """Whether y are classes, not numbers."""
        return self.likelihood.predicts == "classes"

    @property
    def probabilities(self) -> Tensor:
        """The average probabilities: (n, classes), or of ones and not zeros, in the shape of y."""
        self._check("probabilities", of_classes=True)
        return self.mean

    @property
    def labels(self) -> Tensor:
        """The most probable classes, (n,), or zeros and ones in the shape of y."""
        self._check("labels", of_classes=True)
        return self.likelihood.labels(self.mean)

    @property
    def variance(self) -> Tensor | None:
        """The variance of y; None where the likelihood does not say what part of it is noise."""
        self._check("variance", of_classes=False)
        return None if self.aleatoric is None else self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor | None:
        """The root of the variance."""
        variance = self.variance
        return None if variance is None else variance.sqrt()

    @property
    def total(self) -> Tensor | None:
        """All uncertainty of y: the entropy of the average probabilities, or the variance."""
        return self.likelihood.entropy(self.mean) if self.is_of_classes else self.variance

    @property
    def draws_mean(self) -> Tensor:
        """What each draw expects of y, (draws, n, ...), where ``per_draw=True`` was asked for."""
        if self.outputs is None:
            raise needs("Prediction", "draws_mean", "predict(..., per_draw=True)", None, AttributeError)
        return self.likelihood.mean(self.outputs.flatten(0, 1)).unflatten(0, self.outputs.shape[:2])

    def __repr__(self) -> str:
        """Say in a few lines what was predicted, and what speaks against it."""
        shape = f"{len(self)} rows" + (f" x {tuple(self.mean.shape[1:])}" if self.mean.ndim > 1 else "")
        what = "entropy" if self.is_of_classes else "variance"
        lines = [f"Prediction of {shape} by {self.num_draws} draws, {self.likelihood}"]
        if self.total is not None and self.aleatoric is not None:
            parts = (float(part.double().mean()) for part in (self.total, self.aleatoric, self.epistemic))
            total, aleatoric, epistemic = (f"{part:.4g}" for part in parts)
            lines.append(f"  mean {what}: total {total} = aleatoric {aleatoric} + epistemic {epistemic}")
        else:
            lines.append(f"  mean epistemic {what} {float(self.epistemic.double().mean()):.4g}")
        if self.levels:
            lines.append("  intervals of " + ", ".join(f"{100 * level:g} %" for level in self.levels))
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.warnings)])

    def _check(self, name: str, *, of_classes: bool) -> None:
        if self.is_of_classes != of_classes:
            what = "classes" if of_classes else "numbers"
            raise AttributeError(f"prediction.{name} needs a likelihood of {what}, got {self.likelihood}")
