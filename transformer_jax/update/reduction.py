"""The gradient of a batch that is divided among devices: each computes that of its own rows, and they are summed once.

By default XLA sums each use of a parameter separately (the tied embedding three times), and again in every part of an
accumulated batch. Here `shard_map` over the axes that share the batch lets each device compute the whole gradient of
its own rows, so that one sum remains, after the last part. Along the axis `tensor` XLA divides the matrix products.

With `fsdp` a device has a slice of each parameter. The slices are gathered for the model, and in the backward pass
gradients are summed and sliced again. The gathered parameters are not kept for the backward pass but gathered again,
so that a device holds only those in use.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from transformer_jax.model.dropout import rows_divided_over
from transformer_jax.update.sharding import BATCH_AXES, batch_devices, parameter_specs


class Slices:
    """How parameters of which each device has a slice along fsdp are gathered."""

    def __init__(self, specs: Any, mesh: Mesh):
        self._specs, self._is_divided = specs, mesh.shape["tensor"] > 1
        self._gather = _gather_on_cpus if mesh.devices.flat[0].platform == "cpu" else _gather

    def whole(self, params: Any, rows: Any) -> Any:
        """The parameters, gathered; not before the rows are there to work on."""
        params, _ = jax.lax.optimization_barrier((params, rows))
        return jax.tree.map(self._gathered, params, self._specs)

    def _gathered(self, part: jax.Array, spec: PartitionSpec) -> jax.Array:
        """A parameter gathered along fsdp; what `tensor` divides stays divided."""
        if "fsdp" not in spec:
            return part
        gather = functools.partial(self._gather, list(spec).index("fsdp"))
        if self._is_divided:  # otherwise XLA would gather along `tensor` as well
            along = _along("tensor", spec)
            gather = jax.shard_map(gather, in_specs=along, out_specs=along, axis_names={"tensor"}, check_vma=False)
        return gather(part)

    def policy(self, params: Any, keeps: Callable[..., bool]) -> Callable[..., bool]:
        """For `jax.checkpoint`: gathers parameters and makes copies again; of the rest it keeps what `keeps` does."""
        whole = jax.eval_shape(self.whole, params, ())
        shapes = {shape for leaf in jax.tree.leaves(whole) for shape in (leaf.shape, leaf.shape[::-1])}

        def is_kept(primitive: Any, *inputs: Any, **parameters: Any) -> bool:
            if not keeps(primitive, *inputs, **parameters):
                return False
            # Neither gathered parameters, nor copies: those of parameters in another type or transposed, and of others
            # in a wider type or another shape.
            if primitive.name == "convert_element_type":
                is_wider = parameters["new_dtype"].itemsize > inputs[0].dtype.itemsize
                return not is_wider and inputs[0].shape not in shapes
            is_gather = primitive.name.startswith("custom_vjp_call") and len(inputs) == 1
            return not (is_gather or primitive.name in ("reshape", "transpose"))

        return is_kept


def over_devices(gradient: Callable[..., Any], mesh: Mesh, replicate: Sequence[str] = ()) -> Callable[..., Any]:
    """(params, batch, rng) -> the gradients and sums of the whole batch, divided among the devices of the mesh.

    `gradient` computes those of some of the rows; with fsdp it also gets the `Slices` of its parameters.
    """
    if mesh.size == 1:
        return gradient
    if batch_devices(mesh) == 1:

        def undivided(*arguments: Any) -> tuple[Any, Any]:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # a kernel is divided by who knows the mesh
                return gradient(*arguments)

        return undivided

    def summed(params: Any, batch: Any, rng: jax.Array) -> tuple[Any, Any]:
        specs = parameter_specs(params, mesh, replicate)
        slices_of_device = Slices(specs, mesh) if mesh.shape["fsdp"] > 1 else None

        def of_rows(params: Any, rows: Any, rng: jax.Array) -> tuple[Any, Any]:
            with rows_divided_over(BATCH_AXES):
                gradients, sums = gradient(params, rows, rng, slices_of_device)
            # What is sliced has been summed along fsdp already.
            axes = jax.tree.map(lambda spec: "data" if "fsdp" in spec else BATCH_AXES, specs)
            return jax.tree.map(jax.lax.psum, gradients, axes), jax.lax.psum(sums, BATCH_AXES)

        slices = jax.tree.map(functools.partial(_along, "fsdp"), specs)
        everywhere, rows = PartitionSpec(), PartitionSpec(BATCH_AXES)
        spread = {"in_specs": (slices, rows, everywhere), "out_specs": (slices, everywhere)}
        mapped = jax.shard_map(of_rows, mesh=mesh, axis_names=set(BATCH_AXES), check_vma=False, **spread)
        return mapped(params, batch, rng)

    return summed


def _along(axis: str, spec: PartitionSpec) -> PartitionSpec:
    """The part of a spec that concerns one axis of the mesh."""
    return PartitionSpec(*(name if name == axis else None for name in spec))


def _all_gather(dimension: int, part: jax.Array) -> jax.Array:
    return jax.lax.all_gather(part, "fsdp", axis=dimension, tiled=True)


def _sum_scatter(dimension: int, gradient: jax.Array) -> jax.Array:
    """Each device's slice of the sum over all devices."""
    return jax.lax.psum_scatter(gradient, "fsdp", scatter_dimension=dimension, tiled=True)


def _exchange_and_sum(dimension: int, gradient: jax.Array) -> jax.Array:
    """The same where each device sends the others their slices, as many bytes, and sums them.

    For CPUs, where psum_scatter between processes gives wrong sums of large arrays (gloo).
    """
    slices = jnp.stack(jnp.split(gradient, jax.lax.axis_size("fsdp"), dimension))
    return jax.lax.all_to_all(slices, "fsdp", 0, 0).sum(axis=0)


def _with_gradient(scatter: Callable[[int, jax.Array], jax.Array]) -> Callable[[int, jax.Array], jax.Array]:
    """`_all_gather`, whose gradient is summed by `scatter`."""
    gather = jax.custom_vjp(_all_gather, nondiff_argnums=(0,))
    gather.defvjp(
        lambda dimension, part: (gather(dimension, part), None),  # by its name `policy` knows it
        lambda dimension, _, gradient: (scatter(dimension, gradient),),
    )
    return gather


_gather, _gather_on_cpus = _with_gradient(_sum_scatter), _with_gradient(_exchange_and_sum)
