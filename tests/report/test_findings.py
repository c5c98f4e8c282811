"""What is compared, with what and by which unit; designs, contrasts, controls, margins and looks in every form."""

import csv
import dataclasses
import json
import math
import re
import shutil
import types

import numpy as np
import pytest
import scipy.stats

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
from transformer_jax.report.findings import _simple, effects, find
from transformer_jax.report.metrics import decimals_for
from transformer_jax.report.report import Report as Content
from transformer_jax.report.results import load_sweep
from transformer_jax.report.table import main_table, score_records
from transformer_jax.report.write import write_report


def test_different_vocabularies_are_compared_by_word(sweep):
    for seed in (0, 1):
        path = record_file(sweep, "A h=1", seed)
        record = json.loads(path.read_text())
        record["sentences"]["tokens"] = [2 * count for count in record["sentences"]["tokens"]]
        record["perplexity"]["per_token"] **= 0.5
        edit(path, **record)
    findings = find(load_sweep(sweep))[0]
    assert findings.unit == "word"
    words = {name: np.mean(np.log(values)) for name, values in findings.scores["word_perplexity"].items()}
    expected = words["A h=1"] - words["base"]
    assert findings.by_metric["perplexity"].differences["A h=1"].value == pytest.approx(expected, abs=1e-6)
    report = Report(sweep)
    assert "Perplexity per word" in report.words and "vocabularies differ" in report.page


def test_variant_on_another_test_set_is_not_compared(sweep):
    for seed in (0, 1):
        edit(record_file(sweep, "A h=1", seed), test_set_sha256="0")
    report = Report(sweep)
    assert "A h=1: another test set" in report.words
    assert list(report.json["tests"][0]["bleu_differences"]) == ["A h=4"]


def test_mean_is_over_one_test_set(sweep):
    """A seed that was evaluated on another one is left out, and the report says so."""
    edit(record_file(sweep, "A h=1", 1), test_set_sha256="0")
    findings = find(load_sweep(sweep))[0]
    assert len(findings.by_metric["bleu"].scores["A h=1"]) == len(findings.by_metric["bleu"].scores["base"]) - 1
    assert findings.not_compared == {"A h=1": "1 of its runs: another test set"}


def test_a_baseline_on_another_test_set_is_named(tmp_path):
    variants = (variant("base"), variant("a", slug="a"), variant("b", slug="b", baseline="a"))
    make_sweep(tmp_path, variants, seeds=(0,), sentences=10)
    edit(tmp_path / "runs/a/seed-0/translations/test.latest.json", test_set_sha256="0")
    found = find(load_sweep(tmp_path))[0].not_compared
    assert found == {"a": "another test set", "b": "its baseline a has another test set"}


def test_variant_may_have_its_own_baseline(tmp_path):
    variants = (variant("base"), variant("a", 0.5, slug="a"), variant("b", 0.5, slug="b", baseline="a"))
    findings = find(load_sweep(make_sweep(tmp_path, variants)))[0]
    means = {name: np.mean(values) for name, values in findings.by_metric["bleu"].scores.items()}
    assert findings.by_metric["bleu"].differences["b"].value == pytest.approx(means["b"] - means["a"])


