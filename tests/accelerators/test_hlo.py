"""Lines of XLA's text format."""

import pytest

from tests.accelerators.hlo import Array, Program, UnknownHlo, first_group, parse_instruction


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


def test_the_sizes_of_types():
    bits = {"pred": 8, "s4": 4, "bf16": 16, "f32": 32, "c128": 128, "f8e4m3fn": 8, "f4e2m1fn": 4, "token": 0}
    assert {name: Array(name, (), "").bits for name in bits} == bits


def test_unknown_types_and_groups_are_errors():
    with pytest.raises(UnknownHlo, match="opaque"):
        _ = Array("opaque", (2,), "{0}").size
    with pytest.raises(UnknownHlo, match="groups"):
        first_group("%y), replica_groups=<something new>, to_apply=%sum", 4)
