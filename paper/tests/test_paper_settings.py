"""The settings of the paper's tables, typed a second time from its appendix."""

import pytest
from langevin_paper.experiments import cifar, mnist
from langevin_paper.experiments.networks import CIFAR10, CIFAR100, MNIST, training_of
from langevin_paper.stages import MLP, ResNet18, decay

from langevin import priors

A = "bias_factor"


def test_mnist_at_paper_scale_is_the_appendix():
    wide, sparse = priors.gaussian(std=1.0), mnist.PRIOR
    assert (sparse.slab_weight, sparse.slab_std**2, sparse.spike_std**2) == pytest.approx((1e-7, 0.02, 1e-5))
    table = {
        "Adam": [
            (100, 0.001, {"betas": (0.9, 0.999), "eps": 1e-8}, None, 0),
            (150, 0.0001, {"betas": (0.9, 0.999), "eps": 1e-8}, sparse, 0),
        ],
        "ASGLD": [
            (100, 0.5, {A: 10, "betas": (0.9, 0.999), "eps_root": 1e-6}, wide, 1e-2),
            (150, 0.5 / 10, {A: 1, "betas": (0.9, 0.999), "eps_root": 1e-8}, sparse, 1e-5),
        ],
        "MSGLD": [(100, 0.5, {A: 1, "beta": 0.99}, wide, 1e-3), (150, 0.5 / 10, {A: 1, "beta": 0.99}, sparse, 1e-5)],
    }
    assert set(table) == set(mnist.PUBLISHED)
    for method, rows in table.items():
        training = training_of(MNIST.method(method.lower()), MNIST.scale("paper"))
        found = [(s.epochs, s.lr(0), dict(s.settings), s.prior, s.temperature) for s in training.stages]
        assert found == rows
        assert all(s.lr(s.epochs - 1) == s.lr(0) for s in training.stages)
        assert {s.optimizer for s in training.stages} == {method}
        assert (training.data, training.network) == ("mnist", MLP((784, 800, 800, 10)))
        assert (training.batch_size, training.rows) == (100, None)
        assert (training.num_data, training.averaged_epochs, training.standardise, training.padding) == (60_000, 5, False, None)
        assert training.threshold == pytest.approx(0.01996, abs=1e-5)
    assert mnist.SCALES["paper"].num_seeds == 3


@pytest.mark.parametrize("num_classes", [10, 100])
def test_cifar_at_paper_scale_is_the_appendix(num_classes):
    ten, experiment = num_classes == 10, {10: CIFAR10, 100: CIFAR100}[num_classes]
    ours = 25 if ten else 75
    table = {
        "SGD": ("SGD", 0.1, {"weight_decay": 5e-4}, None),
        "Adam": ("Adam", 0.001, {"betas": (0.9, 0.999), "eps": 1e-8}, None),
        "SGLD": ("SGLD", 0.1, {}, 25),
        "SGHMC": ("SGHMC", 0.1, {"beta": 0.9}, 25),
        "pSGLD": ("PSGLD", 0.001 if ten else 0.0001, {"beta": 0.99, "eps": 1e-6}, 25),
        "ASGLD": ("ASGLD", 0.1, {A: 20, "betas": (0.9, 0.999), "eps_root": 1e-6 if ten else 1e-8}, ours),
        "MSGLD": ("MSGLD", 0.1, {A: 1, "beta": 0.9}, ours),
    }
    assert set(table) == set(cifar.PUBLISHED[num_classes])
    for method, (optimizer, lr, settings, precision) in table.items():
        training = training_of(experiment.method(method.lower()), experiment.scale("paper"))
        (stage,) = training.stages
        assert (stage.epochs, stage.optimizer, stage.lr(0), dict(stage.settings)) == (250, optimizer, lr, settings)
        if precision is None:
            assert (stage.prior, stage.temperature) == (None, 0)
        else:
            assert 1 / stage.prior.std**2 == pytest.approx(precision)
            assert stage.temperature == 1e-5
        length, factor = (40, 0.5) if ten else (90, 0.1)
        for epoch in (0, length - 1, length, 2 * length - 1, 2 * length, 249):
            assert stage.lr(epoch) == pytest.approx(lr * factor ** (epoch // length))
        assert (training.data, training.network) == (f"cifar{num_classes}", ResNet18(num_classes, 64))
        assert (training.batch_size, training.num_data, training.rows, training.averaged_epochs) == (100, 50_000, None, 5)
        assert (training.standardise, training.padding) == (True, 4)
    assert cifar.SCALES[num_classes]["paper"].num_seeds == 5


@pytest.mark.parametrize(("num_classes", "length"), [(10, 4), (100, 9)])
def test_a_shorter_cifar_run_decays_in_proportion(num_classes, length):
    factor = cifar.DECAY[num_classes]["factor"]
    lr = decay(0.1, 25, **cifar.DECAY[num_classes])
    assert [lr(epoch) for epoch in range(25)] == pytest.approx([0.1 * factor ** (epoch // length) for epoch in range(25)])


def test_every_method_has_a_training_at_every_scale():
    for experiment, labels in ((MNIST, mnist.METHODS), (CIFAR10, cifar.METHODS[10]), (CIFAR100, cifar.METHODS[100])):
        for scale in experiment.scales:
            assert [training_of(method, scale).method for method in experiment.methods] == list(labels)
    scale = MNIST.scale("paper")
    assert all(stage.settings["invariant"] for stage in training_of(MNIST.method("msgld-invariant"), scale).stages)
    assert all(stage.prior is None for stage in training_of(MNIST.method("adam-no-prior"), scale).stages)
