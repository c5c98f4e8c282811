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
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from transformer_jax.update.sharding import BATCH_AXES, batch_devices, parameter_specs


class Slices:
    """Parameters of which each device has slices along fsdp, and how they become whole."""

    def __init__(self, specs: Any, is_divided: bool):
        self._specs, self._is_divided = specs, is_divided  # along tensor too

    def whole(self, params: Any, rows: Any) -> Any:
        """What the model is given; not gathered before there are rows to work on."""
        params, _ = jax.lax.optimization_barrier((params, rows))
        return jax.tree.map(functools.partial(_gathered, self._is_divided), params, self._specs)

    def gathered_again(self, loss: Callable[..., Any], params: Any) -> Callable[..., Any]:
        """A loss whose backward pass is left everything by the forward pass, but for what was gathered, and its copies
        in another type or turned."""
        whole = jax.eval_shape(self.whole, params, ())
        shapes = {shape for leaf in jax.tree.leaves(whole) for shape in (leaf.shape, leaf.shape[::-1])}

        def is_kept(primitive: Any, *inputs: Any, **_: Any) -> bool:
            is_gather = primitive.name.startswith("custom_vjp_call") and len(inputs) == 1
            is_copy = primitive.name in ("convert_element_type", "transpose") and inputs[0].shape in shapes
            return not (is_gather or is_copy)

        return jax.checkpoint(loss, policy=is_kept)


def over_devices(gradient: Callable[..., Any], mesh: Mesh, replicate: Sequence[str] = ()) -> Callable[..., Any]:
    """(params, batch, rng) -> the gradients and sums over the whole batch, wherever on the mesh its rows lie.

    `gradient` is the same for some of the rows; along fsdp it is given its parameters' `Slices` besides.
    """
    if batch_devices(mesh) == 1:
        return gradient

    def summed(params: Any, batch: Any, rng: jax.Array) -> tuple[Any, Any]:
        specs = parameter_specs(params, mesh, replicate)
        own_slices = Slices(specs, mesh.shape["tensor"] > 1) if mesh.shape["fsdp"] > 1 else None

        def own(params: Any, rows: Any, rng: jax.Array) -> tuple[Any, Any]:
            gradients, sums = gradient(params, rows, rng, own_slices)
            # What was sliced has been added up along fsdp already.
            left = jax.tree.map(lambda spec: "data" if "fsdp" in spec else BATCH_AXES, specs)
            return jax.tree.map(jax.lax.psum, gradients, left), jax.lax.psum(sums, BATCH_AXES)

        slices = jax.tree.map(functools.partial(_along, "fsdp"), specs)
        everywhere, rows = PartitionSpec(), PartitionSpec(BATCH_AXES)
        spread = {"in_specs": (slices, rows, everywhere), "out_specs": (slices, everywhere)}
        mapped = jax.shard_map(own, mesh=mesh, axis_names=set(BATCH_AXES), check_vma=False, **spread)
        return mapped(params, batch, rng)

    return summed


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
    return gather(part)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(dimension: int, part: jax.Array) -> jax.Array:
    return jax.lax.all_gather(part, "fsdp", axis=dimension, tiled=True)


def _gather_forward(dimension: int, part: jax.Array) -> tuple[jax.Array, None]:
    return _gather(dimension, part), None


def _gather_backward(dimension: int, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    """Each device gets its slice of the sum. Between processes on CPUs psum_scatter gives wrong sums (gloo, of large
    arrays): there each sends the others their slices, which is as much, and they add up themselves."""
    if jax.default_backend() != "cpu":
        return (jax.lax.psum_scatter(gradient, "fsdp", scatter_dimension=dimension, tiled=True),)
    slices = jnp.stack(jnp.split(gradient, jax.lax.axis_size("fsdp"), dimension))
    return (jax.lax.all_to_all(slices, "fsdp", 0, 0).sum(axis=0),)


_gather.defvjp(_gather_forward, _gather_backward)
