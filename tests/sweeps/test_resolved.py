"""An ablation is data: parsed, checked, and resolved to a config for each run."""

import json

import pytest

from tests.support.sweep_runs import BASE, FOUR, defined, experiment_file, sweep
from transformer_jax.config import default_config, from_config_dict
from transformer_jax.errors import BadInput
from transformer_jax.extension import UserCodeError
from transformer_jax.sweeps import Variant, resolved
from transformer_jax.sweeps.definition import Setting


def test_a_variant_is_its_difference():
    definition = defined(FOUR, seeds=(0, 5))
    base, four = definition.experiments["base"], definition.experiments["h = 4"]
    assert (base.model.num_heads, four.model.num_heads) == (2, 4)
    assert definition.experiment("h = 4", 5).seed == 5 and definition.seeds == (0, 5)
    assert resolved.resolve(sweep(FOUR, base=from_config_dict(BASE)), "").experiments == definition.experiments
    assert defined(base=default_config()).base.model.d_model == 512


def load_text(tmp_path, text, **options):
    (tmp_path / "x.py").write_text(text)
    return resolved.load(str(tmp_path / "x.py"), **options)


def test_the_file_of_an_experiment(tmp_path):
    path = experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})", seeds=2)
    definition = resolved.load(str(path), overrides=[("train.steps", "20")], seeds=[7])
    assert definition.seeds == (7,) and definition.experiments["h = 4"].train.steps == 20
    with pytest.raises(UserCodeError, match="KeyError") as error:
        load_text(tmp_path, "def get_sweep():\n    return {}['sweep']\n")
    assert "line 2, in get_sweep" in error.value.traceback
    for text in ("", "def get_sweep(): return 3"):
        with pytest.raises(BadInput, match=r"x\.py: must have a function get_sweep\(\) that returns a Sweep"):
            load_text(tmp_path, text)


def test_scales(tmp_path):
    text = (
        "from transformer_jax.sweeps import Sweep, Variant\n"
        "SCALES = ('demo', 'paper')\n"
        "def get_sweep(scale): return Sweep(scale, '', {}, [Variant('base')])\n"
    )
    assert load_text(tmp_path, text).scale == "demo"
    assert load_text(tmp_path, text, scale="paper").sweep.name == "paper"
    assert load_text(tmp_path, text.replace("SCALES", "OTHERS"), scale="any").sweep.name == "any"
    with pytest.raises(BadInput, match=r"its get_sweep\(\) needs a scale: give --scale=NAME"):
        load_text(tmp_path, text.replace("SCALES", "OTHERS"))
    with pytest.raises(BadInput, match=r"--scale=papr: .*paper\?"):
        load_text(tmp_path, text, scale="papr")
    with pytest.raises(BadInput, match="takes no scale"):
        load_text(tmp_path, text.replace("(scale): return Sweep(scale", "(): return Sweep('x'"), scale="demo")


def test_what_is_wrong_with_a_flag_is_not_the_files(tmp_path):
    path = str(experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})"))
    for flags, problem in (({"seeds": 0}, "--seeds = 0: must be"), ({"tune": (1.0,)}, r"--tune = \(1.0,\): must be")):
        with pytest.raises(BadInput, match=f"^{problem}"):
            resolved.load(path, **flags)


def test_the_command_line_may_leave_out_tuning(tmp_path):
    path = str(experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})", tune=(1, 2)))
    assert resolved.load(path).tune == (1, 2) and resolved.load(path, tune=()).tune == ()


def test_a_stored_sweep_is_not_checked_again():
    record = json.loads(json.dumps(defined(FOUR).to_json()))
    for variant in record["variants"]:
        variant |= {"changes": {}, "published": {"blue": 1}}
    loaded = resolved.from_json({**record, "tests": ["tset"], "tune": [2]})
    assert loaded.sweep.tests == ["tset"] and loaded.tune == (2,)


def test_only_picks_variants():
    definition = defined(FOUR, Variant("h = 8", {"model.num_heads": 8}))
    assert definition.chosen(["h*"]) == ["h = 4", "h = 8"] and len(definition.chosen(None)) == 3
    assert definition.chosen(["h = 8", "[bh]*4", "base"]) == ["base", "h = 4", "h = 8"]  # in the sweep's order
    with pytest.raises(BadInput, match="--only=q"):
        definition.chosen(["base", "q"])
    named = defined(Variant("groups [1, 2]", {"model.num_heads": 4}))
    assert named.chosen(["groups [1, 2]"]) == named.chosen(["groups*"]) == ["groups [1, 2]"]


def test_factors_are_of_the_peak_rate():
    definition = defined(Variant("paper", {"optimizer.learning_rate": None}))
    half, twice = Setting("rate", 0.5), Setting("rate", 2.0)
    assert definition.experiment("base", 0, twice).optimizer.learning_rate == 6e-3
    assert definition.experiment("paper", 0, half).optimizer.learning_rate == pytest.approx(0.5 * (16 * 4) ** -0.5)
    assert definition.experiment("paper", 0).optimizer.learning_rate is None
