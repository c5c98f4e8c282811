"""Bad input to prepare: one clear line each, exit status 2, and nothing half-written."""

import resource
from pathlib import Path

import pytest

from transformer_jax.cli import main

LINES = [f"sentence number {i} of the text".encode() for i in range(300)]
CONFIG = """
from transformer_jax.config import default_config

def get_config():
    config = default_config()
    config.data.tokenizer = "words"
    return config
"""


@pytest.fixture
def bench(tmp_path):
    """A config and a good pair of files; tests spoil one of them."""
    (tmp_path / "config.py").write_text(CONFIG)
    for name in ("a.en", "a.de"):
        write(tmp_path / name, LINES)
    return tmp_path


def write(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def spoiled(line: bytes) -> list[bytes]:
    """The lines with another line 123."""
    return [*LINES[:122], line, *LINES[123:]]


def prepare(bench: Path, *options: str, source: str = "a.en", target: str = "a.de", workdir: str = "run") -> int:
    texts = [f"--config.data.{side}={bench / name}" for side, name in (("source", source), ("target", target)) if name]
    return main(["prepare", f"--config={bench / 'config.py'}", f"--workdir={bench / workdir}", *texts, *options])


def refused(bench: Path, capfd, *needles: str, options=(), **how) -> None:
    """Prepare fails with status 2 and a message with all the needles, and leaves no trace."""
    before = sorted(bench.rglob("*"))
    status = prepare(bench, *options, **how)
    output, errors = capfd.readouterr()
    assert (status, output) == (2, ""), errors
    assert errors.startswith("error: ") or "\nerror: " in errors
    assert "Traceback" not in errors
    for needle in needles:
        assert needle in errors
    assert sorted(bench.rglob("*")) == before


@pytest.mark.parametrize(
    ("source", "target", "needles"),
    [
        ("a.en", "b.de", ["b.de: there is no such file"]),
        ("a.en", "folder", ["folder: is a directory"]),
        ("", "", ["data.source"]),
        ("a.en", "", ["data.target"]),
        ("a.en", "empty", ["a.en has 300 lines", "empty 0"]),
        ("empty", "empty", ["empty: empty"]),
        ("a.en", "blank", ["leaves none of 300 pairs (empty 300)"]),
        ("same", "same", ["data.valid_size", "all 300 training pairs"]),
        ("utf16", "a.de", ["utf16: is UTF-16"]),
        ("latin1", "a.de", ["301 lines", "latin1:1: is not UTF-8: byte 0xe9 at 4"]),
    ],
)
def test_files(bench, capfd, source, target, needles):
    (bench / "folder").mkdir()
    (bench / "empty").touch()
    write(bench / "blank", [b""] * 300)
    write(bench / "same", [b"always the same"] * 300)
    for encoding in ("utf-16", "latin1"):  # reported before the other number of lines
        (bench / encoding.replace("-", "")).write_bytes(("café\n" * 301).encode(encoding))
    refused(bench, capfd, *needles, source=source, target=target)


@pytest.mark.parametrize(("side", "bad", "needle"), [("a.en", b"caf\xe9", "UTF-8"), ("a.de", b"a\0b", "NUL")])
def test_unreadable_line(bench, capfd, side, bad, needle):
    write(bench / side, spoiled(bad))
    refused(bench, capfd, f"{side}:123: ", needle, "data.cleaning.unreadable=drop")


def test_unreadable_line_in_a_validation_file_is_never_dropped(bench, capfd):
    write(bench / "v", [b"fine", b"\xff"])
    valid = [f"--config.data.valid_{side}={bench / 'v'}" for side in ("source", "target")]
    refused(bench, capfd, "v:2: is not UTF-8", options=[*valid, "--config.data.cleaning.unreadable=drop"])


@pytest.mark.parametrize(
    ("name", "line", "needle"),
    [
        ("a.tsv", b"one\ttwo\tthree", "a.tsv:1: has 3 columns"),
        ("a.jsonl", b"{", "a.jsonl:1: is not JSON"),
        ("a.jsonl", b'{"source": 3, "en": "x"}', "has source, en"),
        ("a.jsonl", b"[1]", "is a list"),
        ("a.jsonl", b'{"source": "\\ud800", "target": "x"}', "a.jsonl:1: is not Unicode text"),
    ],
)
def test_bad_columns_and_keys(bench, capfd, name, line, needle):
    write(bench / name, [line])
    refused(bench, capfd, needle, source=name, target="")


@pytest.mark.parametrize(
    ("options", "needles"),
    [
        (["data.tokenizer=bpe", "model.vocab_size=30000"], ["model.vocab_size = 30000: ", "data.hard_vocab_limit"]),
        (["data.source=a,b"], ["source = a, b and target = "]),
        (["data.corpus=copy"], ["give only one"]),
        (["data.directory=/"], ["/: is the root of the file system"]),
        (["data.tokenizer_file=a.en"], ["a.en: is not a SentencePiece model"]),
        (
            ["data.tokenizer_file=a.en", "model.target_vocab_size=50", "model.tie_embeddings=none"],
            ["model.target_vocab_size = 50", "data.target_tokenizer_file"],
        ),
    ],
)
def test_options(bench, capfd, monkeypatch, options, needles):
    monkeypatch.chdir(bench)
    refused(bench, capfd, *needles, options=[f"--config.{option}" for option in options])


def test_the_target_directory_is_taken(bench, capfd):
    (bench / "run/data").mkdir(parents=True)
    (bench / "run/data/thesis.txt").write_text("mine")
    refused(bench, capfd, f"{bench / 'run/data'}: exists and is not a prepared corpus")
    refused(bench, capfd, "a.en: File exists", workdir="a.en")


def test_the_target_directory_is_a_mount_point(bench, capfd, monkeypatch):
    (bench / "run/data").mkdir(parents=True)
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path == bench / "run/data")
    refused(bench, capfd, f"{bench / 'run/data'}: is a mount point")


def test_what_is_odd_but_good(bench, capfd):
    """A 500,000-character line, Windows line ends, a byte order mark, Unicode separators, an empty side: no errors."""
    lines = [*LINES]
    lines[5] = b"x" * 500_000
    lines[7] = "one\u2028two\u0085three\x0bfour".encode()
    lines[9] = b""
    (bench / "a.en").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n")
    write(bench / "a.de", spoiled(b" "))
    assert prepare(bench) == 0
    output, errors = capfd.readouterr()
    assert all(line.startswith("held out for ") for line in errors.splitlines())  # fewer than the default
    assert f"left out: 2 empty (first: {bench / 'a.en'}:10, {bench / 'a.de'}:123)" in output
    assert "left out: 1 too long" in output


# The disk.


def failed(bench: Path, capfd, status: int, workdir: Path, message: str) -> None:
    assert prepare(bench, workdir=str(workdir)) == status
    output, errors = capfd.readouterr()
    assert output == "" and errors.splitlines()[-1] == message


def test_a_file_size_limit(bench, capfd):
    run, limits = bench / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        failed(bench, capfd, 1, run, f"failed: {run / 'data'}: File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not run.exists()
