"""Training runs: the same bits through kills, the paper's settings, and baselines that are plain torch."""

import contextlib
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from langevin_paper import train as training
from langevin_paper.data import KNOWN, load
from langevin_paper.images import Inputs, augmentations, channel_moments, crop_and_flip
from langevin_paper.measures import predict, sparsity_ratio
from langevin_paper.models import mlp
from langevin_paper.optimizers import effective_temperature
from langevin_paper.stages import MLP, ResNet18, Stage
from langevin_paper.train import DivergedError, initial_network, train
from langevin_paper.training import Training
from torch.nn import functional

from langevin import priors
from langevin.kernels import schedules

SPARSE = priors.spike_slab(slab_weight=0.1, slab_std=0.3, spike_std=0.01)
WIDE = priors.gaussian(std=1.0)


def landsat(*stages, rows=(200, 100), **changes):
    """Make a small training on the data that ship with the package."""
    settings = {"batch_size": 50, "rows": rows, "averaged_epochs": 2, "threshold": SPARSE.threshold, **changes}
    return Training("tiny", "landsat", MLP((36, 8, 6)), stages, **settings)


def stage(optimizer, epochs=2, lr=0.1, prior=WIDE, temperature=0.01, **settings):
    return Stage(epochs, optimizer, schedules.step_decay(lr, factor=0.5, every=1), settings, prior, temperature)


SAMPLERS = landsat(stage("ASGLD", bias_factor=2.0), stage("MSGLD", prior=SPARSE, invariant=True))
BASELINES = landsat(stage("SGD", temperature=0.0, momentum=0.9), stage("Adam", lr=0.01, prior=SPARSE, temperature=0.0))
OTHERS = landsat(stage("SGLD"), stage("SGHMC"), stage("PSGLD", lr=1e-3))


