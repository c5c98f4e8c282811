"""The bytes and the messages that are read from the text of a compiled program, compared with sums by hand."""

import re

import pytest

from tests.accelerators.hlo import Array, parse_instruction
from tests.accelerators.traffic import Traffic, all_in_memory, in_memory


def module(text: str) -> str:
    """The HLO of these computations; `main` is the program."""
    parts = re.split(r"^(\w+):\n", text.strip("\n") + "\n", flags=re.MULTILINE)[1:]
    computations = [
        f"{'ENTRY ' if name == 'main' else ''}%{name} () -> f32[] {{\n{body}}}"
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    ]
    return "\n\n".join(["HloModule example, is_scheduled=true", *computations])


TEXT = module("""
slice_of:
  %p0 = f32[100,128]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %cut = f32[8,128]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={8,128}
update_of:
  %p2 = f32[100,128]{1,0} parameter(0)
  %p3 = f32[8,128]{1,0} parameter(1)
  %p4 = s32[] parameter(2)
  %none = s32[] constant(0)
  ROOT %put = f32[100,128]{1,0} dynamic-update-slice(%p2, %p3, %p4, %none)
body:
  %state = (s32[], f32[100,128]{1,0}, f32[16,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %table = f32[100,128]{1,0} get-tuple-element(%state), index=1
  %m = f32[16,16]{1,0} get-tuple-element(%state), index=2
  %row = f32[8,128]{1,0} fusion(%table, %i), kind=kLoop, calls=%slice_of
  %written = f32[100,128]{1,0} fusion(%table, %row, %i), kind=kLoop, calls=%update_of
  %square = f32[16,16]{1,0} dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %carried = (s32[], f32[100,128]{1,0}, f32[16,16]{1,0}) tuple(%next, %written, %square)
condition:
  %state.1 = (s32[], f32[100,128]{1,0}, f32[16,16]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %limit = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
main:
  %x = f32[100,128]{1,0} parameter(0)
  %y = f32[16,16]{1,0} parameter(1)
  %start = s32[] constant(0)
  %slice-start = ((f32[100,128]{1,0}), f32[10,128]{1,0:T(8,128)S(1)}, s32[]) slice-start(%x), slice={[0:10], [0:128]}
  %slice-done = f32[10,128]{1,0:T(8,128)S(1)} slice-done(%slice-start)
  %sent = f32[16,16]{1,0} all-reduce-start(%y), replica_groups={{0,2},{1,3}}, to_apply=%sum
  %product = f32[16,16]{1,0} dot(%y, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %received = f32[16,16]{1,0} all-reduce-done(%sent)
  %all = (s32[], f32[100,128]{1,0}, f32[16,16]{1,0}) tuple(%start, %x, %received)
  %loop = (s32[], f32[100,128]{1,0}, f32[16,16]{1,0}) while(%all), condition=%condition, body=%body
  %room = f32[64,128]{1,0:T(8,128)} custom-call(), custom_call_target="AllocateBuffer"
  %kernel = f32[16,16]{1,0:T(8,128)} custom-call(%product), custom_call_target="fast"
  ROOT %result = f32[16,16]{1,0} get-tuple-element(%loop), index=2
""")
PROGRAM = Traffic(TEXT)


def test_loops_run_as_often_as_they_count():
    assert PROGRAM.times == {"main": 1, "body": 5, "condition": 1}


def test_slices_and_updates_in_place_access_only_their_part():
    accessed = PROGRAM.accesses()
    assert accessed["row"] == 5 * 2 * 8 * 128 * 4 + 5 * 4  # the slice read and written, and the index
    assert accessed["written"] == 5 * 2 * 8 * 128 * 4 + 5 * 4
    assert accessed["slice-start"] == 10 * 128 * 4  # read; what is written is in faster memory
    assert accessed["square"] == 5 * 3 * 16 * 16 * 4


def test_kernels_access_their_operands_and_results():
    # 16 x 16 in tiles of 8 x 128, and the operand without tiles.
    assert PROGRAM.accesses()["kernel"] == 4 * (16 * 128 + 16 * 16) and "room" not in PROGRAM.accesses()
    assert PROGRAM.kernels() == {"AllocateBuffer": 1, "fast": 1}


def test_messages_and_their_groups():
    (message,) = PROGRAM.collectives()
    assert (message.kind, message.group, message.times, message.is_asynchronous) == ("all-reduce", (0, 2), 1, True)
    assert message.sent == 16 * 16 * 4  # 2 (n - 1) / n of the array
    assert message.axes({"data": 2, "fsdp": 2, "tensor": 1}) == ("data",)


NESTED = module("""
inside:
  %x = f32[4]{0} parameter(0)
  ROOT %gathered = f32[8]{0} all-gather(%x), replica_groups={{0,1}}, dimensions={0}
helper:
  %y = f32[4]{0} parameter(0)
  ROOT %twice = f32[4]{0} add(%y, %y)
main:
  %a = f32[4]{0} parameter(0)
  %which = s32[] parameter(1)
  %first = f32[4]{0} call(%a), to_apply=%helper
  %second = f32[4]{0} conditional(%which, %first, %first), branch_computations={%helper, %helper}
  ROOT %whole = f32[8]{0} fusion(%second), kind=kCustom, calls=%inside
""")


