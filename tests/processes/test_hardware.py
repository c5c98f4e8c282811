"""The peak that MFU is measured against: by the device's exact name, for the type that is computed in, or unknown."""

import json
import time
import types

import jax
import pytest

from transformer_jax import ModelConfig
from transformer_jax.accelerators import ACCELERATORS
from transformer_jax.config import ExperimentConfig
from transformer_jax.processes import hardware
from transformer_jax.runs.metrics import MetricsFile
from transformer_jax.training.progress import Throughput, peak_in_words


@pytest.fixture
def machine(monkeypatch):
    """A machine of these devices."""

    def made_of(*kinds, num_cores=None):
        more = {} if num_cores is None else {"num_cores": num_cores}
        platform = "tpu" if "TPU" in kinds[0] else "gpu"
        devices = [types.SimpleNamespace(device_kind=kind, platform=platform, **more) for kind in kinds]
        monkeypatch.setattr(jax, "devices", lambda: devices)

    return made_of


def peak(dtype="bfloat16", precision="highest"):
    return hardware.peak_flops(ModelConfig(dtype=dtype, matmul_precision=precision))


@pytest.mark.parametrize(
    ("kind", "dtype", "precision", "teraflops"),
    [
        ("NVIDIA L40", "bfloat16", "highest", 181.05),  # cards whose names resemble each other
        ("NVIDIA L40S", "bfloat16", "highest", 362.05),
        ("NVIDIA H100 80GB HBM3", "float32", "highest", 67),
        ("NVIDIA H100 80GB HBM3", "float32", "default", 494),
        ("NVIDIA H100 80GB HBM3", "bfloat16", "default", 989),
        ("Tesla T4", "float32", "default", 8.1),
        ("TPU v5 lite", "float32", "default", 197),
        ("TPU v3", "bfloat16", "highest", 61.5),  # one core of two
        ("TPU7x", "bfloat16", "highest", 1153.5),
    ],
)
def test_the_peak_is_that_of_the_device_and_the_type(machine, kind, dtype, precision, teraflops):
    machine(kind, num_cores=1)
    flops, source = peak(dtype, precision)
    assert flops == pytest.approx(teraflops * 1e12) and source.startswith(ACCELERATORS[kind].source)


def test_a_tpu_device_may_be_a_whole_chip(machine):
    machine("TPU v4", num_cores=2)
    assert peak()[0] == pytest.approx(275e12)


@pytest.mark.parametrize(
    ("kinds", "dtype", "why"),
    [
        (
            ["NVIDIA GeForce RTX 4090 Laptop GPU"],
            "bfloat16",
            "no data sheet of 'NVIDIA GeForce RTX 4090 Laptop GPU' is",
        ),
        (["Tesla T4"], "bfloat16", "has no figure for bfloat16"),
        (["TPU v5 lite"], "float32", "has no figure for float32 at highest precision"),
        (["TPU v4"], "bfloat16", "does not report its cores"),
        (["NVIDIA L40", "NVIDIA L40S"], "bfloat16", "no data sheet"),
    ],
)
def test_what_is_not_known_is_unknown(machine, tmp_path, kinds, dtype, why):
    """No MFU then, and a line that says how to have one; the other metrics are there."""
    machine(*kinds)
    config = ExperimentConfig(model=ModelConfig(dtype=dtype))
    assert why in peak_in_words(config)
    assert "no MFU; --config.train.peak_flops=FLOP/s of one device gives it" in peak_in_words(config)
    statistics = types.SimpleNamespace(pairs=10, source_tokens=80, target_tokens=90)
    measure = Throughput(config, statistics, 1, time.perf_counter, types.SimpleNamespace(data_wait=0.0), 0)
    rates = measure.rates(measure.lap(10), 100, 100, 10)
    MetricsFile(tmp_path / "metrics.jsonl", tensorboard=False).write(10, rates)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["mfu"] is None and line["target_tokens_per_second"] > 0
