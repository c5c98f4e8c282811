"""Log-probabilities of given translations, and attention weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, small
from tests.support.translating_runs import sentence
from transformer_jax import Transformer
from transformer_jax.config import PartsConfig
from transformer_jax.data.tokenizer import EOS
from transformer_jax.errors import BadInput
from transformer_jax.translation.log_probabilities import Captor


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


def test_a_custom_attention_without_weights_has_none_to_show(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from transformer_jax import MultiHeadAttention\n"
        "class Mean(MultiHeadAttention):\n"
        "    def attend(self, q_BTHK, k_BSHK, v_BSHV, context):\n"
        "        return q_BTHK * 0 + v_BSHV.mean(axis=1, keepdims=True)\n"
    )
    config = small(parts=PartsConfig(attention=f"{tmp_path}/mine.py:Mean"), d_k=4, d_v=4)
    params = Transformer(config).init(jax.random.key(0), SOURCE, TARGET)["params"]
    with pytest.raises(BadInput, match="a custom attention module gives no weights to show"):
        Captor(config, {}).attention(params, [5, EOS], [6, EOS])


def test_pairs_of_any_length_share_few_programs(run):
    """One at a time, as in a loop."""
    text = "the old red dog sees a small cat near the big tree and likes a house"
    words = text.split()
    texts = [" ".join(words[:count]) for count in range(1, len(words) + 1)]
    programs = (run._scorer._score, run._captor._activations)
    before = [program._cache_size() for program in programs]
    found = [run.score([(text, text)])[0].log_probability for text in texts]
    together = [score.log_probability for score in run.score([*zip(texts, texts, strict=True)])]
    np.testing.assert_allclose(found, together, rtol=1e-5)
    for text in texts:
        run.capture(text, text, ["logits"])
    compiled = [program._cache_size() - start for program, start in zip(programs, before, strict=True)]
    assert max(compiled) <= 8 and len(texts) == 16


def test_what_is_captured_of_a_pair_is_what_its_score_is_made_of(run):
    source, target = "the old dog", "the big cat sees"
    found, [score] = run.capture(source, target), run.score([(source, target)])
    logits_TN = found["logits"][0]
    chosen_T = logits_TN[np.arange(len(score.tokens)), list(score.tokens)]
    expected_T = chosen_T - np.log(np.exp(logits_TN).sum(-1))
    np.testing.assert_allclose(expected_T, score.token_log_probabilities, rtol=1e-4)
    read, written = len(run.tokenizer.encode(source)) + 1, len(score.tokens)
    assert found["encoder/layers_0/residual"].shape == (1, read, 16)
    assert found["decoder/layers_0/self_attention/keys"].shape == (1, written, 2, 8)
    assert found["decoder/layers_0/cross_attention/keys"].shape == (1, read, 2, 8)
    weights = found["decoder/layers_0/cross_attention/weights"]
    assert weights.shape == (1, 2, written, read)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_translations_of_a_patched_run_have_the_scores_that_it_gives_them(run):
    """Beam search decodes token by token with a cache, scoring reads whole targets: both are patched alike."""
    found = run.capture("the old dog", "a cat")
    mean_HV = found["decoder/layers_0/cross_attention/heads"].mean((0, 1))
    changes = {
        "encoder/layers_0/residual": lambda x_BSD, at: jnp.where(at[..., None] == 1, 0.5, x_BSD),
        "decoder/layers_0/self_attention_residual": lambda x_BTD, at: jnp.where(at[..., None] == 2, -0.5, x_BTD),
        "decoder/layers_0/cross_attention/heads": lambda x_BTHV, _: x_BTHV.at[:, :, 0].set(mean_HV[0]),
    }
    patched, texts = run.patched(changes), [sentence(number) for number in (1, 3, 6, 7)]
    translations = patched.translations(texts, beam=3, n_best=2)
    pairs = [(one.source.tokens[:-1], each.tokens[:-1]) for one in translations for each in one.hypotheses]
    scores = [values.sum() for values in patched.score_tokens(*zip(*pairs, strict=True))]
    expected = [each.log_probability for one in translations for each in one.hypotheses]
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    unpatched = [values.sum() for values in run.score_tokens(*zip(*pairs, strict=True))]
    assert (np.abs(np.subtract(unpatched, expected)) > 0.1).all()


def test_a_patch_that_changes_nothing_changes_no_translation(run):
    texts = [sentence(number) for number in (1, 3, 6, 7)]
    same = run.patched({name: lambda x, _: x for name in run.capture("a", "b")})
    ours, theirs = same.translations(texts, beam=3), run.translations(texts, beam=3)
    assert [one.text for one in ours] == [one.text for one in theirs]
    scores = [[one.hypotheses[0].score for one in found] for found in (ours, theirs)]
    np.testing.assert_allclose(*scores, rtol=1e-5)
    with pytest.raises(ValueError, match=r"encoder/layers_7/residual: no such activation is computed"):
        run.patched({"encoder/layers_7/residual": lambda x, _: x}).translate(texts, beam=3)
