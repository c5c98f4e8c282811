"""The report of one run: its scores with their signatures, how it was made, and what to cite."""

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_record
from transformer_jax.report.method import NO_VERSIONS
from transformer_jax.report.results import parsing, without_folders
from transformer_jax.report.write import encoded, render_markdown, write_files
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.version import __version__

TITLES = {"bleu": "BLEU", "chrf": "chrF", "paper_bleu": "BLEU as in the paper", "exact_match": "Exact match, %"}
CITATION = f"""\
@inproceedings{{vaswani2017attention,
  title = {{Attention Is All You Need}},
  author = {{Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion
    and Gomez, Aidan N. and Kaiser, {{\\L}}ukasz and Polosukhin, Illia}},
  booktitle = {{Advances in Neural Information Processing Systems 30}},
  year = {{2017}},
}}
@software{{transformer_jax,
  title = {{transformer\\_jax: the Transformer of "Attention Is All You Need" in JAX and Flax}},
  author = {{{{The transformer\\_jax authors}}}},
  version = {{{__version__}}},
}}"""


class Evaluation(NamedTuple):
    """The scores of one evaluation."""

    test_set: str
    sentences: int
    weights: str
    steps: str
    scores: dict[str, tuple[float, str]]  # with their signatures
    perplexity: float


def is_run(folder: str | Path) -> bool:
    return (Path(folder) / "config.json").is_file() and not (Path(folder) / "sweep.json").exists()


def write(folder: str | Path, output: str | Path | None) -> tuple[str, list[Path]]:
    """Writes report.md and report.json; returns the text and their paths."""
    path = Path(folder)
    facts, problems = _facts(path), []
    evaluations: list[Evaluation] = []
    for file in sorted((path / "translations").glob("*.json")):
        try:
            evaluations.append(_evaluation(file))
        except BadInput as problem:
            problems.append(str(problem))
    lines = [line for line in read_metrics(path / "metrics.jsonl") if "valid_loss" in line]
    state = _state(path, lines)
    text = render_markdown(
        "run.md",
        name=path.resolve().name,
        state=state,
        evaluations=evaluations,
        titles=TITLES,
        problems=problems,
        facts=facts,
        citation=CITATION,
        workdir=shlex.quote(str(path)),
    )
    found = {
        "format": 1,
        "state": state,
        "facts": facts,
        "problems": problems,
        "evaluations": [each._asdict() for each in evaluations],
        "citation": CITATION,
    }
    content = (json.dumps(found, ensure_ascii=False, indent=1) + "\n").encode(errors="backslashreplace")
    return text, write_files({"report.json": content, "report.md": encoded(text)}, path, output)


def _state(path: Path, validations: list[dict[str, Any]]) -> str:
    """How far it is, and its best validation."""
    lines = read_metrics(path / "metrics.jsonl")
    if not lines:
        return "Not a single line of metrics is written yet."
    last, planned = max(line["step"] for line in lines), RunFolder(path).last_step()
    text = f"{last:,} updates" + (f" of {planned:,}." if planned else ".")
    if validations:
        best = min(validations, key=lambda line: line["valid_loss"])
        text += f" Lowest validation loss: {best['valid_loss']:.4f}, at step {best['step']:,}."
    return text


def _facts(path: Path) -> dict[str, str]:
    """What is needed to make the run again."""
    versions = RunFolder(path).versions()
    _, _, words = str(versions.get("command", "?")).partition(" ")  # without the path of the program
    facts = {"command": f"transformer-jax {words}"}
    return facts | {name: str(version) for name, version in versions.items() if name not in NO_VERSIONS}


def _evaluation(file: Path) -> Evaluation:
    record = read_record(file)
    with parsing(file):
        scores = {
            name: (float(found["score"]), str(found.get("signature", ""))) for name, found in record["measures"].items()
        }
        steps = ", ".join(f"{step:,}" for step in record["steps"])
        perplexity = float(record["perplexity"]["per_token"])
        test_set, weights = without_folders(str(record["test_set"])), str(record["weights"])
        return Evaluation(test_set, int(record["n"]), weights, steps, scores, perplexity)
