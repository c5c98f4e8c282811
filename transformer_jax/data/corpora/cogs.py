"""COGS (Kim and Linzen 2020): English sentences and their logical forms, from the files of its authors."""

from __future__ import annotations

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.columns import ColumnCorpus, Row
from transformer_jax.data.corpora.corpus import Labels, Pair
from transformer_jax.data.prepared import CLUSTER

# Known words and phrases in structures that training lacks; all other categories have known structures with a word
# that was not seen in that place.
STRUCTURAL = ("obj_pp_to_subj_pp", "cp_recursion", "pp_recursion")


class CogsCorpus(ColumnCorpus):
    """train, dev (validation) and test from one distribution; `test_gen` has 21 categories of generalization."""

    columns = "sentence, logical form, category"
    labelled = ("test_gen",)

    @staticmethod
    def names(config: DataConfig) -> dict[str, str]:
        return {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv", "test_gen": "gen.tsv"}

    def pair(self, row: Row) -> Pair:
        return row[0], row[1]

    def labels(self, row: Row) -> Labels:
        # The sentences of a category test one word or structure: they are not independent.
        return {"category": row[2], "kind": "structural" if row[2] in STRUCTURAL else "lexical", CLUSTER: row[2]}
