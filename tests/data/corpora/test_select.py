"""Corpora: every kind of file gives the same pairs, in order, whatever the size of the chunks."""

import gzip
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.config import CleaningConfig, DataConfig
from transformer_jax.data.cleaning import Cleaner, Rejections, SeenKeys
from transformer_jax.data.corpora.chunks import Chunk
from transformer_jax.data.corpora.select import open_corpus
from transformer_jax.errors import BadInput
from transformer_jax.files.lines import read_blocks

PAIRS = [(f"sentence {i} one\u2028two  {'x' * (i % 7)}", f"Satz {i} é ") for i in range(101)]


def read(config: DataConfig, split: str = "train", size: int = 17) -> list[tuple[str, str]]:
    chunks = open_corpus(config).chunks(split, size)
    return [pair for chunk in chunks for pair in zip(chunk.sources, chunk.targets, strict=True)]


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
    places = [chunk.place(i) for chunk in corpus.chunks("train", 17) for i in range(len(chunk.sources))]
    assert places[39].endswith("a/source:40")
    assert places[40].endswith("b/source.gz:1")
    assert [source["lines"] for source in corpus.sources()] == [40, 40, 61, 61]


def test_a_last_line_without_an_end_counts(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\nthree")
    assert [block.lines for block in read_blocks(str(path), 10)] == [["one", "", "three"]]


def test_windows_line_ends_and_byte_order_mark_are_stripped_and_counted(tmp_path):
    config = DataConfig(**two_files(tmp_path, end="\r\n"))
    path = Path(config.source[0])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(config) == PAIRS
    (chunk,) = open_corpus(config).chunks("train", 1000)
    assert chunk.oddities == {"carriage return stripped": 2 * len(PAIRS), "byte order mark stripped": 1}


@settings(max_examples=50, deadline=None)
@given(
    lines=st.lists(st.text(st.sampled_from("ab \r\t\u2028\x0b\x0c\x1c\x85é")), max_size=30),
    size=st.integers(1, 10),
)
def test_a_line_ends_at_a_line_feed_and_nowhere_else(lines, size, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    blocks = list(read_blocks(str(path), size))
    assert [line for block in blocks for line in block.lines] == [line.removesuffix("\r") for line in lines]
    assert all(len(block.lines) == size for block in blocks[:-1])
    assert [block.first_line for block in blocks] == [1 + size * k for k in range(len(blocks))]


def test_an_unreadable_line_is_told_by_its_number(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\n" * 100 + b"ba\xffd\n" + b"two\n" * 50 + b"nu\0l\n")
    faults = {b.place(i): fault for b in read_blocks(str(path), 30) for i, fault in b.faults.items()}
    assert faults == {
        f"{path}:101": "is not UTF-8: byte 0xff at 3",
        f"{path}:152": "has a NUL character at 3",
    }


def test_a_very_long_line_is_one_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"short\n" + b"x" * 5_000_000 + b"\nshort\n")
    assert [len(line) for block in read_blocks(str(path), 2) for line in block.lines] == [5, 5_000_000, 5]


# Cleaning


def cleaned(pairs, **options) -> tuple[list[int], dict]:
    chunk = Chunk([s for s, _ in pairs], [t for _, t in pairs], lambda index: f"text:{index + 1}")
    rejections = Rejections()
    return Cleaner(CleaningConfig(**options)).keep(chunk, rejections), rejections.to_json()


def test_the_default_filters_are_mild():
    pairs = [("a", "b"), ("", "b"), ("a", " \t"), ("a", "x" * 10_001), ("same", "same"), ("a", "b"), ("a", "b" * 99)]
    kept, rejected = cleaned(pairs)
    assert kept == [0, 4, 5, 6]
    assert rejected == {
        "empty": {"pairs": 2, "first": ["text:2", "text:3"]},
        "too long": {"pairs": 1, "first": ["text:4"]},
    }


@pytest.mark.parametrize(
    ("options", "pair", "reason"),
    [
        ({"max_characters": 3}, ("abcd", "a"), "too long"),
        ({"max_ratio": 2.0}, ("abcde", "ab"), "length ratio"),
        ({"drop_copies": True}, ("same", "same"), "copy of the source"),
    ],
)
def test_each_filter(options, pair, reason):
    assert cleaned([pair], **options) == ([], {reason: {"pairs": 1, "first": ["text:1"]}})
    assert cleaned([pair], max_characters=None) == ([0], {})


def test_every_filter_can_be_off():
    assert cleaned([("", "x" * 20_000)], drop_empty=False, max_characters=None) == ([0], {})


def test_only_the_first_few_examples_are_kept():
    _, rejected = cleaned([("", "")] * 1000)
    assert rejected["empty"] == {"pairs": 1000, "first": [f"text:{i}" for i in range(1, 6)]}


@settings(deadline=None)  # it took a machine under load more than 200 ms
@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=20))
def test_seen_keys_is_a_set(batches):
    keys, plain = SeenKeys(), set()
    for batch in batches:
        expected = [key not in plain and key not in batch[:i] for i, key in enumerate(batch)]
        assert keys.add(np.array(batch, np.uint64)).tolist() == expected
        plain |= set(batch)


