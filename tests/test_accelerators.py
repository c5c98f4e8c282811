"""The table of accelerators: every row has its source, and those to compile for a whole description."""

from transformer_jax.accelerators import ACCELERATORS, GPU


def test_every_row_has_its_source_and_a_figure():
    for kind, chip in ACCELERATORS.items():
        assert chip.source and any(figure is not None and figure > 0 for figure in chip[1:4]), kind
        assert bool(chip.cores) == kind.startswith("TPU")


def test_those_to_compile_for_are_described():
    described = [chip for chip in ACCELERATORS.values() if chip.name]
    assert len({chip.name for chip in described}) == 9
    for chip in described:
        text = GPU.format(chip=chip)
        assert chip.share * chip.teraflops("bfloat16", "highest")[0] > 100 and chip.memory > 1e10 < chip.bandwidth
        assert text.count("{") == text.count("}") and ("core_count" in text) == ("NVIDIA" in chip.kind)
