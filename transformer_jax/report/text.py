"""Text in the formats of a report: templates and their escapes for Markdown and LaTeX, sentences, and the terminal."""

import functools
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.errors import padded, terminal_width, visible
from transformer_jax.report.statistics import CONFIDENCE, POWER, SAMPLES
from transformer_jax.report.table import Column, Table
from transformer_jax.sweeps.definition import SOURCES

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
MOST_NAMES = 3
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
NEGATIVE = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?")
# Characters with a meaning in Markdown; brackets only where they make a link or an image.
MARKS = re.compile(r"[\\|`*_$~]|\](?=[(:\[])")
# Letters that pdflatex knows as symbols.
SYMBOLS = (
    r"α\alpha β\beta γ\gamma δ\delta ε\varepsilon ζ\zeta η\eta θ\theta ι\iota κ\kappa λ\lambda μ\mu ν\nu ξ\xi π\pi "
    r"ρ\rho σ\sigma τ\tau υ\upsilon φ\varphi χ\chi ψ\psi ω\omega Γ\Gamma Δ\Delta Θ\Theta Λ\Lambda Π\Pi Σ\Sigma Φ\Phi "
    r"Ψ\Psi Ω\Omega ±\pm ×\times ·\cdot ≤\leq ≥\geq ≠\neq ≈\approx ∞\infty →\rightarrow ←\leftarrow …\ldots"
)
ESCAPES = {letter: f"${macro}$" for letter, macro in re.findall(r"(\S)(\\\w+)", SYMBOLS)}
ESCAPES |= {letter: rf"\{letter}" for letter in "{}$&#%_"} | {letter: f"${letter}$" for letter in "<>|"}
# Quotes are active with some languages of babel; [ and * at the start of a row would belong to the row before it.
ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$"}
ESCAPES |= {'"': r"{\char34}", "`": r"\`{}", "[": "{[}", "]": "{]}", "*": "{*}"}
# The kinds of columns in a terminal, the most important first.
KINDS = ("scores", "differences", "verdict", "options", "published")


def plain(text: str) -> str:
    return " ".join(text.split())


def markdown(text: str) -> str:
    """The text on one line, without any markup: no tag, end of a cell, emphasis, formula, link or image."""
    return MARKS.sub(r"\\\g<0>", plain(text)).replace("&", "&amp;").replace("<", "&lt;")


def cell(value: Any) -> Any:
    """A cell of a CSV file. A text that a spreadsheet would calculate as a formula begins with a quote."""
    is_formula = isinstance(value, str) and value.startswith(FORMULAS) and not NEGATIVE.fullmatch(value)
    return f"'{value}" if is_formula else value


def latex(text: str) -> str:
    """The text on one line, without anything that LaTeX interprets."""
    text = "".join(ESCAPES.get(letter, letter) for letter in visible(plain(text)))
    return re.sub(r"(?<=([-',]))(?=\1)", "{}", text.replace(r" \%", r"\,\%"))  # -- would be a dash


def some(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """The first names, and how many there are besides."""
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more} more"


@functools.cache
def _environment(escape: Callable[[str], str]) -> "Environment":
    """Templates of text, in which everything is escaped unless it is `Markup`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here, because it loads slowly
    from markupsafe import Markup

    # Jinja's own delimiters have another meaning in LaTeX.
    signs = ("<%", "%>", "<<", ">>", "<#", "#>") if escape is latex else ("{%", "%}", "{{", "}}", "{#", "#}")
    environment = Environment(
        *signs,
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else escape(str(value)),
    )
    environment.globals |= {"level": f"{100 * CONFIDENCE:.0f} %", "power": f"{100 * POWER:.0f} %"}
    environment.globals |= {"sources": list(SOURCES), "samples": SAMPLES}
    environment.filters |= {
        "code": lambda text: Markup("`" + visible(plain(text)).replace("`", " ") + "`"),
        "digits": "{:g}".format,
        "some": some,
        "source": SOURCES.get,
        "thousands": "{:,}".format,
    }
    return environment


def render(template: str, escape: Callable[[str], str], **values: Any) -> str:
    """A template of text, filled."""
    return _environment(escape).get_template(template).render(values)


def words(part: str, *facts: Any) -> list[str]:
    """The sentences of a macro of words.txt."""
    macro = getattr(_environment(plain).get_template("words.txt").module, part)
    paragraphs = [plain(paragraph) for paragraph in re.split(r"\n\s*\n", macro(*facts))]
    return [paragraph for paragraph in paragraphs if paragraph]


def terminal_table(table: Table, width: int) -> str:
    """The table with the columns that fit into the width, and the names of the others."""
    columns = table.without_empty_columns().columns
    names = [visible(text) for text in (table.names, *(row.name for row in table.rows))]
    lines = [padded(name, max(map(terminal_width, names))) for name in names]
    hidden: list[str] = []
    main = next((column.key for column in columns if column.kind == "scores"), "")

    def place(column: Column) -> tuple[bool, int]:
        """The main metric is first, with its differences."""
        kind = KINDS.index(column.kind) if column.kind in KINDS else len(KINDS)
        return column.key not in (main, *(f"{main}_{what}" for what in ("difference", "p", "verdict"))), kind

    for column in sorted(columns, key=place):
        texts = [column.title, *(f"{cell.text} {cell.detail}".strip() for cell in column.cells)]
        texts = [visible(text) for text in texts]
        longest = 2 + max(map(terminal_width, texts))
        if hidden or column.kind not in KINDS or terminal_width(lines[0]) + longest > width:
            hidden.append(texts[0])
        else:
            lines = [line + padded(text, longest, right=True) for line, text in zip(lines, texts, strict=True)]
    if hidden:
        lines += textwrap.wrap(f"Also in index.html: {', '.join(hidden)}.", width)
    return "\n".join(line.rstrip() for line in lines)
