"""The table of a test set as LaTeX with booktabs: a variant per row, with its scores and differences."""

import re
from collections.abc import Sequence

from transformer_jax.errors import visible
from transformer_jax.report import tuning
from transformer_jax.report.document import BEST, Cell, Table
from transformer_jax.report.findings import TestFindings
from transformer_jax.report.method import variance_of_seeds
from transformer_jax.report.metrics import METRICS, percent
from transformer_jax.report.results import SweepResult
from transformer_jax.report.statistics import CONFIDENCE
from transformer_jax.report.summary import ONE_SEED, baseline_of, intervals

# Letters that pdflatex knows as symbols.
SYMBOLS = (
    r"α\alpha β\beta γ\gamma δ\delta ε\varepsilon ζ\zeta η\eta θ\theta ι\iota κ\kappa λ\lambda μ\mu ν\nu ξ\xi π\pi "
    r"ρ\rho σ\sigma τ\tau υ\upsilon φ\varphi χ\chi ψ\psi ω\omega Γ\Gamma Δ\Delta Θ\Theta Λ\Lambda Π\Pi Σ\Sigma Φ\Phi "
    r"Ψ\Psi Ω\Omega ±\pm ×\times ·\cdot ≤\leq ≥\geq ≠\neq ≈\approx ∞\infty →\rightarrow ←\leftarrow …\ldots"
)
ESCAPES = {letter: f"${macro}$" for letter, macro in re.findall(r"(\S)(\\\w+)", SYMBOLS)}
ESCAPES |= {letter: rf"\{letter}" for letter in "{}$&#%_"} | {letter: f"${letter}$" for letter in "<>|"}
# Quotes are active with some languages of babel, and a bracket at the start of a row would belong to the row before it.
ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$"}
ESCAPES |= {'"': r"{\char34}", "`": r"\`{}", "[": "{[}", "]": "{]}"}
# Other letters that pdflatex knows in all of its font encodings.
KNOWN = {*map(chr, range(32, 127)), *"ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿ–—‘’“”\n"}


def escaped(text: str) -> str:
    """The text on one line, without anything that LaTeX interprets."""
    text = "".join(ESCAPES.get(letter, letter) for letter in visible(" ".join(text.split())))
    return re.sub(r"(?<=([-',]))(?=\1)", "{}", text.replace(r" \%", r"\,\%"))  # -- would be a dash


def to_latex(sweep: SweepResult, findings: TestFindings, table: Table, warnings: Sequence[str] = ()) -> str:
    """A float for \\input with its caption and label; `warnings` become comments."""
    keys = _keys(sweep, findings)
    shown = {index: column for index, column in enumerate(table.columns) if column.key in keys}
    # A value and its interval are two columns, so that values are aligned.
    split = {index for index, column in shown.items() if column.kind == "differences"}
    form = "l" + "".join(r"r@{\hspace{0.7em}}l" if index in split else "r" for index in shown)
    titles = [rf"\multicolumn{{{1 + (index in split)}}}{{c}}{{{escaped(shown[index].title)}}}" for index in shown]
    rows: list[str] = []
    notes: list[str] = []
    group = ""
    for row in table.rows:
        if row.group != group:
            group = row.group
            rows.append(r"\addlinespace")
            width = 1 + len(shown) + len(split)
            rows += [rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escaped(group)}}}}} \\"] if group else []
        name = escaped(row.name)
        if row.note:
            mark = chr(ord("a") + len(notes) % 26) * (1 + len(notes) // 26)
            notes.append(rf"\textsuperscript{{{mark}}}\,{escaped(row.note)}")
            name += rf"\,\textsuperscript{{{mark}}}"
        cells = [_cell(row.cells[index], index in split) for index in shown]
        rows.append(" & ".join([name, *cells]) + r" \\")
    about = r"\par ".join(["; ".join(notes)] * bool(notes) + _scope(sweep, findings))
    lines = [
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{_caption(sweep, findings)}}}",
        rf"\label{{tab:{_label(sweep.name)}-{_label(findings.split)}}}",
        rf"\begin{{tabular}}{{{form}}}",
        r"\toprule",
        rf"{' & '.join(['', *titles])} \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\par\smallskip\parbox{{\textwidth}}{{\scriptsize {about}}}"] if about else []),
        r"\end{table*}",
    ]
    unknown = "".join(sorted({*"".join(lines)} - KNOWN))
    comments = [r"Needs \usepackage{booktabs}; as wide as both columns of a page.", *warnings]
    comments += [f"pdflatex needs a package for these letters, lualatex a font: {unknown}"] if unknown else []
    return "\n".join([*(f"% {visible(' '.join(line.split()))}" for line in comments), *lines]) + "\n"


def _keys(sweep: SweepResult, findings: TestFindings) -> set[str]:
    """The columns of the report's table that a paper has room for."""
    perplexity = "perplexity" if findings.unit == "token" else "word_perplexity"
    counts = {"seeds"} if len({len(variant.finished) for variant in sweep.variants}) > 1 else set()
    steps = {"steps"} if len({run.step for run in sweep.runs if run.finished}) > 1 else set()
    return {"bleu", perplexity, "parameters", *(f"{metric.key}_difference" for metric in METRICS), *counts, *steps}


def _cell(cell: Cell, is_split: bool) -> str:
    """With an asterisk if it is a significant difference; its interval in the next column."""
    text = escaped(cell.text if is_split else f"{cell.text} {cell.detail}")
    if cell.mark == "best":
        text = rf"\textbf{{{text}}}"
    elif cell.mark:
        text += r"\rlap{$^{*}$}"
    return text + (rf" & {{\scriptsize {escaped(cell.detail)}}}" if is_split else "")


def _caption(sweep: SweepResult, findings: TestFindings) -> str:
    """What the numbers are, as a paper has to say it."""
    seeds = {len(variant.finished) for variant in sweep.variants}
    over = f"over {max(seeds)} seeds" if len(seeds) == 1 else "over seeds"
    spread = rf"mean $\pm$ standard deviation {over}" if max(seeds) > 1 else "one seed"
    text = escaped(f"{sweep.name}: {findings.title} ({findings.sentences:,} sentences).")
    updates = {run.step for run in sweep.runs if run.finished}
    trained = f"; training: {updates.pop():,} updates" if len(updates) == 1 else ""
    text += rf" Scores: {spread}{trained}. "
    if findings.bleu_differences:
        baseline = escaped(baseline_of(sweep, findings.bleu_differences))
        text += (
            rf"$\Delta$: difference from {baseline}, of perplexity (per {findings.unit}) in percent, with "
            rf"{escaped(percent(CONFIDENCE))} confidence intervals; $^{{*}}$ significant. {BEST} "
        )
    return text + rf"BLEU: {{\scriptsize {escaped(findings.signature)}}}."


def _scope(sweep: SweepResult, findings: TestFindings) -> list[str]:
    """What the intervals account for, and what they cannot; and how learning rates were chosen."""
    if not findings.bleu_differences:
        return []
    is_one_seed = {found.seed_spread for found in findings.bleu_differences.values()} == {"none"}
    seeds = ONE_SEED if is_one_seed else variance_of_seeds(sweep)
    return [escaped(f"{intervals(findings.bleu_differences)} {seeds} {tuning.remark(sweep)}")]


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
