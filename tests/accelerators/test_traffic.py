"""The bytes and the work that are read from the text of a compiled program, compared with sums by hand."""

import re

import jax
import pytest

from tests.accelerators.traffic import Sent, Traffic, all_in_memory, hidden, in_memory
from tests.support.small_runs import Trainer, batch_of, experiment, sentences
from transformer_jax.model.size import training_flops
from transformer_jax.planning.hlo import Array, Collective, UnknownHlo, parse_instruction


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


def test_messages_their_groups_and_the_work_meanwhile():
    (sent,) = PROGRAM.sent(lambda accessed, flops: flops)
    message = sent.collective
    assert (message.kind, message.group, message.times, message.is_asynchronous) == ("all-reduce", (0, 2), 1, True)
    assert sent.seconds == 2 * 16**3
    assert message.sent == 16 * 16 * 4  # 2 (n - 1) / n of the array
    assert message.axes({"data": 2, "fsdp": 2, "tensor": 1}) == ("data",)


OVERLAPPING = module("""
body:
  %m = f32[16,16]{1,0} parameter(0)
  ROOT %square = f32[16,16]{1,0} dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
condition:
  %m.1 = f32[16,16]{1,0} parameter(0)
  ROOT %more = pred[] constant(true)
main:
  %x = f32[1000]{0} parameter(0)
  %y = f32[16,16]{1,0} parameter(1)
  %first = f32[1000]{0} all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%sum
  %second = f32[1000]{0} all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%sum
  %loop = f32[16,16]{1,0} while(%y), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %first-done = f32[1000]{0} all-reduce-done(%first)
  %second-done = f32[1000]{0} all-reduce-done(%second)
  ROOT %result = f32[16,16]{1,0} bitcast(%loop)
""")


def test_a_message_hides_behind_loops_and_not_behind_other_messages():
    for sent in Traffic(OVERLAPPING).sent(lambda accessed, flops: accessed + flops):
        assert sent.seconds == 5 * 2 * 16**3 + 5 * 3 * 16 * 16 * 4


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
  %q = f32[2,3,5,7]{3,2,1,0} parameter(1)
  %k = f32[2,3,7,9]{3,2,1,0} parameter(2)
  %again = bf16[64,4]{0,1} all-gather(%x), replica_groups=[1,8]<=[8], frontend_attributes={chain_id="0"}
  ROOT %s = f32[2,3,5,9] convolution(%q, %k), window={size=2x3 stride=1x2 lhs_dilate=2x3}, dim_labels=01bf_01io->01bf
end:
  %x = bf16[8,4]{0,1} parameter(0)
  %gathered = bf16[64,4]{0,1} all-gather(%x), replica_groups=[1,8]<=[8], frontend_attributes={chain_id="0"}
  ROOT %ended = bf16[64,4]{0,1} custom-call(%gathered), custom_call_target="AsyncCollectiveDone"
main:
  %x = bf16[8,4]{0,1} parameter(0)
  %q = f32[2,3,5,7]{3,2,1,0} parameter(1)
  %k = f32[2,3,7,9]{3,2,1,0} parameter(2)
  %async-collective-start = bf16[64,4]{0,1} fusion(%x), kind=kCustom, calls=%begin
  %async_collective_fusion = f32[2,3,5,9]{3,2,1,0} fusion(%x, %q, %k), kind=kCustom, calls=%step
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
  %k = f32[7,9]{1,0} parameter(2)
  %ready = token[] custom-call(), custom_call_target="PrepareAsyncCallDone"
  %sent = ((f32[1000]{0}, token[]), f32[1000]{0}) call-start(%x, %ready), to_apply=%called
  %dot = f32[5,9]{1,0} dot(%q, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %received = f32[1000]{0} call-done(%sent)
""")


def test_a_message_that_a_sparse_core_sends_is_asynchronous():
    (sent,) = Traffic(OFFLOADED).sent(lambda accessed, flops: flops)
    message = sent.collective
    assert (message.kind, message.arrays[0].shape, message.is_asynchronous) == ("all-reduce", (1000,), True)
    assert sent.seconds == 2 * 5 * 7 * 9


def test_a_message_sent_in_steps_is_one_with_the_work_of_its_steps():
    (sent,) = Traffic(STEPS).sent(lambda accessed, flops: flops)
    message = sent.collective
    assert (message.kind, message.arrays[0].shape, message.is_asynchronous) == ("all-gather", (64, 4), True)
    assert sent.seconds == 2 * (2 * 3) * 5 * 7 * 9  # a batch of 2 x 3 products, as TPUs write it


def test_the_products_of_a_training_step_are_those_of_the_formula():
    """A compiled step, its products counted in the text: the forward pass once and the backward pass twice."""
    config = experiment(model__d_model=32, model__d_ff=64)
    trainer = Trainer(config, 1)
    batch = batch_of(sentences(16), 8)
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch)
    program = Traffic(trainer.step.func.lower(*trainer.step.args, trainer.plan, shapes).compile().as_text())
    counted = program.flops()
    rows, length = batch.source.shape
    assert counted == pytest.approx(
        training_flops(config.model, length, length).of(rows * length, rows * length), rel=0.02
    )


@pytest.mark.parametrize("kernel", ["__cublas$gemm", "__onednn$matmul", "tpu_custom_call"])
def test_products_inside_an_unknown_kernel_are_an_error(kernel):
    line = f'  ROOT %y = f32[4,4] custom-call(%x, %x), custom_call_target="{kernel}"'
    text = "\n".join(["ENTRY %main (x: f32[4,4]) -> f32[4,4] {", "  %x = f32[4,4] parameter(0)", line, "}"])
    with pytest.raises(UnknownHlo, match="kernel"):
        Traffic(text).flops()


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
    assert Traffic(text).flops() == 2 * 6 * 3 * 4 * 2 * 5


def test_the_products_in_cudnns_attention_count():
    """Two forward and five backward, each of 2 x 3 rows x 2 heads x 4 queries x 6 keys x 8 numbers."""
    arrays = [f"  %{name} = bf16[3,{size},2,8]{{3,2,1,0}} parameter(0)" for name, size in (("q", 4), ("k", 6))]
    calls = [
        f'  %call.{i} = (bf16[3,2,4,8]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%q, %k, %k), custom_call_target="{target}"'
        for i, target in enumerate(("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"))
    ]
    program = Traffic("\n".join(["ENTRY %main (q: f32[], k: f32[]) -> f32[] {", *arrays, *calls, "}"]))
    counted = [program.flops_of(instruction, computation) for instruction, _, computation in program.scheduled()]
    assert counted == [0, 0, 2 * 2 * 3 * 2 * 4 * 6 * 8, 5 * 2 * 3 * 2 * 4 * 6 * 8]


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


def test_the_share_of_the_gradients_that_hides_behind_work():
    mesh = {"data": 2, "fsdp": 1, "tensor": 2}

    def message(elements, kind="all-reduce", group=(0, 2), asynchronous=True, milliseconds=1.0):
        arrays = (Array("f32", (elements,), "{0}"),)
        return Sent(Collective(kind, arrays, group, 1, asynchronous), milliseconds / 1000)

    gradients = [message(300), message(300, milliseconds=0.4), message(400, asynchronous=False)]
    others = [message(5000, "all-gather"), message(5000, group=(0, 1))]
    assert hidden([*gradients, *others], mesh) == 0.3
    assert hidden(others, mesh) is None
