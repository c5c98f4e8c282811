"""Bad input to prepare: one clear line each, exit status 2, and nothing half-written."""

import gzip
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

from transformer_jax.cli import main

GOOD = "".join(f"sentence number {i} of the text\n" for i in range(300)).encode()
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
        (tmp_path / name).write_bytes(GOOD)
    return tmp_path


def prepare(bench: Path, *options: str, source: str = "a.en", target: str = "a.de", workdir: str = "run") -> int:
    return main(
        [
            "prepare",
            f"--config={bench / 'config.py'}",
            f"--workdir={bench / workdir}",
            *([f"--config.data.source={bench / source}"] if source else []),
            *([f"--config.data.target={bench / target}"] if target else []),
            *options,
        ]
    )


def refused(bench: Path, capfd, *needles: str, how_many: int = 1, **how) -> None:
    """Prepare fails with status 2 and so many lines, in which all the needles are, and leaves no trace."""
    before = sorted(bench.rglob("*"))
    status = prepare(bench, *how.pop("options", ()), **how)
    output, errors = capfd.readouterr()
    lines = [line for line in errors.splitlines() if not line.startswith("training a")]
    assert (status, output, len(lines)) == (2, "", how_many), errors
    for line in lines:
        assert line.startswith("error: ")
    for needle in needles:
        assert needle in errors
    assert sorted(bench.rglob("*")) == before


def test_good_input_is_prepared(bench, capfd):
    assert prepare(bench) == 0
    output, errors = capfd.readouterr()
    assert "train: 240 pairs" in output
    assert all(line.startswith("held out for ") for line in errors.splitlines())  # fewer than the default


def test_missing_file(bench, capfd):
    refused(bench, capfd, "b.de: there is no such file", target="b.de")


def test_directory_for_a_file(bench, capfd):
    (bench / "b.de").mkdir()
    refused(bench, capfd, "b.de: is a directory", target="b.de")


def test_no_corpus_at_all(bench, capfd):
    refused(bench, capfd, "data.source", source="", target="")


def test_no_target(bench, capfd):
    refused(bench, capfd, "data.target", "a.en", target="")


@pytest.mark.parametrize("missing", [1, 100])
def test_unequal_line_counts(bench, capfd, missing):
    (bench / "a.de").write_bytes(b"".join(GOOD.splitlines(keepends=True)[missing:]))
    refused(bench, capfd, "a.en has 300 lines", f"a.de {300 - missing}")


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_empty_corpus(bench, capfd, content):
    (bench / "a.en").write_bytes(content)
    (bench / "a.de").write_bytes(content)
    refused(bench, capfd, "a.en", "a.de", "empty")


def test_nothing_left_by_cleaning(bench, capfd):
    (bench / "a.de").write_bytes(b"\n" * 300)
    refused(bench, capfd, "leaves none of 300 train pairs (empty 300)")


@pytest.mark.parametrize("side", ["a.en", "a.de"])
@pytest.mark.parametrize(
    ("bad", "needle"),
    [
        (b"caf\xe9", "is not UTF-8: byte 0xe9 at 4"),
        (b"a\0b", "has a NUL character at 2"),
        (b"\xff\xfea\0", "is not UTF-8: byte 0xff at 1"),
    ],
)
def test_unreadable_line(bench, capfd, side, bad, needle):
    lines = GOOD.splitlines()
    lines[122] = bad
    (bench / side).write_bytes(b"\n".join(lines) + b"\n")
    refused(bench, capfd, f"{side}:123: {needle}", "data.cleaning.unreadable=drop")


def test_several_unreadable_lines_are_named(bench, capfd):
    lines = GOOD.splitlines()
    for number in range(100, 107):
        lines[number] = b"caf\xe9"
    (bench / "a.de").write_bytes(b"\n".join(lines) + b"\n")
    places = [f"a.de:{number}: is not UTF-8" for number in range(101, 106)]
    refused(bench, capfd, *places, "7 lines", "data.cleaning.unreadable=drop", how_many=6)


