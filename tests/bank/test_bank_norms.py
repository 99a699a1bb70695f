"""BatchNorm statistics of draws, from batches of any kind."""

import pytest
import torch
from bank_models import filled, randn, seeded, small
from torch import nn

from langevin.nn.bank import SampleBank


class Pair(nn.Module):
    """A model of two inputs, by position or by name."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, a, b):
        return self.norm(self.layer(a) - 2 * b)


A, B = randn(10, 3), randn(11, 2)[:10]


@pytest.mark.parametrize("kind", ["dict", "pair", "labelled"])
def test_update_bn_takes_dict_batches_and_several_inputs(tmp_path, kind):
    bank, expected = SampleBank(tmp_path), seeded(Pair)
    bank.add(expected)
    loader = {
        "dict": [{"a": A, "b": B}, {"a": A[:4], "b": B[:4]}],
        "pair": [((A, B), 1), ((A[:4], B[:4]), 1)],
        "labelled": [({"a": A, "b": B}, 0), ({"a": A[:4], "b": B[:4]}, 0)],
    }[kind]
    assert bank.update_bn(seeded(Pair, 5), loader) == 1
    expected.norm.momentum = None
    expected.norm.reset_running_stats()
    with torch.no_grad():
        expected(A, B), expected(A[:4], B[:4])
    found = bank.state_dict(0)
    torch.testing.assert_close(found["norm.running_mean"], expected.norm.running_mean)
    torch.testing.assert_close(found["norm.running_var"], expected.norm.running_var)


def test_update_bn_refuses_statistics_that_are_not_finite(tmp_path):
    bank, models = filled(tmp_path)
    x = A.clone()
    x[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"update_bn\(loader=\.\.\.\) needs inputs with finite statistics"):
        bank.update_bn(small(), [x])
    assert torch.equal(bank.state_dict(0)["1.running_mean"], models[0][1].running_mean)
