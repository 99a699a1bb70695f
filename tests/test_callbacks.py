"""Models and training loops of other libraries: peft, transformers, accelerate, Lightning and Fabric, as installed."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import langevin as lv
from langevin.nn.callbacks import lightning_callback, trainer_callback

X = torch.arange(35).view(5, 7) % 30
GAUSSIAN = {"likelihood": lv.likelihoods.gaussian(std=1.0)}
ELSEWHERE = ["ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:The '.*dataloader:UserWarning"]
pytestmark = [pytest.mark.filterwarnings(text) for text in ELSEWHERE]


@pytest.fixture
def own_generator():
    """Other libraries draw from torch's generator; it is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def transformers(own_generator):
    return pytest.importorskip("transformers", reason="needs the extra huggingface")


@pytest.fixture
def lightning(own_generator):
    return pytest.importorskip("lightning.pytorch", reason="needs the extra lightning")


@pytest.fixture
def adapted(transformers):
    """A small classifier of tokens with adapters, built from its configuration."""
    peft = pytest.importorskip("peft", reason="needs the extra huggingface")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=7, num_labels=3, **sizes)
    base = transformers.BertForSequenceClassification(config)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], init_lora_weights=False)
    return peft.get_peft_model(base, settings)


def trained(model):
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def move(model, by):
    with torch.no_grad():
        for value in trained(model).values():
            value.add_(by)


@pytest.fixture
def bank(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="SampleBank: .* frozen parameters")
        yield lv.SampleBank(tmp_path / "bank")


def outputs_of(model):
    with torch.no_grad():
        return model.eval()(input_ids=X).logits


def test_a_draw_of_a_peft_model_has_its_adapters_only_and_loads_back(adapted, bank):
    expected = []
    for by in (0.0, 0.2):
        move(adapted, by)
        bank.add(adapted)
        expected.append(outputs_of(adapted))
    assert bank.state_dict(0).keys() == trained(adapted).keys()
    move(adapted, 1.0)
    for k, output in enumerate(expected):
        bank.load(adapted, k)
        assert torch.equal(outputs_of(adapted), output)
    assert not torch.equal(*expected)


def test_predictions_of_a_peft_model_average_its_logits_also_where_accelerate_has_prepared_it(adapted, bank):
    accelerate = pytest.importorskip("accelerate", reason="needs the extra huggingface")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier Trainer
    model = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(adapted)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    expected = []
    for by in (0.0, 0.2):
        move(model, by)
        bank.add(model)
        expected.append(outputs_of(model).softmax(-1))
    move(model, 1.0)  # copies must compute with their own draw, not with the values of the model
    found = lv.predict(model, bank, {"input_ids": X}, likelihood="categorical")
    torch.testing.assert_close(found.probabilities, torch.stack(expected).mean(0))
    found = lv.predict(None, [model], {"input_ids": X}, transform=lambda out: out.logits.exp())
    torch.testing.assert_close(found.mean, outputs_of(model).exp())


def run_trainer(transformers, model, bank, optimizer, tmp_path, **settings):
    data = [{"input_ids": X[k % 5], "labels": torch.tensor(k % 3)} for k in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=2, num_train_epochs=1, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True, lr_scheduler_type="constant", **settings,
    )  # fmt: skip
    callback = trainer_callback(bank, burn_in=2)
    options = {"train_dataset": data, "optimizers": (optimizer, None), "callbacks": [callback]}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        transformers.Trainer(model, arguments, **options).train()
    return [str(warning.message) for warning in seen if issubclass(warning.category, lv.TrustWarning)]


def msgld(model):
    return lv.optim.MSGLD(trained(model).values(), lr=0.01, num_data=16, prior=lv.priors.gaussian(std=1.0))


def test_the_trainer_of_transformers_fills_a_bank_after_each_step(transformers, adapted, bank, tmp_path):
    assert run_trainer(transformers, adapted, bank, msgld(adapted), tmp_path, max_grad_norm=0) == []
    assert [draw.step for draw in bank.draws] == [3, 4, 5, 6, 7, 8]
    assert all(torch.equal(value, bank.state_dict(-1)[name]) for name, value in trained(adapted).items())
    lv.SampleBank(bank.path, resume=True).rewind(0)  # the lock is free


def test_accumulated_gradients_are_one_step_and_clipping_is_reported(transformers, adapted, bank, tmp_path):
    (text, *_) = run_trainer(transformers, adapted, bank, msgld(adapted), tmp_path, gradient_accumulation_steps=2)
    assert text.startswith(
        "trainer_callback: gradients are clipped (max_grad_norm=1), so the draws spread too wide: set max_grad_norm=0"
    )
    assert [draw.step for draw in bank.draws] == [3, 4]


def test_an_optimizer_that_does_not_sample_is_reported(transformers, adapted, bank, tmp_path):
    optimizer = torch.optim.SGD(trained(adapted).values(), lr=0.01)
    (text,) = run_trainer(transformers, adapted, bank, optimizer, tmp_path, max_grad_norm=0)
    assert text == "trainer_callback: the optimizer is SGD, not one of langevin.optim, so the draws do not follow the posterior"


