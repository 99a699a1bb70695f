"""Records hold every number that a result depends on: one in `experiments` is a recorded setting, or it is listed here."""

from __future__ import annotations

import ast
import copy
import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from langevin_paper import experiments as paper
from langevin_paper.record import Record, Records, read_records
from langevin_paper.registry import EXPERIMENTS
from langevin_paper.runner import missing_cells

FOLDER = Path(paper.__file__).parent
DEPENDENT = {  # modules by those that import them
    "gaussian": (), "mixture": (), "landsat": ("landsat_readings",), "landsat_readings": (),
    "ravine": ("ravine_search_settings", "ravine_search", "ravine_readings", "ravine_defaults"), "ravine_readings": (),
    "ravine_defaults": (), "ravine_search_settings": ("ravine_search",),
    "reheating": ("ravine_candidates", "ravine_search"), "ravine_candidates": ("ravine_search",), "ravine_search": (),
    "mnist": ("networks",), "cifar": ("networks",), "networks": (), "lenet": (), "tables": (), "scoring": (),
    "uncertainty": ("mnist_ood", "digits"), "mnist_ood": (), "digits": (),
}  # fmt: skip

FOR_THE_PAGE = ("Column", "Listing", "Published", "Setting", "Table", "_columns", "_row", "_table")  # calls for text and tables
FOR_THE_CLOCK = ("num_seeds", "seconds", "about")  # which seeds, how long it takes, and text
NAMES = {  # names that hold the paper's results, or what makes no difference
    ("ravine", "gradient_noise"),  # the minibatches are the noise
    ("ravine_search_settings", "ABOUT"),  # text
    ("ravine", "PUBLISHED"), ("mnist", "PUBLISHED"), ("cifar", "PUBLISHED"), ("landsat", "TRAIN"), ("landsat", "TEST"),
    ("tables", "PUBLISHED"),
}  # fmt: skip
STRUCTURE = {0, 1, 2}  # places, axes, "two parameters", "one of them"
IN_FUNCTIONS = {  # other numbers inside functions, and why they are no settings
    ("landsat", "run"): {100},  # percent
    ("landsat", "_results"): {100},  # percent
    ("landsat", "_table"): {5},  # the paper's runs
    ("mixture", "_sample"): {16},  # speed: steps of a compiled turn
    ("mixture", "_exact"): {3},  # normals for a draw: two and the component's
    ("ravine_candidates", "candidates"): {7, 16, 3},  # dimensions of the cube, tries before giving up, a place
    ("ravine_candidates", "_candidate"): {3, 4},  # places in the point
    ("ravine_candidates", "_schedule"): {4, 3},  # kinds of schedule; digits of a power
    ("ravine_search", "_results"): {5},  # data sets of the paper's table
    ("networks", "_results"): {100},  # percent
    ("lenet", "_sparse_results"): {100},  # percent
    ("lenet", "_error"): {100},  # percent
    ("tables", "_fit"): {100},  # percent
    ("scoring", "_of_numbers"): {100},  # percent
    ("scoring", "_of_classes"): {100, 1e-15},  # percent; against the log of 0
    ("uncertainty", "measure"): {100},  # percent
    ("networks", "_columns"): {3},  # digits
    ("networks", "_cifar"): {10, 100, 5},  # which data set; the paper's runs
    ("cifar", "<module>"): {10, 100},  # keys: which data set
    ("networks", "<module>"): {10, 100, 3},  # which data set; the paper's runs
}


def numbers(tree):
    """Yield the numbers of a source tree as (node, names of the calls, keywords and functions around it)."""

    def walk(node, around):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node, around
        if isinstance(node, ast.FunctionDef):
            around = (*around, ("function", node.name))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            around = (*around, ("call", node.func.id))
        elif isinstance(node, ast.keyword):
            around = (*around, ("keyword", node.arg))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            around = (*around, *(("name", target.id) for target in targets if isinstance(target, ast.Name)))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    yield from walk(tree, ())


def is_listed(module, node, around):
    """Whether a number stands where it cannot change a result."""
    if any(kind == "call" and name in FOR_THE_PAGE for kind, name in around):
        return True
    if any(kind == "keyword" and name in FOR_THE_CLOCK for kind, name in around):
        return True
    if any((module, name) in NAMES for kind, name in around if kind == "name"):
        return True
    function = next((name for kind, name in around if kind == "function"), "<module>")
    return (function != "<module>" and node.value in STRUCTURE) or node.value in IN_FUNCTIONS.get((module, function), ())


