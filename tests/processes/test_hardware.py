"""The peak that MFU is measured against: by the device's exact name, for the type that is computed in, or unknown."""

import json
import types

import jax
import pytest

from transformer_jax import ModelConfig
from transformer_jax.processes import hardware
from transformer_jax.processes.hardware import PEAKS
from transformer_jax.runs.metrics import Metrics
from transformer_jax.training.progress import Throughput


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
    ("kind", "teraflops"),
    [
        ("NVIDIA L40", 181.05),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
    ],
)
def test_cards_whose_names_resemble_each_other_have_their_own_peaks(machine, kind, teraflops):
    machine(kind)
    flops, source = peak()
    assert flops == pytest.approx(teraflops * 1e12)
    assert source == f"{PEAKS[kind].source}, dense bfloat16"


@pytest.mark.parametrize(
    ("kind", "num_cores", "teraflops"),
    [
        ("TPU v3", 1, 61.5),
        ("TPU v4", 2, 275),
        ("TPU v4", 1, 137.5),
        ("TPU v5", 2, 459),
        ("TPU v5 lite", 1, 197),
        ("TPU v6 lite", 1, 918),
        ("TPU7x", 1, 1153.5),
    ],
)
def test_a_tpu_device_has_the_peak_of_its_cores(machine, kind, num_cores, teraflops):
    """One core of two on v2, v3 and TPU7x; on v4 and v5p usually the whole chip."""
    machine(kind, num_cores=num_cores)
    assert peak()[0] == pytest.approx(teraflops * 1e12)


@pytest.mark.parametrize(
    ("kind", "dtype", "precision", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "float32", "highest", 67),
        ("NVIDIA H100 80GB HBM3", "float32", "default", 494),
        ("NVIDIA H100 80GB HBM3", "bfloat16", "default", 989),
        ("Tesla V100-SXM2-16GB", "float32", "highest", 15.7),
        ("Tesla V100-SXM2-16GB", "float32", "default", 15.7),
        ("TPU v5 lite", "float32", "default", 197),
    ],
)
def test_float32_is_not_measured_against_a_peak_of_bfloat16(machine, kind, dtype, precision, teraflops):
    machine(kind, num_cores=1)
    assert peak(dtype, precision)[0] == pytest.approx(teraflops * 1e12)


@pytest.mark.parametrize(
    ("kinds", "dtype", "why"),
    [
        (
            ["NVIDIA GeForce RTX 4090 Laptop GPU"],
            "bfloat16",
            "no data sheet of 'NVIDIA GeForce RTX 4090 Laptop GPU' is",
        ),
        (["NVIDIA A100-SXM4-40GB MIG 1g.5gb"], "bfloat16", "no data sheet of"),
        (["TPU v9"], "bfloat16", "no data sheet of 'TPU v9' is known here"),
        (["Tesla V100-SXM2-16GB"], "bfloat16", "the data sheet of Tesla V100-SXM2-16GB has no figure for bfloat16"),
        (["TPU v5 lite"], "float32", "has no figure for float32 at highest precision"),
        (["TPU v4"], "bfloat16", "does not report how many of its chip's 2 cores it has"),
        (["NVIDIA L40", "NVIDIA L40S"], "bfloat16", "the devices are not all alike"),
    ],
)
def test_what_is_not_known_is_unknown(machine, tmp_path, kinds, dtype, why):
    """No MFU then, and a line that says how to have one; the other metrics are there."""
    machine(*kinds)
    statistics = types.SimpleNamespace(pairs=10, source_tokens=80, target_tokens=90)
    measure = Throughput(ModelConfig(dtype=dtype), statistics, devices=1, peak_flops=None)
    assert why in str(measure) and "no MFU; --config.train.peak_flops=FLOP/s of one device gives it" in str(measure)
    measure.start(types.SimpleNamespace(data_wait=0.0), 0)
    measure.lap(10)
    Metrics(tmp_path / "metrics.jsonl", tensorboard=False).write(10, measure.rates(100, 100, 10))
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["mfu"] is None and line["target_tokens_per_second"] > 0


def test_a_given_peak_is_taken_of_any_device(machine):
    machine("TPU v9")
    statistics = types.SimpleNamespace(pairs=1, source_tokens=8, target_tokens=9)
    measure = Throughput(ModelConfig(), statistics, devices=1, peak_flops=2e12)
    assert str(measure) == "2 TFLOP/s per device (train.peak_flops), the basis of MFU"


def test_every_row_has_its_source_and_clusters_have_the_same_numbers():
    for kind, row in PEAKS.items():
        assert row.source and any(figure is not None and figure > 0 for figure in row[:3]), kind
        assert bool(row.cores) == kind.startswith("TPU")
