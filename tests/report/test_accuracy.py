"""Exact match in a report: of variants, groups and lengths; and of records that lack it or are damaged."""

import json

import numpy as np
import pytest

from tests.support.finished_sweeps import Report, edit, record_file, seed_folder, write
from transformer_jax.report.results import load_sweep

SHARES = {"base": (10, 12), "A h=1": (2, 3), "A h=4": (20, 20)}  # right of 20, by seed
SHORT = 8  # tokens of the longest training target


def add_matches(sweep):
    """Gives each record as many matches, those of the first examples; even ones are one group, odd ones another."""
    for name, by_seed in SHARES.items():
        for seed, count in enumerate(by_seed):
            path = record_file(sweep, name, seed)
            record = json.loads(path.read_text())
            right = [int(i < count) for i in range(20)]
            kinds = {kind: {"right": sum(right[first::2]), "total": 10} for first, kind in enumerate(("even", "odd"))}
            record["exact_match"] = {"right": count, "total": 20, "groups": {"kind": kinds}}
            record["sentences"]["exact_match"] = right
            write(path, record)
            path = seed_folder(sweep, name, seed) / "result.json"
            write(path, {**json.loads(path.read_text()), "longest_target": SHORT + 1})


@pytest.fixture
def report(sweep):
    add_matches(sweep)
    return Report(sweep)


def tables(report):
    (accuracy,) = report.content.accuracies
    return accuracy.tables


def texts(table):
    return {row.name: [f"{cell.text} {cell.detail}".strip() for _, cell in cells] for row, cells in table.lines}


def test_variants_with_differences_from_the_baseline(report):
    columns = {column.key: column.cells for column in report.content.tests[0].table.columns}
    assert [cell.text for cell in columns["exact_match"]] == ["55.00", "12.50", "100.00"]
    assert [cell.text for cell in columns["exact_match_difference"]] == ["", "−42.5", "+45.0"]
    assert [line["exact_match_difference_value"] for line in report.lines] == ["", "-42.5", "45.0"]
    assert report.content.tests[0].words[0].startswith("Exact match (points): none of the 2 differences")
    assert "points of exact match" in report.words or "In Exact match" in report.words
    (exact,) = report.json["exact_match"]
    assert exact["right"] == {name: list(counts) for name, counts in SHARES.items()} and exact["total"] == 20
    assert exact["differences"]["A h=1"]["low"] < -42.5 < exact["differences"]["A h=1"]["high"]


def test_groups_by_variants(report):
    table = tables(report)[0]
    assert (table.names, [column.title for column in table.columns]) == ("kind", ["examples", *SHARES])
    assert texts(table)["odd"] == ["10", "55.00 ± 7.07", "10.00 ± 0.00", "100.00 ± 0.00"]


def test_groups_may_depend_on_what_a_variant_was_trained_on(report, sweep):
    for seed in (0, 1):
        path = record_file(sweep, "A h=1", seed)
        record = json.loads(path.read_text())
        record["exact_match"]["groups"]["kind"] = {"even": {"right": 1, "total": 4}, "unseen": {"right": 0, "total": 2}}
        write(path, record)
    found = texts(tables(Report(sweep))[0])
    assert found["even"][0] == "4 or 10" and found["even"][2] == "25.00 ± 0.00"
    assert found["unseen"] == ["2", "", "0.000 ± 0.000", ""]


def test_lengths_by_variants_with_the_training_limit_marked(report, sweep):
    table = tables(report)[1]
    lengths = load_sweep(sweep).runs[0].measured["test"].tokens_N - 1
    longer = " (longer than in training)"
    assert [row.name for row in table.rows] == [f"{n:.0f}{longer * int(n > SHORT)}" for n in np.unique(lengths)]
    assert sum(cell.value for cell in table.columns[0].cells) == 20
    counts, rates = (table.columns[at].cells for at in (0, 1))
    of_base = sum(count.value * rate.value for count, rate in zip(counts, rates, strict=True)) / 20
    assert of_base == pytest.approx(55)


def test_clusters_of_examples_are_resampled_whole_by_every_metric(sweep):
    """The categories of COGS: many sentences test one word or structure."""
    add_matches(sweep)
    apart = Report(sweep)
    for name in SHARES:
        for seed in (0, 1):
            path = record_file(sweep, name, seed)
            sentences = json.loads(path.read_text())["sentences"]
            edit(path, sentences={**sentences, "clusters": [i // 5 for i in range(20)]})
    report = Report(sweep)
    assert report.json["tests"][0]["clusters"] == 4 and apart.json["tests"][0]["clusters"] == 20
    assert "20 sentences in 4 clusters" in report.words and "clusters of sentences" in report.words
    for metric in ("bleu", "perplexity", "exact_match"):
        scores = [each.content.tests[0].findings.by_metric[metric] for each in (apart, report)]
        errors = [found.differences["A h=1"].error for found in scores]
        assert errors[0] != errors[1]
