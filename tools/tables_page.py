"""Puts the tables and findings of docs/tables/report.md into docs/tables.md, below its line "## Against published numbers".

langevin-paper report --records docs/tables/records --out docs/tables && python tools/tables_page.py
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
MARK = "<!-- below: tools/tables_page.py -->\n"


def tables(report: str) -> str:
    """Return the sections of a report from their titles on, without what stands before the first."""
    _, *sections = report.split("\n## ")
    return "".join(f"\n### {section.strip()}\n" for section in sections)


if __name__ == "__main__":
    page = DOCS / "tables.md"
    head, mark, _ = page.read_text().partition(MARK)
    page.write_text(head + mark + tables((DOCS / "tables" / "report.md").read_text()))
