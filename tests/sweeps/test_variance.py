"""What differs between seeds, as a sweep states it: the initial parameters, the order of the data, the split."""

import pytest

from tests.support.sweep_runs import BASE, defined
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps import Variant
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.variance import SOURCES


@pytest.mark.parametrize("vary", [None, *[[source] for source in SOURCES], ["split", "initialization"], [*SOURCES]])
def test_the_seeds_set_what_varies_and_nothing_else(vary, tmp_path):
    definition = defined(vary=vary, seeds=[0, 4], overrides=[("seed", "7"), ("data.task.seed", "3")])
    folder = SweepFolder(tmp_path)
    folder.save(definition)
    named = vary or ["initialization", "order"]
    wanted = {source: [0, 4] for source in named}
    for each in (definition, folder.load()):
        runs = [each.experiment("base", seed) for seed in (0, 4)]
        assert [run.seed for run in runs] == wanted.get("initialization", [7, 7])
        assert [run.data.order_seed for run in runs] == wanted.get("order", [None, None])
        assert [run.data.split_seed for run in runs] == wanted.get("split", [None, None])
        assert {run.data.task.seed for run in runs} == {3}
    places = {folder.data(run.experiment) for run in folder.runs(definition)}
    assert len(places) == (2 if "split" in named else 1)


FILES = {**BASE, "data": {"source": ("a.en",), "target": ("a.de",), "valid_source": ("b.tsv",)}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": "order"}, "vary = 'order': must be a list of at least one of initialization, order, split"),
        ({"vary": []}, "vary = []: must be a list of at least one of"),
        ({"vary": ["dropout"]}, "vary = ['dropout']: must be a list of at least one of"),
        (
            {"vary": ["order"], "overrides": [("data.order_seed", "1")]},
            "vary has 'order', and the base sets data.order_seed = 1: leave one out",
        ),
        (
            {"vary": ["split"], "overrides": [("data.directory", "prepared")]},
            "vary has 'split', and the base sets data.directory = prepared, which has one split: leave one out",
        ),
        (
            {"vary": ["split"], "base": FILES},
            "variant 'base': vary has 'split': split_seed = 0 chooses validation pairs among the training text, but "
            "they are b.tsv",
        ),
    ],
)
def test_what_cannot_vary_is_refused_in_a_line(changes, message):
    with pytest.raises(ConfigError) as error:
        defined(**changes)
    (problem,) = error.value.problems
    assert problem.startswith(f"file.py: {message}")


def test_a_variant_cannot_choose_the_split():
    with pytest.raises(ConfigError, match=r"data.split_seed: a variant cannot change it; the sweep's seeds set it"):
        defined(Variant("other", {"data.split_seed": 1}))
