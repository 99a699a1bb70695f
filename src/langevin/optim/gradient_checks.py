"""Warn once about gradients that are missing, not finite, or clipped."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import utils

from langevin.checks import level_of_caller
from langevin.diagnostics.trust import TrustWarning
from langevin.optim.minibatch_noise import MinibatchNoise
from langevin.optim.settings import Group

__all__ = ["CLIPPING_PERIOD", "FINITE_PERIOD", "Clipping", "check_finite_gradients"]

FINITE_PERIOD = 256
"""Gradients are checked in steps 0, 1, 2, 4, 8, ... and each 256th: NaNs stay in parameters."""

CLIPPING_PERIOD, EARLY, LATE = 16, 512, 256
"""Steps between checks for clipping: 16 in the first 512 steps, then 256."""

KEPT = 32
"""Gradients that are compared."""

ENOUGH, ENOUGH_HALF = 8, 24
"""Different gradients at the ceiling that are a proof; more in half precision, which blurs it."""

_SAME, _SAME_HALF = 1e-4, 1e-2  # relative difference of norms that count as equal
_OTHER = 0.05  # relative difference of elements from which on two gradients count as different


_warned: weakref.WeakKeyDictionary[torch.optim.Optimizer, set[str]] = weakref.WeakKeyDictionary()


def check_finite_gradients(
    optimizer: torch.optim.Optimizer, step: int, gradients: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """Warn if a step has no gradient, or one that is NaN or infinite, before anything moves.

    Args:
        optimizer: one of this package.
        step: its number.
        gradients: parameters with their gradients; of a sharded one, this rank's part.
    """
    groups = [group for group in optimizer.param_groups if float(group["lr"]) > 0]
    if not groups:
        return  # lr=0 is a no-op
    pairs = list(gradients)
    bad = next((parameter for parameter, gradient in pairs if not _is_finite(gradient)), None)
    if not pairs:
        count = sum(len(group["params"]) for group in groups)
        kind = "none"
        text = (
            f"step {step} has no gradient for any of the {count} parameters, so all draws are "
            "equal. Did you call backward(), on a loss of this model, and did you build the "
            "optimizer with this model's parameters?"
        )
    elif bad is not None:
        kind = "not finite"
        text = (
            f"the gradient of {_name(groups, bad)} is not finite in step {step}: its draws are NaN "
            "from now on. Check the loss: inputs, logs of 0, a learning rate that is too large. "
            "langevin.lint(model, loss_fn, optimizer, batch) helps."
        )
    else:
        return
    warned = _warned.setdefault(optimizer, set())
    if kind not in warned:
        warned.add(kind)
        text = f"{type(optimizer).__name__}: {text}"
        warnings.warn(text, TrustWarning, stacklevel=level_of_caller())


def _is_finite(gradient: Tensor) -> bool:
    """Return whether all elements are finite; one pass, two if their sum overflows."""
    gradient = gradient.detach()  # keeps the storage alive, which another thread may replace
    if gradient.is_meta or bool(torch.isfinite(gradient.sum())):
        return True
    return bool(torch.isfinite(gradient).all())


def _name(groups: Sequence[Group], bad: Tensor) -> str:
    for number, group in enumerate(groups):
        for k, parameter in enumerate(group["params"]):
            if parameter is bad:
                names = group.get("param_names")
                name = repr(names[k]) if names else f"parameter {k} of group {number}"
                return f"{name}, shape {tuple(parameter.shape)},"
    return "a parameter"


class _Record(NamedTuple):
    norm: float
    largest: float  # modulus of the largest element
    at_largest: int  # how many elements have it
    moduli: Tensor  # of a few elements: they tell one gradient from another


class Clipping:
    """Compare a few gradients of an optimizer; the records are not saved with its state.

    Clipping multiplies gradients in place. A gradient whose version counter is zero is therefore
    not clipped, and in most loops nothing else needs to be read. Gradients that were changed in
    place, for example because they are accumulated, are compared: only clipping (or dividing by
    the norm) gives many different gradients the same norm, the largest of all. Gradients that are
    equal, nearly equal, or equal but for signs count as one.

    One loop that does not clip looks the same: a loss whose gradient has a constant norm, such as
    the length of the weights, with gradients that are accumulated in place.
    """

    def __init__(self) -> None:
        """Start without records."""
        self._records: deque[_Record] = deque(maxlen=KEPT)
        self._has_warned = False

    def check_groups(
        self, who: str, step: int, groups: Sequence[Group], noise: MinibatchNoise
    ) -> None:
        """Check the gradients of a step if it is due; at temperature 0 clipping does no harm."""
        is_moving = [group["temperature"] > 0 and float(group["lr"]) > 0 for group in groups]
        if self._has_warned or (step > EARLY and step % LATE) or not any(is_moving):
            return
        number = is_moving.index(True)
        own = [parameter.grad for parameter in groups[number]["params"]]
        some = noise.watch(number, groups[number]).gather(own)
        gradients = [p.grad for group in groups for p in group["params"]]
        self.check(who, [gradient for gradient in gradients if gradient is not None], some)

    def check(self, who: str, gradients: Sequence[Tensor], some: Tensor | None) -> None:
        """Record the gradients of a step, and warn once if they are clipped.

        Args:
            who: name of the optimizer.
            gradients: all that it has.
            some: a few elements of them.
        """
        if some is None or any(
            type(gradient) is not Tensor or gradient.is_meta for gradient in gradients
        ):
            return  # a shard, for one, has only its part of the norm
        gradients = [gradient for gradient in gradients if gradient.numel()]
        longest = max(gradients, key=Tensor.numel)
        if longest.is_inference() or longest._version == 0:
            self._records.clear()
            return
        is_half = any(gradient.dtype.itemsize < 4 for gradient in gradients)
        wide = [gradient.detach() for gradient in gradients]
        wide = [gradient.float() if gradient.dtype.itemsize < 4 else gradient for gradient in wide]
        norm = float(utils.get_total_norm(wide))
        largest = float(utils.get_total_norm(wide, math.inf))
        if not (math.isfinite(norm) and norm > 0):
            return
        count = 1
        if self._records and largest == self._records[-1].largest:
            count = sum(int((gradient.abs() == largest).sum()) for gradient in wide)
        self._records.append(_Record(norm, largest, count, some.abs()))
        self._compare(who, *((ENOUGH_HALF, _SAME_HALF) if is_half else (ENOUGH, _SAME)))

    def _compare(self, who: str, enough: int, same: float) -> None:
        """Warn if enough different gradients have the largest norm, or several largest elements."""
        ceiling, largest = max(record.norm for record in self._records), self._records[-1].largest
        found = _different(
            [record for record in self._records if record.norm >= ceiling * (1 - same)]
        )
        if len(found) >= enough:
            self._warn(who, f"norm was {ceiling:.3g}", len(found))
            return
        cut = [record for record in self._records if record.largest == largest]
        found = _different([record for record in cut if record.at_largest > 1])
        # A bias under absolute errors has one largest element too, but always as many of them.
        if len(found) >= enough and len({record.at_largest for record in found}) > 1:
            self._warn(who, f"largest element was {largest:.3g}", len(found))

    def _warn(self, who: str, what: str, count: int) -> None:
        self._has_warned = True
        warnings.warn(
            f"{who}: gradients are clipped. Their {what} in {count} of the last "
            f"{len(self._records)} gradients that were checked. Clipping changes the stationary "
            "distribution: the draws are too wide. Turn it off: TrainingArguments(max_grad_norm=0) "
            "in Hugging Face, Trainer(gradient_clip_val=None) in Lightning, no clip_grad_norm_ or "
            "clip_grad_value_ in a loop of your own. If gradients are too large then, use a "
            "smaller lr, and start from a trained model.",
            TrustWarning,
            stacklevel=level_of_caller(),
        )


def _different(records: list[_Record]) -> list[_Record]:
    """Return the records whose gradient differs, in more than signs, from the last one returned."""
    found = records[:1]
    for record in records[1:]:
        before, now = found[-1].moduli, record.moduli
        if now.shape != before.shape or now.device != before.device:
            return []
        if float((now - before).abs().max()) > _OTHER * float(torch.maximum(now, before).max()):
            found.append(record)
    return found
