"""A sweep's folder: what it stores, what may change later, and what it refuses."""

import json

import pytest

from tests.support.sweep_runs import FOUR, defined
from transformer_jax.config import from_config_dict
from transformer_jax.errors import BadInput
from transformer_jax.sweeps import launch
from transformer_jax.sweeps.folder import SweepFolder, data_key


def test_sweep_json_is_the_whole_definition(tmp_path):
    definition = defined(FOUR, seeds=2, tests=("test", "valid"), notes=("small",))
    folder = SweepFolder(tmp_path)
    folder.save(definition)
    loaded = folder.load()
    assert loaded.experiments == definition.experiments and loaded.seeds == (0, 1)
    assert launch.differences(definition, loaded) == []
    (_, four) = json.loads((tmp_path / "sweep.json").read_text())["variants"]
    # By hand: 37,000 rows of 16, and layers of 4 x 16 x 16 an attention, 2 x 16 x 32 + 48, norms of 32.
    assert four["parameters"] == 37_000 * 16 + (1024 + 1072 + 64) + (2048 + 1072 + 96)
    assert four["slug"] == "h-=-4" and four["training_flops"] > 0


def test_a_folder_that_is_no_sweep_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="is not a sweep"):
        SweepFolder(tmp_path).check_place()
    with pytest.raises(BadInput, match="is not a sweep"):
        SweepFolder(tmp_path / "nowhere").load()
    (tmp_path / "thesis.tex").unlink()
    (tmp_path / "sweep.json.0123abcd.unfinished").touch()  # of a launcher that was killed while it wrote
    SweepFolder(tmp_path).check_place()
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(BadInput, match=r"sweep.json: is not JSON"):
        SweepFolder(tmp_path).load()


def test_damaged_rates_are_an_error_and_not_chosen_again(tmp_path):
    (tmp_path / "tuned.json").write_text('{"base": {"fac')
    with pytest.raises(BadInput, match=r"tuned.json: is not JSON"):
        SweepFolder(tmp_path).runs(defined(tune=(0.5, 1, 2)))


def test_looks_are_those_of_the_reports_and_damaged_ones_an_error(tmp_path):
    folder, look = SweepFolder(tmp_path), {"seeds": [0, 1], "compared": [0], "when": "now"}
    assert folder.looks() == []
    folder.looks_file.write_text(json.dumps({"looks": [look]}))
    assert folder.looks() == [look]
    folder.looks_file.write_text('{"looks": [{"see')
    with pytest.raises(BadInput, match=r"looks.json: is not JSON"):
        folder.looks()


def test_runs_share_data_unless_they_ask_for_other():
    def keys(*configs):
        return [data_key(from_config_dict({"data": {"tokenizer": "words", "corpus": "copy"}} | c)) for c in configs]

    same = {"model": {"num_heads": 4}}, {"model": {"vocab_size": 500}}  # words have no size to ask for
    unused = {"data": {"tokenizer": "words", "corpus": "copy", "max_length": 9, "task": {"cutoff": 26}}}
    assert len(set(keys({}, *same, unused))) == 1
    others = [
        {"corpus": "copy", "tokenizer": "bpe"},
        {"corpus": "scan", "task": {"split": "length"}},
        {"corpus": "scan", "task": {"split": "length", "cutoff": 26}},
        {"corpus": "cogs", "corpus_folder": "a"},
        {"corpus": "cogs", "corpus_folder": "b"},
    ]
    assert len(set(keys({}, *({"data": data} for data in others)))) == 6
