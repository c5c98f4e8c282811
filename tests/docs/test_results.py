"""The numbers of result pages are those of the archived reports."""

import csv
import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.places import ROOT
from transformer_jax.extension import load_module
from transformer_jax.report.statistics import Scores, contrasts, mean_interval, mean_scores

RESULTS = ROOT / "docs/results"
ARCHIVES = sorted(path.parent for path in RESULTS.glob("**/report.json"))
# Beside the archive, or in the folder above where a page has several.
PAGES = sorted({folder if (folder / "README.md").exists() else folder.parent for folder in ARCHIVES})
NUMBER = r"[+−]?\d[\d,]*(?:\.\d+)?"
SPREAD = re.compile(rf"({NUMBER}) ± ({NUMBER})")
OF_SEEDS = re.compile(rf"{NUMBER}(?:, {NUMBER}){{2,}}(?= [|]|[)])")
INTERVAL = re.compile(rf"({NUMBER})( %)? \[({NUMBER}), ({NUMBER})\]")


def archived(page: str) -> str:
    """The page without what others have published."""
    return "\n".join(line for line in page.splitlines() if "published" not in line.lower())


def recipe_scores() -> dict[str, np.ndarray]:
    """BLEU of sentence-lengths/recipe.csv by test set: of sinusoids by seed, and of relative positions."""
    with open(RESULTS / "sentence-lengths/recipe.csv", newline="") as file:
        ends = {(row["variant"], int(row["seed"])): row for row in csv.DictReader(file) if row["updates"] == "2450"}
    return {
        split: np.array(
            [
                [float(ends[variant, seed][f"bleu_{split}"]) for seed in range(4)]
                for variant in ("sinusoidal", "relative")
            ]
        )
        for split in ("test", "long")
    }


def recipe_report() -> dict[str, Any]:
    """What a report would have of these scores. What other sentences would add to an error is that of the last seed."""
    of_last_seed = json.loads((RESULTS / "sentence-lengths/recipe-seed-3/report.json").read_text())
    bleu, found = recipe_scores(), []
    for test in of_last_seed["tests"]:
        covariance_RR = np.zeros((8, 8))
        covariance_RR[4:, 4:] = test["bleu_differences"]["relative"]["error"] ** 2
        known = Scores(bleu[test["split"]].ravel(), covariance_RR, test["sentences"], largest=100.0)
        for scores in (known, known._replace(covariance_RR=np.zeros((8, 8)))):  # the second: by the seeds alone
            (difference,) = contrasts(scores, [range(4), range(4, 8)], [[-1, 1]])
            found.append(difference.to_json())
    more_if_long = [float(gain) for gain in np.diff(bleu["long"], axis=0)[0] - np.diff(bleu["test"], axis=0)[0]]
    low, high = mean_interval(more_if_long)
    found.append({"value": statistics.mean(more_if_long), "low": low, "high": high})
    return {"scores": [each.tolist() for split in bleu for each in bleu[split]], "differences": found}


def reports(page: Path) -> list[dict[str, Any]]:
    found = [json.loads((folder / "report.json").read_text()) for folder in ARCHIVES if page in (folder, folder.parent)]
    return [*found, *([recipe_report()] if page.name == "sentence-lengths" else [])]


def inside(value: Any) -> Iterator[Any]:
    yield value
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from inside(member)


def shown(value: float, like: str) -> bool:
    """Whether a number is written as `like`, rounded to its decimals."""
    text = like.replace("−", "-").replace(",", "")
    decimals = len(text.partition(".")[2])
    return abs(value - float(text)) <= 0.5 * 10**-decimals + 1e-9


def scores(report: dict[str, Any]) -> list[list[float]]:
    """All lists of scores by seed."""
    found = [values for values in inside(report) if isinstance(values, list) and len(values) > 1]
    lists = [values for values in found if all(isinstance(value, float) for value in values)]
    for test in report.get("exact_match", ()):
        lists += [[100 * count / test["total"] for count in counts] for counts in test["right"].values()]
        for seeds in test["groups"].values():
            for label in seeds[0]:
                lists += [[100 * right / total for right, total in by_seed] for by_seed in transposed(seeds, label)]
    return lists


def transposed(seeds: list[dict[str, dict[str, list[int]]]], label: str) -> list[list[list[int]]]:
    return [[seed[label][value] for seed in seeds] for value in seeds[0][label]]


