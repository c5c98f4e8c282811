"""Devices to compile for, by name."""

import importlib.util

import pytest

from transformer_jax.errors import BadInput
from transformer_jax.planning.target import parse_target


@pytest.mark.parametrize("text", ["8xH10", "v5e", "v5e:2by4", "v5e:9999x9999", "12xH100", "0xH100", "8xv5e", ""])
def test_what_names_no_devices_is_an_error(text):
    with pytest.raises(BadInput, match="known"):
        parse_target(text)


@pytest.mark.parametrize(("text", "extra"), [("8xH100", "jax[cuda13]"), ("v5e:2x4", "jax[tpu]")])
def test_a_missing_compiler_is_named_with_what_to_install(text, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput) as refused:
        parse_target(text)
    assert f"pip install '{extra}'" in str(refused.value)
