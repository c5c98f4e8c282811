"""A sweep's folder made into a report: a page, Markdown, CSV, JSON. Reads files only, in whatever state they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.errors import BadInput
from transformer_jax.files import paths
from transformer_jax.files.atomic import explained, publish_json, published
from transformer_jax.files.record import read_object
from transformer_jax.report.content import Content, gather, to_json
from transformer_jax.report.csv import as_csv
from transformer_jax.report.page import page
from transformer_jax.report.results import load_sweep
from transformer_jax.report.text import markdown

JSON, PARTS = "report.json", ("report.md", "table.csv", "index.html")


def write_report(folder: str | Path, output: str | Path | None = None) -> tuple[Content, Path]:
    """Writes SWEEP/report/, or `output`; returns what it says and where it is."""
    content = gather(load_sweep(folder))
    directory = Path(paths.expanded(folder if output is None else output)) / ("report" if output is None else "")
    with explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if output is not None:
            _refuse_foreign(directory)
        publish_json(directory / JSON, to_json(content))  # first: it says whose the others are
        for name, text in _texts(content):
            with published(directory / name) as file:
                # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
                file.write(text.encode("utf-8", "replace"))
    return content, directory


def _refuse_foreign(directory: Path) -> None:
    """Refuses to replace files of these names that are not of an earlier report."""
    taken = [name for name in (JSON, *PARTS) if (directory / name).exists()]
    with contextlib.suppress(BadInput):
        if not taken or read_object(directory / JSON).keys() >= {"format", "question", "state", "runs"}:
            return
    raise BadInput(f"{directory}: has {', '.join(taken)}, not of a report; give another --output, or move them away")


def _texts(content: Content) -> Iterator[tuple[str, str]]:
    text, table, html = PARTS
    yield text, markdown(content)
    yield table, as_csv(list(zip(content.tests, content.tables, strict=True)))
    yield html, page(content)
