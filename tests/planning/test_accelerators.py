"""Accelerators to compile for: their names, and their descriptions."""

import importlib.util

import pytest

from transformer_jax import ModelConfig
from transformer_jax.errors import BadInput
from transformer_jax.planning.accelerators import CHIPS, GPU, parse_target
from transformer_jax.processes.hardware import PEAKS


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


@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_has_a_data_sheet_and_a_gpu_a_description(name):
    chip = CHIPS[name]
    assert chip.kind in PEAKS and chip.flops(ModelConfig.base(dtype="bfloat16"))[0] > 1e14
    text = GPU.format(chip=chip)
    assert text.count("{") == text.count("}") and ("core_count" in text) == ("NVIDIA" in chip.kind)
