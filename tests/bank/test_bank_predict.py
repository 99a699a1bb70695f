"""Averages over draws: in batches, over loaders, and what the inputs of a model may be."""

import pytest
import torch
from bank_models import filled, randn, seeded, small
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from langevin.store.bank import SampleBank


class Pair(nn.Module):
    """A model of two inputs, by position or by name."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.seen = []

    def forward(self, a, b, *, scale=1.0):
        self.seen.append(len(a))
        return scale * self.norm(self.layer(a) - 2 * b)


def pairs(path, count=3):
    bank = SampleBank(path)
    for seed in range(count):
        bank.add(seeded(Pair, seed))
    return bank


def mean(bank, model, *args, **kwargs):
    with torch.no_grad():
        return torch.stack([module(*args, **kwargs) for module in bank.models(model)]).mean(0)


A, B = randn(10, 3), randn(11, 2)[:10]


@pytest.mark.parametrize("batch_size", [None, 1, 3, 5, 10, 99])
def test_a_tensor_a_tuple_a_list_and_a_dict_give_the_mean_over_draws_in_any_batches(tmp_path, batch_size):
    bank, model = pairs(tmp_path), seeded(Pair)
    expected = mean(bank, model, A, B)
    for x in ((A, B), [A, B], {"b": B, "a": A}):
        torch.testing.assert_close(bank.predict(model, x, batch_size=batch_size), expected)
    torch.testing.assert_close(bank.predict(model, {"a": A, "b": B, "scale": 3.0}, batch_size=batch_size), 3 * expected)
    single, _ = filled(tmp_path / "single")
    torch.testing.assert_close(single.predict(small(), A, batch_size=batch_size), mean(single, small(), A))
    softmax = single.predict(small(), A, transform=lambda z: z.softmax(-1), batch_size=batch_size)
    torch.testing.assert_close(softmax.sum(-1), torch.ones(10))


def test_batches_are_no_larger_than_asked_and_each_draw_is_loaded_once(tmp_path, monkeypatch):
    bank, model, sizes, loads = pairs(tmp_path), seeded(Pair), [], []
    real = SampleBank._read
    monkeypatch.setattr(SampleBank, "_read", lambda self, draw: (loads.append(draw.index), real(self, draw))[1])
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: sizes.append(len(output)) if isinstance(module, Pair) else None
    )
    try:
        bank.predict(model, (A, B), batch_size=4)
    finally:
        hook.remove()
    assert sizes == [4, 4, 2] * 3
    assert loads == [0, 1, 2]


class Again:
    """Batches that can be read again and again, but are no list."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


LOADERS = {
    "loader": lambda: DataLoader(A, batch_size=4, generator=torch.Generator()),
    "loader of pairs": lambda: DataLoader(TensorDataset(A, torch.arange(10)), batch_size=3, generator=torch.Generator()),
    "tensors": lambda: Again(A.split(3)),
    "tuples": lambda: Again([(part, "label") for part in A.split(3)]),
    "list of pairs": lambda: [(part, None) for part in A.split(6)],
    "dicts": lambda: Again([{"input": part} for part in A.split(3)]),
    "list of dicts": lambda: [{"input": part} for part in A.split(3)],
    "dicts and labels": lambda: Again([({"input": part}, 0) for part in A.split(3)]),
    "tuples of inputs and labels": lambda: Again([((part,), 0) for part in A.split(3)]),
    "one batch": lambda: Again([A]),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_loader_gives_the_mean_over_draws_row_by_row(tmp_path, loader, batch_size):
    bank, _ = filled(tmp_path)
    torch.testing.assert_close(bank.predict(small(), loader(), batch_size=batch_size), mean(bank, small(), A))


def test_a_loader_that_shuffles_is_refused(tmp_path):
    bank, _ = filled(tmp_path)
    data = TensorDataset(A)
    shuffled = DataLoader(data, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=r"predict\(x=\.\.\.\) needs the same batches in the same order each time .*shuffle"):
        bank.predict(small(), shuffled)

    class Swaps(Again):
        """The same rows and labels, two rows of the last batch swapped the second time."""

        def __iter__(self):
            yield from self.batches
            self.batches = [*self.batches[:-1], self.batches[-1].flip(0)]

    with pytest.raises(ValueError, match="needs the same batches in the same order"):
        bank.predict(small(), Swaps(A.split(4)))

    class Shrinks(Again):
        def __iter__(self):
            yield from self.batches
            self.batches = self.batches[:-1]

    with pytest.raises(ValueError, match="needs the same batches in the same order"):
        bank.predict(small(), Shrinks(A.split(3)))


@pytest.mark.parametrize(
    ("x", "options", "error", "match"),
    [
        (A, {"batch_size": 0}, ValueError, r"predict\(batch_size=\.\.\.\) needs an int >= 1, got 0"),
        (A, {"batch_size": 1.5}, TypeError, "batch_size"),
        (iter([A]), {}, TypeError, r"predict\(x=\.\.\.\) needs to be read once per draw, no iterator"),
        ([], {}, ValueError, r"predict\(x=\.\.\.\) needs at least one batch"),
        (Again([]), {}, ValueError, r"predict\(x=\.\.\.\) needs at least one batch"),
        (
            3,
            {},
            TypeError,
            r"predict\(x=\.\.\.\) needs a tensor, a tuple or dict .* loader of them, got 3",
        ),
        (Again([3]), {}, TypeError, r"predict\(x=\.\.\.\) needs a tensor, .*got <class 'int'>"),
        (A.numpy(), {}, TypeError, r"predict\(x=\.\.\.\) needs a tensor, .*ndarray"),
        ((A, B[:4]), {"batch_size": 2}, ValueError, r"predict\(x=\.\.\.\) needs tensors with as many rows each, got \[10, 4\]"),
        (A, {"batch_size": 3, "transform": lambda z: z.mean()}, ValueError, r"predict\(transform=\.\.\.\) needs .*a row per row"),
        (A, {"batch_size": 3, "transform": lambda z: z.T}, ValueError, r"predict\(transform=\.\.\.\) needs .*a row per row"),
        (A, {"transform": lambda z: [z]}, TypeError, r"predict\(transform=\.\.\.\) needs .*a tensor, got <class 'list'>"),
    ],
)
def test_inputs_that_cannot_be_averaged_are_refused(tmp_path, x, options, error, match):
    bank, _ = filled(tmp_path)
    with pytest.raises(error, match=match):
        bank.predict(small(), x, **options)


def test_without_batches_any_shape_of_output_is_averaged(tmp_path):
    bank, models = filled(tmp_path)
    total = bank.predict(small(), A, transform=lambda z: z.sum())
    torch.testing.assert_close(total, mean(bank, small(), A).sum())
    assert total.shape == ()
    assert len(models) == 3


@pytest.mark.parametrize("kind", ["dict", "pair", "labelled"])
def test_update_bn_takes_dict_batches_and_several_inputs(tmp_path, kind):
    bank, expected = pairs(tmp_path, 1), seeded(Pair)
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
