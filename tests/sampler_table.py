"""One entry per sampler and form: what the contract, the golden, the law, the tuning and the optimizer tests run over.

A sampler is tested by being listed here. A key is a name of `SAMPLERS`, or that name and a form of it, "msgld, invariant".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import oracle
import torch
from exact import hamiltonian_covariance, invariant_covariance, langevin_covariance, momentum_covariance

import langevin as lv


@dataclass(frozen=True)
class Entry:
    """What the tests need to know of a sampler. The oracle and the law get the settings by the paper's letters (`letters`)."""

    settings: dict[str, Any]  # beside step_size and temperature
    memory: tuple[str, ...]  # what it remembers, and so the state of its optimizer
    oracle: Callable[..., Any] | None = None  # a plain loop (tests/oracle.py): (theta, gradient, noises, *, eps, tau, **letters)
    law: Callable[..., Any] | None = None  # exact covariance on N(0, P^-1) (tests/law/exact.py): (P, *, eps, tau, s, **letters)
    law_cases: tuple[dict[str, Any], ...] = ({"eps": 0.02, "tau": 0.5, "s": 1.0},)  # and settings that differ from the ones above
    optimizer: type[lv.optim.LangevinOptimizer] | None = None
    noise_share: float = 1.0  # variance of a step's noise where the metric is one, over 2 eps tau
    auto: dict[str, Any] | str | None = field(default_factory=dict)  # settings for step_size="auto", or how it is refused


ADAM = {"bias_factor": 2.0, "betas": (0.8, 0.95), "eps_root": 1e-3}
ADAMAX = {"bias_factor": 2.0, "betas": (0.8, 0.95), "eps": 1e-3}
FREEZING = {"invariant": True, "adapt_steps": 5}
INVARIANT_SHARE = 0.5 * (1 + 2.0 * (1 - 0.8) ** 2 / 2)  # half of two steps' noise, and that of the velocity, a (1 - beta)^2 / 2
RIEMANNIAN = partial(
    oracle.sgrhmc,
    inverse=lambda t: 1 / (1 + t**2),
    root=lambda t: (1 + t**2) ** -0.5,
    root_slope=lambda t: -t * (1 + t**2) ** -1.5,
)

