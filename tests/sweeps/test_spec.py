"""An ablation is data: everything wrong in it is found before anything runs, and what may change later is settled."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.support.places import GOLDEN
from tests.support.sweep_runs import BASE, FOUR, experiment_file, pretend_finished, sweep
from transformer_jax import schema
from transformer_jax.config import default_config, from_config_dict
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.extension import UserCodeError
from transformer_jax.files.atomic import publish_json
from transformer_jax.sweeps import Variant, grid, spec
from transformer_jax.sweeps.folder import SweepFolder, data_key, differences, digest

DROPOUT = Variant("dropout", {"model.dropout": 0.3})


def defined(*variants, overrides=(), **changes):
    return spec.define(sweep(*variants, **changes), "file.py", None, overrides)


def problems(*variants, overrides=(), **changes):
    with pytest.raises(ConfigError) as error:
        defined(*variants, overrides=overrides, **changes)
    return list(error.value.problems)


def test_a_variant_is_its_difference():
    definition = defined(FOUR, seeds=(0, 5))
    base, four = definition.experiments["base"], definition.experiments["h = 4"]
    assert (base.model.num_heads, four.model.num_heads) == (2, 4)
    assert definition.experiment("h = 4", 5).seed == 5 and definition.seeds == (0, 5)
    assert spec.define(sweep(FOUR, base=from_config_dict(BASE)), "", None).experiments == definition.experiments


def test_a_base_may_be_a_config_dict():
    assert defined(base=default_config()).base.model.d_model == 512


def test_grid_has_every_combination():
    variants = grid({"model.num_heads": [1, 2], "model.d_k": [8, None]}, group="heads")
    assert [variant.name for variant in variants] == [
        "num_heads=1 d_k=8",
        "num_heads=1 d_k=None",
        "num_heads=2 d_k=8",
        "num_heads=2 d_k=None",
    ]
    assert variants[1].changes == {"model.num_heads": 1, "model.d_k": None} and variants[1].group == "heads"
    assert grid({"model.max_length": [9], "data.max_length": [8]})[0].name == "model.max_length=9 data.max_length=8"


def test_all_that_is_wrong_is_told_at_once():
    found = problems(
        Variant("a", {"model.num_head": 4}),
        Variant("a", {"model.num_heads": 3, "seed": 1}),
        Variant("b", {"optimizer.name": "addam"}, baseline="bse"),
        overrides=[("train.step", "9"), ("model.dropout", "much")],
        baseline="bas",
        seeds=0,
        tests=(),
        analyses={"heads": "missing.py:f"},
    )
    expected = [
        "--config.train.step: no such option; did you mean train.steps?",
        "--config.model.dropout = 'much': must be a number",
        "file.py: seeds = 0: without a seed there is no run; 3 would be right",
        "file.py: 2 variants are called 'a'",
        "file.py: baseline = 'bas': no such variant; did you mean base?",
        "file.py: variant 'b': baseline = 'bse': no such variant; did you mean base?",
        "file.py: tests = (): must be a list of different splits, such as ['test']",
        f"file.py: analysis 'heads': missing.py: no such Python file (looked for in {Path.cwd()})",
        "file.py: variant 'a': model.num_head: no such option; did you mean model.num_heads?",
        "file.py: variant 'a': seed: is no variant's to change; the sweep's seeds say it",
        "file.py: variant 'a': model: num_heads = 3 does not divide d_model = 16: set d_k and d_v, or num_heads to 2",
        "file.py: variant 'b': optimizer.name = 'addam': optax has no such optimizer; did you mean adam?",
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seeds": [1, 1]}, "seeds = [1, 1]: 1 stands there twice"),
        ({"seeds": "3"}, "seeds = '3': must be a whole number"),
        ({"seeds": []}, "seeds = []: without a seed there is no run"),
        ({"seeds": True}, "seeds = True: must be a whole number"),
        ({"variants": []}, "variants: must be a list of at least one Variant"),
        ({"variants": ["base"]}, "variants: number 1 is 'base'; a Variant would be right"),
        ({"variants": [Variant("base"), Variant("Base")]}, "'base' and 'Base' would have the same folder"),
        ({"variants": [Variant("..")]}, "number 1 has the name '..'; a text with letters would be right"),
        ({"name": ""}, "name and question must be texts"),
        ({"base": "x.py"}, "base = str: must be a ConfigDict"),
        ({"base": {**BASE, "train": {"steps": 1}}}, "optimizer.warmup_steps = 4 lies beyond the run"),
    ],
)
def test_a_sweep_that_is_none_is_refused(changes, told):
    assert told in "\n".join(problems(**changes))


def test_a_problem_of_the_base_is_told_once():
    assert len(problems(FOUR, base={**BASE, "train": {"steps": 1}})) == 1


def test_a_part_must_have_a_name_and_must_fit(tmp_path):
    part = tmp_path / "part.py"
    part.write_text("from flax import linen as nn\nclass Small(nn.Module):\n    pass\n")
    assert "lacks the field" in problems(Variant("own", {"model.parts.feed_forward": f"{part}:Small"}))[0]
    assert (
        "is a class; the processes that train must find it"
        in problems(Variant("own", {"model.parts.positions": Variant}))[0]
    )


def load_text(tmp_path, text, **options):
    (tmp_path / "x.py").write_text(text)
    return spec.load(str(tmp_path / "x.py"), **options)


def test_the_file_of_an_experiment(tmp_path):
    path = experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})", seeds=2)
    definition = spec.load(str(path), overrides=[("train.steps", "20")], seeds=[7])
    assert definition.seeds == (7,) and definition.experiments["h = 4"].train.steps == 20
    with pytest.raises(UserCodeError, match="raised KeyError") as error:
        load_text(tmp_path, "def get_sweep():\n    return {}['sweep']\n")
    assert "line 2, in get_sweep" in error.value.traceback
    with pytest.raises(BadInput, match="has no function get_sweep"):
        load_text(tmp_path, "")
    with pytest.raises(BadInput, match="returned int; a Sweep would be right"):
        load_text(tmp_path, "def get_sweep(): return 3")


def test_scales(tmp_path):
    text = (
        "from transformer_jax.sweeps import Sweep, Variant\n"
        "SCALES = ('demo', 'paper')\n"
        "def get_sweep(scale): return Sweep(scale, '', {}, [Variant('base')])\n"
    )
    assert load_text(tmp_path, text).scale == "demo"
    assert load_text(tmp_path, text, scale="paper").sweep.name == "paper"
    with pytest.raises(BadInput, match=r"--scale=papr: .* did you mean paper\?"):
        load_text(tmp_path, text, scale="papr")
    with pytest.raises(BadInput, match="takes no scale"):
        load_text(tmp_path, text.replace("(scale): return Sweep(scale", "(): return Sweep('x'"), scale="demo")
    with pytest.raises(BadInput, match="takes a scale; give --scale"):
        load_text(tmp_path, text.replace("SCALES", "OTHERS"))


def test_sweep_json_is_the_whole_definition(tmp_path):
    definition = defined(FOUR, seeds=2, tests=("test", "test_long"), notes=("small",))
    folder = SweepFolder(tmp_path)
    folder.settle(definition)
    loaded = folder.load()
    assert loaded.experiments == definition.experiments and loaded.seeds == (0, 1)
    assert differences(definition, loaded) == []
    (_, four) = json.loads((tmp_path / "sweep.json").read_text())["variants"]
    # By hand: 37,000 rows of 16, and layers of 4 x 16 x 16 an attention, 2 x 16 x 32 + 48, norms of 32.
    assert four["parameters"] == 37_000 * 16 + (1024 + 1072 + 64) + (2048 + 1072 + 96)
    assert four["slug"] == "h-=-4" and four["training_flops"] > 0


def test_variants_and_seeds_may_be_added_and_nothing_else_changed(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.settle(defined(seeds=[3, 4]))
    assert folder.merged(defined(FOUR, seeds=[5])).seeds == (3, 4, 5)
    assert folder.merged(defined(overrides=[("train.compile_cache", "none")], seeds=[3])).seeds == (3, 4)
    folder.settle(defined(FOUR, seeds=[3]))
    changed = defined(Variant("h = 4", {"model.num_heads": 8}), overrides=[("train.steps", "30")], name="other")
    with pytest.raises(BadInput) as error:
        folder.merged(changed)
    assert str(error.value).splitlines()[1:] == [
        "  name: tiny there, other here",
        "  base: train.steps: 12 there, 30 here",
        "  variant 'h = 4': model.num_heads: 4 there, 8 here",
    ]
    with pytest.raises(BadInput, match="variant 'h = 4': there, but not here"):
        folder.merged(defined())


def test_a_folder_that_is_no_sweep_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="is no sweep, and not empty"):
        SweepFolder(tmp_path).merged(defined())
    with pytest.raises(BadInput, match="is no sweep"):
        SweepFolder(tmp_path / "nowhere").load()
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(BadInput, match="is no definition of a sweep"):
        SweepFolder(tmp_path).load()


def test_runs_share_data_unless_they_ask_for_other(tmp_path):
    definition = defined(
        FOUR,
        Variant("bpe", {"data.tokenizer": "bpe"}),
        Variant("small", {"model.vocab_size": 500}),
        Variant("long", {"data.max_length": 9}),
    )
    keys = {name: data_key(config) for name, config in definition.experiments.items()}
    assert (
        keys["base"] == keys["h = 4"] == keys["long"] == keys["small"] != keys["bpe"]
    )  # words have no size to ask for
    assert {run.path.parent.name for run in SweepFolder(tmp_path).runs(definition)} == {
        "base",
        "h-=-4",
        "bpe",
        "small",
        "long",
    }


def test_a_result_counts_only_for_the_config_and_the_tests_it_was_made_with(tmp_path):
    folder, definition = SweepFolder(tmp_path), defined(FOUR)
    (base, four) = folder.runs(definition)
    pretend_finished(base)
    assert base.result() is not None and four.result() is None
    retrained, _ = folder.runs(defined(FOUR, overrides=[("model.dropout", "0.3")]))
    assert retrained.path == base.path and retrained.result() is None
    measured_more, _ = folder.runs(defined(FOUR, tests=("test", "test_long")))
    assert measured_more.result() is None
    (base.path / "result.json").write_text('{"config')  # not whole
    assert base.result() is None


def test_each_seed_has_an_order_of_the_data_and_all_hold_the_same_pairs_out(tmp_path):
    definition = defined(FOUR, seeds=[0, 4])
    runs = SweepFolder(tmp_path).runs(definition)
    assert [run.experiment.data.order_seed for run in runs] == [0, 0, 4, 4]
    assert {run.experiment.data.seed for run in runs} == {0}
    assert len({SweepFolder(tmp_path).data(run.experiment) for run in runs}) == 1
    assert definition.to_json()["data_order"] == "by seed"


def test_a_base_with_an_order_keeps_it_for_all_seeds(tmp_path):
    definition = defined(FOUR, seeds=2, overrides=[("data.order_seed", "9")])
    assert definition.to_json()["data_order"] == "same for all seeds"
    assert {run.experiment.data.order_seed for run in SweepFolder(tmp_path).runs(definition)} == {9}
    (problem,) = problems(Variant("order", {"data.order_seed": 1}))
    assert problem.endswith("data.order_seed: is no variant's to change; the sweep's seeds say it, or its base for all")


def test_a_sweep_keeps_its_order_of_the_data(tmp_path):
    """One that an earlier version began has the same for all seeds, and so has one that begins with --together."""
    apart, together, earlier = (SweepFolder(tmp_path / name) for name in ("apart", "together", "earlier"))
    apart.settle(apart.merged(defined(seeds=2)))
    together.settle(together.merged(defined(seeds=2), together=True))
    earlier.settle(defined(seeds=2))
    record = json.loads(earlier.definition_file.read_text())
    assert record.pop("data_order") == "by seed"
    earlier.definition_file.write_text(json.dumps(record))
    for folder, orders in ((apart, [0, 1, 2]), (together, [None] * 3), (earlier, [None] * 3)):
        for now in (False, True):
            definition = folder.merged(defined(seeds=3), together=now)
            folder.settle(definition)
            assert [run.experiment.data.order_seed for run in folder.runs(folder.load())] == orders
    record["data_order"] = "random"
    earlier.definition_file.write_text(json.dumps(record))
    with pytest.raises(BadInput, match="data_order = 'random': must be 'by seed' or 'same for all seeds'"):
        earlier.load()


def test_results_of_a_version_with_fewer_options_count(tmp_path):
    """config.json and the digest in result.json are what a version without data.order_seed left."""
    earlier = json.loads((GOLDEN / "earlier_sweep_run.json").read_text())
    assert "order_seed" not in earlier["config"]["data"]
    definition = dataclasses.replace(defined(FOUR, DROPOUT, seeds=2), data_order="same for all seeds")
    folder = SweepFolder(tmp_path)
    run = folder.find(definition, "dropout/seed-1")
    pretend_finished(run)
    result = json.loads((run.path / "result.json").read_text())
    publish_json(run.path / "result.json", {**result, "config_digest": earlier["config_digest"]})
    assert run.result() is None
    publish_json(run.folder.config, earlier["config"])
    assert run.result() is not None
    ordered = dataclasses.replace(definition, data_order="by seed")
    assert folder.find(ordered, "dropout/seed-1").result() is None
    changed = dataclasses.replace(defined(FOUR, Variant("dropout", {"model.dropout": 0.2}), seeds=2))
    changed = dataclasses.replace(changed, data_order="same for all seeds")
    assert folder.find(changed, "dropout/seed-1").result() is None


COMPUTATION = {"mesh.fsdp": 2, "mesh.lost_after": 9.0, "train.accumulate": 2, "model.attention_implementation": "jax"}


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


def test_results_of_a_version_that_compared_how_they_were_computed_count(tmp_path):
    definition = defined(FOUR, overrides=[(path, str(value)) for path, value in COMPUTATION.items()])
    run = SweepFolder(tmp_path).runs(definition)[0]
    pretend_finished(run)
    result, config = json.loads((run.path / "result.json").read_text()), schema.to_dict(run.experiment)
    with_computation = digest(run.experiment, schema.flattened(config))
    assert with_computation != run.digest
    publish_json(run.path / "result.json", {**result, "config_digest": with_computation})
    assert run.result() is None
    publish_json(run.folder.config, config)
    assert run.result() is not None
    assert SweepFolder(tmp_path).runs(defined(FOUR))[0].result() is not None  # on another mesh now
    assert SweepFolder(tmp_path).runs(defined(FOUR, overrides=[("model.d_ff", "8")]))[0].result() is None


def test_only_picks_variants():
    definition = defined(FOUR, Variant("h = 8", {"model.num_heads": 8}))
    assert definition.chosen("h*") == ["h = 4", "h = 8"] and len(definition.chosen(None)) == 3
    with pytest.raises(BadInput, match="--only=q: fits no variant; there are: base, h = 4, h = 8"):
        definition.chosen("q")


def test_seeds_and_factors_as_typed():
    assert spec.seeds_of("3") == 3 and spec.seeds_of("0,5") == [0, 5] and spec.seeds_of("5,") == [5]
    assert spec.factors_of("0.5,1,2") == (0.5, 1.0, 2.0)
    for text in ("", "1,1", "0,1", "inf", "x"):
        with pytest.raises(BadInput, match="must be different factors"):
            spec.factors_of(text)
    with pytest.raises(BadInput, match="must be how many"):
        spec.seeds_of("two")


def test_factors_are_of_the_peak_rate():
    definition = defined(Variant("paper", {"optimizer.learning_rate": None}))
    assert definition.experiment("base", 0, 2.0).optimizer.learning_rate == 6e-3
    assert definition.experiment("paper", 0, 0.5).optimizer.learning_rate == pytest.approx(0.5 * (16 * 4) ** -0.5)
    assert definition.experiment("paper", 0).optimizer.learning_rate is None
