"""What a report says: its parts, the same numbers in every format, its sentences, and sweeps that are not all done."""

import csv
import fcntl
import io
import json
import re
import shutil
import socket
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.support.finished_sweeps import (
    VARIANTS,
    Report,
    changed,
    edit,
    make_run,
    make_sweep,
    record_file,
    seed_folder,
    variant,
    write,
)
from transformer_jax import cli
from transformer_jax.report.results import load_sweep
from transformer_jax.report.table import curve_records
from transformer_jax.report.write import latex_table, write_report


def latex(report, number):
    test = report.content.tests[number]
    return latex_table(report.content, test, test.table.for_latex())


def test_json_has_what_the_report_says(whole):
    found = whole.json
    assert found["state"] == "All 15 runs are finished." and found["baseline"] == "base"
    assert [test["split"] for test in found["tests"]] == ["test", "test_long"]
    assert found["facts"]["jax"] == "0.10.2" and "init_from" not in found["facts"]
    assert "Nothing here was trained." in found["remarks"] and len(whole.content.runs.rows) == 15
    assert found["tests"][0]["rows"][0]["bleu_mean"] == pytest.approx(np.mean(found["tests"][0]["bleu"]["base"]))


def test_all_formats_have_the_same_means_and_differences(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test", "A h=1"))
    records = [record_file(whole.content.sweep.path, "A h=1", seed) for seed in range(3)]
    scores = [json.loads(record.read_text())["measures"]["bleu"]["score"] for record in records]
    assert float(line["bleu_mean"]) == pytest.approx(np.mean(scores))
    assert float(line["bleu_sd"]) == pytest.approx(np.std(scores, ddof=1))
    shown = f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"
    assert shown in whole.markdown and shown.replace(" ±", "<small>±") in whole.page
    found = whole.json["tests"][0]["bleu_differences"]["A h=1"]
    for key in ("value", "corrected_p", "welch_p", "detectable", "freedom"):
        assert float(line[f"bleu_difference_{key}"]) == found[key]
    value, interval = f"{found['value']:+.2f}", f"[{found['low']:+.2f}, {found['high']:+.2f}]"
    assert rf"{value} {interval} \*".replace("-", "−") in whole.markdown
    assert f">{value}<small>{interval}</small>".replace("-", "−") in whole.page
    assert found["seeds"] == [3, 3] and found["seed_spread"] == "own" and found["resolved"] is True


def test_the_runs_are_a_matrix_of_scores(whole):
    """runs.csv: a row for each variant, seed, test set and metric, as rliable's matrices are made from."""
    lines = list(csv.DictReader(io.StringIO((whole.directory / "runs.csv").read_text())))
    assert len(lines) == 5 * 3 * 2 * 3
    of_one = [line for line in lines if (line["variant"], line["test"], line["metric"]) == ("A h=1", "test", "bleu")]
    assert [line["seed"] for line in of_one] == ["0", "1", "2"]
    assert [float(line["score"]) for line in of_one] == whole.json["tests"][0]["bleu"]["A h=1"]


def test_the_curves_are_what_the_runs_logged(whole):
    """curves.csv: a row for each line of metrics.jsonl, with the seconds and losses that it has."""
    lines = list(csv.DictReader(io.StringIO((whole.directory / "curves.csv").read_text())))
    logged = [
        json.loads(line)
        for seed in (0, 1, 2)
        for line in (seed_folder(whole.content.sweep.path, "A h=1", seed) / "metrics.jsonl").read_text().splitlines()
    ]
    found = [line for line in lines if line["variant"] == "A h=1"]
    assert [int(line["updates"]) for line in found] == [line["step"] for line in logged]
    for name in ("seconds", "loss", "valid_loss"):
        assert [line[name] for line in found] == [str(line.get(name, "")) for line in logged]


def test_the_curves_have_custom_metrics_too(sweep):
    line = {
        "step": 1500,
        "time": "2026-01-01",
        "valid_loss": 1.5,
        "valid_perplexity": 4.5,
        "learning_rate": 0.1,
        "mine": 0.5,
    }
    (seed_folder(sweep, "base", 0) / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (row,) = [row for row in curve_records(load_sweep(sweep)) if (row["variant"], row["seed"]) == ("base", 0)]
    assert row == {"variant": "base", "seed": 0, "updates": 1500, "valid_loss": 1.5, "mine": 0.5}


def test_variants_that_only_leaves_out_are_in_no_report_until_they_have_runs(sweep):
    changed(sweep, only=["base", "*=1"])
    assert [variant.name for variant in load_sweep(sweep).variants] == ["base", "A h=1", "A h=4"]
    shutil.rmtree(seed_folder(sweep, "A h=4", 0).parent)
    report = Report(sweep)
    assert report.content.state == "All 4 runs are finished." and "A h=4" not in report.markdown
    changed(sweep, contrasts={"fewer heads": {"A h=1": 1, "A h=4": -1}})
    assert "fewer heads" not in Report(sweep).markdown
    changed(sweep, only=None)
    assert len(load_sweep(sweep).variants) == 3


def test_what_others_are_compared_with_is_in_a_report_though_only_leaves_it_out(sweep):
    variants = json.loads((sweep / "sweep.json").read_text())["variants"]
    for facts in variants:
        shutil.rmtree(seed_folder(sweep, facts["name"], 0).parent)
    for name, change, expected in (
        ("A h=4", {}, ["base", "A h=4"]),
        ("A h=4", {"baseline": "A h=1"}, ["base", "A h=1", "A h=4"]),
        ("A h=4", {"same_as": "A h=1"}, ["base", "A h=1", "A h=4"]),
        ("base", {"same_as": "A h=1"}, ["base"]),  # of variants that are left out nothing is needed
    ):
        changed(sweep, only=[name], variants=[*variants[:2], {**variants[2], **change}])
        assert [variant.name for variant in load_sweep(sweep).variants] == expected


def test_seeds_are_counted_by_test_set(sweep):
    """test_long was added later, and one seed of each variant is evaluated on it."""
    changed(sweep, tests=["test", "test_long"])
    for each in VARIANTS[:3]:
        make_run(sweep, each, 0, ("test", "test_long"), 20)
    report = Report(sweep)
    assert report.content.state == "Of 6 runs: 3 finished, 3 not evaluated on all test sets."
    assert not report.content.is_complete
    assert ("base, seed 1", "finished, not evaluated on test_long") in report.content.unfinished
    assert [run.get("unevaluated") for run in report.json["runs"]] == [None, ["test_long"]] * 3
    seeds = [{column.key: column for column in test.table.columns}["seeds"].cells for test in report.content.tests]
    assert [[cell.text for cell in cells] for cells in seeds] == [["2"] * 3, ["1 of 2"] * 3]
    assert [line["seeds"] for line in report.lines] == ["2"] * 3 + ["1"] * 3
    assert "over 2 seeds" in latex(report, 0)
    assert "one seed" in latex(report, 1)


def test_variants_with_the_same_note_share_its_number_in_latex(tmp_path):
    made = [variant("base"), *(variant(name, note="half the data") for name in ("a", "b"))]
    table = latex(Report(make_sweep(tmp_path, made, seeds=(0,), sentences=10)), 0)
    assert table.count("half the data") == 1 and table.count(r"\textsuperscript{1}") == 3


def test_latex_has_the_chosen_columns_the_labels_and_the_looks(sweep, tmp_path, capsys):
    variants = json.loads((sweep / "sweep.json").read_text())["variants"]
    changed(sweep, variants=[variants[0], {**variants[1], "label": "one head"}, variants[2]])
    write(sweep / "looks.json", {"looks": [{"seeds": [0], "compared": [0], "when": ""}]})
    options = ["report", str(sweep), "--format=latex,svg", f"--output={tmp_path}"]
    assert cli.main([*options, "--columns=parameters,bleu*,model.num_heads"]) == 0
    table = (tmp_path / "table_test.tex").read_text()
    (heads,) = [line for line in table.splitlines() if "multicolumn{1}{c}{params}" in line]
    titles = re.findall(r"\\multicolumn\{\d\}\{c\}\{(.*?)\} ", heads)
    assert titles == ["params", "BLEU", r"$\Delta$ BLEU", "p (corrected)", "h"]
    assert "\none head" in table and "A h=1" not in table
    assert "Seed 1 was finished after a report of seeds 0." in table
    assert cli.main([*options, "--columns=blue"]) == 2
    assert "--columns=blue: matches no column; did you mean bleu" in capsys.readouterr().err
    assert cli.main(["report", str(sweep), "--columns=bleu"]) == 2


def test_a_baseline_has_its_label_in_the_caption(sweep, tmp_path):
    variants = json.loads((sweep / "sweep.json").read_text())["variants"]
    changed(sweep, variants=[{**variants[0], "label": "the paper's"}, *variants[1:]])
    write_report(sweep, tmp_path, ["latex"])
    assert "difference from the paper's," in (tmp_path / "table_test.tex").read_text()


def test_latex_leaves_out_tables_without_a_chosen_column(sweep, tmp_path):
    changed(sweep, contrasts={"fewer heads": {"A h=1": 1, "A h=4": -1}})
    options = ["report", str(sweep), "--format=latex", f"--output={tmp_path / 'tables'}"]
    assert cli.main([*options, "--columns=parameters"]) == 0
    assert [file.name for file in (tmp_path / "tables").iterdir()] == ["table_test.tex"]
    assert cli.main(options) == 0
    assert {file.name for file in (tmp_path / "tables").iterdir()} == {"table_test.tex", "contrasts_test.tex"}


def test_figures_of_the_page_are_those_for_the_paper(whole, sweep):
    _, files = write_report(whole.content.sweep.path, formats=["svg"])
    assert {file.name for file in files} >= {"differences_bleu_test.svg", "compute.svg"}
    assert whole.page.count('src="data:image/svg+xml;base64,') == len(files)
    for file in files:
        ElementTree.parse(file)
    points = {curve.name: curve.x for curve in whole.content.scatter.series}
    assert points["base"] == [2e12] * 3 and len(points["A: heads"]) == 2 * 3  # a dot per seed
    assert Report(sweep).content.scatter is None  # all three have the same size


def test_summary_says_what_is_significant(whole):
    """A h=1 was made worse, the others not."""
    found, summary = whole.content.tests[0].findings.by_metric["bleu"], whole.content.tests[0].summary
    assert [name for name, difference in found.differences.items() if difference.significant] == ["A h=1"]
    worse = found.differences["A h=1"]
    value = f"{worse.value:+.2f} [{worse.low:+.2f}, {worse.high:+.2f}]".replace("-", "−")
    assert summary[0] == f"BLEU: of 4 variants, 1 is significantly worse than base (A h=1: {value})."


def test_where_all_runs_tie_nothing_is_said_to_be_detectable(tmp_path):
    perfect = (variant("base", 1e3), variant("other", 1e3))
    report = Report(make_sweep(tmp_path, perfect, seeds=(0, 1), sentences=10))
    assert report.json["tests"][0]["bleu_differences"]["other"]["detectable"] is None
    assert "In BLEU, no score varies" in report.words and "±0.00" not in report.words
    assert "all runs tie" in next(line for line in report.markdown.splitlines() if line.startswith("| other"))


def test_one_seed_accounts_for_sentences_only_or_borrows_the_spread_of_others(tmp_path, sweep):
    alone = Report(make_sweep(tmp_path / "alone", VARIANTS[:3], seeds=(7,)))
    assert ", not of seeds" in alone.words
    assert "±" not in next(line for line in alone.markdown.splitlines() if line.startswith("| A h=1"))
    assert alone.json["tests"][0]["bleu_differences"]["A h=1"]["seed_spread"] == "none"
    (seed_folder(sweep, "A h=1", 1) / "result.json").unlink()
    report = Report(sweep)
    spreads = {name: found["seed_spread"] for name, found in report.json["tests"][0]["bleu_differences"].items()}
    assert spreads == {"A h=1": "borrowed", "A h=4": "own"} and "is used (A h=1)" in report.words


def test_unfinished_runs_are_listed(sweep, capsys):
    failed, running, interrupted = (seed_folder(sweep, *run) for run in (("A h=1", 0), ("A h=1", 1), ("A h=4", 0)))
    for run in (failed, running, interrupted):
        (run / "result.json").unlink()
        write(run / "attempt.json", {"state": "running", "host": socket.gethostname(), "pid": 1})
    write(failed / "attempt.json", {"state": "failed", "error": "the disk is full"})
    shutil.rmtree(seed_folder(sweep, "A h=4", 1))
    with open(running / ".worker.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = Report(sweep)
    assert [run["state"] for run in report.json["runs"]] == ["finished"] * 2 + [
        *("failed", "running", "interrupted", "waiting")
    ]
    assert report.content.state == "Of 6 runs: 2 finished, 1 running, 1 interrupted, 1 failed, 1 never started."
    assert "the disk is full" in report.page and "the disk is full" in report.markdown
    assert "Not compared: A h=1, A h=4: no finished run." in report.words
    assert cli.main(["report", str(sweep)]) == 0
    out = capsys.readouterr().out
    assert "A h=1, seed 0: failed after 1,000 updates: the disk is full" in out
    assert "never started: A h=4, seed 1" in out


def test_sweep_without_a_finished_run_has_a_report(sweep):
    shutil.rmtree(sweep / "runs")
    report = Report(sweep)
    assert report.words == "On test, nothing is measured yet."
    assert "6 never started" in report.page
    assert report.json["tests"][0]["bleu_differences"] == {}


# How the runs were made


def test_custom_modules_and_runs_that_trained_together_are_remarked(sweep):
    """FLOPs of custom modules are unknown; vmapped runs share the time of their program."""
    before = Report(sweep)
    assert "FLOPs are of the built-in modules" not in before.markdown
    definition = json.loads((sweep / "sweep.json").read_text())
    definition["variants"][1]["changes"]["model.parts.feed_forward"] = "mine.py:Wide"
    edit(seed_folder(sweep, "base", 0) / "result.json", together=3)
    report = Report(changed(sweep, variants=definition["variants"]))
    assert any(text.endswith("not compared fairly by FLOPs: A h=1.") for text in report.json["remarks"])
    assert any("trained together" in text for text in report.json["remarks"])
    alone, together = (made.json["tests"][0]["rows"][0]["train_seconds"] for made in (before, report))
    assert alone - together == pytest.approx(60 * 2 / 3 / 2)  # of the first of two seeds


def test_runs_by_several_versions_are_named(sweep):
    for seed, version in ((0, "0.10.2"), (1, "0.10.3")):
        edit(seed_folder(sweep, "base", seed) / "result.json", versions={"jax": version})
    report = Report(sweep)
    line = "0.10.3 in base, seed 1."
    assert line in report.page and line in report.markdown and line in report.json["mixtures"][0]
    assert report.page.index(line) < report.page.index("BLEU: ")  # at the top
    # Its versions.json is of its training, its result.json of its evaluation.
    assert report.json["mixtures"][1:] == ["base, seed 1: trained with jax: 0.10.2, evaluated: 0.10.3."]


def test_perplexities_of_texts_with_unknown_words_do_not_compare(sweep):
    """A word tokenizer gives as many tokens whatever its vocabulary, so that the counts of <unk> tell."""
    line = "tokens of the references are unknown to a run's vocabulary"
    files = [record_file(sweep, name, seed) for name in ("base", "A h=1", "A h=4") for seed in (0, 1)]
    for file in files:
        edit(file, unknown_tokens=7)
    assert line not in Report(sweep).markdown  # one vocabulary, which lacks what it lacks for all
    sentences = json.loads(files[0].read_text())["sentences"]
    edit(files[0], sentences={**sentences, "tokens": [2 * count for count in sentences["tokens"]]})
    assert f"7 {line}" in Report(sweep).markdown
    edit(files[0], unknown_tokens=1234, sentences=sentences)
    report = Report(sweep)
    assert f"On `test`, 7 to 1,234 {line}" in " ".join(report.json["remarks"]) and line in report.markdown
