"""Text files: every kind gives the same pairs, in order, whatever the size of the chunks; COGS and inflection."""

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from tests.support.corpora import PAIRS, read
from tests.support.prepared_data import decoded
from transformer_jax.config import DataConfig, TaskConfig, from_config_dict
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput


def written(path: Path, lines: list[str], end: str = "\n") -> str:
    content = "".join(line + end for line in lines).encode()
    if path.suffix == ".gz":
        # Two members, as `cat a.gz b.gz` makes them.
        content = gzip.compress(content[:100]) + gzip.compress(content[100:])
    path.write_bytes(content)
    return str(path)


def two_files(directory: Path, suffix: str = "", end: str = "\n", pairs=PAIRS) -> dict:
    return {
        side: (written(directory / f"{side}{suffix}", [pair[k] for pair in pairs], end),)
        for k, side in enumerate(("source", "target"))
    }


@pytest.mark.parametrize("suffix", [".txt", ".gz"])
@pytest.mark.parametrize("size", [1, 17, 1000])
def test_two_aligned_files(tmp_path, suffix, size):
    assert read(DataConfig(**two_files(tmp_path, suffix)), size=size) == PAIRS


@pytest.mark.parametrize("suffix", ["", ".gz"])
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


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"source": "a", "target": null}', "has null under 'target'"),
        ('{"source": 7, "target": "b"}', "has 7 under 'source'"),
        (
            '{"source": "a", "de": "b"}',
            r"has source, de; set data.source_language and data.target_language \(target is missing\)",
        ),
        ("[1]", "is a list$"),
    ],
)
def test_a_line_of_jsonl_with_other_values_is_answered_with_what_is_wrong(tmp_path, line, problem):
    path = written(tmp_path / "pairs.jsonl", [line])
    found = open_corpus(DataConfig(source=(path,))).entry("train", path, line)
    assert re.match(rf"needs a text under each of the keys .*, {problem}", found)


def test_a_key_of_jsonl_may_be_called_translation(tmp_path):
    lines = [json.dumps({"text": source, "translation": target}) for source, target in PAIRS]
    path = written(tmp_path / "pairs.jsonl", lines)
    assert read(DataConfig(source=(path,), source_language="text", target_language="translation")) == PAIRS


def test_a_pipe_is_refused_because_text_is_read_several_times(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    other = written(tmp_path / "other", ["text"])
    corpus = open_corpus(DataConfig(source=(str(tmp_path / "pipe"),), target=(other,)))
    with pytest.raises(BadInput, match="pipe: is a pipe or a device"):
        corpus.identity()


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


def test_named_test_sets(tmp_path):
    train, test = two_files(tmp_path), {"test_source": (written(tmp_path / "test.tsv", ["a\tb"]),)}
    long = {"source": written(tmp_path / "long.en", ["a a a", "b b b"]), "target": written(tmp_path / "long.de", "cd")}
    config = DataConfig(**train, **test, tests={"long": long, "odd": {"source": written(tmp_path / "o.tsv", ["x\ty"])}})
    corpus = open_corpus(config)
    assert corpus.splits == ("train", "test", "long", "odd")
    assert read(config, "long") == [("a a a", "c"), ("b b b", "d")] and read(config, "odd") == [("x", "y")]
    assert long["target"] in corpus.files and set(corpus.identity()["files"]) == set(corpus.splits)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ({"valid": {"source": "a.tsv"}}, "tests.valid: must be a letter"),
        ({"../out": {"source": "a.tsv"}}, "tests.../out: must be a letter"),
        ({"long": {"source": "a,b", "target": "c"}}, "tests.long.source = a, b and tests.long.target = c: must be"),
        ({"long": {"target": "c"}}, "data.tests.long.source: names no file"),
        ({"long": {"source": "a.en"}}, "data.tests.long.target: names no file"),
        ({"long": {"source": "a.tsv", "target": "c"}}, "data.tests.long.target: is not for"),
    ],
)
def test_wrong_named_test_sets(tests, message):
    with pytest.raises(BadInput, match=message):
        open_corpus(DataConfig(source=("a",), target=("b",), tests=tests))


def test_the_keys_of_a_split_are_part_of_the_identity(tmp_path):
    train = written(tmp_path / "train.tsv", ["a\tb"])
    valid = written(tmp_path / "valid.jsonl", ['{"en": "a", "de": "b", "fr": "c"}'])
    german, french = (
        open_corpus(DataConfig(source=(train,), valid_source=(valid,), source_language="en", target_language=target))
        for target in ("de", "fr")
    )
    assert german.identity() != french.identity()


def test_a_file_with_both_sides_has_no_target(tmp_path):
    for name in ("valid.tsv", "valid.jsonl.gz"):
        with pytest.raises(BadInput, match=r"data\.valid_target: is not for \.tsv"):
            open_corpus(DataConfig(source=("a",), target=("b",), valid_source=(name,), valid_target=("b",)))


# COGS and inflection: three columns.


def opened(folder, corpus="cogs", **task):
    return open_corpus(DataConfig(corpus=corpus, corpus_folder=folder and str(folder), task=TaskConfig(**task)))


