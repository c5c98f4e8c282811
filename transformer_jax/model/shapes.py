"""Checks of arguments where users call: one clear line, instead of an error from inside or a wrong result."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def check_shapes(**arrays: Any) -> None:
    """Raises ValueError unless each array has the axes that the end of its name says, a letter the same size in all.

    Where the first array has more rows, "B" may also be 1: the row is the same for all of them.
    """
    known: dict[str, tuple[Any, str]] = {}
    for argument, array in arrays.items():
        name, _, letters = argument.rpartition("_")
        shape, axes = np.shape(array), ", ".join(AXES[letter] for letter in letters)
        found = f"{name} has the shape {shape}: must be [{axes}]"
        if len(shape) != len(letters):
            lacks_one = len(shape) == len(letters) - 1 and letters[0] == "B"
            of_tokens = f", {name}[:, None] one token in each row" if letters == "BL" else ""
            raise ValueError(found + (f"; {name}[None] is a batch of one{of_tokens}" if lacks_one else ""))
        for letter, size in zip(letters, shape, strict=True):
            expected, first = known.setdefault(letter, (size, name))
            if size != expected and not (letter == "B" and size == 1):
                raise ValueError(f"{found} with {AXES[letter]} = {expected}, as {first} has")


def check_positive(**numbers: Any) -> None:
    """Raises ValueError unless each number that is given, and known, is above 0."""
    for name, number in numbers.items():
        if number is not None and not isinstance(number, jax.core.Tracer) and not number > 0:
            raise ValueError(f"{name} = {number}: must be above 0")


def check_ids(name: str, ids_BL: Any, vocabulary: int) -> None:
    """Raises ValueError unless these are token ids [batch, length]. Under `jax.jit` their values are not known."""
    kind = getattr(ids_BL, "dtype", None)
    if kind is None or not jnp.issubdtype(kind, jnp.integer):
        raise ValueError(f"{name} is {kind or type(ids_BL).__name__}: must be an array of token ids, int32")
    check_shapes(**{f"{name}_BL": ids_BL})
    if isinstance(ids_BL, jax.core.Tracer) or not getattr(ids_BL, "is_fully_addressable", True) or not ids_BL.size:
        return
    for wrong in (int(ids_BL.min()), int(ids_BL.max())):
        if not 0 <= wrong < vocabulary:
            raise ValueError(f"{name} has the id {wrong}: must be between 0 and {vocabulary - 1} (vocab_size - 1)")
