"""The correction in the Kronecker eigenbasis of each layer: its law, its formula, its state, and what stays diagonal."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from catalogue import NUM_DATA, data, network
from torch import nn

import langevin as lv
from langevin.optim import kronecker
from langevin.optim.kronecker import blocks_of
from langevin.optim.state import BLOCK_STEPS, ESTIMATES


@pytest.fixture(autouse=True)
def generator_of_torch(global_generator_is_left_alone):
    """Layers are initialized by torch's own generator, which is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


FORMS = {
    "MSGLD": (lv.optim.MSGLD, {"bias_factor": 10.0}),
    "ASGLD": (lv.optim.ASGLD, {"bias_factor": 10.0, "adapt_steps": 50, "eps_root": 1.0}),
    "AdaMaxSGLD": (lv.optim.AdaMaxSGLD, {"bias_factor": 10.0, "adapt_steps": 50, "eps": 3.0}),
}


def build(name, params, **changes):
    kind, settings = FORMS[name]
    return kind(
        params, **{"lr": 0.02, "num_data": NUM_DATA, "invariant": True, "noise": "corrected", "seed": 5, **settings, **changes}
    )


def train(model, optimizer, steps, start=0, observe=False, parts=1):
    x, y = data(next(model.parameters()).dtype, rows=40)
    for step in range(start, start + steps):
        optimizer.zero_grad()
        for part in range(parts):
            rows = (torch.arange(5) * (step % 7 + 1) + step + 3 * part) % 40
            ((model(x[rows]) - y[rows]).square().mean() / parts).backward()
            if observe:
                optimizer.observe()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# ---- the law


