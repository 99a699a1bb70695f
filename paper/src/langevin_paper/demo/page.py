"""One page of the tour: pictures and text in a single file that needs nothing else, on a wide screen and on a narrow one."""

from __future__ import annotations

import base64
import html
import io
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from langevin_paper.demo.shown import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Entry", "write_page"]

DPI = 160
STYLE = """
:root { color-scheme: light; }
body { font: 17px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: #222; background: #fff; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 1.2rem 1rem 3rem; }
h1 { font-size: 1.7rem; margin: 0.4rem 0; }
h2 { font-size: 1.25rem; margin: 0 0 0.4rem; }
section { border-top: 1px solid #ddd; padding: 1.6rem 0 1rem; }
.text { max-width: 50rem; }
.text p { margin: 0.3rem 0; }
.pictures { display: flex; flex-wrap: wrap; gap: 0.8rem 1.2rem; margin: 0.9rem 0 0.4rem; }
.pictures img { flex: 1 1 300px; min-width: 0; max-width: min(100%, 26rem); height: auto; align-self: flex-start; }
.pictures img.wide { max-width: min(100%, 32rem); }
pre { background: #f6f7f9; padding: 0.7rem 0.9rem; overflow-x: auto; border-radius: 4px; }
pre { font-size: 13.5px; line-height: 1.45; }
summary { cursor: pointer; color: #0072b2; }
.minus { color: #b2182b; } .plus { color: #00694a; }
.trouble { color: #b2182b; }
.small { color: #666; font-size: 0.85rem; overflow-wrap: anywhere; }
"""


@dataclass
class Entry:
    """The place of a part on the page.

    Args:
        title: of the part.
        shown: what it has to show; None where it failed or was left out.
        trouble: why, in one line.
        is_left_out: whether it could not be shown here, rather than failed.
        seconds: that it took.
    """

    title: str
    shown: Shown | None = None
    trouble: str = ""
    is_left_out: bool = False
    seconds: float = 0.0


def write_page(folder: Path, entries: list[Entry], planned: int, *, quick: bool = False) -> Path:
    """Write `index.html`, whole or not at all, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = "".join(_section(number, entry) for number, entry in enumerate(entries, 1))
    missing = (
        f"<p class=trouble>{len(entries)} of {planned} parts are here: the tour did not end.</p>" if len(entries) < planned else ""
    )
    tiny = "<p class=trouble>Tiny sizes (--quick): the numbers say little.</p>" if quick else ""
    text = (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1"><title>langevin: a tour</title>'
        f"<style>{STYLE}</style></head><body><main><h1>langevin: a tour</h1><div class=text><p>Six things that the library is for. "
        "Every number here was measured on this machine a moment ago.</p>"
        f"{tiny}{missing}</div>{sections}<p class=small>{html.escape(_machine())}; made by <code>langevin-paper demo</code>, "
        f"{sum(entry.seconds for entry in entries):.0f} s.</p></main></body></html>\n"
    )
    path = folder / "index.html"
    draft = folder / f".index.html.{os.getpid()}"
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    return path


def _section(number: int, entry: Entry) -> str:
    head = f"<section><h2>{number}. {html.escape(entry.title)}</h2>"
    if entry.shown is None:
        word = "Left out" if entry.is_left_out else "Failed"
        return f"{head}<p class=trouble>{word}: {html.escape(entry.trouble)}</p></section>"
    shown = entry.shown
    text = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in shown.sentences)
    pictures = "".join(_image(figure, shown.sentences[0]) for figure in shown.pictures)
    code = f"<pre>{_code(shown.code)}</pre>" if shown.code else ""
    printed = (
        f"<details><summary>what it prints</summary><pre>{html.escape(shown.printed)}</pre></details>" if shown.printed else ""
    )
    return f"{head}<div class=text>{text}</div><div class=pictures>{pictures}</div>{code}{printed}</section>"


def _code(code: str) -> str:
    """Return lines of code, those of a change in its colours."""
    kinds = {"- ": "minus", "+ ": "plus"}
    lines = (
        f"<span class={kinds[line[:2]]}>{html.escape(line)}</span>" if line[:2] in kinds else html.escape(line)
        for line in code.splitlines()
    )
    return "\n".join(lines)


def _image(figure: Figure, text: str) -> str:
    """Return a picture as a tag that holds its bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, dpi=DPI, format="png")
    data = base64.b64encode(stream.getvalue()).decode()
    width, height = figure.get_size_inches()
    kind = " class=wide" if width > 4.5 else ""
    size = f"width={round(width * DPI)} height={round(height * DPI)}"
    return f'<img{kind} {size} alt="{html.escape(text, quote=True)}" src="data:image/png;base64,{data}">'


def _machine() -> str:
    """Return versions and machine."""
    import torch

    import langevin

    threads = torch.get_num_threads()
    return (
        f"langevin {langevin.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}, seed 0"
    )
