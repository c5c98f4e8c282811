"""What the compiled step sends, and no more, and what memory it needs: read from its HLO; nothing is run."""

from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from tests.support.hlo import Configuration, collectives, compiled, compiled_elsewhere
from transformer_jax.update.reduction import Slices

pytestmark = pytest.mark.slow

SIZE = {
    "vocab_size": 1000,
    "d_model": 64,
    "d_ff": 256,
    "num_heads": 4,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
}
CONFIGURATIONS = {
    "one": Configuration((1, 1, 1), 64, 32, 1, SIZE),
    "data in parts": Configuration((8, 1, 1), 256, 24, 4, {**SIZE, "dropout": 0.1}),
    "fsdp": Configuration((2, 4, 1), 256, 32, 1, {**SIZE, "tie_embeddings": "none"}),
    "fsdp alone in parts": Configuration((1, 8, 1), 512, 32, 2, {**SIZE, "d_model": 128, "dtype": "bfloat16"}),
    "tensor": Configuration((4, 1, 2), 256, 32, 1, SIZE),
    "attention, all three in parts": Configuration(
        (2, 2, 2),
        256,
        32,
        2,
        {
            **SIZE,
            "num_key_value_heads": 2,
            "qk_norm": True,
            "attention_softcap": 5.0,
            "positions": "transformer_xl",
        },
    ),
    "all three in parts": Configuration((2, 2, 2), 256, 32, 2, {**SIZE, "activation": "swiglu"}),
    "fsdp, shared layers": Configuration((1, 4, 1), 128, 32, 1, {**SIZE, "share_layers": True, "norm": "sandwich"}),
}


def reduced(program, mesh, *axes):
    """The shapes of all arrays that are added up over these axes, with how often that happens in a step.

    Norms, losses and counts are added up as well: single numbers, left out here.
    """
    counted = Counter()
    for collective in collectives(program.hlo, mesh):
        if collective.kind == "all-reduce" and collective.axes in axes:
            for shape in collective.shapes:
                counted[shape] += collective.times if shape else 0
    return +counted


IN_SHORT = ("data in parts", "all three in parts")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.drill) for name in CONFIGURATIONS]
)
def test_the_step_sends_what_it_must_and_needs_the_memory_that_is_predicted(name, capfd):
    """Along data each device's own slice of each gradient once an update, the tied table too, however many parts there
    are, all of them and the losses and counts at one go; along fsdp matrices alone, forward and again backward in each
    part; along data and fsdp nothing else."""
    configuration = CONFIGURATIONS[name]
    program, mesh = configuration.compiled(), configuration.mesh
    over_data = reduced(program, mesh, ("data",), ("data", "fsdp"))
    assert over_data == (Counter(program.parameters) if mesh[0] > 1 else Counter())
    at_one_go = Counter(made.axes for made in collectives(program.hlo, mesh) if "data" in made.axes)
    assert set(at_one_go.values()) <= {1}
    kinds = {(collective.kind, collective.axes) for collective in collectives(program.hlo, mesh)}
    assert kinds <= {("all-reduce", axes) for axes in [("data",), ("fsdp",), ("data", "fsdp"), ("tensor",)]} | {
        ("all-gather", ("fsdp",)),
        ("all-to-all", ("fsdp",)),
    }
    assert "rematerialization" not in capfd.readouterr().err


@pytest.mark.drill
def test_each_gradient_is_added_up_once_also_on_64_devices():
    program = compiled_elsewhere(64, rows=256, train__accumulate=4, model__dropout=0.1)
    assert {collective.kind for collective in collectives(program.hlo, (64, 1, 1))} == {"all-reduce"}
    assert reduced(program, (64, 1, 1), ("data",)) == Counter(program.parameters)


def test_fsdp_gathers_one_layer_at_a_time():
    """Two layers more cost the memory of their slices, gradients' slices and activations: no layer is kept whole."""
    size = {"model__d_model": 64, "model__d_ff": 256, "mesh__fsdp": 8}
    one, three = (compiled(8, 8, model__num_encoder_layers=layers, **size).temporary for layers in (1, 3))
    layer = 4 * (4 * 64 * 64 + 2 * 64 * 256)  # bytes of its matrices
    assert (three - one) / 2 < 0.5 * layer


@pytest.mark.parametrize(
    ("platform", "sums"), [("cpu", "all_to_all"), ("gpu", "reduce_scatter"), ("tpu", "reduce_scatter")]
)
def test_how_gradients_are_summed_along_fsdp_is_chosen_by_the_devices_of_the_mesh(platform, sums):
    """Not by the machine that compiles: here it has CPUs in each case."""
    devices = np.array([SimpleNamespace(platform=platform)])
    described = SimpleNamespace(devices=devices, shape={"data": 1, "fsdp": 2, "tensor": 1})
    slices = Slices(PartitionSpec("fsdp"), described)
    mesh = Mesh(np.array(jax.devices()[:2]), ("fsdp",))

    def gradient(part, rows):
        return jax.grad(lambda part: slices.whole(part, rows).sum())(part)

    spread = {"in_specs": (PartitionSpec("fsdp"), PartitionSpec()), "out_specs": PartitionSpec("fsdp")}
    traced = jax.make_jaxpr(jax.shard_map(gradient, mesh=mesh, check_vma=False, **spread))(np.ones(4), np.ones(2))
    assert {name for name in ("all_to_all", "reduce_scatter") if name in str(traced)} == {sums}