def second_moments(name, noise, steps=300, chains=8, rho=10.0, lr=0.05, parts=1):
    """Return E of the squares of θ in a rotated basis, with noise of up to ``rho`` diagonal there; the target is N(0, I)."""
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.linalg.qr(torch.randn(n, n, generator=generator))[0] for n in (6, 5))
    variance = torch.outer(torch.logspace(0, -3, 6), torch.logspace(0, -2, 5)) * 2 * rho / (11 * lr)
    layers = [nn.Linear(4, 6) for _ in range(chains)]
    for layer in layers:
        nn.init.normal_(layer.weight, generator=generator)
        nn.init.normal_(layer.bias, generator=generator)
    optimizer = build(name, [{"params": list(layer.parameters())} for layer in layers], lr=lr, num_data=1, noise=noise)
    total = torch.zeros(6, 5)
    for step in range(steps):
        theta = torch.stack([torch.cat([layer.weight, layer.bias[:, None]], 1) for layer in layers]).detach()
        optimizer.zero_grad()
        for _ in range(parts):
            white = torch.randn(chains, 6, 5, generator=generator) * variance.sqrt() * parts**0.5
            for layer, gradient in zip(layers, (theta + left @ white @ right.mT) / parts, strict=True):
                weight, bias = gradient[:, :4], gradient[:, 4]
                layer.weight.grad = weight.clone() if layer.weight.grad is None else layer.weight.grad + weight
                layer.bias.grad = bias.clone() if layer.bias.grad is None else layer.bias.grad + bias
            if parts > 1:
                optimizer.observe()
        optimizer.step()
        if step >= steps // 3:
            total += (left.mT @ theta @ right).square().mean(0) / (steps - steps // 3)
    return total


@pytest.mark.parametrize("name", ["MSGLD", "ASGLD"])
def test_noise_that_is_diagonal_in_a_kronecker_basis_is_corrected_there(name):
    """Uncorrected 8.4 and 4.9 times too large along the noisiest direction, by elements 3.4 and 2.7 times."""
    found = second_moments(name, "corrected")
    assert float((found - 1).square().mean()) ** 0.5 < 0.25
    assert abs(float(found[0, 0]) - 1) < 0.7


def test_by_elements_the_same_noise_is_not_corrected():
    found = second_moments("MSGLD", "corrected-diagonal")
    assert float(found[0, 0]) > 2


def test_micro_batches_give_the_same_law():
    found = second_moments("MSGLD", "corrected", steps=200, parts=3)
    assert float((found - 1).square().mean()) ** 0.5 < 0.3


# ---- the formula


def test_the_friction_is_that_of_the_dense_formula():
    """``D = W^-1 Σ' (2 τ I + ε (Σ' - τ K') / 2)^-1 W^-1``, written with the covariance as one matrix."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 4).double()
    optimizer = build("ASGLD", layer.parameters(), prior=lv.priors.gaussian(std=2.0), adapt_steps=3)
    x = torch.randn(60, 3, dtype=torch.float64)
    for step in range(60):  # the last refresh was in step 32
        layer.zero_grad()
        layer(x[step : step + 2]).square().mean().backward()
        if step == 59:
            own = {
                key: value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in optimizer.state[layer.weight].items()
            }
            bias = {key: value.clone() for key, value in optimizer.state[layer.bias].items() if isinstance(value, torch.Tensor)}
            theta = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().clone()
        optimizer.step()
    states = [own, bias]

    def joined(entry):
        return torch.cat([states[0][entry], states[1][entry][:, None]], 1)

    gradient = NUM_DATA * torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1) + theta / 4
    epsilon, factor, beta = 0.02 / NUM_DATA, 10.0, 0.9
    scale = (joined("square_average") + 1.0) ** -0.5
    stride = (2 * factor * epsilon * (1 - beta) / (1 + beta)) ** 0.5
    size = stride**2 * scale + 2 * epsilon
    speed = stride * scale.sqrt() * joined("velocity") + (2 * epsilon) ** 0.5 * joined("passing_velocity") - size * gradient / 2
    _, signal, _ = kronecker._NOISE.read(
        (own["block_variance"], own["block_square"], None), 59.0, torch.tensor(2 / epsilon, dtype=torch.float64)
    )
    basis = torch.kron(own["left_basis"], own["right_basis"])
    sigma = basis @ own["block_variance"].flatten().diag() @ basis.mT
    curvature = basis @ signal.flatten().diag() @ basis.mT
    inverse = (size / epsilon).flatten() ** -0.5
    dense = sigma @ torch.linalg.inv(2 * torch.eye(16, dtype=torch.float64) + epsilon * (sigma - curvature) / 2)
    expected = inverse * (dense @ (inverse * speed.flatten()))
    found = torch.cat([optimizer.state[layer.weight]["friction"], optimizer.state[layer.bias]["friction"][:, None]], 1)
    torch.testing.assert_close(found.flatten(), expected)
    assert float(found.abs().min()) > 0


def test_a_refresh_turns_all_estimates_and_changes_no_covariance_of_its_own_basis():
    torch.manual_seed(1)
    own = {name: torch.randn(4, 3) for name in ESTIMATES[:4]}
    gradients = torch.randn(500, 4, 3) * torch.tensor([3.0, 1.0, 0.3])
    basis = torch.linalg.qr(torch.randn(4, 4))[0], torch.linalg.qr(torch.randn(3, 3))[0]
    factors = (gradients @ gradients.mT).mean(0), (gradients.mT @ gradients).mean(0)
    for side, start, factor in zip(("left", "right"), basis, factors, strict=True):
        own |= {f"{side}_basis": start, f"{side}_factor": factor}
    before, old = copy.deepcopy(own), basis[0] @ own["block_gradient"] @ basis[1].mT
    kronecker._refresh(own)
    torch.testing.assert_close(own["left_basis"] @ own["block_gradient"] @ own["right_basis"].mT, old)
    for side, k in (("left", 0), ("right", 1)):
        torch.testing.assert_close(
            own[f"{side}_basis"] @ own[f"{side}_factor"] @ own[f"{side}_basis"].mT,
            basis[k] @ factors[k] @ basis[k].mT,
            rtol=1e-4,
            atol=1e-4,
        )
        assert float((own[f"{side}_factor"] - own[f"{side}_factor"].diagonal().diag()).abs().max()) < 1e-6
    turns = basis[0].mT @ own["left_basis"], basis[1].mT @ own["right_basis"]
    # The diagonal of the covariance in the new coordinates, if it was diagonal in the old ones.
    expected = torch.einsum("ia,jb,ij->ab", turns[0].square(), turns[1].square(), before["block_variance"])
    torch.testing.assert_close(own["block_variance"], expected, rtol=1e-4, atol=1e-4)


def test_without_noise_the_path_is_nearly_that_of_the_uncorrected_form():
    """Of exact gradients at short steps nothing is taken for noise: the friction moves θ by little beside the step."""
    x, y = data(rows=40)
    found = []
    for noise in (None, "corrected"):
        model = network()
        optimizer = build("MSGLD", model.parameters(), lr=1e-3, noise=noise)
        start = nn.utils.parameters_to_vector(model.parameters()).detach()
        for _ in range(100):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        found.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert float((found[0] - found[1]).norm() / (found[0] - start).norm()) < 0.02


# ---- blocks


def test_what_is_a_block():
    def blocks(*shapes, noise="corrected"):
        return blocks_of({"noise": noise, "params": [nn.Parameter(torch.zeros(shape)) for shape in shapes]})

    assert blocks((5, 4), (5,), (3, 5), (3,)) == ((0, 1), (2, 3))  # weights with their biases
    assert blocks((5, 4), (4,), (7,)) == ((0,),)  # a vector of another length belongs to none
    assert blocks((6, 3, 2, 2), (6,)) == ((0, 1),)  # a convolution
    assert blocks((800, 784), (800,)) == ()  # both sides too large
    assert blocks((10, 800), (10,)) == ((0, 1),)  # one side is rotated
    assert blocks((0, 4), (1, 1), (3,), ()) == ()
    assert blocks((5, 4), noise="corrected-diagonal") == blocks((5, 4), noise=None) == ()


def test_the_description_says_what_is_corrected_how():
    model = nn.Sequential(nn.Linear(300, 260), nn.LayerNorm(260), nn.Linear(260, 3))
    optimizer = build("MSGLD", model.parameters())
    assert "Kronecker eigenbasis of 1 matrices (783 elements)" in optimizer.description
    assert "diagonal for 4 parameters (78,780 elements: (260, 300), (260,); sides above 256" in optimizer.description
    assert "Kronecker" not in build("MSGLD", model.parameters(), noise="corrected-diagonal", chain=1).description


# ---- state, engines, bad input


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_run_continues_bit_for_bit(name, dtype):
    model = network(dtype)
    optimizer = build(name, model.parameters())
    train(model, optimizer, 20)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    twin = network(dtype)
    twin.load_state_dict(loaded["model"])
    other = build(name, twin.parameters(), noise=None)  # overwritten
    other.load_state_dict(loaded["optimizer"])
    third, copied = copy.deepcopy((model, optimizer))
    expected = train(model, optimizer, 20, start=20)  # with a refresh in step 32
    assert torch.equal(train(twin, other, 20, start=20), expected)
    assert torch.equal(train(third, copied, 20, start=20), expected)
    first = next(model.parameters())
    assert optimizer.state[first][BLOCK_STEPS] == 40
    assert all(optimizer.state[first][name].dtype == torch.float32 for name in ESTIMATES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("left_basis"), "left_basis"),
        (lambda s: s.update(right_factor=torch.zeros(2, 2)), "right_factor.*shape"),
        (lambda s: s.update(block_variance=torch.zeros(1, 1)), "block_variance.*shape"),
        (lambda s: s.update(block_steps=-1), "block_steps"),
    ],
)
def test_a_damaged_state_is_refused(change, message):
    model = network()
    optimizer = build("MSGLD", model.parameters())
    train(model, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    change(saved["state"][0])
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("name", FORMS)
def test_engines_agree(name):
    fused, plain = network(), network()
    one, two = build(name, fused.parameters(), fused=True), build(name, plain.parameters(), fused=False)
    assert torch.equal(train(fused, one, 20), train(plain, two, 20))


def test_groups_frozen_layers_and_batches_of_one():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    model[0].weight.requires_grad_(False)
    optimizer = build("MSGLD", [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}])
    x = torch.randn(60, 4)
    for step in range(20):  # batches of one; the bias goes alone
        optimizer.zero_grad()
        model(x[step : step + 1]).square().mean().backward()
        optimizer.step()
    model[0].weight.requires_grad_(True)
    for step in range(20, 60):
        optimizer.zero_grad()
        model(x[step : step + 1]).square().mean().backward()
        optimizer.step()
    assert optimizer.state[model[0].weight]["block_variance"].shape == (5, 5)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_shared_weights_and_convolutions_are_corrected():
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 4, bias=False), shared, nn.Tanh(), shared)
    optimizer = build("MSGLD", model.parameters())
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(3, 1, 3, 3)).square().mean().backward()
        optimizer.step()
    assert optimizer.state[model[0].weight]["block_variance"].shape == (4, 10)
    assert optimizer.state[shared.weight]["block_variance"].shape == (4, 5)


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = build("MSGLD", embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match="dense gradients"):
        optimizer.step()


def test_gradients_that_are_not_finite_end_in_no_error_of_our_own():
    model = network()
    optimizer = build("MSGLD", model.parameters())
    for _ in range(9):
        for p in model.parameters():
            p.grad = torch.full_like(p, torch.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()


def test_micro_batches_are_the_deviations_of_the_parts():
    model = network()
    optimizer = build("MSGLD", model.parameters())
    train(model, optimizer, 1, observe=True, parts=4)
    weight, bias = list(model.parameters())[:2]
    x, y = data(rows=40)
    twin, parts = network(), []
    for part in range(4):
        rows = (torch.arange(5) + 3 * part) % 40
        grads = torch.autograd.grad((twin(x[rows]) - y[rows]).square().mean() / 4, list(twin.parameters())[:2])
        parts.append(NUM_DATA * torch.cat([grads[0], grads[1][:, None]], 1))
    expected = 4 * torch.stack(parts).var(0) * (2 + 20 * 0.1 / 1.9)  # W^2 = S / ε
    torch.testing.assert_close(optimizer.state[weight]["block_variance"], expected, rtol=1e-3, atol=1e-4)
    assert bias in optimizer.state
    assert not optimizer._noise.totals
