"""The mesh of three axes, and an ordered table of rules that shards each parameter over it.

- `data`: devices that split the batch and hold the same parameters.
- `fsdp`: devices that split the batch and hold a shard of each large parameter.
- `tensor`: devices that split each matrix product: heads, inner width and vocabulary are sharded.
"""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import MeshConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.model_config import ModelConfig

AXES = ("data", "fsdp", "tensor")
# The batch is sharded over both.
BATCH_AXES = ("data", "fsdp")

# The first pattern found in a parameter's path says which axis divides which of its dimensions.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"embedding/table$", ("tensor", "fsdp")),
    (r"output_bias$", ("tensor",)),
    (r"(query|key|value|inner|gate)/kernel$", ("fsdp", "tensor")),
    (r"positions_\d+/kernel$", ("fsdp", "tensor")),
    (r"(output|outer)/kernel$", ("tensor", "fsdp")),
    (r"(query|key|value|inner|gate)/bias$", ("tensor",)),
    (r"(output|outer)/bias$", ()),
    (r"norm/(scale|bias)$", ()),
    (r"positions_\d+/(content_bias|distance_bias)$", ("tensor",)),
    (r"positions_\d+/", ()),  # tables of vectors: small, and looked up whole
)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh that a config asks for, on the devices there are."""
    devices = jax.devices() if devices is None else devices
    inner = config.fsdp * config.tensor
    data = config.data or max(len(devices) // inner, 1)
    if data * inner != len(devices):
        sizes = f"data = {config.data or 'the rest'}, fsdp = {config.fsdp}, tensor = {config.tensor}"
        raise ConfigError([f"mesh: {sizes} need {data * inner} devices, here are {len(devices)}"])
    shape, auto = (data, config.fsdp, config.tensor), (AxisType.Auto,) * 3
    try:
        return jax.make_mesh(shape, AXES, axis_types=auto, devices=devices)
    except NotImplementedError:  # a torus of TPUs, one of whose axes must be split, as in 8 x 8 x 8 for tensor 2
        return Mesh(create_device_mesh(shape, devices, allow_split_physical_axes=True), AXES, axis_types=auto)


def batch_shards(mesh: Mesh) -> int:
    """The number of shards of a batch."""
    return int(np.prod([mesh.shape[axis] for axis in BATCH_AXES]))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def batch_share(mesh: Mesh) -> tuple[tuple[int, ...], int]:
    """(shards, of): the ascending numbers of the shards of a batch that this process's devices have, of how many.

    They need not follow each other: the devices of a TPU host are neighbours in the torus, not in the mesh. Processes
    whose devices share each matrix product have the same shards.
    """
    shard_of = batch_sharding(mesh).devices_indices_map((batch_shards(mesh),))
    by_process: dict[int, set[int]] = {}
    for device in mesh.devices.flat:
        by_process.setdefault(device.process_index, set()).add(shard_of[device][0].start or 0)
    share_of = {process: tuple(sorted(shards)) for process, shards in by_process.items()}
    shares = sorted(set(share_of.values()))
    if len({len(share) for share in shares}) > 1 or sum(map(len, shares)) != batch_shards(mesh):
        raise ConfigError([f"mesh: the devices of each process must have equally many shards of a batch, not {shares}"])
    return share_of[jax.process_index()], batch_shards(mesh)


def place_batch(batch: Any, mesh: Mesh) -> Any:
    """This process's rows of a batch, numpy arrays in the order of its shards, as arrays divided among all devices."""
    sharding = batch_sharding(mesh)
    return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, rows), batch)


def state_shardings(abstract_state: Any, mesh: Mesh, model: ModelConfig, replicate: Sequence[str] = ()) -> Any:
    """A sharding for every leaf of a train state. The optimizer's moments are sharded like their parameters.

    Arrays of an optimizer in other shapes (counters, factored moments) are small, and replicated, like parameters that
    match a pattern of `replicate` (mesh.replicate).
    """
    if set(mesh.axis_names) != set(AXES) or any(kind != AxisType.Auto for kind in mesh.axis_types):  # made elsewhere
        sizes = tuple(mesh.shape.get(axis, 1) for axis in AXES)
        sizes = sizes if math.prod(sizes) == mesh.size else (mesh.size, 1, 1)
        raise BadInput(
            f"mesh has the axes {mesh.axis_names} of the types {mesh.axis_types}: must be "
            f"jax.make_mesh({sizes}, {AXES}, axis_types=(jax.sharding.AxisType.Auto,) * 3)"
        )
    uncovered: list[str] = []
    if model.key_value_heads % mesh.shape["tensor"]:  # with parts of a head XLA would sum all scores over devices
        replicate = (*replicate, r"_attention/(key|value)/")

    def place(path: Any, leaf: Any) -> NamedSharding:
        name = path_name(path)
        spec = _spec(name, leaf.shape, mesh, replicate)
        if spec is None and name.startswith("params/"):
            uncovered.append(f"{name} {tuple(leaf.shape)}")
        return NamedSharding(mesh, spec or PartitionSpec())

    shardings = jax.tree_util.tree_map_with_path(place, abstract_state)
    if uncovered:
        raise BadInput(
            f"no sharding rule covers {', '.join(uncovered)}: with mesh.fsdp or mesh.tensor above 1, add a "
            "pattern of its path to mesh.replicate"
        )
    return shardings


def param_shardings(params: Any, mesh: Mesh, model: ModelConfig, replicate: Sequence[str] = ()) -> Any:
    """A sharding for every parameter."""
    return state_shardings({"params": params}, mesh, model, replicate)["params"]


def path_name(path: Any) -> str:
    """A leaf's path as text: params/encoder/layers_0/self_attention/query/kernel."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def _spec(name: str, shape: tuple[int, ...], mesh: Mesh, replicate: Sequence[str]) -> PartitionSpec | None:
    """How the mesh divides one leaf; None if no rule covers it."""
    is_replicated = mesh.shape["fsdp"] == mesh.shape["tensor"] == 1
    if not shape or is_replicated or any(re.search(pattern, name) for pattern in replicate):
        return PartitionSpec()
    for pattern, axes in RULES:
        if re.search(pattern, name) and len(axes) <= len(shape):
            # A dimension that the axis does not divide is replicated.
            return PartitionSpec(
                *(axis if axis and shape[i] % mesh.shape[axis] == 0 else None for i, axis in enumerate(axes))
            )
    return None


def specs_over(axis: str, shardings: Any) -> Any:
    """The PartitionSpec of each array over one axis alone."""

    def spec(sharding: NamedSharding) -> PartitionSpec:
        is_sharded = sharding.mesh.shape[axis] > 1
        return PartitionSpec(*(axis if name == axis and is_sharded else None for name in sharding.spec))

    return jax.tree.map(spec, shardings)


def gathered(params: Any, shardings: Any) -> Any:
    """Inside a `shard_map`, parameters gathered over `fsdp`. The derivative sums gradients and scatters them."""

    def gather(array: jax.Array, sharding: NamedSharding) -> jax.Array:
        fsdp, tensor = specs_over("fsdp", sharding), specs_over("tensor", sharding)
        if "fsdp" not in fsdp:
            return array
        joined = functools.partial(jax.lax.all_gather, axis_name="fsdp", axis=fsdp.index("fsdp"), tiled=True)
        if "tensor" in tensor:  # XLA would gather over `tensor`, too; the mesh is the outer shard_map's
            joined = jax.shard_map(joined, axis_names={"tensor"}, in_specs=tensor, out_specs=tensor, check_vma=False)
        return joined(array)

    return jax.tree.map(gather, params, shardings)
