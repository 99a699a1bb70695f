"""What the documentation site adds to mkdocs: formulas as MathML, room in tables, files that pages link, `Example:` as a section.

mkdocs calls the functions `on_...`; mkdocstrings takes `Examples`. Both are named in mkdocs.yml.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

ROOT = Path(__file__).parents[1]
OUTWARD = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(?:#L(\d+))?\)")
CELL = re.compile(r"<td>(.*?)</td>", re.S)
LONG = 90  # characters: a cell of so many is a sentence, and gets room for one
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def outside(page: str, link: str) -> str | None:
    """Return the file of the repository that a page links, or None if it is in docs/ itself.

    Example:
        >>> outside("study/README.md", "../../README.md"), outside("study/README.md", "../theory.md")
        ('README.md', None)
    """
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def on_files(files: Files, config: Any) -> Files:
    """Add the static reports, index.html, under a name that leaves the README its place, and the source files that pages link."""
    for report in sorted((ROOT / "docs").glob("*/index.html")):
        files.append(File.generated(config, f"{report.parent.name}/all.html", abs_src_path=str(report)))
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    linked = {outside(page, link) for page, text in pages.items() for link, _ in OUTWARD.findall(text)}
    for path in sorted(linked - {None}):
        style = HtmlFormatter(full=True, title=path, linenos="inline", lineanchors="L", style="default")
        text = highlight((ROOT / path).read_text(), get_lexer_for_filename(path), style)
        files.append(File.generated(config, f"source/{path}.html", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links out of docs/ to the site's copy of the file, at their line, and those to static reports to `all.html`."""

    def inside(link: re.Match[str]) -> str:
        path = outside(page.file.src_uri, link[1])
        if path is None:
            return link[0]
        place = posixpath.relpath(f"source/{path}.html", posixpath.dirname(page.file.src_uri) or ".")
        return f"]({place}{f'#L-{link[2]}' if link[2] else ''})"

    return OUTWARD.sub(inside, markdown.replace("index.html)", "all.html)"))


def marked(cell: re.Match[str]) -> str:
    """Return a cell of a table, one with a sentence in it marked so: the style sheet keeps it from becoming a tower of words.

    Example:
        >>> CELL.sub(marked, "<td>yes</td>")
        '<td>yes</td>'
        >>> CELL.sub(marked, f"<td>{'word ' * 20}</td>")[:17]
        '<td class="long">'
    """
    words = html.unescape(re.sub(r"<[^>]*>", "", cell[1]))
    return f'<td class="long">{cell[1]}</td>' if len(words) > LONG else cell[0]


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Turn formulas into MathML, which browsers draw by themselves, and give sentences in tables room."""
    display = {"(": "inline", "[": "block"}
    content = CELL.sub(marked, content)
    return FORMULA.sub(lambda formula: convert(html.unescape(formula[3]), display=display[formula[2]]), content)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that loads anything from elsewhere: the site is read without a network."""
    foreign = re.search(r'<(?:script|img|iframe)[^>]+src="?https?:|<link[^>]+rel="?stylesheet[^>]+https?:', output)
    if foreign:
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {output[foreign.start() :][:120]}")
    return output


class Examples(griffe.Extension):
    """Read the title `Example:` of our docstrings as the section that griffe calls `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename it in one object's docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
