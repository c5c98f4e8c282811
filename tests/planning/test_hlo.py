"""Lines of XLA's text format."""

import pytest

from transformer_jax.planning.hlo import Array, Program, UnknownHlo, first_group, parse_instruction


def test_an_instruction_and_its_parts():
    line = '  ROOT %sum = (f32[2,3]{1,0}, s32[]) fusion(%a, %b.1), kind=kLoop, calls=%added, metadata={op_name="x(%c)"}'
    instruction = parse_instruction(line)
    assert (instruction.name, instruction.kind, instruction.is_root) == ("sum", "fusion", True)
    assert instruction.operands == ("a", "b.1") and instruction.called("calls") == "added"
    assert [array.size for array in instruction.arrays] == [24, 4]
    assert parse_instruction("}") is None


@pytest.mark.parametrize("groups", ["{{0,1},{2,3}}", "[2,2]<=[4]", "mesh['a'=2,'b'=2] {'b'}"])
def test_every_way_to_write_groups_of_devices(groups):
    assert first_group(f"%y), channel_id=1, replica_groups={groups}, to_apply=%sum", 4) == (0, 1)


def test_a_permutation_is_sent_by_those_whose_data_moves():
    assert first_group("%y), source_target_pairs={{0,0},{1,2},{2,1},{3,3}}, channel_id=1", 4) == (1, 2)
    assert first_group("%y), source_target_pairs={{0,0},{1,1}}, channel_id=1", 4) == ()


def test_empty_groups_are_all_devices():
    line = "  ROOT %y = f32[4]{0} all-reduce(%x), replica_groups={}, to_apply=%sum"
    header = "HloModule m, is_scheduled=true, num_partitions=4"
    text = "\n".join([header, "ENTRY %main (x: f32[4]) -> f32[4] {", "  %x = f32[4]{0} parameter(0)", line, "}"])
    (collective,) = Program(text).collectives()
    assert collective.group == (0, 1, 2, 3) and collective.sent == 2 * 3 / 4 * 16


@pytest.mark.parametrize("kernel", ["__cublas$gemm", "__onednn$matmul", "tpu_custom_call"])
def test_products_inside_an_unknown_kernel_are_an_error(kernel):
    line = f'  ROOT %y = f32[4,4] custom-call(%x, %x), custom_call_target="{kernel}"'
    text = "\n".join(["ENTRY %main (x: f32[4,4]) -> f32[4,4] {", "  %x = f32[4,4] parameter(0)", line, "}"])
    with pytest.raises(UnknownHlo, match="kernel"):
        Program(text).flops()


@pytest.mark.parametrize(
    ("left", "right", "result", "attributes"),
    [
        ("6,3,5,1", "5,4,2,1", "6,3,4,2", "window={size=1x4 pad=0_0x3_3 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f"),
        ("6,3,4,2", "6,4,2,5", "6,4,3,5", "window={size=6x4 stride=5x3 lhs_dilate=6x4}, dim_labels=0b1f_01io->01bf"),
        (
            "6,4,3,2",
            "6,4,5,2",
            "6,4,3,5",
            "window={size=6x4 stride=6x4 pad=5_5x3_3 lhs_dilate=5x3 rhs_reversal=1x1}, dim_labels=01bf_01oi->01bf",
        ),
    ],
    ids=["heads", "batch and heads", "batch and heads, reversed"],
)
def test_convolutions_count_without_padding_and_gaps(left, right, result, attributes):
    """As TPUs multiply 6 x 3 rows of width 5 or 2 for 4 heads: most of the window is outside or in gaps."""
    lines = [f"  %a = f32[{left}] parameter(0)", f"  %b = f32[{right}] parameter(1)"]
    lines += [f"  ROOT %y = f32[{result}] convolution(%a, %b), {attributes}"]
    text = "\n".join(["ENTRY %main (a: f32[], b: f32[]) -> f32[] {", *lines, "}"])
    assert Program(text).flops() == 2 * 6 * 3 * 4 * 2 * 5


def test_the_sizes_of_types():
    bits = {"pred": 8, "s4": 4, "bf16": 16, "f32": 32, "c128": 128, "f8e4m3fn": 8, "f4e2m1fn": 4, "token": 0}
    assert {name: Array(name, (), "").bits for name in bits} == bits


def test_unknown_types_and_groups_are_errors():
    with pytest.raises(UnknownHlo, match="opaque"):
        _ = Array("opaque", (2,), "{0}").size
    with pytest.raises(UnknownHlo, match="groups"):
        first_group("%y), replica_groups=<something new>, to_apply=%sum", 4)