def test_clusters_of_examples_are_resampled_whole(sweep):
    """The categories of COGS: many sentences test one word or structure."""
    apart = Report(sweep)
    for name in ("base", "A h=1", "A h=4"):
        for seed in (0, 1):
            path = record_file(sweep, name, seed)
            sentences = json.loads(path.read_text())["sentences"]
            edit(path, sentences={**sentences, "clusters": [i // 5 for i in range(20)]})
    report = Report(sweep)
    assert report.json["tests"][0]["clusters"] == 4 and apart.json["tests"][0]["clusters"] == 20
    assert "20 sentences in 4 clusters; SHA-256" in (sweep / "report/checklist.md").read_text()
    assert "20 sentences in 4 clusters" in report.words and "clusters of sentences" in report.words
    for metric in ("bleu", "perplexity"):
        scores = [made.content.tests[0].findings.by_metric[metric] for made in (apart, report)]
        errors = [found.differences["A h=1"].error for found in scores]
        assert errors[0] != errors[1]


def cell(name, quality, heads, norm, **facts):
    return variant(name, quality, levels={"heads": heads, "norm": norm}, slug=name, **facts)


# Each change helps alone and nothing more together, so that the interaction is negative.
CELLS = (
    cell("base", 0, "8", "post"),
    cell("h1", 2, "1", "post"),
    cell("pre", 2, "8", "pre"),
    cell("both", 2, "1", "pre", parameters=300_000),
)
AGAIN = variant("again", same_as="base", slug="again")
EFFECTS = ["heads=1 against 8", "norm=pre against post", "heads=1 against 8 × norm=pre against post"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The report of a 2 x 2 design with a control and a contrast; perplexity is primary, with a wide margin."""
    contrasts = {"either alone against both": {"h1": 0.5, "pre": 0.5, "both": -1}}
    definition = {"primary": "perplexity", "margin": {"perplexity": 0.1, "bleu": 0.2}, "contrasts": contrasts}
    path = tmp_path_factory.mktemp("asked") / "sweep"
    return Report(make_sweep(path, (*CELLS, AGAIN), seeds=range(5), sentences=80, **definition))


def test_effects_and_contrasts_are_sums_of_means(asked):
    (test,) = asked.json["tests"]
    means = {name: np.mean(scores) for name, scores in test["bleu"].items()}
    effects = test["bleu_effects"]
    assert list(effects) == EFFECTS
    main = (means["h1"] - means["base"] + means["both"] - means["pre"]) / 2
    interaction = means["both"] - means["pre"] - means["h1"] + means["base"]
    assert [effects[name]["value"] for name in (EFFECTS[0], EFFECTS[2])] == pytest.approx([main, interaction])
    assert effects[EFFECTS[0]]["resolved"] and effects[EFFECTS[2]]["resolved"] and interaction < 0
    assert effects[EFFECTS[0]]["corrected_p"] == pytest.approx(3 * effects[EFFECTS[0]]["p_value"])  # of three
    (contrast,) = test["bleu_contrasts"].values()
    assert contrast["value"] == pytest.approx((means["h1"] + means["pre"]) / 2 - means["both"])
    assert contrast["corrected_p"] == contrast["p_value"]


def test_each_family_is_counted_where_intervals_are_explained(asked):
    families = "differences from the baseline: 3; main effects and interactions: 3; simple effects: 4; contrasts: 1"
    assert f"simultaneous within each family ({families}; controls (A/A): 1)" in asked.words


def test_what_would_be_detected_is_that_of_the_family_that_answers(asked):
    compared = asked.content.tests[0].findings.by_metric["bleu"]
    for key in ("differences", "effects"):
        median = float(np.median([difference.mde for difference in compared.families[key].values()]))
        assert compared._replace(answered_by=key).mde == compared.metric.mde_text(median)
    assert compared._replace(answered_by="effects").mde != compared.mde


def test_simple_effects_are_differences_at_each_level_of_the_others(asked):
    (test,) = asked.json["tests"]
    means = {name: np.mean(scores) for name, scores in test["bleu"].items()}
    found = {name: effect["value"] for name, effect in test["bleu_simple_effects"].items()}
    expected = {
        "heads=1 against 8 at norm=post": means["h1"] - means["base"],
        "heads=1 against 8 at norm=pre": means["both"] - means["pre"],
        "norm=pre against post at heads=8": means["pre"] - means["base"],
        "norm=pre against post at heads=1": means["both"] - means["h1"],
    }
    assert found == pytest.approx(expected)
    assert {*effects([*asked.content.sweep.variants[:3]], "base", _simple)} == {
        "heads=1 against 8 at norm=post",
        "norm=pre against post at heads=8",
    }


def test_the_family_that_answers_is_first_with_its_verdicts(asked, tmp_path):
    first, second, *_ = asked.content.tests[0].summary
    assert "differences" not in first and "Equivalent within 10 % of perplexity:" in second
    sweep = shutil.copytree(asked.content.sweep.path, tmp_path / "sweep")
    report = Report(changed(sweep, answered_by="effects"))
    first, second, *_ = report.content.tests[0].summary
    start = "Primary metric, Perplexity per token, main effects and interactions: significantly "
    assert (
        first.startswith(start)
        and "undecided: " in first
        and second.startswith("Primary metric, Perplexity per token: ")
    )
    assert report.json["facts"]["primary"] == "perplexity on test, main effects and interactions"


def test_each_grid_of_a_sweep_is_a_design_of_its_own():
    rotary = [variant(f"r{i}", levels={"heads": heads, "positions": "rotary"}) for i, heads in enumerate("81")]
    sinusoids = [variant(f"s{i}", levels={"heads": heads, "positions": "sinusoidal"}) for i, heads in enumerate("81")]
    planned = [types.SimpleNamespace(**each) for each in (*CELLS, *sinusoids, *rotary)]
    found = effects(planned, "base")
    assert [*found] == [f"{name} (over heads, norm)" for name in EFFECTS] + [
        "heads=1 against 8 (over heads, positions)",
        "positions=rotary against sinusoidal (over heads, positions)",
        "heads=1 against 8 × positions=rotary against sinusoidal (over heads, positions)",
    ]
    assert found["heads=1 against 8 (over heads, positions)"] == {"s1": 0.5, "s0": -0.5, "r1": 0.5, "r0": -0.5}
    for absent in (1, 2, 3):  # of a cell that is not there, no interaction
        assert {*effects([*planned[:absent], *planned[absent + 1 : 4]], "base")} == {*EFFECTS[:2]}


def test_controls_are_not_in_the_family_of_the_question(asked):
    (test,) = asked.json["tests"]
    assert list(test["bleu_differences"]) == ["h1", "pre", "both"] and list(test["bleu_controls"]) == ["again"]
    assert test["bleu_differences"]["h1"]["corrected_p"] == pytest.approx(3 * test["bleu_differences"]["h1"]["p_value"])
    assert any("controls (A/A): none of 1 is significant" in text for text in test["words"])


def test_the_primary_metric_is_first_and_all_others_are_called_secondary(asked):
    columns = [column.title for column in asked.content.tests[0].table.columns if column.kind == "scores"]
    assert columns[:2] == ["PPL (primary)", "BLEU (secondary)"]
    assert (
        asked.json["primary"] == "perplexity"
        and asked.json["facts"]["primary"] == "perplexity on test, differences from the baseline"
    )
    assert asked.content.tests[0].summary[0].startswith("Primary metric, Perplexity per token")
    assert [*asked.content.tests[0].forests["differences"]] == ["perplexity", "bleu"]
    assert asked.content.scatter.y == "PPL"
    _, second = find(
        dataclasses.replace(asked.content.sweep, tests=["other", "test"])
    )  # primary on the first test set alone
    assert {found.role for found in second.by_metric.values()} == {"secondary"}
    for findings, shown in (
        (asked.content.tests[0].findings, ["Δ PPL"]),
        (second, ["Δ PPL", "Δ BLEU"]),  # there none is more important
    ):
        table = main_table(asked.content.sweep, findings, asked.content.tests[0].rows).for_latex()
        assert [column.title for column in table.columns if column.title.startswith("Δ")] == shown


def test_verdicts_against_the_margin(asked):
    """Changes are better, the control is equivalent; 0.2 BLEU are too few to tell anything."""
    (test,) = asked.json["tests"]
    verdict = {name: found["verdict"] for name, found in test["perplexity_differences"].items()}
    assert set(verdict.values()) <= {"better", "equivalent"} and "better" in verdict.values()
    control = test["perplexity_controls"]["again"]
    assert control["verdict"] == "equivalent" and control["equivalence_p"] < 0.05 < control["corrected_p"]
    for found, margin in ((control, np.log(1.1)), (test["bleu_controls"]["again"], 0.2)):
        one_sided = scipy.stats.t.sf((margin - abs(found["value"])) / found["error"], found["freedom"])
        assert found["equivalence_p"] == pytest.approx(one_sided)
    assert test["bleu_controls"]["again"]["verdict"] == "undecided"
    assert asked.lines[1]["log_perplexity_difference_verdict"] == verdict["h1"]


def test_every_form_has_the_families(asked, tmp_path, capsys):
    title = "Main effects and interactions"
    assert title in asked.page and title in asked.markdown and f"| {EFFECTS[2]} |" in asked.markdown
    with open(asked.directory / "contrasts.csv", newline="", encoding="utf-8") as file:
        rows = {(row["family"], row["contrast"], row["metric"]): row for row in csv.DictReader(file)}
    assert len(rows) == 2 * (3 + 4 + 1 + 1)
    value = asked.json["tests"][0]["bleu_effects"][EFFECTS[2]]["value"]
    assert float(rows["effects", EFFECTS[2], "bleu"]["value"]) == value
    assert cli.main(["report", str(asked.content.sweep.path), f"--output={tmp_path}", "--format=latex,svg"]) == 0
    printed = capsys.readouterr().out
    assert EFFECTS[2] in printed and "primary: perplexity on test" in printed and "command: transformer-jax" in printed
    for name in ("effects_test.tex", "contrasts_test.tex", "controls_test.tex", "effects_bleu_test.svg"):
        assert (tmp_path / name).is_file()
    assert "The interval is a 95" in (tmp_path / "controls_test.tex").read_text()  # of one comparison
    latex = (tmp_path / "effects_test.tex").read_text()
    assert "for 3 comparisons" in latex
    assert latex.count(r"\sbox0{\begin{tabular}") == latex.count(r"\resizebox{\textwidth}{!}{\usebox0}") == 1
    assert latex.count(r"\ifdim\wd0>\textwidth") == 1, "only a table that is wider than the page is scaled"
    assert f"{value:+.2f}".replace("-", "$-$") in latex and "heads=1 against 8" in latex
    assert "% primary: perplexity on test, differences from the baseline\n" in latex
    table = (tmp_path / "table_test.tex").read_text()
    titles = re.findall(r"\\multicolumn\{\d\}\{c\}\{(.*?)\} ", table)
    assert [title for title in titles if "Delta" in title] == [r"$\Delta$ PPL"] and any("BLEU" in t for t in titles)


def test_runs_have_their_levels_and_updates(asked):
    with open(asked.directory / "runs.csv", newline="", encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["variant"] == "pre")
    assert (row["level_heads"], row["level_norm"], row["updates"]) == ("8", "pre", "1000")


SIZES = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def numbers_in(latex):
    """Each number in the rows of a LaTeX table, with its decimals and the unit after it, by the name of the row."""
    body = latex.partition("\\midrule")[2].partition("\\bottomrule")[0].replace("$-$", "-").replace("\\,", " ")
    rows = [line.removesuffix(" \\\\").split(" & ") for line in body.splitlines() if " & " in line]
    number = r"([-+]?\d[\d,]*(?:\.(\d+))?) ?([kMGT]\b)?"
    return {
        re.sub(r"\{,superscript.*|\$.*?\$", "×", name): [
            (float(found[1].replace(",", "")), len(found[2] or ""), SIZES.get(found[3], 1.0))
            for cell in cells
            for found in re.finditer(number, cell)
        ]
        for name, *cells in rows
    }


@pytest.mark.parametrize("decimals", [None, 4])
def test_every_number_of_the_latex_is_in_a_csv(asked, tmp_path, decimals):
    """To the decimals that are shown; differences of perplexity are logarithms there, and percent here."""
    write_report(asked.content.sweep.path, tmp_path, ["html", "latex"], ["*"], decimals)
    known = {"table": ("table.csv", "variant"), "effects": ("contrasts.csv", "contrast")}
    known |= dict.fromkeys(("simple_effects", "contrasts", "controls"), ("contrasts.csv", "contrast"))
    checked = 0
    for name, (file, key) in known.items():
        csv_rows = list(csv.DictReader((tmp_path / file).read_text().splitlines()))
        for row, numbers in numbers_in((tmp_path / f"{name}_test.tex").read_text()).items():
            texts = [text for of_csv in csv_rows if of_csv[key] == row for text in of_csv.values()]
            values = [float(text) for text in texts if re.fullmatch(r"[-+]?\d[-+.e\d]*", text)]
            values += [100 * math.expm1(value) for value in values if abs(value) < 10]
            for number, places, size in numbers:
                near = 0.501 * 10.0**-places
                assert any(abs(value / size - number) <= near for value in values), (name, row, number)
                checked += 1
    assert checked > 100


def test_decimals_are_those_asked_for(asked, tmp_path, capsys):
    sweep = str(asked.content.sweep.path)
    for decimals in (0, 3):
        assert cli.main(["report", sweep, f"--output={tmp_path}", "--format=latex", f"--decimals={decimals}"]) == 0
        numbers = numbers_in((tmp_path / "effects_test.tex").read_text())
        assert len(numbers) == 3
        assert {places for row in numbers.values() for _, places, _ in row} == {decimals}
    assert cli.main(["report", sweep, "--decimals=many"]) == 2 and "--decimals" in capsys.readouterr().err


def test_effects_of_a_design_that_lacks_a_cell_are_not_compared(asked, tmp_path):
    """They would be other effects: of one change instead of an average, or against another level."""
    path = shutil.copytree(asked.content.sweep.path, tmp_path / "sweep", symlinks=True)
    shutil.rmtree(path / "runs" / "base")
    report = Report(path)
    (test,) = report.json["tests"]
    assert not {"bleu_effects", "bleu_controls"} & {*test}
    assert {name: test["not_compared"][name] for name in EFFECTS} == dict.fromkeys(EFFECTS, "needs base")
    assert "needs base" in report.markdown and [*test["bleu_contrasts"]] == [*asked.json["tests"][0]["bleu_contrasts"]]


@pytest.mark.parametrize(
    ("name", "best_is", "better"),
    [("length", "highest", "better"), ("length", "lowest", "worse"), ("copyloss", None, "worse")],
)
def test_a_custom_metric_may_be_primary(sweep, name, best_is, better):
    """Of its sentences nothing is known, so that the intervals are those of Welch, of seeds alone."""
    for variant_name, offset in (("base", 0.0), ("A h=1", 5.0), ("A h=4", 0.1)):
        for seed in (0, 1):
            path = record_file(sweep, variant_name, seed)
            measures = json.loads(path.read_text())["measures"]
            edit(path, measures={**measures, name: {"score": 1 + offset + 0.01 * seed, "signature": "mine"}})
    base = json.loads((sweep / "sweep.json").read_text())["base"]
    base["train"] |= {"best_metric": name, "best_is": best_is}
    report = Report(changed(sweep, primary=name, base=base))
    found = report.content.tests[0].findings.by_metric[name]
    assert found.metric.mark(found.differences["A h=1"]) == better and found.role == "primary"
    assert found.differences["A h=1"].error == pytest.approx(0.01 / np.sqrt(2))
    assert "account for the choice of seeds only" in report.words and f"{name} (primary)" in report.markdown
    assert {row["metric"] for row in score_records(report.content.sweep)} == {
        name,
        "bleu",
        "perplexity",
        "exact_match",
    }


def test_the_numbers_of_a_custom_metric_have_the_decimals_of_its_spread(sweep, tmp_path):
    for name, score in (("base", 0.05), ("A h=1", 0.9), ("A h=4", 0.0511)):
        for seed in (0, 1):
            path = record_file(sweep, name, seed)
            measures = json.loads(path.read_text())["measures"]
            edit(path, measures={**measures, "mine": {"score": score + 0.01 * seed, "signature": "mine"}})
    for given, decimals in ((None, 4), (2, 2)):
        report = Content(dataclasses.replace(load_sweep(sweep), decimals=given))
        columns = [column for column in report.tests[0].table.columns if column.key in ("mine", "mine_difference")]
        columns += [column for column in report.runs.columns if column.title == "mine test"]
        texts = [cell.text + cell.detail for column in columns for cell in column.cells]
        numbers = re.findall(r"\d+(?:\.\d+)?", " ".join(texts))
        assert len(numbers) == 6 + 6 + 6, "scores and spreads, differences and intervals, runs"
        assert {len(number.partition(".")[2]) for number in numbers} == {decimals}
        write_report(sweep, tmp_path, ["latex"], ["mine*"], given)
        in_latex = [found for row in numbers_in((tmp_path / "table_test.tex").read_text()).values() for found in row]
        assert any(value == round(0.055, decimals) for value, *_ in in_latex)


@pytest.mark.parametrize(
    ("rows", "decimals"),
    [
        ([[1.0, 2.0], [100.0, 101.0]], 2),  # a standard deviation of 0.71
        ([[100.0, 300.0], [5.0, 5.1], [200.0, 350.0]], 0),
        ([[50.0, 50.0 + 1e-9]], 4),  # six digits at most
        ([[1e-12, 2e-12]], 9),
        ([[12.3456], [0.1]], 2),
        ([[1200.0], [7.0]], 0),
        ([[12.0]], 2),
        ([[0.0], []], 0),
        ([], 0),
    ],
)
def test_decimals_follow_the_spread_over_seeds(rows, decimals):
    assert decimals_for(rows) == decimals


def test_a_metric_of_sentences_has_the_intervals_of_the_librarys(sweep):
    """Its scores are those of exact match in percent, so every number is the same, in clusters of sentences too."""
    rng = np.random.default_rng(0)
    for name, right in (("base", 0.5), ("A h=1", 0.1), ("A h=4", 0.5)):
        for seed in (0, 1):
            path = record_file(sweep, name, seed)
            record = json.loads(path.read_text())
            matches = (rng.random(20) < right).astype(int).tolist()
            kept = {"exact_match": matches, "clusters": [number // 2 for number in range(20)]}
            scores = {"mine": [100.0 * match for match in matches]}
            measures = record["measures"] | {"mine": {"score": 5.0 * sum(matches), "signature": "mine"}}
            edit(path, measures=measures, sentences=record["sentences"] | kept, sentence_scores=scores)
    report = Report(sweep)
    found = report.content.tests[0].findings.by_metric
    assert found["mine"].metric.by_sentence and found["mine"].differences["A h=1"].error > 0
    numbers = [
        (d.value, d.error, d.df, d.p_value)
        for metric in ("mine", "exact_match")
        for d in found[metric].differences.values()
    ]
    assert numbers[:2] == numbers[2:]
    assert "mine account for the choice of seeds only" not in report.words
    edit(path, sentence_scores={"mine": [1.0]})
    assert "lists of sentences differ in length" in load_sweep(sweep).problems[0]


@pytest.mark.parametrize("of_sentences", [True, False])
def test_the_score_of_an_analysis_is_compared_like_a_metric(sweep, of_sentences):
    for name, score in (("base", 1.0), ("A h=1", 2.0), ("A h=4", 1.0)):
        for seed in (0, 1):
            scores = [score + 0.1 * seed + 0.01 * number for number in range(20)]
            found = {"score": float(np.mean(scores)), "scores": scores if of_sentences else None}
            write(seed_folder(sweep, name, seed) / "analysis" / "depth.json", found)
    report = Report(changed(sweep, primary="depth", margin={"depth": 3}))
    found = report.content.tests[0].findings.by_metric["depth"]
    assert (found.role, found.metric.by_sentence) == ("primary", of_sentences)
    assert found.differences["A h=1"].value == pytest.approx(1.0)
    assert report.lines[1]["depth_mean"] == str(found.mean("A h=1")) and "Primary metric, depth:" in report.words
    assert any(row["metric"] == "depth" for row in score_records(report.content.sweep))
    write(seed_folder(sweep, "base", 0) / "analysis" / "depth.json", {"score": 1.0, "scores": [1.0]})
    write(seed_folder(sweep, "base", 1) / "analysis" / "depth.json", {"score": "high"})
    problems = load_sweep(sweep).problems
    assert "not one finite number for each of 20 sentences" in problems[0] and "not a finite number" in problems[1]


def test_seeds_that_tie_say_nothing_without_scores_of_sentences(sweep):
    measure(sweep, "length", {"base": (1.0, 1.0), "A h=1": (2.0, 2.0), "A h=4": (1.0, 1.0)})
    (test,) = find(load_sweep(sweep))
    assert [*test.by_metric["length"].differences] == ["A h=4"]  # which equals the baseline


def measure(sweep, metric, scores):
    """Gives runs, by variant and seed, the score of a metric."""
    for name, by_seed in scores.items():
        for seed, score in enumerate(by_seed):
            path = record_file(sweep, name, seed)
            measures = json.loads(path.read_text())["measures"]
            edit(path, measures={**measures, metric: {"score": score, "signature": "mine"}})


def test_a_primary_metric_that_cannot_be_compared_is_named(sweep, tmp_path):
    measure(sweep, "chrf", {"base": (40.0, 40.0), "A h=1": (45.0, 45.0), "A h=4": (47.0, 47.0)})
    report = Report(changed(sweep, primary="chrf", margin={"chrf": 1}))
    assert "Primary metric, chrF: not compared, because" in report.words and "Intervals of chrF" not in report.words
    write_report(sweep, tmp_path, ["latex"])
    assert r"$\Delta$ BLEU" in (tmp_path / "table_test.tex").read_text()  # in place of the primary metric's
    write_report(sweep, tmp_path, ["latex"], columns=["parameters"])
    assert r"$\Delta$" not in (tmp_path / "table_test.tex").read_text()  # nor in the caption
    measure(sweep, "chrf", {"base": (40.0, 41.0)})
    assert "not compared" not in Report(sweep).words


def test_intervals_of_chrf_are_within_its_scale_and_its_scores_in_the_table_of_runs(sweep):
    measure(sweep, "chrf", {"base": (10.0, 40.0), "A h=1": (60.0, 90.0), "A h=4": (20.0, 60.0)})
    assert {row["metric"] for row in score_records(load_sweep(sweep))} >= {"bleu", "chrf"}  # though not compared
    (test,) = find(load_sweep(changed(sweep, primary="chrf")))
    assert test.differences["A h=1"].high == 100.0


def test_a_variant_some_of_whose_runs_lack_a_score_is_named(sweep):
    measure(sweep, "length", {"base": (1.0, 2.0), "A h=1": (3.0,), "A h=4": (1.0, 3.0)})
    (test,) = find(load_sweep(sweep))
    assert [*test.by_metric["length"].differences] == ["A h=4"]
    assert test.not_compared == {"A h=1, length": "not all of its runs have this score"}


def test_contrasts_have_dots_only_if_all_seeds_are_there(asked, tmp_path):
    """The scores of different seeds do not belong together."""
    path = shutil.copytree(asked.content.sweep.path, tmp_path / "sweep", symlinks=True)
    for name, seed in (("h1", 0), ("base", 1), ("pre", 2), ("both", 3)):
        shutil.rmtree(path / "runs" / name / f"seed-{seed}")
    for sweep, dots in ((asked.content.sweep.path, 5), (path, 0)):
        (test,) = Report(sweep).content.tests
        assert {len(found) for found in test.forests["effects"]["bleu"].seeds.values()} == {dots}


def test_seeds_that_were_finished_after_a_report_are_named(sweep):
    """Whether they were planned before it or not."""
    changed(sweep, seeds=[0, 1, 2])
    assert "finished after" not in Report(sweep).markdown
    (look,) = json.loads((sweep / "looks.json").read_text())["looks"]
    assert (look["seeds"], look["compared"]) == ([0, 1, 2], [0, 1])
    write_report(sweep)  # of the same seeds: no other look
    for each in VARIANTS[:3]:
        make_run(sweep, each, 2)
    report = Report(sweep)
    assert "Seed 2 was finished after a report of seeds 0, 1." in report.markdown and "7.0 %" in report.markdown
    assert report.json["looks"] == [[0, 1]] and [look["compared"] for look in load_sweep(sweep).looks] == [
        [0, 1],
        [0, 1, 2],
    ]
    # A variant that was added when one seed was there: the other seeds were in earlier reports.
    write(sweep / "looks.json", {"looks": [{"seeds": [], "compared": seen, "when": ""} for seen in ([0, 1, 2], [0])]})
    assert "finished after" not in Report(sweep).markdown


def test_seeds_that_only_some_variants_have_later_are_named(sweep):
    """As those are that only one variant lacks, which may have diverged."""
    changed(sweep, seeds=[0, 1, 2])
    shutil.rmtree(seed_folder(sweep, "A h=4", 1))
    write_report(sweep)
    assert "finished after" not in Report(sweep).markdown
    make_run(sweep, VARIANTS[1], 2)
    assert "Seed 2 was finished after a report of seeds 0." in Report(sweep).markdown
    write_report(sweep)
    looks = json.loads((sweep / "looks.json").read_text())["looks"]
    assert [(look["compared"], look["finished"]) for look in looks] == [([0], [0, 1]), ([0], [0, 1, 2])]


def test_the_declared_question_is_named_before_it_can_be_answered(sweep):
    shutil.rmtree(seed_folder(sweep, "A h=4", 0))
    contrasts = {"fewer heads": {"A h=1": 1, "A h=4": -1}}
    changed(sweep, primary="bleu", answered_by="contrasts", contrasts=contrasts)
    shutil.rmtree(seed_folder(sweep, "A h=4", 1))
    assert Report(sweep).content.facts["primary"] == "bleu on test, contrasts"
