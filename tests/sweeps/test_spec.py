"""An ablation is data: everything wrong in it is found before anything runs, and what may change later is settled."""

from pathlib import Path

import pytest

from tests.support.sweep_runs import BASE, FOUR, defined, experiment_file, sweep
from transformer_jax.config import default_config, from_config_dict
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.extension import UserCodeError
from transformer_jax.sweeps import Variant, grid, spec
from transformer_jax.sweeps.folder import SweepFolder


def problems(*variants, overrides=(), **changes):
    with pytest.raises(ConfigError) as error:
        defined(*variants, overrides=overrides, **changes)
    return list(error.value.problems)


def test_a_variant_is_its_difference():
    definition = defined(FOUR, seeds=(0, 5))
    base, four = definition.experiments["base"], definition.experiments["h = 4"]
    assert (base.model.num_heads, four.model.num_heads) == (2, 4)
    assert definition.experiment("h = 4", 5).seed == 5 and definition.seeds == (0, 5)
    assert spec.resolve(sweep(FOUR, base=from_config_dict(BASE)), "").experiments == definition.experiments


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


def test_all_that_is_wrong_is_reported_at_once():
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
        "file.py: seeds = 0: there must be at least one seed; 3 is usual",
        "file.py: 2 variants are called 'a'",
        "file.py: baseline = 'bas': no such variant; did you mean base?",
        "file.py: variant 'b': baseline = 'bse': no such variant; did you mean base?",
        "file.py: tests = (): must be a list of different splits, such as ['test']",
        f"file.py: analysis 'heads': missing.py: no such Python file (looked for in {Path.cwd()})",
        "file.py: variant 'a': model.num_head: no such option; did you mean model.num_heads?",
        "file.py: variant 'a': seed: a variant cannot change it; the sweep's seeds set it",
        "file.py: variant 'a': model.num_heads = 3 does not divide d_model = 16: set d_k and d_v, or num_heads to 2",
        "file.py: variant 'b': optimizer.name = 'addam': optax has no such optimizer; did you mean adam?",
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 1]}, "seeds = [1, 1]: 1 is repeated"),
        ({"seeds": "3"}, "seeds = '3': must be a whole number"),
        ({"seeds": []}, "seeds = []: there must be at least one seed"),
        ({"seeds": True}, "seeds = True: must be a whole number"),
        ({"variants": []}, "variants: must be a list of at least one Variant"),
        ({"variants": ["base"]}, "variants: number 1 is 'base'; it must be a Variant"),
        ({"variants": [Variant("base"), Variant("Base")]}, "'base' and 'Base' would have the same folder"),
        ({"variants": [Variant("..")]}, "number 1 has the name '..'; it must have letters or digits"),
        ({"tune": (1 / 3, 0.333333)}, "must be factors of the learning rate that differ in six digits"),
        (
            {"overrides": [("train.best_metric", "exact_match")]},
            "file.py: variant 'base': train.best_metric = 'exact_match' is not among the validation metrics",
        ),
        ({"name": ""}, "name and question must be strings"),
        ({"base": "x.py"}, "base = str: must be a ConfigDict"),
        ({"base": {**BASE, "train": {"steps": 1}}}, "optimizer.warmup_steps = 4 is more than train.steps = 1"),
    ],
)
def test_an_invalid_sweep_is_refused(changes, message):
    assert message in "\n".join(problems(**changes))


def test_a_problem_of_the_base_is_reported_once():
    assert len(problems(FOUR, base={**BASE, "train": {"steps": 1}})) == 1


def test_a_part_must_have_a_name_and_must_fit(tmp_path):
    part = tmp_path / "part.py"
    part.write_text("from flax import linen as nn\nclass Small(nn.Module):\n    pass\n")
    assert "model.parts.feed_forward" in problems(Variant("own", {"model.parts.feed_forward": f"{part}:Small"}))[0]
    assert (
        "is a class; the processes that train must find it"
        in problems(Variant("own", {"model.parts.positions": Variant}))[0]
    )


def test_tune_needs_a_schedule_with_a_peak(tmp_path):
    path = tmp_path / "schedule.py"
    path.write_text(
        "def own(steps):\n    return lambda count: 1e-3\ndef peaked(peak):\n    return lambda count: peak\n"
    )
    own, peaked = (Variant(name, {"optimizer.schedule": f"{path}:{name}"}) for name in ("own", "peaked"))
    defined(own, peaked, tune=())
    assert problems(own, peaked, tune=(1, 2)) == [
        f"file.py: variant 'own': optimizer.schedule = {path}:own: takes no `peak`, the learning rate that tune "
        "multiplies"
    ]


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
    with pytest.raises(BadInput, match="returned int; it must return a Sweep"):
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


def test_a_base_with_an_order_keeps_it_for_all_seeds(tmp_path):
    definition = defined(FOUR, seeds=2, overrides=[("data.order_seed", "9")])
    assert definition.vary == ("initialization",)
    assert {run.experiment.data.order_seed for run in SweepFolder(tmp_path).runs(definition)} == {9}
    (problem,) = problems(Variant("order", {"data.order_seed": 1}))
    assert "a variant cannot change it" in problem


def test_only_picks_variants():
    definition = defined(FOUR, Variant("h = 8", {"model.num_heads": 8}))
    assert definition.chosen(["h*"]) == ["h = 4", "h = 8"] and len(definition.chosen(None)) == 3
    assert definition.chosen(["h = 8", "[bh]*4", "base"]) == ["base", "h = 4", "h = 8"]  # in the sweep's order
    with pytest.raises(BadInput, match="--only=q: matches no variant; there are: base, h = 4, h = 8"):
        definition.chosen(["base", "q"])


def test_factors_are_of_the_peak_rate():
    definition = defined(Variant("paper", {"optimizer.learning_rate": None}))
    assert definition.experiment("base", 0, 2.0).optimizer.learning_rate == 6e-3
    assert definition.experiment("paper", 0, 0.5).optimizer.learning_rate == pytest.approx(0.5 * (16 * 4) ** -0.5)
    assert definition.experiment("paper", 0).optimizer.learning_rate is None
