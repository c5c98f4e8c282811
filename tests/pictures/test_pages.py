"""The pages: self-contained, escaped, and with all that they were given."""

import base64
import json
import re

import numpy as np
import pytest
from markupsafe import Markup

from tests.support.pages import HOSTILE, Reader
from transformer_jax.pictures import plots
from transformer_jax.pictures.pages import Picture, Sample, View, attention_page, render, run_page


@pytest.fixture(scope="module")
def shown():
    curves = plots.learning_curves([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}], {"loss": "training"})
    pictures = [Picture(curves, HOSTILE), Picture(plots.positional_encoding(np.eye(4)), "positions")]
    samples = [Sample(HOSTILE, "gut", "gut", 1), Sample("a", HOSTILE, "besser", 0)]
    numbers = {"BLEU": "97.1", HOSTILE: "2"}
    return run_page(pictures, samples, title=HOSTILE, about=HOSTILE, numbers=numbers, commands=HOSTILE)


def test_the_run_page_is_self_contained_and_escapes_all_text(shown):
    read = Reader(shown)
    assert read.tags.count("img") == 2  # its pictures
    assert "b" not in read.tags and "script" not in read.tags
    assert sum(HOSTILE in words for words in read.words) >= 6
    assert all(link.startswith("data:") for link in read.links) and "@import" not in shown
    assert re.search(r'class="right">gut<', shown) and re.search(r'class="wrong">&lt;/script', shown)


def test_pictures_are_drawn_for_half_of_the_page(shown):
    images = [base64.b64decode(link.partition(",")[2]).decode() for link in Reader(shown).links]
    widths = [float(re.search(r'<svg [^>]*?width="([0-9.]+)pt"', image)[1]) for image in images]
    assert len(widths) == 2 and max(widths) < 5.2 * 72  # drawn wider, their text would shrink with them


def test_placeholders_in_a_text_stay_literal():
    text = "$SCRIPT $STYLE {script} {} {0} %s {{ title }} {% raw %} {# x #} ]]>"
    found = attention_page(text, [View("encoder", [text], [text], np.ones((1, 1, 1, 1)))])
    assert Reader(found).words.count(text) == 2  # the title and the heading
    (view,) = json.loads(re.search(r"const views = (.*);", found)[1])
    assert view["queries"] == [text]
    texts = {"title": text, "about": text, "numbers": {text: text}, "commands": text}
    assert Reader(run_page(samples=[Sample(text, text, text, 1)], **texts)).words.count(text) == 9


def test_the_attention_page_holds_every_layer_and_head():
    views = [View("encoder", ["ein", HOSTILE], ["a", "b", HOSTILE], np.full((2, 3, 2, 3), 0.254))]
    page = attention_page(HOSTILE, views)
    read = Reader(page)
    assert read.tags.count("script") == 1 and "img" not in read.tags and read.links == []
    assert HOSTILE in "".join(read.words)
    (view,) = json.loads(re.search(r"const views = (.*);", page)[1])
    assert np.shape(view["weights"]) == (2, 3, 2, 3) and view["weights"][0][0][0][0] == 25  # hundredths
    assert view["queries"] == ["ein", HOSTILE]


def test_text_is_escaped_and_markup_is_not(tmp_path):
    template = '{% extends "page.html" %}{% block body %}{{ text }} {{ markup }} {{ data|tojson }}{% endblock %}'
    (tmp_path / "x.html").write_text(template)
    text = "</script>&{{ 1 }}"
    page = render(tmp_path / "x.html", title=text, text=text, markup=Markup("<b>b</b>"), data=[text, "ü"])
    assert page.count("&lt;/script&gt;&amp;{{ 1 }}") == 2
    assert "<b>b</b>" in page and '["\\u003c/script\\u003e\\u0026{{ 1 }}","ü"]' in page
