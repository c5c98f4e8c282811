"""Families of contrasts, each corrected by itself."""

import collections
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from transformer_jax.report.results import SweepResult, VariantResult

Weights = Mapping[str, float]  # by variant; they sum to 0


class Family(NamedTuple):
    """Contrasts of variants."""

    key: str
    title: str
    help: str
    contrasts: Mapping[str, Weights]  # by name

    @property
    def title_in_sentence(self) -> str:
        return self.title[0].lower() + self.title[1:]


# The key of the differences from the baseline, which are always the first family. Their columns are in the main table.
DIFFERENCES = "differences"
EFFECTS = (
    "A main effect is the difference between two levels of a factor, averaged over the levels of the others. An "
    "interaction (×) is how much more one change does where the other is made too: 0 where effects simply add up"
)
CONTROLS = "Variants that repeat another one: no difference is expected"


def families_of(sweep: SweepResult, measured: Collection[str]) -> list[Family]:
    """The differences from the baseline, and other families that have any contrast of variants that are `measured`."""
    variants = [variant for variant in sweep.variants if variant.name in measured]
    compared = [variant for variant in variants if variant.baseline in measured and not variant.same_as]
    differences = {variant.name: {variant.name: 1.0, variant.baseline: -1.0} for variant in compared}
    controls = {v.name: {v.name: 1.0, v.same_as: -1.0} for v in variants if v.same_as in measured}
    declared = {name: weights for name, weights in sweep.contrasts.items() if set(weights) <= set(measured)}
    others = [
        Family("effects", "Main effects and interactions", EFFECTS, effects(variants, sweep.baseline)),
        Family("contrasts", "Contrasts", "Sums of mean scores with the weights that the sweep declares", declared),
        Family("controls", "Controls (A/A)", CONTROLS, controls),
    ]
    first = Family(DIFFERENCES, "Differences from the baseline", "", differences)
    return [first, *(family for family in others if family.contrasts)]


def effects(variants: Sequence[VariantResult], baseline: str) -> dict[str, Weights]:
    """Main effects and pairwise interactions of a factorial design; empty if no variant has levels.

    Levels are compared with the baseline's, or else the first, in the combinations of other levels that all have.
    """
    designed = [variant for variant in variants if variant.levels]
    if not designed:
        return {}
    factors = list(designed[0].levels)
    found: dict[str, Weights] = {}
    cells = {tuple(variant.levels[factor] for factor in factors): variant.name for variant in designed}
    first = next((cell for cell, name in cells.items() if name == baseline), next(iter(cells)))
    levels = dict.fromkeys((at, level) for cell in cells for at, level in enumerate(cell) if level != first[at])
    changes = sorted(levels, key=lambda change: change[0])
    pairs = [(one, other) for one, other in itertools.combinations(changes, 2) if one[0] != other[0]]
    for changed in [*((change,) for change in changes), *pairs]:
        squares = []  # the cells with all of these changes, and without each part of them, with their signs
        for cell in cells:
            square = {}
            for kept in itertools.product((True, False), repeat=len(changed)):
                undone = {at: first[at] for (at, _), is_kept in zip(changed, kept, strict=True) if not is_kept}
                square[tuple(undone.get(at, level) for at, level in enumerate(cell))] = (-1.0) ** len(undone)
            if all(cell[at] == level for at, level in changed) and all(corner in cells for corner in square):
                squares.append(square)
        if squares:
            name = " × ".join(f"{factors[at]}={level} against {first[at]}" for at, level in changed)
            weights = collections.Counter[str]()
            for square in squares:
                weights.update({cells[corner]: sign / len(squares) for corner, sign in square.items()})
            found[name] = weights
    return found
