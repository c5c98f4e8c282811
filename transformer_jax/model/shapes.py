"""Checks of arguments where users call: one clear line, instead of an error from inside or a wrong result."""

from typing import Any

import jax
import jax.numpy as jnp

# docs/modules.md explains the letters.
AXES = {
    "B": "batch",
    "L": "length",
    "T": "queries",
    "S": "keys",
    "D": "width",
    "E": "width",
    "H": "heads",
    "G": "heads of keys and values",
    "K": "d_k",
    "V": "d_v",
    "N": "classes",
}

FEATURES = "DEKV"


def check_shapes(**arrays: Any) -> None:
    """Raises ValueError unless each array has the axes that the end of its name says, a letter the same size in all.

    Arrays with a width, d_k or d_v are features, which must be floating-point numbers.
    Where the first array has more rows, "B" may also be 1: the row is the same for all of them.
    """
    known: dict[str, tuple[Any, str]] = {}
    for argument, array in arrays.items():
        name, _, letters = argument.rpartition("_")
        shape = jnp.shape(array)
        problem = f"{name} has the shape {shape}: must be [{', '.join(AXES[letter] for letter in letters)}]"
        if len(shape) != len(letters):
            raise ValueError(f"{problem}; {name}[None] adds an axis for a batch of one")
        if letters[-1] in FEATURES:
            check_floating(**{name: array})
        for letter, size in zip(letters, shape, strict=True):
            expected, first = known.setdefault(letter, (size, name))
            if size != expected and not (letter == "B" and size == 1):
                raise ValueError(f"{problem} with {AXES[letter]} = {expected}, as {first} has")


def check_floating(**arrays: Any) -> None:
    """Raises ValueError unless each array is floating-point: integers would be rounded to."""
    for name, array in arrays.items():
        kind = jnp.result_type(array)
        if not jnp.issubdtype(kind, jnp.floating):
            raise ValueError(f"{name} is {kind}: must be floating-point, such as float32")


def check_positive(**numbers: Any) -> None:
    """Raises ValueError unless each number that is given, and known, is above 0."""
    for name, number in numbers.items():
        if number is not None and not isinstance(number, jax.core.Tracer) and not number > 0:
            raise ValueError(f"{name} = {number}: must be above 0")


def check_ids(name: str, ids_BL: Any, vocabulary: int) -> None:
    """Raises ValueError unless these are token ids [batch, length]. Under `jax.jit` their values are not known."""
    check_shapes(**{f"{name}_BL": ids_BL})
    kind = jnp.result_type(ids_BL)
    if not jnp.issubdtype(kind, jnp.integer):
        raise ValueError(f"{name} is {kind}: must be an array of token ids, int32")
    if isinstance(ids_BL, jax.core.Tracer) or not getattr(ids_BL, "is_fully_addressable", True):
        return
    with jax.ensure_compile_time_eval():  # under jax.jit a known array would else become an unknown least value
        for wrong in (int(jnp.min(ids_BL)), int(jnp.max(ids_BL))):
            if not 0 <= wrong < vocabulary:
                raise ValueError(f"{name} has the id {wrong}: must be between 0 and {vocabulary - 1} (vocab_size - 1)")
