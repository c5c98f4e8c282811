"""A report as a tree of titled parts and blocks; each format has its renderer."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from transformer_jax.report.samples import SampleSentence

# What bold means, in every format.
BEST = "Bold: the best mean of its column, where any variant differs significantly from the baseline."


class Cell(NamedTuple):
    text: str = ""
    value: float | str | None = None  # what rows are sorted by
    detail: str = ""  # an interval, for example
    mark: str = ""  # "better" or "worse": a significant difference; "best": the mean to point out


def number_cell(value: float | None, text: Callable[[float], str]) -> Cell:
    return Cell() if value is None else Cell(text(value), value)


class Column(NamedTuple):
    title: str
    key: str = ""
    kind: str = ""  # options, scores, differences, published or cost: these are shown and hidden together
    help: str = ""


class Row(NamedTuple):
    name: str
    cells: Sequence[Cell]
    note: str = ""
    group: str = ""
    is_baseline: bool = False


# A column with its cells, one per row.
Filled = tuple[Column, Sequence[Cell]]


def rows_of(names: Sequence[str], columns: Sequence[Filled]) -> list[Row]:
    return [Row(name, cells) for name, *cells in zip(names, *(cells for _, cells in columns), strict=True)]


class Table(NamedTuple):
    columns: Sequence[Column]  # without that of the rows' names
    rows: Sequence[Row]
    names: str = "variant"  # the title of the first column
    title: str = ""
    filtered: bool = False  # whether the page has controls for its rows and columns

    @property
    def marks(self) -> set[str]:
        """Those of any cell."""
        return {cell.mark for row in self.rows for cell in row.cells if cell.mark}

    @property
    def costs(self) -> str:
        """What the columns of costs measure."""
        return "; ".join(f"{column.title}: {column.help}" for column in self.columns if column.kind == "cost")


class Key(NamedTuple):
    """An entry of a figure's legend."""

    name: str
    colour: str
    dashes: str = ""  # lengths of lines and gaps, as in SVG


class Figure(NamedTuple):
    title: str
    image: Markup
    legend: Sequence[Key] = ()


class Text(NamedTuple):
    text: str


class Heading(NamedTuple):
    text: str


class Code(NamedTuple):
    text: str


class Bullets(NamedTuple):
    items: Sequence[str]


class Facts(NamedTuple):
    items: Mapping[str, str]


class Figures(NamedTuple):
    """Figures side by side. Only the page has them."""

    figures: Sequence[Figure]
    note: str = ""
    large: bool = False


class Translations(NamedTuple):
    sentences: Sequence[SampleSentence]


class Folded(NamedTuple):
    """Details that a click opens. Only the page has them."""

    summary: str
    blocks: "Sequence[Block]"


Block = Text | Heading | Bullets | Facts | Code | Table | Figures | Translations | Folded


class Part(NamedTuple):
    title: str
    blocks: Sequence[Block]


class Document(NamedTuple):
    title: str
    question: str
    state: Sequence[Block]
    is_complete: bool
    parts: Sequence[Part]
    findings: Sequence[Block] = ()  # what it opens with