TABLE = {
    "sgld": Entry(
        {},
        (),
        oracle.sgld,
        langevin_covariance,
        tuple({"eps": 0.05, "tau": tau, "s": s} for tau in (1.0, 0.3) for s in (0.0, 1.0)),
        lv.optim.SGLD,
    ),
    "psgld": Entry(
        {"beta": 0.8, "eps": 1e-2},
        ("metric_average",),
        oracle.psgld,
        optimizer=lv.optim.PSGLD,
        auto={"beta": 0.999},  # with .99 V follows the gradient: `preconditioners.RMS` says how far off
    ),
    "psgld, of the mean loss": Entry({"beta": 0.8, "eps": 1e-2, "num_data": 50}, ("metric_average",), oracle.psgld, auto=None),
    "sgrld": Entry(
        {"metric": lambda theta: torch.diag(1 + theta**2)},
        (),
        partial(
            oracle.sgrld,
            inverse=lambda t: 1 / (1 + t**2),
            inverse_slope=lambda t: -2 * t / (1 + t**2) ** 2,
            root=lambda t: (1 + t**2) ** -0.5,
        ),
        auto={"metric": lambda theta: torch.eye(2, dtype=torch.float64), "correction": False},
    ),
    "sglrw": Entry({}, (), oracle.sglrw, optimizer=lv.optim.SGLRW),
    "sghmc": Entry(
        {"beta": 0.8},
        ("velocity",),
        oracle.sghmc,
        hamiltonian_covariance,
        ({"eps": 0.01, "beta": 0.9}, {"eps": 0.02, "beta": 0.9, "s": 1.0}, {"eps": 0.05, "beta": 0.0, "s": 1.0}),
        lv.optim.SGHMC,
        noise_share=1 - 0.8,
    ),
    "sgnht": Entry({"beta": 0.8, "thermal_mass": 40.0}, ("velocity", "friction"), oracle.sgnht, noise_share=1 - 0.8),
    "sgnht, elementwise": Entry(
        {"beta": 0.8, "thermal_mass": 40.0, "elementwise": True},
        ("velocity", "friction"),
        oracle.sgnht,
        optimizer=lv.optim.SGNHT,
        noise_share=1 - 0.8,
        auto={"elementwise": True},
    ),
    "adaptive_sghmc": Entry(
        {"beta": 0.8, "eps_root": 1e-3, "adapt_steps": 5},
        ("velocity", "window", "average", "square_average"),
        oracle.adaptive_sghmc,
        optimizer=lv.optim.AdaptiveSGHMC,
        noise_share=1 - 0.8,
        auto=None,
    ),
    "adaptive_sghmc, invariant": Entry(
        {"beta": 0.8, "eps_root": 1e-3, "adapt_steps": 5, "invariant": True},
        ("velocity", "window", "average", "square_average"),
        oracle.adaptive_sghmc_invariant,
        optimizer=lv.optim.AdaptiveSGHMC,
        noise_share=(1 - 0.8) / 4,
        auto={"invariant": True},
    ),
    "amagold": Entry(
        {"beta": 0.8, "length": 3},
        ("velocity", "start", "start_energy", "work", "place"),
        oracle.amagold,
        noise_share=1 / (1 + 0.8),
        auto="elementwise",
    ),
    "sgrhmc": Entry(
        {"metric": lambda theta: torch.diag(1 + theta**2), "beta": 0.8},
        ("velocity",),
        RIEMANNIAN,
        noise_share=1 - 0.8,
        auto="elementwise",
    ),
    "sgrhmc, even": Entry(
        {"metric": lambda theta: torch.diag(1 + theta**2), "beta": 0.8, "friction": "even"},
        ("velocity",),
        RIEMANNIAN,
        noise_share=1 - 0.8,
        auto={"metric": lambda theta: torch.eye(2, dtype=torch.float64), "correction": False, "friction": "even"},
    ),
    "msgld": Entry(
        {"bias_factor": 2.0, "beta": 0.8},
        ("average",),
        oracle.msgld,
        momentum_covariance,
        (
            {"bias_factor": 1.0, "beta": 0.9, "eps": 0.05, "s": 1.0},
            {"bias_factor": 10.0, "beta": 0.9, "eps": 0.01},
            {"bias_factor": 0.01, "beta": 0.9, "eps": 0.1, "s": 1.0},
            {"bias_factor": 3.0, "beta": 0.5, "eps": 0.02, "s": 2.0},
        ),
        lv.optim.MSGLD,
    ),
    "msgld, invariant": Entry(
        {"bias_factor": 2.0, "beta": 0.8, "invariant": True},
        ("velocity", "passing_velocity"),
        oracle.msgld_invariant,
        invariant_covariance,
        (
            {"bias_factor": 1.0, "beta": 0.9, "eps": 0.05, "s": 1.0},
            {"bias_factor": 10.0, "beta": 0.9, "eps": 0.01},
            {"bias_factor": 0.05, "beta": 0.9, "eps": 0.02, "s": 1.0, "tau": 0.3},
            {"bias_factor": 3.0, "beta": 0.5, "eps": 0.02, "s": 2.0},
        ),
        lv.optim.MSGLD,
        INVARIANT_SHARE,
        {"invariant": True},
    ),
    "asgld": Entry(ADAM, ("average", "square_average"), oracle.asgld, optimizer=lv.optim.ASGLD),
    "asgld, invariant": Entry(
        {**ADAM, **FREEZING},
        ("velocity", "passing_velocity", "square_average"),
        oracle.asgld_invariant,
        optimizer=lv.optim.ASGLD,
        noise_share=INVARIANT_SHARE,
        auto={"invariant": True},
    ),
    "asgld_full": Entry(ADAM, ("average", "square_average"), oracle.asgld_full, auto="elementwise"),
    "asgld_full, invariant": Entry(
        {**ADAM, **FREEZING},
        ("velocity", "passing_velocity", "square_average"),
        oracle.asgld_full_invariant,
        noise_share=INVARIANT_SHARE,
        auto="elementwise",
    ),
    "adamax_sgld": Entry(ADAMAX, ("average", "largest"), oracle.adamax, optimizer=lv.optim.AdaMaxSGLD),
    "adamax_sgld, invariant": Entry(
        {**ADAMAX, **FREEZING},
        ("velocity", "passing_velocity", "largest"),
        oracle.adamax_invariant,
        optimizer=lv.optim.AdaMaxSGLD,
        noise_share=INVARIANT_SHARE,
        auto={"invariant": True},
    ),
    "adadelta_sgld": Entry(
        {"bias_factor": 2.0, "beta": 0.8, "eps_root": 1e-3},
        ("bias", "square_average", "bias_square"),
        oracle.adadelta,
        optimizer=lv.optim.AdadeltaSGLD,
        auto="linear but for averages of squares",
    ),
}


def build(name, step_size=0.01, **changes):
    """Make the kernel of an entry."""
    return lv.SAMPLERS[name.partition(", ")[0]](step_size, **{**TABLE[name].settings, **changes})


def letters(settings):
    """Return settings by the letters of the paper, as oracles and laws take them; functions and forms have none."""
    words = {"bias_factor": "a", "eps": "lam", "eps_root": "lam"}
    named = {words.get(key, key): value for key, value in settings.items() if key not in ("betas", "invariant", "metric")}
    return {**named, **dict(zip(("beta_1", "beta_2"), settings.get("betas", ()), strict=False))}


def gaps(samplers, table):
    """Return what the table lacks: samplers without an entry, entries without a sampler, an oracle or a law."""
    listed = {name.partition(", ")[0] for name in table}
    untested = {name for name, entry in table.items() if entry.oracle is None and entry.law is None}
    return (set(samplers) ^ listed) | untested
