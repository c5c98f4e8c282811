"""The report of one run: its scores with their signatures, how it was made, and what to cite."""

import math
import shlex
from pathlib import Path
from typing import Any

from transformer_jax.files.record import read_typed
from transformer_jax.report.report import NO_VERSIONS
from transformer_jax.report.results import parsing, without_folders
from transformer_jax.report.text import TEMPLATES
from transformer_jax.report.write import JSON, json_text, render_markdown, write_files
from transformer_jax.runs.folder import RunFolder, Versions
from transformer_jax.runs.metrics import metrics_lines
from transformer_jax.runs.records import Record
from transformer_jax.version import __version__


def is_run(folder: str | Path) -> bool:
    return (Path(folder) / "config.json").is_file() and not (Path(folder) / "sweep.json").exists()


def write(folder: str | Path, output: str | Path | None) -> tuple[str, list[Path]]:
    """Writes report.md and report.json; returns the text and their paths."""
    path = Path(folder)
    evaluations: list[dict[str, Any]] = []
    problems: list[str] = []
    for file in sorted((path / "translations").glob("*.json")):
        with parsing(file, problems):
            evaluations.append(_evaluation(read_typed(file, Record)))
    versions: dict[str, Any] = {}
    with parsing(path / "versions.json", problems):
        versions = dict(read_typed(path / "versions.json", Versions))
    _, _, words = str(versions.get("command", "?")).partition(" ")  # without the path of the program
    facts = {"command": f"transformer-jax {words}"}
    facts |= {name: str(version) for name, version in versions.items() if name not in NO_VERSIONS and version}
    found = {
        "format": 1,
        "state": _state(path, problems),
        "facts": facts,
        "problems": problems,
        "evaluations": evaluations,
        "citation": (TEMPLATES / "citation.bib").read_text(encoding="utf-8").replace("VERSION", __version__).strip(),
    }
    text = render_markdown("run.md", **found, name=path.resolve().name, workdir=shlex.quote(str(path)))
    return text, write_files({JSON: json_text(found), "report.md": text}, path, output)


def _state(path: Path, problems: list[str]) -> str:
    """How far it is, and its best validation."""
    last: int | None = None
    best: dict[str, Any] = {}
    for line in metrics_lines(path / "metrics.jsonl", problems):
        last = max(line["step"], last or 0)
        if line.get("valid_loss") is not None and line["valid_loss"] < best.get("valid_loss", math.inf):
            best = line
    if last is None:
        return "No metrics have been written yet."
    planned = RunFolder(path).last_step()
    text = f"{last:,} updates" + (f" of {planned:,}." if planned else ".")
    if best:
        text += f" Lowest validation loss: {best['valid_loss']:.4f}, at step {best['step']:,}."
    return text


def _evaluation(record: Record) -> dict[str, Any]:
    """The scores of one evaluation, with their signatures."""
    return {
        "test_set": without_folders(record["test_set"]),
        "sentences": record["n"],
        "weights": record["weights"],
        "steps": ", ".join(f"{step:,}" for step in record["steps"]),
        "scores": {
            name: (measure["score"], measure.get("signature", "")) for name, measure in record["measures"].items()
        },
        "perplexity": record["perplexity"]["per_token"],
    }