def differences(report: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Estimates with their intervals: of differences, and of rank correlations."""
    found = [(v["value"], v["low"], v["high"]) for v in inside(report) if isinstance(v, dict) and "low" in v]
    for measure in report.get("published", ()):
        if (correlation := measure["rank_correlation"]) is not None:
            found.append((correlation, *correlation_interval(correlation, measure["n"])))
    return found


def correlation_interval(correlation: float, n: int) -> list[float]:
    """Of Spearman's correlation over n rows (Bonett and Wright 2000)."""
    half = 1.96 * math.sqrt((1 + correlation**2 / 2) / (n - 3))
    return [math.tanh(math.atanh(correlation) + side * half) for side in (-1, 1)]


@pytest.mark.parametrize("folder", PAGES, ids=[page.name for page in PAGES])
def test_scores_and_differences_are_those_of_the_report(folder):
    text = archived((folder / "README.md").read_text())
    of_seeds = [values for report in reports(folder) for values in scores(report)]
    spreads = [(statistics.mean(values), statistics.stdev(values)) for values in of_seeds if len(values) > 1]
    wrong = [
        f"{mean} ± {deviation}"
        for mean, deviation in SPREAD.findall(text)
        if not any(shown(m, mean) and shown(s, deviation) for m, s in spreads)
    ]
    for listed in OF_SEEDS.findall(text):
        if not any(all(map(shown, values, listed.split(", "))) for values in of_seeds if len(values) == 3):
            wrong.append(listed)
    for value, is_percent, low, high in INTERVAL.findall(text):
        known = [found for report in reports(folder) for found in differences(report)]
        if is_percent:
            known = [tuple(100 * math.expm1(number) for number in numbers) for numbers in known]
        if not any(all(map(shown, numbers, (value, low, high))) for numbers in known):
            wrong.append(f"{value}{is_percent} [{low}, {high}]")
    assert not wrong


@pytest.mark.parametrize("folder", ARCHIVES, ids=[folder.name for folder in ARCHIVES])
def test_runs_csv_has_the_scores_of_the_report(folder):
    report, found = json.loads((folder / "report.json").read_text()), {}
    with open(folder / "runs.csv", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["test"], row["metric"], row["variant"]), []).append(float(row["score"]))
    known = {
        (test["split"], metric, variant): scores
        for test in report["tests"]
        for metric in ("bleu", "perplexity")
        for variant, scores in test[metric].items()
    }
    for test in report.get("exact_match", ()):
        for variant, counts in test["right"].items():
            known[test["split"], "exact_match", variant] = [100 * count / test["total"] for count in counts]
    found = {key: scores for key, scores in found.items() if key in known or any(scores)}  # no section where none match
    assert found == {key: pytest.approx(scores, rel=1e-12) for key, scores in known.items()}


# Made by earlier code. What today's differs in, by archive and variant; each page has a line about it.
EARLIER = {
    ("table3", "D P_drop=0"): {"freedom", "low", "high", "p_value", "corrected_p"},
    ("table3", "C N=2"): {"freedom", "low", "high", "p_value", "corrected_p"},
    ("modern-demo", "DeepNorm"): {"low", "high"},  # a difference in BLEU is at most 100
}


def again(test: dict[str, Any], metric: str, baselines: dict[str, str]) -> list[dict[str, Any]]:
    """Today's differences from the archived scores of seeds.

    Scores of sentences are not archived: what these add to an error is the rest of the archived error.
    """
    in_words = metric == "perplexity" and test["unit"] == "word"
    by_variant = {name: values for name, values in test["word_perplexity" if in_words else metric].items() if values}
    names, ends = list(by_variant), np.cumsum([len(values) for values in by_variant.values()])
    scores = np.concatenate(list(by_variant.values()))
    groups = [range(end - len(values), end) for values, end in zip(by_variant.values(), ends, strict=True)]
    known = Scores(
        values_R=np.log(scores) if metric == "perplexity" else scores,
        covariance_RR=np.zeros((len(scores), len(scores))),
        sentences=test.get("clusters", test["sentences"]),
        largest=np.inf if metric == "perplexity" else 100.0,
    )
    weights = np.zeros((len(baselines), len(names)))
    for row, (name, baseline) in zip(weights, baselines.items(), strict=True):
        row[names.index(name)], row[names.index(baseline)] = 1, -1
    for name, of_seeds in zip(baselines, contrasts(known, groups, weights), strict=True):
        own = np.ix_(*2 * [groups[names.index(name)]])
        archived_error = test[f"{metric}_differences"][name]["error"]
        known.covariance_RR[own] = max(archived_error**2 - of_seeds.error**2, 0)
    return [found.to_json() for found in contrasts(known, groups, weights)]


