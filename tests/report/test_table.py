"""The main table: the form of the paper's Table 3, and its numbers."""

import dataclasses
import json
import re

from tests.support.finished_sweeps import BASE, LAYERS, VARIANTS, Report, make_sweep, record_file, variant, write
from transformer_jax.report.results import load_sweep
from transformer_jax.report.table import option_columns, score_cells


def test_table_has_the_form_of_the_paper(whole):
    """Blank means the base value; one N for both stacks; d_k and d_v where they follow from h."""
    sweep = whole.content.sweep
    columns = option_columns(sweep)
    assert [column.title for column in columns] == ["N", "d_ff", "h", "d_k", "d_v"]
    texts = [[column.cells[number].text for column in columns] for number in range(len(sweep.variants))]
    assert dict(zip([variant.name for variant in sweep.variants], texts, strict=True)) == {
        "base": ["3", "256", "8", "8", "8"],
        "A h=1": ["", "", "1", "64", "64"],
        "A h=4": ["", "", "4", "16", "16"],
        "C N=2": ["2", "", "", "", ""],
        "C d_ff=512": ["", "512", "", "", ""],
    }
    shown = {column.key: column for column in whole.content.tests[0].table.columns}
    assert shown["bleu_p"].title == "p (corrected)" and shown["model.num_heads"].cells[1].text == "1"
    assert all(len(column.cells) == len(sweep.variants) for column in shown.values())


def test_the_scores_of_a_column_have_the_same_number_of_decimals():
    assert [cell.text for cell in score_cells([[9.9], [], [10.25, 10.75]])] == ["9.90", "", "10.50"]
    assert [cell.detail for cell in score_cells([[0.5, 1.5], [9.0, 9.5]])] == ["± 0.707", "± 0.354"]


def test_large_scores_are_in_full_where_the_decimals_are_given():
    """Perplexities explode, other scores are large."""
    rows = [[1234567.0, 1234570.0], [-1200007.0, -1200010.0]]
    assert [cell.text for cell in score_cells(rows, 0)] == ["1234568", "−1200008"]
    assert [cell.text for cell in score_cells(rows)] == ["1.2e+06", "−1.2e+06"]


def test_stacks_that_differ_have_no_number_of_layers(tmp_path):
    made = [variant("base"), variant("C N=2", changes=dict.fromkeys(LAYERS, 2)), variant("3+2", changes={LAYERS[1]: 2})]
    columns = Report(make_sweep(tmp_path, made, seeds=(0,), sentences=10)).content.tests[0].table.columns
    texts = {column.title: [cell.text for cell in column.cells] for column in columns if column.kind == "options"}
    assert texts["N"] == ["3", "2", ""] and texts["N dec"][2] == "2"


def test_a_control_has_the_options_of_the_variant_that_it_repeats(tmp_path):
    made = (*VARIANTS[:2], variant("again", same_as="A h=1", baseline="A h=1"))
    table = Report(make_sweep(tmp_path, made, seeds=(0,), sentences=10)).content.tests[0].table
    (heads,) = [column for column in table.columns if column.key == "model.num_heads"]
    assert [cell.text for cell in heads.cells] == ["8", "1", "1"]


def test_an_empty_cell_has_the_value_of_the_baseline(tmp_path):
    """Which may differ from the base config's."""
    made = [variant(name, changes={"model.positions": name}) for name in ("rotary", "learned")]
    sweep = make_sweep(tmp_path, [*made, variant("sinusoidal")], seeds=(0,), sentences=10, baseline="rotary")
    (column,) = [each for each in Report(sweep).content.tests[0].table.columns if each.key == "model.positions"]
    assert [cell.text for cell in column.cells] == ["rotary", "learned", "sinusoidal"]


def test_options_whose_names_end_alike_have_columns_of_different_names(whole):
    sweep = whole.content.sweep
    both = {"model.positions": "rotary", "model.parts.positions": "positions.py:Mine"}
    variants = [dataclasses.replace(variant, changes=both) for variant in sweep.variants]
    titles = [column.title for column in option_columns(dataclasses.replace(sweep, variants=variants))]
    assert {"model.positions", "model.parts.positions"} <= {*titles}


def test_run_that_diverged_is_shown_in_few_digits(sweep, recwarn):
    for seed in (0, 1):
        path = record_file(sweep, "A h=1", seed)
        record = json.loads(path.read_text())
        record["sentences"]["log_probabilities"] = [-1e6] * 20
        record["perplexity"]["per_token"] = 1e304 + seed * 1e303
        write(path, record)
    report = Report(sweep)
    assert re.search(r"\| 1\.\de\+304 \|", report.markdown)  # its deviation overflows
    assert max(map(len, re.findall(r"\d+", report.markdown))) < 20
    assert [str(warning.message) for warning in recwarn] == []


def test_an_option_that_is_a_mapping_is_one_option(tmp_path):
    made = [variant("base"), variant("b1", changes={"optimizer.kwargs": {"b1": 0.8}})]
    base = {**BASE, "optimizer": {"kwargs": {"b1": 0.9}}}
    (column,) = option_columns(load_sweep(make_sweep(tmp_path / "sweep", made, seeds=(0,), base=base)))
    assert [cell.text for cell in column.cells] == ["{'b1': 0.9}", "{'b1': 0.8}"]


def test_a_negative_score_has_the_minus_of_a_difference():
    (cell,) = score_cells([[-2.0, -1.0]], 2)
    assert (cell.text, cell.detail) == ("−1.50", "± 0.71")
