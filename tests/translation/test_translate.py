"""Texts to translations: in order, whatever their company; scores that hold; nothing hidden."""

import copy

import jax
import numpy as np
import pytest

from tests.support.translating_runs import make_run, sentence
from transformer_jax import Transformer, load_run
from transformer_jax.config import DecodeConfig, MeshConfig
from transformer_jax.data.tokenizer import BOS, EOS, PAD
from transformer_jax.errors import BadInput
from transformer_jax.model_config import ModelConfig
from transformer_jax.translation.translate import Hypothesis, Translation, groups_of, rounded_up, rows_sharding, tail_of
from transformer_jax.update.sharding import make_mesh

# Of two shapes only, which are compiled for every search.
TEXTS = [sentence(number) for number in (0, 1, 5, 7, 6, 9, 10, 11, 13, 15)]
SHORT = [sentence(number) for number in (0, 1, 4, 5, 8, 9)]  # of one shape


def tokens(translations):
    return [[hypothesis.tokens for hypothesis in translation.hypotheses] for translation in translations]


@pytest.mark.parametrize(
    "options", [{"n_best": 3}, pytest.param({"sample": True, "seed": 3}, marks=pytest.mark.drill)], ids=str
)
def test_company_order_and_batch_size_do_not_matter(run, options):
    together = run.translations(TEXTS, **options)
    assert [translation.source.text for translation in together] == TEXTS
    alone = [run.translations([TEXTS[number]], first_id=number, **options)[0] for number in (0, 9)]
    assert tokens(alone) == [tokens(together)[number] for number in (0, 9)]
    if not options.get("sample"):  # what is sampled depends on a text's place, so that equal texts differ
        assert tokens(run.translations(TEXTS[::-1], **options)[::-1]) == tokens(together)


def test_the_n_best_are_sorted_distinct_and_score_what_scoring_says(run):
    translations = run.translations(TEXTS, n_best=3)
    for translation in translations:
        hypotheses = translation.hypotheses
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses) == 3
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            penalty = ((5 + len(hypothesis.tokens)) / 6) ** 0.6
            assert hypothesis.score == pytest.approx(hypothesis.log_probability / penalty, rel=1e-5)
            assert hypothesis.tokens[-1] == EOS
    pairs = [
        (translation.source.tokens[:-1], hypothesis.tokens[:-1])
        for translation in translations
        for hypothesis in translation.hypotheses
    ]
    scored = run.score_tokens(*zip(*pairs, strict=True))
    found = [hypothesis.log_probability for translation in translations for hypothesis in translation.hypotheses]
    np.testing.assert_allclose([values.sum() for values in scored], found, rtol=1e-5)


def test_a_server_that_changes_the_numbers_of_a_search_compiles_nothing(run):
    options = {"sample": True, "top_p": 0.9, "temperature": 0.5, "seed": 2**32 - 1}
    run.translations(SHORT, **options), run.translations(SHORT, beam=2)
    compiled = run._translator._search._cache_size()
    other = run.translations(SHORT, **{**options, "seed": 1, "temperature": 1.5, "top_p": 0.8})
    assert tokens(other) != tokens(run.translations(SHORT, **options))
    scores = [run.translations(SHORT, beam=2, alpha=alpha)[0].hypotheses[0].score for alpha in (0.1, 0.9)]
    assert scores[0] != scores[1] and run._translator._search._cache_size() == compiled
    outside = {"bleu_sentences": 3, "bleu_tokenize": "char", "tokens_per_batch": 65, "max_source_length": 30}
    for name, value in {**outside, "metrics": ("a.py:b",)}.items():
        run.translations(SHORT, beam=2, **{name: value})
    assert run._translator._search._cache_size() == compiled


def test_max_length_limits_translations_of_any_source(run):
    for translation in run.translations(SHORT, max_length=4, beam=1):
        assert len(translation.hypotheses[0].tokens) <= 4
    with pytest.raises(BadInput, match="min_length"):
        run.translations(TEXTS, max_length=4, min_length=5)