def model_in(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def same(folder, result, whole_folder, whole):
    """Compare weights and everything measured, bit for bit; time alone may differ."""
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}
    weights, expected = model_in(folder), model_in(whole_folder)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A training of a ResNet, with batch norms and augmentation, on a small set of images of the test's own."""
    monkeypatch.setitem(KNOWN, "cifar10-12k", replace(KNOWN["cifar10-12k"], rows=(20, 10)))
    pixels = np.arange(30 * 3 * 32 * 32).reshape(30, 3, 32, 32)
    x, y = ((pixels * 7 + pixels // 251) % 256).astype(np.uint8), np.arange(30) % 10
    np.savez(tmp_path / "cifar10-12k.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path))
    return Training("tiny", "cifar10-12k", ResNet18(10, 2), (stage("MSGLD"),), 10, standardise=True, padding=4)


# ---- kills


def from_every_checkpoint(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    write, copies = training.write_atomic, []

    def copying(path, data):
        write(path, data)
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(path.parent, copies[-1])

    with monkeypatch.context() as patch:
        patch.setattr(training, "write_atomic", copying)
        whole = train(plan, 3, tmp_path / "whole")
    assert len(copies) == plan.epochs * plan.steps_per_epoch == whole["steps"]
    for copy in copies:
        same(copy, train(plan, 3, copy), tmp_path / "whole", whole)


@pytest.mark.parametrize("plan", [SAMPLERS, BASELINES, OTHERS], ids=["samplers", "baselines", "others"])
def test_a_run_goes_on_bit_for_bit_from_every_step(tmp_path, monkeypatch, plan):
    from_every_checkpoint(plan, tmp_path, monkeypatch)


def test_batch_norms_and_augmented_images_go_on_bit_for_bit(tmp_path, monkeypatch, images):
    from_every_checkpoint(images, tmp_path, monkeypatch)


ZYGOTE = """
import os, sys, time, torch
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
import test_training as t
t.training.CHECKPOINT_SECONDS = 0.0
t.train(t.SAMPLERS, 0, {warm!r})  # here, not in a child: the children find the update compiled
begin = time.monotonic()
t.train(t.LONG, 0, {whole!r})
print(time.monotonic() - begin, flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        t.train(t.LONG, 0, {path!r})
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""
LONG = replace(SAMPLERS, stages=tuple(replace(part, epochs=24) for part in SAMPLERS.stages))


def written(checkpoint):
    """Say which checkpoint there is: each is a new file."""
    with contextlib.suppress(FileNotFoundError):
        return checkpoint.stat().st_ino, checkpoint.stat().st_mtime_ns


def test_a_process_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    whole, path, warm = tmp_path / "whole", tmp_path / "killed", tmp_path / "warm"
    checkpoint, moments, cut = path / "checkpoint.pt", random.Random(0), 0
    script = ZYGOTE.format(tests=str(Path(__file__).parent), whole=str(whole), path=str(path), warm=str(warm))
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zygote:
        seconds = float(zygote.stdout.readline())  # of a whole run, on this machine, now
        status = None
        while status != 0:
            before = written(checkpoint)
            zygote.stdin.write("go\n")
            zygote.stdin.flush()
            child = int(zygote.stdout.readline())
            if cut < 10:
                patience = time.monotonic() + 60
                while written(checkpoint) == before and time.monotonic() < patience:  # a life that does something
                    time.sleep(seconds / 1000)
                time.sleep(moments.uniform(0, seconds / 10))
                with contextlib.suppress(ProcessLookupError):  # it was faster
                    os.kill(child, signal.SIGKILL)
            status = int(zygote.stdout.readline())
            assert status in (0, signal.SIGKILL)
            cut += status != 0
        zygote.stdin.close()
    assert cut >= 2  # lives that ended in the middle of the run
    same(path, train(LONG, 0, path), whole, train(LONG, 0, whole))  # both are done: these calls only read


def test_an_interrupt_keeps_the_checkpoint_and_the_run_goes_on(tmp_path, monkeypatch):
    whole = train(SAMPLERS, 0, tmp_path / "whole")
    real, calls = functional.cross_entropy, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 7:  # in the second epoch
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(functional, "cross_entropy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(SAMPLERS, 0, tmp_path / "cut")
    assert torch.load(tmp_path / "cut" / "checkpoint.pt", weights_only=True)["step"] == 4
    same(tmp_path / "cut", train(SAMPLERS, 0, tmp_path / "cut"), tmp_path / "whole", whole)


def test_a_folder_belongs_to_one_training_one_seed_and_one_process(tmp_path):
    train(SAMPLERS, 0, tmp_path)
    with pytest.raises(ValueError, match=r"train\(folder=...\) needs a run with the seed of this one \(1\), got 0"):
        train(SAMPLERS, 1, tmp_path)
    with pytest.raises(ValueError, match="needs a run with the training of this one"):
        train(replace(SAMPLERS, batch_size=100), 0, tmp_path)
    with (tmp_path / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="another process is training in"):
            train(SAMPLERS, 0, tmp_path)


# ---- what is computed


def by_hand(plan, seed, make, penalty):
    """Train with plain torch: its optimizer, its autograd for the penalty, batches from `Inputs`."""
    model, data, step = initial_network(plan, seed), load(plan.data), 0
    x, y = data.x_train[: plan.num_train] / 255, data.y_train[: plan.num_train]
    inputs = Inputs(plan, seed)
    for part in plan.stages:
        optimizer = make(part, model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(part.epochs):
            for rows in inputs.epoch(range(step, step + plan.steps_per_epoch)).rows:
                optimizer.zero_grad()
                (functional.cross_entropy(model(x[rows]), y[rows]) + penalty(part, model)).backward()
                optimizer.step()
                step += 1
            scheduler.step()
    return model.state_dict()


def test_baselines_are_plain_torch_training_on_the_penalised_loss(tmp_path):
    def make(part, model):
        return getattr(torch.optim, part.optimizer)(model.parameters(), lr=part.lr(0), **part.settings)

    def penalty(part, model):
        return sum(part.prior.energy(parameter.flatten()) for parameter in model.parameters()) / BASELINES.num_train

    train(BASELINES, 5, tmp_path)
    for name, expected in by_hand(BASELINES, 5, make, penalty).items():
        torch.testing.assert_close(model_in(tmp_path)[name], expected, rtol=1e-4, atol=1e-6)


def test_a_sampler_at_temperature_zero_without_bias_is_sgd_with_weight_decay(tmp_path):
    plan = landsat(stage("SGLD", prior=priors.gaussian(std=0.5), temperature=0.0), num_data=1_000)

    def make(part, model):
        return torch.optim.SGD(model.parameters(), lr=part.lr(0), weight_decay=4 / 1_000)

    train(plan, 5, tmp_path)
    for name, expected in by_hand(plan, 5, make, lambda part, model: 0.0).items():
        torch.testing.assert_close(model_in(tmp_path)[name], expected, rtol=1e-4, atol=1e-6)


def test_the_result_averages_the_last_epochs_and_measures_the_final_network(tmp_path):
    result = train(SAMPLERS, 0, tmp_path)
    records = result["epochs"]
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    assert [record["stage"] for record in records] == [1, 1, 2, 2]
    assert [record["lr"] for record in records] == [0.1, 0.05, 0.1, 0.05]
    assert ["train_accuracy" in record for record in records] == [False, False, True, True]
    for name in ("train_accuracy", "test_accuracy", "sparsity_ratio"):
        assert result[name] == (records[2][name] + records[3][name]) / 2
    model, data = initial_network(SAMPLERS, 1), load("landsat")
    model.load_state_dict(model_in(tmp_path))
    right = (model(data.x_test[:100] / 255).argmax(-1) == data.y_test[:100]).sum()
    assert records[3]["test_accuracy"] == float(right)
    assert result["effective_temperature"] == [None, 0.01]


def test_seeds_differ_and_stages_share_no_noise(tmp_path):
    assert not torch.equal(initial_network(SAMPLERS, 0)[1].weight, initial_network(SAMPLERS, 1)[1].weight)
    assert torch.equal(initial_network(SAMPLERS, 0)[1].weight, initial_network(SAMPLERS, 0)[1].weight)
    train(SAMPLERS, 0, tmp_path)
    groups = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["optimizer"]["param_groups"]
    assert groups[0]["step"] == 16  # the second stage's noise began where the first one's ended
    model = initial_network(SAMPLERS, 0)
    assert effective_temperature(stage("MSGLD", bias_factor=3.0), model) == pytest.approx(0.0025)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_gpu_is_taken_where_torch_has_one(tmp_path, monkeypatch, has_gpu):
    asked = []

    class Asked(Exception):
        pass

    def fake(training, seed, path, device):
        asked.append(device)
        raise Asked

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(training, "_Run", fake)
    for device in (None, "cpu"):
        with pytest.raises(Asked):
            train(SAMPLERS, 0, tmp_path, device=device)
    assert asked == ["cuda" if has_gpu else "cpu", "cpu"]


def test_a_diverged_run_says_where(tmp_path):
    with pytest.raises(DivergedError, match=r"landsat tiny seed 0: the loss is (nan|inf) at epoch [123], step \d+"):
        train(landsat(stage("SGHMC", epochs=3, lr=1e9)), 0, tmp_path / "a")
    with pytest.raises(DivergedError, match=r"landsat tiny seed 0: a prediction is nan at epoch 1, step 1$"):
        train(landsat(stage("SGLD", lr=1e38), batch_size=200), 0, tmp_path / "b")  # the only update of the epoch overflows


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"checkpoint\.pt needs to be a checkpoint of train"):
        train(SAMPLERS, 0, tmp_path)


def test_bad_trainings_are_refused():
    with pytest.raises(ValueError, match=r"Stage\(optimizer=...\) needs one of SGD, Adam, .*, got 'RMSprop'"):
        stage("RMSprop")
    with pytest.raises(ValueError, match=r"Stage\(temperature=...\) needs 0 for Adam, got 0.01"):
        stage("Adam")
    with pytest.raises(TypeError, match=r"Stage\(lr=...\) needs a schedule"):
        Stage(1, "SGLD", 0.1)
    with pytest.raises(ValueError, match=r"Training\(batch_size=...\) needs a divisor of the 200 training rows, got 30"):
        replace(SAMPLERS, batch_size=30)
    with pytest.raises(ValueError, match=r"Training\(rows=...\) needs at most 2000 of landsat, got 2001"):
        replace(SAMPLERS, rows=(200, 2001))
    with pytest.raises(ValueError, match=r"Training\(data=...\) needs one of .*, got 'iris'"):
        replace(SAMPLERS, data="iris")


# ---- images


def test_an_augmented_image_is_a_window_of_the_padded_one_perhaps_mirrored():
    pixels = torch.arange(6 * 3 * 32 * 32)
    batch = ((pixels * 31 + pixels // 97) % 251).to(torch.uint8).view(6, 3, 32, 32)
    choices = torch.tensor([[4, 4, 0], [4, 4, 1], [0, 8, 0], [8, 0, 1], [3, 5, 1], [7, 1, 0]])
    changed = crop_and_flip(batch, choices, 4)
    assert (changed.shape, changed.dtype) == (batch.shape, torch.uint8)
    assert torch.equal(changed[0], batch[0])
    for image, (top, left, mirrored), found in zip(batch, choices.tolist(), changed, strict=True):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = image
        window = padded[:, top : top + 32, left : left + 32]
        assert torch.equal(found, window.flip(-1) if mirrored else window)


def test_augmentations_have_addresses_and_differ_by_epoch(images):
    whole = augmentations(1, range(40), 100, 4)
    assert whole.shape == (40, 100, 3)
    assert torch.equal(augmentations(1, range(7, 9), 100, 4), whole[7:9])
    assert not torch.equal(whole[0], whole[20])
    assert not torch.equal(augmentations(2, range(40), 100, 4), whole)
    for column, bound in enumerate((9, 9, 2)):
        counts = whole[..., column].flatten().bincount(minlength=bound)
        assert len(counts) == bound
        share = 4_000 / bound
        assert (counts - share).abs().max() < 5 * (share * (1 - 1 / bound)) ** 0.5  # 5 standard deviations of a binomial
    inputs = Inputs(images, 0)
    first, again, later = (inputs.batch(inputs.epoch(range(step, step + 1)), step)[0] for step in (0, 0, 2))
    assert torch.equal(first, again)
    assert first.shape == (10, 3, 32, 32)
    assert not torch.equal(first, later)


def test_grey_images_have_one_channel():
    grey = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    mean, std = channel_moments(grey)
    assert ((grey - mean) / std).shape == grey.shape
    assert (mean.item(), std.item()) == pytest.approx((11.5, grey.double().std(correction=0).item()))


def test_images_are_standardised_by_channel(images):
    inputs = Inputs(images, 0)
    scaled = inputs.scale(inputs.x_train)
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    mean, std = channel_moments(torch.tensor([[[[0, 255]], [[10, 30]]]], dtype=torch.uint8))
    assert (mean.flatten().tolist(), std.flatten().tolist()) == ([127.5, 20.0], [127.5, 10.0])


def test_a_prediction_depends_on_its_own_image_alone_and_leaves_the_batch_norms_as_they_are(images):
    inputs, model = Inputs(images, 0), initial_network(images, 0).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    together = predict(model, inputs, inputs.x_test)
    alone = torch.cat([predict(model.train(), inputs, row[None]) for row in inputs.x_test])
    torch.testing.assert_close(alone, together)
    torch.testing.assert_close(together.sum(-1), torch.ones(10))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_sparsity_ratio_counts_connection_weights_from_the_threshold_on():
    with torch.random.fork_rng():
        model = mlp(2, 2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)  # the biases too, which must not count
        model[1].weight.copy_(torch.tensor([[0.02, -0.02], [0.0199, -0.5]]))
        model[3].weight.copy_(torch.tensor([[0.0, -0.01]]))
    assert sparsity_ratio(model, float(torch.tensor(0.02))) == pytest.approx(50.0)
