"""Targets of the Inference Gym (Sountsov, Radul and contributors 2020), written as a user would write them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Cauchy,
    HalfCauchy,
    LogNormal,
    MultivariateNormal,
    Normal,
    Poisson,
)

from langevin.targets import Model
from langevin.targets.constraints import interval, positive, real
from langevin_paper.check.posteriors.base import Data, KnownPosterior, Parameters, column

__all__ = ["GYM"]

_STUDENTS, _QUESTIONS = 400, 100
_LONGEST = 200  # of a process that is written by its factor


def _observed(data: Data) -> tuple[Tensor, Tensor]:
    """Return the times of the observations and their values."""
    there = [index for index, value in enumerate(data["y"]) if value is not None]
    return torch.tensor(there), torch.tensor([data["y"][index] for index in there], dtype=torch.float64)


def _walk(locs: Tensor, scale: Tensor | float) -> Tensor:
    """Return the log density of a random walk that starts at 0."""
    before = torch.cat([torch.zeros_like(locs[:1]), locs[:-1]])
    return Normal(before, scale).log_prob(locs).sum()


def brownian_motion(data: Data) -> KnownPosterior:
    """A random walk of 30 steps, observed with noise except in the middle; both scales known."""
    (times, y), (innovation, observation) = _observed(data), data["scales"]
    return KnownPosterior(
        Model.log_density(
            lambda p: Normal(p["locs"][times], observation).log_prob(y).sum(),
            parameters={"locs": real(len(data["y"]))},
            prior={"locs": lambda p: _walk(p["locs"], innovation)},
        )
    )


def brownian_motion_unknown_scales(data: Data) -> KnownPosterior:
    """The same with unknown scales: their posterior is skewed, and narrow walks make a funnel.

    The walk is written as a multivariate normal with a factor, which the default call reparameterises.
    """
    times, y = _observed(data)
    sums = torch.ones(len(data["y"]), len(data["y"]), dtype=torch.float64).tril()
    return KnownPosterior(
        Model.log_density(
            lambda p: Normal(p["locs"][times], p["observation_noise_scale"]).log_prob(y).sum(),
            parameters={"innovation_noise_scale": positive(), "observation_noise_scale": positive(), "locs": real(len(data["y"]))},
            prior={
                "innovation_noise_scale": LogNormal(0.0, 2.0),
                "observation_noise_scale": LogNormal(0.0, 2.0),
                "locs": lambda p: MultivariateNormal(sums.new_zeros(len(sums)), scale_tril=p["innovation_noise_scale"] * sums),
            },
        )
    )


def _lorenz(path: Tensor, step: float, scale: Tensor | float) -> Tensor:
    """Return the log density of a Lorenz system (time, 3) with noise, by steps of Euler and Maruyama."""
    x, y, z = path[:-1].unbind(-1)
    drift = torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)
    moves = Normal(path[:-1] + step * drift, scale * step**0.5).log_prob(path[1:]).sum()
    return moves + Normal(0.0, 1.0).log_prob(path[0]).sum()


def lorenz_bridge(data: Data) -> KnownPosterior:
    """A Lorenz system whose first coordinate is observed with noise, except in the middle; both scales known."""
    (times, y), (innovation, observation), step = _observed(data), data["scales"], data["step"]
    return KnownPosterior(
        Model.log_density(
            lambda p: Normal(p["latents"][times, 0], observation).log_prob(y).sum(),
            parameters={"latents": real(len(data["y"]), 3)},
            prior={"latents": lambda p: _lorenz(p["latents"], step, innovation)},
        )
    )


def lorenz_bridge_unknown_scales(data: Data) -> KnownPosterior:
    """The same with unknown scales."""
    (times, y), step = _observed(data), data["step"]
    return KnownPosterior(
        Model.log_density(
            lambda p: Normal(p["latents"][times, 0], p["observation_scale"]).log_prob(y).sum(),
            parameters={"innovation_scale": positive(), "observation_scale": positive(), "latents": real(len(data["y"]), 3)},
            prior={
                "innovation_scale": LogNormal(-1.0, 1.0),
                "observation_scale": LogNormal(-1.0, 1.0),
                "latents": lambda p: _lorenz(p["latents"], step, p["innovation_scale"]),
            },
        )
    )


def eight_schools(data: Data) -> KnownPosterior:
    """Effects of coaching in eight schools, centred."""
    y, sigma = column(data, "y"), column(data, "sigma")
    return KnownPosterior(
        Model.log_density(
            lambda p: Normal(p["school_effects"], sigma).log_prob(y).sum(),
            parameters={"avg_effect": real(), "log_stddev": real(), "school_effects": real(len(y))},
            prior={
                "avg_effect": Normal(0.0, 10.0),
                "log_stddev": Normal(5.0, 1.0),
                "school_effects": lambda p: Normal(p["avg_effect"], p["log_stddev"].exp()),
            },
        )
    )


def item_response(data: Data) -> KnownPosterior:
    """400 students answer 100 questions: 501 parameters, 30,012 answers."""
    table = [[".01".index(answer) - 1 for answer in row] for row in data["answers"]]
    answers = torch.tensor(table)
    student, question = torch.nonzero(answers >= 0, as_tuple=True)

    def log_likelihood(p: Parameters, student: Tensor, question: Tensor, correct: Tensor) -> Tensor:
        logits = p["mean_student_ability"] + p["centered_student_ability"][student] - p["question_difficulty"][question]
        return Bernoulli(logits=logits).log_prob(correct)

    return KnownPosterior(
        Model(
            log_likelihood,
            parameters={
                "mean_student_ability": real(),
                "centered_student_ability": real(_STUDENTS),
                "question_difficulty": real(_QUESTIONS),
            },
            prior={
                "mean_student_ability": Normal(0.75, 1.0),
                "centered_student_ability": Normal(0.0, 1.0),
                "question_difficulty": Normal(0.0, 1.0),
            },
        ),
        {"student": student, "question": question, "correct": answers[student, question].double()},
    )


def cox_process(data: Data) -> KnownPosterior:
    """Counts on a 10 x 10 grid whose log intensity is a Gaussian process (Matern 3/2), centred."""
    x, counts, extent = column(data, "x"), column(data, "count"), column(data, "extent")
    mean = (counts.log() - extent.log()).mean().expand(len(x))
    distance = torch.cdist(x, x)

    def process(p: Parameters) -> MultivariateNormal:
        scaled = 3**0.5 * distance / (p["length_scale"] + 0.001)
        kernel = (p["amplitude"] + 0.001).square() * (1 + scaled) * torch.exp(-scaled)
        root = torch.linalg.cholesky(kernel + 1e-6 * torch.eye(len(x), dtype=x.dtype))
        return MultivariateNormal(mean, scale_tril=root)

    return KnownPosterior(
        Model.log_density(
            lambda p: Poisson(extent * p["log_intensity"].exp()).log_prob(counts).sum(),
            parameters={"amplitude": positive(), "length_scale": positive(), "log_intensity": real(len(x))},
            prior={"amplitude": LogNormal(-1.0, 0.5), "length_scale": LogNormal(-1.0, 1.0), "log_intensity": process},
        )
    )


def _path(count: int, p: Parameters) -> MultivariateNormal:
    """Return an autoregressive process of order 1, by its factor: what each shock adds to each later value."""
    lags = (torch.arange(count)[:, None] - torch.arange(count)).double()
    persistence = p["persistence_of_volatility"]
    factor = torch.where(lags >= 0, persistence.abs().log() * lags, -torch.inf).exp() * persistence.sign() ** lags.abs()
    first = (1 - persistence.square()).rsqrt()
    weights = torch.cat([first[None], first.new_ones(count - 1)])
    mean = p["mean_log_volatility"].expand(count)
    return MultivariateNormal(mean, scale_tril=p["white_noise_shock_scale"] * factor * weights)


def volatility(data: Data) -> KnownPosterior:
    """Stochastic volatility of returns: the log volatility is an autoregressive process of order 1.

    A short one is written as a multivariate normal with a factor, which the default call reparameterises; a long one by its
    transitions, centred.
    """
    y = column(data, "y")

    def transitions(p: Parameters) -> Tensor:
        path, mean, scale = p["log_volatility"], p["mean_log_volatility"], p["white_noise_shock_scale"]
        persistence = p["persistence_of_volatility"]
        first = Normal(mean, scale / (1 - persistence.square()).sqrt()).log_prob(path[0])
        return first + Normal(mean + persistence * (path[:-1] - mean), scale).log_prob(path[1:]).sum()

    process = transitions if len(y) > _LONGEST else lambda p: _path(len(y), p)
    return KnownPosterior(
        Model.log_density(
            lambda p: Normal(0.0, (p["log_volatility"] / 2).exp()).log_prob(y).sum(),
            parameters={
                "persistence_of_volatility": interval(-1.0, 1.0),
                "mean_log_volatility": real(),
                "white_noise_shock_scale": positive(),
                "log_volatility": real(len(y)),
            },
            prior={
                "persistence_of_volatility": lambda p: Beta(20.0, 1.5).log_prob((p["persistence_of_volatility"] + 1) / 2),
                "mean_log_volatility": Cauchy(0.0, 5.0),
                "white_noise_shock_scale": HalfCauchy(2.0),
                "log_volatility": process,
            },
        )
    )


GYM = {
    "brownian_motion": brownian_motion,
    "brownian_motion_unknown_scales": brownian_motion_unknown_scales,
    "cox_process": cox_process,
    "eight_schools": eight_schools,
    "item_response": item_response,
    "lorenz_bridge": lorenz_bridge,
    "lorenz_bridge_unknown_scales": lorenz_bridge_unknown_scales,
    "volatility": volatility,
    "volatility_log_small": volatility,
    "volatility_small": volatility,
}
