"""Morphological inflection: a lemma and features to the inflected form, from files as in SIGMORPHON 2022 (task 0)."""

from __future__ import annotations

import functools
from pathlib import Path

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.columns import ColumnCorpus, Row
from transformer_jax.data.corpora.corpus import Labels, Pair
from transformer_jax.data.prepared import CLUSTER
from transformer_jax.errors import BadInput
from transformer_jax.files.lines import read_blocks

LINES_AT_ONCE = 10_000


class InflectionCorpus(ColumnCorpus):
    """One language at one size. The source is the lemma, a tab and the features: `data.tokenizer=characters_and_tags`.

    Labels tell whether the lemma, and the set of features, occur in the training file that is used.
    """

    columns = "lemma, form, features"
    labelled = ("valid", "test")

    def __init__(self, config: DataConfig):
        ending = f"_{config.task.size}.train"
        there = sorted(path.name.removesuffix(ending) for path in Path(config.corpus_folder or "").glob(f"*{ending}"))
        if config.corpus_folder and config.task.language not in there:
            raise BadInput(
                f"data.task.language = {config.task.language!r}: {config.corpus_folder} has no "
                f"{config.task.language}{ending}; it has: {', '.join(there) or f'no file *{ending}'}"
            )
        super().__init__(config)

    @staticmethod
    def names(config: DataConfig) -> dict[str, str]:
        language, size = config.task.language, config.task.size
        return {"train": f"{language}_{size}.train", "valid": f"{language}.dev", "test": f"{language}.gold"}

    def row(self, line: str) -> Row | str:
        """The columns without spaces around them, as the task's own evaluation reads them."""
        row = super().row(line)
        return row if isinstance(row, str) else (row[0].strip(), row[1].strip(), row[2].strip())

    def pair(self, row: Row) -> Pair:
        lemma, form, features = row
        return f"{lemma}\t{features}", form

    def labels(self, row: Row) -> Labels:
        lemmas, features = self._in_training
        found = {"lemma": row[0] in lemmas, "features": row[2] in features}
        # Forms of one lemma are not independent.
        return {name: "seen" if seen else "unseen" for name, seen in found.items()} | {CLUSTER: row[0]}

    @functools.cached_property
    def _in_training(self) -> tuple[set[str], set[str]]:
        """The lemmas and the sets of features in the training file."""
        lines = (line for block in read_blocks(self._files["train"], LINES_AT_ONCE) for line in block.lines)
        rows = [row for line in lines if not isinstance(row := self.row(line), str)]
        return {lemma for lemma, _, _ in rows}, {features for _, _, features in rows}
