"""Makes a notebook of every page of the tutorial, into notebooks/ beside the pages: python docs/tutorial/notebook.py

A notebook has its page's text and code. Diagrams are inside it, plots are shown by a cell behind the one that draws
them, and the solutions stand at the end under a heading that is folded.
"""

import base64
import hashlib
import importlib.util
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = (HERE, ROOT / "docs/ko/tutorial")
SOLUTIONS = re.compile(r"<details markdown=\"1\"><summary>(Solutions|풀이)</summary>\n(.*?)</details>\n\n", re.DOTALL)
PLOT = re.compile(r"^!\[[^]]*\]\((?:[./\w]+/)?(pictures/\w+\.png)\)\n", re.MULTILINE)
FRAME = re.compile(r"^<iframe src=\"(?:[./\w]+/)?(pictures/\w+\.html)\".*</iframe>\n", re.MULTILINE)
SHOWN = {
    ".png": 'from IPython.display import Image\n\nImage("{name}")\n',
    ".html": "from html import escape\nfrom pathlib import Path\n\nfrom IPython.display import HTML\n\n"
    'page = escape(Path("{name}").read_text())\n'
    'HTML(f\'<iframe srcdoc="{{page}}" width="100%" height="560"></iframe>\')\n',
}
# What stands above the cell that installs, and what is added where that is a checkout.
INSTALLING = {
    "en": ("Install the library first.", "`{source}` is the checkout in which this notebook lies. Elsewhere, as on a "
        "hosted notebook, put a wheel beside it (`pip wheel --no-deps .` in a checkout makes one) and write its name."),
    "ko": ("먼저 라이브러리를 설치합니다.", "`{source}`는 이 노트북이 들어 있는 체크아웃입니다. Colab처럼 "
        "원격에서 실행하는 노트북에서는 노트북 옆에 휠(wheel) 파일을 두고"
        "(체크아웃에서 `pip wheel --no-deps .`로 만듭니다) 그 이름을 대신 쓰십시오."),
}  # fmt: skip


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tutorial_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN = script("run")


def source_of_package(folder: Path, urls: dict[str, str]) -> str:
    """What pip installs: the public repository where there is one, otherwise the checkout around the notebook."""
    if "Repository" in urls:
        return f"transformer_jax[train,report] @ git+{urls['Repository']}"
    return os.path.relpath(ROOT, folder) + "[train,report]"


def urls() -> dict[str, str]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})


def notebook(page: Path) -> str:
    """The notebook of a page, as JSON."""
    folder, text = page.parent / "notebooks", page.read_text()
    language = "ko" if "ko" in page.parts else "en"
    text = re.sub(r"^<!-- english: .*-->\n+", "", text, flags=re.MULTILINE)
    text, solutions = _without_solutions(text)
    title, _, text = text.partition("\n")
    source, (always, in_checkout) = source_of_package(folder, urls()), INSTALLING[language]
    about_source = "" if "Repository" in urls() else " " + in_checkout.format(source=source)
    cells = [_markdown(f"{title}\n\n{always}{about_source}", page)]
    cells += [_code(f'%pip install --quiet "{source}"\n', "install"), *_cells(text, page)]
    if solutions:
        heading, solved = solutions
        cells += [_markdown(f"## {heading}", page, {"jp-MarkdownHeadingCollapsed": True}), *_cells(solved, page)]
    for number, cell in enumerate(cells):
        cell["id"] = hashlib.sha256(f"{number} {cell['source']}".encode()).hexdigest()[:8]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps(
        {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}, ensure_ascii=False, indent=1
    )


def _without_solutions(text: str) -> tuple[str, tuple[str, str] | None]:
    found = SOLUTIONS.search(text)
    return (text.replace(found[0], ""), (found[1], found[2])) if found else (text, None)


def _cells(text: str, page: Path) -> list[dict[str, Any]]:
    """The cells of a part of a page: its code without what it prints, its words, and what shows its pictures."""
    cells, end = [], 0
    places = [*RUN.CELL.finditer(text), *PLOT.finditer(text), *FRAME.finditer(text)]
    for place in sorted(places, key=lambda place: place.start()):
        cells.append(_markdown(text[end : place.start()], page))
        end = place.end()
        if "code" in place.re.groupindex:
            cells.append(_code(place["code"]))
        else:
            cells.append(_code(SHOWN[Path(place[1]).suffix].format(name=place[1]), "picture"))
    cells.append(_markdown(text[end:], page))
    return [cell for cell in cells if cell["source"]]


def _code(code: str, *tags: str) -> dict[str, Any]:
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": code.rstrip("\n")}
    return {**cell, "metadata": {"tags": [*tags]}} if tags else cell


def _markdown(text: str, page: Path, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    text = re.sub(r"^```math\n(.*?)^```$", r"$$\n\1$$", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$`(.*?)`\$", r"$\1$", text).replace(' markdown="1"', "")
    diagrams = re.findall(r"!\[[^]]*\]\((pictures/\w+\.svg)\)", text)
    for name in diagrams:
        text = text.replace(f"({name})", f"[{Path(name).stem}]")
    text = re.sub(r"(?<=\]\()([^)#:]+)(?:#[\w-]*)?(?=\))", lambda link: _address(page, link[1]), text)
    for name in diagrams:
        image = base64.b64encode((page.parent / name).read_bytes()).decode()
        text = f"{text.rstrip()}\n\n[{Path(name).stem}]: data:image/svg+xml;base64,{image}"
    return {"cell_type": "markdown", "metadata": metadata or {}, "source": text.strip("\n")}


def _address(page: Path, link: str) -> str:
    """A link of a page as it is from its notebook; a page of the tutorial is its notebook."""
    target = (page.parent / link).resolve()
    if target.parent in FOLDERS and target.name[0].isdigit():
        target = target.parent / "notebooks" / f"{target.stem}.ipynb"
    return os.path.relpath(target, page.parent / "notebooks")


def main() -> None:
    for folder in FOLDERS:
        (folder / "notebooks").mkdir(exist_ok=True)
        for page in sorted(folder.glob("[0-9]_*.md")):
            (folder / "notebooks" / f"{page.stem}.ipynb").write_text(notebook(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
