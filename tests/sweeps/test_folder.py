"""A sweep's folder: what it stores, what may change later, and what it refuses."""

import json

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.config import from_config_dict
from transformer_jax.errors import BadInput
from transformer_jax.sweeps import Variant
from transformer_jax.sweeps.folder import SweepFolder, data_key, differences

COMPUTATION = {"mesh.fsdp": 2, "mesh.lost_after": 9.0, "train.accumulate": 2, "model.attention_implementation": "plain"}


def test_how_and_where_a_sweep_is_computed_may_change(tmp_path):
    """Another mesh, other machines: runs that are finished stay finished."""
    before, folder = defined(FOUR), SweepFolder(tmp_path)
    elsewhere = {"train.hours": 2, "train.tensorboard": True, "decode.tokens_per_batch": 99, **COMPUTATION}
    after = defined(FOUR, overrides=[(path, str(value)) for path, value in elsewhere.items()])
    assert differences(before, after) == []
    for run in folder.runs(before):
        pretend_finished(run)
    assert all(run.result() for run in folder.runs(after))
    assert differences(before, defined(FOUR, overrides=[("train.keep_best", "0")])) != []


def test_sweep_json_is_the_whole_definition(tmp_path):
    definition = defined(FOUR, seeds=2, tests=("test", "valid"), notes=("small",))
    folder = SweepFolder(tmp_path)
    folder.save(definition)
    loaded = folder.load()
    assert loaded.experiments == definition.experiments and loaded.seeds == (0, 1)
    assert differences(definition, loaded) == []
    (_, four) = json.loads((tmp_path / "sweep.json").read_text())["variants"]
    # By hand: 37,000 rows of 16, and layers of 4 x 16 x 16 an attention, 2 x 16 x 32 + 48, norms of 32.
    assert four["parameters"] == 37_000 * 16 + (1024 + 1072 + 64) + (2048 + 1072 + 96)
    assert four["slug"] == "h-=-4" and four["training_flops"] > 0


def test_variants_and_seeds_may_be_added_and_nothing_else_changed(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.save(defined(seeds=[3, 4]))
    assert folder.merged(defined(FOUR, seeds=[5])).seeds == (3, 4, 5)
    assert folder.merged(defined(overrides=[("train.compile_cache", "none")], seeds=[3])).seeds == (3, 4)
    folder.save(defined(FOUR, seeds=[3]))
    changed = defined(Variant("h = 4", {"model.num_heads": 8}), overrides=[("train.steps", "30")], name="other")
    with pytest.raises(BadInput) as error:
        folder.merged(changed)
    found = [line.split(": ")[0].strip() for line in str(error.value).splitlines()[1:]]
    assert found == ["name", "base", "variant 'h = 4'"]
    with pytest.raises(BadInput, match="variant 'h = 4'"):
        folder.merged(defined())


def test_a_question_that_was_declared_stays(tmp_path):
    declared = {"primary": "exact_match", "margin": 2, "contrasts": {"heads": {"h = 4": 1, "base": -1}}}
    folder, again = SweepFolder(tmp_path), Variant("again", same_as="base")
    folder.save(defined(FOUR, again, weights="best", **declared))
    stored = json.loads(folder.definition_file.read_text())
    assert stored["margin"] == {"exact_match": 2} and stored["variants"][2]["same_as"] == "base"
    more = {"more": {"h = 4": -1, "base": 1}, **declared["contrasts"]}
    folder.merged(defined(FOUR, again, weights="best", **{**declared, "contrasts": more}))
    with pytest.raises(BadInput) as error:
        folder.merged(defined(FOUR, Variant("again", {"model.d_ff": 64}), primary="bleu", margin=1))
    found = [line.rpartition(": ")[0].split(":")[0].strip() for line in str(error.value).splitlines()[1:]]
    assert found == ["primary", "margin", "weights", "variant 'again'", "variant 'again'", "contrast 'heads'"]
    declared |= {"weights": "best"}
    folder.merged(defined(FOUR, again, tests=("test", "valid"), **declared))
    with pytest.raises(BadInput, match="main test set: test there, valid here"):
        folder.merged(defined(FOUR, again, tests=("valid", "test"), **declared))


def test_an_analysis_may_be_added_but_not_become_another(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def one(model, config, tests): ...\ndef two(model, config, tests): ...\n")
    folder = SweepFolder(tmp_path / "sweep")
    folder.save(defined(analyses={"mine": f"{file}:one"}))
    assert list(folder.merged(defined(analyses={"more": f"{file}:one"})).sweep.analyses) == ["more"]
    with pytest.raises(BadInput, match="analysis 'mine'"):
        folder.merged(defined(analyses={"mine": f"{file}:two"}))


def test_a_folder_that_is_no_sweep_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="is not a sweep"):
        SweepFolder(tmp_path).check_place()
    with pytest.raises(BadInput, match="is not a sweep"):
        SweepFolder(tmp_path / "nowhere").load()
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(BadInput, match=r"sweep.json: is not JSON"):
        SweepFolder(tmp_path).load()


def test_damaged_rates_are_an_error_and_not_chosen_again(tmp_path):
    (tmp_path / "tuned.json").write_text('{"base": {"fac')
    with pytest.raises(BadInput, match=r"tuned.json: is not JSON"):
        SweepFolder(tmp_path).runs(defined(tune=(0.5, 1, 2)))


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


def test_a_sweep_keeps_its_order_of_the_data(tmp_path):
    """One that begins with --together has the same for all seeds."""
    apart, together = (SweepFolder(tmp_path / name) for name in ("apart", "together"))
    apart.save(apart.merged(defined(seeds=2)))
    together.save(together.merged(defined(seeds=2), together=True))
    for folder, orders in ((apart, [0, 1, 2]), (together, [None] * 3)):
        for now in (False, True):
            definition = folder.merged(defined(seeds=3), together=now)
            folder.save(definition)
            assert [run.experiment.data.order_seed for run in folder.runs(folder.load())] == orders
