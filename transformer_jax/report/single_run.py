"""The report of one run: its scores with their signatures, how it was made, and what to cite."""

import shlex
from pathlib import Path
from typing import Any

from transformer_jax.files.record import read_record
from transformer_jax.report.report import NO_VERSIONS
from transformer_jax.report.results import parsing, without_folders
from transformer_jax.report.text import TEMPLATES
from transformer_jax.report.write import JSON, json_text, render_markdown, write_files
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import read_metrics
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
            evaluations.append(_evaluation(read_record(file)))
    versions: dict[str, Any] = {}
    with parsing(path / "versions.json", problems):
        versions = read_record(path / "versions.json")
    _, _, words = str(versions.get("command", "?")).partition(" ")  # without the path of the program
    facts = {"command": f"transformer-jax {words}"}
    facts |= {name: str(version) for name, version in versions.items() if name not in NO_VERSIONS and version}
    found = {
        "format": 1,
        "state": _state(path),
        "facts": facts,
        "problems": problems,
        "evaluations": evaluations,
        "citation": (TEMPLATES / "citation.bib").read_text(encoding="utf-8").replace("VERSION", __version__).strip(),
    }
    text = render_markdown("run.md", **found, name=path.resolve().name, workdir=shlex.quote(str(path)))
    return text, write_files({JSON: json_text(found), "report.md": text}, path, output)


def _state(path: Path) -> str:
    """How far it is, and its best validation."""
    lines = read_metrics(path / "metrics.jsonl")
    if not lines:
        return "No metrics have been written yet."
    planned = RunFolder(path).last_step()
    text = f"{max(line['step'] for line in lines):,} updates" + (f" of {planned:,}." if planned else ".")
    if validations := [line for line in lines if line.get("valid_loss") is not None]:
        best = min(validations, key=lambda line: line["valid_loss"])
        text += f" Lowest validation loss: {best['valid_loss']:.4f}, at step {best['step']:,}."
    return text


def _evaluation(record: dict[str, Any]) -> dict[str, Any]:
    """The scores of one evaluation, with their signatures."""
    return {
        "test_set": without_folders(str(record["test_set"])),
        "sentences": int(record["n"]),
        "weights": str(record["weights"]),
        "steps": ", ".join(f"{step:,}" for step in record["steps"]),
        "scores": {
            name: (float(measure["score"]), str(measure.get("signature", "")))
            for name, measure in record["measures"].items()
        },
        "perplexity": float(record["perplexity"]["per_token"]),
    }