def test_renormalized_probabilities_are_those_among_tokens_that_may_follow(run):
    [found] = run.translations(SHORT[3:4], beam=1, renormalize=True)
    written = found.hypotheses[0].tokens
    source_BS, target_BT = np.array([found.source.tokens]), np.array([[BOS, *written[:-1]]])
    logits_TN = np.array(jax.jit(Transformer(run.config.model).apply)({"params": run.params}, source_BS, target_BT)[0])
    logits_TN[:, [PAD, BOS]] = -np.inf
    expected = jax.nn.log_softmax(logits_TN)[np.arange(len(written)), np.array(written)].sum()
    assert found.hypotheses[0].log_probability == pytest.approx(float(expected), abs=1e-4)
    [usual] = run.translations(SHORT[3:4], beam=1)
    assert usual.hypotheses[0].tokens == written
    assert usual.hypotheses[0].log_probability < found.hypotheses[0].log_probability


REFERENCES = ["", "a", *TEXTS[2:-1], "the old red dog sees a small cat near the tree"]


def test_a_translation_may_get_the_length_of_its_reference(run):
    """From an empty reference to one that is longer than any translation might be; whatever shares the batch."""
    wanted = [len(tokens) + 1 for tokens in run.tokenizer.encode_batch(REFERENCES)]
    assert wanted[0] == 1 and wanted[-1] > len(run.tokenizer.encode(TEXTS[-1])) + 1 + run.config.decode.extra_length
    options = {"beam": 3, "n_best": 3, "min_length": 9}
    found = run.translations(TEXTS, references=REFERENCES, eos="oracle_length", **options)
    for length, translation in zip(wanted, found, strict=True):
        assert {len(hypothesis.tokens) for hypothesis in translation.hypotheses} == {length}
        assert all(hypothesis.tokens.index(EOS) == length - 1 for hypothesis in translation.hypotheses)
    with pytest.raises(BadInput, match="references"):
        run.translate(TEXTS, eos="oracle_length", **options)
    again = run.translations(TEXTS[3:4], references=REFERENCES[3:4], eos="oracle_length", **options)
    assert tokens(again) == tokens(found[3:4])


def test_eos_is_ignored_up_to_the_maximum_length(run):
    """Greedily the tokens are those of a given length, as far as the maximum length goes."""
    ending = copy.copy(run)
    table = run.params["source_embedding"]["table"]
    frequent = run.translations(SHORT, beam=1)[0].hypotheses[0].tokens[-2]
    ending.params = {**run.params, "source_embedding": {"table": table.at[EOS].set(1.5 * table[frequent])}}
    usual, ignored, given = (
        ending.translations(SHORT, references=REFERENCES[-len(SHORT) :], eos=eos, beam=1)
        for eos in ("normal", "ignored", "oracle_length")
    )
    assert any(len(t.hypotheses[0].tokens) < len(g.hypotheses[0].tokens) for t, g in zip(usual, given, strict=True))
    limits = [len(translation.source.tokens) + run.config.decode.extra_length for translation in ignored]
    assert [t.hypotheses[0].tokens[:-1] for t in ignored] == [
        t.hypotheses[0].tokens[:-1][: limit - 1] for t, limit in zip(given, limits, strict=True)
    ]


def test_blank_texts_stay_blank_and_are_shown_to_no_model(run):
    translations = run.translations(["", "the dog", "  \t "], beam=1)
    assert [translation.text for translation in translations][::2] == ["", ""]
    assert [translation.source.tokens for translation in translations][::2] == [(), ()]
    assert run.translate([]) == []
    written = Hypothesis(" ", (5, EOS), -1.0, -1.0, at_limit=False)
    assert Translation(translations[1].source, (written,)).is_empty
    assert not any(translation.is_empty for translation in translations)


