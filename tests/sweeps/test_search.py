"""Settings that are tried before variants are compared: how they are drawn, proposed, chosen and resumed."""

import json
import math

import pytest

from tests.support import sweep_runs
from tests.support.sweep_runs import FOUR, defined, experiment_file, pretend_finished, sweep
from tests.sweeps.test_launch import end, launcher
from tests.sweeps.test_slurm import Cluster
from transformer_jax.errors import EXIT_UNFINISHED, BadInput, Failed
from transformer_jax.extension import UserCodeError
from transformer_jax.sweeps import Variant, launch, slurm
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.launch import LaunchOptions, merged
from transformer_jax.sweeps.launch import ready as ready_to_launch
from transformer_jax.sweeps.search import TUNING_SEEDS, best, drawn
from transformer_jax.sweeps.slurm import Slurm, SlurmPool

SEARCH = {
    "optimizer.learning_rate": ("log_uniform", 1e-4, 1e-2),
    "model.dropout": ("uniform", 0, 0.5),
    "model.d_ff": ("uniform", 30, 33),
    "model.activation": ("choice", "relu", "gelu", "swish"),
}
# Proposes half of the lowest learning rate so far.
HALF = """
def half(tried, search):
    lowest = min(values.get("optimizer.learning_rate", 0.01) for values, loss in tried if loss > 0)
    return {path: lowest / 2 if "rate" in path else ends[1] for path, (_, *ends) in search.items()}

def other(tried): return {"model.dropout": 0.1}
def wrong(tried, variant): return {"model.dropout": 2} if variant == "base" else 1 / 0
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(HALF)
    return path


def loss_of(run):
    """The made-up loss of a run: the lower, the nearer the learning rate is to 1e-4."""
    config = run.experiment
    distance = abs(math.log(config.optimizer.learning_rate / 1e-4))
    return 1.0 + distance + config.model.dropout / 10 + (run.seed == TUNING_SEEDS[0]) / 100


@pytest.fixture
def launched(monkeypatch):
    """Launches a sweep until all is done or some runs are made; returns the ids of those."""

    def launched(folder, definition, most=1000, **options):
        made = []

        def run_jobs(pool, jobs, progress, *_):
            for run in (run for job in jobs for run in job if len(made) < most):
                made.append(run.run_id)
                pretend_finished(run, loss_of(run))

        monkeypatch.setattr(launch, "run_jobs", run_jobs)
        assert launcher(folder, definition, **options).run() == (0 if len(made) < most else EXIT_UNFINISHED)
        return made

    return launched


def test_a_draw_is_a_function_of_the_sweep_the_variant_and_the_number():
    made = sweep(FOUR, search=SEARCH)
    draws = {name: [dict(drawn(made, name, number).values) for number in range(200)] for name in ("base", "h = 4")}
    assert draws["base"][1] == {
        "optimizer.learning_rate": 0.00428603,
        "model.dropout": 0.0898942,
        "model.d_ff": 33,
        "model.activation": "swish",
    }
    assert draws["base"][0] == draws["h = 4"][0] == {} and draws["base"][1:] != draws["h = 4"][1:]
    assert drawn(sweep(search=SEARCH, name="other"), "base", 1).values != draws["base"][1]
    rates, dropouts, widths, names = ([values[path] for values in draws["base"][1:]] for path in SEARCH)
    assert min(rates) >= 1e-4 and max(rates) <= 1e-2 and 70 < sum(rate < 1e-3 for rate in rates) < 130
    assert min(dropouts) >= 0 and max(dropouts) <= 0.5 and 70 < sum(rate < 0.25 for rate in dropouts) < 130
    assert set(widths) == {30, 31, 32, 33} and set(names) == {"relu", "gelu", "swish"}


def test_the_variants_own_setting_is_replaced_by_one_that_is_better_with_every_seed(folder):
    runs = folder.tuning_runs(defined(search=SEARCH, trials=4), ["base"])
    assert [run.run_id for run in runs][::4] == ["base/tuning-0", "base/tuning-0-again"]
    losses = {"0": (2.0, 2.1), "1": (1.5, 2.2), "2": (1.4, "diverged"), "3": (1.6, 2.0)}
    for run in runs:
        end(run, losses[run.setting.name][run.seed - TUNING_SEEDS[0]])
    choice = best(runs)
    assert (choice["setting"], choice["factor"], choice["lowest"]) == (3, 1.0, 3)
    assert choice["losses"]["2"] is None and choice["settings"]["0"] == {} and choice["cost"]["runs"] == 8
    for run in runs:
        end(run, {**losses, "3": (1.5, 2.15)}[run.setting.name][run.seed - TUNING_SEEDS[0]])
    assert best(runs)["setting"] == 0, "better on average only"


def test_settings_are_compared_by_perplexity_which_label_smoothing_does_not_change(folder):
    runs = folder.tuning_runs(defined(search=SEARCH, trials=2), ["base"])
    for run in runs:
        pretend_finished(run, {"0": 1.0, "1": 2.0}[run.setting.name])
        file = run.path / "result.json"
        result = json.loads(file.read_text())
        file.write_text(json.dumps({**result, "valid": {**result["valid"], "loss": 3.0 - result["valid"]["loss"]}}))
    choice = best(runs)
    assert choice["setting"] == 0 and choice["losses"] == {"0": pytest.approx(1.0), "1": pytest.approx(2.0)}


@pytest.mark.parametrize(
    ("by_seed", "chosen"),
    [
        ({0.5: (2.0, 2.1), 1: (1.9, 2.0), 2: (1.8, 2.05)}, 1),  # 2 is the best on average, but not with both seeds
        ({0.5: (2.0, 2.1), 1: (1.9, 2.0), 2: (1.8, 1.95)}, 2),
        ({0.5: (1.9, 1.8), 1: (2.9, 2.0), 2: (1.8, 1.85)}, 2),  # as near to 1 as 0.5, and better on average
        ({1: (2.0, 2.0), 2: (1.0, 1.85)}, 2),  # better by far with one seed, and a little with the other
        ({0.5: (2.0, 2.1), 1: ("diverged", 1.0), 4: (1.9, 2.2)}, 0.5),
    ],
)
def test_a_rate_other_than_the_variants_own_must_be_better_with_every_tuning_seed(folder, by_seed, chosen):
    definition = defined(FOUR, tune=tuple(by_seed))
    runs = folder.tuning_runs(definition, ["base"])
    for run in runs:
        end(run, by_seed[run.setting.key][run.seed - TUNING_SEEDS[0]])
    choice = best(runs)
    assert choice["factor"] == chosen and list(choice["losses"]) == [f"{factor:g}" for factor in by_seed]


@pytest.mark.parametrize("propose", [None, "half"])
def test_a_search_that_is_interrupted_ends_as_one_that_is_not(folder, own, launched, propose, tmp_path):
    given = {"search": SEARCH, "trials": 4, "propose": propose and f"{own}:{propose}"}
    definition = defined(FOUR, Variant("again", same_as="base"), seeds=2, **given)
    made = launched(folder, definition)
    assert len(made) == 2 * 4 * 2 + 3 * 2
    tuned = (folder.path / "tuned.json").read_text()
    number = folder.tuned()["base"]["setting"]
    assert f"again/setting-{number}-seed-1" in made, "a control has the setting of what it repeats"
    compared = folder.runs(definition)[0]
    assert dict(folder.tuned()["base"]["settings"][str(number)])["model.dropout"] == compared.experiment.model.dropout
    assert compared.experiment.seed == 0 and not {*TUNING_SEEDS} & {run.seed for run in folder.runs(definition)}
    for stop in (4, 9, 18):
        other = SweepFolder(tmp_path / f"stopped-{stop}")
        first = launched(other, definition, stop)
        if stop == 4:  # what a worker finds
            found, wanted = ([run.experiment for run in other.all_runs(each)] for each in (other.load(), definition))
            assert found == wanted and other.by_id(definition)["base/tuning-1"].experiment in wanted
        again = launched(other, merged(other, definition))
        assert sorted(first + again) == sorted(made) and (other.path / "tuned.json").read_text() == tuned


def test_a_proposal_is_told_of_those_before(folder, own, launched):
    definition = defined(seeds=1, search=SEARCH, trials=4, propose=f"{own}:half")
    launched(folder, definition)
    rates = [proposal["values"]["optimizer.learning_rate"] for proposal in folder.proposed()["base"]]
    assert rates == [0.005, 0.0025, 0.00125], "setting 0 has a loss and no values"
    assert folder.proposed()["base"][0]["values"]["model.activation"] == "gelu"


def test_the_code_that_proposes_is_recorded_and_compared(folder, own, launched, capsys):
    address = f"{own}:half"
    definition = defined(FOUR, seeds=1, search=SEARCH, trials=3, propose=address)

    def ready(**options):
        return ready_to_launch(folder, definition, LaunchOptions(**options))

    launched(folder, ready(), most=6)
    old = ready().code[address]
    assert {proposal["code"] for proposal in folder.proposed()["base"]} == {old}
    own.write_text(f"# Another comment.\n{HALF}")
    assert ready().code[address] == old
    own.write_text(HALF.replace("lowest / 2", "lowest / 4"))
    with pytest.raises(BadInput, match=r"own\.py:half has changed since it proposed 2 settings"):
        ready()
    with pytest.raises(Failed, match=r"own\.py was edited after the sweep was launched"):
        launched(folder, folder.load())
    accepted = ready(accept_changed_code=True)
    assert "own.py:half has changed since it proposed 2 settings; the report mentions it" in capsys.readouterr().err
    launched(folder, accepted)
    codes = [proposal["code"] for proposal in folder.proposed()["base"] + folder.proposed()["h = 4"]]
    assert len(codes) == 4 and {*codes} == {old, accepted.code[address]}
    with pytest.raises(BadInput, match="has changed since it proposed"):
        ready()  # although all settings are chosen


def test_the_jobs_of_a_cluster_try_settings(folder, own, monkeypatch):
    definition = defined(FOUR, search=SEARCH, trials=3, propose=f"{own}:half")

    class Working(Cluster):
        def submit_array(self, tasks):
            for run_id in (run_id for task in tasks for run_id in task.run_ids):
                run = SweepFolder(folder.path).by_id(folder.load())[run_id]
                pretend_finished(run, loss_of(run))
            return super().submit_array(tasks)

    cluster = Working(*[["CD"]] * 20)
    monkeypatch.setattr(slurm, "job_states", cluster.job_states)
    monkeypatch.setattr(Slurm, "executor", lambda *_: cluster)
    monkeypatch.setattr(SlurmPool, "seconds_between_polls", 0.0)
    assert launcher(folder, definition, slurm=Slurm({}, 10)).run() == 0
    assert cluster.arrays == [4, 4, 4, 2], "the settings of all variants at a time, with both seeds"
    assert set(folder.tuned()) == {"base", "h = 4"}


def test_what_may_change_in_a_search(folder, own, launched):
    launched(folder, defined(FOUR, seeds=1))
    searched = defined(FOUR, seeds=1, search=SEARCH, trials=3)
    assert len(launched(folder, merged(folder, searched))) >= 12, "a search may be added"
    merged(folder, defined(FOUR, seeds=1, search=SEARCH, trials=5))
    wider = {**SEARCH, "model.dropout": ("uniform", 0, 0.6)}
    refused = {
        "search: {": {"search": wider, "trials": 3},
        "search: there, but not here": {},
        "trials: 3 there, 2 here": {"search": SEARCH, "trials": 2},
        "propose: None there": {"search": SEARCH, "trials": 3, "propose": f"{own}:half"},
    }
    for line, changes in refused.items():
        with pytest.raises(BadInput, match=line):
            merged(folder, defined(FOUR, seeds=1, **changes))
    tuned = SweepFolder(folder.path.parent / "tuned")
    tuned.save(defined(FOUR, tune=(1, 2)))
    with pytest.raises(BadInput, match="tune: 1,2 there, none here"):
        merged(tuned, searched)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("other", BadInput, "returned {'model.dropout': 0.1} for variant 'base'; must return a dict with a value for"),
        (
            "wrong",
            BadInput,
            r"returned {'model.dropout': 2} for variant 'base': model.dropout = 2.0: must be at least 0 and below 1",
        ),
        ("half", UserCodeError, "TypeError"),
    ],
)
def test_a_proposal_that_is_none(folder, own, launched, name, error, message):
    search = {"model.dropout": ("uniform", 0, 0.5)} if name == "wrong" else SEARCH
    if name == "half":
        own.write_text(HALF.replace("lowest / 2", "lowest + None"))
    with pytest.raises(error) as raised:
        launched(folder, defined(search=search, trials=3, propose=f"{own}:{name}"))
    assert message in str(raised.value) and folder.proposed() == {}


def test_a_damaged_choice_is_an_error(folder):
    folder.path.mkdir()
    facts = {"factor": 1.0, "setting": 2, "settings": {"0": {}}, "lowest": 2, "losses": {}, "cost": {}, "seeds": []}
    (folder.path / "tuned.json").write_text(json.dumps({"base": facts}))
    with pytest.raises(BadInput, match=r"tuned\.json: is damaged: base: the setting 2 is not among the settings"):
        folder.runs(defined(search=SEARCH, trials=3))


@pytest.mark.drill
def test_processes_train_the_settings(tmp_path):
    """The whole command with real training; killed runs are in tests/chaos."""
    options = {"search": {"optimizer.learning_rate": ["log_uniform", 1e-4, 1e-2]}, "trials": 2, "seeds": 1}
    experiment_file(tmp_path, **options)
    sweep_runs.run(tmp_path, f"--workdir={tmp_path / 'sweep'}", "--jobs=2")
    tuned = json.loads((tmp_path / "sweep/tuned.json").read_text())
    assert set(tuned["base"]["losses"]) == {"0", "1"} and all(tuned["base"]["losses"].values())
