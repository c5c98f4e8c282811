"""Where things lie changes nothing: the same training on every mesh; and what the mesh refuses."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.support.small_runs import batches, trainer, worst_difference
from transformer_jax.config import MeshConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.update import sharding

# Ten updates in float32, summed in another order.
WITHIN = 5e-5
MESHES = {
    "data 8": {},
    "data 4 x fsdp 2": {"mesh__fsdp": 2},
    "data 4 x tensor 2": {"mesh__tensor": 2},
    "data 2 x fsdp 2 x tensor 2": {"mesh__fsdp": 2, "mesh__tensor": 2},
    "fsdp 8": {"mesh__fsdp": 8},
}


@pytest.fixture(scope="module")
def on_one():
    return {rate: trainer(model__dropout=rate).train(batches()) for rate in (0.0, 0.2)}


@pytest.mark.parametrize("mesh", [pytest.param(mesh, marks=pytest.mark.slow if "8" in mesh else ()) for mesh in MESHES])
def test_eight_devices_train_as_one(mesh, on_one):
    run = trainer(devices=8, **MESHES[mesh])
    state = run.train(batches())
    assert worst_difference(state, on_one[0.0]) < (WITHIN,)
    assert float(state.sums.loss) == pytest.approx(float(on_one[0.0].sums.loss), rel=1e-5)
    assert float(state.sums.gradient_norm) == pytest.approx(float(on_one[0.0].sums.gradient_norm), rel=1e-4)
    assert int(state.sums.source_tokens) == int(on_one[0.0].sums.source_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data 8", "data 2 x fsdp 2 x tensor 2"])
def test_dropout_is_the_same_on_any_number_of_devices(mesh, on_one):
    state = trainer(devices=8, model__dropout=0.2, **MESHES[mesh]).train(batches())
    assert worst_difference(state, on_one[0.2]) < (WITHIN,)


def test_accumulation_on_eight_devices_is_the_whole_batch_on_one(on_one):
    state = trainer(devices=8, train__accumulate=2, mesh__fsdp=2).train(batches())
    assert worst_difference(state, on_one[0.0]) < (WITHIN,)
    assert int(state.sums.source_tokens) == int(on_one[0.0].sums.source_tokens)


def test_the_state_begins_divided():
    """No device ever holds a parameter or a moment whole, and the moments lie where their parameters lie."""
    state = trainer(devices=8, mesh__fsdp=2, mesh__tensor=2).new()
    table, kernel = (
        (tree["source_embedding"]["table"], tree["encoder"]["layers_0"]["feed_forward"]["inner"]["kernel"])
        for tree in (state.params, state.optimizer[0].mu)
    )
    for array in (*table, *kernel):
        assert array.addressable_shards[0].data.size == array.size // 4
    whole = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    on_first = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state.params))
    assert on_first < 0.35 * whole  # norms and biases are whole everywhere


@pytest.mark.parametrize("tied", ["all", "target", "none"])
@pytest.mark.parametrize("positions", ENCODINGS)
def test_the_rules_cover_every_parameter_of_the_library(positions, tied):
    for norm, activation in (("post", "relu"), ("pre", "swiglu")):
        changes = {"norm": norm, "activation": activation, "tie_embeddings": tied, "attention_bias": True}
        given = {f"model__{name}": value for name, value in {**changes, "positions": positions}.items()}
        trainer(devices=8, mesh__fsdp=2, mesh__tensor=2, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["adafactor", "muon", *(pytest.param(name, marks=pytest.mark.drill) for name in ("lamb", "sgd", "noisy_sgd"))],
)
@pytest.mark.filterwarnings("ignore:Specifying a key")
def test_other_optimizers_states_find_their_place(name):
    optimizer = {"optimizer__name": name, "mesh__fsdp": 2, "mesh__tensor": 2}
    state = trainer(devices=8, **optimizer).train(batches(2))
    alone = trainer(optimizer__name=name).train(batches(2))
    assert worst_difference(state, alone) < (1e-3 if name == "muon" else WITHIN,)


OWN_PART = """
from flax import linen as nn
from transformer_jax.model.layers import FeedForward

class Strange(FeedForward):

    @nn.compact
    def __call__(self, x_BTD, deterministic=True):
        return nn.Dense(x_BTD.shape[-1], name="strange")(x_BTD)
"""


def test_a_parameter_that_no_rule_covers_is_refused_until_someone_says(tmp_path):
    (tmp_path / "own.py").write_text(OWN_PART)
    part = {"model__parts__feed_forward": f"{tmp_path / 'own.py'}:Strange"}
    trainer(devices=8, **part)  # on a mesh that divides no parameter there is nothing to say
    with pytest.raises(BadInput, match=r"no sharding rule covers params/\S*strange/\S+ \(16.*mesh\.replicate"):
        trainer(devices=8, mesh__fsdp=2, **part)
    state = trainer(devices=8, mesh__fsdp=2, mesh__replicate=("strange",), **part).new()
    strange = state.params["encoder"]["layers_0"]["feed_forward"]["strange"]["kernel"]
    assert strange.sharding.spec == PartitionSpec()


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"fsdp": 3}, "fsdp = 3, tensor = 1 need 6 devices, here are 8"),
        ({"data": 16}, "data = 16, fsdp = 1, tensor = 1 need 16 devices, here are 8"),
        ({"data": 2, "tensor": 2}, "need 4 devices, here are 8"),
        ({"fsdp": 16}, "need 16 devices, here are 8"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_with_both_numbers(sizes, told):
    with pytest.raises(ConfigError, match=r"^mesh: ") as problem:
        sharding.make_mesh(MeshConfig(**sizes), jax.devices())
    assert told in str(problem.value)


def test_the_data_axis_takes_what_the_others_leave():
    mesh = sharding.make_mesh(MeshConfig(fsdp=2, tensor=2), jax.devices())
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert sharding.batch_devices(mesh) == 4


def test_an_axis_that_does_not_divide_a_dimension_leaves_it_whole():
    state = trainer(devices=8, model__vocab_size=25, mesh__tensor=2).new()
    assert state.params["source_embedding"]["table"].addressable_shards[0].data.shape == (25, 16)
    assert np.isfinite(float(jax.numpy.sum(state.params["source_embedding"]["table"])))
