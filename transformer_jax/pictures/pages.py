"""HTML pages from Jinja templates: of one run, and of one translation's attention; self-contained."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.pictures.plots import encoded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# page.html, which all pages extend, and the templates of this package.
TEMPLATES = Path(__file__).parent / "templates"
# Half of the run page (CSS has 96 pixels to the inch), and how far an attention map can shrink before labels overlap.
COLUMN_INCHES, SMALLEST_SCALE = 4.8, 0.6


def render(template: Path, **values: Any) -> str:
    """A template of a report or of TEMPLATES, filled; every text is escaped unless it is `Markup`."""
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


class View(NamedTuple):
    """One of the three attentions: its weights NHTS (layer, head, query, key) and the pieces on either side."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights_NHTS: np.ndarray


class Picture(NamedTuple):
    figure: Figure
    caption: str


class Sample(NamedTuple):
    """A sentence, its translation, its reference, and whether that has the same words."""

    source: str
    translation: str
    reference: str
    is_right: int


def attention_page(title: str, views: Sequence[View]) -> str:
    """Every layer and head of one translation, to be explored by hovering."""
    data = []
    for name, queries, keys, weights_NHTS in views:
        weights = np.rint(np.asarray(weights_NHTS) * 100).astype(int).tolist()  # a finer shade is invisible
        data.append({"name": name, "queries": [*queries], "keys": [*keys], "weights": weights})
    return render(TEMPLATES / "attention.html", title=title, views=data)


def run_page(pictures: Sequence[Picture] = (), samples: Sequence[Sample] = (), **texts: Any) -> str:
    """One run: its title, about, numbers (by name), pictures, samples, and the commands to use it with."""
    drawn = [(_image(picture.figure), picture.caption) for picture in pictures]
    return render(TEMPLATES / "run.html", pictures=drawn, samples=samples, **texts)


def _image(figure: Figure) -> str:
    """A figure as the address of an image, drawn as wide as it is shown: its text keeps its size."""
    width, height = figure.get_size_inches()
    scale = min(1.0, max(COLUMN_INCHES / width, SMALLEST_SCALE))
    figure.set_size_inches(width * scale, height * scale)
    return image_url(encoded(figure, "svg", bbox_inches="tight"))


def image_url(svg: bytes) -> str:
    """The address of an image that contains it, so that a page needs no other file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
