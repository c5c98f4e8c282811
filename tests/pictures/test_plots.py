"""Plots: drawn from plain arrays, in the format of the file's suffix."""

import re
import xml.etree.ElementTree

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.text import Text

from transformer_jax import cli, sinusoidal_positions
from transformer_jax.errors import BadInput
from transformer_jax.pictures import plots

SOURCE, TARGET = ["▁The", "▁cat", "▁sat", "."], ["<bos>", "▁Die", "▁Kat", "ze", "▁saß"]
WEIGHTS_HTS = np.random.default_rng(0).dirichlet(np.ones(4), size=(6, 5))
SIGNATURES = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF"}

PICTURES = {
    "map": lambda: plots.attention_map(WEIGHTS_HTS[0], SOURCE, TARGET, "layer 1, head 1"),
    "heads": lambda: plots.attention_heads(WEIGHTS_HTS, SOURCE, TARGET, "layer 1"),
    "one head": lambda: plots.attention_heads(WEIGHTS_HTS[:1], SOURCE, TARGET),
    "positions": lambda: plots.positional_encoding(sinusoidal_positions(50, 128)),
    "schedule": lambda: plots.schedule(lambda step: min(step, 40) / 40, 100),
}


@pytest.mark.parametrize("picture", PICTURES)
def test_every_picture_is_drawn_and_saved_in_the_format_of_its_suffix(picture, tmp_path):
    for suffix in SIGNATURES if picture == "map" else (".png",):
        plots.save(PICTURES[picture](), tmp_path / f"picture{suffix}")
        assert (tmp_path / f"picture{suffix}").read_bytes().startswith(SIGNATURES[suffix])


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_the_same_figure_gives_the_same_file(form, monkeypatch):
    first = plots.encoded(PICTURES["map"](), form)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert plots.encoded(PICTURES["map"](), form) == first


def test_files_and_weights_that_do_not_fit_are_refused():
    for name in ("picture.gif", "nowhere/picture.png"):
        with pytest.raises(BadInput, match="must end in one of"):  # before anything is drawn
            plots.save(PICTURES["map"](), name)
    with pytest.raises(BadInput, match="shape"):
        plots.attention_map(WEIGHTS_HTS[0], TARGET, SOURCE)


def test_a_map_has_a_row_for_each_query_and_a_column_for_each_key():
    axes = plots.attention_map(WEIGHTS_HTS[0], SOURCE, TARGET).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), WEIGHTS_HTS[0])
    assert [label.get_text() for label in axes.get_xticklabels()] == SOURCE
    assert [label.get_text() for label in axes.get_yticklabels()] == TARGET
    assert axes.images[0].get_clim() == (0, 1), "pictures of different heads compare"


def test_text_is_shown_as_it_is(tmp_path):
    """Dollar signs make no formula, and what looks like markup stays text."""
    file = tmp_path / "picture.svg"
    pieces = ["$x$", r"$\bad", "<b>&", "."]
    plots.save(plots.attention_map(WEIGHTS_HTS[0], pieces, TARGET, "costs $5 or $6"), file)
    xml.etree.ElementTree.parse(file)


def test_a_schedule_marks_its_peak_and_curves_skip_missing_values():
    (axes,) = plots.schedule(lambda step: min(step, 40) / 40 if step <= 40 else 40 / step, 1000).axes
    assert [text.get_text() for text in axes.texts] == ["1.00e+00 at update 40"]
    figure = plots.learning_curves([{"step": 1, "loss": None}, {"step": 2}], {"loss": "training"})
    assert len(figure.axes[0].lines) == 0


def test_letters_that_the_font_lacks_are_taken_from_an_installed_cjk_font(monkeypatch):
    monkeypatch.setattr(plots, "CJK_FONTS", re.compile("^STIXGeneral$"))  # which is always there
    figure = PICTURES["map"]()
    plots.encoded(figure, "svg")
    fonts = {tuple(text.get_fontfamily()) for text in figure.findobj(Text)}
    assert fonts == {(*rcParams["font.family"], "STIXGeneral")}


def test_plot_positions_from_the_command_line(tmp_path, capsys):
    file = tmp_path / "positions.svg"
    assert cli.main(["plot", "positions", "--length=5", "--d-model=8", f"--output={file}"]) == 0
    assert file.read_bytes().startswith(b"<?xml")
    assert capsys.readouterr().out == f"wrote {file}\n"


@pytest.mark.parametrize("wrong", ["--d-model=7", "--length=0", "--output=x.bmp"])
def test_a_bad_plot_command_is_one_line_and_exit_2(wrong, capsys):
    assert cli.main(["plot", "positions", "--output=x.png", wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
