"""`transform` is applied to whatever the model returns, one draw at a time; only its result is checked."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from predict_models import bank_of, randn, seeded, stacked
from torch import nn

import langevin as lv

X = randn(10, 3)


class ModelOutput(OrderedDict):
    """Entries that are attributes too, as in Hugging Face's class of that name."""

    def __init__(self, **entries):
        super().__init__(entries)
        for name, value in entries.items():
            setattr(self, name, value)


@dataclass
class Record:
    logits: torch.Tensor


KINDS = {
    "ModelOutput": (lambda z: ModelOutput(loss=None, logits=z), lambda out: out.logits),
    "dict": (lambda z: {"logits": z}, lambda out: out["logits"]),
    "tuple": (lambda z: (z, "state"), lambda out: out[0]),
    "dataclass": (Record, lambda out: out.logits),
}


class Wrapped(nn.Module):
    """A linear layer whose outputs are put into an object."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.put = nn.Linear(3, 2), KINDS[kind][0]

    def forward(self, x):
        return self.put(self.layer(x))


def some(kind, count=3):
    return [seeded(lambda: Wrapped(kind), seed) for seed in range(count)]


def positions_of(models):
    return torch.stack([nn.utils.parameters_to_vector(model.parameters()).detach() for model in models])


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_that_are_no_tensor_reach_the_transform_for_draws_of_every_kind(tmp_path, kind):
    models, take = some(kind), KINDS[kind][1]
    expected = stacked([model.layer for model in models], X).softmax(-1)
    for model, draws in ((None, models), (models[0], bank_of(tmp_path, models)), (models[0], positions_of(models))):
        found = lv.predict(model, draws, X, transform=lambda out: take(out).softmax(-1), batch_size=4, per_draw=True)
        torch.testing.assert_close(found.mean, expected.mean(0))
        torch.testing.assert_close(found.draws_mean, expected)


def test_function_diagnostics_apply_the_transform_too():
    models = some("ModelOutput", 8)
    found = lv.function_diagnostics(None, models, X, transform=lambda out: out.logits)
    torch.testing.assert_close(found.values[0].float(), stacked([model.layer for model in models], X).flatten(1))


def test_a_transform_sees_one_draw_at_a_time():
    models = some("dict", 20)
    sizes = []

    def centred(out):
        sizes.append(len(out["logits"]))
        return out["logits"] - out["logits"].mean(0)

    found = lv.predict(models[0], positions_of(models), X, transform=centred, per_draw=True)
    outputs = stacked([model.layer for model in models], X)
    assert set(sizes) == {10}
    torch.testing.assert_close(found.draws_mean, outputs - outputs.mean(1, keepdim=True))


def test_a_transform_may_look_at_values_of_positions_too():
    models = some("tuple", 20)
    found = lv.predict(models[0], positions_of(models), X, transform=lambda out: out[0] if out[0].sum() > 0 else -out[0])
    outputs = stacked([model.layer for model in models], X)
    signs = outputs.sum((1, 2), keepdim=True).sign()
    torch.testing.assert_close(found.mean, (signs * outputs).mean(0))


@pytest.mark.parametrize("kind", ["ModelOutput", "dict", "dataclass"])
def test_logits_are_the_outputs_by_default_for_draws_of_every_kind(tmp_path, kind):
    models = some(kind)
    expected = lv.predict(None, [model.layer for model in models], X, likelihood="categorical")
    for model, draws in ((None, models), (models[0], bank_of(tmp_path, models)), (models[0], positions_of(models))):
        found = lv.predict(model, draws, X, likelihood="categorical")
        torch.testing.assert_close(found.probabilities, expected.probabilities)


def test_outputs_without_logits_lead_to_a_transform():
    with pytest.raises(TypeError, match=r"predict\(model=\.\.\.\) needs a tensor of outputs.*logits.*transform=.*got 'tuple'"):
        lv.predict(None, some("tuple"), X, likelihood="categorical")
    models = some("ModelOutput")
    for model in models:
        model.put = lambda z: ModelOutput(last_hidden_state=z, pooled=z)
    with pytest.raises(TypeError, match=r"out\.pooled, got 'ModelOutput of last_hidden_state, pooled'"):
        lv.predict(None, models, X, likelihood="categorical")


def test_a_transform_that_returns_no_rows_is_rejected_by_name():
    models = some("dict")
    with pytest.raises(TypeError, match=r"predict\(transform=\.\.\.\) needs .*tensor, got <class 'dict'>"):
        lv.predict(None, models, X, transform=lambda out: out)
    for draws in (models, positions_of(models)):
        with pytest.raises(ValueError, match=r"predict\(transform=\.\.\.\) needs a row per row"):
            lv.predict(models[0] if draws is not models else None, draws, X, transform=lambda out: out["logits"].mean())
        with pytest.raises(ValueError, match=r"predict\(transform=\.\.\.\) needs a row per row .*\(2, 10\)"):
            lv.predict(models[0] if draws is not models else None, draws, X, transform=lambda out: out["logits"].T)
