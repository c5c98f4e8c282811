"""The table in LaTeX: its numbers, and text that LaTeX would interpret."""

import shutil
import subprocess

import numpy as np
import pytest

from tests.support.finished_sweeps import (
    VARIANTS,
    changed,
    edit,
    make_sweep,
    record_file,
    seed_folder,
    variant,
)
from tests.support.pages import HOSTILE
from transformer_jax.pictures.pages import render
from transformer_jax.report.content import Content, to_document
from transformer_jax.report.document import BEST
from transformer_jax.report.latex import ESCAPES, KNOWN, escaped, to_latex
from transformer_jax.report.results import load_sweep
from transformer_jax.report.texts import to_markdown
from transformer_jax.report.write import TEMPLATE


def table(content):
    return to_latex(content.sweep, content.tests[0], content.tables[0], [content.state])


def test_a_row_has_scores_and_differences(whole):
    text, findings = table(whole.content), whole.content.tests[0]
    _, bleu, difference, interval, *_ = row_of(text, "A h=1")
    assert bleu == f"{np.mean(scores := findings.bleu['A h=1']):.2f} $\\pm$ {np.std(scores, ddof=1):.2f}"
    found = findings.bleu_differences["A h=1"]
    assert difference == rf"$-${-found.value:.2f}\rlap{{$^{{*}}$}}"  # significant
    assert f"$-${-found.low:.2f}" in interval
    for needed in (
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\caption{",
        r"\label{tab:made-up-test}",
        "over 3 seeds",
        "made-up: test of made-up (40",
    ):
        assert needed in text
    assert "% All 15 runs are finished." in text.splitlines()
    assert "over 3 seeds; training: 1,000 updates." in text and "Learning rates were not tuned" in text


@pytest.mark.parametrize(
    ("of_h1", "of_h4", "best"), [(0.1, -0.1, None), (1.5, -1.5, "A h=1"), (0.1, -1.5, "A h=1"), (-0.8, -1.5, "base")]
)
def test_the_best_mean_is_bold_in_all_formats_where_variants_differ(tmp_path, of_h1, of_h4, best):
    made = make_sweep(tmp_path, (variant("base"), variant("A h=1", of_h1), variant("A h=4", of_h4)), sentences=40)
    text, findings = table(content := Content(load_sweep(made))), content.tests[0]
    assert any(found.significant for found in findings.bleu_differences.values()) == (best is not None)
    rows = {name: row_of(text, name) for name in ("base", "A h=1", "A h=4")}
    bold = {name: sum(cell.startswith(r"\textbf{") for cell in row) for name, row in rows.items()}
    assert bold == dict.fromkeys(rows, 0) | ({} if best is None else {best: 2})
    assert BEST in text
    markdown, page = (
        to_markdown(document := to_document(content)),
        render(TEMPLATE, document=document, title="", best=BEST),
    )
    assert markdown.count("| **") == page.count('scores best"') == (2 if best else 0)
    assert (BEST in markdown) == (BEST in page) == (best is not None)


def test_the_number_of_updates_where_it_differs(sweep):
    edit(seed_folder(sweep, "A h=1", 0) / "result.json", steps=1400)
    edit(record_file(sweep, "A h=1", 0), steps=[1400])
    text = table(Content(load_sweep(sweep)))
    assert r"\multicolumn{1}{c}{updates}" in text and "; training:" not in text
    assert [row_of(text, name)[-1] for name in ("base", "A h=1")] == [r"1,000 \\", r"1,200 \\"]


@pytest.mark.parametrize(
    ("seeds", "scope"),
    [
        ((0,), "not for that of seeds. What is significant may still be a difference between seeds."),
        ((0, 1), "both the choice of seeds and of sentences."),
        ((0, 1), "The same for all seeds, so that the intervals do not account for it: the order of the training"),
    ],
)
def test_a_note_says_what_the_intervals_account_for(tmp_path, seeds, scope):
    text = table(Content(load_sweep(make_sweep(tmp_path, VARIANTS[:2], seeds, sentences=20))))
    assert scope in text.partition(r"\bottomrule")[2]


def row_of(text, name):
    rows = [line.split(" & ") for line in text.splitlines()]
    return next(row for row in rows if row[0].partition(r"\,")[0] == escaped(name))


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        (
            r"50 % of $x_1^2$ & \input{y}~#",
            r"50\,\% of \$x\_1\textasciicircum{}2\$ \& \textbackslash{}input\{y\}\textasciitilde{}\#",
        ),
        ("−0.5 ± 1 [2]\nε < Δ", r"$-$0.5 $\pm$ 1 {[}2{]} $\varepsilon$ $<$ $\Delta$"),
        ("--lr ''", "-{}-lr '{}'"),
        ("Größe \x1b", r"Größe \textbackslash{}x1b"),
    ],
)
def test_text_is_escaped(text, latex):
    assert escaped(text) == latex


def test_hostile_names_and_unfinished_sweeps(tmp_path):
    evil = "50 %_of & \\end{table*} $"
    made = make_sweep(
        tmp_path,
        (variant("base"), variant(evil, slug="e", group=HOSTILE, note=evil), variant("大", slug="k")),
        (0,),
        sentences=20,
    )
    changed(made, name=evil, seeds=[0, 1])
    text = table(Content(load_sweep(made)))
    assert r"50\,\%\_of \& \textbackslash{}end\{table*\} \$" in text
    assert text.count(r"\end{table*}") == 1
    assert "pdflatex needs a package for these letters, lualatex a font: 大" in text
    assert text.splitlines()[1] == "% Of 6 runs: 3 finished, 3 never started."
    assert rf"\textsuperscript{{a}}\,{escaped(evil)}" in text  # the note is below the table


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_compiles_all_that_is_escaped_or_known(tmp_path):
    every = "".join([*ESCAPES, *(KNOWN - {"\n"}), "?`--''"])
    variants = (variant("base"), variant(f"[{every}", slug="e", group=every, note=every), variant("[2]", slug="2"))
    made = make_sweep(tmp_path / "sweep", variants, (0,), sentences=20, name=every)
    text = table(Content(load_sweep(made)))
    start = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "x.tex").write_text(f"{start}\n{text}\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=batchmode", "-halt-on-error", "-draftmode", "x.tex"]
    status = subprocess.run(command, cwd=tmp_path, capture_output=True).returncode
    assert status == 0, (tmp_path / "x.log").read_text(errors="replace")
