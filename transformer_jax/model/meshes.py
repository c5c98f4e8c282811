"""Products, reshapes and lookups of arrays that a mesh with explicit axes divides, as `jax.make_mesh` makes by default.

There the result of each must say how it is divided; on other meshes XLA decides. Here an axis of a result is divided
like the axis that it comes from, and each axis of the mesh divides at most one.
"""

import math
import string
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import ArrayLike


def explicit_mesh(*arrays: Any) -> Any:
    """The mesh with explicit axes over which one of these arrays is divided, if there is one."""
    meshes = (jax.typeof(array).sharding.mesh for array in arrays)
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def product(subscripts: str, a: jax.Array, b: jax.Array, dtype: Any = None) -> jax.Array:
    """`jnp.einsum` of two arrays of one type, at `precision_of` it; the result is in `dtype`, by default theirs."""
    options: dict[str, Any] = {"precision": precision_of(a), "preferred_element_type": dtype}
    mesh = explicit_mesh(a, b)
    if mesh is not None:
        inputs, output = subscripts.split("->")
        divided: dict[str, Any] = {}
        for letters, array in zip(reversed(inputs.split(",")), (b, a), strict=True):
            divided |= {letter: axis for letter, axis in zip(letters, _division(array), strict=True) if axis}
        options["out_sharding"] = _sharding(mesh, (divided.get(letter) for letter in output))
    return jnp.einsum(subscripts, a, b, **options)


def contracted(x: jax.Array, kernel: jax.Array, axes: int = 1, dtype: Any = None) -> jax.Array:
    """The product over the last axes of x and the first of the kernel, as `jnp.tensordot`."""
    of_x, outputs = string.ascii_lowercase[: x.ndim], string.ascii_uppercase[: kernel.ndim - axes]
    return product(f"{of_x},{of_x[-axes:]}{outputs}->{of_x[:-axes]}{outputs}", x, kernel, dtype)


def precision_of(x: jax.Array) -> jax.lax.Precision | None:
    """The `precision` of a product of arrays of this type; None for float32, which follows the caller's setting.

    Narrower types are exact in one pass. They need it explicitly because gradients inherit it: the gradient of a
    product bfloat16 x bfloat16 -> float32 multiplies float32 by bfloat16, at "highest" three times as slowly on a TPU.
    """
    return None if x.dtype.itemsize >= 4 else jax.lax.Precision.DEFAULT


def reshaped(x: jax.Array, *shape: int) -> jax.Array:
    """`x.reshape(shape)`. Of axes that are merged or split only the first stays divided, if its size allows."""
    mesh = explicit_mesh(x)
    if mesh is None:
        return x.reshape(shape)
    division = {math.prod(x.shape[:i]): axis for i, axis in enumerate(_division(x)) if axis is not None}
    axes = []
    for i, size in enumerate(shape):
        axis = division.pop(math.prod(shape[:i]), None)
        axes.append(axis if axis is not None and size % math.prod(mesh.shape[name] for name in axis) == 0 else None)
    return jax.lax.reshape(x, shape, out_sharding=_sharding(mesh, axes))


def rows_of(table_ND: jax.Array, ids: ArrayLike) -> jax.Array:
    """Rows of a table; NaN where an id is out of range: the last row in its place would go unnoticed."""
    table_ND, ids = jnp.asarray(table_ND), jnp.asarray(ids).astype(jnp.int32)
    ids = jnp.where(ids < 0, table_ND.shape[0], ids)  # indexing would count negative ones from the end
    mesh = explicit_mesh(table_ND, ids)
    place = None if mesh is None else _sharding(mesh, (*_division(ids), *_division(table_ND)[1:]))
    return table_ND.at[ids].get(mode="fill", fill_value=jnp.nan, out_sharding=place)


def entries_of(x: jax.Array, ids: jax.Array) -> jax.Array:
    """The entry of the last axis of x that each id names."""
    if explicit_mesh(x) is None:
        return jnp.take_along_axis(x, ids[..., None], axis=-1)[..., 0]
    places = jnp.arange(x.shape[-1]).reshape(*(1 for _ in ids.shape), -1)
    return jnp.sum(jnp.where(places == ids[..., None], x, 0), axis=-1)


def divided_like(x: jax.Array, other: jax.Array, *axes: int) -> jax.Array:
    """x with these axes divided like another array's, where that is on a mesh with explicit axes."""
    mesh = explicit_mesh(other)
    if mesh is None:
        return x
    division = _division(other)
    return jax.sharding.reshard(x, _sharding(mesh, (division[i] if i in axes else None for i in range(x.ndim))))


def _division(x: Any) -> list[tuple[str, ...] | None]:
    """For each axis of x the axes of the mesh that divide it."""
    spec = jax.typeof(x).sharding.spec
    return [
        (axis,) if isinstance(axis, str) else (axis or None) for axis in (*spec, *[None] * (jnp.ndim(x) - len(spec)))
    ]


def _sharding(mesh: Any, axes: Iterable[tuple[str, ...] | None]) -> NamedSharding:
    """Arrays divided like this, except for axes of the mesh that an earlier axis of the array has."""
    used: set[str] = set()
    spec: list[tuple[str, ...] | None] = []
    for axis in axes:
        spec.append(axis if axis and not used & {*axis} else None)
        used |= {*(spec[-1] or ())}
    return NamedSharding(mesh, PartitionSpec(*spec))
