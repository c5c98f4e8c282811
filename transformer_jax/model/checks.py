"""Checks of arguments where users call: one clear line, instead of an error from inside or a wrong result."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import ArrayLike

# docs/modules.md explains the letters.
AXES = {
    "B": "batch", "L": "length", "T": "queries", "S": "keys", "D": "width", "E": "width", "H": "heads",
    "G": "heads of keys and values", "K": "d_k", "V": "d_v", "P": "batch or 1",
}  # fmt: skip
# Arrays whose last axis is one of these are features, which must be floating-point numbers.
FEATURES = "DEKV"
TYPES: dict[Any, str] = {
    jnp.floating: "floating-point, such as float32",
    jnp.integer: "an array of token ids, int32",
    jnp.bool_: "bool, True = may attend; for ones and zeros use mask == 1, for an additive mask (0 and -1e9) mask == 0",
}


def check_shapes(**arrays: Any) -> None:
    """Raises ValueError unless each array has the axes that the end of its name says, a letter the same size in all.

    "P" is "B" or 1: a row that is the same for all sentences.
    """
    known: dict[str, tuple[int, str]] = {}
    for argument, array in arrays.items():
        name, _, letters = argument.rpartition("_")
        shape = np.shape(array)
        problem = ""
        if len(shape) != len(letters):
            is_of_one = letters[0] == "B" and len(shape) == len(letters) - 1
            problem = f"; {name}[None] adds an axis for a batch of one" if is_of_one else "; here are other axes"
        for letter, size in zip(letters, shape, strict=False):
            expected, first = known.setdefault("B" if letter == "P" else letter, (size, name))
            if size != expected and not (letter == "P" and size == 1):
                problem = problem or f" with {AXES[letter]} = {expected}, as {first} has"
        if problem:
            axes = ", ".join(AXES[letter] for letter in letters)
            found = (
                f"is None: must be [{axes}]" if array is None else f"has the shape {shape}: must be [{axes}]{problem}"
            )
            raise ValueError(f"{name} {found}")
        if letters[-1] in FEATURES:
            check_type(jnp.floating, **{name: array})


def broadcasting(name: str, array: ArrayLike | None, kind: Any, shape_BHTS: Sequence[int]) -> jax.Array | None:
    """A mask or a bias as an array. Raises ValueError unless each of its four axes has the full size or size 1.

    Broadcasting alone would accept too much: in a mask [batch, keys] the batch would be taken for queries.
    """
    if array is None:
        return None
    check_type(kind, **{name: array})
    shape = jnp.shape(array)
    if len(shape) != 4 or any(size not in (1, full) for size, full in zip(shape, shape_BHTS, strict=True)):
        raise ValueError(
            f"{name} has the shape {shape}: must be [batch, heads, queries, keys] = {tuple(shape_BHTS)}, with 1 where "
            f"it is the same for all; [batch, keys] is {name}[:, None, None, :]"
        )
    return jnp.asarray(array)


def check_type(kind: Any, **arrays: Any) -> None:
    """Raises ValueError unless each array is of this kind: integers would be rounded to, an added mask reversed."""
    for name, array in arrays.items():
        if isinstance(array, list | tuple):
            raise ValueError(f"{name} is a {type(array).__name__}: must be an array, as jnp.asarray({name}) makes it")
        dtype = jnp.result_type(array)
        if not jnp.issubdtype(dtype, kind):
            raise ValueError(f"{name} is {dtype}: must be {TYPES[kind]}")


def check_positive(**numbers: Any) -> None:
    """Raises ValueError unless each number that is given, and known, is above 0."""
    for name, number in numbers.items():
        if number is not None and not isinstance(number, jax.core.Tracer) and not number > 0:
            raise ValueError(f"{name} = {number}: must be above 0")


def check_whole(**numbers: Any) -> None:
    """Raises ValueError unless each number that is given is a whole number above 0."""
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, (int, np.integer))):
            raise ValueError(f"{name} = {number!r}: must be a whole number")
    check_positive(**numbers)


def check_classes(**classes: Any) -> None:
    """Raises TypeError unless each that is given makes modules when it is called: a module itself does not."""
    for name, found in classes.items():
        is_module = isinstance(found, nn.Module)
        if is_module or not (found is None or callable(found)):
            kind = type(found).__name__
            made, right = (f"a module, {kind}(...)", kind) if is_module else (repr(found), "LayerNorm")
            raise TypeError(f"{name} is {made}: must be a class or a functools.partial of one, as {name}={right}")


def check_choice(choices: Collection[str], **values: str) -> None:
    """Raises ValueError unless each value is one of the choices."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} = {value!r}: must be one of {', '.join(choices)}")


def check_multiple(divisor: int, of: str, **numbers: int) -> None:
    """Raises ValueError unless each number is a multiple of the divisor, which is the number `of` something."""
    for name, number in numbers.items():
        if number % divisor:
            raise ValueError(f"{name} = {number}: must be a multiple of {divisor}, {of}")


def check_ids(name: str, ids_BL: Any, vocabulary: int) -> None:
    """Raises ValueError unless these are token ids [batch, length]. Under `jax.jit` their values are not known."""
    check_shapes(**{f"{name}_BL": ids_BL})
    check_type(jnp.integer, **{name: ids_BL})
    if isinstance(ids_BL, jax.core.Tracer) or not getattr(ids_BL, "is_fully_addressable", True):
        return
    known_BL = np.asarray(ids_BL)  # in its own type: of 64 bits, jnp would keep 32
    for wrong in (int(known_BL.min(initial=0)), int(known_BL.max(initial=0))):
        if not 0 <= wrong < vocabulary:
            raise ValueError(f"{name} has the id {wrong}: must be between 0 and {vocabulary - 1} (vocab_size - 1)")
