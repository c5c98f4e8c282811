"""transformer-jax report: of whole, half-finished and damaged sweeps; what it says; and that no text is obeyed."""

import csv
import fcntl
import functools
import json
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.support import finished_sweeps
from tests.support.finished_sweeps import VARIANTS, make_run, make_sweep, variant, write
from tests.support.pages import HOSTILE, Reader
from transformer_jax import cli
from transformer_jax.report.curves import POINTS, curve
from transformer_jax.report.findings import find
from transformer_jax.report.plots import Axis, Interval, forest
from transformer_jax.report.results import load_sweep
from transformer_jax.report.size_view import size_view
from transformer_jax.report.table import option_columns, table
from transformer_jax.report.text import terminal_table
from transformer_jax.report.write import write_report


class Report:
    """What was written, read again."""

    def __init__(self, sweep, output=None):
        self.content, self.directory = write_report(sweep, output)
        self.page = (self.directory / "index.html").read_text(encoding="utf-8")
        self.markdown = (self.directory / "report.md").read_text(encoding="utf-8")
        self.json = json.loads((self.directory / "report.json").read_text(encoding="utf-8"))
        with open(self.directory / "table.csv", newline="", encoding="utf-8") as file:
            self.lines = list(csv.DictReader(file))
        self.words = " ".join(self.content.words[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished sweep with two test sets, and its report."""
    return Report(make_sweep(tmp_path_factory.mktemp("whole") / "sweep", tests=("test", "test_long")))


@pytest.fixture
def sweep(tmp_path):
    """A small finished sweep to be damaged."""
    return make_sweep(tmp_path / "sweep", VARIANTS[:3], seeds=(0, 1), sentences=20)


def seed_folder(sweep, name, seed):
    slug = next(variant["slug"] for variant in VARIANTS if variant["name"] == name)
    return sweep / "runs" / slug / f"seed-{seed}"


def changed(sweep, **definition):
    """sweep.json with other values."""
    content = json.loads((sweep / "sweep.json").read_text())
    write(sweep / "sweep.json", {**content, **definition})
    return sweep


# The table


def test_the_table_has_the_papers_form(whole):
    """A blank is the base value; one N for both stacks; d_k and d_v where they follow from h."""
    sweep = whole.content.sweep
    rows = {row.variant.name: row for row in table(sweep, whole.content.tests[0]).rows}
    columns = [column for column, _ in option_columns(sweep)]
    assert [column.title for column in columns] == ["N", "d_ff", "h", "d_k", "d_v"]
    told = {name: [row.cells[column.key].text for column in columns] for name, row in rows.items()}
    assert told == {
        "base": ["3", "256", "8", "8", "8"],
        "A h=1": ["", "", "1", "64", "64"],
        "A h=4": ["", "", "4", "16", "16"],
        "C N=2": ["2", "", "", "", ""],
        "C d_ff=512": ["", "512", "", "", ""],
    }


def test_means_and_deviations_are_those_of_the_seeds(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test_long", "A h=1"))
    scores = []
    for seed in range(3):
        record = seed_folder(whole.content.sweep.path, "A h=1", seed) / "translations" / "test_long.latest.json"
        scores.append(json.loads(record.read_text())["measures"]["bleu"]["score"])
    assert float(line["bleu_mean"]) == pytest.approx(np.mean(scores))
    assert float(line["bleu_sd"]) == pytest.approx(np.std(scores, ddof=1))
    assert f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}" in whole.page
    assert f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}" in whole.markdown


def test_all_forms_tell_the_same_difference(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test", "A h=1"))
    found = whole.json["tests"][0]["bleu_differences"]["A h=1"]
    assert float(line["bleu_difference_value"]) == found["value"]
    assert float(line["bleu_difference_corrected_p"]) == found["corrected_p"]
    told = f"{found['value']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]".replace("-", "−")
    assert told in whole.markdown
    assert told in whole.page
    assert found["seeds"] == [3, 3] and found["seed_spread"] == "own"


def test_words_say_what_is_resolved_and_what_is_not(whole):
    findings = whole.content.tests[0]
    resolved = {name for name, difference in findings.bleu_differences.items() if difference.resolved}
    assert "A h=1" in resolved and "A h=4" not in resolved  # as they were made
    assert f"BLEU: {len(resolved)} of 4 differences are resolved" in whole.words
    assert re.search(r"Not resolved:[^.]*A h=4", whole.words)
    assert re.search(r"A true difference of [\d.]+ would have been found in 80 %", whole.words)
    assert "both the choice of seeds and of sentences" in whole.words
    assert "1 point where the published figures do (A h=1)" in whole.words
    assert "Learning rates were not tuned" in whole.markdown
    assert "Nothing here was trained." in whole.page


def test_a_baseline_next_to_perfect_is_said_to_be_so(tmp_path):
    perfect = Report(make_sweep(tmp_path, (variant("base", 8.0), variant("worse", 0.0)), sentences=20))
    assert "next to the ceiling" in perfect.words


def test_published_figures_stand_beside_ours(whole):
    assert whole.json["tests"][0]["split"] == "test"
    assert next(line for line in whole.lines if line["variant"] == "base")["published_parameters"] == "65000000.0"
    assert '<td class="published " data-value="25.8">25.8</td>' in whole.page


def test_the_terminals_table_keeps_within_its_width(whole):
    found = table(whole.content.sweep, whole.content.tests[0])
    wide, narrow = terminal_table(found, 300), terminal_table(found, 60)
    assert "d_ff" in wide.splitlines()[0] and "publ." in wide
    assert "d_ff" not in narrow.splitlines()[0] and "BLEU" in narrow
    assert max(map(len, terminal_table(found, 150).splitlines())) <= 150


# The page


def test_the_page_needs_nothing_else(whole):
    assert all(link.startswith("#") for link in Reader(whole.page).links)
    assert "@import" not in whole.page and "url(" not in whole.page
    assert "prefers-color-scheme: dark" in whole.page


def test_the_page_has_every_section(whole):
    headings = re.findall(r"<h2>(.*?)</h2>", whole.page)
    sections = ["Results", "Size and compute", "Learning curves", "Translations", "Runs", "How it was done"]
    assert headings == sections
    assert "transformer-jax sweep experiments/made_up.py" in whole.page
    assert "2 cpu" in whole.page and "0.10.2" in whole.page


def test_a_page_of_63_runs_is_small(tmp_path):
    variants = [variant(f"v{number}", 0.02 * number, 10_000 * (number + 1)) for number in range(21)]
    assert len(Report(make_sweep(tmp_path, variants, sentences=20)).page) < 1_000_000


def test_hostile_names_are_shown_and_not_obeyed(tmp_path):
    evil = variant(HOSTILE, -1.0, slug="evil", group=HOSTILE, note=HOSTILE, changes={"model.positions": HOSTILE})
    made = make_sweep(tmp_path, (variant("base"), evil, variant("Größe=大 | `x`", slug="g")), sentences=20)
    changed(made, question=HOSTILE, notes=[HOSTILE])
    run = made / "runs" / "evil" / "seed-0"
    plot = {"title": HOSTILE, "x": HOSTILE, "y": "b", "series": {HOSTILE: [[1, 2], [2, 3]]}}
    shown = {"title": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE]]}
    write(run / "analysis" / "a.json", {"title": HOSTILE, "text": HOSTILE, "tables": [shown], "plots": [plot]})
    (run / "result.json").rename(run / "result.kept")
    write(run / "attempt.json", {"state": "failed", "error": HOSTILE})
    (run / "result.kept").rename(run / "result.json")
    write(made / "runs" / "evil" / "seed-1" / "attempt.json", {"state": "failed", "error": HOSTILE})
    (made / "runs" / "evil" / "seed-1" / "result.json").unlink()
    (run / "translations" / "test.latest.txt").write_text(f"{HOSTILE}\n" * 20)
    report = Report(made)
    read = Reader(report.page)
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    assert sum(HOSTILE in words for words in read.words) >= 10
    assert "<img" not in report.markdown
    assert "Größe=大 \\| \\`x\\`" in report.markdown
    assert "Größe=大" in report.page


def test_a_terminal_is_not_sent_what_it_would_obey(tmp_path, capsys):
    made = make_sweep(tmp_path, (variant("base"), variant("red\x1b[31m\nline", slug="r")), sentences=20)
    assert cli.main(["report", str(made)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "red?[31m?line" in out


# States


def test_runs_that_are_not_finished_are_shown_as_such(sweep, capsys):
    failed, running, interrupted = (
        seed_folder(sweep, "A h=1", 0),
        seed_folder(sweep, "A h=1", 1),
        seed_folder(sweep, "A h=4", 0),
    )
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
    assert "running at step 1,000" in report.page
    assert "Not compared: A h=1: no finished run; A h=4: no finished run." in report.words
    assert cli.main(["report", str(sweep)]) == 0
    out = capsys.readouterr().out
    assert "A h=1, seed 0: failed at step 1,000: the disk is full" in out
    assert "never started: A h=4, seeds 1" in out


def test_a_sweep_without_a_finished_run_has_a_report(sweep):
    shutil.rmtree(sweep / "runs")
    report = Report(sweep)
    assert report.words == "On test, nothing is measured yet."
    assert "6 never started" in report.page
    assert report.json["tests"][0]["bleu_differences"] == {}


def test_without_its_baseline_nothing_is_compared(sweep):
    for seed in (0, 1):
        (seed_folder(sweep, "base", seed) / "result.json").unlink()
    report = Report(sweep)
    assert report.json["tests"][0]["bleu_differences"] == {}
    assert "its baseline base has no finished run" in report.words
    assert "A h=1" in report.markdown


def test_a_split_that_was_added_later_is_missing_and_no_damage(sweep):
    report = Report(changed(sweep, tests=["test", "test_long"]))
    assert report.content.state == "All 6 runs are finished."
    assert report.content.words[1] == ["On test_long, nothing is measured yet."]


@pytest.mark.parametrize(
    ("file", "damage", "told"),
    [
        ("result.json", '{"steps": 10', "is no JSON"),
        ("result.json", "[1, 2]", "is a JSON list"),
        ("translations/test.latest.json", '{"test_set": "x"}', "is no whole record of an evaluation (KeyError"),
        ("translations/test.latest.json", None, "is missing"),
        ("versions.json", "\x00", "is no JSON"),
    ],
)
def test_a_damaged_file_is_named_and_harms_its_own_run_only(sweep, file, damage, told):
    path = seed_folder(sweep, "A h=1", 1) / file
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    report = Report(sweep)
    (problem,) = report.json["problems"]
    assert problem.startswith(str(path)) and told in problem
    assert str(path) in report.page
    counted = 2 if file == "versions.json" else 1  # which tells nothing of the scores
    assert len(report.json["tests"][0]["bleu"]["A h=1"]) == counted
    assert len(report.json["tests"][0]["bleu"]["A h=4"]) == 2


def test_sentences_that_are_not_as_many_everywhere_are_damage(sweep):
    path = seed_folder(sweep, "A h=1", 1) / "translations" / "test.latest.json"
    record = json.loads(path.read_text())
    record["sentences"]["tokens"].pop()
    write(path, record)
    assert "not as many everywhere" in Report(sweep).json["problems"][0]


@pytest.mark.parametrize(
    ("place", "value"),
    [(("bleu_statistics", 0, 0), -1), (("log_probabilities", 0), float("nan")), (("tokens", 0), 1e300)],
)
def test_numbers_that_cannot_be_are_damage(sweep, place, value):
    path = seed_folder(sweep, "A h=1", 1) / "translations" / "test.latest.json"
    record = json.loads(path.read_text())
    inner = functools.reduce(lambda inner, key: inner[key], place[:-1], record["sentences"])
    inner[place[-1]] = value
    write(path, record)
    assert "numbers that cannot be" in Report(sweep).json["problems"][0]


@pytest.mark.parametrize("odd", [{"tune": [0.5, "x"], "notes": 3}, {"tune": 1}, {"base": {}}, {"baseline": None}])
def test_odd_values_in_the_definition_are_no_traceback(sweep, odd):
    assert "A h=1" in Report(changed(sweep, **odd)).page


def test_bytes_that_are_no_text_are_no_traceback(sweep):
    run = seed_folder(sweep, "A h=1", 0)
    for name in ("result.json", "metrics.jsonl", "attempt.json"):
        (run / name).write_bytes(b"\xff\xfe\x00{")
    (sweep / "data" / "key" / "test.texts.jsonl").write_bytes(b"\xff\n")
    report = Report(sweep)
    assert {run["state"] for run in report.json["runs"]} == {"finished", "damaged"}
    assert report.content.samples == []


def test_without_texts_or_translations_there_are_no_samples(sweep, whole):
    assert len(whole.content.samples) >= 2
    shutil.rmtree(sweep / "data")
    assert Report(sweep).content.samples == []


# Comparisons


def test_one_seed_counts_sentences_only_and_says_so(tmp_path):
    report = Report(make_sweep(tmp_path, VARIANTS[:3], seeds=(7,)))
    assert "they count the choice of sentences ONLY" in report.words
    assert "±" not in next(line for line in report.markdown.splitlines() if line.startswith("| A h=1"))
    assert report.json["tests"][0]["bleu_differences"]["A h=1"]["seed_spread"] == "none"


def test_where_one_seed_is_finished_its_spread_is_borrowed(sweep):
    (seed_folder(sweep, "A h=1", 1) / "result.json").unlink()
    words = Report(sweep).words
    assert "its spread is taken from other variants (A h=1): these intervals hold only if it scatters" in words


def test_of_two_seeds_the_report_says_how_little_they_say(tmp_path, whole):
    assert "Two seeds say next to nothing" in Report(make_sweep(tmp_path, VARIANTS[:3], seeds=(0, 1))).words
    assert "Two seeds say next to nothing" not in whole.words


def test_other_vocabularies_are_compared_by_word(sweep):
    for seed in (0, 1):
        path = seed_folder(sweep, "A h=1", seed) / "translations" / "test.latest.json"
        record = json.loads(path.read_text())
        record["sentences"]["tokens"] = [2 * count for count in record["sentences"]["tokens"]]
        record["perplexity"]["per_token"] **= 0.5
        write(path, record)
    findings = find(load_sweep(sweep))[0]
    assert findings.unit == "word"
    expected = np.mean(np.log(findings.word_perplexity["A h=1"])) - np.mean(np.log(findings.word_perplexity["base"]))
    assert findings.perplexity_differences["A h=1"].value == pytest.approx(expected, abs=1e-6)
    report = Report(sweep)
    assert "Perplexity per word" in report.words and "vocabularies differ" in report.page


def test_another_test_set_is_not_compared(sweep):
    for seed in (0, 1):
        path = seed_folder(sweep, "A h=1", seed) / "translations" / "test.latest.json"
        write(path, {**json.loads(path.read_text()), "test_set_sha256": "0"})
    report = Report(sweep)
    assert "A h=1: another test set, or none" in report.words
    assert list(report.json["tests"][0]["bleu_differences"]) == ["A h=4"]


def test_a_run_that_diverged_is_told_in_few_digits(sweep, recwarn):
    for seed in (0, 1):
        path = seed_folder(sweep, "A h=1", seed) / "translations" / "test.latest.json"
        record = json.loads(path.read_text())
        record["sentences"]["log_probabilities"] = [-1e6] * 20
        record["perplexity"]["per_token"] = 1e304 + seed * 1e303
        write(path, record)
    report = Report(sweep)
    assert re.search(r"\| 1\.\de\+304 \|", report.markdown)  # whose deviation is beyond all numbers
    assert max(map(len, re.findall(r"\d+", report.markdown))) < 20
    assert len(recwarn) == 0


def test_a_variant_may_have_a_baseline_of_its_own(tmp_path):
    variants = (variant("base"), variant("a", 0.5, slug="a"), variant("b", 0.5, slug="b", baseline="a"))
    findings = find(load_sweep(make_sweep(tmp_path, variants)))[0]
    means = {name: np.mean(values) for name, values in findings.bleu.items()}
    assert findings.bleu_differences["b"].value == pytest.approx(means["b"] - means["a"])


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"test_set_sha256": "0", "test_set": "another"}, "is of another test set (another)"),
        ({"steps": [2000]}, "is of step 2000, not of step 1000"),
        ({"decode": {"beam": 8}}, "is of another search: beam = 8, not 4"),
        ({"weights_sha256": "1"}, "is of other weights"),
    ],
)
def test_a_record_of_something_else_is_not_taken_for_the_runs(sweep, changes, problem, told):
    """`evaluate` may have written it since; what earlier versions noted of it were its steps and its scores."""
    run = seed_folder(sweep, "base", 0)
    path, result = run / "translations" / "test.latest.json", json.loads((run / "result.json").read_text())
    record = {**json.loads(path.read_text()), "decode": {"beam": 4}, "weights_sha256": "0"}
    if told:
        keys = ("test_set_sha256", "steps", "decode", "weights_sha256")
        result["tests"]["test"] |= {key: record[key] for key in keys}
        write(run / "result.json", result)
        write(path, {**record, "against": "another run"})  # it may have been made again
        assert load_sweep(sweep).problems == []
    record |= changes
    record["measures"]["bleu"]["score"] += 1.0
    write(path, record)
    found = load_sweep(sweep)
    (problem_found,) = found.problems
    earlier = problem if "steps" in changes else "has BLEU"
    assert (problem if told else earlier) in problem_found and "measures that run again" in problem_found
    assert find(found)[0].not_compared == {} and len(find(found)[0].bleu["base"]) == 1


def test_a_mean_is_of_one_test_set(sweep):
    """A seed that was measured on another is left out, and that is said."""
    path = seed_folder(sweep, "A h=1", 1) / "translations" / "test.latest.json"
    write(path, {**json.loads(path.read_text()), "test_set_sha256": "0"})
    found = find(load_sweep(sweep))[0]
    assert len(found.bleu["A h=1"]) == len(found.bleu["base"]) - 1
    assert found.not_compared == {"A h=1": "1 of its runs: another test set"}


def test_samples_are_of_the_sentences_that_were_measured(sweep):
    """As many others, where the data was prepared again, are not taken for their references."""
    (texts,) = sweep.glob("data/*/test.texts.jsonl")
    texts.write_text(texts.read_text().replace("Hund", "Hut"))
    assert Report(sweep).content.samples == []


# Size, curves, analyses, samples


def test_the_front_and_the_line_of_usual_models(tmp_path):
    sizes = [variant(f"d={d}", 0.4 * np.log(d), 1000 * d, changes={"model.d_model": d}) for d in (2, 4, 8)]
    odd = variant("odd", -1.0, 4000, changes={"model.num_heads": 1})
    sweep = load_sweep(make_sweep(tmp_path, (variant("base", 0.0, 1000), *sizes, odd)))
    view = size_view(sweep, find(sweep)[0], "parameters", "perplexity")
    assert view.resized == ("base", "d=2", "d=4", "d=8")
    assert "odd" not in view.front and {"base", "d=8"} <= view.front
    costs, scores = zip(*(view.points[name] for name in view.resized), strict=True)
    assert view.line == pytest.approx(tuple(np.polyfit(np.log(costs), scores, 1)))
    assert view.beyond("odd") == pytest.approx(view.points["odd"][1] - np.polyval(view.line, np.log(4000)))
    assert view.beyond("odd") > 0.1
    assert view.expected(500) is None  # nothing is known so far out


def test_a_hair_smaller_is_not_smaller(tmp_path):
    """Sizes within 5 % are the same size; of more, the best mean leads, but is shown to be best only if it is."""
    variants = (
        variant("base", 0.0, 200_000),
        variant("worst", -1.0, 199_600, slug="worst"),
        variant("alike", 0.02, 200_000, slug="alike"),
        variant("small", -1.2, 150_000, slug="small"),
    )
    report = Report(make_sweep(tmp_path, variants))
    view = report.content.sizes[0]
    assert view.measure == "bleu" and "worst" not in view.front and "small" in view.front
    assert len(view.front & {"base", "alike"}) == 1 and not view.shown  # one of the two has the higher mean, by chance
    assert "Best BLEU for its parameters: shown for none. By the means: small, " in report.markdown
    assert "Costs within 5 % of each other count as the same." in report.markdown and "◇" in report.page
    assert report.json["sizes"][0]["shown"] == []


def test_the_best_of_its_size_is_shown_by_differences_that_are(tmp_path):
    variants = (
        variant("base", 0.0, 200_000),
        variant("good", 1.5, 200_000, slug="good"),
        variant("bad", -1.0, 191_000, slug="bad"),
    )
    view = size_view(sweep := load_sweep(make_sweep(tmp_path, variants)), find(sweep)[0], "parameters", "bleu")
    assert view.front == view.shown == {"good"}
    view = size_view(sweep, find(sweep)[0], "training_flops", "perplexity")
    assert view.front == view.shown == {"good"}
    # The cheapest has nothing to be better than.
    alone = load_sweep(make_sweep(tmp_path / "alone", (variant("base"), variant("large", 0.0, 300_000, slug="large"))))
    assert "base" not in size_view(alone, find(alone)[0], "parameters", "bleu").shown


def test_a_rate_at_the_edge_of_what_was_tried_is_named(sweep):
    definition = json.loads((sweep / "sweep.json").read_text())
    write(sweep / "sweep.json", {**definition, "tune": [0.5, 1, 2]})
    write(sweep / "tuned.json", {"base": {"factor": 1.0}, "A h=1": {"factor": 2.0}, "A h=4": {"factor": 0.5}})
    assert "a better one may lie beyond: A h=1 (highest), A h=4 (lowest)." in Report(sweep).markdown


def test_curves_are_means_with_a_band_from_the_lowest_to_the_highest(sweep):
    for seed in (0, 1):
        lines = [json.dumps({"step": step, "valid_perplexity": step + seed}) for step in range(1, 1001)]
        (seed_folder(sweep, "A h=1", seed) / "metrics.jsonl").write_text("\n".join(lines))
    variants = {variant.name: variant for variant in load_sweep(sweep).variants}
    line = curve(variants["A h=1"], "valid_perplexity")
    assert len(line.x) == POINTS and line.x[0] == 1 and line.x[-1] == 1000
    assert line.y == [step + 0.5 for step in line.x]
    assert (list(line.low), list(line.high)) == (list(line.x), [step + 1 for step in line.x])
    assert curve(variants["A h=1"], "bleu") is None


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[0.001, 1e18], [5.0, 5.0], [3.1, 3.2], [1e-9, 2e-9], [-2.0, 7.0], [], [0.0]])
def test_axes_have_room_for_all_and_ticks_inside(values, log):
    axis = Axis.around(values, 0, 100, log)
    ticks = axis.ticks()
    assert all(0 <= axis.at(value) <= 100 for value in values if value > 0 or not log)
    assert all(-1e-6 <= axis.at(tick) <= 100 + 1e-6 for tick in ticks)
    assert 1 <= len(ticks) <= 12


def test_one_wide_interval_does_not_squeeze_the_others():
    rows = [Interval(f"v{n}", 0.5, 0.2, 0.8, "") for n in range(5)] + [Interval("wide", 0.1, -900.0, 900.0, "")]
    drawn = re.findall(r'class="interval" x1="([\d.]+)" x2="([\d.]+)"', forest(rows, "difference"))
    widths = [float(right) - float(left) for left, right in drawn]
    assert min(widths) > 40  # of 300
    assert 280 < max(widths) <= 310  # to the edges and no further
    alone = forest([Interval("v", -2.5, -12.0, 7.0, "")], "difference")
    left, right = map(float, re.search(r'class="interval" x1="([\d.]+)" x2="([\d.]+)"', alone).groups())
    assert 150 < left < right < 448  # whole


def test_tables_of_analyses_are_averaged_and_plots_are_the_first_seeds(sweep):
    for seed in (0, 1):
        rows = [[1, "head", 0.25 + seed / 2], [2, "head", "none" if seed else 3]]
        plot = {"title": "p", "x": "a", "y": "b", "series": {"line": [[0, 1], [1, 5 + seed]]}}
        found = {"title": "Heads", "text": "t", "tables": [{"title": "T", "columns": ["l", "h", "e"], "rows": rows}]}
        write(seed_folder(sweep, "base", seed) / "analysis" / "heads.json", {**found, "plots": [plot]})
    report = Report(sweep)
    (analysis,) = report.content.analyses
    assert analysis.tables[0].rows == [["1", "head", "0.5"], ["2", "head", "3"]]
    assert analysis.seeds == 2 and "line: 5 at 1" in analysis.plots[0].svg
    assert "| base | 1 | head | 0.5 |" in report.markdown


def test_a_long_table_of_an_analysis_is_on_the_page_and_the_text_says_so(sweep):
    def table(title, rows):
        return {"title": title, "columns": ["head", "loss"], "rows": [[row, 1.0] for row in range(rows)]}

    found = {"title": "what heads do", "text": "", "tables": [table("few", 8), table("each head", 9)]}
    write(seed_folder(sweep, "base", 0) / "analysis" / "heads.json", found)
    text = Report(sweep).markdown
    assert "### few" in text and "### each head" not in text
    assert "On the page alone (index.html), a table for each variant: each head." in text


@pytest.mark.parametrize(
    "content",
    [{}, {"tables": 3, "plots": [[]]}, {"tables": [{"rows": [1, [None]]}], "plots": [{"series": {"a": [[1], "b"]}}]}],
)
def test_an_analysis_of_another_shape_is_no_traceback(sweep, content):
    write(seed_folder(sweep, "base", 0) / "analysis" / "odd.json", content)
    assert Report(sweep).json["problems"] == []


def test_pictures_of_analyses_are_taken_in_unless_they_are_too_big(sweep):
    folder = seed_folder(sweep, "base", 0) / "analysis"
    folder.mkdir()
    (folder / "small.png").write_bytes(b"\x89PNG")
    (folder / "big.svg").write_bytes(b"x" * 400_000)
    report = Report(sweep)
    assert 'src="data:image/png;base64,iVBORw=="' in report.page
    assert "1 pictures of analyses are too big" in report.markdown
    assert len(report.page) < 300_000


def test_samples_tell_right_words_from_wrong_ones(whole):
    for sample in whole.content.samples:
        for version in sample.versions:
            assert version.right == (" ".join(word for word, _ in version.words) == sample.reference)
            assert version.right <= all(shared for _, shared in version.words)
    shown = [name for version in whole.content.samples[0].versions for name in version.variants]
    assert sorted(shown) == sorted(variant["name"] for variant in VARIANTS)


@pytest.mark.parametrize("order", [None, "same for all seeds", "by seed"])
def test_what_varies_from_seed_to_seed_is_said_and_what_does_not(sweep, order):
    """In every form; a sweep of an earlier version, whose definition says nothing of it, had one order for all."""
    report = Report(sweep if order is None else changed(sweep, data_order=order))
    varies = "the initial parameters, dropout and the order of the training pairs differ."
    constant = "the order of the training pairs is the same for all seeds"
    held_out = "Which pairs are held out for validation and testing is the same for all seeds."
    for text in (report.markdown, report.page, " ".join(report.json["remarks"])):
        assert (varies in text, constant in text) == (order == "by seed", order != "by seed")
        assert held_out in text
    ending = "--seeds=0,1" if order == "by seed" else "--seeds=0,1 --config.data.order_seed=0"
    assert report.json["facts"]["command"].endswith(ending)


def test_tuned_and_joint_runs_are_said_to_be_so(sweep):
    changed(sweep, tune=[0.5, 1, 2])
    write(sweep / "tuned.json", {"base": {"factor": 1.0, "losses": {}}, "A h=1": {"factor": 0.5}})
    path = seed_folder(sweep, "base", 0) / "result.json"
    write(path, {**json.loads(path.read_text()), "together": 2})
    report = Report(sweep)
    assert "among 0.5, 1, 2 times its own. Chosen: base x 1, A h=1 x 0.5." in report.markdown
    assert "trained together in one program" in report.markdown
    assert report.json["facts"]["command"].endswith("--scale=demo --seeds=0,1 --tune=0.5,1,2 --together")


# The command


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: shutil.rmtree(path), "there is no such folder"),
        (lambda path: (path / "sweep.json").unlink(), "is no sweep (it has no sweep.json)"),
        (lambda path: (path / "sweep.json").write_text("{"), "sweep.json:1: is no JSON"),
        (lambda path: (path / "sweep.json").write_text("[]"), "is a JSON list"),
        (lambda path: changed(path, format=9), "is of format 9"),
        (lambda path: changed(path, variants=[]), "'variants' is empty"),
        (lambda path: changed(path, variants=[{"name": 3}]), "has no 'name' or no 'slug'"),
        (lambda path: changed(path, seeds="3"), "'seeds' must be a list of ints"),
        (lambda path: changed(path, tests=[]), "'tests' is empty"),
        (lambda path: (path / "report").write_text("a file"), "is a file; a directory would be right"),
    ],
)
def test_what_is_no_sweep_is_one_line(sweep, damage, told, capsys):
    damage(sweep)
    assert cli.main(["report", str(sweep)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {sweep}") and told in line


def test_the_report_goes_where_it_is_wanted(sweep, tmp_path, capsys):
    assert cli.main(["report", str(sweep), f"--output={tmp_path / 'else' / 'where'}"]) == 0
    assert {file.name for file in (tmp_path / "else" / "where").iterdir()} == {
        "index.html",
        "report.md",
        "report.json",
        "table.csv",
    }
    assert not (sweep / "report").exists()
    assert "BLEU: " in capsys.readouterr().out


def test_runs_that_were_added_are_in_the_next_report(sweep):
    assert "A h=4" in Report(sweep).words
    content = json.loads((sweep / "sweep.json").read_text())
    changed(sweep, seeds=[*content["seeds"], 9])
    make_run(sweep, finished_sweeps.VARIANTS[0], 9, sentences=20)
    report = Report(sweep)
    assert len(report.json["tests"][0]["bleu"]["base"]) == 3
    assert report.content.state == "Of 9 runs: 7 finished, 2 never started."


def test_nothing_is_computed_on_a_device(sweep):
    code = (
        f"from transformer_jax import cli; assert cli.main(['report', {str(sweep)!r}]) == 0\n"
        "import jax, sys; assert not jax._src.xla_bridge.backends_are_initialized()\n"
        "print([name for name in ('matplotlib', 'orbax', 'tensorflow') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "[]"