def run_lightning(lightning, bank, **settings):
    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

        def training_step(self, batch, number):
            return (self(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return lv.optim.SGLD(self.parameters(), lr=0.01, num_data=16)

    data = torch.utils.data.TensorDataset(torch.ones(16, 2), torch.ones(16, 1))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [lightning_callback(bank, burn_in=1)]
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=callbacks, **quiet, **settings)
    model = Line()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
    return model, [str(warning.message) for warning in seen if issubclass(warning.category, lv.TrustWarning)]


def test_lightning_fills_a_bank_after_each_step(lightning, bank):
    model, said = run_lightning(lightning, bank)
    assert said == []
    assert [draw.step for draw in bank.draws] == [2, 3, 4, 5, 6, 7, 8]
    x = torch.ones(3, 2)
    with torch.no_grad():
        last = model(x)
        expected = torch.stack([draw(x) for draw in bank.models(model)])
    assert torch.equal(expected[-1], last)
    torch.testing.assert_close(lv.predict(model, bank, x, **GAUSSIAN).mean, expected.mean(0))
    assert all(copy._trainer is None for copy in bank.models(model))  # no copy of the data


def test_lightning_steps_once_per_accumulated_gradient_and_its_clipping_is_reported(lightning, bank):
    _, said = run_lightning(lightning, bank, gradient_clip_val=1.0, accumulate_grad_batches=2)
    assert [draw.step for draw in bank.draws] == [2, 3, 4]
    assert said[0].startswith("lightning_callback: gradients are clipped (gradient_clip_val=1)")


def test_a_model_in_fabrics_wrapper_is_stored_and_checked_under_plain_names(lightning, bank):
    from lightning.fabric import Fabric

    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[0].bias.requires_grad_(False)
    wrapped = Fabric(accelerator="cpu", devices=1).setup(net)
    bank.add(wrapped)
    assert "0.weight" in bank.state_dict(0)
    assert "0.bias" not in bank.state_dict(0)
    x = torch.ones(3, 2)
    expected = net.eval()(x).detach()
    torch.testing.assert_close(lv.predict(wrapped, bank, x, **GAUSSIAN).mean, expected)
    with torch.no_grad():
        net[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"needs finite parameters \(0\.weight is not\)"):
        bank.add(wrapped)
    bank.load(wrapped, 0)
    assert torch.equal(net(x), expected)


def stand_in(monkeypatch, name, base):
    """A module of this name with a callback's base class: the hooks below are called as the real Trainer calls them."""
    module = ModuleType(name)
    setattr(module, base, type(base, (), {}))
    monkeypatch.setitem(sys.modules, name.partition(".")[0], ModuleType(name.partition(".")[0]))
    monkeypatch.setitem(sys.modules, name, module)


def test_the_callback_of_a_stand_in_for_transformers_adds_draws_after_the_burn_in(monkeypatch, own_generator, bank):
    stand_in(monkeypatch, "transformers", "TrainerCallback")
    model, callback = nn.Linear(2, 1), trainer_callback(bank, burn_in=5)
    state, about = SimpleNamespace(global_step=4), {"model": model, "optimizer": msgld(model)}  # resumed at step 4
    with pytest.warns(lv.TrustWarning, match=r"gradients are clipped \(max_grad_norm=1\)") as seen:
        callback.on_train_begin(SimpleNamespace(max_grad_norm=1.0), state, None, **about)
    assert len(seen) == 1
    for state.global_step in (5, 6, 7):
        callback.on_step_end(None, state, None, **about)
    callback.on_train_end(None, state, None, **about)
    assert [draw.step for draw in bank.draws] == [6, 7]
    lv.SampleBank(bank.path, resume=True).rewind(0)  # the lock is free


def test_the_callback_of_a_stand_in_for_lightning_counts_steps_not_batches(monkeypatch, own_generator, bank):
    stand_in(monkeypatch, "lightning.pytorch", "Callback")
    model, callback = nn.Linear(2, 1), lightning_callback(bank)
    trainer = SimpleNamespace(global_step=0, gradient_clip_val=None, optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)])
    with pytest.warns(lv.TrustWarning, match=r"the optimizer is SGD, not one of langevin\.optim") as seen:
        callback.on_train_start(trainer, model)
    assert len(seen) == 1
    for trainer.global_step in (0, 1, 1, 2, 2, 2):  # the step after the last batch of each sum of gradients
        callback.on_train_batch_end(trainer, model, None, None, 0)
    callback.on_train_end(trainer, model)
    assert [draw.step for draw in bank.draws] == [1, 2]


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [(trainer_callback, "transformers", "huggingface"), (lightning_callback, "lightning.pytorch", "lightning")],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, bank, make, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'langevin\[{extra}\]'"):
        make(bank)


def test_bad_arguments_are_rejected_by_name(transformers, bank):
    with pytest.raises(TypeError, match=r"trainer_callback\(bank=\.\.\.\) needs a SampleBank, got 'draws'"):
        trainer_callback("draws")
    with pytest.raises(ValueError, match=r"trainer_callback\(burn_in=\.\.\.\) needs an int >= 0, got -1"):
        trainer_callback(bank, burn_in=-1)
