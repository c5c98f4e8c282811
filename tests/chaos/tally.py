"""What is counted, and what must never be."""

from __future__ import annotations

import dataclasses
from collections import Counter


class Violation(Exception):
    """A statement that must hold in every case does not hold."""


def check(holds: bool, what: object) -> None:
    if not holds:
        raise Violation(str(what))


@dataclasses.dataclass
class Tally:
    """Counts by name, and the violations with how to see them again."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    violations: list[str] = dataclasses.field(default_factory=list)

    def count(self, *names: str) -> None:
        self.counts.update(names)

    def table(self) -> str:
        width = max(map(len, self.counts), default=0)
        lines = [f"{name:<{width}}  {count:>8,}" for name, count in sorted(self.counts.items())]
        return "\n".join([*lines, f"{'violations':<{width}}  {len(self.violations):>8,}"])
