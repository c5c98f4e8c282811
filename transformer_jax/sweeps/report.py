"""A sweep's folder made into a report: a page, Markdown, CSV, JSON. Reads files only, in whatever state they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformer_jax.data.disk import explained, publish_json, published
from transformer_jax.sweeps.report_content import Content, gather, to_json
from transformer_jax.sweeps.report_csv import as_csv
from transformer_jax.sweeps.report_page import page
from transformer_jax.sweeps.report_text import markdown
from transformer_jax.sweeps.results import load_sweep


def write_report(folder: str | Path, output: str | Path | None = None) -> tuple[Content, Path]:
    """Writes SWEEP/report/, or `output`; returns what it says and where it is."""
    content = gather(load_sweep(folder))
    directory = Path(folder) / "report" if output is None else Path(output)
    with explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in _texts(content):
            with published(directory / name) as file:
                # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
                file.write(text.encode("utf-8", "replace"))
        publish_json(directory / "report.json", to_json(content))
    return content, directory


def _texts(content: Content) -> Iterator[tuple[str, str]]:
    yield "report.md", markdown(content)
    yield "table.csv", as_csv(list(zip(content.tests, content.tables, strict=True)))
    yield "index.html", page(content)
