"""Accelerators to compile for: their names, and their descriptions."""

import importlib.util

import pytest

from transformer_jax import ModelConfig
from transformer_jax.errors import BadInput
from transformer_jax.planning.accelerators import CORES, GPUS, TPUS, gpu_config, parse_target
from transformer_jax.processes.hardware import PEAKS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xH10", "is not known; did you mean 8xH100"),
        ("v5e", "is not known; did you mean v5e:2x4"),
        ("v5e:2by4", "is not known"),
        ("v5e:9999x9999", "must have at most 4,096 chips"),
        ("12xH100", "must be 1 to 8 H100, or a multiple of 8 up to 4,096"),
        ("0xH100", "must be 1 to 8 H100"),
        ("", "is not known"),
    ],
)
def test_what_names_no_devices_is_refused(text, message):
    with pytest.raises(BadInput, match=message):
        parse_target(text)


@pytest.mark.parametrize(("text", "extra"), [("8xH100", "jax[cuda13]"), ("v5e:2x4", "jax[tpu]")])
def test_a_missing_compiler_is_named_with_what_to_install(text, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="needs its compiler: pip install") as refused:
        parse_target(text)
    assert extra in str(refused.value)


def test_every_chip_has_a_data_sheet():
    for chip in (*TPUS.values(), *GPUS.values()):
        assert chip.kind in PEAKS and chip.memory > 0 < chip.bandwidth and chip.source
        assert chip.flops(ModelConfig.base(dtype="bfloat16"))[0] > 1e14
    assert CORES.keys() == GPUS.keys()


def test_a_gpu_is_described_to_the_compiler():
    text = gpu_config("H100")
    assert (
        "core_count: 132" in text
        and "cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }" in text
    )
    assert text.count("{") == text.count("}")
    assert "cuda_compute_capability { major: 8 }" in gpu_config("A100")