def test_a_blank_line_of_the_target_is_reported_there(bench, capfd):
    lines = GOOD.splitlines()
    lines[122] = b" "
    (bench / "a.de").write_bytes(b"\n".join(lines) + b"\n")
    assert prepare(bench) == 0
    assert f"left out: 1 empty (first: {bench / 'a.de'}:123)" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("encoding", "needle"),
    [
        ("utf-16", ": is UTF-16; it must be UTF-8: iconv -f utf-16 -t utf-8 converts it"),
        ("utf-16-be", ": is UTF-16; it must be UTF-8: iconv -f utf-16 -t utf-8 converts it"),
        ("latin1", ":1: is not UTF-8: byte 0xe9 at 4 (if the file is Latin-1: iconv -f latin1 -t utf-8)"),
    ],
)
@pytest.mark.parametrize("side", ["a.en", "a.de"])
def test_another_encoding_is_reported_before_another_number_of_lines(bench, capfd, side, encoding, needle):
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (bench / side).write_bytes((mark + "café\n" * 301).encode(encoding))
    refused(bench, capfd, f"{side}{needle}", how_many=6 if encoding == "latin1" else 1)


def test_nothing_left_by_holding_out(bench, capfd):
    for name in ("a.en", "a.de"):
        (bench / name).write_bytes(b"always the same\n" * 300)
    refused(bench, capfd, "data.valid_size", "all 300 training pairs are equal to ones held out")


def test_unreadable_line_in_a_validation_file_is_never_dropped(bench, capfd):
    (bench / "v.en").write_bytes(b"fine\n\xff\n")
    (bench / "v.de").write_bytes(b"gut\ngut\n")
    valid = [f"--config.data.valid_{side}={bench / name}" for side, name in (("source", "v.en"), ("target", "v.de"))]
    refused(bench, capfd, "v.en:2: is not UTF-8", options=[*valid, "--config.data.cleaning.unreadable=drop"])


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-20],
        lambda content: content[:50] + b"\xff\xff\xff\xff\xff\xff" + content[56:],
        lambda content: b"plain text\n",
    ],
)
def test_damaged_compression(bench, capfd, suffix, spoil):
    noise = b"".join(os.urandom(30).hex().encode() + b"\n" for _ in range(300))
    packed = gzip.compress(noise) if suffix == ".gz" else zstandard.ZstdCompressor(write_checksum=True).compress(noise)
    (bench / f"a.en{suffix}").write_bytes(spoil(packed))
    refused(bench, capfd, f"a.en{suffix}: ", source=f"a.en{suffix}")


@pytest.mark.parametrize(
    ("name", "line", "needle"),
    [
        ("a.tsv", b"only one column", "a.tsv:301: has 1 columns"),
        ("a.tsv", b"one\ttwo\tthree", "a.tsv:301: has 3 columns"),
        ("a.jsonl", b"{", "a.jsonl:1: is not JSON"),
        ("a.jsonl", b'{"en": "x"}', "a.jsonl:1: has no text under the key 'source' (it has: en)"),
        ("a.jsonl", b'{"source": 3, "target": "x"}', "a.jsonl:1: has no text under the key 'source'"),
        ("a.jsonl", b"[1]", "a.jsonl:1: has no text under the key 'source'"),
        ("a.jsonl", b'{"source": "\\ud800", "target": "x"}', "a.jsonl:1: is not Unicode text"),
        ("a.jsonl", b'{"source": "\\u0000", "target": "x"}', "a.jsonl:1: has a NUL"),
    ],
)
def test_bad_columns_and_keys(bench, capfd, name, line, needle):
    good = b"source\ttarget\n" * 300 if name.endswith("tsv") else b""
    (bench / name).write_bytes(good + line + b"\n")
    refused(bench, capfd, needle, source=name, target="")


def test_vocabulary_larger_than_the_text_supports(bench, capfd):
    options = ["--config.data.tokenizer=bpe", "--config.model.vocab_size=30000"]
    refused(bench, capfd, "model.vocab_size = 30000: the training text supports at most", options=options)


