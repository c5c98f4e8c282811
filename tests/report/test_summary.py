"""The sentences of a report: what is significant, what is missing, and in which state each run is."""

import fcntl
import math
import re
import shutil
import socket

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
from transformer_jax.report.findings import Compared
from transformer_jax.report.metrics import BLEU, EXACT_MATCH, PERPLEXITY
from transformer_jax.report.statistics import Difference
from transformer_jax.report.text import some

POOLED = "They also use the spread of the other variants: more seeds of one variant can change the interval"


def test_summary_says_what_is_significant(whole):
    differences = whole.content.tests[0].findings.by_metric["bleu"].differences
    significant = {name for name, difference in differences.items() if difference.significant}
    assert "A h=1" in significant and "A h=4" not in significant  # as they were made
    first, second, third, *_ = whole.content.tests[0].summary.findings
    value = f"{differences['A h=1'].value:+.2f}".replace("-", "−")
    assert first == f"BLEU: of 4 variants, 1 is significantly worse than base (A h=1: {value})."
    assert second.startswith("Perplexity per token: of 4 variants, ")
    assert re.match(r"With 3 seeds and 40 sentences, the minimum detectable difference \(80 % power.*BLEU", third)
    assert "both the choice of seeds and of sentences" in whole.words
    assert "Published differences in BLEU: " in whole.words


def test_only_the_largest_differences_are_named():
    found = {f"v{n}": difference(float(n), 0.001) for n in range(1, 8)} | {"w": difference(-3.0, 0.01)}
    compared = Compared(BLEU, {}, found | {"x": difference(-9.0, 0.2)}, frozenset())
    assert some(compared.significant("better")) == "v7: +7.00, v6: +6.00, v5: +5.00 and 4 more"
    assert compared.significant("worse") == ["w: −3.00"]


def test_a_single_name_is_not_counted_but_named():
    names = ["a", "b", "c", "d", "e"]
    assert some(names[:4], 3) == "a, b, c, d" and some(names, 3) == "a, b, c and 2 more"


def difference(value, p):
    return Difference(value, 1.0, 5.0, value - 1, value + 1, p, p, 2.0, (3, 3), "own")


@pytest.mark.parametrize(
    ("metric", "size", "baseline", "text"),
    [
        (BLEU, 2.0, 30.0, "±2.00 BLEU"),
        (BLEU, 2.0, 0.5, "+2.00 BLEU"),  # it cannot fall by 2
        (BLEU, 2.0, 99.0, "−2.00 BLEU"),
        (BLEU, 81.0, 46.0, ""),
        (EXACT_MATCH, 3.0, 46.0, "±3.0 points of exact match"),
        (PERPLEXITY, 0.154, math.log(4.0), "−14.3 % or +16.6 % of perplexity"),
        (PERPLEXITY, 0.6, math.log(1.4), "+82.2 % of perplexity"),  # no perplexity is below 1
    ],
)
def test_detectable_differences_are_signed_and_possible(metric, size, baseline, text):
    assert metric.mde_text(size, baseline) == text


def test_design_that_can_detect_nothing_says_so(tmp_path):
    findings = Report(make_sweep(tmp_path, VARIANTS[:2], seeds=(0, 1), sentences=5)).content.tests[0].summary.findings
    assert findings[-1].endswith("In BLEU, this design cannot detect any possible difference.")


def test_where_all_runs_tie_nothing_is_said_to_be_detectable(tmp_path):
    perfect = (variant("base", 1e3), variant("other", 1e3))
    report = Report(make_sweep(tmp_path, perfect, seeds=(0, 1), sentences=10))
    assert report.json["tests"][0]["bleu_differences"]["other"]["detectable"] is None
    assert "In BLEU, all runs tie" in report.words and "±0.00" not in report.words
    assert "all runs tie" in next(line for line in report.markdown.splitlines() if line.startswith("| other"))