@pytest.mark.parametrize("folder", ARCHIVES, ids=[folder.name for folder in ARCHIVES])
def test_todays_code_gives_the_archived_intervals(folder):
    report, sweep = (json.loads((folder / name).read_text()) for name in ("report.json", "sweep.json"))
    own = {variant["name"]: variant["baseline"] for variant in sweep["variants"]}
    differ = set()
    for test in report["tests"]:
        for metric in [key.removesuffix("_differences") for key in test if key.endswith("_differences")]:
            archived = test[f"{metric}_differences"]
            baselines = {name: own[name] or report["baseline"] for name in archived}
            for old, new, name in zip(archived.values(), again(test, metric, baselines), archived, strict=True):
                for key in ("value", "error", "freedom", "low", "high", "p_value", "corrected_p"):
                    if new[key] != pytest.approx(old[key], rel=1e-4, abs=1e-6):
                        differ.add((name, key))
                if old["detectable"] is not None:  # earlier code simulated fewer sweeps
                    assert new["detectable"] == pytest.approx(old["detectable"], rel=0.04)
    assert differ == {(name, key) for (page, name), keys in EARLIER.items() if page == folder.name for key in keys}


def test_the_intervals_of_cogs_are_of_whole_categories():
    exact = json.loads((RESULTS / "cogs/report.json").read_text())["exact_match"][0]
    right, groups = [], []
    for seeds in exact["groups"].values():
        groups.append(range(len(right), len(right) + len(seeds)))
        of_seeds = [seed["category"].values() for seed in seeds]
        right += [np.concatenate([100.0 * (np.arange(n) < count) for count, n in counts]) for counts in of_seeds]
    categories = np.repeat(np.arange(21), 1000)
    found = contrasts(mean_scores(np.stack(right), categories, largest=100.0), groups, [[-1, 1, 0], [-1, 0, 1]])
    for difference, archived in zip(found, exact["differences"].values(), strict=True):
        numbers = {key: archived[key] for key in ("value", "error", "low", "high", "corrected_p", "detectable")}
        assert {key: difference.to_json()[key] for key in numbers} == pytest.approx(numbers, rel=1e-6)


