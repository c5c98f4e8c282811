"""Where things lie changes nothing: the same training on every mesh; and what the mesh refuses."""

import dataclasses
import functools
import itertools
import math
import operator
from collections import Counter

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, PartitionSpec

from tests.accelerators import hlo
from tests.support.hlo import Configuration
from tests.support.small_models import small
from tests.support.small_runs import (
    Trainer,
    batch_of,
    batches,
    experiment,
    params_of,
    sentences,
    trainer,
    worst_difference,
)
from transformer_jax import Transformer
from transformer_jax.config import DataConfig, MeshConfig, PartsConfig
from transformer_jax.data.batching import training_batches
from transformer_jax.data.prepared import TokenPairs
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.model.layers import FeedForward
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.model.transformer import abstract_params
from transformer_jax.update import sharding, step
from transformer_jax.update.loss import Objective

# Three updates in float32, summed in another order.
WITHIN = 5e-5
DROPOUT = {"model__dropout": 0.2}
THREE_WAYS = {
    "devices": 8,
    "mesh__fsdp": 2,
    "mesh__tensor": 2,
    "train__accumulate": 2,
    **DROPOUT,
    "model__num_key_value_heads": 2,
    "model__qk_norm": True,
    "model__attention_softcap": 2.0,
    "model__positions": "transformer_xl",
    "model__mup_base_d_model": 8,
    "train__rematerialize": "activations",  # on several devices alone
    # Some gradients of the positions' kernel are 1e-11: the paper's 1e-9 would make their rounding whole updates.
    "optimizer__epsilon": 1e-5,
}


@pytest.mark.parametrize(
    "options",
    [pytest.param({"devices": 8, **DROPOUT}, marks=pytest.mark.drill), THREE_WAYS],
    ids=["data 8", "three ways, in parts"],
)
def test_several_devices_train_as_one(options):
    """With the same dropout masks. tests/drills/test_every_mesh.py has all meshes."""
    others = ("devices", "mesh__", "train__rematerialize")
    on_one = {name: value for name, value in options.items() if not name.startswith(others)}
    alone, state = (trainer(**each).train(batches(3)) for each in (on_one, options))
    assert worst_difference(state, alone) < (WITHIN,)
    assert float(state.sums.loss) == pytest.approx(float(alone.sums.loss), rel=1e-5)
    assert float(state.sums.gradient_norm) == pytest.approx(float(alone.sums.gradient_norm), rel=1e-4)
    assert int(state.sums.source_tokens) == int(alone.sums.source_tokens)


def test_the_state_begins_divided_and_with_the_numbers_of_one_device():
    """No device ever holds a parameter or a moment whole, and the moments lie where their parameters lie."""
    state = trainer(devices=4, mesh__fsdp=2, mesh__tensor=2).init()
    table, kernel = (
        (tree["source_embedding"]["table"], tree["encoder"]["layers_0"]["feed_forward"]["inner"]["kernel"])
        for tree in (state.params, state.optimizer[0].mu)
    )
    for array in (*table, *kernel):
        assert array.addressable_shards[0].data.size == array.size // 4
    whole = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    on_first = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state.params))
    assert on_first < 0.35 * whole  # norms and biases are whole everywhere
    ours, alone = params_of(state), params_of(trainer().init())
    for name, array in alone.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-5, atol=1e-7)


def shardings(mesh, model, replicate=()):
    tokens = np.ones((1, 2), np.int32)
    params = jax.eval_shape(Transformer(model).init, jax.random.key(0), tokens, tokens)
    return sharding.state_shardings(params, sharding.make_mesh(mesh, jax.devices()), model, replicate)


# Rules look at names alone, so that no combination matters.
OTHERS = itertools.cycle([("all", "post", "relu"), ("target", "pre", "swiglu"), ("none", "sandwich", "glu")])


@pytest.mark.parametrize(("positions", "others"), list(zip(ENCODINGS, OTHERS, strict=False)))
def test_the_rules_cover_every_parameter_of_the_library(positions, others):
    tied, norm, activation = others
    options = {"norm": norm, "activation": activation, "tie_embeddings": tied, "attention_bias": True, "qk_norm": True}
    shardings(MeshConfig(fsdp=2, tensor=2), small(positions=positions, output_bias=True, **options))


def test_states_of_other_optimizers_find_their_place():
    """Moments lie where their parameters lie; what has another shape is replicated."""
    groups = (("table", {"name": "adafactor", "kwargs": {"min_dim_size_to_factor": 8}}),)
    options = experiment(optimizer__name="muon", optimizer__groups=groups, mesh__fsdp=2, mesh__tensor=2)
    states = Trainer(options, devices=4).plan
    specs = {sharding.path_name(path): leaf.sharding.spec for path, leaf in jax.tree_util.tree_leaves_with_path(states)}
    kernel = "encoder/layers_0/feed_forward/inner/kernel"
    assert {spec for path, spec in specs.items() if path.endswith(kernel)} == {PartitionSpec("fsdp", "tensor")}
    factored = {spec for path, spec in specs.items() if "v_row" in path and path.endswith("table")}
    assert factored == {PartitionSpec()}


