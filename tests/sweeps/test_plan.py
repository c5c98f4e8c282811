"""--dry-run: what is counted, and short texts. The whole table is tested with the command."""

from tests.support.sweep_runs import FOUR, defined
from transformer_jax.sweeps import Variant, estimate, plan
from transformer_jax.sweeps.local import Slot

TIMED = {"start": 5.0, "compile": 40.0, "update": 0.5}


def timed(experiments, data, slot):
    return dict.fromkeys(experiments, TIMED)


def texts(folder, definition, **options):
    return plan.plan(folder, definition, definition.chosen(None), {}, **options)


def test_the_changes_of_a_variant_in_a_line():
    assert plan.changes(Variant("a", {"model.num_heads": 4, "model.dropout": 0.25, "seed": None})) == (
        "num_heads=4, dropout=0.25, seed=none"
    )
    assert len(plan.changes(Variant("a", {f"model.option_{n}": n for n in range(9)}))) == plan.LONGEST_DIFFERENCE


def test_runs_that_tune_and_runs_without_a_tuned_rate_are_counted(folder):
    definition = defined(FOUR, seeds=2, tune=(1.0, 2.0), untuned=True, vary=["split", "initialization"])
    text = next(texts(folder, definition))
    counted = "8 runs to train (and at most 4 without tuned rates), 0 finished"
    assert f"2 variants, seeds 0, 1 and 2 learning rates: {counted}" in text
    assert "differences between seeds include: the initial parameters and dropout; which pairs are for" in text
    folder.save(definition)
    folder.record_tuned("base", {"factor": 1.0})
    folder.record_tuned("h = 4", {"factor": 2.0})
    assert ": 6 runs to train, 0 finished" in next(texts(folder, definition))


def test_what_needs_no_timing_is_printed_before_anything_is_timed(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(estimate, "timed_updates", lambda *arguments: asked.append(1) or timed(*arguments))
    printed = texts(folder, defined(Variant("equation 3", {"optimizer.learning_rate": None})))
    heading, base, other = next(printed).splitlines()[2:5]
    assert not asked and heading.split("  ")[-1] == "peak rate"
    assert (base.split()[-1], other.split()[-1]) == ("0.003", "0.125"), "(16 x 4) ** -0.5"
    assert "time of the next run" in next(printed) and asked


def test_the_time_is_that_of_as_many_processes_as_will_run(folder, monkeypatch):
    monkeypatch.setattr(estimate, "timed_updates", timed)
    monkeypatch.setattr(plan, "slots", lambda *_: [Slot()] * 4)  # a machine with four GPUs
    *_, text = texts(folder, defined(FOUR, seeds=8))
    assert "with 4 processes at a time" in text
