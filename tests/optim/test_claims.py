"""What `describe()` claims of an optimizer holds under adaptation and minibatches, or carries its condition."""

from __future__ import annotations

import pytest
import torch
from catalogue import OPTIMIZERS, build
from torch import nn

import langevin as lv


def law_of(name, **changes):
    text = build(name, [nn.Parameter(torch.zeros(3))], **changes).description
    return " ".join(text.partition("  law: ")[2].split())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_claim_says_what_the_noise_of_minibatches_does_to_it(name):
    assert "noise" in law_of(name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_target_is_claimed_without_a_condition_only_where_nothing_follows_the_gradients(name):
    optimizer = build(name, [nn.Parameter(torch.zeros(3))])
    kernel, law = optimizer._kernel(optimizer.param_groups[0]), law_of(name)
    follows = {"metric_average", "square_average", "largest", "bias_square", "window"} & set(kernel.state_names)
    if law.startswith("the target") and follows:
        assert "guaranteed from step" in law


@pytest.mark.parametrize("name", ["ASGLD", "AdaMaxSGLD", "AdadeltaSGLD"])
def test_the_cooling_of_a_published_form_names_no_scale_of_another_sampler(name):
    """AdaMax divides by u + λ, Adadelta by sqrt(V + λ) / sqrt(D + λ)."""
    law = law_of(name)
    assert "colder than the target" in law
    assert "sqrt(V + λ)" not in law
    assert "the gradient's own noise adds" in law


def test_a_thermostat_for_each_element_claims_no_covariances():
    assert "independent between elements" in law_of("SGNHT, elementwise")


def test_adapted_sghmc_is_hotter_than_the_target_where_it_says_so():
    """``(ε N)^2 > 2 τ ε (1 - β) G``: no noise is injected, and that of the gradient alone heats ten times too much."""
    assert "hotter than the target where (ε N)^2 > 2 τ ε (1 - β) G" in law_of("AdaptiveSGHMC")
    parameter = nn.Parameter(torch.zeros(2000))
    optimizer = lv.optim.AdaptiveSGHMC([parameter], lr=0.1, num_data=1, beta=0.95, adapt_steps=200)
    total, steps = 0.0, 1200
    for step in range(steps):
        noise = lv.random.normal(3, lv.random.stream(lv.random.Purpose.DATA), step, 2000)
        parameter.grad = parameter.detach() + 10 * noise
        optimizer.step()
        if step >= 600:
            total += float(parameter.detach().square().mean()) / 600
    assert total > 5  # of a target of variance one
