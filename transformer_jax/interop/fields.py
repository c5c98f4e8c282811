"""Strict reading of a JSON object from another library: every field is known and valid, or refused."""

import json
from pathlib import Path
from typing import Any, TypeVar

from transformer_jax.errors import BadInput, ConfigError

MISSING = object()
Config = TypeVar("Config")


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
        # 1.0 is 1, but true is not.
        if value is None or any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in allowed
        ):
            return
        wanted = " or ".join(json.dumps(each) for each in allowed)
        raise self.refused(name, value, f"is not supported; {wanted or 'null'} is")

    def build(self, kind: type[Config], **values: Any) -> Config:
        """A config with these values, or its first problem as an error of this file."""
        try:
            return kind(**values)
        except ConfigError as error:
            raise BadInput(f"{self.path}: {error.problems[0]}") from None

    def finish(self, *ignored: str) -> None:
        """Refuses the fields that are left, except those that do not affect a translation."""
        for name, value in self._left.items():
            if name not in ignored:
                raise self.refused(name, value, "is an unknown field, which may change the model")

    def refused(self, name: str, value: Any, why: str) -> BadInput:
        shown = json.dumps(value, ensure_ascii=True)
        return BadInput(f"{self.path}: {name[:80]} = {shown if len(shown) <= 60 else shown[:60] + '...'}: {why}")
