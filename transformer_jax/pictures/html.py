"""HTML pages from Jinja templates: self-contained, and every text is escaped unless it is `Markup`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# page.html, which all pages extend, and the templates of this package.
TEMPLATES = Path(__file__).parent / "templates"


def render(template: Path, **values: Any) -> str:
    """A template filled with these values; it may extend and include templates of its folder and of TEMPLATES."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here, because it loads slowly

    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment.get_template(template.name).render(values)