def test_baseline_that_has_learned_nothing_comes_first(sweep):
    for seed in (0, 1):
        edit(record_file(sweep, "base", seed), measures={"bleu": {"score": 0.25, "signature": ""}})
        result = {"file": "translations/test.latest.json", "bleu": 0.25}
        edit(seed_folder(sweep, "base", seed) / "result.json", tests={"test": result})
    first, *_ = Report(sweep).content.tests[0].summary.findings
    assert first.startswith("The baseline's BLEU is 0.25: it has hardly learned to translate")


def test_baseline_with_a_nearly_perfect_score(tmp_path):
    perfect = Report(make_sweep(tmp_path, (variant("base", 8.0), variant("worse", 0.0)), sentences=20))
    assert "close to its maximum" in perfect.words


def test_one_seed_accounts_for_sentences_only(tmp_path):
    report = Report(make_sweep(tmp_path, VARIANTS[:3], seeds=(7,)))
    assert "may still be a difference between seeds" in report.content.tests[0].summary.findings[-1]
    assert "they account for the choice of sentences, not for that of seeds" in report.words
    assert "±" not in next(line for line in report.markdown.splitlines() if line.startswith("| A h=1"))
    assert report.json["tests"][0]["bleu_differences"]["A h=1"]["seed_spread"] == "none"


def test_single_finished_seed_borrows_the_spread_of_others(sweep):
    (seed_folder(sweep, "A h=1", 1) / "result.json").unlink()
    words = Report(sweep).words
    assert "the spread of other variants is used (A h=1): these intervals hold only if its seeds vary as much" in words
    assert POOLED not in words  # two variants with several seeds cannot say what is typical


def test_two_seeds_come_with_a_warning(sweep, whole):
    assert "Two seeds say very little" in Report(sweep).words and POOLED in Report(sweep).words
    assert "Two seeds say very little" not in whole.words


def test_unfinished_runs_are_listed(sweep, capsys):
    failed, running, interrupted = (seed_folder(sweep, *run) for run in (("A h=1", 0), ("A h=1", 1), ("A h=4", 0)))
    for run in (failed, running, interrupted):
        (run / "result.json").unlink()
    here = {"host": socket.gethostname(), "pid": 1}
    write(failed / "attempt.json", {"state": "failed", "error": "the disk is full"})
    write(running / "attempt.json", {"state": "running", **here})
    write(interrupted / "attempt.json", {"state": "running", **here})
    shutil.rmtree(seed_folder(sweep, "A h=4", 1))
    with open(running / ".worker.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = Report(sweep)
    states = {(run["variant"], run["seed"]): run["state"] for run in report.json["runs"]}
    assert states == {
        ("base", 0): "finished",
        ("base", 1): "finished",
        ("A h=1", 0): "failed",
        ("A h=1", 1): "running",
        ("A h=4", 0): "interrupted",
        ("A h=4", 1): "waiting",
    }
    assert report.content.state == "Of 6 runs: 2 finished, 1 running, 1 interrupted, 1 failed, 1 never started."
    for text in (report.page, report.markdown):
        assert "the disk is full" in text
    assert "running after 1,000 updates" in report.page
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


def test_nothing_is_compared_without_the_baseline(sweep):
    for seed in (0, 1):
        (seed_folder(sweep, "base", seed) / "result.json").unlink()
    report = Report(sweep)
    assert report.json["tests"][0]["bleu_differences"] == {}
    assert "its baseline base has no finished run" in report.words
    assert "A h=1" in report.markdown


def test_runs_added_later_are_in_the_next_report(sweep):
    assert "With 2 seeds" in Report(sweep).words
    changed(sweep, seeds=[0, 1, 9])
    make_run(sweep, VARIANTS[0], 9, sentences=20)
    report = Report(sweep)
    assert len(report.json["tests"][0]["bleu"]["base"]) == 3 and "With 2 to 3 seeds" in report.words
    assert report.content.state == "Of 9 runs: 7 finished, 2 never started."
