"""The site: every public name is documented, shown and on a page; every page is in the nav; every link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import types
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

import langevin as lv

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
SUBMODULES = [value.__name__ for name in lv.__all__ if isinstance(value := getattr(lv, name), types.ModuleType)]
MODULES = ["langevin", "langevin.targets.constraints", "langevin.tabular", *SUBMODULES]
INSIDE = {
    "langevin.execution": "the loop around a kernel: called by `sample` and the optimizers, shown by their examples",
    "langevin.diagnostics.trust": "what is gathered while chains run: called by `sample`, read through `samples.trust`",
}


def is_shown(value):
    """Values and aliases of types (AUTO, Memory, KINDS, ...) are read, not called: a page is enough."""
    return inspect.isclass(value) or inspect.isroutine(value)


def public_names():
    """Return {name: value} of all that is exported but modules; what several modules export has the name nearest to the top."""
    found = {}
    for module in MODULES:
        exported = importlib.import_module(module)
        for name in exported.__all__:
            value = getattr(exported, name)
            if not isinstance(value, types.ModuleType) and not any(value is other for other in found.values()):
                found[f"{module}.{name}"] = value
    return found


NAMES = public_names()


@cache
def blocks():
    """Return the Python in the pages, the README and the examples, as trees."""
    texts = [(ROOT / "README.md").read_text(), *((DOCS / page).read_text() for page in PAGES)]
    code = [block for text in texts for block in re.findall(r"```python\n(.*?)```", text, re.S)]
    return [ast.parse(block) for block in code + [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]]


def resolve(node):
    """Return what `lv.a.b` in a tree stands for, or None."""
    if isinstance(node, ast.Name):
        return lv if node.id in ("lv", "langevin") else None
    if isinstance(node, ast.Attribute) and (owner := resolve(node.value)) is not None:
        return getattr(owner, node.attr, None)
    return None


@cache
def used_in_pages():
    """Return the ids of all public things that code in pages and examples names."""
    used = set()
    for tree in blocks():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("langevin"):
                used |= {id(getattr(importlib.import_module(node.module), alias.name)) for alias in node.names}
            elif isinstance(node, ast.Attribute):
                used.add(id(resolve(node)))
    return used


def has_doctest(value):
    return ">>> " in (value.__doc__ or "")


@cache
def returned_by_examples():
    """Return the ids of the classes that a public function with an example returns: that example shows one."""
    classes = set()
    for value in NAMES.values():
        if inspect.isfunction(value) and (has_doctest(value) or id(value) in used_in_pages()):
            words = re.findall(r"\w+", str(value.__annotations__.get("return")))  # a string, some of it for TYPE_CHECKING only
            classes |= {id(value.__globals__[word]) for word in words if word in value.__globals__}
    return classes


def is_inside(name):
    return name.rpartition(".")[0] in INSIDE


@pytest.mark.parametrize("name", [name for name, value in NAMES.items() if is_shown(value)])
def test_a_public_name_has_a_docstring_and_an_example(name):
    value = NAMES[name]
    assert (value.__doc__ or "").strip(), f"{name} has no docstring"
    if not is_inside(name):
        shown = has_doctest(value) or id(value) in used_in_pages() or id(value) in returned_by_examples()
        assert shown, f"{name} has no example: add `Example:` to its docstring, or use it on a page"


@cache
def on_reference_pages():
    """Return the ids of all values that a page of docs/reference names: one by one, or by module."""
    named = set()
    for page in DOCS.glob("reference/*.md"):
        for path, options in re.findall(r"^::: (\S+)\n((?: +.*\n)*)", page.read_text() + "\n", re.M):
            owner, _, last = path.rpartition(".")
            value = sys.modules.get(path) or getattr(importlib.import_module(owner), last)  # griffe prefers a module of that name
            if isinstance(value, types.ModuleType):
                members = re.search(r"members: \[(.*)\]", options)
                exported = members[1].split(", ") if members else value.__all__
                named |= {id(getattr(value, name)) for name in exported if f"{path}.{name}" not in sys.modules}
            named.add(id(value))
    return named


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_on_a_reference_page(name):
    assert id(NAMES[name]) in on_reference_pages(), f"{name} is on no page of docs/reference"


def pages_of(nav):
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in pages_of(entry)]


def test_every_page_is_in_the_nav_once_and_every_entry_is_a_page():
    nav = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(nav) == sorted(str(page) for page in PAGES)


def links_of(text):
    """Return the relative links of a page, code left out."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.S | re.M)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http", "#"))]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_links_of_a_page_lead_to_files(page):
    for link in links_of((DOCS / page).read_text()):
        assert (DOCS / page.parent / link.partition("#")[0]).is_file(), link


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return the programs of docs/start.md and what the page says that they print; run them in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "start.md").read_text()
    with torch.random.fork_rng():
        yield re.findall(r"```python\n(.*?)```.*?It prints.*?```\n(.*?)```", text, re.S)


@pytest.mark.parametrize("number", range(2))
@pytest.mark.filterwarnings("error::langevin.TrustWarning")
def test_the_start_page_shows_what_its_programs_print(number, start, capsys):
    """Words and shape line by line; numbers may round otherwise on another machine."""
    program, shown = start[number]
    exec(program, {})
    printed = capsys.readouterr().out
    assert [re.sub(r"[-\d.e]+", "0", line).split() for line in printed.splitlines()] == [
        re.sub(r"[-\d.e]+", "0", line).split() for line in shown.splitlines()
    ]
