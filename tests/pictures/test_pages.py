"""The pages: self-contained, escaped, and with all that they were given."""

import base64
import json
import re

import jinja2
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
    samples = [Sample(HOSTILE, "gut", "gut"), Sample("a", HOSTILE, "besser")]
    return run_page(HOSTILE, HOSTILE, {"BLEU": "97.1", HOSTILE: "2"}, pictures, samples, HOSTILE)


def test_run_page_escapes_all_text(shown):
    read = Reader(shown)
    assert read.tags.count("img") == 2  # its pictures
    assert "b" not in read.tags
    assert "script" not in read.tags
    assert sum(HOSTILE in words for words in read.words) >= 6


def test_run_page_is_self_contained(shown):
    assert all(link.startswith("data:") for link in Reader(shown).links)
    assert "@import" not in shown


def test_run_page_marks_right_and_wrong_translations(shown):
    assert re.search(r'class="right">gut<', shown)
    assert re.search(r'class="wrong">&lt;/script', shown)


def test_pictures_are_drawn_for_half_of_the_page(shown):
    images = [base64.b64decode(link.partition(",")[2]).decode() for link in Reader(shown).links]
    widths = [float(re.search(r'<svg [^>]*?width="([0-9.]+)pt"', image)[1]) for image in images]
    assert len(widths) == 2 and max(widths) < 5.2 * 72  # drawn wider, their text would shrink with them


@pytest.fixture(scope="module")
def attention():
    weights_NHTS = np.full((2, 3, 2, 4), 0.254)
    return attention_page(HOSTILE, [View("encoder", ["ein", HOSTILE], ["a", "b", "c", HOSTILE], weights_NHTS)])


def test_the_attention_page_escapes_all_text(attention):
    read = Reader(attention)
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    assert HOSTILE in "".join(read.words)
    assert read.links == []


def test_placeholders_in_a_text_stay_literal():
    text = "$SCRIPT $STYLE {script} {} {0} %s {{ title }} {% raw %} {# x #} ]]>"
    found = attention_page(text, [View("encoder", [text], [text], np.ones((1, 1, 1, 1)))])
    assert Reader(found).words.count(text) == 2  # the title and the heading
    (view,) = json.loads(re.search(r"const views = (.*);", found)[1])
    assert view["queries"] == [text]
    assert (
        Reader(run_page(text, text, {text: text}, samples=[Sample(text, text, text)], commands=text)).words.count(text)
        == 9
    )


def test_the_attention_page_holds_every_layer_and_head(attention):
    (view,) = json.loads(re.search(r"const views = (.*);", attention)[1])
    assert np.shape(view["weights"]) == (2, 3, 2, 4)
    assert view["weights"][0][0][0][0] == 25  # hundredths
    assert view["queries"] == ["ein", HOSTILE]


def test_text_is_escaped_and_markup_is_not(tmp_path):
    template = tmp_path / "x.html"
    template.write_text(
        '{% extends "page.html" %}{% block body %}{{ text }} {{ markup }} {{ data|tojson }}{% endblock %}'
    )
    text = "</script>&{{ 1 }}"
    page = render(template, title=text, text=text, markup=Markup("<b>b</b>"), data=[text, "ü"])
    assert page.count("&lt;/script&gt;&amp;{{ 1 }}") == 2
    assert "<b>b</b>" in page and '["\\u003c/script\\u003e\\u0026{{ 1 }}","ü"]' in page


def test_missing_value_is_an_error(tmp_path):
    (tmp_path / "x.html").write_text("{{ absent }}")
    with pytest.raises(jinja2.UndefinedError):
        render(tmp_path / "x.html")