def curves(page: str) -> dict[tuple[str, str], list[dict[str, float]]]:
    """What each run of a page logged, by variant and seed."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with open(RESULTS / page / "curves.csv", newline="") as file:
        for row in csv.DictReader(file):
            numbers = {name: float(row[name]) for name in ("seconds", "valid_loss") if row[name]}
            found.setdefault((row["variant"], row["seed"]), []).append({"step": int(row["updates"]), **numbers})
    return found


def test_updates_and_seconds_of_the_optimizers_are_those_of_their_curves():
    module = load_module(str(ROOT / "experiments/optimizers.py"))
    lines = curves("optimizers")
    table = [row for row in rows("results/optimizers/README.md", "| ") if row[0][:1].isdigit()]
    for loss, *cells in table:
        of_each = []
        for name, said in zip(("Adam", "Muon"), cells, strict=False):
            found = [
                module.updates_and_seconds(each, float(loss.split(",")[0]))
                for (key, _), each in lines.items()
                if key == name
            ]
            updates, seconds = map(statistics.mean, zip(*found, strict=True))
            assert said == f"{updates:,.0f} updates, {seconds:.0f} s"
            of_each.append((updates, seconds))
        (adam, adam_seconds), (muon, muon_seconds) = of_each
        assert cells[2:] == [f"{muon / adam:.2f}", f"{muon_seconds / adam_seconds:.1f}"]
    assert len(table) == 4


def test_the_falls_of_losses_of_regularization_are_those_of_their_curves():
    falls = []
    for (variant, _), lines in curves("regularization").items():
        if variant == "BPE-dropout":
            losses = {line["step"]: line["valid_loss"] for line in lines if "valid_loss" in line}
            falls.append(losses[2000] - losses[2480])
    page = (RESULTS / "regularization/README.md").read_text()
    assert len(falls) == 5 and f"falls by {min(falls):.2f} to {max(falls):.2f} over the last 480 updates" in page


def test_best_rates_and_losses_of_mup_are_those_of_its_curves():
    module = load_module(str(ROOT / "experiments/mup.py"))
    lines = curves("mup")
    losses: dict[str, dict[tuple[str, int], dict[float, float]]] = {"mean": {}}
    sweep = json.loads((RESULTS / "mup/sweep.json").read_text())
    for variant in sweep["variants"]:
        kind, width = variant["group"].split(", d_model=")
        rate = variant["changes"]["optimizer.learning_rate"]
        by_seed = {seed: each[-1]["valid_loss"] for (name, seed), each in lines.items() if name == variant["name"]}
        assert len(by_seed) == 2
        for seed, loss in (by_seed | {"mean": statistics.mean(by_seed.values())}).items():
            losses.setdefault(seed, {}).setdefault((kind, int(width)), {})[rate] = loss
    for seed in losses:  # at the base both are one
        losses[seed]["muP", module.WIDTHS[0]] = losses[seed]["standard", module.WIDTHS[0]]

    (sentence,) = re.findall(r"At 0.011, .*", (RESULTS / "mup/README.md").read_text())
    at_rate = [losses["mean"][kind, module.WIDTHS[-1]][0.011] for kind in ("standard", "muP")]
    assert all(map(shown, at_rate, re.findall(r"\d\.\d\d\b", sentence)))

    table = {row[0]: row[1:] for row in rows("results/mup/README.md", "| ")}
    for kind in ("standard", "muP"):
        best = [module.best_rate(losses["mean"][kind, width]) for width in module.WIDTHS]
        assert not any(at_edge for _, at_edge in best)
        rates = [rate for rate, _ in best]
        assert table[f"best rate: {kind}"] == [*(f"{rate:.4f}" for rate in rates), f"{max(rates) / min(rates):.3g}"]
        of_seeds = [
            [module.best_rate(losses[seed][kind, width])[0] for seed in losses if seed != "mean"]
            for width in module.WIDTHS
        ]
        assert table[f"range over seeds: {kind}"] == [*(f"{min(each):.4f}–{max(each):.4f}" for each in of_seeds), ""]
        lowest = [min(losses["mean"][kind, width].values()) for width in module.WIDTHS]
        assert table[f"lowest validation loss: {kind}"] == [*(f"{loss:.2f}" for loss in lowest), ""]


def test_the_table_of_inflection_has_the_counts_of_its_reports():
    lines = rows("results/inflection/README.md", "| Korean")
    found = []
    for size in ("large", "small"):
        (test,) = json.loads((RESULTS / "inflection" / size / "report.json").read_text())["exact_match"]
        for variant, (right,) in test["right"].items():
            (groups,) = test["groups"][variant]
            counts = [
                [right, test["total"]],
                *(groups[x][y] for x in ("lemma", "features") for y in ("seen", "unseen")),
            ]
            found.append([f"Korean, {size}: {variant}", *(f"{100 * right / total:.1f}" for right, total in counts)])
    assert lines == found


def test_exact_match_with_the_length_given_is_on_the_page_of_scan():
    page = re.sub(r"<[^>]+>", " ", (RESULTS / "scan/index.html").read_text())
    found = re.findall(r"(\w+)\s+test\s+([\d.]+)\s+([\d.]+)", page[page.index("length given") :])
    table = [row for row in rows("results/scan/README.md", "| ") if row[2].count(",") == 2]
    assert len(table) == 4
    for (name, *scores), row in zip(found, table, strict=False):
        assert name == row[0].split(" ")[0]
        assert all(map(shown, map(float, scores), (row[1].split(" ")[0], row[4])))


def test_the_learning_curves_of_scan_are_the_archived_ones():
    """Of three seeds each; there is a dash where a run was stopped before."""
    shares: dict[str, dict[tuple[str, str, str], str]] = {}
    given: dict[str, list[str]] = {}  # with the right length
    with open(RESULTS / "scan/by_updates.csv", newline="") as file:
        for line in csv.DictReader(file):
            for split in ("test", "valid"):
                share = 100 * int(line[f"{split}_right"]) / int(line[f"{split}_pairs"])
                at = shares.setdefault(f"{int(line['updates']):,}", {})
                at[line["variant"], split, line["seed"]] = f"{share:.1f}"
            if line["test_right_length_given"]:
                share = 100 * int(line["test_right_length_given"]) / int(line["test_pairs"])
                given.setdefault(line["variant"], []).append(f"{share:.1f}")
    columns = [(v, split) for v in ("transformer_xl", "transformer_xl, shared layers") for split in ("test", "valid")]
    table = [row for row in rows("results/scan/README.md", "| ") if row[0].endswith(",000")]
    assert table == [
        [updates, *(" / ".join(found.get((*column, seed), "–") for seed in "012") for column in columns)]
        for updates, found in shares.items()
    ]
    plain, shared = table[-1][1].replace(" / ", ", ", 1), table[-1][3].removeprefix("– / ")
    page = (RESULTS / "scan/README.md").read_text()
    assert f"have {plain.replace(' / ', ' and ')} % after 8,000 updates, " in page
    assert f"two with shared layers have {shared.replace(' / ', ' and ')} %" in page
    of_plain, of_shared = (" and ".join(given[variant]) for variant in dict(columns))
    assert f"seeds 1 and 2 are right on {of_plain} %, with shared layers on {of_shared} %" in page


def test_the_scores_of_multi30k_are_those_of_sacrebleu():
    bleu = json.loads((RESULTS / "multi30k/bleu.json").read_text())
    page = (RESULTS / "multi30k/README.md").read_text()
    found = re.fullmatch(r"(\S+) \(.* ratio = (\S+) .*\)", bleu["verbose_score"])
    score, margin = f"{bleu['score']:.2f}", f"{bleu['confidence_var']:.2f}"
    assert rows("results/multi30k/README.md", "| here") == [["here", score, *found.groups()]]
    published = float(rows("results/multi30k/README.md", "| published")[0][1])
    place = "within" if abs(published - bleu["score"]) <= bleu["confidence_var"] else "outside"
    assert f"**{score} BLEU**; published {published} " in page
    assert f"gives ± {margin}; the published score is {place} this interval" in page
    lines = [json.loads(line) for line in (RESULTS / "multi30k/metrics.jsonl").read_text().splitlines()]
    assert f"ended the run at update {lines[-1]['step']:,} of" in page


def test_gains_on_longer_sentences_and_losses_are_those_of_the_runs():
    page = (RESULTS / "sentence-lengths/README.md").read_text()
    bleu = {
        test["split"]: test["bleu"]
        for test in json.loads((RESULTS / "sentence-lengths/report.json").read_text())["tests"]
    }
    gains = {split: np.subtract(of["relative"], of["sinusoidal"]) for split, of in bleu.items()}
    (said,) = re.findall(rf"smaller there, by ({NUMBER}) and ({NUMBER}) in the two seeds", page)
    assert said == tuple(f"{loss:.1f}" for loss in gains["test"] - gains["long"])
    bleu = recipe_scores()
    for seed in range(4):
        cells = [f"{old:.2f} | {new:.2f} | {new - old:+.2f}" for old, new in (bleu[split][:, seed] for split in bleu)]
        assert f"| {seed} | {' | '.join(cells)} |\n" in page
    with open(RESULTS / "sentence-lengths/longer.csv", newline="") as file:
        (last,) = (row for row in csv.DictReader(file) if row["updates"] == "3600")
    said = rf"a run of 3,600 has ({NUMBER}) BLEU on `test` and ({NUMBER}) on `long`"
    assert re.findall(said, page) == [(f"{float(last['bleu_test']):.1f}", f"{float(last['bleu_long']):.1f}")]
    recipe = [json.loads(line) for line in (RESULTS / "multi30k/metrics.jsonl").read_text().splitlines()]
    as_much = next(line["valid_loss"] for line in recipe if line["step"] == 2240 and "valid_loss" in line)
    assert f"validation loss is {float(last['valid_loss']):.2f}, where" in page
    assert f"{as_much:.2f} after as many" in page


# What each page says that such a sweep would find, of which metric.
FOUND = {
    "table3": ("BLEU would", "bleu"),
    "modern-demo": ("BLEU would", "bleu"),
    "modern-trained": ("BLEU would", "bleu"),
    "scan": ("points would", "exact_match"),
    "cogs": ("points would", "exact_match"),
}


@pytest.mark.parametrize("folder", FOUND)
def test_the_size_of_what_a_sweep_would_find_is_the_median_of_the_comparisons(folder):
    unit, metric = FOUND[folder]
    report, text = (
        json.loads((RESULTS / folder / "report.json").read_text()),
        (RESULTS / folder / "README.md").read_text(),
    )
    of_metric = (
        report["exact_match"][0]["differences"] if metric == "exact_match" else report["tests"][0]["bleu_differences"]
    )
    size = statistics.median(found["detectable"] for found in of_metric.values())
    (said,) = re.findall(rf"ifferences? of (?:.*? or |about )?({NUMBER}) {unit}", text)
    assert shown(size, said)


WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NAMES = r"`make demo`|Table 3|test_2016_flickr|Multi30k|since 2017|WMT 2014|two CPU cores"


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the rows of a page's tables that begin so."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines if line.startswith(first)]


def between(numbers: list[float]) -> str:
    return f"{min(numbers):.1f} to {max(numbers):.1f}"


def claims() -> Iterator[str]:
    """What README's table of results says, from the archived reports or from the page that has the numbers."""
    table3, eight_seeds, modern, soak = (
        json.loads((RESULTS / name).read_text())
        for name in (
            "table3/report.json",
            "table3-eight-seeds/report.json",
            "modern-trained/report.json",
            "soak/soak.json",
        )
    )
    seeds, runs = WORDS[len({run["seed"] for run in table3["runs"]})], len(table3["runs"])
    yield f"{WORDS[512 // table3['base']['model']['d_model']]} times narrower, {seeds} seeds, {runs} runs"
    (published,) = (each for each in table3["published"] if each["measure"] == "perplexity")
    correlation = published["rank_correlation"]
    low, high = correlation_interval(correlation, published["n"])
    yield "rank correlation of the differences in perplexity with the paper's: "
    yield f"{correlation:.2f}, 95 % interval [{low:.2f}, {high:.2f}]"
    finished = [run for run in eight_seeds["runs"] if run["state"] == "finished"]
    variants, many_seeds = (WORDS[len({run[key] for run in finished})] for key in ("variant", "seed"))
    ratio = eight_seeds["base"]["data"]["task"]["train_size"] // table3["base"]["data"]["task"]["train_size"]
    yield f"{variants} rows of it, {WORDS[ratio]} times the data, {many_seeds} seeds, {len(finished)} runs"
    (published,) = (each for each in eight_seeds["published"] if each["measure"] == "perplexity")
    assert all(row["agrees"] for row in published["rows"])
    sure = WORDS[sum(row["significant"] for row in published["rows"])]
    yield f"all {WORDS[published['n']]} differences in perplexity have the paper's sign, {sure} are significant"
    perplexity, bleu = (modern["tests"][0][f"{name}_differences"].values() for name in ("perplexity", "bleu"))
    assert all(found["resolved"] for found in (*perplexity, *bleu))
    steps, seeds = modern["base"]["train"]["steps"], WORDS[len({run["seed"] for run in modern["runs"]})]
    yield f"{WORDS[len(bleu)]} changes since 2017 after {steps:,} updates, learning rates tuned, {seeds} seeds"
    for name, words in (("pre-norm", "pre-norm (perplexity "), ("modern", "all common ones together (")):
        found = modern["tests"][0]["perplexity_differences"][name]
        value, low, high = (f"{100 * math.expm1(found[key]):.1f}" for key in ("value", "low", "high"))
        yield words + f"{value} % [{low}, {high}])".replace("-", "−")
    yield f"{soak['steps']:,} updates with {WORDS[soak['starts'] - 1]} kills and stops"

    demo = re.search(r"^bleu +(\S+)", (ROOT / "docs/getting_started.md").read_text(), re.M)
    yield f"one seed, BLEU {float(demo[1]):.1f} after about four minutes"
    bleu = json.loads((RESULTS / "multi30k/bleu.json").read_text())
    published = float(rows("results/multi30k/README.md", "| published")[0][1])
    yield f"BLEU {bleu['score']:.1f} ± {bleu['confidence_var']:.1f} on test_2016_flickr; "
    yield f"Wu et al. published {published:.1f}"
    yield "2.6 million parameters, one seed"
    of_test, _, of_long, *_ = recipe_report()["differences"]
    shorter, longer = (
        f"{found['value']:.1f}{words} [{found['low']:.1f}, {found['high']:.1f}]"
        for found, words in ((of_test, " BLEU more with relative positions"), (of_long, ""))
    )
    yield "four seeds each"
    yield f"{shorter}, on sentences longer than in training {longer}"
    base = rows("performance.md", "| | flax linen")[0][4]  # the second row is of the tiny model
    others = re.findall(r"flax linen takes (\S+) times as long for base", (ROOT / "docs/performance.md").read_text())
    (here,), (linen,) = (rows("performance.md", f"| {row}") for row in ("transformer_jax | ", "flax linen (logits"))
    less = 1 - float(here[3].split()[0]) / float(linen[3].split()[0])
    yield f"{between([*map(float, (base, *others))])} times as fast as with Flax's own layers, "
    yield f"{100 * less:.0f} % less memory"
    beam = [row for row in rows("decoding.md", "| ") if "64 sentences, beam 4" in row[0]]
    yield "64 sentences, beam 4"
    peers = [between([float(row[at]) for row in beam]) for at in (2, 3, 4)]
    yield f"{peers[0]} times as fast as Hugging Face, {peers[1]} times CTranslate2 in float32"
    yield f"{peers[2]} times its int8"


