"""Run a Pyro model at given values and collect its sites."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pyro
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import SubsampleMessenger
from torch import Tensor
from torch.distributions import Distribution, Multinomial

from langevin.checks import needs
from langevin.targets.automatic import validation

__all__ = ["WHO", "Plate", "Site", "Trace", "run", "settings"]

WHO = "from_pyro"
_SUBSAMPLE = "_subsample"  # SubsampleMessenger's function that chooses the rows of a plate
_NEW = (
    "a model with the same sample sites in every run: replace control flow that depends on values "
    "or random numbers by torch.where"
)


class Plate(NamedTuple):
    """One plate around a site."""

    name: str
    size: int
    axis: int | None  # negative, among the batch axes; None for `for i in pyro.plate(...)`


class Site(NamedTuple):
    """One `pyro.sample` statement of a run."""

    name: str
    fn: Any  # its distribution
    value: Tensor
    scale: Any  # of poutine.scale and subsampling
    mask: Any  # of poutine.mask
    plates: tuple[Plate, ...]
    is_observed: bool
    is_deterministic: bool
    infer: Mapping[str, Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]

    @property
    def is_plain(self) -> bool:
        """Whether the distribution alone gives the log density."""
        return self.mask is None and not isinstance(self.scale, Tensor) and self.scale == 1

    def log_density(self) -> Tensor:
        """Return the log density of each batch element, scaled and masked."""
        args, kwargs = self.arguments
        if isinstance(self.fn, Multinomial):
            logs = _multinomial(self.fn, self.value)
        else:
            logs = self.fn.log_prob(self.value, *args, **kwargs)
        return scale_and_mask(logs, self.scale, self.mask)


def _multinomial(fn: Multinomial, counts: Tensor) -> Tensor:
    """Return the log density of counts; torch's own uses a boolean mask, which vmap rejects."""
    logits, counts = torch.broadcast_tensors(fn.logits, counts)
    none = counts == 0
    terms = counts * torch.where(none, 0.0, logits) - (counts + 1).lgamma()
    return (counts.sum(-1) + 1).lgamma() + terms.sum(-1)


class Trace(NamedTuple):
    """What one run of a model did."""

    sites: dict[str, Site]
    params: dict[str, Tensor]
    subsampled: dict[str, int]  # the size of each subsampled plate


class _Reached(Exception):
    """The site that a run was made for has been reached."""


@contextlib.contextmanager
def settings(dtype: torch.dtype) -> Iterator[None]:
    """Run Pyro without checks that look at values, and create tensors of one dtype."""
    before = torch.get_default_dtype()
    checks = {"validate_poutine": False, "validate_distributions_pyro": False}
    torch.set_default_dtype(dtype)
    try:
        with pyro.settings.context(**checks), validation(False):
            yield
    finally:
        torch.set_default_dtype(before)


def run(
    model: Callable[[], Any],
    fill: Callable[[str, Any], Tensor | None],
    params: Mapping[str, Tensor] | None = None,
    rows: Tensor | None = None,
    until: str | None = None,
) -> Trace:
    """Run a model with its latent sites at given values.

    Args:
        model: a function without arguments.
        fill: returns the value of a latent site, from its name and its distribution.
        params: the values of `pyro.param` sites; None reads the parameter store.
        rows: the rows of subsampled plates; None takes all.
        until: stop at this latent site, which gets no value.
    """
    collector = _Collector(fill, params, until)
    with (
        contextlib.suppress(_Reached),
        collector,
        _rows_of_plates(rows, collector.trace.subsampled),
    ):
        model()
    return collector.trace


class _Collector(Messenger):
    """Give values to latent sites, and collect all sites; the outermost handler of a run."""

    def __init__(
        self,
        fill: Callable[[str, Any], Tensor | None],
        params: Mapping[str, Tensor] | None,
        until: str | None,
    ) -> None:
        super().__init__()
        self.trace = Trace({}, {}, {})
        self._fill, self._params, self._until = fill, params, until

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if type(fn).__name__ == "_Subsample":
            return
        if name in self.trace.sites:
            raise needs(WHO, "model", "sample sites with different names", f"two sites {name!r}")
        if not isinstance(fn, Distribution):
            condition = f"a distribution of pyro.distributions at the site {name!r}"
            raise needs(WHO, "model", condition, fn)
        if msg["is_observed"]:
            return
        if name == self._until:
            self._collect(msg)
            raise _Reached
        value = self._fill(name, fn)
        if value is None:
            raise needs(WHO, "model", _NEW, f"{name!r}, a site of some runs only")
        msg["value"], msg["done"] = value, True

    def _pyro_post_sample(self, msg: Any) -> None:
        if type(msg["fn"]).__name__ != "_Subsample":
            self._collect(msg)

    def _collect(self, msg: Any) -> None:
        frames = [Plate(frame.name, frame.size, frame.dim) for frame in msg["cond_indep_stack"]]
        self.trace.sites[msg["name"]] = Site(
            msg["name"], msg["fn"], msg["value"], msg["scale"], msg["mask"], tuple(frames),
            msg["is_observed"], bool(msg["infer"].get("_deterministic")), msg["infer"],
            (msg["args"], msg["kwargs"]),
        )  # fmt: skip

    def _pyro_param(self, msg: Any) -> None:
        if self._params is not None:
            if msg["name"] not in self._params:
                found = f"{msg['name']!r}, a pyro.param site of some runs only"
                raise needs(WHO, "model", _NEW, found)
            # Its own tensor, since Pyro sets attributes of the parameters of subsampled plates.
            msg["value"], msg["done"] = self._params[msg["name"]].detach(), True
            msg["value"]._pyro_unconstrained_param = msg["value"]

    def _pyro_post_param(self, msg: Any) -> None:
        self.trace.params[msg["name"]] = msg["value"].detach()


@contextlib.contextmanager
def _rows_of_plates(rows: Tensor | None, subsampled: dict[str, int]) -> Iterator[None]:
    """Give subsampled plates these rows, and list the plates.

    A handler cannot: Pyro rejects rows whose number is not the plate's `subsample_size`.
    """
    original = getattr(SubsampleMessenger, _SUBSAMPLE)

    def choose(
        name: str,
        size: int | None = None,
        subsample_size: int | None = None,
        subsample: Any = None,
        *device: Any,
    ) -> tuple[int, int, Any]:
        own = subsample is not None or size is None or subsample_size in (None, size)
        if own:
            found: tuple[int, int, Any] = original(name, size, subsample_size, subsample, *device)
            return found
        assert size is not None
        subsampled[name] = size
        chosen = torch.arange(size) if rows is None else rows
        return size, len(chosen), chosen

    setattr(SubsampleMessenger, _SUBSAMPLE, staticmethod(choose))
    try:
        yield
    finally:
        setattr(SubsampleMessenger, _SUBSAMPLE, staticmethod(original))
