"""Prepare: text to arrays once; the same bytes however it got there; reused, refused, held out, cleaned, counted."""

import dataclasses
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.prepared_data import PAIRS, contents, decoded, experiment, write_text
from transformer_jax.config import CleaningConfig, from_config_dict
from transformer_jax.data import prepare as prepare_module
from transformer_jax.data.prepare import evenly_spread, prepare
from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import train_symbols
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.lines import CONVERT


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A folder with the text and, in `data`, what is prepared from it; not to be changed."""
    directory = tmp_path_factory.mktemp("ready")
    prepare(experiment(directory), directory / "data")
    return directory


@pytest.mark.parametrize(
    ("tokenizer", "separate"), [("bpe", False), ("unigram", True), ("words", True), ("characters", False)]
)
def test_every_pair_is_there_exactly_and_in_order(tmp_path, monkeypatch, tokenizer, separate):
    config = experiment(tmp_path, tokenizer=tokenizer, vocab_size=300, target_vocab_size=301 if separate else None)
    monkeypatch.setattr(prepare_module, "BLOCK", 97)
    prepared = prepare(config, tmp_path / "data")
    held_out = decoded(prepared, "valid") + decoded(prepared, "test")
    assert decoded(prepared, "train") == [pair for pair in PAIRS if pair not in held_out]
    assert len(held_out) == len(set(held_out)) == 50
    assert set(held_out) < set(PAIRS)
    assert prepared.pairs("train").source_tokens.dtype == np.uint16
    assert (prepared.target_vocab_size is not None) == separate
    if tokenizer in ("bpe", "unigram"):
        assert (prepared.vocab_size, prepared.target_vocab_size) == (300, 301 if separate else None)


def test_given_splits_stay_whole_and_in_order(tmp_path):
    pairs = [("one", ""), ("", "zwei"), ("one", ""), ("three", "x" * 20_000)]
    source, target = write_text(tmp_path, "test", pairs)
    prepared = prepare(experiment(tmp_path, test_source=(source,), test_target=(target,)), tmp_path / "data")
    assert list(zip(*prepared.texts("test"), strict=True)) == decoded(prepared, "test") == pairs
    assert prepared.splits == ("train", "test", "valid")


def test_held_out_pairs_are_nowhere_in_train_even_when_they_come_twice(tmp_path, capsys):
    prepared = prepare(experiment(tmp_path, PAIRS * 3, tokenizer="words"), tmp_path / "data")
    train, valid, test = (set(decoded(prepared, split)) for split in ("train", "valid", "test"))
    assert (len(valid), len(test)) == (30, 20)
    assert not (train & valid or train & test or valid & test)
    assert train | valid | test == set(PAIRS)
    assert f"left out of train: {2 * len(valid | test)} copies of pairs that are held out" in capsys.readouterr().err
    other = prepare(experiment(tmp_path, PAIRS * 3, tokenizer="words", seed=5), tmp_path / "other")
    assert set(decoded(other, "valid")) != valid
    facts = prepared.manifest["splits"]["train"]
    assert facts["read"] == facts["pairs"] + facts["held_out"] == 3 * len(PAIRS)


def test_at_most_a_tenth_is_held_out(tmp_path, capsys):
    config = experiment(tmp_path, PAIRS[:25], tokenizer="words", valid_size=1000, test_size=0)
    prepared = prepare(config, tmp_path / "data")
    assert {split: len(prepared.pairs(split)) for split in prepared.splits} == {"train": 23, "valid": 2}
    assert "held out for valid: 2 pairs instead of 1000" in capsys.readouterr().err


def test_a_given_tokenizer_file_is_used(tmp_path):
    first = prepare(experiment(tmp_path), tmp_path / "first")
    model = str(first.directory / "tokenizer.model")
    second = prepare(experiment(tmp_path, tokenizer_file=model, vocab_size=37_000), tmp_path / "second")
    assert second.vocab_size == 400
    assert second.fingerprint == first.fingerprint
    words = prepare(experiment(tmp_path, tokenizer="words"), tmp_path / "words")
    symbols = experiment(tmp_path, tokenizer_file=str(tmp_path / "given.json"))
    words.tokenizer.save(tmp_path / "given.json")
    assert prepare(symbols, tmp_path / "again").fingerprint == words.fingerprint
    train_symbols(["other words"], "words").save(tmp_path / "given.json")
    with pytest.raises(BadInput, match="tokenizer_file was"):
        prepare(symbols, tmp_path / "again")
    both = prepare(experiment(tmp_path, tokenizer_file=model, target_tokenizer_file=model), tmp_path / "both")
    assert both.target_vocab_size == 400


def test_a_tokenizer_is_trained_on_sentences_that_are_evenly_spread():
    assert list(evenly_spread("abcdefghij", 10, 100)) == list("abcdefghij")
    assert [len(list(evenly_spread("abcdefghij", 10, wanted))) for wanted in range(1, 10)] == list(range(1, 10))


def test_the_manifest_tells_what_was_left_out_and_what_was_read(tmp_path):
    pairs = [*PAIRS, ("", "empty"), ("empty", " "), ("long", "x" * 50), PAIRS[0]]
    cleaning = CleaningConfig(max_characters=49, drop_duplicates=True)
    config = experiment(tmp_path, pairs, tokenizer="words", valid_size=0, test_size=0, cleaning=cleaning)
    prepared = prepare(config, tmp_path / "data")
    file, target, count = config.data.source[0], config.data.target[0], len(PAIRS)
    assert prepared.manifest["splits"]["train"]["rejected"] == {
        "duplicate": {"pairs": 1, "first": [f"{file}:{count + 4}"]},
        "empty": {"pairs": 2, "first": [f"{file}:{count + 1}", f"{target}:{count + 2}"]},
        "too long": {"pairs": 1, "first": [f"{target}:{count + 3}"]},
    }
    source = prepared.manifest["sources"][0]
    assert (source["file"], source["lines"], source["bytes"]) == (file, len(pairs), os.path.getsize(file))
    assert len(source["sha256"]) == 64
    assert len(prepared.pairs("train")) == count


def test_unreadable_lines_can_be_left_out(tmp_path):
    config = experiment(tmp_path, tokenizer="words", cleaning=CleaningConfig(unreadable="drop"))
    path = Path(config.data.target[0])
    path.write_bytes(path.read_bytes().replace(b"\xc3\xbc", b"\xff", 1))
    prepared = prepare(config, tmp_path / "data")
    assert prepared.manifest["splits"]["train"]["rejected"] == {
        "unreadable": {"pairs": 1, "first": [f"{path}:1: is not UTF-8: byte 0xff at 20 ({CONVERT})"]}
    }


# The same bytes, however it got there.


def test_the_result_does_not_depend_on_the_blocks_or_the_place(tmp_path, monkeypatch):
    config = experiment(tmp_path, PAIRS * 2, cleaning=CleaningConfig(drop_duplicates=True))
    one = prepare(config, tmp_path / "one")
    monkeypatch.setattr(prepare_module, "BLOCK", 53)
    many = prepare(config, tmp_path / "deep" / "many")
    assert contents(one.directory) == contents(many.directory)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["many"]


class Killed(BaseException):
    """Like a signal, it is no error that anything would catch."""


@pytest.mark.parametrize("step", ["read_corpus", "_write_split"])
def test_after_a_failure_or_a_kill_the_next_start_has_the_same_bytes(tmp_path, monkeypatch, step):
    config = experiment(tmp_path, PAIRS[:150], tokenizer="words")
    whole, place = contents(prepare(config, tmp_path / "whole").directory), tmp_path / "place"
    original = getattr(prepare_module, step)

    def stopping(*arguments):
        original(*arguments)
        shutil.copytree(place / "data.partial", tmp_path / "left")  # what a kill would leave
        raise Killed

    monkeypatch.setattr(prepare_module, step, stopping)
    with pytest.raises(Killed):
        prepare(config, place / "data")
    monkeypatch.undo()
    assert not place.exists()
    place.mkdir()
    shutil.copytree(tmp_path / "left", place / "data.partial")
    assert contents(prepare(config, place / "data").directory) == whole
    assert [path.name for path in place.iterdir()] == ["data"]


def test_another_process_that_removes_the_unfinished_files_is_told(tmp_path, monkeypatch):
    """As where locks do not work: the other one begins anew."""
    original = prepare_module._write_split

    def disturbed(*arguments):
        shutil.rmtree(tmp_path / "data.partial")
        (tmp_path / "data.partial" / "scratch").mkdir(parents=True)
        original(*arguments)

    monkeypatch.setattr(prepare_module, "_write_split", disturbed)
    with pytest.raises(Failed, match=r"was removed while its files were written.*start one at a time"):
        prepare(experiment(tmp_path), tmp_path / "data")


def test_what_is_not_ours_is_not_removed(tmp_path):
    (tmp_path / "data.partial").mkdir()
    (tmp_path / "data.partial" / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match="reserved"):
        prepare(experiment(tmp_path), tmp_path / "data")
    assert (tmp_path / "data.partial" / "thesis.txt").read_text() == "mine"


def test_the_directory_may_be_a_link_to_an_empty_one(tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "data").symlink_to("large disk")
    prepared = prepare(experiment(tmp_path), tmp_path / "data")
    assert prepared.fingerprint == prepare(experiment(tmp_path), tmp_path / "large disk").fingerprint
    assert (tmp_path / "data").is_symlink()


def test_several_at_once(tmp_path, capsys):
    """In threads: the lock belongs to an open file, and so tells them apart as it does processes."""
    config = experiment(tmp_path, tokenizer="unigram", vocab_size=300)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: prepare(config, tmp_path / "run/data"), range(3)))
    assert len({prepared.fingerprint for prepared in made}) == 1
    assert capsys.readouterr().err.count("training a unigram tokenizer") == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["data"]


# Re-used, or refused with the reason.


def test_data_is_used_again_with_other_options_of_batches(tmp_path, monkeypatch):
    config = experiment(tmp_path)
    prepare(config, tmp_path / "data")
    monkeypatch.setattr(prepare_module, "_make", None)  # nothing is made again
    other = dataclasses.replace(config.data, tokens_per_batch=7, max_length=9, order_seed=5)
    prepare(dataclasses.replace(config, data=other), tmp_path / "data").verify()


def test_changes_are_found_in_files_whose_size_and_time_are_as_before(tmp_path):
    config = experiment(tmp_path)
    prepare(config, tmp_path / "data").verify()
    for path, found in (
        (tmp_path / "data/train.source.tokens", lambda: Prepared.open(tmp_path / "data").verify()),
        (Path(*config.data.target), lambda: prepare(config, tmp_path / "data")),
    ):
        status, content = os.stat(path), bytearray(path.read_bytes())
        content[0] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(BadInput, match=r"damaged|text has changed"):
            found()


def test_text_that_is_gone_is_not_needed_again(tmp_path, capsys):
    config = experiment(tmp_path)
    prepare(config, tmp_path / "data")
    Path(config.data.source[0]).unlink()
    assert prepare(config, tmp_path / "data").splits == ("train", "valid", "test")
    assert "no longer exist" in capsys.readouterr().err
    with pytest.raises(BadInput, match=r"other\.en: there is no such file"):  # which is not the one that was prepared
        prepare(experiment(tmp_path, source=(str(tmp_path / "other.en"),)), tmp_path / "data")


def test_a_tokenizer_file_that_is_gone_is_not_needed_again(tmp_path):
    file = tmp_path / "given.model"
    shutil.copy(prepare(experiment(tmp_path), tmp_path / "first").directory / "tokenizer.model", file)
    config = experiment(tmp_path, tokenizer_file=str(file))
    first = prepare(config, tmp_path / "data")
    file.unlink()
    assert prepare(config, tmp_path / "data").manifest == first.manifest
    with pytest.raises(BadInput, match=r"given\.model: there is no such file"):
        prepare(config, tmp_path / "another")


def test_named_test_sets_of_a_config_file_are_not_missed_where_they_have_no_effect(tmp_path):
    (tmp_path / "own.py").write_text("def pairs(split): return [(f'{split} {n}', 'b') for n in range(40)]\n")
    long = {"source": ("long.en",), "target": ("long.de",)}
    config = from_config_dict(
        {"data": {"corpus": f"{tmp_path}/own.py:pairs", "tokenizer": "words", "tests": {"long": long}}}
    )
    first = prepare(config, tmp_path / "data")
    assert prepare(config, tmp_path / "data").fingerprint == first.fingerprint


def test_a_test_set_is_named_before_the_text_is_prepared(ready, tmp_path):
    source, target = write_text(tmp_path, "long", PAIRS[:5])
    late = experiment(ready, tests={"long": {"source": (source,), "target": (target,)}})
    with pytest.raises(BadInput, match=r"without the test set long: .* evaluate --source=FILE"):
        prepare(late, ready / "data")
    prepare(late, tmp_path / "named")
    with pytest.raises(BadInput, match="the long text was given and is not now"):
        prepare(experiment(ready), tmp_path / "named")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer": "words"}, "data.tokenizer was bpe and is now words"),
        ({"vocab_size": 300}, "model.vocab_size was 400 and is now 300"),
        ({"cleaning": CleaningConfig(drop_copies=True)}, "data.cleaning.drop_copies was False and is now True"),
        ({"pairs": PAIRS[1:]}, "the train text has changed"),
        ({"valid": True}, "the valid text was not given and is now"),
        ({"corpus": "copy", "source": (), "target": ()}, "task of the corpus was not set and is now copy"),
    ],
)
def test_something_changed_is_refused_and_named(ready, tmp_path, change, reason):
    root = shutil.copytree(ready, tmp_path / "copy") if "pairs" in change else ready
    if "valid" in change:
        source, target = write_text(tmp_path, "valid", PAIRS[:5])
        change = {"valid_source": (source,), "valid_target": (target,)}
    before = contents(root / "data")
    with pytest.raises(BadInput) as refused:
        prepare(experiment(root, **change), root / "data")
    assert reason in str(refused.value)
    assert contents(root / "data") == before


def test_an_option_that_has_no_effect_is_not_a_difference(tmp_path):
    """Nothing is held out for a split that the corpus has."""
    source, target = write_text(tmp_path, "valid", PAIRS[:9])
    valid = {"tokenizer": "words", "valid_source": (source,), "valid_target": (target,)}
    first = prepare(experiment(tmp_path, **valid), tmp_path / "data")
    again = prepare(experiment(tmp_path, valid_size=7, **valid), tmp_path / "data")
    assert again.manifest == first.manifest
    with pytest.raises(BadInput, match="test_size"):
        prepare(experiment(tmp_path, test_size=7, **valid), tmp_path / "data")
