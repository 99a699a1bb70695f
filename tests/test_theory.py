"""docs/theory.md shows what docs/theory.py prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_has_the_output_of_its_command():
    printed = subprocess.run([sys.executable, DOCS / "theory.py"], capture_output=True, text=True, check=True).stdout
    shown = (DOCS / "theory.md").read_text().rsplit("```\n", 2)[1]
    assert shown.strip() == printed.strip()
    assert "0.4485" in printed  # the tempering that the page is about
    assert printed.count("< 1e-10           < 1\n") == 4  # the corrected step and sums keep their law, and settle there