def test_number_of_files_differs(bench, capfd):
    refused(bench, capfd, "source has 2 files", options=[f"--config.data.source={bench / 'a.en'},{bench / 'a.en'}"])


def test_files_and_a_corpus(bench, capfd):
    refused(bench, capfd, "give only one", options=["--config.data.corpus=copy"])


@pytest.mark.parametrize(
    ("pair", "needle"),
    [("wmt14_translate/de-xx", "did you mean wmt14_translate/"), ("wmt41/de-en", "no such data set")],
)
def test_unknown_tfds_name(bench, capfd, pair, needle):
    refused(bench, capfd, needle, source="", target="", options=[f"--config.data.corpus={pair}"])


def test_bad_tokenizer_file(bench, capfd):
    refused(
        bench, capfd, "a.en: is not a SentencePiece model", options=[f"--config.data.tokenizer_file={bench / 'a.en'}"]
    )


def test_a_second_vocabulary_without_its_file(bench, capfd):
    options = [f"--config.data.tokenizer_file={bench / 'a.en'}", "--config.model.target_vocab_size=50"]
    options.append("--config.model.tie_embeddings=none")
    refused(bench, capfd, "model.target_vocab_size = 50", "data.target_tokenizer_file", options=options)


@pytest.mark.parametrize("what", ["file", "directory with other things"])
def test_the_target_directory_is_taken(bench, capfd, what):
    taken = bench / "run" / "data"
    taken.parent.mkdir()
    if what == "file":
        taken.write_text("mine")
    else:
        taken.mkdir()
        (taken / "thesis.txt").write_text("mine")
    refused(bench, capfd, f"{taken}: exists and is not a prepared corpus")


def test_the_workdir_is_a_file(bench, capfd):
    refused(bench, capfd, "a.en: is a file", workdir="a.en")


def test_what_is_odd_but_good(bench, capfd):
    """A 500,000-character line, Windows line ends, a byte order mark, Unicode separators, an empty side: no errors."""
    lines = GOOD.splitlines()
    lines[5] = b"x" * 500_000
    lines[7] = "one\u2028two\u0085three\x0bfour".encode()
    lines[9] = b""
    (bench / "a.en").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n")
    assert prepare(bench) == 0
    output, errors = capfd.readouterr()
    assert all(line.startswith("held out for ") for line in errors.splitlines())  # fewer than the default
    for counted in ("left out: 1 too long", "left out: 1 empty"):
        assert counted in output
    for counted in ("carriage return stripped: 300", "byte order mark stripped: 1"):
        assert counted in output
    assert f"{bench / 'a.en'}:10" in output


# The disk.


def failed(bench: Path, capfd, status: int, workdir: Path, message: str) -> None:
    assert prepare(bench, workdir=str(workdir)) == status
    assert capfd.readouterr() == ("", f"{message}\n")


def test_a_file_size_limit(bench, capfd):
    run, limits = bench / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        message = "a file became too large; make room or choose another directory"
        failed(bench, capfd, 1, run, f"failed: {run / 'data'}: {message}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not run.exists()


@pytest.fixture
def mounted(tmp_path):
    """A function that mounts a small file system, where this user may."""
    place = tmp_path / "mounted"
    place.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting needs rights that this user lacks")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True, check=False)


@pytest.mark.parametrize("kilobytes", [4, 32, 64])
def test_a_full_disk(bench, capfd, mounted, kilobytes):
    run = mounted(f"size={kilobytes}k") / "run"
    failed(bench, capfd, 1, run, f"failed: {run / 'data'}: the disk is full; make room or choose another directory")
    assert list(run.parent.iterdir()) == []


def test_a_read_only_place(bench, capfd, mounted):
    run = mounted("ro") / "run"
    failed(bench, capfd, 2, run, f"error: {run}: it is on a read-only file system")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_write_permission(bench, capfd):
    (bench / "closed").mkdir(mode=0o500)
    run = bench / "closed" / "run"
    failed(bench, capfd, 2, run, f"error: {run}: no permission to write there")
