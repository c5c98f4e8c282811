"""Parameters by how a mesh divides them, and the formulas compared with programs that were compiled for accelerators.

update/test_reduction.py compares them with programs that it compiles for CPUs.
"""

import re

import pytest

from tests.support.places import ROOT
from transformer_jax import ModelConfig
from transformer_jax.model.size import parameter_counts
from transformer_jax.planning.cost import MeshSize, Work, amount, bytes_sent, memory, parameters


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True},
        {"activation": "reglu", "gated_width": "two_thirds"},
        {"positions": "relative"},
        {"positions": "transformer_xl", "num_key_value_heads": 2, "attention_bias": True, "qk_norm": True},
    ],
)
def test_every_parameter_is_divided_in_some_way(changes):
    config = ModelConfig.base(**changes)
    assert sum(parameters(config)) == sum(parameter_counts(config).values())
    assert parameters(config).on(MeshSize(4, 1, 1)) == sum(parameters(config))


def test_packed_batches_need_the_memory_of_plain_attention_on_a_gpu():
    """The fused kernels take no masks of packed sentences."""
    work, mesh = Work(8, 128, 128), MeshSize(1, 1, 1)

    def total(is_packed, **changes):
        config = ModelConfig.base(dtype="bfloat16", **changes)
        return memory(config, work._replace(is_packed=is_packed), mesh, platform="gpu").total

    assert total(False) < total(True) == total(False, attention_implementation="plain")


@pytest.mark.parametrize(("platform", "by_default"), [("cpu", "nothing"), ("gpu", "nothing"), ("tpu", "activations")])
def test_memory_follows_what_is_computed_again(platform, by_default):
    """On CPUs programs keep as much in either case. 8 H100, compiled with train.rematerialize=activations: 1.70 GB."""

    def total(**changes):
        work = Work(24_576 // 32, 32, 32, **changes)
        return memory(ModelConfig.base(dtype="bfloat16"), work, MeshSize(8, 1, 1), platform=platform).total

    less, more = (total(rematerialize=chosen) for chosen in ("activations", "nothing"))
    assert less == more if platform == "cpu" else less < 0.9 * more
    assert total() == {"activations": less, "nothing": more}[by_default]
    assert platform != "gpu" or less == pytest.approx(1.70e9, rel=0.2)


ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/scaling.md").read_text().splitlines()
    if re.match(r"\| (base|big) \|", line)
]
MESHES = [row for row in ROWS if " x " in row[2]]
UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def in_bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


@pytest.mark.parametrize("row", MESHES, ids=lambda row: " ".join(row[:4]))
def test_the_guides_predictions_for_other_meshes_are_the_formulas(row):
    size, devices, mesh, tokens, needed, _, communication, _ = row
    config, platform = getattr(ModelConfig, size)(dtype="bfloat16"), "gpu" if "H100" in devices else "tpu"
    work = Work(int(tokens.replace(",", "")) // 32, 32, 32)
    arguments = config, work, MeshSize(*map(int, mesh.split(" x ")))
    assert amount(memory(*arguments, platform=platform).total) == needed
    assert amount(sum(bytes_sent(*arguments, platform))) == communication


@pytest.mark.parametrize("row", [row for row in ROWS if "–" not in row], ids=lambda row: " ".join(row[:4]))
def test_the_guides_predictions_are_within_a_fifth_of_what_was_compiled(row):
    """Also on accelerators, whose compilers report the figures of the guide."""
    needed, compiled_memory, sent, compiled_sent = map(in_bytes, row[4:8] if row in MESHES else row[3:7])
    assert needed == pytest.approx(compiled_memory, rel=0.2)
    assert sent == pytest.approx(compiled_sent, rel=0.2)