class Strange(FeedForward):
    """Has a parameter that no rule knows."""

    @nn.compact
    def __call__(self, x_BTD, deterministic=True):
        return nn.Dense(x_BTD.shape[-1], name="strange")(x_BTD)


def test_a_custom_position_encoding_needs_no_rule():
    """Its parameters are small: every device has them whole."""
    mesh = sharding.make_mesh(MeshConfig(fsdp=2, tensor=2), jax.devices())
    place = sharding.state_shardings(
        {"params": {"encoder": {"positions_0": {"of_pairs": np.zeros((4, 4))}}}}, mesh, small()
    )
    assert place["params"]["encoder"]["positions_0"]["of_pairs"].spec == PartitionSpec()


def test_a_parameter_that_no_rule_covers_is_refused_until_someone_says():
    model, divided = small(parts=PartsConfig(feed_forward=Strange)), MeshConfig(fsdp=2)
    shardings(MeshConfig(), model)  # on a mesh that divides no parameter there is nothing to say
    with pytest.raises(BadInput, match=r"no sharding rule covers params/\S*strange/\S+ \(8.*mesh\.replicate"):
        shardings(divided, model)
    layer = shardings(divided, model, ("strange",))["params"]["encoder"]["layers_0"]
    assert layer["feed_forward"]["strange"]["kernel"].spec == PartitionSpec()


@pytest.mark.parametrize("sizes", [{"fsdp": 3}, {"data": 2, "tensor": 2}])
def test_a_mesh_that_does_not_fit_is_an_error(sizes):
    with pytest.raises(ConfigError, match="devices, here are 8"):
        sharding.make_mesh(MeshConfig(**sizes), jax.devices())


def test_the_data_axis_takes_what_the_others_leave():
    mesh = sharding.make_mesh(MeshConfig(fsdp=2, tensor=2), jax.devices())
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert sharding.batch_shards(mesh) == 4


def test_an_axis_that_does_not_divide_a_dimension_leaves_it_whole():
    specs = shardings(MeshConfig(tensor=2), small(vocab_size=25))["params"]
    assert specs["source_embedding"]["table"].spec == PartitionSpec(None, "fsdp")
    assert specs["encoder"]["layers_0"]["feed_forward"]["inner"]["kernel"].spec == PartitionSpec("fsdp", "tensor")


@dataclasses.dataclass(frozen=True)
class DescribedTPU:
    """What a mesh is made of: a chip with its place in the torus."""

    id: int
    coords: tuple[int, int, int]
    platform: str = "tpu"
    device_kind: str = "TPU v5"
    core_on_chip: int = 0
    process_index: int = 0


@pytest.mark.parametrize("sizes", [(32, 8, 2), (2, 2, 128)])
def test_every_mesh_on_a_torus_of_tpus(sizes):
    """Also one whose axes are none of the torus's, nor products of them."""
    chips = [DescribedTPU(number, place) for number, place in enumerate(itertools.product(range(8), repeat=3))]
    data, fsdp, tensor = sizes
    mesh = sharding.make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor), chips)
    assert mesh.devices.shape == sizes and set(mesh.devices.flat) == set(chips)


