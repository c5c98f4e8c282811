"""Masks: True = may attend, and shapes that broadcast to (batch, heads, queries, keys)."""

import jax.numpy as jnp
import numpy as np

from transformer_jax import causal_mask, combine_masks, padding_mask
from transformer_jax.model.masks import segment_mask


def test_padding_hides_columns():
    mask = padding_mask(jnp.array([[5, 6, 0], [7, 0, 0]]))
    assert mask.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(mask[:, 0, 0], [[True, True, False], [True, False, False]])


def test_padding_is_the_token_named():
    np.testing.assert_array_equal(padding_mask([[0, 1, 9]], pad_id=9)[0, 0, 0], [True, True, False])


def test_causal_is_lower_triangular():
    mask = causal_mask(3)
    assert mask.shape == (1, 1, 3, 3)
    np.testing.assert_array_equal(mask[0, 0], [[True, False, False], [True, True, False], [True, True, True]])


def test_segments_see_themselves_and_nobody_sees_segment_0():
    mask = segment_mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 1, 2, 0]]))
    assert mask.shape == (1, 1, 3, 4)
    np.testing.assert_array_equal(
        mask[0, 0], [[True, True, False, False], [False, False, True, False], [False, False, False, False]]
    )


def test_combined_masks_allow_what_all_allow():
    tokens = jnp.array([[5, 0, 6]])
    combined = combine_masks(causal_mask(3), None, padding_mask(tokens))
    np.testing.assert_array_equal(combined[0, 0], [[True, False, False], [True, False, False], [True, False, True]])
    assert combine_masks(None, None) is None
    assert combine_masks(causal_mask(2)).shape == (1, 1, 2, 2)
