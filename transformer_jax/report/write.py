"""The report of a sweep's folder as files: pages, tables in LaTeX, figures. Reads files only, in whatever state."""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_jax.errors import BadInput
from transformer_jax.files import paths
from transformer_jax.files.atomic import explained, write_atomically
from transformer_jax.files.record import read_object
from transformer_jax.pictures.pages import render
from transformer_jax.report import paper_figures
from transformer_jax.report.content import Content, to_document, to_json
from transformer_jax.report.curves import learning_curves
from transformer_jax.report.differences import forests
from transformer_jax.report.document import BEST
from transformer_jax.report.latex import to_latex
from transformer_jax.report.results import load_sweep
from transformer_jax.report.texts import to_csv, to_markdown

# The files of "html"; the first marks the others as those of a report.
PAGES = ("report.json", "report.md", "table.csv", "index.html")
# All other files contain it, so that a file of the user's is recognized.
MADE_BY = "transformer-jax report"
TEMPLATE = Path(__file__).parent / "templates" / "report.html"
# Endings of files, which the name of a directory hardly has.
ENDINGS = {".csv", ".htm", ".html", ".jpg", ".json", ".md", ".pdf", ".png", ".svg", ".tex", ".txt"}
LONGEST_NAME = 80


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    formats: Sequence[str] = ("html",),
) -> tuple[Content, Path]:
    """Writes SWEEP/report/, or `output`, as "html", "latex", "svg" or "pdf"; returns the content and the directory."""
    content = read(folder)
    return content, write(content, output, formats)[0].parent


def read(folder: str | Path) -> Content:
    return Content(load_sweep(folder))


def write(content: Content, output: str | Path | None, formats: Sequence[str]) -> list[Path]:
    """Writes the files of these formats; returns their paths."""
    directory = content.sweep.path / "report" if output is None else _directory(output)
    files = {name: text for form in formats for name, text in _files(content, form)}
    if not files:
        raise BadInput(f"{content.sweep.path}: nothing is measured yet, so there are no figures")
    with explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if output is not None:
            _refuse_foreign(directory, list(files))
        for name, text in files.items():
            with write_atomically(directory / name) as file:
                file.write(text)
    return [directory / name for name in files]


def _directory(output: str | Path) -> Path:
    path = Path(paths.expanded(output))
    if path.suffix.lower() in ENDINGS and not path.is_dir():
        known = {".tex": "latex", ".svg": "svg", ".pdf": "pdf"}.get(path.suffix.lower(), "html")
        what = {"html": "the pages", "latex": "the tables"}.get(known, "the figures")
        raise BadInput(
            f"--output={output}: must be a directory; --format={known} --output={path.with_suffix('')} writes {what} "
            "there, each a file"
        )
    return path


def _files(content: Content, form: str) -> Iterator[tuple[str, bytes]]:
    """The name and content of every file of a format."""
    if form == "html":
        document = to_document(content)
        # Bytes of a file name that are not UTF-8 are written as JSON escapes.
        found = json.dumps(to_json(content), ensure_ascii=False, indent=1) + "\n"
        yield PAGES[0], found.encode(errors="backslashreplace")
        texts = (
            to_markdown(document),
            to_csv(content),
            render(TEMPLATE, title=document.title, document=document, best=BEST),
        )
        for name, text in zip(PAGES[1:], texts, strict=True):
            # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
            yield name, text.encode("utf-8", "replace")
    elif form == "latex":
        notes = [f"Made by {MADE_BY}.", content.state, *content.mixtures]
        for findings, table in zip(content.tests, content.tables, strict=True):
            text = to_latex(content.sweep, findings, table, notes)
            yield f"table_{_named(findings.split)}.tex", text.encode("utf-8", "replace")
    else:
        for findings in content.tests:
            for metric, plot in forests(content.sweep, findings).items():
                name = f"differences_{metric}_{_named(findings.split)}.{form}"
                yield name, paper_figures.drawn(plot, form, MADE_BY)
        for curves in learning_curves(content.sweep):
            yield f"curves_{_named(curves.title)}.{form}", paper_figures.drawn(curves, form, MADE_BY)


def _named(title: str) -> str:
    """A title as part of a file's name."""
    return re.sub(r"[^\w.=+-]+", "_", title)[:LONGEST_NAME]


def _refuse_foreign(directory: Path, names: Sequence[str]) -> None:
    """Refuses to replace files of these names that are not those of an earlier report."""
    taken = [name for name in names if (directory / name).exists()]
    pages = [name for name in taken if name in PAGES]
    with contextlib.suppress(BadInput):
        if pages and read_object(directory / PAGES[0]).keys() >= {"format", "question", "state", "runs"}:
            pages = []
    foreign = pages + [n for n in taken if n not in PAGES and MADE_BY.encode() not in (directory / n).read_bytes()]
    if foreign:
        raise BadInput(
            f"{directory}: has {', '.join(foreign)}, not of a report; give another --output, or move them away"
        )
