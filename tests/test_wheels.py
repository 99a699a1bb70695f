"""The two distributions as users get them: built, and imported where only what they declare is installed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NOT_FOR_THE_LIBRARY = ("jinja2", "scikit-learn", "torchmetrics", "ray", "langevin-paper", "arviz", "pandas", "matplotlib", "typer")
EXTRAS = ("arviz", "huggingface", "lightning", "metrics", "pandas", "plots", "ray", "sklearn")  # whose modules the library imports


def run(*command, folder=None):
    """Run a command to its end, without the paths of this process; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source, folder):
    """Build a distribution's archive, and from what is in that alone its wheel, as pip does."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "--directory", folder, "--target"]
    run(*hatchling, "sdist", folder=source)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    run(*hatchling, "wheel", folder=folder / archive.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    sources = {"langevin": ROOT, "langevin-paper": ROOT / "paper"}
    return {name: build(source, tmp_path_factory.mktemp(name)) for name, source in sources.items()}


def content(wheel):
    """Return the metadata of a wheel and the names of its files."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(packed.read(about)), names


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(lines, extra=""):
    """Return the names that requirements ask for on this machine, without extras, or with one."""
    found = map(Requirement, lines or ())
    return {canonical(entry.name) for entry in found if entry.marker is None or entry.marker.evaluate({"extra": extra})}


def environment(folder, wheels, absent=()):
    """Make an environment that has some wheels and all that they ask for, taken from this one; return its interpreter."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    waiting, seen = set(), {canonical(name) for name in (*wheels, *absent)}
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
        waiting |= needed(content(wheel)[0].get_all("Requires-Dist"))
    while waiting := waiting - seen:
        name = waiting.pop()
        seen.add(name)
        found = metadata.distribution(name)
        waiting |= needed(found.requires)
        for part in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (site / part).exists():  # namespaces are shared
                (site / part).symlink_to(found.locate_file(part))
    return folder / "bin" / "python"


USE = """
import importlib, importlib.util, sys
for name in sys.argv[1:]:
    if not name.startswith("langevin.tabular"):  # an extra
        importlib.import_module(name)
try:
    import langevin.tabular
except ImportError as error:
    assert "pip install 'langevin[sklearn]'" in str(error), error
else:
    raise AssertionError("langevin.tabular without scikit-learn")
for name in ("jinja2", "sklearn", "torchmetrics", "ray", "langevin_paper", "arviz", "pandas", "matplotlib", "typer"):
    assert importlib.util.find_spec(name) is None, name
import torch
import langevin as lv
assert lv.__file__.startswith(sys.prefix), lv.__file__
import warnings
warnings.simplefilter("ignore", lv.TrustWarning)  # twenty steps are few
samples = lv.sample(lv.targets.gaussian([[1.0]]), sampler=lv.sgld(0.1), init=torch.zeros(2, 1), num_steps=20,
                    compile=False, progress=False)
assert samples.draws.shape == (2, 20, 1) and samples.draws.isfinite().all()
weight = torch.nn.Parameter(torch.ones(3))
optimizer = lv.optim.MSGLD([weight], lr=0.1, num_data=100, temperature=1.0, seed=0)
weight.square().sum().backward()
optimizer.step()
assert (weight != 1).all() and weight.isfinite().all()
print(lv.__version__)
"""


def test_the_library_imports_and_runs_where_only_its_dependencies_are(wheels, tmp_path):
    about, names = content(wheels["langevin"])
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names if name.endswith(".py")]
    assert len(modules) > 50
    # torch itself asks for Jinja; the library does without.
    python = environment(tmp_path / "fresh", {"langevin": wheels["langevin"]}, absent=NOT_FOR_THE_LIBRARY)
    assert run(python, "-I", "-W", "error", "-c", USE, *modules).split() == [about["Version"]]


def test_the_command_of_the_paper_runs_beside_the_library(wheels, tmp_path):
    python = environment(tmp_path / "fresh", wheels)
    script = """if True:
        import sys
        from importlib.metadata import distribution
        assert "langevin_paper" not in sys.modules and distribution("langevin-paper").locate_file("").is_relative_to(sys.prefix)
        (command,) = distribution("langevin-paper").entry_points
        assert (command.group, command.name) == ("console_scripts", "langevin-paper")
        command.load()()
    """
    assert "landsat: Landsat. Section 5.1" in run(python, "-I", "-c", script, "list")


def test_the_library_asks_for_nothing_of_the_paper_and_has_no_file_of_it(wheels):
    about, names = content(wheels["langevin"])
    assert needed(about.get_all("Requires-Dist")).isdisjoint(NOT_FOR_THE_LIBRARY)
    assert {name.split("/")[0] for name in names} == {"langevin", f"langevin-{about['Version']}.dist-info"}
    typed = {"langevin/py.typed", "langevin/__init__.pyi"}  # without the second, type checkers know no public name
    assert {name for name in names if name.startswith("langevin/") and not name.endswith((".py", ".h", ".c"))} == typed
    headers = {f"langevin/compiler/include/{path.name}" for path in (ROOT / "src/langevin/compiler/include").glob("*.h")}
    programs = {f"langevin/compiler/{name}.c" for name in ("loop", "linalg")}
    assert {name for name in names if name.endswith((".h", ".c"))} == headers | programs


def imported(node):
    """Yield what a source tree imports when it runs, by the first part of its name."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module] if isinstance(node, ast.ImportFrom) else []
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra":
        names += [node.args[1].value]
    yield from (name.split(".")[0] for name in names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


@pytest.mark.parametrize(("name", "source"), [("langevin", "src"), ("langevin-paper", "paper/src")])
def test_what_is_imported_is_declared_and_nothing_else(wheels, name, source):
    files = (ROOT / source).rglob("*.py")
    modules = {module for file in files for module in imported(ast.parse(file.read_text()))} - sys.stdlib_module_names
    owners = metadata.packages_distributions()  # it does not know packages installed from a folder
    found = {canonical(owner) for module in modules for owner in owners.get(module, [module])}
    lines = content(wheels[name])[0].get_all("Requires-Dist")
    assert found - {name} == needed(lines).union(*(needed(lines, extra) for extra in EXTRAS))


def test_both_have_one_version_and_the_licence(wheels):
    (library, paper), files = zip(*map(content, wheels.values()), strict=True)
    assert library["Version"] == paper["Version"]
    assert f"langevin=={library['Version']}" in paper.get_all("Requires-Dist")
    assert all(any(name.endswith("licenses/LICENSE") for name in names) for names in files)
    assert {"langevin_paper/landsat.npz", "langevin_paper/report.html.j2"} <= set(files[1])
