"""Draws of a model with frozen and trained parameters hold the trained ones, and need the same frozen values to be used."""

import json
import os
import warnings

import pytest
import torch
from bank_models import PRELUDE, filled, linear, randn, seeded, small, two_ranks
from torch import nn

import langevin as lv
from langevin.nn.bank import SampleBank


class Adapted(nn.Module):
    """A frozen base, a trained adapter, and BatchNorm whose statistics move."""

    def __init__(self, seed=0):
        super().__init__()
        self.base = seeded(lambda: nn.Linear(30, 30), seed).requires_grad_(False)
        self.norm = nn.BatchNorm1d(30)
        self.adapter = seeded(lambda: nn.Linear(30, 2), 7)

    def forward(self, x):
        return self.adapter(self.norm(self.base(x)))


def moved(model, by):
    with torch.no_grad():
        model.adapter.weight += by
        model.norm.running_mean += by
    return model


@pytest.fixture
def bank(tmp_path):
    bank = SampleBank(tmp_path / "bank")

    def add():
        for step in range(3):
            bank.add(moved(Adapted(), step + 1.0), step=step)

    with pytest.warns(UserWarning, match=r"2 frozen parameters \(such as base\.weight\) are not stored in .*bank") as caught:
        add()
    assert [os.path.basename(entry.filename) for entry in caught] == ["test_bank_frozen.py"]  # once, at the caller's line
    return bank


def test_a_draw_holds_trained_parameters_and_buffers_and_no_frozen_ones(bank):
    names = [name for name in Adapted().state_dict() if not name.startswith("base.")]
    assert list(bank.state_dict(0)) == names
    assert any("running_mean" in name for name in names)
    assert all(draw.bytes < 4 * 30 * 30 for draw in bank.draws)  # the base alone has more


@pytest.mark.filterwarnings("ignore:SampleBank. base.weight")
def test_loading_and_predicting_take_the_frozen_values_of_the_module(bank):
    x, model = randn(5, 30), Adapted(seed=3)
    bank.load(model, 1)
    expected = moved(Adapted(seed=3), 2.0)
    assert all(
        torch.equal(value, expected.state_dict()[name]) for name, value in model.state_dict().items() if "batches" not in name
    )
    outputs = [moved(Adapted(seed=3), step + 1.0).eval()(x) for step in range(3)]
    torch.testing.assert_close(lv.predict(Adapted(seed=3), bank, x, transform=lambda z: z).mean, torch.stack(outputs).mean(0))
    for module, output in zip(bank.models(Adapted(seed=3)), outputs, strict=True):
        torch.testing.assert_close(module(x), output)


def test_another_base_model_is_warned_of_once_and_the_same_one_in_another_dtype_is_not(bank):
    x, text = randn(5, 30), r"base\.weight, base\.bias have other values than when .*bank was written; .*load the same base model"
    for use in (lambda m: bank.load(m, 0), lambda m: lv.predict(m, bank, x, transform=lambda z: z), lambda m: list(bank.models(m))):
        with pytest.warns(UserWarning, match=text) as caught:
            use(Adapted(seed=3))
        assert [os.path.basename(entry.filename) for entry in caught] == ["test_bank_frozen.py"]
    for dtype in (torch.float64, torch.bfloat16):
        bank.load(Adapted().to(dtype), 0)  # warnings are errors here


def test_a_base_that_changes_between_draws_is_refused(bank):
    model = Adapted()
    with torch.no_grad():
        model.base.bias += 1
    with pytest.raises(ValueError, match=r"base\.bias: frozen at the first draw .* but with other values now"):
        bank.add(model)
    assert len(bank) == 3


def test_a_resumed_bank_says_nothing_again_and_stores_the_same_names(bank):
    bank.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with SampleBank(bank.path, resume=True) as again:
            again.add(Adapted())
            again.add(Adapted().requires_grad_(False))  # a model that is frozen for its evaluation
    assert {tuple(again.state_dict(i)) for i in range(5)} == {tuple(bank.state_dict(0))}


def test_update_bn_of_such_a_bank_agrees_with_torch_and_stores_no_frozen_parameter(bank):
    batch = randn(64, 30)
    assert bank.update_bn(Adapted(), [batch]) == 3
    for step in range(3):
        expected = moved(Adapted(), step + 1.0)
        torch.optim.swa_utils.update_bn([batch], expected)
        torch.testing.assert_close(bank.state_dict(step)["norm.running_var"], expected.norm.running_var)
        assert "base.weight" not in bank.state_dict(step)


def test_a_parameter_that_is_trained_later_is_refused_by_name(bank):
    model = Adapted()
    model.base.weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"manifest\.jsonl: base\.weight: frozen at the first draw and therefore not stored"):
        bank.add(model)
    assert len(bank) == 3


