"""Embeddings: their scale, and how their table begins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import small
from transformer_jax.model.embedding import Embedding
from transformer_jax.model.transformer import Transformer

TOKENS = np.arange(4000)[None]


def test_bfloat16_embeddings_are_scaled_by_the_root_itself():
    """The root of 40 is 0.19 % smaller in bfloat16; rounding the vectors themselves averages out."""
    table_ND = np.random.default_rng(0).normal(size=(4000, 40)).astype(np.float32)
    embedding = Embedding(4000, 40, dtype=jnp.bfloat16)
    vectors = embedding.apply({"params": {"table": jnp.asarray(table_ND)}}, np.arange(4000)[None])
    vectors, table = (np.abs(np.asarray(array, np.float64)).sum() for array in (vectors, table_ND))
    assert abs(vectors / table / 40**0.5 - 1) < 1e-4


@pytest.mark.parametrize(
    ("kind", "deviation", "furthest"),
    [
        ("normal", 40**-0.5, None),
        ("unit", 1.0, None),
        ("xavier", (2 / 4040) ** 0.5, (6 / 4040) ** 0.5),  # of a matrix 4000 x 40
        ("kaiming", (2 / 40) ** 0.5, None),  # fan_in is the width of a row
    ],
)
def test_initial_tables(kind, deviation, furthest):
    embedding = Embedding(4000, 40, initial=kind)
    table = np.asarray(embedding.init(jax.random.key(0), TOKENS)["params"]["table"])
    assert abs(table.std() / deviation - 1) < 0.01
    assert abs(table.mean()) < 0.01 * deviation
    assert furthest is None or 0.99 * furthest < np.abs(table).max() <= furthest
    assert furthest is not None or np.abs(table).max() > 3.5 * deviation


def test_an_output_table_of_its_own_begins_as_before():
    model = Transformer(small(d_model=40, vocab_size=4000, embedding_init="unit", tie_embeddings="none"))
    params = model.init(jax.random.key(0), TOKENS[:, :3], TOKENS[:, :3])["params"]
    deviations = {name: float(params[f"{name}_embedding"]["table"].std()) for name in ("source", "target", "output")}
    assert deviations == pytest.approx({"source": 1.0, "target": 1.0, "output": 40**-0.5}, rel=0.01)
