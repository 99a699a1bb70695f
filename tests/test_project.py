"""The project's habits: workflows, hooks and templates are valid and name what exists; the version is one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import langevin as lv

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def steps(path):
    """Return the lines that a workflow runs, and the actions that it uses."""
    jobs = yaml.safe_load(path.read_text())["jobs"]
    every = [step for job in jobs.values() for step in job["steps"]]
    return [step["run"] for step in every if "run" in step], [step["uses"] for step in every if "uses" in step]


def test_there_are_workflows_for_changes_nights_releases_and_versions():
    assert [path.stem for path in WORKFLOWS] == ["ci", "nightly", "release", "versions"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_whole_and_runs_commands_that_exist(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow  # `on`, which YAML reads as a truth value
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
    lines, uses = steps(path)
    for line in lines:
        for target in re.findall(r"\bmake ([\w-]+)", line):
            assert target in TARGETS, line
        for command in re.findall(r"\.venv/bin/([\w-]+)", line):
            assert command in {"python", *COMMANDS}, line
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", action) for action in uses)


def test_a_change_is_linted_typed_tested_and_its_site_built_as_by_hand():
    lines, _ = steps(ROOT / ".github" / "workflows" / "ci.yml")
    by_hand = re.findall(r"^make .*$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert set(by_hand) == {line for line in lines if line.startswith("make ")}
    assert "make test-all" in steps(ROOT / ".github" / "workflows" / "nightly.yml")[0]


def test_a_release_builds_both_distributions_and_only_its_last_job_may_publish():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    lines, _ = steps(ROOT / ".github" / "workflows" / "release.yml")
    folders = [line.split()[-2:] for line in lines if "build --outdir" in line]
    assert folders == [["dist/langevin", "."], ["dist/langevin-paper", "paper"]]
    publish = workflow["jobs"]["publish"]
    assert publish["strategy"]["matrix"]["distribution"] == ["langevin", "langevin-paper"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert "permissions" not in workflow["jobs"]["build"]
    assert "secrets" not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_every_system_python_and_torch_runs_the_core_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "versions.yml").read_text())["jobs"]["core"]
    matrix = job["strategy"]["matrix"]
    pythons = {*matrix["python"], *(entry["python"] for entry in matrix["include"])}
    named = {name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r"Python :: 3\.\d", name)}
    assert pythons == named
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert {*matrix["torch"], *(entry["torch"] for entry in matrix["include"])} == {"oldest", "newest", "nightly"}
    (floor,) = (need.partition(">=")[2] for need in project["dependencies"] if need.startswith("torch"))
    assert any(f"torch=={floor}." in step.get("run", "") for step in job["steps"])
    assert "-m core" in (ROOT / ".github" / "workflows" / "versions.yml").read_text()


def test_the_core_tests_exist():
    names = re.search(r'CORE = """(.*?)"""', (ROOT / "conftest.py").read_text(), re.S)[1].split()
    assert len(names) > 10
    assert all((ROOT / "tests" / f"{name}.py").is_file() for name in names)


def test_the_recipe_of_conda_asks_for_what_the_wheel_asks_for():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    renamed = {"torch": "pytorch", "typing-extensions": "typing_extensions"}
    wheel = {(renamed.get(name, name), version) for name, version in (need.split(">=") for need in needs)}
    conda = {tuple(need.split(" >=")) for need in recipe["requirements"]["run"]}
    assert conda == wheel | {("python", "3.11")}
    assert recipe["build"]["python"]["entry_points"] == [f"langevin = {COMMANDS['langevin']}"]


def test_the_hooks_are_those_of_make_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    linted = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert [hook["entry"] for hook in hooks] == [
        line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in linted.splitlines()
    ]
    assert all(hook["language"] == "system" for hook in hooks)


@pytest.mark.parametrize("name", ["bug", "law", "feature"])
def test_a_form_is_valid_and_asks_for_what_is_needed(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    assert ("doctor" in ids) == (name != "feature")


def test_the_version_is_one():
    paper = tomllib.loads((ROOT / "paper" / "pyproject.toml").read_text())["project"]["dependencies"]
    said = {
        "paper": re.search(r'__version__ = "(.+)"', (ROOT / "paper/src/langevin_paper/__init__.py").read_text())[1],
        "the paper's need": next(need.partition("==")[2] for need in paper if need.startswith("langevin==")),
        "conda": yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())["context"]["version"],
        "citation": str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]),
        "changelog": re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1],
    }
    assert said == dict.fromkeys(said, lv.__version__)


def test_what_a_stranger_looks_for_is_there():
    for name in (
        "LICENSE",
        "CONTRIBUTING.md",
        "CODE_OF_CONDUCT.md",
        "SECURITY.md",
        "RELEASING.md",
        ".github/pull_request_template.md",
    ):
        assert (ROOT / name).stat().st_size > 100, name


def test_make_targets_named_in_the_pages_at_the_root_exist():
    for path in ROOT.glob("*.md"):
        for target in re.findall(r"`make ([\w-]+)`", path.read_text()):
            assert target in TARGETS, (path.name, target)
