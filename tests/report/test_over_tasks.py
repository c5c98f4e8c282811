"""Several test sets together: their own rows, the aggregates, and which runs count."""

import json
import re

import numpy as np
import pytest

from tests.support.finished_sweeps import VARIANTS, Report, changed, make_sweep, record_file, seed_folder, variant
from transformer_jax import cli
from transformer_jax.report.content import to_document
from transformer_jax.report.document import Table
from transformer_jax.report.over_tasks import blocks, tasks, to_json
from transformer_jax.report.results import load_sweep


def table(report):
    (part,) = [part for part in to_document(report.content).parts if part.title == "All test sets"]
    (found,) = [block for block in part.blocks if isinstance(block, Table)]
    return found


def test_every_test_set_has_its_row_and_the_aggregates_theirs(whole):
    found = table(whole)
    assert [row.name for row in found.rows] == ["test", "test_long", "interquartile mean", "probability of improvement"]
    assert [column.title for column in found.columns] == [variant["name"] for variant in VARIANTS]
    bleu = [[run.measured[split].bleu for run in whole.content.sweep.runs[:3]] for split in ("test", "test_long")]
    cells = [row.cells[0] for row in found.rows]
    np.testing.assert_allclose([cell.value for cell in cells[:2]], np.mean(bleu, axis=1))
    assert cells[2].value == np.mean(np.sort(np.ravel(bleu))[1:-1]) and cells[2].detail.startswith("[")
    assert cells[3].text == ""  # the baseline's own
    worse, other = found.rows[3].cells[1:3]
    assert worse.value == 0 and worse.detail == ""  # as in all resamples
    assert 0 < other.value < 1 and other.detail.startswith("[")
    assert "or where all resamples give the same value" in whole.markdown
    assert whole.json["all_test_sets"]["probability_of_improvement"]["A h=1"] == 0
    assert "performance profiles" in whole.page


def test_profiles_are_those_of_the_baseline_and_the_most_different_variants(tmp_path):
    variants = [variant("base"), *(variant(f"v{n}", n * 5 % 9 / 2 - 2, slug=f"v{n}") for n in range(9))]
    page = Report(make_sweep(tmp_path, variants, (0,), tests=("test", "other"), sentences=12)).page
    title, figure = page.partition("performance profiles: base, the 4 best and the 3 worst variants by inter")[1:]
    shown = re.findall(r'data-tip="(\w+):', figure.partition("</svg>")[0])
    by_quality = sorted((n * 5 % 9 / 2 - 2, f"v{n}") for n in range(9))
    assert title and {*shown} == {"base", *(name for _, name in [*by_quality[:3], *by_quality[-4:]])}


def test_one_sentence_that_is_right_makes_no_sweep_one_of_exact_matches(tmp_path):
    """Groups of examples do, or a published score."""
    made = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0, 1), tests=("test", "other"), sentences=12)
    paths = [
        record_file(made, v["name"], seed, split)
        for v in VARIANTS[:2]
        for seed in (0, 1)
        for split in ("test", "other")
    ]
    for path in paths:
        record = json.loads(path.read_text())
        record["exact_match"], record["sentences"]["exact_match"] = {}, [1] + 11 * [0]
        path.write_text(json.dumps(record))
    assert tasks([load_sweep(made)]).score == "BLEU"
    for path in paths:
        record = json.loads(path.read_text())
        record["exact_match"] = {"groups": {"kind": {"all": {"right": 1, "total": 12}}}}
        path.write_text(json.dumps(record))
    found = tasks([load_sweep(made)])
    assert found.score == "exact match" and found.scores["base"][0][0, 0] == pytest.approx(100 / 12)


def test_one_test_set_has_no_aggregate(sweep):
    report = Report(sweep)
    assert report.json["all_test_sets"] is None and "All test sets" not in report.page


def test_only_runs_with_every_test_set_count(tmp_path):
    made = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0, 1), tests=("test", "other"), sentences=12)
    path = record_file(made, "A h=1", 1, "other")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "test_set_sha256": "0"}))
    (seed_folder(made, "base", 0) / "result.json").unlink()
    found = tasks([load_sweep(made)])
    assert {name: [block.shape for block in given] for name, given in found.scores.items()} == {
        "base": [(1, 2)],
        "A h=1": [(1, 2)],
    }
    assert table(Report(made)).rows[2].cells[0].detail == ""  # of one run there is no interval
    assert tasks([load_sweep(changed(made, tests=["other"]))]) is None


def test_several_sweeps_are_blocks_of_the_variants_that_all_have(tmp_path, capsys):
    made = [
        make_sweep(tmp_path / name, variants, seeds=(0, 1), sentences=12)
        for name, variants in (("one", VARIANTS[:3]), ("two", VARIANTS[:2]))
    ]
    found = tasks([load_sweep(folder) for folder in made])
    assert list(found.names) == ["one: test", "two: test"]
    assert {name: [block.shape for block in given] for name, given in found.scores.items()} == {
        name: [(2, 1), (2, 1)] for name in ("base", "A h=1")
    }
    assert cli.main(["report", str(made[0]), "--with", str(made[1])]) == 0
    assert json.loads((made[0] / "report" / "report.json").read_text())["all_test_sets"]["test_sets"] == found.names
    changed(made[1], variants=[{"name": "alone", "slug": "alone"}], baseline="")
    assert cli.main(["report", str(made[0]), "--with", str(made[1])]) == 2
    assert "no variant has results in all of these sweeps" in capsys.readouterr().err


def test_the_interquartile_mean_needs_as_many_runs_of_each_sweep(tmp_path):
    """Otherwise the sweep with more of them would count more."""
    made = [make_sweep(tmp_path / name, VARIANTS[:2], seeds=(0, 1, 2), sentences=12) for name in ("one", "two")]
    (seed_folder(made[1], "base", 2) / "result.json").unlink()
    found = tasks([load_sweep(folder) for folder in made])
    assert found.interquartile_mean("base").text == "" and found.interquartile_mean("A h=1").text
    assert list(to_json(found)["interquartile_mean"]) == ["A h=1"]
    (about, *_) = blocks(found)
    assert "left out where the sweeps have different numbers of runs" in about.text


def test_a_variant_is_compared_with_its_own_baseline(tmp_path):
    variants = [
        variant("base", 3.0),
        variant("small", -3.0, slug="s"),
        variant("idea", 0.0, slug="i", baseline="small"),
    ]
    found = tasks([load_sweep(make_sweep(tmp_path, variants, (0, 1), tests=("test", "other"), sentences=12))])
    assert to_json(found)["probability_of_improvement"] == {"small": 0.0, "idea": 1.0}
