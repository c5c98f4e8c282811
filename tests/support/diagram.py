"""A directed graph as an SVG picture, in rows from top to bottom."""

import collections
from html import escape

WIDTH, HEIGHT = 110, 30  # of a box
ROW, COLUMN, MARGIN = 72, 132, 20
START = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>
<g fill="none" stroke="#888" marker-end="url(#tip)">"""


def drawn(graph: dict[str, set[str]]) -> str:
    """Every name in a box above those that it leads to."""
    rows = _rows(graph)
    widest = max(map(len, rows))
    place = {
        name: (MARGIN + WIDTH / 2 + COLUMN * (column + (widest - len(row)) / 2), MARGIN + ROW * number)
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    lines = [START.format(width=2 * MARGIN + WIDTH + COLUMN * (widest - 1), height=2 * MARGIN + ROW * len(rows))]
    for name, below in sorted(graph.items()):
        for target in sorted(below):
            (x, y), (to_x, to_y) = place[name], place[target]
            bend = (y + HEIGHT + to_y) / 2
            lines.append(
                f'<path d="M{x:.0f} {y + HEIGHT}C{x:.0f} {bend:.0f} {to_x:.0f} {bend:.0f} {to_x:.0f} {to_y}"/>'
            )
    lines.append('</g><g fill="#e8eaf6" stroke="#3f51b5">')
    box = f'<rect x="{{:.0f}}" y="{{}}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
    lines += [box.format(x - WIDTH / 2, y) for x, y in place.values()]
    lines.append('</g><g fill="#111" font-size="14" text-anchor="middle">')
    lines += [f'<text x="{x:.0f}" y="{y + HEIGHT / 2 + 5:.0f}">{escape(name)}</text>' for name, (x, y) in place.items()]
    return "\n".join([*lines, "</g></svg>"])


def _rows(graph: dict[str, set[str]]) -> list[list[str]]:
    """The names by the longest way that leads to them; in a row, below what leads to them."""
    above = collections.defaultdict(set)
    for name, below in graph.items():
        for target in below:
            above[target].add(name)

    def depth(name: str) -> int:
        return max((depth(other) + 1 for other in above[name]), default=0)

    rows = collections.defaultdict(list)
    for name in sorted(graph):
        rows[depth(name)].append(name)
    where: dict[str, float] = {}
    for number in sorted(rows):
        rows[number].sort(key=lambda name: sum(where[other] for other in above[name]) / (len(above[name]) or 1))
        where |= {name: (column + 0.5) / len(rows[number]) for column, name in enumerate(rows[number])}
    return [rows[number] for number in sorted(rows)]
