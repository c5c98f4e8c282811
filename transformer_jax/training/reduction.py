"""The gradient of a batch that lies on many devices: each makes that of its own rows, and they are added up once.

Left to itself XLA adds up each use of a parameter on its own (the tied embedding three times), and in every part of an
accumulated batch anew. Here each device makes the whole gradient of its own rows alone, by `shard_map` over the axes
that share the batch, so that one sum is left, after the last part. Along the axis `tensor` XLA divides the products.

With `fsdp` a device has a slice of each parameter. They are gathered for the model, and what comes back to a parameter
in the backward pass is added up and sliced again. Nothing that was gathered is kept for the backward pass: it is
gathered again, so that only what is in use lies whole on a device.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from transformer_jax.training.sharding import BATCH_AXES, batch_devices, parameter_specs

# (params, batch, rng, whole) -> (gradients, sums), both summed over the rows. The model must be given
# whole(params, rows) in place of its parameters.
Whole = Callable[[Any, Any], Any]
GATHERED = "gathered"


def as_they_are(params: Any, rows: Any) -> Any:
    """What is whole already."""
    return params


def over_devices(gradient: Callable[..., Any], mesh: Mesh, replicate: Sequence[str] = ()) -> Callable[..., Any]:
    """(params, batch, rng) -> what `gradient` makes of the whole batch, wherever on the mesh its rows lie."""
    if batch_devices(mesh) == 1:
        return gradient

    def summed(params: Any, batch: Any, rng: jax.Array) -> tuple[Any, Any]:
        specs = parameter_specs(params, mesh, replicate)
        slices = jax.tree.map(functools.partial(_along, "fsdp"), specs)

        def whole(params: Any, rows: Any) -> Any:
            params, _ = jax.lax.optimization_barrier((params, rows))  # not gathered before there is work to do
            return jax.tree.map(functools.partial(_gathered, mesh.shape["tensor"] > 1), params, specs)

        def own(params: Any, rows: Any, rng: jax.Array) -> tuple[Any, Any]:
            gradients, sums = gradient(params, rows, rng, whole if mesh.shape["fsdp"] > 1 else as_they_are)
            # What was sliced has been added up along fsdp already.
            left = jax.tree.map(lambda spec: "data" if "fsdp" in spec else BATCH_AXES, specs)
            return jax.tree.map(jax.lax.psum, gradients, left), jax.lax.psum(sums, BATCH_AXES)

        everywhere, rows = PartitionSpec(), PartitionSpec(BATCH_AXES)
        spread = {"in_specs": (slices, rows, everywhere), "out_specs": (slices, everywhere)}
        mapped = jax.shard_map(own, mesh=mesh, axis_names=set(BATCH_AXES), check_vma=False, **spread)
        return mapped(params, batch, rng)

    return summed


def gathered_again(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A loss whose backward pass keeps all that the forward pass has made, but for parameters that were gathered."""
    return jax.checkpoint(loss, policy=jax.checkpoint_policies.save_anything_except_these_names(GATHERED))


def _along(axis: str, spec: PartitionSpec) -> PartitionSpec:
    """What of a place concerns one axis of the mesh."""
    return PartitionSpec(*(name if name == axis else None for name in spec))


def _gathered(divided: bool, part: jax.Array, spec: PartitionSpec) -> jax.Array:
    """A parameter, from its slices on the axis fsdp; what `tensor` divides stays divided."""
    if "fsdp" not in spec:
        return part
    gather = functools.partial(_gather, list(spec).index("fsdp"))
    if divided:  # XLA by itself would gather along `tensor` as well
        place = _along("tensor", spec)
        gather = jax.shard_map(gather, in_specs=place, out_specs=place, axis_names={"tensor"}, check_vma=False)
    return checkpoint_name(gather(part), GATHERED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(dimension: int, part: jax.Array) -> jax.Array:
    return jax.lax.all_gather(part, "fsdp", axis=dimension, tiled=True)


def _gather_forward(dimension: int, part: jax.Array) -> tuple[jax.Array, None]:
    return _gather(dimension, part), None


def _gather_backward(dimension: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    """Adds up and slices. Between processes on CPUs psum_scatter gives wrong sums (gloo, of large arrays)."""
    if jax.default_backend() != "cpu":
        return (jax.lax.psum_scatter(gradient, "fsdp", scatter_dimension=dimension, tiled=True),)
    size = gradient.shape[dimension] // jax.lax.axis_size("fsdp")
    begin = jax.lax.axis_index("fsdp") * size
    return (jax.lax.dynamic_slice_in_dim(jax.lax.psum(gradient, "fsdp"), begin, size, dimension),)


_gather.defvjp(_gather_forward, _gather_backward)
