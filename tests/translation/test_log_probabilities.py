"""Log-probabilities of given translations, and attention weights."""

import numpy as np
import pytest

from transformer_jax.data.tokenizer import EOS


def test_score_adds_up_over_the_tokens_of_the_text(run):
    (score,) = run.score([("the dog", "the big cat")])
    assert score.tokens == (*run.target_tokenizer.encode("the big cat"), EOS)
    assert score.log_probability == pytest.approx(sum(score.token_log_probabilities))
    assert run.score([]) == []


def test_attention_rows_sum_to_one_over_the_tokens_there_are(run):
    (translation,) = run.translations(["the old dog"])
    attention = run.attention(translation)
    source, target = len(translation.source.tokens), len(translation.hypotheses[0].tokens)
    assert attention.cross_NHTS.shape == (1, 2, target, source)
    for weights in attention:
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