@pytest.mark.parametrize("batching", ["buckets", "packing"])
@pytest.mark.parametrize("sizes", [{}, {"fsdp": 2, "tensor": 2}, {"tensor": 4}])
def test_each_host_of_a_torus_loads_the_rows_of_its_chips(sizes, batching, monkeypatch):
    """Each of four hosts has 2 x 2 neighbours of 4 x 4 chips. Their shards need not follow each other."""
    chips = [
        DescribedTPU(4 * y + x, (x, y, 0), device_kind="TPU v5 lite", process_index=y // 2 * 2 + x // 2)
        for y, x in itertools.product(range(4), repeat=2)
    ]
    mesh, offsets = sharding.make_mesh(MeshConfig(**sizes), chips), np.arange(0, 1001, 5)
    pairs = TokenPairs(np.arange(4, 1004), offsets, np.arange(1004, 2004), offsets)
    data = DataConfig(batching=batching, tokens_per_batch=400, max_length=20)
    made = training_batches(data, pairs, sharding.batch_shards(mesh))
    for number, host in itertools.product(range(made.steps_per_epoch), range(4)):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        whole, loaded = made.batch(number), made.batch(number, *sharding.batch_share(mesh))
        rows = np.arange(len(whole.source))
        rows_of = sharding.batch_sharding(mesh).devices_indices_map(rows.shape)
        # JAX takes the rows that a process has loaded for those of its devices, in ascending order.
        here = np.unique([rows[rows_of[chip]] for chip in chips if chip.process_index == host])
        jax.tree.map(np.testing.assert_array_equal, loaded, jax.tree.map(operator.itemgetter(here), whole))


# What the compiled step sends, and no more: read from its HLO; nothing is run.

SIZE = {
    "vocab_size": 1000,
    "d_model": 64,
    "d_ff": 256,
    "num_heads": 4,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}
CONFIGURATIONS = {
    "data in parts": Configuration((8, 1, 1), 256, 24, 4, {**SIZE, "dropout": 0.1}),
    "data and tensor in parts": Configuration((4, 1, 2), 256, 32, 2, {**SIZE, "activation": "swiglu"}),
    "fsdp": Configuration((2, 4, 1), 256, 32, 1, {**SIZE, "tie_embeddings": "none"}),
    "all three in parts": Configuration((2, 2, 2), 256, 32, 2, {**SIZE, "activation": "swiglu"}),
}


def shapes_sent(program, sizes, kind, *axes):
    """The shapes of all arrays that are sent over these axes, with how often that happens in a step.

    Norms, losses and counts are added up as well: single numbers, left out here.
    """
    counted = Counter()
    for collective in hlo.Program(program.hlo).collectives():
        if collective.kind == kind and collective.axes(sizes) in axes:
            for shape in collective.shapes:
                counted[shape] += collective.times if shape else 0
    return +counted


@pytest.mark.parametrize("name", [pytest.param("data in parts", marks=pytest.mark.drill), "data and tensor in parts"])
def test_each_gradient_is_added_up_once_an_update(name):
    """Each device's own slice of it, the tied table too, for any number of microbatches; nothing else along data."""
    configuration = CONFIGURATIONS[name]
    program, sizes = configuration.compiled(), configuration.sizes
    over_data = shapes_sent(program, sizes, "all-reduce", ("data",))
    assert over_data == Counter(program.parameters)
    sent = [(made.kind, made.axes(sizes)) for made in hlo.Program(program.hlo).collectives()]
    assert set(Counter(axes for _, axes in sent if "data" in axes).values()) <= {1}
    assert set(sent) <= {("all-reduce", ("data",)), ("all-reduce", ("tensor",))}


@pytest.mark.parametrize("name", [pytest.param("fsdp", marks=pytest.mark.drill), "all three in parts"])
def test_along_fsdp_matrices_are_gathered_once_and_activations_stay_where_they_are(name):
    configuration = CONFIGURATIONS[name]
    program, sizes = configuration.compiled(), configuration.sizes
    sent = hlo.Program(program.hlo).collectives()
    assert {made.kind for made in sent} <= {"all-reduce", "reduce-scatter", "all-gather"}
    gathers = [shape for made in sent if made.kind == "all-gather" for shape in made.shapes]
    assert all(made.axes(sizes) == ("fsdp",) and made.times == 1 for made in sent if made.kind == "all-gather")
    matrices = [shape for shape in program.parameters if len(shape) == 2]
    assert len(gathers) <= len(matrices) and {len(shape) for shape in gathers} == {2}
    assert max(len(shape) for made in sent if "fsdp" in made.axes(sizes) for shape in made.shapes) == 2


@pytest.mark.drill
def test_keys_and_values_whose_heads_tensor_does_not_divide_are_replicated():
    """With a half of a head on each device XLA would sum all scores over devices."""
    options = {"num_key_value_heads": 1, "d_model": 96}
    configuration = Configuration((1, 1, 2), 16, 32, 1, {**SIZE, **options})
    program = configuration.compiled()
    summed = shapes_sent(program, configuration.sizes, "all-reduce", ("tensor",))
    assert max(map(math.prod, summed)) < 16 * 4 * 32 * 32


@pytest.mark.parametrize("tensor", [1, 2])
def test_kernels_that_xla_cannot_partition_see_no_axis_unless_tensor_divides(tensor, monkeypatch):
    """cuDNN's attention compiles for several GPUs only where every axis of the mesh is manual."""
    config, axes = experiment(mesh__fsdp=2, mesh__tensor=tensor), []

    def gradient(config, objective, mesh, params, *_):
        axes.append(jax.sharding.get_abstract_mesh().manual_axes)
        return params, np.ones(())

    monkeypatch.setattr(step, "rows_gradient", gradient)
    of_batch = functools.partial(step.batch_gradient, config, Objective(), sharding.make_mesh(config.mesh))
    jax.eval_shape(of_batch, abstract_params(config.model), batch_of(sentences(8)), jax.random.key(0))
    assert set(axes[0]) == {"data", "fsdp", *(["tensor"] if tensor == 1 else [])}


def test_a_mesh_of_explicit_axes_is_an_error_that_names_auto():
    explicit = jax.make_mesh((8, 1, 1), sharding.AXES, axis_types=(AxisType.Explicit,) * 3)
    others = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    for mesh in (explicit, others):
        with pytest.raises(BadInput, match=r"AxisType\.Auto"):
            sharding.state_shardings({"params": {}}, mesh, small())