def test_a_model_without_the_frozen_parameters_is_refused(bank):
    model = Adapted()
    model.base = nn.Identity()
    with pytest.raises(ValueError, match=r"does not fit Adapted, which lacks the frozen parameters base\.bias, base\.weight"):
        bank.load(model, 0)


@pytest.mark.parametrize("trainable", [True, False])
def test_all_parameters_are_stored_when_all_or_none_are_trained(tmp_path, trainable):
    model, bank = Adapted().requires_grad_(trainable), SampleBank(tmp_path)
    bank.add(model)  # warnings are errors here
    assert list(bank.state_dict(0)) == list(model.state_dict())


def test_a_bank_that_began_with_all_parameters_keeps_all_when_some_are_frozen_later(tmp_path):
    bank, _ = filled(tmp_path, 1)
    model = small(1)
    model[0].requires_grad_(False)
    bank.add(model)
    assert list(bank.state_dict(1)) == list(model.state_dict())


def test_what_is_frozen_may_be_of_a_kind_that_a_bank_cannot_store(tmp_path):
    model = linear(3, 2)
    model.odd = nn.Parameter(torch.ones(2, dtype=torch.complex128), requires_grad=False)
    bank = SampleBank(tmp_path)
    with pytest.warns(UserWarning, match="1 frozen parameters"):
        bank.add(model)
    assert list(bank.state_dict(0)) == ["weight", "bias"]


def test_a_frozen_number_a_transposed_matrix_and_an_empty_tensor_are_compared_too(tmp_path):
    def model(shift):
        made = linear(3, 2)
        made.scalar = nn.Parameter(torch.tensor(1.0 + shift), requires_grad=False)
        made.turned = nn.Parameter(torch.arange(6.0).view(2, 3).t(), requires_grad=False)
        made.empty = nn.Parameter(torch.zeros(0, 2), requires_grad=False)
        return made

    bank = SampleBank(tmp_path)
    with pytest.warns(UserWarning, match="3 frozen parameters"):
        bank.add(model(0.0))
    SampleBank.open(tmp_path).load(model(0.0), 0)
    with pytest.warns(UserWarning, match="scalar has other values"):
        bank.load(model(1.0), 0)


SHARDED = (
    PRELUDE
    + """
import json, warnings
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from langevin.nn.bank import SampleBank

folder, rank = sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 2))
plain = {name: value.clone() for name, value in model.state_dict().items()}
fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):  # the second time the folder has a header
        with SampleBank(folder + "/bank", resume=True) as bank:
            bank.add(model)
found = {"warned": sum("2 frozen parameters (such as 0.weight)" in str(entry.message) for entry in caught)}
with torch.no_grad():
    for value in model.parameters():
        value.to_local().zero_()
bank.load(model, 1)
found["zero"] = model[0].weight.full_tensor().abs().sum().item()
found["loaded"] = torch.equal(model[1].weight.full_tensor(), plain["1.weight"])
found["names"] = list(bank.state_dict(0))
model[0].weight.requires_grad_(True)
try:
    bank.add(model)
except Exception as error:
    found["error"] = str(error)
dist.barrier()
print("FOUND", json.dumps(found))
leave()
"""
)


def test_a_sharded_model_with_a_frozen_base_is_stored_without_it(tmp_path):
    done = two_ranks(SHARDED, tmp_path)
    assert [code for code, _, _ in done] == [0, 0], done
    for rank, found in enumerate(json.loads(output.split("FOUND")[1]) for _, output, _ in done):
        assert found["names"] == ["1.weight", "1.bias"]
        assert (found["warned"], found["zero"], found["loaded"]) == (int(rank == 0), 0.0, True)
        assert "0.weight: frozen at the first draw and therefore not stored, but trained now" in found["error"]


def test_names_of_frozen_parameters_have_no_wrappers_and_a_tied_one_is_left_out_under_all_its_names(tmp_path):
    inner = nn.Sequential(linear(3, 3).requires_grad_(False), linear(3, 3), linear(3, 3))
    inner[2].bias = None
    inner[2].weight = inner[0].weight
    bank = SampleBank(tmp_path)
    with pytest.warns(UserWarning, match=r"3 frozen parameters \(such as 0\.weight\)"):
        bank.add(nn.DataParallel(inner))
    assert list(bank.state_dict(0)) == ["1.weight", "1.bias"]
    header = json.loads((tmp_path / "manifest.jsonl").read_text().splitlines()[0])
    assert list(header["frozen"]) == ["0.weight", "0.bias", "2.weight"]
    bank.load(inner, 0)
