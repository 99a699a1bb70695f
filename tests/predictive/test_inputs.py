"""What the inputs of `predict` may be: tensors, tuples, dicts and loaders, in any batches."""

import pytest
import torch
from predict_models import Pair, bank_of, randn, seeded, small, stacked
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import langevin as lv

A, B = randn(10, 3), randn(10, 2)
SMALL, PAIRS = [small(seed) for seed in range(3)], [seeded(Pair, seed) for seed in range(3)]


def average(model, draws, x, **options):
    return lv.predict(model, draws, x, **{"transform": lambda output: output, **options}).mean


@pytest.mark.parametrize("batch_size", [None, 1, 3, 5, 10, 99])
def test_a_tensor_a_tuple_a_list_and_a_dict_give_the_mean_over_draws_in_any_batches(tmp_path, batch_size):
    bank, model = bank_of(tmp_path / "pairs", PAIRS), seeded(Pair)
    expected = stacked(PAIRS, A, B).mean(0)
    for x in ((A, B), [A, B], {"b": B, "a": A}):
        torch.testing.assert_close(average(model, bank, x, batch_size=batch_size), expected)
    torch.testing.assert_close(average(model, bank, {"a": A, "b": B, "scale": 3.0}, batch_size=batch_size), 3 * expected)
    single = bank_of(tmp_path / "single", SMALL)
    torch.testing.assert_close(average(small(), single, A, batch_size=batch_size), stacked(SMALL, A).mean(0))
    found = lv.predict(small(), single, A, likelihood="categorical", batch_size=batch_size)
    torch.testing.assert_close(found.probabilities, stacked(SMALL, A).softmax(-1).mean(0))


@pytest.mark.parametrize("x", [(A, B), {"a": A, "b": B}])
def test_positions_of_a_module_take_tuples_and_dicts_too(x):
    space = lv.Posterior(PAIRS[0].eval(), "categorical", prior=lv.priors.gaussian(std=1.0), num_data=10).space
    positions = torch.stack([space.flatten(module) for module in PAIRS])
    torch.testing.assert_close(average(PAIRS[0], positions, x, batch_size=4), stacked(PAIRS, A, B).mean(0))


