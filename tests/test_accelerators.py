"""The table of accelerators: those to compile for have a whole description."""

from transformer_jax.accelerators import ACCELERATORS, GPU


def test_those_to_compile_for_are_described():
    for chip in ACCELERATORS.values():
        if chip.name:
            assert chip.memory > 1e10 < chip.bandwidth and chip.bfloat16
            assert ("core_count" in GPU.format(chip=chip)) == ("NVIDIA" in chip.kind)