def settings_with(module, tree):
    """Return the settings of all cells with another source of one module."""
    names = [f"{paper.__name__}.{name}" for name in (module, *DEPENDENT[module])]
    before = {name: sys.modules[name] for name in names}
    attributes = {name: getattr(paper, name.rpartition(".")[2]) for name in names}
    found = {}
    try:
        for name in names:
            made = types.ModuleType(name)
            made.__file__, made.__package__ = before[name].__file__, paper.__name__
            sys.modules[name] = made
            setattr(paper, name.rpartition(".")[2], made)
            source = tree if name == names[0] else ast.parse(Path(made.__file__).read_text())
            exec(compile(source, made.__file__, "exec"), made.__dict__)
            found |= {value.name: value for value in vars(made).values() if type(value).__name__ == "Experiment"}
    finally:
        sys.modules.update(before)
        for name, value in attributes.items():
            setattr(paper, name.rpartition(".")[2], value)
    return {
        (name, method.name, scale.name): experiment.settings_of(method, scale)
        for name, experiment in found.items()
        for method in experiment.methods
        for scale in experiment.scales
    }


def unrecorded(module, text):
    """Return the numbers of a source text that are neither recorded nor listed, as (line, number)."""
    tree = ast.parse(text)
    base = settings_with(module, tree)
    assert base
    missing = []
    for place, (node, around) in enumerate(numbers(tree)):
        if is_listed(module, node, around):
            continue
        changed = copy.deepcopy(tree)
        twin = list(numbers(changed))[place][0]
        twin.value = twin.value * 1.0625 if isinstance(node.value, float) and node.value else twin.value + 1
        try:
            is_recorded = settings_with(module, changed) != base
        except (ValueError, IndexError, KeyError):  # a number that is checked is a number that is used
            is_recorded = any(kind == "name" for kind, _ in around)
        if not is_recorded:
            missing.append((node.lineno, node.value))
    return missing


def test_every_experiment_is_looked_at():
    assert {path.stem for path in FOLDER.glob("*.py")} == {"__init__", *DEPENDENT}


@pytest.mark.parametrize("module", DEPENDENT)
def test_every_number_is_recorded_or_listed(module):
    assert unrecorded(module, (FOLDER / f"{module}.py").read_text()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NUM_DATA = 4435\n", "NUM_DATA = 4435\nBATCH = 50\n"),  # a constant beside the settings
        ('given["temperature"]', "0.01"),  # a number in the run itself
        ('compile=given["compile"]', "compile=num_steps >= 1_000"),
    ],
)
def test_a_number_that_is_not_recorded_is_seen(old, new):
    text = (FOLDER / "landsat.py").read_text()
    assert old in text
    assert unrecorded("landsat", text.replace(old, new))


def leaves(value, path=()):
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from leaves(entry, (*path, name))
    elif isinstance(value, (list, tuple)):
        for place, entry in enumerate(value):
            yield from leaves(entry, (*path, place))
    else:
        yield path, value


def with_leaf(value, path, new):
    if not path:
        return new
    if isinstance(value, dict):
        return {**value, path[0]: with_leaf(value[path[0]], path[1:], new)}
    return tuple(with_leaf(entry, path[1:], new) if place == path[0] else entry for place, entry in enumerate(value))


def other(value):
    """Return another value, as near as can be."""
    if isinstance(value, bool) or value is None:
        return not value
    return value + "x" if isinstance(value, str) else value + 1 if isinstance(value, int) else value * (1 + 1e-9) if value else 1e-9


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_changed_setting_makes_new_cells(name, tmp_path):
    experiment = EXPERIMENTS[name]
    scale, records, count = experiment.scales[0], Records(tmp_path), 0
    for method in experiment.methods:
        settings = experiment.settings_of(method, scale)
        records.add([Record(name, scale.name, method.name, 0, "done", settings, {"value": 1.0})])
    assert missing_cells([experiment], scale.name, records, seeds=[0]) == []
    for method in experiment.methods:
        for path, value in leaves(dict(method.settings)):
            changed = replace(method, settings=with_leaf(dict(method.settings), path, other(value)))
            (cell,) = missing_cells([replace(experiment, methods=(changed,))], scale.name, records, seeds=[0])
            assert cell.method == changed
            count += 1
    for path, value in leaves(dict(scale.settings)):
        changed = replace(scale, settings=with_leaf(dict(scale.settings), path, other(value)))
        cells = missing_cells([replace(experiment, scales=(changed,))], scale.name, records, seeds=[0])
        assert len(cells) == len(experiment.methods), path
        count += 1
    assert count > 15


def test_the_committed_records_have_the_settings_of_this_version():
    folder = Path(__file__).parents[2] / "docs" / "reproduction" / "records"
    found = read_records(folder)
    assert not found.problems
    assert len(found.records) == 1033
    for record in found.records:
        experiment = EXPERIMENTS[record.experiment]
        settings = experiment.settings_of(experiment.method(record.method), experiment.scale(record.scale))
        assert json.dumps(record.settings, sort_keys=True) == json.dumps(settings, sort_keys=True)
        assert ("Settings completed" in record.amended) == (record.finished < "2026-11-17")  # the first ones
