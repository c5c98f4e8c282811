"""Strict reading of a JSON object from another library: every field is known and valid, or refused."""

import json
from pathlib import Path
from typing import Any

from transformer_jax.errors import BadInput

MISSING = object()


class Fields:
    """The fields of a JSON object, each read once. `finish` refuses the rest by name."""

    def __init__(self, path: Path, values: dict[str, Any]):
        self.path, self._left = path, dict(values)

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = MISSING) -> Any:
        """The value of a field, of one of these types; null counts as missing."""
        value = self._left.pop(name, None)
        if value is None:
            if default is MISSING:
                raise BadInput(f"{self.path}: has no {name}")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.refused(name, value, f"must be {' or '.join(kind.__name__ for kind in kinds)}")
        return value

    def size(self, name: str, at_most: int, default: Any = MISSING) -> int:
        """The value of a field that is a size."""
        value = self.take(name, int, default)
        if not 1 <= value <= at_most:
            raise self.refused(name, value, f"must be at least 1 and at most {at_most:,}")
        return value

    def expect(self, name: str, *allowed: Any) -> None:
        """Refuses a field with another value than these; it may be missing."""
        value = self._left.pop(name, None)
        if value is None or any(value == each and type(value) in _same_types(each) for each in allowed):
            return
        wanted = " or ".join(json.dumps(each) for each in allowed)
        raise self.refused(name, value, f"is not supported; {wanted or 'null'} is")

    def ignore(self, *names: str) -> None:
        """Skips fields that do not affect a translation."""
        for name in names:
            self._left.pop(name, None)

    def finish(self) -> None:
        for name, value in self._left.items():
            raise self.refused(name, value, "is an unknown field, which may change the model")

    def refused(self, name: str, value: Any, why: str) -> BadInput:
        shown = json.dumps(value, ensure_ascii=True)
        return BadInput(f"{self.path}: {name[:80]} = {shown if len(shown) <= 60 else shown[:60] + '...'}: {why}")


def _same_types(value: Any) -> tuple[type, ...]:
    """The types that a value may be written as: 1.0 for 1, but not true for 1."""
    return (int, float) if isinstance(value, (int, float)) and not isinstance(value, bool) else (type(value),)
