"""The report of a sweep's folder, written as a page, Markdown, CSV and JSON. Reads files only, in whatever state."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.errors import BadInput
from transformer_jax.files import paths
from transformer_jax.files.atomic import explained, publish_json, published
from transformer_jax.files.record import read_object
from transformer_jax.pictures.pages import render
from transformer_jax.report.content import Content, to_document, to_json
from transformer_jax.report.results import load_sweep
from transformer_jax.report.texts import to_csv, to_markdown

JSON, TEXTS = "report.json", ("report.md", "table.csv", "index.html")
TEMPLATE = Path(__file__).parent / "templates" / "report.html"


def write_report(
    folder: str | Path, output: str | Path | None = None, others: Sequence[str | Path] = ()
) -> tuple[Content, Path]:
    """Writes SWEEP/report/, or `output`; returns the content and the directory. `others` have variants of the sweep."""
    content = Content(load_sweep(folder), [load_sweep(other) for other in others])
    if others and content.tasks is None:
        raise BadInput(
            f"--with={', '.join(map(str, others))}: no variant has results in all of these sweeps and in {folder}"
        )
    document = to_document(content)
    directory = Path(paths.expanded(folder if output is None else output)) / ("report" if output is None else "")
    with explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if output is not None:
            _refuse_foreign(directory)
        publish_json(directory / JSON, to_json(content))  # first: it marks the other files as those of a report
        texts = (to_markdown(document), to_csv(content), render(TEMPLATE, title=document.title, document=document))
        for name, text in zip(TEXTS, texts, strict=True):
            with published(directory / name) as file:
                # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
                file.write(text.encode("utf-8", "replace"))
    return content, directory


def _refuse_foreign(directory: Path) -> None:
    """Refuses to replace files of these names that are not those of an earlier report."""
    taken = [name for name in (JSON, *TEXTS) if (directory / name).exists()]
    with contextlib.suppress(BadInput):
        if not taken or read_object(directory / JSON).keys() >= {"format", "question", "state", "runs"}:
            return
    raise BadInput(f"{directory}: has {', '.join(taken)}, not of a report; give another --output, or move them away")
