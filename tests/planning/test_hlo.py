"""Lines of XLA's text format."""

import pytest

from transformer_jax.planning.hlo import Array, first_group, parse_instruction


def test_an_instruction_and_its_parts():
    line = '  ROOT %sum = (f32[2,3]{1,0}, s32[]) fusion(%a, %b.1), kind=kLoop, calls=%added, metadata={op_name="x(%c)"}'
    instruction = parse_instruction(line)
    assert (instruction.name, instruction.kind, instruction.is_root) == ("sum", "fusion", True)
    assert instruction.operands == ("a", "b.1") and instruction.called("calls") == "added"
    assert [array.shape for array in instruction.arrays] == [(2, 3), ()] and instruction.bytes == 28
    assert parse_instruction("}") is None


@pytest.mark.parametrize(
    ("layout", "size"), [("{1,0}", 40), ("{1,0:T(8,128)}", 8 * 128 * 4), ("{1,0:T(8,128)S(1)}", 0)]
)
def test_arrays_are_padded_to_tiles_and_free_in_faster_memory(layout, size):
    assert Array("f32", (2, 5), layout).bytes == size


@pytest.mark.parametrize("groups", ["{{0,1},{2,3}}", "[2,2]<=[4]", "mesh['a'=2,'b'=2] {'b'}"])
def test_every_way_to_write_groups_of_devices(groups):
    assert first_group(f"%y), channel_id=1, replica_groups={groups}, to_apply=%sum") == (0, 1)


def test_a_permutation_is_sent_by_those_whose_data_moves():
    assert first_group("%y), source_target_pairs={{0,0},{1,2},{2,1},{3,3}}, channel_id=1") == (1, 2)
    assert first_group("%y), source_target_pairs={{0,0},{1,1}}, channel_id=1") == ()