def test_batches_are_no_larger_than_asked_and_each_draw_is_loaded_once(tmp_path, monkeypatch):
    bank, sizes, loads = bank_of(tmp_path, PAIRS), [], []
    real = lv.SampleBank._read
    monkeypatch.setattr(lv.SampleBank, "_read", lambda self, draw: (loads.append(draw.index), real(self, draw))[1])
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: sizes.append(len(output)) if isinstance(module, Pair) else None
    )
    try:
        average(seeded(Pair), bank, (A, B), batch_size=4, interval=None, per_draw=True)
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
def test_a_loader_gives_what_the_tensor_gives(tmp_path, loader, batch_size):
    bank, y = bank_of(tmp_path, SMALL), torch.arange(10) % 2
    options = {"likelihood": "categorical", "y": y, "per_draw": True}
    found = lv.predict(small(), bank, loader(), batch_size=batch_size, **options)
    expected = lv.predict(small(), bank, A, **options)
    for name in ("probabilities", "aleatoric", "epistemic", "log_density", "outputs"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


class Swaps(Again):
    """The same rows and labels, two rows of the last batch swapped the second time."""

    def __iter__(self):
        yield from self.batches
        self.batches = [*self.batches[:-1], self.batches[-1].flip(0)]


class Shrinks(Again):
    def __iter__(self):
        yield from self.batches
        self.batches = self.batches[:-1]


UNSTABLE = {
    "shuffled": lambda: DataLoader(TensorDataset(A), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "swaps": lambda: Swaps(A.split(4)),
    "shrinks": lambda: Shrinks(A.split(3)),
}


@pytest.mark.parametrize("make", UNSTABLE.values(), ids=UNSTABLE)
def test_a_loader_that_gives_other_batches_the_next_time_is_refused(tmp_path, make):
    with pytest.raises(ValueError, match=r"predict\(x=\.\.\.\) needs the same batches in the same order each time .*shuffle"):
        average(small(), bank_of(tmp_path, SMALL), make())


def test_a_loader_that_shuffles_is_refused_for_one_draw_too():
    with pytest.raises(ValueError, match="needs the same batches in the same order"):
        average(None, SMALL[:1], UNSTABLE["shuffled"]())


GAUSSIAN = {"transform": None, "likelihood": lv.likelihoods.gaussian(std=1.0)}


@pytest.mark.parametrize(
    ("x", "options", "error", "match"),
    [
        (A, {"batch_size": 0}, ValueError, r"predict\(batch_size=\.\.\.\) needs an int >= 1, got 0"),
        (A, {"batch_size": 1.5}, TypeError, "batch_size"),
        (iter([A]), {}, TypeError, r"predict\(x=\.\.\.\) needs to be read once per draw, no iterator"),
        ([], {}, ValueError, r"predict\(x=\.\.\.\) needs at least one batch"),
        (Again([]), {}, ValueError, r"predict\(x=\.\.\.\) needs at least one batch"),
        (A[:0], {}, ValueError, r"predict\(x=\.\.\.\) needs at least one row"),
        (3, {}, TypeError, r"predict\(x=\.\.\.\) needs a tensor, a tuple or dict .* loader of them, got 3"),
        (Again([3]), {}, TypeError, r"predict\(x=\.\.\.\) needs a tensor, .*got <class 'int'>"),
        (A.numpy(), {}, TypeError, r"predict\(x=\.\.\.\) needs a tensor, .*ndarray"),
        (A.to_sparse(), {"batch_size": 2}, TypeError, r"predict\(x=\.\.\.\) needs dense tensors, or batch_size=None"),
        ((A, B[:4]), {"batch_size": 2}, ValueError, r"predict\(x=\.\.\.\) needs tensors with as many rows each, got \[10, 4\]"),
        (A, {"batch_size": 3, "transform": lambda z: z.mean()}, ValueError, r"predict\(transform=\.\.\.\) needs a row per row"),
        (A, {"batch_size": 3, "transform": lambda z: z.T}, ValueError, r"predict\(transform=\.\.\.\) needs a row per row"),
        (A, {"batch_size": 4, "transform": lambda z: z[:, : len(z) - 1]}, ValueError, r"predict\(model=.*rows of one shape"),
        (A, {"transform": lambda z: [z]}, TypeError, r"predict\(transform=\.\.\.\) needs .*a tensor, got <class 'list'>"),
        (A, {"likelihood": "categorical"}, ValueError, r"predict\(transform=\.\.\.\) needs likelihood=None"),
        (
            A,
            {**GAUSSIAN, "y": torch.zeros(9, 2)},
            ValueError,
            r"predict\(y=\.\.\.\) needs a target for each row of x, at least 10, got '9",
        ),
        (A, {"y": torch.zeros(11)}, ValueError, r"predict\(y=\.\.\.\) needs a likelihood"),
        (A, {**GAUSSIAN, "y": [0] * 10}, TypeError, r"predict\(y=\.\.\.\) needs a tensor of targets"),
    ],
)
def test_inputs_that_cannot_be_averaged_are_refused(tmp_path, x, options, error, match):
    with pytest.raises(error, match=match):
        average(small(), bank_of(tmp_path, SMALL), x, **options)


class Linked:
    """An object among the inputs that refers to itself, as graphs and caches may."""

    def __init__(self):
        self.rows, self.owner = torch.arange(10.0), [self]


class WithObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x, linked, nested):
        assert len(linked.rows) == len(nested["part"][0]) == len(x)
        assert isinstance(linked.owner[0], Linked)
        return self.layer(x) + nested["part"][0][:, None] + linked.rows[:, None]


def test_tensors_in_nested_inputs_and_in_objects_are_cut_into_batches_too():
    linked, nested = Linked(), {"part": (torch.arange(10.0),)}
    models, inputs = [seeded(WithObject, seed) for seed in range(2)], (A, linked, nested)
    found, whole = (lv.predict(None, models, inputs, **GAUSSIAN, batch_size=size).mean for size in (4, None))
    torch.testing.assert_close(found, whole)
    assert linked.owner == [linked]
    assert len(linked.rows) == 10
