"""Reading a sweep's folder: damaged files, records of something else, and folders that are not sweeps."""

import itertools
import json
import shutil

import pytest

from tests.support.finished_sweeps import Report, changed, edit, record_file, seed_folder, variant, write
from transformer_jax import cli
from transformer_jax.report.findings import find
from transformer_jax.report.report import Report as Content
from transformer_jax.report.results import load_sweep
from transformer_jax.report.text import words
from transformer_jax.report.write import latex_table, render_markdown


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("test pairs held out of /home/me/a b/my.en, /c/d.en", "test pairs held out of my.en, d.en"),
        ("/home/me/newstest.en", "test: newstest.en"),
    ],
)
def test_names_of_test_sets_have_no_folders(sweep, recorded, shown):
    for name in ("base", "A h=1", "A h=4"):
        for seed in (0, 1):
            edit(record_file(sweep, name, seed), test_set=recorded)
    assert load_sweep(sweep).problems == []
    report = Report(sweep)
    test = report.content.tests[0]
    latex = latex_table(report.content, test, test.table.for_latex())
    assert rf"\caption{{made-up: {shown} (20 sentences)." in latex
    assert shown in report.page and shown in report.markdown
    assert "/home/me" not in "".join([latex, report.page, report.markdown, json.dumps(report.json)])


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("result.json", '{"steps": 10', "JSON"),
        ("translations/test.latest.json", '{"test_set": "x"}', "is damaged: it has no test_set_sha256"),
        ("translations/test.latest.json", None, "there is no such file"),
        ("versions.json", "\x00", "JSON"),
    ],
)
def test_damaged_file_is_reported_and_invalidates_only_its_run(sweep, file, damage, message):
    path = seed_folder(sweep, "A h=1", 1) / file
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    report = Report(sweep)
    (problem,) = report.json["problems"]
    assert problem.startswith(str(path)) and message in problem
    assert str(path) in report.page
    counted = 2 if file == "versions.json" else 1  # versions.json has no scores
    assert len(report.json["tests"][0]["bleu"]["A h=1"]) == counted
    assert len(report.json["tests"][0]["bleu"]["A h=4"]) == 2


def test_scores_that_were_added_by_hand_are_not_the_sweeps(sweep):
    """By `evaluate` with another metric, of one run."""
    path = record_file(sweep, "A h=1", 1)
    record = json.loads(path.read_text())
    mine = {"mine": {"score": 3.0, "signature": "mine.py:mine|sha256:0"}}
    edit(path, measures=record["measures"] | mine, sentence_scores={"mine": [3.0] * record["n"]})
    (test,) = Report(sweep).json["tests"]
    assert "mine" in test  # of a result that does not say which metrics it has
    result = seed_folder(sweep, "A h=1", 1) / "result.json"
    scores = json.loads(result.read_text())["tests"]["test"]
    edit(result, tests={"test": {**scores, "custom_metrics": {}}})
    (test,) = Report(sweep).json["tests"]
    assert len(test["bleu"]["A h=1"]) == 2 and "mine" not in test


LESS_READ = ("attempt.json", "versions.json", "config.json", "analysis/a.json")


@pytest.mark.parametrize(
    "file",
    [
        "result.json",
        "translations/test.latest.json",
        *(pytest.param(file, marks=pytest.mark.drill) for file in LESS_READ),
    ],
)
def test_no_value_in_a_file_of_a_run_ends_the_report_of_the_others(sweep, file):
    run = seed_folder(sweep, "A h=1", 0)
    write(run / "analysis" / "a.json", {"title": "A", "text": "t", "tables": [], "plots": []})
    content = json.loads((run / file).read_text())
    for key, value in itertools.product([*content, "versions", "code", "together"], (None, 3, -1e400, [[]])):
        write(run / file, {**content, key: value})
        report = Content(load_sweep(sweep))
        assert len(report.tests[0].findings.by_metric["bleu"].scores["A h=4"]) == 2, (key, value)
        render_markdown("report.md", report=report, words=words)


@pytest.mark.parametrize(("key", "value"), [("tokens", -1), ("log_probabilities", float("nan")), ("tokens", None)])
def test_impossible_numbers_and_missing_ones_are_damage(sweep, key, value):
    path = record_file(sweep, "A h=1", 1)
    record = json.loads(path.read_text())
    record["sentences"][key][-1:] = [] if value is None else [value]
    write(path, record)
    assert "impossible numbers" in load_sweep(sweep).problems[0]


def test_record_of_something_else_is_refused(sweep):
    """`evaluate` may have replaced it since."""
    run = seed_folder(sweep, "base", 0)
    path, result = run / "translations" / "test.latest.json", json.loads((run / "result.json").read_text())
    record = {**json.loads(path.read_text()), "decode": {"beam": 4}, "weights_sha256": "0"}
    keys = ("test_set_sha256", "steps", "decode", "weights_sha256")
    result["tests"]["test"] |= {key: record[key] for key in keys}
    write(run / "result.json", result)
    write(path, {**record, "against": "another run"})  # it may have been made again
    assert load_sweep(sweep).problems == []
    record["weights_sha256"] = "1"
    write(path, record)
    found = load_sweep(sweep)
    (problem,) = found.problems
    assert "is of other weights" in problem
    assert find(found)[0].not_compared == {} and len(find(found)[0].by_metric["bleu"].scores["base"]) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: shutil.rmtree(path), "is not a sweep"),
        (lambda path: (path / "sweep.json").write_text("{"), "sweep.json: is not JSON"),
        (lambda path: changed(path, format=9), "that this version reads"),
        (lambda path: changed(path, variants=[{"name": 3}]), "sweep.json: is damaged: variants.0"),
        (lambda path: changed(path, margin={"perplexity": -2}), "sweep.json: is damaged (ValueError: margins and"),
        (lambda path: changed(path, variants=[variant("base", published={"perplexity": 0.0})]), "must be positive"),
        (lambda path: changed(path, contrasts={"heads": {"base": 1}}), "must have weights above and below 0"),
        (lambda path: changed(path, contrasts={"heads": {}}), "sweep.json: is damaged (ValueError"),
        (lambda path: (path / "report").write_text("a file"), "File exists"),
    ],
)
def test_folder_that_is_not_a_sweep_is_refused_in_one_line(sweep, damage, message, capsys):
    damage(sweep)
    assert cli.main(["report", str(sweep)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {sweep}") and message in line


def test_a_sweep_in_the_home_directory(sweep, monkeypatch):
    monkeypatch.setenv("HOME", str(sweep.parent))
    assert [run.state for run in load_sweep("~/sweep").runs] == [run.state for run in load_sweep(sweep).runs]
    assert load_sweep("~/sweep").path == sweep
