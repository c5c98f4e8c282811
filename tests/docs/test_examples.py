"""No block of code in README.md and docs/ goes untried.

- A ```python block after a line `<!-- runnable -->` is run, in a directory of its own for each document; the blocks of
  a document share their names. After `<!-- file: NAME -->` it is a file that the document's blocks use, and after
  `<!-- not run: REASON -->` it is neither. What must be there first stands in a comment, `<!-- setup` to `-->`.
- The commands of a ```sh block are not run, but every one of transformer-jax goes through the real command line's
  parser, and every file, option and make target must exist.
- ```text is what is no code, ```math a formula. A block with no language at all is an error.

The pages of the tutorial are run by tests/docs/test_tutorial.py.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.places import ROOT
from transformer_jax import cli, schema
from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.extension import file_of

MARKS = r"<!-- (?P<mark>runnable|file: \S+|not run: [^\n]+) -->\n+"
BLOCK = re.compile(
    rf"^(?:{MARKS})?```(?P<language>\w*)(?: title=\"PyTorch\")?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
SETUP = re.compile(r"^<!-- setup\n(?P<code>.*?)^-->$", re.MULTILINE | re.DOTALL)
DOCUMENTS = sorted({*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")})
OTHER_PROGRAMS = (
    "ct2-transformers-converter", "echo", "export", "gcloud", "git", "pip", "sacrebleu", "sbatch", "source", "tfds",
)  # fmt: skip


class Block(NamedTuple):
    language: str
    mark: str
    code: str
    line: int  # in the document


def blocks(document):
    """Every fenced block, and every setup as a block that is run."""
    text = document.read_text()
    found = [(m.start("code"), m["language"], m["mark"] or "", m["code"]) for m in BLOCK.finditer(text)]
    found += [(m.start("code"), "python", "runnable", m["code"]) for m in SETUP.finditer(text)]
    return [Block(*facts, text[:start].count("\n")) for start, *facts in sorted(found)]


def runs(document):
    return any(block.mark == "runnable" for block in blocks(document))


def by_name(documents):
    return pytest.mark.parametrize("document", documents, ids=lambda document: str(document.relative_to(ROOT)))


# What these pages do is tested in tests/model and tests/search; the pages themselves take long to compile.
LONG = ("jax_export.md", "modules.md", "search.md")


@by_name(
    [
        pytest.param(document, marks=pytest.mark.drill) if document.name in LONG else document
        for document in DOCUMENTS
        if runs(document)
    ]
)
def test_examples_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for block in blocks(document):
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.code)
        elif block.mark == "runnable":
            exec(compile("\n" * block.line + block.code, str(document), "exec"), names)


@by_name(DOCUMENTS)
def test_every_block_is_tried_or_says_why_not(document):
    text = document.read_text()
    assert len(re.findall(r"^\s*```", text, re.MULTILINE)) == 2 * len(BLOCK.findall(text)), "a fence without its other"
    assert len(re.findall(r"^<!-- (?:runnable|file:|not run|setup)", text, re.MULTILINE)) == sum(
        bool(block.mark) for block in blocks(document)
    ), "a mark without a block"
    marked_elsewhere = "tutorial" in document.parent.parts
    for block in blocks(document):
        place = f"{document}:{block.line}"
        assert block.language in ("python", "sh", "text", "math"), f"{place}: neither python, sh, text nor math"
        if block.language == "python":
            assert block.mark or marked_elsewhere, f"{place}: neither runnable, nor a file, nor not run for a reason"


@by_name([document for document in DOCUMENTS if any(block.language == "sh" for block in blocks(document))])
def test_commands_are_commands(document):
    files = [block.mark.removeprefix("file: ") for block in blocks(document) if block.mark.startswith("file: ")]
    for block in blocks(document):
        for command in commands(block.code) if block.language == "sh" else ():
            assert problem(command, files) is None, f"{document}:{block.line}: {shlex.join(command)}"


def commands(code):
    """The words of every command, without what is redirected."""
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                if words:
                    yield words
                words = []
            elif words and set(words[-1]) <= set("<>"):
                words.pop()
            else:
                words.append(word)


def problem(command, files):
    """What is wrong with a command of the documents, or None."""
    program, *arguments = command
    if program == "transformer-jax":
        return problem_of_ours(arguments, files)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return next((f"no target {word}" for word in arguments if "=" not in word and word not in targets), None)
    if program == "python":
        scripts = [word for word in arguments[:1] if word.endswith(".py")]
        return next((f"no file {script}" for script in scripts if not (ROOT / script).is_file()), None)
    return None if program in OTHER_PROGRAMS else f"unknown program {program}"


def problem_of_ours(arguments, files):
    try:
        overrides, rest = configuration.split_overrides(arguments)
        parser = cli._parser(rest[0])
        parsed, unknown = parser.parse_known_args(rest)
    except ValueError as error:
        return str(error)
    problems = [*unknown, *schema.lay_over(ExperimentConfig, {}, overrides)]
    named = [getattr(parsed, "config", None), getattr(parsed, "file", None)]
    named = [name.partition(":")[0] for name in named if isinstance(name, str) and ".py" in name]
    named += [file_of(text) for _, value in overrides for text in value.split(",") if schema.is_address(text)]
    problems += [f"no file {name}" for name in named if name not in files and not (ROOT / name).is_file()]
    return "; ".join(problems) or None
