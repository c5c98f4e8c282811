"""A page of the tutorial is a script: its ```python blocks run in order and share their names.

    python docs/tutorial/run.py docs/tutorial/1_attention.md            runs a page, and shows what it prints
    python docs/tutorial/run.py --update docs/tutorial/*_*.md           also writes that into the page

A ```text block behind a ```python block holds what the code prints. Pictures are drawn into runs/tutorial/pictures/,
which git ignores; with --update into pictures/ beside the page.
"""

import argparse
import contextlib
import io
import os
import re
from pathlib import Path
from typing import NamedTuple

CELL = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


DRAWN = Path(__file__).resolve().parents[2] / "runs/tutorial"


class Cell(NamedTuple):
    """A block of code, what the page says that it prints, and the line of the page on which the code begins."""

    code: str
    printed: str
    line: int


def cells(text: str) -> list[Cell]:
    """All blocks of a page, in order."""
    return [Cell(m["code"], m["printed"] or "", text[: m.start("code")].count("\n")) for m in CELL.finditer(text)]


def outputs(text: str, name: str) -> list[str]:
    """Runs a page in the current directory; what each of its blocks really prints."""
    names, printed = {"__name__": "__tutorial__"}, []
    for cell in cells(text):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            # The empty lines give tracebacks the page's own line numbers.
            exec(compile("\n" * cell.line + cell.code, name, "exec"), names)
        # Lines end where their text ends: editors strip the blanks behind it.
        printed.append("".join(line.rstrip() + "\n" for line in shown.getvalue().splitlines()))
    return printed


def updated(text: str, printed: list[str]) -> str:
    """The page with these outputs instead of the old ones."""
    remaining = iter(printed)

    def renewed(match: re.Match[str]) -> str:
        shown = next(remaining)
        return f"```python\n{match['code']}```\n" + (f"\n```text\n{shown}```\n" if shown else "")

    return CELL.sub(renewed, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--update", action="store_true", help="write what the blocks print into the pages")
    arguments = parser.parse_args()
    for page in [page.resolve() for page in arguments.pages]:
        folder = page.parent if arguments.update else DRAWN
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        text = page.read_text()
        printed = outputs(text, str(page))
        if arguments.update:
            page.write_text(updated(text, printed))
        else:
            print("\n".join(shown for shown in printed if shown), end="")


if __name__ == "__main__":
    main()