def test_files_are_identified_by_their_text_and_a_line_of_other_columns_is_a_fault(tmp_path):
    files = {str(tmp_path / name) for name in COGS}
    for name in COGS:
        (tmp_path / name).write_text(f"A {name}\tlf ( x _ 1 )\tkind\n" * 3)
    corpus = opened(tmp_path)
    before = corpus.identity()
    assert [chunk.place(0) for chunk in corpus.chunks("train", 2)] == [f"{tmp_path / 'train.tsv'}:{n}" for n in (1, 3)]
    assert {source["file"] for source in corpus.sources()} == files
    assert corpus.sources()[0]["lines"] == 3
    (tmp_path / "gen.tsv").write_bytes(b"A\tb\tc\nA\tb\n\xff\tb\tc\n")
    changed = opened(tmp_path)
    assert [key for key, value in changed.identity().items() if before[key] != value] == ["checksum of test_gen"]
    assert changed.files == files
    (chunk,) = changed.chunks("test_gen", 9)
    assert [fault.partition("gen.tsv:")[2][:21] for fault in chunk.faults.values()] == [
        "2: has 2 columns; mus",
        "3: is not UTF-8: byte",
    ]
    assert len(chunk.labels) == len(chunk.pairs) == 3


@pytest.mark.parametrize(
    ("corpus", "given", "message"),
    [("cogs", False, "data.corpus_folder"), ("cogs", True, "train.tsv: "), ("inflection", True, "kor.dev: ")],
)
def test_missing_files_are_named(tmp_path, corpus, given, message):
    for name in [name for name in COGS if name != "train.tsv"] + ["kor_large.train", "kor.gold"]:
        (tmp_path / name).touch()
    with pytest.raises(BadInput, match=message):
        opened(tmp_path if given else None, corpus, language="kor").identity()


COGS = {
    "train.tsv": [("A rose slept .", "rose ( x _ 1 ) AND sleep . agent ( x _ 2 , x _ 1 )", "in_distribution")] * 2
    + [("shark", "LAMBDA a . shark ( a )", "primitive")],
    "dev.tsv": [("A shark slept .", "shark ( x _ 1 ) AND sleep . agent ( x _ 2 , x _ 1 )", "in_distribution")],
    "test.tsv": [("shark", "LAMBDA a . shark ( a )", "in_distribution")],
    "gen.tsv": [("A .", "( )", "cp_recursion"), ("A rose .", "AND", "prim_to_subj_common"), (".", "x", "pp_recursion")],
}


def test_the_generalization_set_is_a_test_set_with_groups(tmp_path):
    for name, rows in COGS.items():
        (tmp_path / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    data = {"corpus": "cogs", "corpus_folder": str(tmp_path), "tokenizer": "words"}
    config = from_config_dict({"data": data})
    prepared = prepare(config, tmp_path / "data")
    assert prepared.splits == ("train", "valid", "test", "test_gen") and len(prepared.pairs("train")) == 3
    assert prepared.texts("valid") == tuple([text] for text in COGS["dev.tsv"][0][:2])
    assert prepared.texts("test_gen")[1] == ["( )", "AND", "x"]
    assert prepared.groups("test") is prepared.groups("train") is None
    assert prepared.clusters("test_gen") == ["cp_recursion", "prim_to_subj_common", "pp_recursion"]
    assert prepared.groups("test_gen") == [
        {"category": "cp_recursion", "kind": "structural"},
        {"category": "prim_to_subj_common", "kind": "lexical"},
        {"category": "pp_recursion", "kind": "structural"},
    ]
    (tmp_path / "gen.tsv").unlink()
    assert prepare(config, tmp_path / "data").groups("test_gen") == prepared.groups("test_gen")  # not read again


INFLECTION = {
    "xyz_large.train": [("gehen", "ging", "V;PST;3"), ("sehen", "seht ihr", "V;PRS;2"), ("Tag", "Tage", "N;PL")],
    "xyz_small.train": [("gehen", "ging", "V;PST;3")],
    "xyz.dev": [("gehen", "geht ", "V;PRS;2")],
    "xyz.gold": [("gehen", "ging", "V;PST;3"), ("Tag", "sah", "V;PRS"), ("taten", "tatet", "V;PRS;2"), ("a", "b", "X")],
}


def test_a_lemma_and_features_become_a_form(tmp_path):
    for name, rows in INFLECTION.items():
        (tmp_path / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    task = {"language": "xyz", "size": "large"}
    data = {"corpus": "inflection", "corpus_folder": str(tmp_path), "tokenizer": "characters_and_tags", "task": task}
    prepared = prepare(from_config_dict({"data": data}), tmp_path / "data")
    ids = prepared.pairs("train").source_tokens[: prepared.pairs("train").source_offsets[1]].tolist()
    assert prepared.tokenizer.pieces(ids) == ["g", "e", "h", "e", "n", "\tV", ";PST", ";3"]
    assert decoded(prepared, "train") == [
        (f"{lemma}\t{tags}", form) for lemma, form, tags in INFLECTION["xyz_large.train"]
    ]
    assert prepared.texts("valid") == (["gehen\tV;PRS;2"], ["geht"])
    assert prepared.clusters("test") == ["gehen", "Tag", "taten", "a"]
    seen = [("seen", "seen"), ("seen", "unseen"), ("unseen", "seen"), ("unseen", "unseen")]
    assert prepared.groups("test") == [{"lemma": lemma, "features": features} for lemma, features in seen]
    small = {**data, "task": {**task, "size": "small"}}
    groups = prepare(from_config_dict({"data": small}), tmp_path / "small").groups("test")
    assert [(each["lemma"], each["features"]) for each in groups] == [seen[0], seen[3], seen[3], seen[3]]
