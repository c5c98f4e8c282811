"""Clusters as they are described, and the best mesh for each."""

import pytest

from transformer_jax import ModelConfig
from transformer_jax.errors import BadInput
from transformer_jax.planning.cluster import KNOWN, meshes, parse_cluster, plan, plans
from transformer_jax.planning.cost import MeshSize, Work


def test_a_cluster_by_name_or_by_its_numbers():
    named = parse_cluster("64xH100,utilisation=0.3")
    assert (named.devices, named.utilisation, named.flops) == (64, 0.3, 989e12)
    numbers = ",".join(f"{key}={value}" for key, value in {"flops": 989e12, **KNOWN["H100"]}.items())
    assert parse_cluster(f"64,{numbers},utilisation=0.3") == named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("H100", "must begin with how many devices there are"),
        ("0xH100", "must begin with how many"),
        ("8xH10", "did you mean H100"),
        ("8xH100,flop=1", "did you mean flops"),
        ("8xH100,flops=fast", "flops = 'fast' is not a number"),
        ("8xH100,memory=-1", "must be above 0"),
        ("8xH100,memory=nan", "must be above 0, and finite"),
        ("8xH100,flops=inf", "must be above 0, and finite"),
        ("8xH100,utilisation=3", "must be at most 1"),
        ("8xH100,group=8.5", "is not an integer"),
        (f"{'9' * 5000}xH100", "from 1 to 1,000,000"),
        ("8,flops=1e12", "memory, bandwidth, group, between missing"),
    ],
)
def test_what_describes_no_cluster(text, message):
    with pytest.raises(BadInput, match=message):
        parse_cluster(text)


def test_meshes_divide_the_devices_and_the_model():
    config = ModelConfig.base()
    found = list(meshes(config, parse_cluster("24xH100")))
    assert len(set(found)) == len(found) > 5
    for mesh in found:
        assert mesh.devices == 24
        assert config.num_heads % mesh.tensor == config.d_model % mesh.fsdp == 0 and mesh.tensor <= 8


def test_more_devices_take_less_time_and_are_used_less_well():
    work, config = Work(3072, 32, 32), ModelConfig.big()
    by_devices = [plans(config, work, parse_cluster(f"{n}xH100"))[0] for n in (1, 8, 64, 512)]
    times = [plan.seconds for plan in by_devices]
    efficiencies = [plan.efficiency for plan in by_devices]
    assert times == sorted(times, reverse=True) or times[-1] > times[-2]  # sending may outweigh computing in the end
    assert efficiencies == sorted(efficiencies, reverse=True) and efficiencies[0] == 1


def test_a_batch_is_not_cut_into_more_parts_than_it_has_rows():
    tiny = parse_cluster("1xH100,memory=1")
    assert plan(ModelConfig.base(), Work(5, 256, 256), tiny, MeshSize(1, 1, 1)).work.parts == 5


def test_small_memory_asks_for_parts_and_slices():
    """A model that does not fit whole is cut by fsdp; a batch that does not fit is cut into parts."""
    config, work = ModelConfig.big(), Work(3072, 32, 32)
    roomy, tight = parse_cluster("8xH100"), parse_cluster("8xH100,memory=2.5e9")
    assert plans(config, work, roomy)[0].mesh == MeshSize(8, 1, 1)
    assert plan(config, work, roomy, MeshSize(8, 1, 1)).work.parts == 1
    whole = plan(config, work, tight, MeshSize(8, 1, 1))
    assert whole.memory.total > tight.memory and whole.work.parts > 1
    best = plans(config, work, tight)[0]
    assert best.memory.total <= tight.memory and best.mesh.fsdp * best.mesh.tensor > 1
