"""docs/paper.md and docs/parts.md name only what exists, and defaults that are the defaults."""

import functools
import importlib
import re

import pytest

from tests.support.places import ROOT
from transformer_jax import schema
from transformer_jax.commands.inspect import shown
from transformer_jax.config import ExperimentConfig

TEXTS = {name: (ROOT / "docs" / name).read_text() for name in ("paper.md", "parts.md")}
ADDRESSES = sorted(
    {match for text in TEXTS.values() for match in re.findall(r"`(transformer_jax/[\w/]+\.py:[\w.]+)`", text)}
)
OPTIONS = {option.path: option for option in schema.options(ExperimentConfig)}
STATED = re.findall(r"^\| `([\w.]+)` \| (\S+) \|", TEXTS["paper.md"], re.MULTILINE)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_exists(address):
    file, _, name = address.partition(":")
    assert (ROOT / file).is_file()
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    assert functools.reduce(getattr, name.split("."), module) is not None


@pytest.mark.parametrize(("path", "default"), STATED)
def test_every_stated_default_is_the_default(path, default):
    assert default == shown(OPTIONS[path].default)


def test_every_switch_of_the_architecture_is_in_the_table():
    """Sizes and vocabulary are no deviations; everything else about the model is."""
    sizes = {"vocab_size", "pad_id", "num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads"}
    sizes |= {"dropout", "max_length", "norm_epsilon"}
    expected = {path for path in OPTIONS if path.startswith("model.") and "parts" not in path}
    expected -= {f"model.{name}" for name in sizes}
    assert expected <= {path for path, _ in STATED}


def test_every_part_is_described():
    assert all(f"`{path}`" in TEXTS["parts.md"] for path in OPTIONS if path.startswith("model.parts."))
