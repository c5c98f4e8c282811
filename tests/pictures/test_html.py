"""Templates: text is escaped, and a value that is missing is an error."""

import jinja2
import pytest
from markupsafe import Markup

from transformer_jax.pictures.html import render


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