def test_every_number_in_the_readme_is_one_of_an_archive_or_page():
    table = (ROOT / "README.md").read_text().partition("## Results\n\n")[2].partition("\n\n")[0]
    table = re.sub(r"\[([^]]+)\]\(.*?\)", r"\1", table)  # without the addresses of links
    for claim in claims():
        assert claim in table
        table = table.replace(claim, "")
    assert not re.findall(rf"\d+|\b(?:{'|'.join(WORDS[1:])})\b", re.sub(NAMES, "", table))


def test_the_korean_readme_has_the_same_numbers():
    """Row by row; the English one writes some of them as words."""

    def numbers(file, heading):
        table = file.read_text().partition(f"## {heading}\n\n")[2].partition("\n\n")[0]
        table = re.sub(r"\[([^]]+)\]\(.*?\)", r"\1", table)
        table = re.sub(rf"\b({'|'.join(WORDS[1:])})\b", lambda word: str(WORDS.index(word[1])), table)
        table = re.sub(r"(\d+)만", lambda found: f"{int(found[1]) / 100:g}", table)  # 260만: 2.6 million
        return [sorted(re.findall(r"\d+(?:[.,]\d+)*", row)) for row in table.splitlines()]

    assert numbers(ROOT / "docs/ko/README.md", "결과") == numbers(ROOT / "README.md", "Results")