# TensorFlow Datasets


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    """A small prepared data set in array_record, and in `tfrecord/` the same records in that format."""
    import tensorflow_datasets as tfds

    class TinyParallel(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = tmp_path_factory.mktemp("code")  # TFDS looks there for documentation

        def _info(self):
            features = tfds.features.Translation(languages=("de", "en"))
            return tfds.core.DatasetInfo(
                builder=self, features=features, disable_shuffling=True, supervised_keys=("de", "en")
            )

        def _split_generators(self, download_manager):
            return {"train": self._generate_examples(PAIRS), "validation": self._generate_examples(PAIRS[:7])}

        def _generate_examples(self, pairs):
            for index, (source, target) in enumerate(pairs):
                yield index, {"en": source, "de": target}

    directory = tmp_path_factory.mktemp("tfds")
    TinyParallel(data_dir=directory, file_format="array_record").download_and_prepare()
    copy_as_tfrecord(directory / "tiny_parallel" / "1.0.0", directory / "tfrecord" / "tiny_parallel" / "1.0.0")
    return directory


def copy_as_tfrecord(original: Path, copy: Path) -> None:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    copy.mkdir(parents=True)
    (copy / "features.json").write_bytes((original / "features.json").read_bytes())
    info = (original / "dataset_info.json").read_text()
    (copy / "dataset_info.json").write_text(info.replace("array_record", "tfrecord"))
    for path in original.glob("*.array_record-*"):
        source = ArrayRecordDataSource([str(path)])
        records = source.__getitems__(range(len(source)))
        framed = [struct.pack("<Q", len(record)) + b"crc1" + record + b"crc2" for record in records]
        (copy / path.name.replace("array_record", "tfrecord")).write_bytes(b"".join(framed))


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
@pytest.mark.parametrize("reverse", [False, True])
def test_tfds_in_both_directions(tfds_dir, file_format, reverse):
    data_dir = tfds_dir / "tfrecord" if file_format == "tfrecord" else tfds_dir
    source, target = ("de", "en") if reverse else ("en", "de")
    config = DataConfig(
        corpus="tiny_parallel", tfds_data_dir=str(data_dir), source_language=source, target_language=target
    )
    expected = [(target, source) for source, target in PAIRS] if reverse else PAIRS
    assert open_corpus(config).splits == ("train", "valid")
    assert read(config) == expected
    assert read(config, "valid") == expected[:7]


def test_tfds_direction_left_open_is_the_data_sets_own(tfds_dir):
    config = DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tfds_dir))
    assert read(config, "valid")[0] == (PAIRS[0][1], PAIRS[0][0])
    only_source = DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tfds_dir), source_language="en")
    assert read(only_source, "valid")[0] == PAIRS[0]


def test_tfds_reads_without_tensorflow(tfds_dir):
    import sys

    read(DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tfds_dir)))
    assert "tensorflow" not in sys.modules


def test_a_truncated_tfrecord_is_refused(tfds_dir, tmp_path):
    import shutil

    shutil.copytree(tfds_dir / "tfrecord", tmp_path / "copy")
    (path,) = (tmp_path / "copy").rglob("*train.tfrecord*")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(BadInput, match="middle of a record"):
        read(DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tmp_path / "copy")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"corpus": "wmt14_translate/de-en"},
            "tfds build wmt14_translate/de-en --file_format=array",
        ),
        ({"corpus": "wmt14_translate/de-fi"}, "wmt14_translate has no de-fi"),
        ({"corpus": "wmt14_translate"}, "name one of wmt14_translate/cs-en, "),
        ({"corpus": "wmt14_translat/de-en"}, "did you mean wmt14_translate?"),
        ({"corpus": "no such name!"}, "TFDS has no such data set"),
        ({"corpus": "tiny_parallel", "source_language": "fr"}, "data.source_language = 'fr'"),
        ({"corpus": "tiny_parallel", "source_language": "de", "target_language": "de"}, "which text is translated"),
        ({"corpus": "mnist"}, "which text is translated into which"),
    ],
)
def test_tfds_bad_input(tfds_dir, options, message):
    with pytest.raises(BadInput) as refused:
        open_corpus(DataConfig(tfds_data_dir=str(tfds_dir), **options))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_small_file_that_unpacks_to_much_is_read_a_little_at_a_time(tmp_path):
    """32 KiB of zstd are 1 GiB of text, if somebody wants it so."""
    zeros = bytes(1 << 20)
    with open(tmp_path / "a.zst", "wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as file:
        for _ in range(256):
            file.write(zeros)
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        for _ in range(80):
            file.write(zeros)
    for name in ("a.zst", "a.gz"):
        tracemalloc.start()
        with pytest.raises(BadInput, match="has a line of more than 64 MiB; is it text"):
            list(read_blocks(str(tmp_path / name), 1000))
        assert tracemalloc.get_traced_memory()[1] < 400 * 2**20
        tracemalloc.stop()