def test_calls_and_branches_run_each_time_and_messages_in_fusions_count():
    program = Traffic(NESTED)
    assert program.times == {"main": 1, "helper": 3}
    (message,) = program.collectives()
    assert (message.kind, message.arrays[0].shape, message.is_asynchronous) == ("all-gather", (8,), False)


STEPS = module("""
begin:
  %x = bf16[8,4]{0,1} parameter(0)
  %gathered = bf16[64,4]{0,1} all-gather(%x), replica_groups=[1,8]<=[8], frontend_attributes={chain_id="0"}
  ROOT %begun = bf16[64,4]{0,1} custom-call(%gathered), custom_call_target="AsyncCollectiveStart"
step:
  %x = bf16[8,4]{0,1} parameter(0)
  %q = f32[5,7]{1,0} parameter(1)
  %again = bf16[64,4]{0,1} all-gather(%x), replica_groups=[1,8]<=[8], frontend_attributes={chain_id="0"}
  ROOT %s = f32[5,7]{1,0} negate(%q)
end:
  %x = bf16[8,4]{0,1} parameter(0)
  %gathered = bf16[64,4]{0,1} all-gather(%x), replica_groups=[1,8]<=[8], frontend_attributes={chain_id="0"}
  ROOT %ended = bf16[64,4]{0,1} custom-call(%gathered), custom_call_target="AsyncCollectiveDone"
main:
  %x = bf16[8,4]{0,1} parameter(0)
  %q = f32[5,7]{1,0} parameter(1)
  %async-collective-start = bf16[64,4]{0,1} fusion(%x), kind=kCustom, calls=%begin
  %async_collective_fusion = f32[5,7]{1,0} fusion(%x, %q), kind=kCustom, calls=%step
  ROOT %async-collective-done = bf16[64,4]{0,1} fusion(%x), kind=kCustom, calls=%end
""")


OFFLOADED = module("""
called:
  %t = token[] parameter(1)
  %p = f32[1000]{0} parameter(0)
  ROOT %reduced = f32[1000]{0} all-reduce(%p), replica_groups={{0,1}}, to_apply=%sum
main:
  %x = f32[1000]{0} parameter(0)
  %q = f32[5,7]{1,0} parameter(1)
  %ready = token[] custom-call(), custom_call_target="PrepareAsyncCallDone"
  %sent = ((f32[1000]{0}, token[]), f32[1000]{0}) call-start(%x, %ready), to_apply=%called
  %work = f32[5,7]{1,0} negate(%q)
  ROOT %received = f32[1000]{0} call-done(%sent)
""")


def test_a_message_that_a_sparse_core_sends_is_asynchronous():
    (message,) = Traffic(OFFLOADED).collectives()
    assert (message.kind, message.arrays[0].shape, message.is_asynchronous) == ("all-reduce", (1000,), True)


def test_a_message_sent_in_steps_is_one():
    (message,) = Traffic(STEPS).collectives()
    assert (message.kind, message.arrays[0].shape, message.is_asynchronous) == ("all-gather", (64, 4), True)


def test_what_a_loop_copies_sends_and_asks_of_the_host():
    text = module("""
turned:
  %p = f32[4,1000]{1,0} parameter(0)
  ROOT %t = f32[1000,4]{1,0} transpose(%p), dimensions={1,0}
scaled:
  %q = f32[4,1000]{1,0} parameter(0)
  %u = f32[1000,4]{1,0} transpose(%q), dimensions={1,0}
  ROOT %v = f32[1000,4]{1,0} negate(%u)
body:
  %x = f32[4,1000]{1,0} parameter(0)
  %near = (f32[4,1000]{1,0:S(1)}, f32[4,1000]{1,0}, u32[]) copy-start(%x)
  %there = f32[4,1000]{1,0:S(1)} copy-done(%near)
  %a = f32[1000,4]{1,0} fusion(%there), kind=kLoop, calls=%turned
  %b = f32[1000,4]{1,0} fusion(%there), kind=kLoop, calls=%scaled
  %c = bf16[4,100]{0,1:S(1)} copy(%there)
  %printed = f32[] custom-call(%x), custom_call_target="xla_ffi_python_gpu_callback"
  ROOT %sum = f32[4,1000]{1,0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
condition:
  %y = f32[4,1000]{1,0} parameter(0)
  ROOT %go = pred[] constant(true)
main:
  %z = f32[4,1000]{1,0} parameter(0)
  %before = f32[4,1000]{0,1} copy(%z)
  %first = f32[4,1000]{1,0} all-reduce(%before), replica_groups={{0,1}}, to_apply=%add
  ROOT %while = f32[4,1000]{1,0} while(%first), condition=%condition, body=%body
""")
    program = Traffic(text)
    assert [(array.shape, array.size) for array in program.copies()] == [((1000, 4), 16_000), ((4, 100), 800)]
    assert [collective.in_loop for collective in program.collectives()] == [False, True]
    assert program.host_transfers() == 1
    assert PROGRAM.host_transfers() == 0 and PROGRAM.copies() == []


@pytest.mark.parametrize(
    ("layout", "size"), [("{1,0}", 40), ("{1,0:T(8,128)}", 8 * 128 * 4), ("{1,0:T(8,128)S(1)}", 0)]
)
def test_arrays_are_padded_to_tiles_and_free_in_faster_memory(layout, size):
    assert in_memory(Array("f32", (2, 5), layout)) == size
    assert all_in_memory(parse_instruction(f"  %a = f32[2,5]{layout} copy(%b)")) == size