# The variants of experiments/tutorial_mistakes.py, in the order of the tutorial's table.
MISTAKES = [
    "masks ignored", "no padding masks", "no cross mask", "no transpose", "no 1/sqrt(d_k)", "shared projections",
    "no output projection", "cosine's own exponent", "wrong exponents", "no sqrt(d_model)",
    "self-attention to the encoder", "residual from the value", "dropout after the norm", "softmax before the loss",
    "smoothing's remainder", "last token alone", "base",
]  # fmt: skip


@pytest.mark.parametrize("page", ["tutorial/9_after.md", "ko/tutorial/9_after.md"])
def test_what_mistakes_cost_is_in_the_archive(page):
    with open(RESULTS / "mistakes/runs.csv", newline="") as file:
        scores = {(row["variant"], row["metric"]): float(row["score"]) for row in csv.DictReader(file)}
    table = [row for row in rows(page, "| ") if len(row) == 5 and re.fullmatch(NUMBER, row[4])]
    assert len(table) == len(MISTAKES) and {variant for variant, _ in scores} == set(MISTAKES)
    for variant, (*_, bleu, perplexity) in zip(MISTAKES, table, strict=True):
        assert shown(scores[variant, "bleu"], bleu) and shown(scores[variant, "perplexity"], perplexity)


def test_the_picture_of_a_verbs_number_is_drawn_from_its_archive():
    folder = RESULTS / "verb-number"
    assert (folder / "picture.svg").read_text() == load_module(str(folder / "draw.py")).picture()
