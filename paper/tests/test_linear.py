import pytest
import torch
from langevin_paper.linear import OneDNNLinear, _is_supported
from torch import nn


def pair(bias: bool, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, OneDNNLinear]:
    torch.manual_seed(3)
    plain, ours = nn.Linear(7, 5, bias=bias, dtype=dtype), OneDNNLinear(7, 5, bias=bias, dtype=dtype)
    ours.load_state_dict(plain.state_dict())
    return plain, ours


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 7), (1, 7), (2, 4, 7)])
def test_values_and_gradients_are_those_of_torchs_layer(bias: bool, shape: tuple[int, ...]) -> None:
    found = []
    for layer in pair(bias):
        x = torch.linspace(-1, 1, 7 * torch.Size(shape[:-1]).numel()).view(shape).requires_grad_()
        y = layer(x)
        (y.tanh() ** 2).sum().backward()
        found.append([y.detach(), x.grad, *(p.grad for p in layer.parameters())])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_a_double_is_left_to_torch() -> None:
    plain, ours = pair(True, torch.float64)
    x = torch.ones(2, 7, dtype=torch.float64)
    assert not _is_supported(x, ours.weight)
    assert torch.equal(ours(x), plain(x))


def test_a_first_layer_asks_for_no_gradient_of_the_data() -> None:
    _, ours = pair(True)
    x = torch.ones(2, 7)
    ours(x).sum().backward()
    assert x.grad is None
    assert ours.weight.grad is not None
    assert ours.weight.grad.is_contiguous()
