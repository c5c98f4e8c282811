"""A hook of mkdocs: the landing page is the README, options.md gets its tables, the reports of docs/results are
published as they are, and a search finds answers (howto.md) before the reference.

README.md is written for the root of the repository: its links into docs/ lose that prefix on the site. The interactive
page of a report, index.html beside README.md, would be the site's page of that folder: it is published as report.html.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from transformer_jax.commands.inspect import options_table

ROOT = Path(__file__).parents[2]


def on_config(config: Any, **_: Any) -> Any:
    """The site's public address, if there is one, stands in pyproject.toml."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    config.site_url = urls.get("Documentation")
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    from mkdocs.structure.files import File, InclusionLevel

    for page in sorted(Path(config.docs_dir).glob("results/*/index.html")):
        name = page.relative_to(config.docs_dir).as_posix()
        report = File.generated(config, name, abs_src_path=str(page), inclusion=InclusionLevel.INCLUDED)
        report.dest_uri = name.replace("index.html", "report.html")
        if (excluded := files.get_file_from_path(name)) is not None:
            files.remove(excluded)
        files.append(report)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    boost = 2.0 if page.file.src_uri == "howto.md" else 0.5 if page.file.src_uri.startswith("api/") else 1.0
    page.meta["search"] = {"boost": boost}
    if page.file.src_uri == "index.md":
        return markdown + landing((ROOT / "README.md").read_text())
    return markdown + options_table() if page.file.src_uri == "options.md" else markdown


def landing(readme: str) -> str:
    """The README with links as they are in docs/."""
    return re.sub(r'(\]\(|src="|srcset="|href=")docs/', r"\1", readme)
