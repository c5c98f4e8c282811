"""A directed graph as an SVG picture, in layers from top to bottom."""

import collections
import itertools
from html import escape

WIDTH, HEIGHT = 110, 30  # of a box
ROW, MARGIN, LANE = 72, 20, 16  # from row to row, around the picture, for an arrow that passes by


def drawn(graph: dict[str, set[str]]) -> str:
    """Every name in a box above those that it leads to. An arrow across several rows passes between their boxes."""
    rows = _rows(graph)
    height_of = {name: row for row, names in enumerate(rows) for name in names}
    links = []  # from one row to the next
    for name, below in sorted(graph.items()):
        for target in sorted(below):
            path = [name]
            for row in range(height_of[name] + 1, height_of[target]):
                path.append(f"{name} {target} {row}")
                rows[row].append(path[-1])
            path.append(target)
            links.append(path)
    _untangle(rows, links)
    x_of = _columns(rows, links)
    width = max(x + WIDTH / 2 for x in x_of.values()) + MARGIN
    height = ROW * (len(rows) - 1) + HEIGHT + 2 * MARGIN

    def top(row: int) -> int:
        return MARGIN + ROW * row

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>',
        '<g fill="none" stroke="#888" marker-end="url(#tip)">',
    ]
    for path in links:
        row = height_of[path[0]]
        curve = f"M{x_of[path[0]]:.0f} {top(row) + HEIGHT}"
        for before, now in itertools.pairwise(path):
            row += 1
            start, end = top(row - 1) + HEIGHT, top(row)
            middle = (start + end) / 2
            curve += f"C{x_of[before]:.0f} {middle:.0f} {x_of[now]:.0f} {middle:.0f} {x_of[now]:.0f} {end}"
            curve += f"V{end + HEIGHT}" if now != path[-1] else ""
        lines.append(f'<path d="{curve}"/>')
    lines.append('</g><g fill="#e8eaf6" stroke="#3f51b5">')
    boxes = list(height_of.items())
    lines += [
        f'<rect x="{x_of[name] - WIDTH / 2:.0f}" y="{top(row)}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
        for name, row in boxes
    ]
    lines.append('</g><g fill="#111" font-size="14" text-anchor="middle">')
    lines += [
        f'<text x="{x_of[name]:.0f}" y="{top(row) + HEIGHT / 2 + 5:.0f}">{escape(name)}</text>' for name, row in boxes
    ]
    return "\n".join([*lines, "</g></svg>"])


def _rows(graph: dict[str, set[str]]) -> list[list[str]]:
    """The names by the longest way that leads to them."""
    above = collections.defaultdict(set)
    for name, below in graph.items():
        for target in below:
            above[target].add(name)

    def depth(name: str) -> int:
        return max((depth(other) + 1 for other in above[name]), default=0)

    rows = collections.defaultdict(list)
    for name in sorted(graph):
        rows[depth(name)].append(name)
    return [rows[row] for row in sorted(rows)]


def _neighbours(links: list[list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    above, below = collections.defaultdict(list), collections.defaultdict(list)
    for path in links:
        for upper, lower in itertools.pairwise(path):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _untangle(rows: list[list[str]], links: list[list[str]]) -> None:
    """Orders each row by the mean place of what it is linked to, down and up in turn, so that few arrows cross."""
    above, below = _neighbours(links)
    for sweep in range(8):
        down = sweep % 2 == 0
        for row in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            others = rows[row - 1] if down else rows[row + 1]
            place = {name: number / len(others) for number, name in enumerate(others)}
            linked = above if down else below
            here = {name: number / len(rows[row]) for number, name in enumerate(rows[row])}
            mean = {
                name: sum(place[other] for other in linked[name]) / len(linked[name]) if linked[name] else here[name]
                for name in rows[row]
            }
            rows[row].sort(key=mean.__getitem__)


def _columns(rows: list[list[str]], links: list[list[str]]) -> dict[str, float]:
    """The middle of each box and arrow, from left to right: near those it is linked to, without overlap."""
    above, below = _neighbours(links)

    def room(name: str) -> int:
        return LANE if " " in name else WIDTH + LANE

    x_of: dict[str, float] = {}
    for row in rows:
        right = 0.0
        for name in row:
            x_of[name] = right + room(name) / 2
            right += room(name)
    for _ in range(20):
        for row in rows:
            wished = {}
            for name in row:
                linked = above[name] + below[name]
                wished[name] = sum(x_of[other] for other in linked) / len(linked) if linked else x_of[name]
            for before, name in zip([None, *row], row, strict=False):
                least = x_of[before] + (room(before) + room(name)) / 2 if before else wished[name]
                x_of[name] = max(wished[name], least)
    left = min(x - WIDTH / 2 for x in x_of.values())
    return {name: x - left + MARGIN for name, x in x_of.items()}