def test_a_translation_that_may_not_be_longer_says_so(run):
    for translation in run.translations(SHORT, extra_length=0, min_length=3, beam=1):
        best = translation.hypotheses[0]
        assert best.at_limit == (len(best.tokens) == max(len(translation.source.tokens), 3))


def test_any_text_can_be_translated_and_a_long_one_is_cut_and_says_so(run):
    texts = ["<b>&amp;</b>", "🦜🦜", "مرحبا بالعالم", "\x00\x07\x1b[31m", "\u2028", "the dog"]
    long, *_, short = run.translations(["the dog " * 500, *texts], beam=1)
    assert (len(long.source.tokens), long.source.tokens[-1]) == (run.config.data.max_length, EOS)
    assert long.source.full_length > 500
    assert short.source.full_length == len(short.source.tokens)


def test_a_test_set_is_not_cut_to_the_length_of_training_pairs_and_references_change_nothing(run):
    longest = run.config.data.max_length
    text, options = "the dog " * longest, {"beam": 1, "extra_length": 0, "max_length": 2}
    (whole,) = run.translations([text], whole=True, **options)
    assert len(whole.source.tokens) == whole.source.full_length > longest
    lengths = [
        len(run.translations([text], references=references, **options, **changes)[0].source.tokens)
        for references in (None, ["?"])
        for changes in ({}, {"max_source_length": 9})
    ]
    assert lengths == [longest, 9, longest, 9]


def test_learned_positions_cut_what_they_cannot_tell_apart(tmp_path):
    run = load_run(make_run(tmp_path / "run", positions="learned", max_length=13), "averaged")
    (translation,) = run.translations(["the dog " * 20], min_length=13, beam=1)
    assert len(translation.source.tokens) == 13
    assert len(translation.hypotheses[0].tokens) == 13
    assert translation.hypotheses[0].at_limit
    with pytest.raises(BadInput, match=r"pair 2 has .* this model's positions end at 13"):
        run.score([("a", "b"), ("the dog " * 20, "b")])


@pytest.mark.parametrize(
    ("sizes", "rows", "sentences"),
    [((1, 1, 1), 32, 8), ((8, 1, 1), 128, None), ((4, 2, 1), 256, 8), ((4, 1, 2), 256, 8)],
)
def test_a_tail_is_a_quarter_of_what_a_device_searches_alone(sizes, rows, sentences):
    mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: np.prod(sizes)])
    assert tail_of(rows, mesh) == sentences
    assert rows_sharding(mesh).shard_shape((rows,)) == (rows // mesh.size,)


@pytest.mark.parametrize("targets", [None, np.random.default_rng(1).integers(1, 400, 997).tolist()], ids=["", "known"])
def test_groups_hold_every_sentence_once_in_few_shapes(targets):
    lengths = np.random.default_rng(0).integers(1, 100, 997).tolist()
    mesh, decode = make_mesh(MeshConfig(), jax.devices()[:8]), DecodeConfig(tokens_per_batch=4096)
    found = list(groups_of(ModelConfig(vocab_size=9), decode, mesh, lengths, targets))
    assert sorted(np.concatenate([group.members for group in found])) == list(range(997))
    for group in found:
        assert group.rows % 8 == 0
        assert max(lengths[member] for member in group.members) <= group.source
        assert group.rows * group.target <= 4096
        assert targets is None or max(targets[member] for member in group.members) <= group.target
    assert len({group[1:] for group in found}) <= 5
    assert sum(group.rows for group in found) < 997 + found[-1].rows
    assert [rounded_up(length) for length in (1, 8, 9, 13, 17, 25, 33)] == [8, 8, 12, 16, 24, 32, 48]


@pytest.mark.parametrize("targets", [None, [3, 100, 40]], ids=["", "known"])
def test_no_group_is_longer_than_the_positions(targets):
    model = ModelConfig(vocab_size=9, positions="learned", max_length=100)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    found = list(groups_of(model, DecodeConfig(max_length=90), mesh, [3, 100, 97], targets))
    assert (max(group.source for group in found), max(group.target for group in found)) == (100, 90)
