"""The learning rates that were tried, their cost, and the results without tuning beside the tuned ones."""

import shutil

import pytest

from tests.support.finished_sweeps import Report, changed, edit, seed_folder, write


def facts(factor, losses, **more):
    cost = {"runs": 3, "updates": 2000, "train_seconds": 120.0, "training_flops": 4e12}
    return {"factor": factor, "losses": dict(zip(("0.5", "1", "2"), losses, strict=True)), "seed": 10**6, "cost": cost}


@pytest.fixture
def tuned(sweep):
    """Of A h=1 another rate was chosen; at its own rate it is as good as A h=4."""
    changed(sweep, tune=[0.5, 1, 2], untuned=True)
    write(
        sweep / "tuned.json",
        {
            "base": facts(1.0, (3.0, 2.0, 2.5)),
            "A h=1": facts(2.0, (3.0, 2.9, 2.8)),
            "A h=4": facts(1.0, (2.5, 2.25, None)),
        },
    )
    for seed in (0, 1):
        at = seed_folder(sweep, "A h=1", seed)
        shutil.copytree(seed_folder(sweep, "A h=4", seed), at.with_name(f"untuned-seed-{seed}"), symlinks=True)
    return sweep


def lines_of(report, name):
    """The cells of a variant in the table about learning rates, by column."""
    table = [line for line in report.markdown.partition("## Learning rates")[2].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    return dict(zip(rows[0], next(row for row in rows if row[0] == name), strict=True))


def test_what_was_tried_and_what_it_cost(tuned):
    for path in tuned.glob("runs/*/*seed-*/result.json"):
        edit(path, train_seconds=480.0, together=8)  # the time of one program counts once
    report = Report(tuned)
    base, one, four = (lines_of(report, name) for name in ("base", "A h=1", "A h=4"))
    losses = [base[f"validation loss x {factor}"] for factor in ("0.5", "1", "2")]
    assert losses == ["3.0000", "2.0000 chosen", "2.5000"]
    assert one["rate x"] == "2" and four["validation loss x 2"] == "no loss"
    assert "9 runs, 6,000 updates, 6 min, 12.0 T FLOPs;" in report.markdown
    assert "8 runs, 8,000 updates, 8 min" in report.markdown and report.json["tuning"]["cost"]["runs"] == 9
    assert (
        "Chosen: base x 1, A h=1 x 2, A h=4 x 1." in report.markdown and "beyond: A h=1 (highest)." in report.markdown
    )
    assert "validation loss x 0.5" in report.page


def test_tuned_and_untuned_results_are_side_by_side(tuned):
    report = Report(tuned)
    one, four = (lines_of(report, name) for name in ("A h=1", "A h=4"))
    assert one["BLEU own rate"] == four["BLEU own rate"] == four["BLEU tuned"] != one["BLEU tuned"]
    assert one["Δ PPL own rate"] == four["Δ PPL own rate"] and one["Δ PPL tuned"] != one["Δ PPL own rate"]
    untuned = report.json["tuning"]["untuned"]["bleu"]
    assert untuned["scores"]["A h=1"] == untuned["scores"]["A h=4"] == report.json["tests"][0]["bleu"]["A h=4"]
    assert untuned["differences"]["A h=1"]["value"] == pytest.approx(untuned["differences"]["A h=4"]["value"])
    shutil.rmtree(seed_folder(tuned, "A h=1", 0).with_name("untuned-seed-0"))
    report = Report(tuned)
    assert "Of 8 runs: 7 finished, 1 never started." in report.markdown
    assert "A h=1, seed 0, untuned" in report.markdown


def test_a_damaged_record_of_tuning_is_no_end_of_a_report(tuned):
    write(tuned / "tuned.json", {"base": 3})
    report = Report(tuned)
    assert "None is chosen yet." in report.markdown and "tuned.json" in report.json["problems"][0]
