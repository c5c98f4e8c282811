"""The main table: the form of the paper's Table 3, and its numbers."""

import dataclasses
import json
import re

from tests.support.finished_sweeps import Report, record_file, write
from transformer_jax.report.table import option_columns


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
