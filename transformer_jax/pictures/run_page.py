"""One run on one page: a self-contained HTML file that a browser shows without a network.

Text that comes from a corpus or a model is escaped wherever it stands.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light; --ink: #1f2933; --soft: #66737f; --line: #e4e7eb; --accent: #2f6fb3; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); max-width: 62rem; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p.note, figcaption { color: var(--soft); font-size: .92rem; margin: .3rem 0; }
dl.numbers { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1.2rem 0; }
dl.numbers div { min-width: 7rem; } dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.5rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.2rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; font-size: .85rem; } .right { color: #2e7d4f; } .wrong { color: #b3412f; }
pre { background: #f6f8fa; padding: .8rem 1rem; overflow-x: auto; border-radius: .4rem; }
"""


PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
</body>
</html>
"""


class Picture(NamedTuple):
    figure: Figure
    caption: str


class Sample(NamedTuple):
    """A sentence, what the model made of it, and what was right where that is known."""

    source: str
    translation: str
    reference: str | None = None


def page(
    title: str,
    about: str,
    numbers: Mapping[str, str],
    pictures: Sequence[Picture] = (),
    samples: Sequence[Sample] = (),
    commands: str = "",
) -> str:
    """The page, as HTML."""
    parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="note">{html.escape(about)}</p>', _numbers(numbers)]
    if samples:
        parts += ["<h2>Translations</h2>", _samples(samples)]
    if pictures:
        shown = "".join(_picture(picture, number) for number, picture in enumerate(pictures))
        parts += ["<h2>Pictures</h2>", f'<div class="pictures">{shown}</div>']
    if commands:
        parts += ["<h2>Go on from here</h2>", f"<pre>{html.escape(commands)}</pre>"]
    return PAGE.format(title=html.escape(title), style=STYLE, body="\n".join(parts))


def _numbers(numbers: Mapping[str, str]) -> str:
    cells = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in numbers.items())
    return f'<dl class="numbers">{"".join(cells)}</dl>'


def _samples(samples: Sequence[Sample]) -> str:
    rows = []
    for source, translation, reference in samples:
        verdict = "" if reference is None else ' class="right"' if translation == reference else ' class="wrong"'
        cells = f"<td>{html.escape(source)}</td><td{verdict}>{html.escape(translation)}</td>"
        rows.append(f"<tr>{cells}<td>{html.escape(reference or '')}</td></tr>")
    head = "<tr><th>source</th><th>translation</th><th>reference</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _picture(picture: Picture, number: int) -> str:
    caption = html.escape(picture.caption)
    return f"<figure>{_svg(picture.figure, f'p{number}-')}<figcaption>{caption}</figcaption></figure>"


def _svg(figure: Figure, prefix: str) -> str:
    """A figure as an SVG element. Its ids are given a prefix: those of several pictures must not meet on one page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", svg)
