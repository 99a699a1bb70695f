"""Public names exist, are documented, and say so."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import langevin as lv

MODULES = [module.name for module in pkgutil.walk_packages(lv.__path__, "langevin.")]


@pytest.mark.parametrize("name", MODULES)
def test_every_name_in_all_exists_and_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    for entry in getattr(module, "__all__", ()):
        value = getattr(module, entry)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{entry} has no docstring"


def test_the_package_exports_what_the_design_names():
    for name in ("sample", "sgld", "psgld", "sghmc", "sgrld", "msgld", "asgld", "SAMPLERS", "SampleBank", "Samples"):
        assert hasattr(lv, name)
    assert set(lv.SAMPLERS) <= set(lv.__all__)
    for module in (lv, lv.optim, lv.drifts, lv.samplers):
        assert sorted(module.__all__) == sorted(set(module.__all__))


def test_a_family_names_its_samplers_as_they_are_called():
    assert {name: builder.__name__ for name, builder in lv.SAMPLERS.items()} == {name: name for name in lv.SAMPLERS}


def test_the_source_has_no_generator():
    """Rule 5: whatever is random has an address. The names below would draw from, or seed, hidden state."""
    hidden = ("torch.rand", "torch.manual_seed", "torch.Generator", "np.random", ".normal_(", ".uniform_(", "import random\n")
    for name in MODULES:
        text = inspect.getsource(importlib.import_module(name))
        for word in hidden:
            assert word not in text or (word == "torch.rand" and "torch.random.fork_rng" in text), f"{word} in {name}"
