"""Text files: every kind gives the same pairs, in order, whatever the size of the chunks."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora import open_corpus

PAIRS = [(f"sentence {i} one\u2028two  {'x' * (i % 7)}", f"Satz {i} é ") for i in range(101)]


def read(config: DataConfig, split: str = "train", size: int = 17) -> list[tuple[str, str]]:
    return [pair for chunk in open_corpus(config).chunks(split, size) for pair in chunk.pairs]


def written(path: Path, lines: list[str], end: str = "\n") -> str:
    content = "".join(line + end for line in lines).encode()
    if path.suffix == ".gz":
        # Two members, as `cat a.gz b.gz` makes them.
        content = gzip.compress(content[:100]) + gzip.compress(content[100:])
    elif path.suffix == ".zst":
        content = zstandard.compress(content[:100]) + zstandard.compress(content[100:])
    path.write_bytes(content)
    return str(path)


def two_files(directory: Path, suffix: str = "", end: str = "\n", pairs=PAIRS) -> dict:
    return {
        side: (written(directory / f"{side}{suffix}", [pair[k] for pair in pairs], end),)
        for k, side in enumerate(("source", "target"))
    }


@pytest.mark.parametrize("suffix", [".txt", ".gz", ".zst"])
@pytest.mark.parametrize("size", [1, 17, 1000])
def test_two_aligned_files(tmp_path, suffix, size):
    assert read(DataConfig(**two_files(tmp_path, suffix)), size=size) == PAIRS


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_tsv(tmp_path, suffix):
    path = written(tmp_path / f"pairs.tsv{suffix}", ["\t".join(pair) for pair in PAIRS])
    assert read(DataConfig(source=(path,))) == PAIRS


@pytest.mark.parametrize("nested", [False, True])
def test_jsonl(tmp_path, nested):
    pairs = [*PAIRS, ("with\na line feed", "and\ta tab")]
    records = [{"de": target, "en": source, "id": 3} for source, target in pairs]
    lines = [json.dumps({"translation": record} if nested else record) for record in records]
    path = written(tmp_path / "pairs.jsonl.gz", lines)
    assert read(DataConfig(source=(path,), source_language="en", target_language="de")) == pairs
    reverse = DataConfig(source=(path,), source_language="de", target_language="en")
    assert read(reverse) == [(target, source) for source, target in pairs]


def test_several_files_are_read_in_turn(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = two_files(tmp_path / "a", pairs=PAIRS[:40]), two_files(tmp_path / "b", ".gz", pairs=PAIRS[40:])
    config = DataConfig(source=first["source"] + second["source"], target=first["target"] + second["target"])
    assert read(config) == PAIRS
    corpus = open_corpus(config)
    places = [chunk.place(i) for chunk in corpus.chunks("train", 17) for i in range(len(chunk.pairs))]
    assert places[39].endswith("a/source:40")
    assert places[40].endswith("b/source.gz:1")
    assert [source["lines"] for source in corpus.sources()] == [40, 40, 61, 61]


def test_windows_line_ends_and_byte_order_mark_are_stripped_and_counted(tmp_path):
    config = DataConfig(**two_files(tmp_path, end="\r\n"))
    path = Path(config.source[0])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(config) == PAIRS
    (chunk,) = open_corpus(config).chunks("train", 1000)
    assert chunk.oddities == {"carriage return stripped": 2 * len(PAIRS), "byte order mark stripped": 1}


def test_the_keys_of_a_split_are_part_of_the_identity(tmp_path):
    train = written(tmp_path / "train.tsv", ["a\tb"])
    valid = written(tmp_path / "valid.jsonl", ['{"en": "a", "de": "b", "fr": "c"}'])
    german, french = (
        open_corpus(DataConfig(source=(train,), valid_source=(valid,), source_language="en", target_language=target))
        for target in ("de", "fr")
    )
    assert german.identity() != french.identity()
    aligned = {"source": (valid,), "target": (valid,)}  # read as lines
    assert open_corpus(DataConfig(**aligned)).identity()["keys"] == []
